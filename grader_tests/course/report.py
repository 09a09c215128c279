"""What the class got wrong: the page that an instructor reads before the next lecture."""

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rlhf_lab import clinic
from rlhf_lab.course import exercises
from rlhf_lab.errors import LabError
from rlhf_lab.pictures import STYLE, png_bytes
from rlhf_lab.runs import write_bytes, write_json

from ..verdict import ExerciseVerdict, SubmissionVerdict
from .exam import Exam, confinements, lacks_training
from .gradebook import all_marks, people
from .intake import handed_in
from .pages import render
from .paths import Assignment, Course

MOST_TOPICS = 4  # exercises that one lecture can go into
SOLVED_ENOUGH = 0.7  # share of the class: an exercise that fewer have solved is worth a word
UNNAMED = "Points are missing, and the verdict does not say why."
# How much of an exercise's points somebody has: the classes of the picture, and their colours.
CLASSES = {"none": "#b2431d", "under half": "#e8a23c", "half or more": "#a7cfe6", "all": "#0072b2"}


@dataclass(frozen=True)
class Mistake:
    """One mistake, and who made it."""

    sentence: str
    students: tuple[str, ...]


@dataclass(frozen=True)
class ExerciseReport:
    """What became of one exercise.

    Attributes:
        number: of the course; the clinic has one too.
        points: that it is worth.
        scores: of each student, by name.
        mistakes: in code that was examined, those made most often first.
        unexamined: why there was nothing to examine, and of whom: not handed in, not readable, not written.
    """

    name: str
    number: str
    points: float
    scores: dict[str, float]
    mistakes: tuple[Mistake, ...]
    unexamined: tuple[Mistake, ...]

    @property
    def tried(self) -> int:
        """How many students' code was examined."""
        return len(self.scores) - sum(len(each.students) for each in self.unexamined)

    @property
    def solved(self) -> int:
        return sum(score >= self.points for score in self.scores.values())

    @property
    def share_solved(self) -> float:
        """Of those whose code was examined; all where there are none."""
        return self.solved / self.tried if self.tried else 1.0

    @property
    def lost(self) -> float:
        """Points that mistakes have cost the class."""
        wrong = {student for mistake in self.mistakes for student in mistake.students}
        return sum(self.points - self.scores[student] for student in wrong)

    @property
    def mean(self) -> float:
        return sum(self.scores.values()) / len(self.scores)

    @property
    def classes(self) -> dict[str, int]:
        """How many students have how much of the points; keys are those of `CLASSES`."""
        return dict.fromkeys(CLASSES, 0) | Counter(_class(s, self.points) for s in self.scores.values())


@dataclass(frozen=True)
class QuestionReport:
    """A question that a person grades.

    Attributes:
        waiting: how many answers wait for a person.
        blank: how many students have not answered it; nbgrader gives them 0 points by itself.
        scores: points of the answers that a person has read.
    """

    name: str
    points: float
    waiting: int
    blank: int
    scores: tuple[float, ...]


@dataclass(frozen=True)
class ClassReport:
    """Everything that the page says.

    Attributes:
        totals: points of the exercises by student, without those of the questions.
        topics: names of the exercises to talk about, those first in which mistakes cost most points.
        missing: students of the course who have handed in nothing.
        ungraded: who has handed in something that has no verdict.
        strays: what lies in submitted/ and is no submission, in sentences.
        remarks: what was odd, by student.
        notes: what is to be known about the figures themselves.
    """

    assignment: str
    max: float
    exercises: tuple[ExerciseReport, ...]
    questions: tuple[QuestionReport, ...]
    totals: dict[str, float]
    topics: tuple[str, ...]
    missing: tuple[str, ...]
    ungraded: tuple[str, ...]
    strays: tuple[str, ...]
    remarks: dict[str, tuple[str, ...]]
    notes: tuple[str, ...]

    @property
    def median(self) -> float:
        ordered = sorted(self.totals.values())
        return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2

    @property
    def unexamined(self) -> dict[str, list[str]]:
        """Of whom there was nothing to examine, by the reason; each reason once, however many exercises it concerns."""
        by_reason = defaultdict(dict)
        for each in (each for exercise in self.exercises for each in exercise.unexamined):
            by_reason[each.sentence].update(dict.fromkeys(each.students))
        return {sentence: sorted(students) for sentence, students in by_reason.items()}

    @property
    def to_talk_about(self) -> list[ExerciseReport]:
        return [exercise for name in self.topics for exercise in self.exercises if exercise.name == name]


