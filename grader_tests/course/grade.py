"""Grade a class: take each submission in, examine it, write its verdict, let nbgrader record it.

    submitted/STUDENT/ASSIGNMENT/                what was handed in
      -> .grading/submitted/STUDENT/ASSIGNMENT/  the clean copy (intake)
      -> verdicts/ASSIGNMENT/STUDENT.json        what the examiner says
      -> gradebook.db, autograded/               nbgrader's, which shows that verdict
      -> .grading/recorded/ASSIGNMENT/STUDENT.json   the note that all of this is done

Whatever is killed, and when: a submission is done when its note names the verdict that lies there, that verdict is of
this submission and of these hidden tests, and the gradebook holds its points. All others are done (again) by the next
run. A verdict that is out of date goes, and its points with it, before the new examination begins.
"""

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import logging
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from rlhf_lab.errors import LabError
from rlhf_lab.runs import read_json, write_bytes, write_json

from .. import clinic
from ..verdict import ExerciseVerdict, SubmissionVerdict
from .intake import Submission, handed_in, stage, staged, take_in
from .paths import Assignment, Course
from .workers import Fault, Workers

PATIENCE = 5.0  # seconds for the processes of a run that was killed to be gone
SCHEDULER_ANSWERS = 30.0  # seconds
LIMIT = 15 * 60.0  # seconds for one submission; the examiner's own limits are far below


@dataclass(frozen=True)
class Exam:
    """The hidden tests. Passed to whatever process is to use them; each keeps one examiner with a warm room.

    Attributes:
        training: whether the tests that train a model are among them.
        seed: of the numbers that the tests draw.
    """

    training: bool = True
    seed: int = 0

    def fingerprint(self) -> str:
        from ..examiner import exam_fingerprint

        return exam_fingerprint(self.training, self.seed)

    def examine(
        self, files: Mapping[str, bytes], names: Sequence[str]
    ) -> tuple[dict[str, ExerciseVerdict], str]:
        """Verdicts of these exercises, and how the student's code was kept apart."""
        with _in_turn:
            examiner = _examiner(self.training, self.seed)
            return examiner.examine(files, names), examiner.confinement


_in_turn = threading.Lock()  # a worker of a cluster may have several threads, and a process has one examiner


@functools.cache
def _examiner(training: bool, seed: int):
    from ..examiner import Examiner

    examiner = Examiner(training, seed)
    atexit.register(examiner.close)
    return examiner


@dataclass(frozen=True)
class Outcome:
    """What became of one submission.

    Attributes:
        state: "graded", "kept" (it was done before) or "failed".
        verdict: None where there is none.
        reason: why it failed, in a sentence.
    """

    assignment: str
    student: str
    state: str
    verdict: SubmissionVerdict | None
    reason: str = ""


@dataclass(frozen=True)
class Run:
    """What a grading run did.

    Attributes:
        outcomes: of every submission.
        strays: what lies in submitted/ and is no submission, with the reason.
        seconds: that the run took.
    """

    outcomes: tuple[Outcome, ...]
    strays: Mapping[str, str]
    seconds: float

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.state == "failed"]

    @property
    def status(self) -> int:
        """Exit status of the command: 1 when somebody's work has no verdict."""
        return 1 if self.failed or self.strays else 0


