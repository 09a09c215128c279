"""The trusted side of the room's wall: start the warm parent, and talk to its children."""

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import rlhf_lab
from rlhf_lab.errors import LabError
from rlhf_lab.room import ENVIRONMENT, PYTHON_FOLDERS, SYSTEM_FILES, gpu
from rlhf_lab.room.wire import Unreadable, receive, send, unpack

ANSWER = 64 << 20  # bytes of one answer
CPU_SECONDS = 120  # of one child, all calls together
PROGRAMS = "/usr/bin:/bin"  # PATH in the room
START = 120.0  # seconds that the warm parent may take


class Gone(Exception):
    """The child gave no answer; the text says why, as the rest of a sentence about "your code"."""


class RoomLost(Exception):
    """The warm parent cannot be started, or has ended."""


@dataclass(frozen=True)
class Gpu:
    """What a room needs in order to compute on a GPU.

    Attributes:
        files: of the driver in /dev.
        driver: folder of the driver's library.
        device: what torch calls it.
    """

    files: tuple[str, ...]
    driver: str
    device: str

    def arguments(self) -> list[str]:
        """Of the warm parent's command."""
        return ["--gpu", *self.files, "--device", self.device, "--driver", self.driver]

    def bubblewrap(self) -> list[str]:
        """Of bubblewrap's command: device files, the driver's library, and what that reads and is told."""
        options = []
        for path in self.files:
            options += ["--dev-bind", path, path]
        for folder in (self.driver, *gpu.SYSTEM_FOLDERS):
            if Path(folder).exists() and not folder.startswith(("/usr/", "/lib")):
                options += ["--ro-bind", folder, folder]
        told = {name: os.environ[name] for name in gpu.VARIABLES if name in os.environ}
        for name, value in {**told, **gpu.ENVIRONMENT, "LD_LIBRARY_PATH": self.driver}.items():
            options += ["--setenv", name, value]
        return options


class Room:
    """The warm parent, in a process of its own. It is left with `close`.

    Args:
        patience: factor on every time limit, for a slow machine.
        gpu: that its children may use; only inside bubblewrap.

    Raises:
        LabError: on Windows, where student code could read the hidden tests, and where Python's own rlhf_lab is not
            the one that examines.
        RoomLost: when it does not start.
    """

    def __init__(self, patience: float = 1.0, gpu: Gpu | None = None):
        self.patience = patience
        self.device = gpu.device if gpu else "cpu"
        if sys.platform == "win32":
            raise LabError(
                "student code can be confined on Linux and macOS only: grade in a container or in WSL"
            )
        check_workbench()
        self._control, theirs = socket.socketpair()
        command = [sys.executable, "-I", "-m", "rlhf_lab.room.server", "--control", str(theirs.fileno())]
        command += ["--cpu-seconds", str(CPU_SECONDS), *(gpu.arguments() if gpu else [])]
        wrapper = bubblewrap(gpu) if bubblewrap_works() else []
        if not wrapper and (copies := installed_copies()):
            raise LabError(
                f"without bubblewrap, student code could read {copies[0]}: install bubblewrap, or install the course "
                f"with `pip install -e .`"
            )
        self._said = tempfile.TemporaryFile()  # not a pipe: reading one waits until the last process is gone
        self._process = subprocess.Popen(
            [*wrapper, *command],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            env={**ENVIRONMENT, "PATH": PROGRAMS},
            start_new_session=True,
            cwd="/",
        )
        theirs.close()
        self._control.settimeout(START)
        try:
            self.confinement = self._answer()["ready"]
        except RoomLost:
            self.close()
            raise

    def child(self) -> "Child":
        """A fresh fork of the warm parent.

        Raises:
            RoomLost: when the parent is gone.
        """
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [json.dumps({"fork": True}).encode()], [theirs.fileno()])
        except OSError:
            raise RoomLost from None
        finally:
            theirs.close()
        return Child(self, self._answer()["child"], ours)

    def kill(self, pid: int) -> None:
        try:
            self._control.send(json.dumps({"kill": pid}).encode())
            self._answer()
        except (OSError, RoomLost):  # the parent is gone, and its children with it
            return

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._said.close()

    def _answer(self) -> dict:
        try:
            message = self._control.recv(4096)
        except OSError:
            message = b""
        if not message:
            self._said.seek(0)
            said = self._said.read().decode(errors="replace")
            raise RoomLost(f"the room for student code could not be opened:\n{said[-2000:]}")
        return json.loads(message)


