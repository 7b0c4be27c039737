"""The files of the kernel cache: which are read, where they are, what damage they survive, and when they go."""
import errno
import grp
import logging
import os
import pwd
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from graphq.base import platform
from graphq.kernels.jit import cache
from graphq.kernels.jit.cache import DAY, Code, Entry

CODE = Code(b"\x7fELF, or so\n\0", ("BLOCK", "twice"))
forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12, of its threads
NOBODY = 65534


@pytest.fixture
def entry(folder):
    """An entry that is written."""
    made = Entry("test", "text")
    made.write(CODE)
    return made


def temporary(path):
    return path.parent == Path(cache.tempfile.gettempdir()) and path.name.startswith("graphq-")


def names(folder):
    return sorted(x.name for x in folder.iterdir())


# -- what is read ---------------------------------------------------------------------------------------------------


def test_what_was_written_is_read(folder):
    entry = Entry("test", "text")
    assert entry.read() is None
    entry.write(CODE)
    assert entry.read() == Entry("test", "text").read() == CODE
    assert Entry("test", "other text").read() is None
    assert Entry("other", "text").read() is None
    assert names(folder) == [entry.name] and cache.OURS.fullmatch(entry.name)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / entry.name).stat().st_mode & 0o777 == 0o600
    entry.write(CODE._replace(object=b"newer"))
    assert entry.read() == (b"newer", CODE.names)


def test_versions_and_machines_have_files_of_their_own(entry, monkeypatch):
    for module, name in ((cache, "versions"), (cache.cpu, "describe")):
        with monkeypatch.context() as m:
            m.setattr(module, name, lambda: "another")
            assert Entry("test", "text").name != entry.name and Entry("test", "text").read() is None
    assert Entry("test", "text").read() == CODE


def test_code_is_kept_where_it_was_looked_for(folder, tmp_path, monkeypatch):
    """Kernels of other sizes are compiled long after their plan, when the environment may name another folder."""
    entry = Entry("test", "text")
    monkeypatch.setenv("GRAPHQ_CACHE_DIR", str(tmp_path / "other"))
    entry.write(CODE)
    assert names(folder) == [entry.name] and entry.read() == CODE
    assert Entry("test", "text").read() is None


def test_damaged_files_are_not_read(folder, entry):
    path = folder / entry.name
    whole = path.read_bytes()
    for damaged in (*(whole[:n] for n in range(len(whole))), whole + b"\0", bytes(len(whole))):
        path.write_bytes(damaged)
        assert entry.read() is None, len(damaged)
    for k in range(len(whole)):
        path.write_bytes(whole[:k] + bytes([whole[k] ^ 1]) + whole[k + 1:])
        assert entry.read() is None, k
    entry.write(CODE)
    assert entry.read() == CODE


def test_another_kernels_file_is_not_read(folder, entry):
    other = Entry("test", "other text")
    shutil.copy(folder / entry.name, folder / other.name)
    assert other.read() is None
    other.write(CODE)
    assert other.read() == CODE


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_to_is_not_read(folder, entry, mode):
    (folder / entry.name).chmod(mode)
    assert entry.read() is None
    (folder / entry.name).chmod(0o644)
    assert entry.read() == CODE


def test_a_file_of_another_user_is_not_read(folder, entry, monkeypatch):
    monkeypatch.setattr(cache, "safe_folder", lambda *_, **__: folder)
    with monkeypatch.context() as m:
        other = os.geteuid() + 1
        m.setattr(cache.os, "geteuid", lambda: other)
        assert entry.read() is None
    assert entry.read() == CODE


def test_links_and_folders_are_not_read(folder, entry, tmp_path):
    path = folder / entry.name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert entry.read() is None
    path.unlink()
    path.mkdir()
    assert entry.read() is None
    path.rmdir()
    (tmp_path / "elsewhere").rename(path)
    assert entry.read() == CODE


def test_what_is_read_seldom_counts_as_used(folder, entry):
    path = folder / entry.name
    now = path.stat().st_mtime
    for age, touched in ((0.9 * DAY, False), (1.1 * DAY, True)):
        os.utime(path, (now - age, now - age))
        assert entry.read() == CODE
        assert (path.stat().st_mtime >= now) == touched


