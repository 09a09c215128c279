"""nbgrader's gradebook: what it holds of submissions and students, and the little that grading changes in it.

Nothing else of the grader opens the database. Where there is none yet, there are no marks; none is made by looking.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from nbgrader import api

from .paths import Course


@dataclass(frozen=True)
class Grade:
    """What the gradebook holds of one exercise or question.

    Attributes:
        auto, manual: points of the autograder, and of a person; None where there are none.
        score: points that count: the person's where there are some, with extra credit.
        waits: whether a person still has to look.
    """

    auto: float | None
    manual: float | None
    score: float
    waits: bool


@dataclass(frozen=True)
class NotebookMarks:
    """What the gradebook holds of one notebook of a submission.

    Attributes:
        grades: by grade id.
        comments: of a person, by grade id; only where there is one.
        penalty: points that are taken off because it came late.
    """

    grades: Mapping[str, Grade]
    comments: Mapping[str, str]
    penalty: float

    @property
    def total(self) -> float:
        """Points after the penalty, which takes nobody below 0."""
        return _after_penalty(self.grades, self.penalty)


@dataclass(frozen=True)
class Marks:
    """What the gradebook holds of one submission.

    Attributes:
        notebooks: by name.
        handed_in: when; None where it is not known.
    """

    notebooks: Mapping[str, NotebookMarks]
    handed_in: datetime | None

    @property
    def grades(self) -> dict[str, Grade]:
        """Of all notebooks, by grade id."""
        return {name: grade for each in self.notebooks.values() for name, grade in each.grades.items()}

    @property
    def penalty(self) -> float:
        return sum(each.penalty for each in self.notebooks.values())

    @property
    def total(self) -> float:
        """Points of the assignment after the penalty, which takes nobody below 0."""
        return _after_penalty(self.grades, self.penalty)

    @property
    def waiting(self) -> int:
        """How many exercises and questions a person still has to look at."""
        return sum(grade.waits for grade in self.grades.values())


def _after_penalty(grades: Mapping[str, Grade], penalty: float) -> float:
    return round(max(0.0, sum(grade.score for grade in grades.values()) - penalty), 2)


@dataclass(frozen=True)
class Person:
    """A student, as the gradebook knows them. What it does not know is an empty text."""

    name: str
    last_name: str
    first_name: str
    email: str


def read_marks(course: Course, assignment: str, student: str) -> Marks | None:
    """The marks of a submission; None when the gradebook has no such submission."""
    return _marks(course, assignment, student).get(student)


def all_marks(course: Course, assignment: str) -> dict[str, Marks]:
    """The marks of all submissions of an assignment, by student."""
    return _marks(course, assignment, None)


def _marks(course: Course, assignment: str, student: str | None) -> dict[str, Marks]:
    with _submissions(course, assignment, student) as submissions:
        return {
            submission.student_id: Marks(
                {notebook.name: _notebook_marks(notebook) for notebook in submission.notebooks},
                submission.timestamp,
            )
            for submission in submissions
        }


def _notebook_marks(notebook: api.SubmittedNotebook) -> NotebookMarks:
    return NotebookMarks(
        grades={
            row.name: Grade(row.auto_score, row.manual_score, float(row.score), row.needs_manual_grade)
            for row in notebook.grades
        },
        comments={
            row.name: text for row in notebook.comments if (text := (row.manual_comment or "").strip())
        },
        penalty=float(notebook.late_submission_penalty or 0.0),
    )


def people(course: Course) -> list[Person]:
    """The students that the gradebook knows, in order of their names."""
    with _opened(course) as gradebook:
        rows = [] if gradebook is None else gradebook.students
        known = [Person(row.id, row.last_name or "", row.first_name or "", row.email or "") for row in rows]
    return sorted(known, key=lambda person: person.name)


def cells_in_use(course: Course, assignment: str) -> set[tuple[str, str, str]]:
    """Notebook, kind and grade id of each cell that submissions refer to; none where nobody has handed in."""
    with _submissions(course, assignment) as submissions:
        notebooks = submissions[0].assignment.notebooks if submissions else []
        return {
            (notebook.name, kind, cell.name)
            for notebook in notebooks
            for kind in ("grade_cells", "solution_cells", "source_cells")
            for cell in getattr(notebook, kind)
        }


def clear_scores(course: Course, assignment: str, student: str, names: Collection[str]) -> None:
    """Take the automatic points of these exercises out of a submission. What a person wrote stays."""
    for name, row in _rows(course, assignment, student):
        if name in names:
            row.auto_score, row.needs_manual_grade = None, True


def keep_seen(
    course: Course, assignment: str, student: str, before: Marks, unchanged: Collection[str]
) -> None:
    """Ask for no second look where a person has looked before, and neither work nor automatic points have changed.

    nbgrader asks for one at all that a person has graded. `unchanged` are grade ids of work that is as it was.
    """
    for name, row in _rows(course, assignment, student):
        old = before.grades.get(name)
        if (
            name in unchanged
            and old
            and not old.waits
            and old.manual is not None
            and old.auto == row.auto_score
        ):
            row.needs_manual_grade = False


def _rows(course: Course, assignment: str, student: str) -> Iterator[tuple[str, api.Grade]]:
    """Grade id and row of each grade of a submission; what is changed in the rows is kept."""
    with _submissions(course, assignment, student) as submissions:
        notebooks = [notebook for submission in submissions for notebook in submission.notebooks]
        # all are read before the first is changed: the database stays locked from there on
        yield from [(row.name, row) for notebook in notebooks for row in notebook.grades]


@contextmanager
def _submissions(
    course: Course, assignment: str, student: str | None = None
) -> Iterator[list[api.SubmittedAssignment]]:
    """The rows of an assignment's submissions, all of them where no student is named."""
    with _opened(course) as gradebook:
        if gradebook is None:
            yield []
            return
        wanted = gradebook.db.query(api.SubmittedAssignment).join(
            api.Assignment, api.Assignment.id == api.SubmittedAssignment.assignment_id
        )
        wanted = wanted.filter(api.Assignment.name == assignment)
        if student is not None:
            wanted = wanted.filter(api.SubmittedAssignment.student_id == student)
        yield wanted.all()


@contextmanager
def _opened(course: Course) -> Iterator[api.Gradebook | None]:
    """The gradebook, with what is changed in it written at the end; None where there is none yet."""
    if not course.gradebook.is_file():
        yield None
        return
    with api.Gradebook(course.gradebook_url) as gradebook:
        yield gradebook
        gradebook.db.commit()
