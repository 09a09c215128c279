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

from .exam import lacks_training
from .gradebook import Marks, Person, all_marks, people
from .intake import NOTHING, handed_in, nothing_handed_in
from .paths import Assignment, Course

PERSON = ("student", "last_name", "first_name", "email", "assignment", "state", "handed_in")
WITHOUT_TRAINING = "Graded without the tests that train a model."
TOTALS = ("late_penalty", "total", "max", "remarks")
# With these a spreadsheet takes a text for a formula; the second row are the same signs, full width
FORMULA = tuple("=+-@\t\r\n＝＋－＠")


def export(course_dir: Path | str, to: Path | None = None) -> Path:
    """Write the marks of all students as CSV, to `marks.csv` in the course unless told otherwise; return where to.

    Raises:
        LabError: when there is no course, nothing has been handed in and nobody is known, or the file cannot be
            written.
    """
    course = Course(course_dir)
    path = to or course.root / "marks.csv"
    rows = _rows(course)
    if not rows:
        raise nothing_handed_in(course)
    write_bytes(path, _as_csv(course, rows))
    return path


class ExerciseExport(ExportPlugin):
    """The same table for `nbgrader export`, with its options --to, --student and --assignment."""

    def export(self, gradebook: Gradebook) -> None:
        course = Course(self.parent.coursedir.root)
        rows = _rows(course, set(map(str, self.student)), set(map(str, self.assignment)))
        write_bytes(Path(self.to or "marks.csv"), _as_csv(course, rows))


def _rows(course: Course, students: Collection[str] = (), assignments: Collection[str] = ()) -> list[dict]:
    """A row for each student and each assignment; all of them where none are named.

    The students are those whom the gradebook knows, and those whose folders lie in submitted/.
    """
    tasks, strays = handed_in(course)
    known = {person.name: person for person in people(course)}
    for name in {student for _, student in tasks} | {stray.student for stray in strays if stray.student}:
        known.setdefault(name, Person(name, "", "", ""))
    rows = []
    for assignment in course.assignments.values():
        if assignments and assignment.name not in assignments:
            continue
        marks = all_marks(course, assignment.name)
        for name in sorted(known):
            if students and name not in students:
                continue
            row = _row(assignment, known[name])
            if name in marks:
                row |= _marked(course, assignment, name, marks[name])
            elif (assignment.name, name) in tasks:
                row["state"] = "not graded"
            beside = [f"{stray}." for stray in strays if stray.student == name]
            rows.append(row | {"remarks": " ".join(filter(None, [row["remarks"], *beside]))})
    return rows


def _row(assignment: Assignment, person: Person) -> dict:
    """The row of a student of whom there is nothing."""
    return {
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


def _marked(course: Course, assignment: Assignment, student: str, marks: Marks) -> dict:
    """What a row says of a submission."""
    scores = {
        name: grade.score
        for name, grade in marks.grades.items()
        if (grade.auto, grade.manual) != (None, None)
    }
    rest = {
        "state": _state(assignment, marks),
        "handed_in": str(marks.handed_in or ""),
        "late_penalty": marks.penalty,
        "total": marks.total,
    }
    try:
        verdict = course.read_verdict(assignment.name, student)
    except LabError:
        return scores | rest | {"remarks": "The verdict is damaged: grade again."}
    if verdict is None:
        return scores | rest
    if rest["state"] != "not graded" and NOTHING in verdict.remarks:
        rest["state"] = "nothing could be taken"
    remarks = [*verdict.remarks, *[WITHOUT_TRAINING] * lacks_training(course, verdict)]
    return scores | rest | {"remarks": " ".join(remarks)}


def _state(assignment: Assignment, marks: Marks) -> str:
    if any(grade.auto is None for name, grade in marks.grades.items() if name in assignment.exercises):
        return "not graded"
    return "waits for a person" if marks.waiting else "graded"


def _as_csv(course: Course, rows: list[dict]) -> bytes:
    """With a byte-order mark, without which Excel reads names in another alphabet wrongly.

    Exercises and questions are in the order in which they stand in the notebooks.
    """
    used = dict.fromkeys(name for row in rows for name in row if name not in (*PERSON, *TOTALS))
    placed = [name for each in course.assignments.values() for cells in each.cells.values() for name in cells]
    graded = sorted(used, key=placed.index)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*PERSON, *graded, *TOTALS], restval="")
    writer.writeheader()
    writer.writerows({key: _harmless(value) for key, value in row.items()} for row in rows)
    return text.getvalue().encode("utf-8-sig")


def _harmless(value: str | float) -> str | float:
    """A text that no spreadsheet takes for a formula; an apostrophe in front makes it one."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