def report(course_dir: Path | str, assignment: str) -> Path:
    """Write `reports/ASSIGNMENT.html`, and the same as `.json`; return the path of the page.

    Raises:
        LabError: when there is no such assignment, or nobody has a verdict yet.
    """
    course = Course(course_dir)
    content = summarise(course, assignment)
    pictures = {"exercises": exercises_figure(content.exercises), "totals": totals_figure(content)}
    page = render(
        "report",
        report=content,
        pictures={name: base64.b64encode(png_bytes(figure)).decode() for name, figure in pictures.items()},
    )
    path = course.report(assignment)
    write_json(path.with_suffix(".json"), as_json(content))
    write_bytes(path, page.encode())
    return path


def as_json(content: ClassReport) -> dict:
    """The report as data, with the shares that the page shows."""
    entries = json.loads(json.dumps(asdict(content)))
    for entry, exercise in zip(entries["exercises"], content.exercises, strict=True):
        entry |= {"solved": exercise.solved, "share_solved": exercise.share_solved, "mean": exercise.mean}
    return entries


def summarise(course: Course, name: str) -> ClassReport:
    """Read the verdicts and the gradebook. Raises as `report`."""
    assignment = course.assignment(name)
    tasks, strays = handed_in(course)
    verdicts, ungraded = _verdicts(course, name, tasks)
    if not verdicts:
        raise LabError(f"nobody has a verdict in {name} yet: python -m grader_tests grade {course.root}")
    reports = tuple(_exercise(each, points, verdicts) for each, points in assignment.exercises.items())
    known = {student for _, student in tasks} | {person.name for person in people(course)}
    return ClassReport(
        assignment=name,
        max=sum(assignment.exercises.values()),
        exercises=reports,
        questions=_questions(course, assignment),
        totals={student: verdict.score for student, verdict in verdicts.items()},
        topics=_topics(reports),
        missing=tuple(sorted(known - verdicts.keys() - set(ungraded))),
        ungraded=ungraded,
        strays=tuple(map(str, strays)),
        remarks={student: verdict.remarks for student, verdict in verdicts.items() if verdict.remarks},
        notes=_notes(course, assignment, list(verdicts.values())),
    )


def _verdicts(
    course: Course, assignment: str, tasks: Sequence[tuple[str, str]]
) -> tuple[dict[str, SubmissionVerdict], tuple[str, ...]]:
    """Verdicts by student, and who has handed in and has none."""
    students = [student for name, student in tasks if name == assignment]
    read = {student: course.readable_verdict(assignment, student) for student in students}
    verdicts = {student: verdict for student, verdict in read.items() if verdict is not None}
    return verdicts, tuple(student for student in students if student not in verdicts)


def _exercise(name: str, points: float, verdicts: dict[str, SubmissionVerdict]) -> ExerciseReport:
    mine = {student: verdict.exercises[name] for student, verdict in verdicts.items()}
    wrong = {student: verdict for student, verdict in mine.items() if verdict.score < verdict.max}
    return ExerciseReport(
        name=name,
        number=exercises()[name].number if name in exercises() else clinic.NUMBER,
        points=points,
        scores={student: verdict.score for student, verdict in mine.items()},
        mistakes=_counted({who: _mistake(verdict) for who, verdict in wrong.items() if verdict.examined}),
        unexamined=_counted(
            {who: _mistake(verdict) for who, verdict in wrong.items() if not verdict.examined}
        ),
    )


def _counted(sentences: Mapping[str, str]) -> tuple[Mistake, ...]:
    """Of sentences by student each one once, the most frequent first."""
    students = defaultdict(list)
    for student, sentence in sentences.items():
        students[sentence].append(student)
    counted = [Mistake(sentence, tuple(names)) for sentence, names in students.items()]
    return tuple(sorted(counted, key=lambda mistake: -len(mistake.students)))


def _mistake(verdict: ExerciseVerdict) -> str:
    return verdict.messages[0] if verdict.messages else UNNAMED