def grade(
    course_dir: Path | str,
    jobs: int = 2,
    students: Sequence[str] | None = None,
    only_new: bool = False,
    training: bool = True,
    scheduler: str | None = None,
    exam: Exam | None = None,
) -> Run:
    """Grade what was handed in and is not graded yet; print a line for each and a table at the end.

    Args:
        course_dir: of a released course.
        jobs: processes that work at the same time.
        students: whom to grade; all when None.
        only_new: whether a verdict of this very submission is kept when the hidden tests have changed since.
        training: whether the tests that train a model are run.
        scheduler: address of a Dask scheduler, whose workers then examine. All files are written here.
        exam: the hidden tests, when not the course's own.

    Raises:
        LabError: when there is no course, another run is working in it, or a student is unknown.
    """
    course = Course(course_dir)
    tasks, strays = _tasks(course, students)
    exam = exam or Exam(training, course.seed)
    started = time.monotonic()
    with only_run(course), Workers(jobs, LIMIT) as workers:
        if scheduler is None:
            results = workers.run(_grade_one, [(course.root, *task, exam, only_new) for task in tasks])
            outcomes = ((task[1:3], result) for task, result in results)
        else:
            outcomes = _grade_on_cluster(course, workers, tasks, exam, only_new, scheduler)
        done = tuple(_reported(course, outcomes, len(tasks)))
    run = Run(
        tuple(sorted(done, key=lambda o: (o.assignment, o.student))), strays, time.monotonic() - started
    )
    print(summary(course, run))
    return run


def _tasks(course: Course, students: Sequence[str] | None) -> tuple[list[tuple[str, str]], dict[str, str]]:
    tasks, strays = handed_in(course)
    if students is not None:
        unknown = set(students) - {student for _, student in tasks}
        if unknown:
            raise LabError(f"{', '.join(sorted(unknown))} handed in nothing that could be graded")
        tasks, strays = [task for task in tasks if task[1] in students], {}
    # what may be done already comes first: then the time that is left is that of real work
    return sorted(tasks, key=lambda task: not course.verdict(*task).exists()), strays


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


def _grade_one(root: Path, assignment: str, student: str, exam: Exam, only_new: bool) -> Outcome:
    """All that is to be done for one submission. Raises whatever goes wrong in examining it."""
    course = Course(root)
    submission = take_in(course, assignment, student)
    verdict = _current_verdict(course, submission, exam, only_new)
    if verdict is None:
        verdict = assemble(course, submission, exam.fingerprint(), examined(submission, exam, course))
    return _record(course, submission, verdict)


def _current_verdict(
    course: Course, submission: Submission, exam: Exam, only_new: bool
) -> SubmissionVerdict | None:
    """The verdict that is still right. Another one is removed, and so are its points."""
    verdict = readable_verdict(course, submission.assignment, submission.student)
    same = verdict is not None and verdict.submission == submission.fingerprint
    if same and (only_new or verdict.exam == exam.fingerprint()):
        return verdict
    withdraw(course, submission.assignment, submission.student)
    return None


def readable_verdict(course: Course, assignment: str, student: str) -> SubmissionVerdict | None:
    """The verdict that lies there; None where there is none, or a damaged one."""
    try:
        return course.read_verdict(assignment, student)
    except LabError:
        return None


def examined(submission: Submission, exam: Exam, course: Course) -> dict:
    """What the examiner says, as JSON: what a worker of a cluster answers."""
    names = names_to_examine(course.assignment(submission.assignment), submission)
    return examine(submission.files, names, exam)


def names_to_examine(assignment: Assignment, submission: Submission) -> list[str]:
    from rlhf_lab.course import exercises

    table = exercises()
    return [
        name
        for name in assignment.exercises
        if name != clinic.NAME and table[name].module not in submission.missing
    ]


def examine(files: Mapping[str, bytes], names: Sequence[str], exam: Exam) -> dict:
    """Runs wherever there is an examiner; needs no course.

    Returns:
        `exercises` as in a verdict, `confinement`, `exam` and `seconds`, all fit for JSON.
    """
    started = time.monotonic()
    verdicts, confinement = exam.examine(files, names) if names else ({}, "nothing was run")
    return {
        "exercises": {name: dataclasses.asdict(verdict) for name, verdict in verdicts.items()},
        "confinement": confinement,
        "exam": exam.fingerprint(),
        "seconds": round(time.monotonic() - started, 3),
    }


