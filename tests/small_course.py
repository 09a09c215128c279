"""A released course for tests of grading, made without the checks of a release, and hidden tests that are a fake."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from grader_tests.course.drafts import choose
from grader_tests.course.exam import Exam
from grader_tests.course.nbgrader_config import search_path
from grader_tests.course.paths import Course
from grader_tests.course.record import nbgrader_api
from grader_tests.course.release import CONFIG
from grader_tests.verdict import ExerciseVerdict
from rlhf_lab.course import exercises
from rlhf_lab.settings import STUB_PACKAGE


def make_course(root: Path, *names: str) -> Course:
    """A course with these assignments."""
    course = Course(root)
    course.root.mkdir(parents=True)
    course.config_file.write_text(CONFIG)
    drafts = choose(names, whole=False)
    course.write_assignments({draft.name: draft.assignment for draft in drafts})
    for draft in drafts:
        course.package(draft.name).mkdir(parents=True)
        for name, content in draft.package.items():
            (course.package(draft.name) / name).write_bytes(content)
        for name, text in draft.source_notebooks.items():
            (course.source(draft.name) / f"{name}.ipynb").write_text(text, encoding="utf-8")
        with mock.patch.dict(os.environ, PATH=search_path()):
            result = nbgrader_api(course).generate_assignment(draft.name)
        assert result["success"], result
    return course


class FakeExaminer:
    """Takes an exercise for right when its stub is gone; `instead` has other scores of solved and of blank ones."""

    def __init__(self, solved=None, blank=None):
        self.instead = solved or {}, blank or {}

    def examine(self, files, names):
        verdicts = {}
        for name in names:
            exercise = exercises()[name]
            blank = f"write {name} in ".encode() in files[exercise.file]
            score = self.instead[blank].get(name, 0 if blank else exercise.points)
            verdicts[name] = ExerciseVerdict(
                name, float(score), float(exercise.points), ("The mask is lost.",)
            )
        return verdicts


@dataclass(frozen=True)
class FakeExam(Exam):
    """Reads marks out of comments. An exercise is solved where a line says so, and worth `worth` points otherwise.

    Attributes:
        version: its fingerprint.
        worth: points of an exercise that is not solved.
        seconds: that an examination takes.
        log: file that gets a line for each examination; `# die` in a submission ends the process that examines it,
            while the log has fewer than `deadly` lines.
    """

    version: str = "1"
    worth: float = 0.0
    seconds: float = 0.0
    log: Path | None = None
    deadly: int = 1000

    def fingerprint(self) -> str:
        return self.version

    def examine(self, files, names):
        text = files["ppo.py"].decode()
        who = text.rpartition("# by ")[2].split("\n")[0]
        with open(self.log, "a") as log:
            log.write(f"{who}\n")
        if "# die" in text and len(self.log.read_text().splitlines()) < self.deadly:
            os._exit(9)
        if "# fault" in text:
            raise RuntimeError("the examiner fell over")
        time.sleep(self.seconds)
        return {name: self._verdict(name, text) for name in names}, "nothing, this is a fake"

    def _verdict(self, name: str, text: str) -> ExerciseVerdict:
        most = float(exercises()[name].points)
        if f"# solved {name}\n" in text:
            return ExerciseVerdict(name, most, most)
        return ExerciseVerdict(name, self.worth, most, ("The sign is wrong.",))

    def examined(self) -> list[str]:
        """Whose work was examined, as often as it was."""
        return self.log.read_text().splitlines() if self.log.exists() else []


def hand_in(course: Course, assignment: str, student: str, *lines: str) -> Path:
    """Hand in the released assignment with these lines at the end of ppo.py; return the folder."""
    folder = course.submitted(assignment, student)
    for path in course.release(assignment).rglob("*"):
        if path.is_file():
            copy = folder / path.relative_to(course.release(assignment))
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    module = folder / STUB_PACKAGE / "ppo.py"
    module.write_text(module.read_text(encoding="utf-8") + "\n".join(["", *lines, f"# by {student}", ""]))
    return folder
