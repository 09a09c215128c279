"""Grade a class: take each submission in, examine it, write its verdict, let nbgrader record it.

    submitted/STUDENT/ASSIGNMENT/                what was handed in
      -> .grading/submitted/STUDENT/ASSIGNMENT/  the clean copy (intake)
      -> verdicts/ASSIGNMENT/STUDENT.json        what the examiner says (exam)
      -> gradebook.db, autograded/               nbgrader's, which shows that verdict (record)
      -> .grading/recorded/ASSIGNMENT/STUDENT.json   the note that all of this is done

Whatever is killed, and when: a submission is done when its note names the verdict that lies there, that verdict is of
this submission and of these hidden tests, and the gradebook holds its points. All others are done (again) by the next
run. A verdict that is out of date goes, and its points with it, before the new examination begins.
"""

import contextlib
import difflib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from rlhf_lab.errors import LabError
from rlhf_lab.runs import write_bytes

from .cluster import grade_on_cluster
from .exam import Exam, ask_examiner, assemble, confinements, lacks_training, with_code
from .intake import NOTHING, Stray, handed_in, nothing_handed_in, take_in
from .paths import Course
from .record import Graded, current_verdict, record, withdraw
from .workers import Fault, Workers

PATIENCE = 5.0  # seconds for the processes of a run that was killed to be gone
LIMIT = 15 * 60.0  # seconds for one submission; the examiner's own limits are far below


@dataclass(frozen=True)
class GradingRun:
    """What a grading run did.

    Attributes:
        outcomes: of every submission.
        strays: what lies in submitted/ and is no submission.
        seconds: that the run took.
    """

    outcomes: tuple[Graded, ...]
    strays: tuple[Stray, ...]
    seconds: float

    @property
    def failed(self) -> list[Graded]:
        return [outcome for outcome in self.outcomes if outcome.state == "failed"]

    @property
    def empty(self) -> list[Graded]:
        """Submissions of which nothing could be taken: they have 0 points, and somebody should look."""
        return [
            outcome
            for outcome in self.outcomes
            if outcome.verdict is not None and NOTHING in outcome.verdict.remarks
        ]

    @property
    def status(self) -> int:
        """Exit status of the command: 1 when somebody's work was not examined."""
        return 1 if self.failed or self.empty or self.strays else 0


def grade(
    course_dir: Path | str,
    jobs: int = 2,
    students: Sequence[str] | None = None,
    only_new: bool = False,
    training: bool = True,
    scheduler: str | None = None,
    exam: Exam | None = None,
    device: str = "auto",
) -> GradingRun:
    """Grade what was handed in and is not graded yet; print a line for each and a table at the end.

    Args:
        course_dir: of a released course.
        jobs: processes that work at the same time.
        students: whom to grade; all when None.
        only_new: whether a verdict of this very submission is kept when the hidden tests have changed since.
        training: whether the tests that train a model are run.
        scheduler: address of a Dask scheduler, whose workers then examine. All files are written here.
        exam: the hidden tests, when not the course's own.
        device: of the tests that train (see `Exam`).

    Raises:
        LabError: when there is no course, nothing has been handed in, another run is working in it, or a student is
            unknown.
    """
    course = Course(course_dir)
    tasks, strays = _tasks(course, students)
    exam = exam or Exam(training, course.seed, device)
    started = time.monotonic()
    with only_run(course), Workers(jobs, LIMIT) as workers:
        if scheduler is None:
            results = workers.run(_grade_one, [(course.root, *task, exam, only_new) for task in tasks])
            outcomes = ((task[1:3], result) for task, result in results)
        else:
            outcomes = grade_on_cluster(course, workers, tasks, exam, only_new, scheduler)
        done = tuple(_reported(course, outcomes, len(tasks)))
    run = GradingRun(
        tuple(sorted(done, key=lambda o: (o.assignment, o.student))), strays, time.monotonic() - started
    )
    print(summary(course, run))
    return run


def _tasks(course: Course, students: Sequence[str] | None) -> tuple[list[tuple[str, str]], tuple[Stray, ...]]:
    tasks, strays = handed_in(course)
    if not tasks and not strays:
        raise nothing_handed_in(course)
    if students is not None:
        for student in students:
            _check_student(student, tasks, strays)
        tasks = [task for task in tasks if task[1] in students]
        strays = [stray for stray in strays if stray.student in students]
    # what may be done already comes first: then the time that is left is that of real work
    return sorted(tasks, key=lambda task: not course.verdict(*task).exists()), tuple(strays)


def _check_student(student: str, tasks: Sequence[tuple[str, str]], strays: Sequence[Stray]) -> None:
    """Raise LabError when a student has handed in nothing that could be graded."""
    known = {name for _, name in tasks}
    if student in known:
        return
    reason = f"{student} handed in nothing that could be graded"
    if own := [str(stray) for stray in strays if stray.student == student]:
        raise LabError(f"{reason}: {'; '.join(own)}")
    near = difflib.get_close_matches(student, known, cutoff=0.5)
    near += sorted(name for name in known - set(near) if name.startswith(student))
    raise LabError(f"{reason}: there is {', '.join(near[:5])}" if near else reason)