def assemble(course: Course, submission: Submission, exam: str, answer: dict) -> SubmissionVerdict:
    """The verdict on a submission, out of the examiner's answer and what needs no code to be run.

    Raises:
        LabError: when the answer comes from other hidden tests than ours.
    """
    if answer["exam"] != exam:
        raise LabError("the worker of the cluster has other hidden tests: install this checkout there")
    assignment = course.assignment(submission.assignment)
    verdicts = {}
    for name, points in assignment.exercises.items():
        if name == clinic.NAME:
            verdicts[name] = _to_points(clinic.clinic_verdict(submission.answers), points)
        elif name in answer["exercises"]:
            verdicts[name] = _to_points(ExerciseVerdict(**answer["exercises"][name]), points)
        else:
            verdicts[name] = ExerciseVerdict(name, 0.0, points, (_why_missing(submission, name),))
    return SubmissionVerdict(
        assignment=submission.assignment,
        student=submission.student,
        exercises=verdicts,
        remarks=submission.remarks,
        confinement=answer["confinement"],
        exam=exam,
        submission=submission.fingerprint,
        seconds=answer["seconds"],
    )


def _to_points(verdict: ExerciseVerdict, points: float) -> ExerciseVerdict:
    """In the points that the exercise had when it was released, which are those of the gradebook."""
    score = verdict.score if verdict.max == points else round(verdict.score * points / verdict.max, 2)
    return dataclasses.replace(verdict, score=score, max=points, messages=tuple(verdict.messages))


def _why_missing(submission: Submission, name: str) -> str:
    from rlhf_lab.course import exercises

    return submission.missing[exercises()[name].module]


# Into the gradebook


def _record(course: Course, submission: Submission, verdict: SubmissionVerdict) -> Outcome:
    """Verdict, nbgrader, note. What goes wrong with nbgrader leaves the verdict, which is right, for the next run."""
    key = submission.assignment, submission.student
    if _is_recorded(course, verdict):
        return Outcome(*key, "kept", verdict)
    try:
        course.write_verdict(verdict)
        stage(course, submission)
        _autograde(course, submission)
        _check_gradebook(course, verdict)
        write_json(_note_path(course, *key), _note(course, verdict))
    except Exception as error:
        with contextlib.suppress(Exception):  # the database itself may be what does not work
            clear_scores(course, *key)
        return Outcome(*key, "failed", verdict, f"the gradebook does not have it: {error}")
    return Outcome(*key, "graded", verdict)


def _note_path(course: Course, assignment: str, student: str) -> Path:
    return course.scratch / "recorded" / assignment / f"{student}.json"


def _note(course: Course, verdict: SubmissionVerdict) -> dict:
    content = course.verdict(verdict.assignment, verdict.student).read_bytes()
    return {"submission": verdict.submission, "verdict": hashlib.sha256(content).hexdigest()}


def _read_note(course: Course, assignment: str, student: str) -> dict:
    try:
        return read_json(_note_path(course, assignment, student))
    except LabError:
        return {}


def _is_recorded(course: Course, verdict: SubmissionVerdict) -> bool:
    key = verdict.assignment, verdict.student
    if not course.verdict(*key).is_file() or _read_note(course, *key) != _note(course, verdict):
        return False
    try:
        _check_gradebook(course, verdict)
    except LabError:
        return False
    return True


def _check_gradebook(course: Course, verdict: SubmissionVerdict) -> None:
    """Raises LabError unless the gradebook holds what the verdict says, and the pages are there that show it."""
    held = {
        name: grade.auto for name, grade in read_grades(course, verdict.assignment, verdict.student).items()
    }
    for name, exercise in verdict.exercises.items():
        if held.get(name) is None or abs(held[name] - exercise.score) > 1e-6:
            raise LabError(
                f"it holds {held.get(name)} points of {name}, and the verdict says {exercise.score}"
            )
    for notebook in course.assignment(verdict.assignment).notebooks:
        path = course.autograded(verdict.assignment, verdict.student) / f"{notebook}.ipynb"
        if not path.is_file():
            raise LabError(f"{path} is missing")


