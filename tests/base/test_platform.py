"""base/platform: the forms that other operating systems get, and that no other file knows of systems."""
import ast
import mmap
import os
import re
import signal
from pathlib import Path

import pytest

from graphq.base import platform

ROOT = Path(__file__).parents[2]
OF_SYSTEMS = {"fcntl", "grp", "msvcrt", "mmap", "platform", "pwd", "resource", "winreg"}
"""Modules that some systems lack, or that differ between systems."""
CALLS = re.compile(r"\bsys\.platform\b|\bos\.(name|uname|register_at_fork|sched_\w+|sysconf|setpriority)\b|"
                   r"\bos\.gete?[ug]id\b|\bO_(NONBLOCK|NOFOLLOW)\b|\bpthread_sigmask\b|\"/proc/cpuinfo")


def imported(tree):
    for x in ast.walk(tree):
        if isinstance(x, ast.Import):
            yield from (name.name.partition(".")[0] for name in x.names)
        elif isinstance(x, ast.ImportFrom) and x.module:
            yield x.module.partition(".")[0]


def test_no_other_file_knows_of_systems():
    for path in (p for folder in ("graphq", "kernels", "passes") for p in sorted((ROOT / folder).rglob("*.py"))):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        if name != "graphq/base/platform.py":
            found = OF_SYSTEMS.intersection(imported(ast.parse(text)))
            assert not found and not (call := CALLS.search(text)), f"{name}: {found or call[0]}"


@pytest.fixture
def without(monkeypatch):
    """Take names away from modules, as systems do that lack them."""
    def take(module, *names):
        for name in names:
            monkeypatch.delattr(module, name, raising=False)

    return take


def test_cores_memory_and_priorities_without_the_calls_of_linux(without, monkeypatch):
    without(os, "sched_getaffinity", "sysconf", "sched_setscheduler", "setpriority", "register_at_fork")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert platform.process_cores() == {0, 1, 2} and platform.machine_memory() == 1 << 40
    platform.run_idle()
    platform.at_fork(after_in_child=pytest.fail)
    monkeypatch.setattr(platform, "SYSTEM", "win32")
    platform.lower_priority()


def test_signals_without_masks(without):
    without(signal, "pthread_sigmask")
    with platform.signals_left_to_others() as nothing:
        assert nothing is None


def test_no_limits_where_there_is_no_module_for_them(monkeypatch):
    monkeypatch.setitem(platform.sys.modules, "resource", None)
    assert platform.address_limit() == float("inf")


def test_files_without_owners(without, tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"\r\n\x1a")
    path.chmod(0o777)
    facts = path.stat()
    assert not platform.is_mine(facts) and not platform.is_private(facts)
    assert "others can write" in platform.why_shared(facts, [])
    without(os, "geteuid", "getuid", "O_NONBLOCK", "O_NOFOLLOW")
    assert platform.is_mine(facts) and platform.is_private(facts) and platform.why_shared(facts, []) is None
    with open(path, "rb", opener=platform.open_at_once) as file:
        assert file.read() == b"\r\n\x1a"


def test_the_home_folder_without_a_table_of_users(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setitem(platform.sys.modules, "pwd", None)
    monkeypatch.setenv("USERPROFILE", "/of/the/user")
    assert platform.home() == "/of/the/user"


def test_memory_and_files_are_mapped_without_flags(without, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"1234" * 1024)
    with open(path, "rb") as file:
        assert bytes(platform.mapped_file(file)) == b"1234" * 1024
        without(mmap, "MAP_SHARED", "MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_POPULATE", "MADV_HUGEPAGE")
        assert bytes(platform.mapped_file(file)) == b"1234" * 1024
    pages = platform.mapped_pages(1 << 16)
    pages[5] = 7
    assert pages[:8] == b"\0\0\0\0\0\x07\0\0"


def test_features_of_a_system_that_lists_none(monkeypatch):
    monkeypatch.setattr(platform, "processor", dict)
    monkeypatch.setattr(platform, "MACHINE", "x86_64")
    assert platform.system_features() is None
    monkeypatch.setattr(platform, "processor", lambda: {"flags": "avx avx512_vnni"})
    assert platform.system_features() == {"avx", "avx512vnni"}