@contextmanager
def only_run(course: Course) -> Iterator[None]:
    """Hold the course; raises LabError when another run does."""
    _ = course.assignments  # says what is wrong before a folder is made
    course.scratch.mkdir(parents=True, exist_ok=True)
    lock = FileLock(course.scratch / "lock")
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        raise LabError(f"another grading run is working in {course.root}: wait until it has ended") from None
    try:
        yield
    finally:
        lock.release()


# One submission, in a process of its own


def _grade_one(root: Path, assignment: str, student: str, exam: Exam, only_new: bool) -> Graded:
    """All that is to be done for one submission. Raises whatever goes wrong in examining it."""
    course = Course(root)
    submission = take_in(course, assignment, student)
    verdict = current_verdict(course, submission, exam, only_new)
    if verdict is None:
        names = with_code(course.assignment(assignment), submission)
        answer = ask_examiner(exam, submission.files, names)
        verdict = assemble(course, submission, exam.fingerprint(), answer)
    return record(course, submission, verdict)


# What is said


def _reported(
    course: Course, results: Iterable[tuple[tuple[str, str], Graded | Fault]], number: int
) -> Iterator[Graded]:
    """Pass outcomes on, a line printed for each; of what failed the points are taken out of the gradebook."""
    graded, began = 0, 0.0
    with tqdm(total=number, unit="submission", disable=not sys.stderr.isatty()) as bar:
        for count, (key, result) in enumerate(results, 1):
            outcome = _given_up(course, *key, result) if isinstance(result, Fault) else result
            bar.update()
            if outcome.state != "kept":
                graded += 1
                if graded == 1:  # processes and rooms are warm from now on
                    began = time.monotonic()
                pace = (time.monotonic() - began) / (graded - 1) if graded > 1 else None
                tqdm.write(f"{count:4}/{number}  {_line(outcome)}{_time_left(pace, number - count)}")
                sys.stdout.flush()  # a pipe or a log would see the progress of a class at its end only
            yield outcome


def _given_up(course: Course, assignment: str, student: str, fault: Fault) -> Graded:
    reason = fault.reason
    with contextlib.suppress(Exception):  # whatever is broken here, the class goes on
        withdraw(course, assignment, student)
        if fault.details:
            log = course.error_log(assignment, student)
            write_bytes(log, fault.details.encode())
            reason += f" (see {log})"
    return Graded(assignment, student, "failed", None, reason)


def _line(outcome: Graded) -> str:
    who = f"{outcome.assignment}  {outcome.student}"
    if outcome.state == "failed":
        return f"{who}  FAILED: {outcome.reason}"
    if NOTHING in outcome.verdict.remarks:
        return f"{who}  NOTHING COULD BE TAKEN"
    remarks = len(outcome.verdict.remarks)
    odd = f"  {remarks} remark{'s' if remarks > 1 else ''}" if remarks else ""
    return (
        f"{who}  {outcome.verdict.score:g} of {outcome.verdict.max:g}  {outcome.verdict.seconds:.1f} s{odd}"
    )


def _time_left(pace: float | None, number: int) -> str:
    """`pace` is in seconds for one submission."""
    if pace is None or not number:
        return ""
    seconds = pace * number
    return f"  ({seconds / 60:.0f} min left)" if seconds >= 90 else f"  ({seconds:.0f} s left)"


def summary(course: Course, run: GradingRun) -> str:
    """The table at the end: what was done for each assignment, then everything that somebody has to look at."""
    lines = _table(course, run) if run.outcomes else []
    lines += [
        f"NOTHING TAKEN {o.assignment} {o.student}: {' '.join(o.verdict.remarks[:2])}" for o in run.empty
    ]
    lines += [f"FAILED {o.assignment} {o.student}: {o.reason}" for o in run.failed]
    lines += [f"NOT GRADED {stray}" for stray in run.strays]
    return "\n".join(lines)


def _table(course: Course, run: GradingRun) -> list[str]:
    lines = [f"{'assignment':16}{'graded':>8}{'kept':>8}{'failed':>8}{'remarks':>9}{'mean':>8}{'max':>8}"]
    for name in course.assignments:
        outcomes = [outcome for outcome in run.outcomes if outcome.assignment == name]
        if not outcomes:
            continue
        states = [outcome.state for outcome in outcomes]
        verdicts = [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
        mean = f"{sum(verdict.score for verdict in verdicts) / len(verdicts):.1f}" if verdicts else "-"
        lines.append(
            f"{name:16}{states.count('graded'):>8}{states.count('kept'):>8}{states.count('failed'):>8}"
            f"{sum(bool(verdict.remarks) for verdict in verdicts):>9}{mean:>8}"
            f"{sum(course.assignment(name).exercises.values()):>8g}"
        )
    verdicts = [outcome.verdict for outcome in run.outcomes if outcome.verdict is not None]
    kept_apart = confinements(verdicts)
    how = f"Students' code was confined by: {', '.join(kept_apart)}." if kept_apart else "No code was run."
    lines.append(f"{run.seconds:.0f} s. {how}")
    if number := sum(lacks_training(course, verdict) for verdict in verdicts):
        lines.append(f"{number} of these verdicts leave out the tests that train a model (--no-training).")
    return lines
