"""Take away from a child what a student's functions do not need: network, other processes, files, unlimited memory.

Linux only, from the kernel's own means and without privileges: a private mount, process and IPC namespace where the
warm parent may make one (inside bubblewrap it may), Landlock for the files, seccomp for processes and sockets. Where a
means is missing the others still hold, and `server.confinement` says which ones there are; a child in which one of
those fails does not run anything.

A child with a GPU cannot have its address space limited, for CUDA reserves hundreds of GiB of it. In its place stands
RLIMIT_DATA, which counts what is private and writable and not what is mapped from a device; memory that it does not
count either (shared mappings without a file, memfd, System V, stacks that grow) is refused by seccomp.
"""

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from . import PYTHON_FOLDERS, SYSTEM_FILES

MIB = 1 << 20
MEMORY = 6144 * MIB  # address space; torch and transformers take about 2 GiB of it
GPU_MEMORY = 8192 * MIB  # private memory of a child with a GPU: 2 GiB more for CUDA's own
FILE_SIZE = 64 * MIB
SCRATCH = 256 * MIB

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

# --- namespaces: nothing that one child leaves behind reaches the next one -----------------------

_NEWNS, _NEWIPC, _NEWPID = 0x00020000, 0x08000000, 0x20000000
_MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV = 0x4000, 0x40000, 0x2, 0x4


def has_namespaces(folder: str) -> bool:
    """Whether `own_namespaces` and `private_scratch` are allowed here; tried in a fork, for they cannot be undone."""
    if _libc is None:
        return False
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1] == 0
    try:
        own_namespaces()
        if (inner := os.fork()) != 0:
            os._exit(os.waitpid(inner, 0)[1] != 0)
        private_scratch(folder)
        os._exit(0)
    finally:
        os._exit(1)


def own_namespaces() -> None:
    """Give the children of this process their own process numbers, mounts and IPC."""
    _must(_libc.unshare(_NEWNS | _NEWIPC | _NEWPID) == 0, "namespaces")


def private_scratch(folder: str) -> None:
    """An empty file system in memory over `folder`, and a /proc that shows this namespace only."""
    flags = _MS_NOSUID | _MS_NODEV
    size = f"size={SCRATCH},mode=700".encode()
    _must(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0, "private mounts")
    _must(_libc.mount(b"tmpfs", folder.encode(), b"tmpfs", flags, size) == 0, "a file system in memory")
    _must(_libc.mount(b"proc", b"/proc", b"proc", flags, None) == 0, "a /proc of its own")


def drop_capabilities() -> None:
    """Give up every capability, for good."""
    header = struct.pack("Ii", 0x20080522, 0)
    _must(_libc.capset(header, struct.pack("6I", *[0] * 6)) == 0, "giving up capabilities")


def die_with_parent() -> None:
    _libc.prctl(1, signal.SIGKILL, 0, 0, 0)


# --- Landlock: which files can be read ------------------------------------------------------------

_READ = 0b1101  # execute, read a file, read a folder
_ALL = (1 << 13) - 1  # everything that the first version of Landlock knows


def has_landlock() -> bool:
    return _libc is not None and _libc.syscall(444, None, 0, 1) > 0


def only_these_files(readable: Sequence[str], writable: str, devices: Sequence[str] = ()) -> None:
    """Let this process read below `readable`, write below `writable`, read and write `devices`, and nothing else,
    where there is Landlock."""
    if not has_landlock():
        return
    attributes = ctypes.create_string_buffer(struct.pack("Q", _ALL), 8)
    ruleset = _libc.syscall(444, attributes, 8, 0)
    try:
        to_write = [os.devnull, *devices]
        for path, access in [*((path, _READ) for path in [*readable, *devices]), (writable, _ALL)]:
            if not os.path.exists(path):
                continue
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = access if os.path.isdir(path) else access & 0b101 | (2 if path in to_write else 0)
            rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, handle), 12)
            _libc.syscall(445, ruleset, 1, rule, 0)
            os.close(handle)
        no_new_privileges()
        _must(_libc.syscall(446, ruleset, 0) == 0, "Landlock")
    finally:
        os.close(ruleset)


def no_new_privileges() -> None:
    _libc.prctl(38, 1, 0, 0, 0)


# --- seccomp: no other process, no socket ---------------------------------------------------------