class Child:
    """One child of the room, from outside. Each method is one request; it is over when it is closed.

    Every request may raise `Gone`.

    Attributes:
        device: where a test that trains may put its models.
        shared: what the tests of one child have in common, by name (see `Candidate.once`).
    """

    def __init__(self, room: Room, pid: int, wall: socket.socket):
        self._room, self._pid, self._wall = room, pid, wall
        self.device = room.device
        self.shared: dict[str, Any] = {}

    def ask(self, operation: str, *arguments: Any, seconds: float) -> Any:
        """What the child's method `operation` returns.

        Raises:
            Gone: when it does not answer within `seconds`, has ended, or answers with something else than data.
        """
        seconds *= self._room.patience
        deadline = time.monotonic() + seconds
        try:
            self._wall.settimeout(seconds)
            send(self._wall, pickle.dumps((operation, arguments)))
            return unpack(receive(_Patient(self._wall, deadline), ANSWER))
        except TimeoutError:
            raise Gone(f"did not come to an end within {seconds:g} seconds") from None
        except (EOFError, ConnectionError):
            raise Gone(
                "ended the process that it ran in (too much memory or processor time, or an exit)"
            ) from None
        except Unreadable:
            raise Gone("gave an answer that is no data") from None

    def close(self) -> None:
        self._wall.close()
        self._room.kill(self._pid)


class _Patient:
    """A socket whose reads share one deadline: an answer in drops is not patience without end."""

    def __init__(self, wall: socket.socket, deadline: float):
        self._wall, self._deadline = wall, deadline

    def recv(self, size: int) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._wall.settimeout(left)
        return self._wall.recv(size)


def bubblewrap(gpu: Gpu | None = None) -> list[str]:
    """The command that puts the warm parent into a file system of its own: Python, the workbench, and nothing else but
    what a GPU needs where there is one."""
    workbench = Path(rlhf_lab.__file__).parent
    command = ["bwrap", "--die-with-parent", "--unshare-all", "--as-pid-1", "--clearenv"]
    for name, value in {**ENVIRONMENT, "PATH": PROGRAMS, "RLHF_ROOM": "bubblewrap"}.items():
        command += ["--setenv", name, value]
    # The children make namespaces of their own with this one, and give it up before student code runs.
    command += ["--cap-add", "CAP_SYS_ADMIN"]
    command += ["--tmpfs", "/", "--proc", "/proc", "--dev", "/dev"]
    command += ["--tmpfs", "/tmp"]  # first: the course itself may lie in there
    for folder in ("/usr", "/lib", "/lib64", "/lib32", "/bin"):
        path = Path(folder)
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), folder]
        elif path.is_dir():
            command += ["--ro-bind", folder, folder]
    for path in SYSTEM_FILES:
        if Path(path).exists():
            command += ["--ro-bind", path, path]
    for folder in PYTHON_FOLDERS:
        if not folder.startswith("/usr"):
            command += ["--ro-bind", folder, folder]
    command += gpu.bubblewrap() if gpu else []
    for place in installed_copies():
        command += ["--tmpfs", str(place)]
    command += ["--ro-bind", str(workbench), str(workbench), "--"]
    return command


@cache
def check_workbench() -> None:
    """Make sure that the room runs this workbench: it takes the installed one, whatever PYTHONPATH or the folder say.

    Raises:
        LabError: when it would be another copy, or none.
    """
    program = "from importlib.util import find_spec; spec = find_spec('rlhf_lab'); print(spec.origin if spec else '')"
    found = subprocess.run(
        [sys.executable, "-I", "-c", program],
        capture_output=True, text=True, env={**ENVIRONMENT, "PATH": PROGRAMS}, cwd="/",
    ).stdout.strip()  # fmt: skip
    if not found:
        raise LabError(
            f"rlhf_lab is not installed in {sys.executable}: run `make setup` here, and use its Python"
        )
    if not os.path.samefile(found, rlhf_lab.__file__):
        here, there = (Path(path).parent.parent for path in (rlhf_lab.__file__, found))
        raise LabError(
            f"{sys.executable} has rlhf_lab from {there}, and not from {here}: run `make setup` here, and use its Python"
        )


def installed_copies() -> list[Path]:
    """Hidden tests and solutions that lie among Python's libraries, where the room has to read."""
    libraries = Path(sys.prefix)
    return [
        place
        for package in ("solutions", "grader_tests")
        for place in libraries.glob(f"lib/python*/site-packages/{package}")
    ]


@cache
def bubblewrap_works() -> bool:
    """Whether bubblewrap is installed and allowed to make namespaces here."""
    if sys.platform != "linux" or shutil.which("bwrap") is None:
        return False
    return subprocess.run([*bubblewrap(), "/bin/true"], capture_output=True).returncode == 0