# -- writing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["open", "replace"])
def test_a_full_disk_is_a_warning(folder, monkeypatch, caplog, broken):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    entry = Entry("test", "text")
    with monkeypatch.context() as m, caplog.at_level(logging.WARNING, "graphq"):
        m.setattr(cache.os, broken, full)
        entry.write(CODE)
    assert f"kernel cache {folder} cannot be used" in caplog.text and "No space" in caplog.text
    assert entry.read() is None and names(folder) == []
    entry.write(CODE)
    assert entry.read() == CODE


def test_an_interrupt_leaves_no_file(folder, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
        m.setattr(cache.os, "replace", interrupted)
        Entry("test", "text").write(CODE)
    assert names(folder) == []


@forks
def test_a_process_that_is_killed_while_it_writes_does_no_harm(folder, monkeypatch):
    entry = Entry("test", "text")
    cache.folder()
    child = os.fork()
    if child == 0:
        cache.os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
        entry.write(CODE)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    (left,) = folder.iterdir()
    assert left.name.startswith(".graphq.") and entry.read() is None
    assert cache.info().modules == 0 and cache.info().bytes == left.stat().st_size
    entry.write(CODE)
    assert entry.read() == CODE
    assert cache.tidy(folder, now=left.stat().st_mtime + DAY / 20) == 1
    assert names(folder) == [entry.name]


@forks
def test_processes_may_write_read_and_clear_at_the_same_time(folder):
    """Each sees a whole file or none."""
    entry, codes = Entry("test", "text"), [Code(bytes([k]) * 5000 * (1 + k), ("f",)) for k in range(3)]

    def works(k):
        for turn in range(100):
            if k == 3:
                cache.clear()
                cache.tidy(folder, now=turn % 2 * 1e12)
                cache.info()
            else:
                entry.write(codes[k])
            if entry.read() not in (None, *codes):
                return False
        return True

    cache.folder()
    children = []
    for k in range(4):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                os._exit(0 if works(k) else 1)
            finally:
                os._exit(2)
    assert works(0) and [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert entry.read() in (None, *codes)
    assert not any(x.startswith(".graphq.") for x in names(folder))


# -- the folder -----------------------------------------------------------------------------------------------------


def test_where_the_folder_is(tmp_path, monkeypatch):
    monkeypatch.delenv("GRAPHQ_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / ".cache" / "graphq"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification says to ignore
    assert cache.folder() == tmp_path / ".cache" / "graphq"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "graphq"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRAPHQ_CACHE_DIR", "own")
    assert cache.folder() == tmp_path / "own" and cache.folder().is_dir()


@pytest.mark.parametrize("home", [None, "relative"])
def test_without_a_home_there_is_a_temporary_folder(monkeypatch, home):
    for name in ("GRAPHQ_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    if home:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # a user without an entry, as in some containers
    assert temporary(cache.folder()) and cache.folder().is_dir()


def test_a_folder_that_is_opened_later_is_not_used_any_longer(folder, entry, caplog):
    folder.chmod(0o777)
    with caplog.at_level(logging.WARNING, "graphq"):
        assert entry.read() is None and entry.read() is None
        Entry("test", "third text").write(CODE)
    assert caplog.text.count("others can write to it (mode 777)") == 1
    assert temporary(cache.folder()) and names(folder) == [entry.name]
    folder.chmod(0o700)
    assert entry.read() == CODE


def test_whoever_can_write_above_the_folder_can_replace_it(tmp_path, monkeypatch):
    above = tmp_path / "above"
    monkeypatch.setenv("GRAPHQ_CACHE_DIR", str(above / "between" / "kernels"))
    assert cache.folder() == above / "between" / "kernels"
    above.chmod(0o777)
    assert temporary(cache.folder())
    above.chmod(0o1777)  # as /tmp: only the owner of the folder renames it
    assert cache.folder() == above / "between" / "kernels"


def test_a_link_to_a_folder_is_as_safe_as_the_folder(tmp_path, monkeypatch):
    (tmp_path / "kernels").mkdir(0o700)
    (tmp_path / "link").symlink_to("kernels")
    monkeypatch.setenv("GRAPHQ_CACHE_DIR", str(tmp_path / "link"))
    Entry("test", "text").write(CODE)
    assert Entry("test", "text").read() == CODE and len(names(tmp_path / "kernels")) == 1
    (tmp_path / "kernels").chmod(0o703)
    assert Entry("test", "text").read() is None


def test_the_group_may_write_if_it_is_the_users_own(folder, entry, monkeypatch):
    folder.chmod(0o770)
    for group, used in ((None, False), (folder.stat().st_gid, True), (folder.stat().st_gid + 1, False)):
        monkeypatch.setattr(platform, "private_group", lambda group=group: group)
        assert (cache.folder() == folder) == used


def test_whose_group_is_the_users_own(monkeypatch):
    user = pwd.getpwuid(os.geteuid())
    for name, members, own in ((user.pw_name, [], True), (user.pw_name, [user.pw_name], True),
                               (user.pw_name, ["mallory"], False), ("users", [], False)):
        group = grp.struct_group((name, "x", user.pw_gid, members))
        monkeypatch.setattr(grp, "getgrgid", lambda number, group=group: group)
        platform.private_group.cache_clear()
        assert platform.private_group() == (user.pw_gid if own else None)
    platform.private_group.cache_clear()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("given", ["kernels", ""])
def test_folders_of_another_user_are_not_used(folder, entry, tmp_path, given):
    os.chown(tmp_path / given, NOBODY, -1)
    assert temporary(cache.folder()) and entry.read() is None
    os.chown(tmp_path / given, 0, -1)
    assert entry.read() == CODE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_folders_below_those_of_root_are_used_by_others(folder, entry, monkeypatch):
    """As /home/name/.cache is, below /home."""
    os.chown(folder, NOBODY, -1)
    monkeypatch.setattr(cache.os, "geteuid", lambda: NOBODY)
    assert cache.folder() == folder


def test_a_folder_that_cannot_be_made_or_written_is_not_used(tmp_path, folder, entry, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(cache.os, "access", lambda path, mode: False)
        assert temporary(cache.folder())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRAPHQ_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    assert temporary(cache.folder())


TEMPORARY = """
import os, sys
from graphq.kernels.jit import cache
entry = cache.Entry("test", "text")
entry.write(cache.Code(b"code", ("f",)))
if os.fork() == 0:
    sys.exit()  # with what Python does at the end of a process
os.wait()
print(cache.folder(), len(entry.read().object), len(os.listdir(cache.folder())))
"""


def test_the_temporary_folder_goes_with_the_process_that_made_it(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    done = subprocess.run([sys.executable, "-c", TEMPORARY], capture_output=True, text=True,
                          env={**os.environ, "GRAPHQ_CACHE_DIR": str(tmp_path / "shared"), "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    path, size, count = done.stdout.split()
    assert (size, count) == ("4", "1")
    assert Path(path).parent == tmp_path and not Path(path).exists() and names(tmp_path / "shared") == []


# -- what goes ------------------------------------------------------------------------------------------------------

NOW = 2e9
OURS = ("a_1_" + "0" * 32 + ".o", "matmul_" + "0123456789abcdef" * 2 + ".o")
MODELS = ("model_" + "0" * 32 + ".graphq", "model_" + "89abcdef" * 4 + ".graphq")
UNFINISHED = ".graphq." + "0" * 32
"""A model that a process is writing."""
FOREIGN = ("notes.py", "test_short.o", "x_" + "0" * 32 + ".py", "X_" + "0" * 32 + ".o", "x_" + "0" * 31 + "g.o",
           "x_" + "0" * 32 + ".o.bak", "x_" + "0" * 32 + ".o.tmp.a.b", ".graphq", "mine.graphq",
           "model_" + "0" * 31 + ".graphq", MODELS[0] + ".bak", UNFINISHED[:-1])


def put(folder, name, size=10, age=0.0):
    (folder / name).write_bytes(bytes(size))
    os.utime(folder / name, (NOW - age, NOW - age))


def test_old_files_go(folder):
    cache.folder()
    for name in (*FOREIGN, OURS[0], MODELS[0]):
        put(folder, name, age=31 * DAY)
    for name in (OURS[1], MODELS[1]):
        put(folder, name, age=29 * DAY)
    assert cache.tidy(folder, now=NOW) == 2
    assert names(folder) == sorted((*FOREIGN, OURS[1], MODELS[1]))
    assert cache.tidy(folder, now=NOW) == 0


def test_the_least_recently_used_go_beyond_a_size(folder, monkeypatch):
    cache.folder()
    monkeypatch.setattr(cache, "MOST_BYTES", 100)
    files = [f"x_{k:032x}.{('o', 'graphq')[k % 2]}" for k in range(5)]
    for k, name in enumerate(files):
        put(folder, name, size=40, age=(3 * k + 2) % 5)  # the ages are 2, 0, 3, 1, 4
    put(folder, "notes.py", size=1000)
    assert cache.tidy(folder, now=NOW) == 3
    assert names(folder) == ["notes.py", files[1], files[3]]


def test_files_that_killed_processes_left_go(folder):
    cache.folder()
    young = [f"{OURS[0]}.tmp.young", ".graphq." + "1" * 32]
    for name in (f"{OURS[0]}.tmp.old", UNFINISHED):
        put(folder, name, age=DAY / 20)
    for name in young:
        put(folder, name, age=DAY / 30)
    assert cache.tidy(folder, now=NOW) == 2
    assert names(folder) == sorted(young)


def test_links_and_folders_stay(folder, tmp_path):
    cache.folder()
    put(tmp_path, "elsewhere", age=99 * DAY)
    (folder / OURS[0]).symlink_to(tmp_path / "elsewhere")
    (folder / OURS[1]).mkdir()
    assert cache.tidy(folder, now=NOW) == 0 and cache.clear() == cache.Info(folder, 0, 0, 0)
    assert names(folder) == sorted(OURS)


def test_a_process_tidies_when_it_writes_first(folder, monkeypatch):
    cache.folder()
    put(folder, OURS[0], age=NOW)  # of 1970
    Entry("test", "text").write(CODE)
    assert names(folder) == [Entry("test", "text").name]
    put(folder, OURS[0], age=NOW)
    Entry("test", "other text").write(CODE)
    assert OURS[0] in names(folder)


def test_a_folder_that_cannot_be_tidied_is_a_warning(folder, monkeypatch, caplog):
    def refuse(path, now=None):
        raise PermissionError("not yours")

    monkeypatch.setattr(cache, "tidy", refuse)
    entry = Entry("test", "text")
    with caplog.at_level(logging.WARNING, "graphq"):
        entry.write(CODE)
    assert "cannot be tidied: not yours" in caplog.text and entry.read() == CODE


def test_info_and_clear_know_only_our_files(folder):
    nothing = cache.Info(folder, 0, 0, 0)
    assert cache.info() == nothing
    for name in (*OURS, MODELS[0], *FOREIGN, OURS[0] + ".tmp.abc", UNFINISHED):
        put(folder, name)
    assert cache.info() == cache.Info(folder, 2, 1, 50)
    assert cache.clear() == cache.Info(folder, 2, 1, 50)
    assert names(folder) == sorted(FOREIGN)
    assert cache.info() == nothing and cache.clear() == nothing


def test_no_byte_of_a_file_may_have_changed(folder, entry):
    """Not one of the checksum, of the facts, or of the code itself."""
    path = folder / entry.name
    whole = path.read_bytes()
    for k in range(len(whole)):
        path.write_bytes(whole[:k] + bytes([whole[k] ^ 0x40]) + whole[k + 1:])
        assert entry.read() is None, k
    path.write_bytes(whole)
    assert entry.read() == CODE


def test_without_any_folder_modules_are_compiled_all_the_same(entry, monkeypatch, caplog):
    def no_folder(*_, **__):
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(cache, "safe_folder", no_folder)
    assert entry.read() is None
    entry.write(cache.Code(b"x", ("f",)))
    assert "there is no folder for the kernel cache: No usable temporary directory found" in caplog.text
