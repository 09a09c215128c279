"""What records a verdict: the file, nbgrader's gradebook and pages, and the note that all of this is done."""

import contextlib
import hashlib
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbgrader.apps.api import NbGraderAPI
from traitlets.config import PyFileConfigLoader

from rlhf_lab.doctor.cells import mark_of
from rlhf_lab.errors import LabError
from rlhf_lab.runs import read_json, write_bytes, write_json

from ..verdict import SubmissionVerdict
from .exam import Exam
from .gradebook import clear_scores, keep_seen, read_marks
from .intake import Submission, stage
from .paths import Course


@dataclass(frozen=True)
class Graded:
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


def current_verdict(
    course: Course, submission: Submission, exam: Exam, only_new: bool
) -> SubmissionVerdict | None:
    """The verdict that is still right. Another one is removed, and so are its points."""
    verdict = course.readable_verdict(submission.assignment, submission.student)
    same = verdict is not None and verdict.submission == submission.fingerprint
    if same and (only_new or verdict.exam == exam.fingerprint()):
        return verdict
    withdraw(course, submission.assignment, submission.student)
    return None


def withdraw(course: Course, assignment: str, student: str) -> None:
    """Remove a verdict that is not right any more, and the points that came from it."""
    course.verdict(assignment, student).unlink(missing_ok=True)
    _clear(course, assignment, student)


def _clear(course: Course, assignment: str, student: str) -> None:
    clear_scores(course, assignment, student, course.assignment(assignment).exercises)


def record(course: Course, submission: Submission, verdict: SubmissionVerdict) -> Graded:
    """Verdict, nbgrader, note. What goes wrong with nbgrader leaves the verdict, which is right, for the next run."""
    key = submission.assignment, submission.student
    if _is_recorded(course, verdict):
        return Graded(*key, "kept", verdict)
    try:
        course.write_verdict(verdict)
        stage(course, submission)
        _autograde(course, submission)
        _check_gradebook(course, verdict)
        write_json(_note_path(course, *key), _note(course, verdict))
    except Exception as error:
        with contextlib.suppress(Exception):  # the database itself may be what does not work
            _clear(course, *key)
        return Graded(*key, "failed", verdict, f"the gradebook does not have it: {error}")
    return Graded(*key, "graded", verdict)


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
    marks = read_marks(course, verdict.assignment, verdict.student)
    held = {name: grade.auto for name, grade in marks.grades.items()} if marks else {}
    for name, exercise in verdict.exercises.items():
        if held.get(name) is None or abs(held[name] - exercise.score) > 1e-6:
            raise LabError(
                f"it holds {held.get(name)} points of {name}, and the verdict says {exercise.score}"
            )
    for notebook in course.assignment(verdict.assignment).notebooks:
        path = course.autograded(verdict.assignment, verdict.student) / f"{notebook}.ipynb"
        if not path.is_file():
            raise LabError(f"{path} is missing")


def _autograde(course: Course, submission: Submission) -> None:
    """Let nbgrader read the clean copy. Raises LabError when it does not succeed."""
    key = submission.assignment, submission.student
    before, answers_before = read_marks(course, *key), _answers(course, *key)
    same = _read_note(course, *key).get("submission") == submission.fingerprint
    _clear(course, *key)
    result = nbgrader_api(course, submission.fingerprint).autograde(*key)
    if not result["success"]:
        log = course.error_log(*key)
        write_bytes(log, f"{result.get('log', '')}\n{result.get('error', '')}".encode())
        raise LabError(f"nbgrader failed, see {log}")
    if before:
        answers = _answers(course, *key)
        unchanged = {name for name in answers if answers_before.get(name) == answers[name]}
        keep_seen(course, *key, before, before.grades if same else unchanged)


def _answers(course: Course, assignment: str, student: str) -> dict[str, str]:
    """Texts of the answers that a person reads, by grade id, as they are in what was autograded last."""
    questions = course.assignment(assignment).questions
    answers = {}
    for path in course.autograded(assignment, student).glob("*.ipynb"):
        with contextlib.suppress(Exception):  # half a notebook, of a run that was killed
            for cell in nbformat.read(path, as_version=4).cells:
                if (name := mark_of(cell).get("grade_id")) in questions:
                    answers[name] = cell.source
    return answers


def nbgrader_api(course: Course, submission: str = "") -> NbGraderAPI:
    """nbgrader with the course's own configuration, reading the clean copies in place of what was handed in.

    Args:
        submission: fingerprint of the submission whose clean copy it is going to grade.
    """
    logging.getLogger("traitlets").addHandler(logging.NullHandler())  # its log comes back with the result
    warnings.filterwarnings("ignore", module="sqlalchemy|nbgrader")
    config = PyFileConfigLoader(str(course.config_file)).load_config()
    config.CourseDirectory.root = str(course.root)
    config.CourseDirectory.submitted_directory = str(course.clean_copies.relative_to(course.root))
    config.ShowVerdict.submission = submission
    return NbGraderAPI(config=config)