def _topics(reports: Sequence[ExerciseReport]) -> tuple[str, ...]:
    """What to talk about: exercises that many have tried in vain, those first in which mistakes cost most points."""
    hard = [each for each in reports if each.share_solved < SOLVED_ENOUGH]
    return tuple(each.name for each in sorted(hard, key=lambda each: -each.lost)[:MOST_TOPICS])


def _questions(course: Course, assignment: Assignment) -> tuple[QuestionReport, ...]:
    """What became of the questions, as the gradebook has it."""
    grades = defaultdict(list)
    for marks in all_marks(course, assignment.name).values():
        for name, grade in marks.grades.items():
            grades[name].append(grade)
    return tuple(
        QuestionReport(
            name=name,
            points=points,
            waiting=sum(grade.waits for grade in grades[name]),
            blank=sum(grade.manual is None and not grade.waits for grade in grades[name]),
            scores=tuple(
                grade.score for grade in grades[name] if grade.manual is not None and not grade.waits
            ),
        )
        for name, points in assignment.questions.items()
    )


def _notes(course: Course, assignment: Assignment, verdicts: Sequence[SubmissionVerdict]) -> tuple[str, ...]:
    notes = []
    whole = Exam(True, course.seed).fingerprint()
    without = sum(lacks_training(course, verdict) for verdict in verdicts)
    if older := sum(verdict.exam != whole for verdict in verdicts) - without:
        notes.append(f"{older} verdicts come from another version of the hidden tests: grade again.")
    if without:
        notes.append(f"{without} verdicts leave out the tests that train a model.")
    points = [{name: exercise.max for name, exercise in verdict.exercises.items()} for verdict in verdicts]
    other = sum(each != assignment.exercises for each in points)
    if other:
        notes.append(
            f"{other} verdicts are in points that the exercises had in an earlier release: grade again."
        )
    if kept_apart := confinements(verdicts):
        notes.append(f"Students' code was kept apart by: {', '.join(kept_apart)}.")
    return tuple(notes)


def _class(score: float, points: float) -> str:
    none, under_half, half, whole = CLASSES
    if score >= points:
        return whole
    if score <= 0:
        return none
    return under_half if score < points / 2 else half


@rc_context(STYLE)
def exercises_figure(reports: Sequence[ExerciseReport]) -> Figure:
    """A bar for each exercise: how many students have none, some or all of its points."""
    figure = Figure(figsize=(8.6, 1.1 + 0.34 * len(reports)), layout="constrained")
    axes = figure.subplots()
    rows = [f"{each.number}  {each.name}" for each in reports]
    left = [0] * len(reports)
    for name, colour in CLASSES.items():
        counts = [each.classes[name] for each in reports]
        bars = axes.barh(rows, counts, left=left, color=colour, height=0.66, label=name)
        labels = [str(count) if count else "" for count in counts]
        axes.bar_label(
            bars, labels, label_type="center", color="white" if name in ("none", "all") else "#222222"
        )
        left = [start + count for start, count in zip(left, counts, strict=True)]
    axes.invert_yaxis()
    axes.set_xlim(0, max(left))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("students")
    axes.grid(False)
    figure.legend(loc="outside upper right", ncols=len(CLASSES), title="of the points", title_fontsize=8.5)
    return figure


@rc_context(STYLE)
def totals_figure(content: ClassReport) -> Figure:
    """How many students have how many points of the exercises, in ten equal steps."""
    figure = Figure(figsize=(8.6, 2.5), layout="constrained")
    axes = figure.subplots()
    step = content.max / 10
    axes.hist(
        list(content.totals.values()),
        bins=[i * step for i in range(10)] + [content.max * (1 + 1e-9)],
        color=CLASSES["all"],
        rwidth=0.92,
    )
    axes.axvline(content.median, color=CLASSES["none"], linestyle="--", linewidth=1.4)
    axes.annotate(
        f"median {content.median:g}",
        (content.median, 1),
        xycoords=("data", "axes fraction"),
        xytext=(4 if content.median < content.max * 0.8 else -4, -10),
        textcoords="offset points",
        ha="left" if content.median < content.max * 0.8 else "right",
        color=CLASSES["none"],
    )
    axes.set_xlim(0, content.max)
    axes.margins(y=0.25)  # room for the label
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(f"points of the exercises, of {content.max:g}")
    axes.set_ylabel("students")
    axes.grid(False, axis="x")
    return figure
