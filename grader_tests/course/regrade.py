"""Examine all submissions again after a hidden test was mended, and say whose marks changed.

The old verdicts are written down in one file first, and then removed; from there on this is an ordinary grading run,
which grades what has no verdict. Killed at any moment, the same command goes on, and still knows the marks from before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_lab.runs import read_json, write_json

from ..verdict import SubmissionVerdict
from .exam import Exam
from .grade import GradingRun, grade, only_run
from .intake import handed_in
from .paths import Course


@dataclass(frozen=True)
class Change:
    """Marks of one exercise that are not what they were.

    Attributes:
        before, after: points.
        message: the first sentence of the new verdict; of the old one where there is no new sentence.
    """

    student: str
    assignment: str
    exercise: str
    before: float
    after: float
    message: str


def regrade(
    course_dir: Path | str,
    jobs: int = 2,
    students: Sequence[str] | None = None,
    training: bool = True,
    scheduler: str | None = None,
    exam: Exam | None = None,
    device: str = "auto",
) -> tuple[list[Change], GradingRun]:
    """Examine again, write the new marks, print and return whose marks changed. Manual scores and comments stay.

    The arguments are those of `grade`. Returns the changes, by student, and the grading run.

    Raises:
        LabError: as `grade` does.
    """
    course = Course(course_dir)
    with only_run(course):
        before = _set_aside(course, students)
    run = grade(course_dir, jobs, students, training=training, scheduler=scheduler, exam=exam, device=device)
    after = {
        _key(outcome.verdict): outcome.verdict for outcome in run.outcomes if outcome.verdict is not None
    }
    changes = sorted(
        (change for key in before.keys() & after.keys() for change in _changes(before[key], after[key])),
        key=lambda change: (change.student, change.assignment),
    )
    print(format_changes(changes))
    _keep(course, [verdict for key, verdict in _set_aside_before(course).items() if key not in after])
    return changes, run


def _journal(course: Course) -> Path:
    return course.scratch / "before-regrade.json"


def _key(verdict: SubmissionVerdict) -> tuple[str, str]:
    return verdict.assignment, verdict.student


def _set_aside(course: Course, students: Sequence[str] | None) -> dict[tuple[str, str], SubmissionVerdict]:
    """Write the verdicts down and remove them; where a regrade was stopped, those from before it began count."""
    wanted = [task for task in handed_in(course)[0] if students is None or task[1] in students]
    now = {task: verdict for task in wanted if (verdict := course.readable_verdict(*task))}
    before = now | _set_aside_before(course)
    _keep(course, list(before.values()))
    for task, verdict in now.items():
        if verdict == before[task]:
            course.verdict(*task).unlink(missing_ok=True)
    return {task: before[task] for task in wanted if task in before}


def _set_aside_before(course: Course) -> dict[tuple[str, str], SubmissionVerdict]:
    """What an earlier call has written down and not reported on."""
    path = _journal(course)
    old = [SubmissionVerdict.from_json(content) for content in read_json(path)] if path.is_file() else []
    return {_key(verdict): verdict for verdict in old}


def _keep(course: Course, verdicts: Sequence[SubmissionVerdict]) -> None:
    if verdicts:
        write_json(_journal(course), [verdict.as_json() for verdict in verdicts])
    else:
        _journal(course).unlink(missing_ok=True)


def _changes(before: SubmissionVerdict, after: SubmissionVerdict) -> list[Change]:
    changes = []
    for name, now in after.exercises.items():
        then = before.exercises.get(name)
        if then is not None and abs(then.score - now.score) > 1e-6:
            message = next(iter((*now.messages, *then.messages)), "")
            changes.append(Change(after.student, after.assignment, name, then.score, now.score, message))
    return changes


def format_changes(changes: Sequence[Change]) -> str:
    """A line for each change, and how many there are."""
    if not changes:
        return "No marks changed."
    names = [f"{change.assignment} {change.student}" for change in changes]
    wide, wider = max(map(len, names)), max(len(change.exercise) for change in changes)
    lines = [
        f"{name:{wide}}  {change.exercise:{wider}}  {change.before:5g} -> {change.after:<5g}  {change.message}"
        for name, change in zip(names, changes, strict=True)
    ]
    students = len({change.student for change in changes})
    return "\n".join([*lines, f"{len(changes)} marks of {students} students changed."])