@dataclass(frozen=True)
class Grade:
    """A row of the gradebook: points of the autograder, of a person, and whether one still has to look."""

    auto: float | None
    manual: float | None
    waits: bool


def read_grades(course: Course, assignment: str, student: str) -> dict[str, Grade]:
    """What the gradebook holds of a submission, by grade id; empty when it has no such submission."""
    return {
        name: Grade(grade.auto_score, grade.manual_score, grade.needs_manual_grade)
        for name, grade in _grade_rows(course, assignment, student)
    }


def _grade_rows(course: Course, assignment: str, student: str) -> Iterator[tuple]:
    """Name and row of each grade of a submission, a row being nbgrader's `Grade`; what is changed in it is kept."""
    from nbgrader import api

    if not course.gradebook.is_file():
        return
    with api.Gradebook(course.gradebook_url) as gradebook:
        yield from (
            gradebook.db.query(api.BaseCell.name, api.Grade)
            .join(api.Grade, api.Grade.cell_id == api.BaseCell.id)
            .join(api.SubmittedNotebook, api.SubmittedNotebook.id == api.Grade.notebook_id)
            .join(api.SubmittedAssignment, api.SubmittedAssignment.id == api.SubmittedNotebook.assignment_id)
            .join(api.Assignment, api.Assignment.id == api.SubmittedAssignment.assignment_id)
            .filter(api.Assignment.name == assignment, api.SubmittedAssignment.student_id == student)
        ).all()
        gradebook.db.commit()


def clear_scores(course: Course, assignment: str, student: str) -> None:
    """Take the automatic points out of the gradebook. What a person wrote stays."""
    exercises = course.assignment(assignment).exercises
    for name, grade in _grade_rows(course, assignment, student):
        if name in exercises:
            grade.auto_score, grade.needs_manual_grade = None, True


def withdraw(course: Course, assignment: str, student: str) -> None:
    """Remove a verdict that is not right any more, and the points that came from it."""
    course.verdict(assignment, student).unlink(missing_ok=True)
    clear_scores(course, assignment, student)


def _autograde(course: Course, submission: Submission) -> None:
    """Let nbgrader read the clean copy. Raises LabError when it does not succeed."""
    key = submission.assignment, submission.student
    before = read_grades(course, *key)
    same = _read_note(course, *key).get("submission") == submission.fingerprint
    clear_scores(course, *key)
    result = nbgrader_api(course).autograde(*key)
    if not result["success"]:
        log = course.scratch / "errors" / submission.assignment / f"{submission.student}.txt"
        write_bytes(log, f"{result.get('log', '')}\n{result.get('error', '')}".encode())
        raise LabError(f"nbgrader failed, see {log}")
    if not same:
        return
    for name, grade in _grade_rows(course, *key):
        # nbgrader asks for a second look at all that a person has graded; where nothing has changed there is no need
        old = before.get(name)
        if old and not old.waits and old.manual is not None and old.auto == grade.auto_score:
            grade.needs_manual_grade = False


def nbgrader_api(course: Course):
    """nbgrader with the course's own configuration, reading the clean copies in place of what was handed in."""
    from nbgrader.apps.api import NbGraderAPI
    from traitlets.config import PyFileConfigLoader

    logging.getLogger("traitlets").addHandler(logging.NullHandler())  # its log comes back with the result
    warnings.filterwarnings("ignore", module="sqlalchemy|nbgrader")
    config = PyFileConfigLoader(str(course.config_file)).load_config()
    config.CourseDirectory.root = str(course.root)
    folder = staged(course, "ASSIGNMENT", "STUDENT").parent.parent
    config.CourseDirectory.submitted_directory = str(folder.relative_to(course.root))
    return NbGraderAPI(config=config)


# A cluster


