"""Importing the package and running its visible checks, in a process of its own that may hang or die.

The process writes a line of JSON for each step that it has done. One that takes too long at a step is killed, and the
steps after it go on in a new process.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import psutil

from ..course import find
from .finding import Finding

START_SECONDS = (
    300  # until torch is imported: that can take a laptop minutes when it does it for the first time
)
IMPORT_SECONDS = 10  # for the student's modules
CHECK_SECONDS = 60  # for the visible check of one exercise; the slowest takes a few
IMPORT = "import"  # the step before the checks
ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import rlhf_lab
del sys.path[0]  # from here on no file of the course's folder is taken for another package
from rlhf_lab.doctor.child import main
main(*sys.argv[2:])
"""
STATES = {"passed": "ok", "not written": "warning", "waits": "warning"}  # every other one is a problem


def try_out(package: Path, names: Sequence[str]) -> Iterator[Finding]:
    """Import the package, compare the signatures with the stubs', and run the visible checks of the exercises."""
    left = [IMPORT, *names]
    while left:
        with _Child(package, left) as child:
            if isinstance(trouble := child.answer(START_SECONDS), str):
                yield Finding("problem", "checks", f"they could not be started: the process {trouble}")
                return
            while left:
                step = left.pop(0)
                answer = child.answer(IMPORT_SECONDS if step == IMPORT else CHECK_SECONDS)
                if step != IMPORT:
                    yield _checked(step, answer)
                elif (broken := _broken(package, answer)) is not None:
                    yield broken
                    return
                else:
                    yield from _imported(answer["complaints"], names)
                if isinstance(answer, str):
                    break


class _Child:
    """The process, as a context manager: at the end it is gone, with whatever it has started.

    Args:
        package: the folder of rlhf_exercises.
        steps: what to do: `IMPORT`, or the name of an exercise to check.
    """

    def __init__(self, package: Path, steps: Sequence[str]):
        self._package, self._steps = package.resolve(), steps

    def __enter__(self) -> Self:
        self._scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._answers, self._read = Path(self._scratch.name) / "answers.jsonl", 0
        self._answers.touch()
        work = Path(self._scratch.name) / "work"  # what the student's code may write files to
        work.mkdir()
        self._process = psutil.Popen(
            [sys.executable, "-P", "-c", PROGRAM, ROOT, self._package, self._answers, *self._steps],
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return self

    def __exit__(self, *_) -> None:
        for process in [*_children(self._process), self._process]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        self._process.wait()
        self._scratch.cleanup()

    def answer(self, seconds: float) -> dict | str:
        """What the next step has shown; where nothing came, what the process did instead."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self._process.poll()  # before the look at the file: what it wrote last is not missed
            lines = self._answers.read_text(encoding="utf-8").split("\n")[:-1]
            if len(lines) > self._read:
                self._read += 1
                return json.loads(lines[self._read - 1])
            if ended is not None:
                return f"ended Python (exit status {ended}): os._exit, or not enough memory?"
            if time.monotonic() > deadline:
                return f"takes longer than {seconds:g} s: does a loop never end?"
            time.sleep(0.05)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _broken(package: Path, answer: dict | str) -> Finding | None:
    """What keeps the package from being imported."""
    if isinstance(answer, str):
        lost = "all points of the file that does it are lost"
        return Finding("problem", "import", f"importing {package.name} {answer} (as it is, {lost})")
    if "problem" in answer:
        return Finding("problem", answer["place"], answer["problem"])
    return None


def _imported(complaints: dict[str, str], names: Sequence[str]) -> Iterator[Finding]:
    for name, complaint in complaints.items():
        yield Finding("problem", name, complaint)
    if not complaints:
        yield Finding(
            "ok", "signatures", f"all {len(names)} exercises can be imported and called as in the stubs"
        )


def _checked(name: str, answer: dict | str) -> Finding:
    exercise = find(name)
    place = f"{exercise.number} {name}"
    if isinstance(answer, str):
        return Finding("problem", place, f"its check {answer}", 0, exercise.points)
    status = STATES.get(answer["state"], "problem")
    waits = answer["state"] == "waits"
    points = exercise.points if waits or answer["state"] == "passed" else 0
    return Finding(status, place, answer["sentence"], points, exercise.points, waits)
