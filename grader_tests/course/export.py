"""Marks as a table: one row for each student and assignment, one column for each exercise and question.

    python -m grader_tests export COURSE_DIR
    nbgrader export --exporter=grader_tests.course.export.ExerciseExport     # the same through nbgrader

The points are the gradebook's, what a person has changed or added included; the remarks are the verdict's.
"""

import csv
import io
from collections.abc import Collection, Sequence
from pathlib import Path

from nbgrader.api import Grade, Gradebook, MissingEntry
from nbgrader.plugins import ExportPlugin

from rlhf_lab.runs import write_bytes

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
    _ = course.assignments  # says that there is no course before nbgrader makes an empty gradebook
    with Gradebook(course.gradebook_url) as gradebook:
        write_bytes(path, _as_csv(_rows(course, gradebook)))
    return path


class ExerciseExport(ExportPlugin):
    """The same table for `nbgrader export`, with its options --to, --student and --assignment."""

    def export(self, gradebook: Gradebook) -> None:
        course = Course(self.parent.coursedir.root)
        rows = _rows(course, gradebook, set(map(str, self.student)), set(map(str, self.assignment)))
        write_bytes(Path(self.to or "grades.csv"), _as_csv(rows))


def _rows(
    course: Course, gradebook: Gradebook, students: Collection[str] = (), assignments: Collection[str] = ()
) -> list[dict]:
    """A row for each student that the gradebook knows and each assignment; all of them where none are named."""
    return [
        _row(course, gradebook, assignment, student)
        for assignment in course.assignments.values()
        if not assignments or assignment.name in assignments
        for student in sorted(gradebook.students, key=lambda student: student.id)
        if not students or student.id in students
    ]


def _row(course: Course, gradebook: Gradebook, assignment: Assignment, student) -> dict:
    row = {
        "student": student.id,
        "last_name": student.last_name or "",
        "first_name": student.first_name or "",
        "email": student.email or "",
        "assignment": assignment.name,
        "state": "not handed in",
        "handed_in": "",
        "late_penalty": 0.0,
        "total": 0.0,
        "max": float(assignment.max),
        "remarks": "",
    }
    try:
        submission = gradebook.find_submission(assignment.name, student.id)
    except MissingEntry:
        return row
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    row |= {
        grade.name: float(grade.score)
        for grade in grades
        if (grade.auto_score, grade.manual_score) != (None, None)
    }
    verdict = course.read_verdict(assignment.name, student.id)
    penalty = float(submission.late_submission_penalty or 0.0)
    return row | {
        "state": _state(assignment, grades),
        "handed_in": str(submission.timestamp or ""),
        "late_penalty": penalty,
        "total": round(max(0.0, float(submission.score) - penalty), 2),
        "remarks": " ".join(verdict.remarks) if verdict else "",
    }


def _state(assignment: Assignment, grades: Sequence[Grade]) -> str:
    if any(grade.auto_score is None for grade in grades if grade.name in assignment.exercises):
        return "not graded"
    return "waits for a person" if any(grade.needs_manual_grade for grade in grades) else "graded"


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
