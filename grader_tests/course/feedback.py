"""The page that a student gets back: points, the named mistakes, the student's own source, and what a person wrote.

It is built from the verdict, the gradebook and the student's own text, and from nothing else: no hidden cell, no output
of a notebook and no other student can be on it. nbgrader's own command and the button of its formgrader make the same
page, through `FeedbackExporter`.
"""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import nbformat
from markupsafe import Markup
from nbconvert.exporters import Exporter
from nbformat import NotebookNode
from traitlets import default

from rlhf_lab import clinic
from rlhf_lab.course import exercises
from rlhf_lab.doctor.cells import mark_of
from rlhf_lab.errors import LabError
from rlhf_lab.runs import write_bytes
from rlhf_lab.settings import STUB_PACKAGE
from rlhf_lab.source_text import text_of

from ..verdict import ExerciseVerdict
from .defuse import NO_TAG
from .gradebook import NotebookMarks, read_marks
from .pages import LONGEST, python_html, render
from .paths import Assignment, Course

QUESTION = re.compile(r"\*\*Question(?: \d+)?\.\*\*")  # how one begins in the cell in front of its answer
WRAPPED = re.compile(r"(?<!\n)\n(?![\n*\d-])")  # a line end inside a paragraph
BOXED = re.compile(r"(`{3,})\n(.*)\n\1", re.DOTALL)  # what `defuse.as_typed` makes of a text


@dataclass(frozen=True)
class Part:
    """An exercise on the page.

    Attributes:
        title: number and name.
        score, of: points that count, and what it is worth.
        tested: points that the hidden tests gave.
        messages: the verdict's; the first names the mistake.
        source: the student's own, as HTML; None where there is none.
    """

    title: str
    score: float
    of: float
    tested: float
    messages: tuple[str, ...]
    source: Markup | None

    @property
    def by_hand(self) -> bool:
        return self.score != self.tested


@dataclass(frozen=True)
class Answer:
    """A question that a person grades.

    Attributes:
        text: what the student answered; None where nothing was.
        waits: whether a person still has to read it.
        marked: whether it has points of a person all the same, given to an earlier answer.
    """

    question: str
    text: str | None
    score: float
    of: float
    waits: bool
    marked: bool
    comment: str


@dataclass(frozen=True)
class Page:
    """Everything that a page says. `score` and `of` are the notebook's points, `total` is the assignment's.

    In `score` and in `total` the penalty for coming late is taken off; `penalty` is the notebook's.
    """

    assignment: str
    notebook: str
    student: str
    exercises: list[Part]
    answers: list[Answer]
    comments: dict[str, str]
    remarks: tuple[str, ...]
    penalty: float
    score: float
    total: tuple[float, float]

    @property
    def of(self) -> float:
        return sum(part.of for part in (*self.exercises, *self.answers))

    @property
    def waiting(self) -> int:
        return sum(answer.waits for answer in self.answers)


@dataclass(frozen=True)
class FeedbackRun:
    """What was written, and of whom there is no page, with the reason; both by assignment and student."""

    written: dict[tuple[str, str], list[Path]]
    failed: dict[tuple[str, str], str]

    @property
    def status(self) -> int:
        """Exit status of the command."""
        return 1 if self.failed else 0


def feedback(
    course_dir: Path | str, assignment: str | None = None, students: Sequence[str] | None = None
) -> FeedbackRun:
    """Write the pages of everybody who has been graded, and print a line for those who have no page.

    Args:
        assignment: only this one.
        students: only these.

    Raises:
        LabError: when there is no course, no such assignment, or nobody to write for.
    """
    course = Course(course_dir)
    names = [course.assignment(assignment).name] if assignment else list(course.assignments)
    graded = [(name, student) for name in names for student in _graded(course, name)]
    chosen = [(name, student) for name, student in graded if students is None or student in students]
    if unknown := sorted(set(students or ()) - {student for _, student in chosen}):
        raise LabError(f"{', '.join(unknown)} {'have' if unknown[1:] else 'has'} no verdict")
    if not chosen:
        raise LabError("nobody has been graded yet")
    run = FeedbackRun({}, {})
    for name, student in chosen:
        try:
            run.written[name, student] = _write(course, course.assignment(name), student)
        except Exception as error:  # the others shall have their pages
            run.failed[name, student] = str(error)
            print(f"no feedback for {student} in {name}: {error}")
    pages = sum(map(len, run.written.values()))
    print(f"{pages} pages written to {course.root / 'feedback'}")
    return run


def _graded(course: Course, assignment: str) -> list[str]:
    folder = course.verdict(assignment, "STUDENT").parent
    return sorted(path.stem for path in folder.glob("*.json"))


def _write(course: Course, assignment: Assignment, student: str) -> list[Path]:
    folder = course.feedback(assignment.name, student)
    pages = {name: page_html(course, assignment.name, student, name) for name in assignment.notebooks}
    for name, html in pages.items():
        write_bytes(folder / f"{name}.html", html.encode())
    _keep_only_pages(folder, assignment)
    return [folder / f"{name}.html" for name in pages]


