"""How long a large class takes, beside nbgrader as it comes on some of the same submissions."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from grader_tests.course.grade import grade
from grader_tests.course.nbgrader_config import search_path
from grader_tests.course.paths import Course
from grader_tests.course.release import release
from grader_tests.examiner import Examiner
from rlhf_lab.course import select

from .classroom import hand_in, large_class, unexpected_marks

MIB = 1 << 20
STOCK_CONFIG = """\
c = get_config()
c.CourseDirectory.root = {root!r}
c.Execute.timeout = 600
c.Autograde.exclude_overwriting = {{{assignment!r}: {files!r}}}
"""


@dataclass(frozen=True)
class Cost:
    """Of a class: seconds on the wall, seconds of processor time, the most memory in use, in MiB."""

    students: int
    wall: float
    cpu: float
    memory: float

    def line(self, title: str) -> str:
        n = self.students
        return (
            f"{title:28} {n:4} students  {self.wall:7.1f} s  {self.wall / n:6.2f} s each  "
            f"{self.cpu / n:6.2f} CPU s each  {self.memory:6.0f} MiB"
        )


def grader_bench(assignment: str, students: int, stock: int, jobs: int) -> int:
    """Grade a class made from the bank without training tests, and the first of it with stock nbgrader; print both.

    Returns 1 when a mark is not what the class was made for.
    """
    with tempfile.TemporaryDirectory() as place:
        course, pupils = Course(Path(place) / "course"), large_class(assignment, students)
        with Examiner(training=False, seed=course.seed) as examiner:
            release(course, examiner, [assignment])
        hand_in(course, assignment, pupils)
        ours = measured(students, lambda: grade(course.root, jobs, training=False))
        unexpected = unexpected_marks(course, assignment, pupils)
        print(ours.line("python -m grader_tests grade"), flush=True)
        few = measured(stock, lambda: _stock(course, assignment, [p.name for p in pupils[:stock]], jobs))
    print(few.line("stock nbgrader autograde"))
    each = (few.wall / few.students) / (ours.wall / ours.students)
    cpu = (few.cpu / few.students) / (ours.cpu / ours.students)
    print(
        f"stock / ours: {each:.1f} x the seconds, {cpu:.1f} x the CPU seconds, {few.memory / ours.memory:.2f} x the memory"
    )
    for line in unexpected:
        print(f"not as expected: {line}")
    print(f"{students * len(select(assignment)) - len(unexpected)} marks as expected, {len(unexpected)} not")
    return 1 if unexpected else 0


def measured(students: int, work: Callable[[], object]) -> Cost:
    """What `work` costs, with all processes that it starts, on a machine that has nothing else to do."""
    watch, started, busy = _MemoryWatch(), time.monotonic(), _busy()
    work()
    return Cost(students, time.monotonic() - started, _busy() - busy, watch.stop())


def _busy() -> float:
    """Seconds that the processors of this machine have worked: the processes of a class come and go too fast to be
    asked one by one."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system


class _MemoryWatch:
    """Looks five times a second at the memory of this process and its descendants, shared pages counted once."""

    def __init__(self):
        self._most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """The most that was seen, in MiB."""
        self._over.set()
        self._thread.join()
        return self._most / MIB

    def _look(self) -> None:
        me = psutil.Process()
        while not self._over.wait(0.2):
            memory = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    memory += process.memory_full_info().pss
                except psutil.Error:  # it has just ended
                    continue
            self._most = max(self._most, memory)


def _stock(course: Course, assignment: str, students: list[str], jobs: int) -> None:
    """nbgrader's own autograder on a copy of the course, one command for each student, as many at a time as `jobs`."""
    root = course.root.parent / "stock"
    for folder in ("source", "release"):
        shutil.copytree(course.root / folder, root / folder)
    files = [f"rlhf_exercises/{module}.py" for module in course.assignment(assignment).modules]
    text = STOCK_CONFIG.format(root=str(root), assignment=assignment, files=files)
    (root / "nbgrader_config.py").write_text(text, encoding="utf-8")
    for student in students:
        shutil.copytree(course.submitted(assignment, student), root / "submitted" / student / assignment)
    nbgrader = [sys.executable, "-m", "nbgrader"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": search_path()}
    subprocess.run(
        [*nbgrader, "generate_assignment", assignment, "--force"],
        cwd=root,
        env=environment,
        check=True,
        capture_output=True,
    )
    waiting, running = list(students), []
    while waiting or running:
        while waiting and len(running) < jobs:
            command = [*nbgrader, "autograde", assignment, "--student", waiting.pop(0)]
            running.append(
                subprocess.Popen(
                    command, cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
        running = [process for process in running if process.poll() is None]
        time.sleep(0.1)
