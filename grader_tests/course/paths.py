"""The folder of a course: an ordinary nbgrader course, with what the examiner adds to it.

COURSE_DIR/
    nbgrader_config.py                  two lines: it calls grader_tests.course.nbgrader_config
    course.json                         what was released: assignments, notebooks, exercises with their points, the seed
    source/ASSIGNMENT/                  NOTEBOOK.ipynb with hidden cells, rlhf_exercises/*.py as students get them
    release/ASSIGNMENT/                 nbgrader's version for students
    bundles/ASSIGNMENT.zip              that, with the workbench: what students get
    submitted/STUDENT/ASSIGNMENT/       what came in; never changed
    verdicts/ASSIGNMENT/STUDENT.json    what the examiner says: a `SubmissionVerdict`
    autograded/, feedback/, gradebook.db    nbgrader's own
    reports/ASSIGNMENT.html             what the class got wrong
    .grading/                           scratch of a grading run
"""

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from rlhf_lab.errors import LabError
from rlhf_lab.runs import read_json, write_json
from rlhf_lab.settings import STUB_PACKAGE

from ..verdict import SubmissionVerdict

FORMAT = 1  # of course.json
WELCOME = "00_welcome"  # the notebook that lies in every bundle, and asks for nothing


@dataclass(frozen=True)
class Assignment:
    """What one assignment asks for, as it was released.

    Attributes:
        name: also the name of its folders.
        notebooks: without suffix; by notebook, `cells` has the grade ids that stand in it.
        modules: of rlhf_exercises/, without suffix, that the student writes in; the others come solved or are of
            later stages, and count as they were released.
        exercises: points by name; a name is the grade id of the cell that shows its verdict. "clinic" is one of them
            where the assignment has the debugging clinic.
        questions: points by grade id of the answers that a person grades.
    """

    name: str
    notebooks: tuple[str, ...]
    modules: tuple[str, ...]
    exercises: Mapping[str, float]
    questions: Mapping[str, float]
    cells: Mapping[str, tuple[str, ...]]

    @property
    def max(self) -> float:
        return sum(self.exercises.values()) + sum(self.questions.values())

    def notebook_of(self, grade_id: str) -> str:
        """The notebook that a cell stands in."""
        return next(name for name, grade_ids in self.cells.items() if grade_id in grade_ids)

    def as_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict) -> "Assignment":
        cells = {notebook: tuple(grade_ids) for notebook, grade_ids in content["cells"].items()}
        lists = {key: tuple(content[key]) for key in ("notebooks", "modules")}
        return cls(**{**content, **lists, "cells": cells})


class Course:
    """Where everything of a course lies. `root` is an absolute path."""

    def __init__(self, root: Path | str):
        self.root = Path(root).resolve()

    @property
    def config_file(self) -> Path:
        return self.root / "nbgrader_config.py"

    @property
    def description(self) -> Path:
        return self.root / "course.json"

    @property
    def gradebook(self) -> Path:
        return self.root / "gradebook.db"

    @property
    def gradebook_url(self) -> str:
        """For nbgrader's `db_url`: a grader that finds the database locked waits two minutes instead of giving up."""
        return f"sqlite:///{self.gradebook}?timeout=120"

    @property
    def scratch(self) -> Path:
        return self.root / ".grading"

    @property
    def clean_copies(self) -> Path:
        """What nbgrader reads in place of submitted/, which has the same folders."""
        return self.scratch / "submitted"

    def clean_copy(self, assignment: str, student: str) -> Path:
        return self.clean_copies / student / assignment

    def error_log(self, assignment: str, student: str) -> Path:
        """What went wrong with a submission, in the words of who met it."""
        return self.scratch / "errors" / assignment / f"{student}.txt"

    def source(self, assignment: str) -> Path:
        return self.root / "source" / assignment

    def package(self, assignment: str) -> Path:
        """rlhf_exercises/ as students get it, with earlier exercises solved."""
        return self.source(assignment) / STUB_PACKAGE

    def release(self, assignment: str) -> Path:
        return self.root / "release" / assignment

    def bundle(self, assignment: str) -> Path:
        return self.root / "bundles" / f"{assignment}.zip"

    def submitted(self, assignment: str, student: str) -> Path:
        return self.root / "submitted" / student / assignment

    def autograded(self, assignment: str, student: str) -> Path:
        return self.root / "autograded" / student / assignment

    def feedback(self, assignment: str, student: str) -> Path:
        return self.root / "feedback" / student / assignment

    def verdict(self, assignment: str, student: str) -> Path:
        return self.root / "verdicts" / assignment / f"{student}.json"

    def report(self, assignment: str) -> Path:
        return self.root / "reports" / f"{assignment}.html"

    @cached_property
    def assignments(self) -> dict[str, Assignment]:
        """What has been released, by name.

        Raises:
            LabError: when this folder is no course, its description is damaged, or another version of the grader made
                it.
        """
        if not self.description.is_file():
            raise LabError(
                f"{self.root} holds no course: python -m grader_tests release {self.root} makes one"
            )
        try:
            content = read_json(self.description)
            if content["format"] != FORMAT:
                raise LabError(f"{self.description} is of format {content['format']}, and {FORMAT} is wanted")
            return {name: Assignment.from_json(entry) for name, entry in content["assignments"].items()}
        except (KeyError, TypeError, AttributeError):
            raise LabError(
                f"{self.description} was changed or damaged: release the assignments again"
            ) from None

    def assignment(self, name: str) -> Assignment:
        """Raises LabError when it has not been released; the sentence lists those that have."""
        if name not in self.assignments:
            raise LabError(f"there is no assignment {name!r}: there are {', '.join(self.assignments)}")
        return self.assignments[name]

    @cached_property
    def seed(self) -> int:
        """Of the numbers that this course's hidden tests draw; of a new course it is drawn, too."""
        if self.description.is_file():
            return read_json(self.description)["seed"]
        return secrets.randbelow(1 << 31)

    def write_assignments(self, assignments: Mapping[str, Assignment]) -> None:
        """Replace course.json. Its seed stays."""
        entries = {name: assignment.as_json() for name, assignment in sorted(assignments.items())}
        write_json(self.description, {"format": FORMAT, "seed": self.seed, "assignments": entries})
        self.__dict__.pop("assignments", None)

    def read_verdict(self, assignment: str, student: str) -> SubmissionVerdict | None:
        """None when there is none yet.

        Raises:
            LabError: when the file is damaged.
        """
        path = self.verdict(assignment, student)
        if not path.is_file():
            return None
        try:
            return SubmissionVerdict.from_json(read_json(path))
        except (KeyError, TypeError, AttributeError):
            raise LabError(f"{path} is no verdict: it was changed or damaged") from None

    def readable_verdict(self, assignment: str, student: str) -> SubmissionVerdict | None:
        """The verdict that lies there; None where there is none, or a damaged one."""
        try:
            return self.read_verdict(assignment, student)
        except LabError:
            return None

    def write_verdict(self, verdict: SubmissionVerdict) -> None:
        """Whole or not at all."""
        write_json(self.verdict(verdict.assignment, verdict.student), verdict.as_json())