def _grade_on_cluster(
    course: Course,
    workers: Workers,
    tasks: Iterable[tuple[str, str]],
    exam: Exam,
    only_new: bool,
    scheduler: str,
) -> Iterator[tuple[tuple[str, str], Outcome | Fault]]:
    """Take in and record here, examine there. Dask gives the work of a worker that dies to another one."""
    try:
        from distributed import Client, as_completed
    except ModuleNotFoundError:
        raise LabError("--scheduler needs Dask: pip install distributed") from None
    fingerprint = exam.fingerprint()
    try:
        client = Client(scheduler, timeout=SCHEDULER_ANSWERS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise LabError(f"no Dask scheduler answers at {scheduler}: {error}") from None
    with client:
        waiting, futures = {}, {}
        prepared = workers.run(_prepare, [(course.root, *task, exam, only_new) for task in tasks])
        for (_, *key, _, _), result in prepared:
            key = tuple(key)
            if isinstance(result, Submission):
                names = names_to_examine(course.assignment(result.assignment), result)
                waiting[key] = result
                futures[client.submit(examine, result.files, names, exam, pure=False, retries=1)] = key
            else:
                yield key, result
        # with results: each is fetched when it is there, and not lost with the worker that holds it
        finished = as_completed(list(futures), loop=client.loop, with_results=True, raise_errors=False)
        for future, answer in finished:
            key = futures.pop(future)
            submission = waiting.pop(key)
            if not isinstance(answer, dict):
                yield key, Fault(f"no worker of the cluster could examine it: {_cause(answer)!r}")
                continue
            task = course.root, submission, fingerprint, answer
            ((_, result),) = workers.run(_assemble_and_record, [task])
            yield key, result


def _cause(answer: object) -> object:
    """The exception in what Dask gives for a task without a result: that itself, or with its type and traceback."""
    return answer[1] if isinstance(answer, tuple) else answer


def _prepare(root: Path, assignment: str, student: str, exam: Exam, only_new: bool) -> Outcome | Submission:
    """What is to be examined elsewhere; where a verdict is there already, that is recorded."""
    course = Course(root)
    submission = take_in(course, assignment, student)
    verdict = _current_verdict(course, submission, exam, only_new)
    return submission if verdict is None else _record(course, submission, verdict)


def _assemble_and_record(root: Path, submission: Submission, fingerprint: str, answer: dict) -> Outcome:
    course = Course(root)
    return _record(course, submission, assemble(course, submission, fingerprint, answer))


# What is said


def _reported(
    course: Course, results: Iterable[tuple[tuple[str, str], Outcome | Fault]], number: int
) -> Iterator[Outcome]:
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
            yield outcome


def _given_up(course: Course, assignment: str, student: str, fault: Fault) -> Outcome:
    reason = fault.reason
    with contextlib.suppress(Exception):  # whatever is broken here, the class goes on
        withdraw(course, assignment, student)
        if fault.details:
            log = course.scratch / "errors" / assignment / f"{student}.txt"
            write_bytes(log, fault.details.encode())
            reason += f" (see {log})"
    return Outcome(assignment, student, "failed", None, reason)


def _line(outcome: Outcome) -> str:
    who = f"{outcome.assignment}  {outcome.student}"
    if outcome.state == "failed":
        return f"{who}  FAILED: {outcome.reason}"
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


def summary(course: Course, run: Run) -> str:
    """The table at the end: what was done for each assignment, then everything that has no verdict."""
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
    kept_apart = {outcome.verdict.confinement for outcome in run.outcomes if outcome.verdict is not None}
    lines.append(
        f"{run.seconds:.0f} s. Students' code was confined by: {', '.join(sorted(kept_apart)) or '-'}."
    )
    lines += [f"FAILED {o.assignment} {o.student}: {o.reason}" for o in run.failed]
    lines += [f"NOT GRADED {path}: {reason}" for path, reason in run.strays.items()]
    return "\n".join(lines)