_X86 = {
    "socket": 41, "connect": 42, "bind": 49, "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "kill": 62, "ptrace": 101, "capset": 126,
    "rt_sigqueueinfo": 129, "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "mount": 165, "umount2": 166, "tkill": 200,
    "sched_setaffinity": 203, "tgkill": 234, "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251,
    "unshare": 272, "perf_event_open": 298, "prlimit64": 302, "setns": 308, "process_vm_readv": 310,
    "process_vm_writev": 311, "sched_setattr": 314, "bpf": 321, "execveat": 322, "userfaultfd": 323,
}  # fmt: skip
_ARM = {
    "socket": 198, "connect": 203, "bind": 200, "clone": 220, "execve": 221, "kill": 129, "ptrace": 117, "capset": 91, "rt_sigqueueinfo": 138,
    "setpriority": 140, "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "ioprio_set": 30,
    "mount": 40, "umount2": 39, "tkill": 130, "tgkill": 131, "add_key": 217, "request_key": 218, "keyctl": 219,
    "unshare": 97, "perf_event_open": 241, "prlimit64": 261, "setns": 268, "process_vm_readv": 270,
    "process_vm_writev": 271, "sched_setattr": 274, "bpf": 280, "execveat": 281, "userfaultfd": 282,
}  # fmt: skip
_BOTH = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "pidfd_open": 434,
    "clone3": 435,
    "pidfd_getfd": 438,
}
_MACHINES = {"x86_64": (_X86 | _BOTH, 0xC000003E), "aarch64": (_ARM | _BOTH, 0xC00000B7)}
_SYSCALLS, _ARCHITECTURE = _MACHINES.get(platform.machine(), ({}, 0))
# What makes memory that no limit counts once the address space has none.
_UNCOUNTED = {
    "x86_64": {"mmap": 9, "shmget": 29, "memfd_create": 319},
    "aarch64": {"mmap": 222, "shmget": 194, "memfd_create": 279},
}.get(platform.machine(), {})
_ALLOWED, _DENIED, _NO_SUCH_CALL = 0x7FFF0000, 0x00050001, 0x00050026
_CLONE_THREAD = 0x00010000
_SHARED_WITHOUT_FILE = 0x21  # MAP_SHARED | MAP_ANONYMOUS
_GROWS_DOWN = 0x100  # MAP_GROWSDOWN: a stack, which RLIMIT_DATA does not count


def has_seccomp() -> bool:
    return _libc is not None and bool(_SYSCALLS)


def no_processes_no_sockets(gpu: bool = False) -> None:
    """Refuse the calls that start or touch another process, open a socket or load code into the kernel.

    With a GPU also those that make memory which its limit does not count.
    """
    if not has_seccomp():
        return
    load, bitwise_and, jump_equal, jump_at_least, jump_set, answer = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
    program = [
        (load, 0, 0, 4),
        (jump_equal, 1, 0, _ARCHITECTURE),
        (answer, 0, 0, _DENIED),
        (load, 0, 0, 0),
        (jump_at_least, 0, 1, 0x40000000),  # the calls of another ABI on the same machine
        (answer, 0, 0, _DENIED),
        # glibc then falls back to clone, whose flags can be seen
        (jump_equal, 0, 1, _SYSCALLS["clone3"]),
        (answer, 0, 0, _NO_SUCH_CALL),
    ]
    for name, number in _SYSCALLS.items():
        if name not in ("clone", "clone3", "prlimit64"):
            program += [(jump_equal, 0, 1, number), (answer, 0, 0, _DENIED)]
    if gpu:
        for name in ("shmget", "memfd_create"):
            program += [(jump_equal, 0, 1, _UNCOUNTED[name]), (answer, 0, 0, _DENIED)]
        program += [
            (jump_equal, 0, 7, _UNCOUNTED["mmap"]),
            (load, 0, 0, 40),  # its flags
            (jump_set, 0, 1, _GROWS_DOWN),
            (answer, 0, 0, _DENIED),
            (bitwise_and, 0, 0, _SHARED_WITHOUT_FILE),
            (jump_equal, 0, 1, _SHARED_WITHOUT_FILE),
            (answer, 0, 0, _DENIED),
            (answer, 0, 0, _ALLOWED),
        ]
    program += [
        (jump_equal, 0, 4, _SYSCALLS["prlimit64"]),
        (
            load,
            0,
            0,
            16,
        ),  # its first argument: 0 is the process itself, another number would be another's limits
        (jump_equal, 1, 0, 0),
        (answer, 0, 0, _DENIED),
        (answer, 0, 0, _ALLOWED),
        (jump_equal, 0, 3, _SYSCALLS["clone"]),
        (load, 0, 0, 16),  # its flags: a thread is fine, a process is not
        (jump_set, 1, 0, _CLONE_THREAD),
        (answer, 0, 0, _DENIED),
        (answer, 0, 0, _ALLOWED),
    ]
    filters = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    memory = ctypes.create_string_buffer(filters, len(filters))
    description = struct.pack("HxxxxxxP", len(program), ctypes.addressof(memory))
    no_new_privileges()
    filtered = _libc.prctl(22, 2, ctypes.create_string_buffer(description, len(description)), 0, 0) == 0
    _must(filtered, "seccomp")


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise OSError(ctypes.get_errno(), f"{what} refused")


# --- limits ---------------------------------------------------------------------------------------


def limit_resources(cpu_seconds: int, gpu: bool = False) -> None:
    """Limits of the plain kind: processor time, memory, size of files, number of open files, no core dump."""
    limits = {
        resource.RLIMIT_CPU: cpu_seconds,
        **({resource.RLIMIT_DATA: GPU_MEMORY} if gpu else {resource.RLIMIT_AS: MEMORY}),
        resource.RLIMIT_FSIZE: FILE_SIZE,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        try:
            resource.setrlimit(kind, (limit, limit))
        except (ValueError, OSError):  # macOS does not know RLIMIT_AS
            continue


def python_folders(course: Path) -> list[str]:
    """What Python, its libraries and the workbench are read from."""
    system = ["/usr", "/lib", "/lib64", "/bin", "/proc", *SYSTEM_FILES]
    devices = ["/dev/null", "/dev/urandom", "/dev/random"]
    return [*PYTHON_FOLDERS, *system, *devices, str(course)]
