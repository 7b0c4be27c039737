r"""Take from graphq what macOS or Windows lack, in this process and its children, as $GRAPHQ_SYSTEM says.

    GRAPHQ_SYSTEM=win32 PYTHONPATH=tests/helpers/other_systems python -m pytest -n 0 -W "ignore:graphq is not tested" \
        tests/ir tests/rewrite tests/passes tests/model

On Windows files have no owners or modes, and a file that is mapped cannot be replaced or removed. Tests of these fail
there: leave them out by -k "not others and not who_else and not goes_with_the_process and not hostile_files and not
damaged_models and not models_count and not oldest_plans and not what_was_there and not many_threads_read".

Python imports this file as it starts, because of its name. Only files of graphq get other modules: Python's own and
other packages go on with the whole of Linux. Where code asks for functions of macOS or Windows, it gets functions of
Linux under these names, which do what the systems' documents say.
"""
import builtins
import ctypes
import os
import sys
import weakref

SYSTEM = os.environ.get("GRAPHQ_SYSTEM", "linux")
_OF_LINUX = {
    "os": "sched_* SCHED_* memfd_create eventfd pidfd_open posix_fadvise O_DIRECT O_PATH O_TMPFILE getrandom",
    "mmap": "MAP_POPULATE MADV_HUGEPAGE",
    "signal": "sigwaitinfo sigtimedwait",
    "time": "CLOCK_BOOTTIME CLOCK_TAI",
    "resource": "prlimit",
}
_OF_POSIX = {
    "os": "fork* register_at_fork get*id set*id *priority sysconf* uname wait* WNOHANG WIF* WEXITSTATUS WTERMSIG kill* "
          "nice statvfs mkfifo pread pwrite O_NONBLOCK O_NOFOLLOW O_CLOEXEC O_SYNC chown fchown fchmod lchown "
          "*_blocking openpty posix_*",
    "mmap": "MAP_* MADV_* PROT_*",
    "signal": "pthread_* sig* *itimer* alarm SIGALRM SIGBUS SIGCHLD SIGHUP SIGKILL SIGPIPE SIGTRAP SIGUSR*",
    "time": "CLOCK_* clock_* pthread_*",
    "socket": "AF_UNIX socketpair",
    "select": "poll epoll",
}
_MODULES_OF_POSIX = {"fcntl", "grp", "pwd", "resource", "termios", "syslog", "pty"}
_KEPT = {"getpid", "getppid"}  # by patterns above they would go
_WAIT = """
declare i32 @sem_wait(ptr)
declare i32 @sem_post(ptr)
define {kind} @{name}(ptr %semaphore, {kind} %limit) {{
  br label %again
again:
  %failed = call i32 @sem_wait(ptr %semaphore)
  %interrupted = icmp ne i32 %failed, 0
  br i1 %interrupted, label %again, label %done
done:
  %wrong = icmp ne {kind} %limit, -1
  %result = select i1 %wrong, {kind} {too_late}, {kind} 0
  ret {kind} %result
}}
"""
"""A wait without a limit of time, which is -1; with another limit it gives `too_late`."""
_NATIVE = {
    "darwin": _WAIT.format(name="dispatch_semaphore_wait", kind="i64", too_late=1) + """
define i64 @dispatch_semaphore_signal(ptr %semaphore) {
  %failed = call i32 @sem_post(ptr %semaphore)
  ret i64 0
}
""",
    "win32": _WAIT.format(name="WaitForSingleObject", kind="i32", too_late=258) + """
declare i32 @sched_yield()
declare i64 @pthread_self()
declare i32 @clock_gettime(i32, ptr)
define i32 @ReleaseSemaphore(ptr %handle, i32 %count, ptr %previous) {
  %failed = call i32 @sem_post(ptr %handle)
  ret i32 %count
}
define i32 @SwitchToThread() {
  %failed = call i32 @sched_yield()
  ret i32 1
}
define i32 @GetCurrentThreadId() {
  %thread = call i64 @pthread_self()
  %id = trunc i64 %thread to i32
  ret i32 %id
}
define i32 @QueryPerformanceCounter(ptr %count) {
  %time = alloca [2 x i64]
  %failed = call i32 @clock_gettime(i32 1, ptr %time)
  %rest_at = getelementptr i64, ptr %time, i64 1
  %seconds = load i64, ptr %time
  %rest = load i64, ptr %rest_at
  %scaled = mul i64 %seconds, 1000000000
  %all = add i64 %scaled, %rest
  store i64 %all, ptr %count
  ret i32 1
}
""",
}


class Partial(type(sys)):
    """A module without some of its names."""

    def __init__(self, whole, lacks, **others):
        from fnmatch import fnmatchcase
        super().__init__(whole.__name__)
        self.__dict__.update(others)

        def find(name):
            if name not in _KEPT and any(fnmatchcase(name, pattern) for pattern in lacks):
                raise AttributeError(f"module {whole.__name__!r} has no attribute {name!r} on {SYSTEM}")
            return getattr(whole, name)

        self.__getattr__ = find


def _no_links(*arguments, **options):
    raise OSError("symbolic link privilege not held")


def _semaphore(*arguments):
    """The address of a semaphore with value 0."""
    room = ctypes.create_string_buffer(64)
    _semaphore.kept.append(room)
    ctypes.CDLL(None).sem_init(room, 0, 0)
    return ctypes.addressof(room)


_semaphore.kept = []