def _keep_only_pages(folder: Path, assignment: Assignment) -> None:
    """nbgrader copies every file of a submission beside its pages; students get pages alone."""
    pages = {f"{name}.html" for name in assignment.notebooks}
    for entry in list(os.scandir(folder)) if folder.is_dir() else ():
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.name not in pages:
            os.unlink(entry.path)


class FeedbackExporter(Exporter):
    """Lets nbgrader's `generate_feedback` write our page, whatever notebook it has read."""

    @default("file_extension")
    def _file_extension_default(self) -> str:
        return ".html"

    def from_filename(self, filename: str, resources: dict | None = None, **_) -> tuple[str, dict]:
        which, course = resources["nbgrader"], Course(self.parent.coursedir.root)
        assignment, student = which["assignment"], which["student"]
        _keep_only_pages(course.feedback(assignment, student), course.assignment(assignment))
        html = page_html(course, assignment, student, which["notebook"])
        return html, {**resources, "output_extension": self.file_extension}


def page_html(course: Course, assignment: str, student: str, notebook: str) -> str:
    """The page of one notebook of one student.

    Raises:
        LabError: when there is no verdict, or the gradebook does not know the submission.
    """
    return render("feedback", page=build_page(course, course.assignment(assignment), student, notebook))


def build_page(course: Course, assignment: Assignment, student: str, notebook: str) -> Page:
    """What the page of one notebook says. Raises as `page_html`."""
    verdict = course.read_verdict(assignment.name, student)
    graded = course.autograded(assignment.name, student)
    try:
        cells = nbformat.read(graded / f"{notebook}.ipynb", as_version=4).cells
    except FileNotFoundError:
        verdict = None
    if verdict is None:
        raise LabError(f"{assignment.name} of {student} has not been graded: python -m grader_tests grade")
    marks = read_marks(course, assignment.name, student)
    if marks is None or notebook not in marks.notebooks:
        raise LabError(
            f"the gradebook does not know {assignment.name} of {student}: python -m grader_tests grade"
        )
    mine = marks.notebooks[notebook]
    here = assignment.cells[notebook]
    answers = list(_answers(course, assignment, notebook, cells, mine))
    return Page(
        assignment=assignment.name,
        notebook=notebook,
        student=student,
        exercises=[
            _part(
                exercise, mine.grades[name].score, _own_source(course, assignment.name, student, name, cells)
            )
            for name, exercise in verdict.exercises.items()
            if name in here
        ],
        answers=answers,
        comments={name: text for name, text in mine.comments.items() if name not in assignment.questions},
        remarks=verdict.remarks,
        penalty=mine.penalty,
        score=mine.total,
        total=(marks.total, assignment.max),
    )


def _part(verdict: ExerciseVerdict, score: float, source: str | None) -> Part:
    exercise = exercises().get(verdict.name)
    return Part(
        title=f"{exercise.number} {verdict.name}" if exercise else f"{clinic.NUMBER} {verdict.name}",
        score=score,
        of=verdict.max,
        tested=verdict.score,
        messages=verdict.messages,
        source=None if source is None else python_html(source),
    )


def _own_source(
    course: Course, assignment: str, student: str, name: str, cells: Sequence[NotebookNode]
) -> str | None:
    """What the student wrote for an exercise: the function or class, or the cell with the diagnoses.

    None where that is nothing, or what the assignment was released with.
    """
    if name == clinic.NAME:
        return next((cell.source for cell in cells if mark_of(cell).get("grade_id") == clinic.ANSWERS), None)
    source = _source(name, course.autograded(assignment, student) / STUB_PACKAGE)
    return None if source == _source(name, course.package(assignment)) else source


def _source(name: str, package: Path) -> str | None:
    try:
        return text_of(package / exercises()[name].file, name)
    except LabError:
        return None


def _answers(
    course: Course,
    assignment: Assignment,
    notebook: str,
    cells: Sequence[NotebookNode],
    marks: NotebookMarks,
) -> Iterator[Answer]:
    """The questions of a notebook, in its order."""
    released = nbformat.read(course.release(assignment.name) / f"{notebook}.ipynb", as_version=4).cells
    before = {mark_of(cell).get("grade_id"): (earlier, cell) for earlier, cell in pairwise(released)}
    written = {mark_of(cell).get("grade_id"): cell.source for cell in cells}
    for name in assignment.cells[notebook]:
        if name not in assignment.questions:
            continue
        question, blank = before[name]
        text = _as_written(written.get(name, ""))
        yield Answer(
            question=WRAPPED.sub(" ", QUESTION.split(question.source)[-1].strip()),
            text=None if text in ("", blank.source.strip()) else text[:LONGEST],
            score=marks.grades[name].score,
            of=assignment.questions[name],
            waits=marks.grades[name].waits,
            marked=marks.grades[name].manual is not None or marks.grades[name].score != 0,
            comment=marks.comments.get(name, ""),
        )


def _as_written(markdown: str) -> str:
    """A student's text without what made it harmless for pages that render it: ours shows it letter by letter."""
    boxed = BOXED.fullmatch(markdown.strip())
    return (boxed[2] if boxed else markdown).replace(NO_TAG, "<").strip()
