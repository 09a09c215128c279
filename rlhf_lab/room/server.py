"""The warm parent: torch is loaded once, and every examination gets a fork of it.

It is told what to do over a socket (`--control FD`): `fork` comes with the child's own socket, `kill` with a number.
Student code never runs in this process. With `--gpu FILE ...`, the driver's device files, its children may use the GPU.
"""

import argparse
import array
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

from . import ENVIRONMENT, confine, gpu

MESSAGE = 4096  # bytes of one instruction


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--cpu-seconds", type=int, required=True)
    parser.add_argument("--gpu", nargs="+", default=[], metavar="FILE")
    parser.add_argument("--device", default="cpu", help="that torch is to find behind these files")
    parser.add_argument("--driver", help="folder of the GPU's library")
    options = parser.parse_args()
    control = socket.socket(fileno=options.control)
    warm_up()
    namespaces = _try_namespaces()
    control.send(json.dumps({"ready": confinement(namespaces)}).encode())
    children: dict[int, str] = {}
    while True:
        message, handles = _instruction(control)
        if not message:
            break
        instruction = json.loads(message)
        if "fork" in instruction:
            scratch = tempfile.mkdtemp(prefix="room-")
            pid = _fork(handles[0], scratch, control, options, namespaces)
            os.close(handles[0])
            children[pid] = scratch
            control.send(json.dumps({"child": pid}).encode())
        else:
            pid = instruction["kill"]
            scratch = children.pop(pid)
            _kill(pid)
            shutil.rmtree(scratch, ignore_errors=True)
            control.send(json.dumps({"killed": pid}).encode())
    for pid, scratch in children.items():
        _kill(pid)
        shutil.rmtree(scratch, ignore_errors=True)


def warm_up() -> None:
    """Import, and use once, what takes long: a fork has it ready."""
    import torch

    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    from ..checks.models import micro_lm, micro_tokenizer
    from . import child  # noqa: F401
    from .props import dpo, end_to_end, grpo, ppo, ppo_loop, reward_model, sft, shared, toy, trainer  # noqa: F401

    micro_lm()(torch.zeros(1, 2, dtype=torch.long))
    micro_tokenizer()


def _try_namespaces() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return confine.has_namespaces(folder)


def confinement(namespaces: bool) -> str:
    """How the children are going to be kept apart."""
    means = ["bubblewrap"] if os.environ.get("RLHF_ROOM") == "bubblewrap" else []
    if namespaces:
        means.append("namespaces")
    if confine.has_landlock():
        means.append("Landlock")
    if confine.has_seccomp():
        means.append("seccomp")
    return ", ".join([*means, "process limits"])


def _instruction(control: socket.socket) -> tuple[bytes, list[int]]:
    handles = array.array("i")
    message, ancillary, _, _ = control.recvmsg(MESSAGE, socket.CMSG_SPACE(handles.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            handles.frombytes(data[: len(data) - len(data) % handles.itemsize])
    return message, list(handles)


def _fork(
    handle: int, scratch: str, control: socket.socket, options: argparse.Namespace, namespaces: bool
) -> int:
    """A child that serves `handle`; with namespaces of its own it is process 1 of one."""
    pid = os.fork()
    if pid:
        return pid
    try:
        control.close()
        os.setsid()
        if namespaces:
            confine.own_namespaces()
            if (inner := os.fork()) != 0:
                _, status = os.waitpid(inner, 0)
                os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
            confine.private_scratch(scratch)
        _serve(handle, scratch, options)
    finally:
        os._exit(1)


def _serve(handle: int, scratch: str, options: argparse.Namespace) -> None:
    from .child import serve

    wall = socket.socket(fileno=os.dup(handle))
    os.closerange(3, wall.fileno())
    os.closerange(wall.fileno() + 1, 256)
    _settle(scratch)
    # the driver opens files and a socket of its own, and keeps them: after the others are closed, before none may be
    problem = gpu.problem_of(options.device) if options.gpu else None
    _confine(scratch, options)
    serve(wall, Path(scratch), options.device, problem)


def _settle(scratch: str) -> None:
    """A folder, an environment and streams that are nobody else's."""
    os.chdir(scratch)
    for_gpu = {name: os.environ[name] for name in gpu.VARIABLES if name in os.environ}
    os.environ.clear()
    os.environ.update({**ENVIRONMENT, **for_gpu, "HOME": scratch, "TMPDIR": scratch})
    tempfile.tempdir = scratch
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    os.close(nowhere)


def _confine(scratch: str, options: argparse.Namespace) -> None:
    from ..checks.models import micro_folder

    with_gpu = bool(options.gpu)
    confine.limit_resources(options.cpu_seconds, with_gpu)
    if sys.platform == "linux":
        readable = [*confine.python_folders(Path(__file__).parents[1]), micro_folder()]
        readable += [options.driver, *gpu.SYSTEM_FOLDERS] if with_gpu else []
        confine.only_these_files(readable, scratch, options.gpu)
        confine.drop_capabilities()
        confine.die_with_parent()
        confine.no_processes_no_sockets(with_gpu)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


if __name__ == "__main__":
    main()