def _create_thread(attributes, stack, function, argument, flags, number):
    thread = ctypes.c_void_p()
    failed = ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, function, argument)
    return None if failed else thread.value


def _join(thread, milliseconds):
    ctypes.CDLL(None).pthread_join(thread, None)
    return 0


def _library(name, **options):
    """The functions of the process itself on macOS, or of kernel32.dll."""
    real = ctypes.CDLL(None)
    if SYSTEM == "win32":
        if name != "kernel32":
            raise TypeError("LoadLibrary() argument 1 must be str, not None") if name is None else OSError(name)
        found = {"CreateSemaphoreW": lambda *x: _semaphore(), "CreateThread": _create_thread,
                 "WaitForSingleObject": _join, "CloseHandle": lambda handle: 1}
    else:
        found = {"dispatch_semaphore_create": lambda *x: _semaphore()} | {
            name: getattr(real, name) for name in ("pthread_create", "pthread_join")}
    return type("Library", (), {name: staticmethod(x) for name, x in found.items()})


def _popen(*arguments, **options):
    import subprocess
    if options.get("pass_fds") or options.get("preexec_fn"):
        raise AssertionError("pass_fds not supported on Windows.")
    return subprocess.Popen(*arguments, **options | {"creationflags": 0})


_mapped = weakref.WeakKeyDictionary()  # the files that this process has mapped


def _unless_mapped(name):
    """A function of `os` that refuses to change the name of a file that this process has mapped."""
    def changed(*paths, **options):
        for path in filter(os.path.exists, paths):
            if any(os.path.samestat(os.stat(path), facts) for facts in _mapped.values()):
                raise PermissionError(13, "Access is denied", str(path))
        return getattr(os, name)(*paths, **options)

    return changed


def _map():
    import mmap

    class Map(mmap.mmap):
        def __new__(cls, *arguments, **options):
            if not options.keys() <= {"tagname", "access", "offset"} or len(arguments) > 3:
                raise TypeError("mmap() has no flags on Windows")
            if mmap.mmap not in cls.__mro__:  # a test has replaced it
                return mmap.mmap(*arguments, **options)
            made = super().__new__(cls, *arguments, **options)
            if arguments[0] >= 0:
                _mapped[made] = os.fstat(arguments[0])
            return made

        @property
        def madvise(self):
            raise AttributeError("madvise")

    return Map


def _others(name):
    """What stands in a module for other things of the same names."""
    windows = SYSTEM == "win32"
    return {
        "sys": {"platform": SYSTEM},
        "os": {"name": "nt", "symlink": _no_links, "O_BINARY": 0, **{
            x: _unless_mapped(x) for x in ("replace", "unlink")}} if windows else {},
        "platform": {"machine": lambda: os.environ.get("GRAPHQ_MACHINE", "AMD64" if windows else "x86_64")},
        "ctypes": {"CDLL": _library},
        "subprocess": {"Popen": _popen} if windows else {},
        "mmap": {"mmap": _map()} if windows and name == "mmap" else {},
        "time": {} if windows else {"CLOCK_UPTIME_RAW": 1},  # the number that Linux has for this clock
    }.get(name, {})


_partial = {}
_loaded = []


def _seen(whole):
    """A module as files of graphq see it."""
    name = whole.__name__
    if name not in _partial:
        lacks = _OF_LINUX.get(name, "").split() + (_OF_POSIX.get(name, "").split() if SYSTEM == "win32" else [])
        others = _others(name)
        _partial[name] = Partial(whole, lacks, **others) if lacks or others else whole
    return _partial[name]


def _loader_gives(binding):
    """Let code that Numba or graphq loads find functions of the system by their names."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True, reloc="pic")
    compiler = binding.create_lljit_compiler(machine, use_jit_link=True)
    library = binding.JITLibraryBuilder().add_ir(_NATIVE[SYSTEM]).add_current_process()
    names = [x.name for x in binding.parse_assembly(_NATIVE[SYSTEM]).functions if not x.is_declaration]
    for name in names:
        library.export_symbol(name)
    found = library.link(compiler, "system")
    for name in names:
        binding.add_symbol(name, found[name])
    add = binding.JITLibraryBuilder.add_current_process

    def add_process(self):
        for name in names:
            self.import_symbol(name, found[name])
        return add(self)

    binding.JITLibraryBuilder.add_current_process = add_process
    return compiler, found


def _install():
    plain = builtins.__import__

    def importing(name, globals=None, locals=None, fromlist=(), level=0):
        by = (globals or {}).get("__name__") or ""
        if by != "graphq" and not by.startswith("graphq.") or level:
            return plain(name, globals, locals, fromlist, level)
        if SYSTEM == "win32" and name in _MODULES_OF_POSIX:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        found = plain(name, globals, locals, fromlist, level)
        if name == "llvmlite.binding" and SYSTEM in _NATIVE and not _loaded:
            _loaded.append(_loader_gives(sys.modules[name]))
        return _seen(found)

    def no_proc(event, arguments):
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(("/proc/", "/sys/")):
            frame = sys._getframe(1)
            while frame and not frame.f_globals.get("__name__", "").startswith("graphq."):
                frame = frame.f_back
            if frame:
                raise FileNotFoundError(2, f"No such file or directory on {SYSTEM}", arguments[0])

    builtins.__import__ = importing
    sys.addaudithook(no_proc)


if SYSTEM != "linux":
    _install()
