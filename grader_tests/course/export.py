"""Marks as a table: one row for each student and assignment, one column for each exercise and question.

    python -m grader_tests export COURSE_DIR
    nbgrader export --exporter=grader_tests.course.export.ExerciseExport     # the same through nbgrader

The points are the gradebook's, what a person has changed or added included; the remarks are the verdict's.
"""

import csv
import io
from collections.abc import Collection
from pathlib import Path

from nbgrader.api import Gradebook
from nbgrader.plugins import ExportPlugin

from rlhf_lab.errors import LabError
from rlhf_lab.runs import write_bytes

from .gradebook import Marks, Person, all_marks, people
from .paths import Assignment, Course

PERSON = ("student", "last_name", "first_name", "email", "assignment", "state", "handed_in")
TOTALS = ("late_penalty", "total", "max", "remarks")
# With these a spreadsheet takes a text for a formula; the second row are the same signs, full width
FORMULA = tuple("=+-@\t\r\n＝＋－＠")


def export(course_dir: Path | str, to: Path | None = None) -> Path:
    """Write the marks of all students as CSV, to `grades.csv` in the course unless told otherwise; return where to.

    Raises:
        LabError: when there is no course, or the file cannot be written.
    """
    course = Course(course_dir)
    path = to or course.root / "grades.csv"
    write_bytes(path, _as_csv(_rows(course)))
    return path


class ExerciseExport(ExportPlugin):
    """The same table for `nbgrader export`, with its options --to, --student and --assignment."""

    def export(self, gradebook: Gradebook) -> None:
        course = Course(self.parent.coursedir.root)
        rows = _rows(course, set(map(str, self.student)), set(map(str, self.assignment)))
        write_bytes(Path(self.to or "grades.csv"), _as_csv(rows))


def _rows(course: Course, students: Collection[str] = (), assignments: Collection[str] = ()) -> list[dict]:
    """A row for each student that the gradebook knows and each assignment; all of them where none are named."""
    rows, known = [], people(course)
    for assignment in course.assignments.values():
        if assignments and assignment.name not in assignments:
            continue
        marks = all_marks(course, assignment.name)
        for person in known:
            if not students or person.name in students:
                rows.append(_row(course, assignment, person, marks.get(person.name)))
    return rows


def _row(course: Course, assignment: Assignment, person: Person, marks: Marks | None) -> dict:
    row = {
        "student": person.name,
        "last_name": person.last_name,
        "first_name": person.first_name,
        "email": person.email,
        "assignment": assignment.name,
        "state": "not handed in",
        "handed_in": "",
        "late_penalty": 0.0,
        "total": 0.0,
        "max": float(assignment.max),
        "remarks": "",
    }
    if marks is None:
        return row
    row |= {
        name: grade.score
        for name, grade in marks.grades.items()
        if (grade.auto, grade.manual) != (None, None)
    }
    return row | {
        "state": _state(assignment, marks),
        "handed_in": str(marks.handed_in or ""),
        "late_penalty": marks.penalty,
        "total": marks.total,
        "remarks": _remarks(course, assignment.name, person.name),
    }


def _state(assignment: Assignment, marks: Marks) -> str:
    if any(grade.auto is None for name, grade in marks.grades.items() if name in assignment.exercises):
        return "not graded"
    return "waits for a person" if marks.waiting else "graded"


def _remarks(course: Course, assignment: str, student: str) -> str:
    try:
        verdict = course.read_verdict(assignment, student)
    except LabError:
        return "The verdict is damaged: grade again."
    return " ".join(verdict.remarks) if verdict else ""


def _as_csv(rows: list[dict]) -> bytes:
    """With a byte-order mark, without which Excel reads names in another alphabet wrongly."""
    graded = dict.fromkeys(key for row in rows for key in row if key not in (*PERSON, *TOTALS))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*PERSON, *graded, *TOTALS], restval="")
    writer.writeheader()
    writer.writerows({key: _harmless(value) for key, value in row.items()} for row in rows)
    return text.getvalue().encode("utf-8-sig")


def _harmless(value: str | float) -> str | float:
    """A text that no spreadsheet takes for a formula; an apostrophe in front makes it one."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
