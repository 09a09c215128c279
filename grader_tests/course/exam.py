"""The hidden tests of a course, what they are asked, and the verdict that comes of their answer.

A worker of a cluster imports this module alone: it needs an examiner there, and no course.
"""

import atexit
import dataclasses
import functools
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlhf_lab.course import exercises
from rlhf_lab.errors import LabError

from .. import clinic
from ..fingerprint import exam_fingerprint
from ..verdict import ExerciseVerdict, SubmissionVerdict
from .intake import Submission
from .paths import Assignment, Course

NOTHING_RUN = "nothing was run"  # in a verdict's `confinement`, where there was no code


@dataclass(frozen=True)
class Exam:
    """The hidden tests. Passed to whatever process is to use them; each keeps one examiner with a warm room.

    Attributes:
        training: whether the tests that train a model are among them.
        seed: of the numbers that the tests draw.
        device: "auto" trains on a GPU where there is one, "cpu" never does; no verdict depends on it.
    """

    training: bool = True
    seed: int = 0
    device: str = "auto"

    def fingerprint(self) -> str:
        return exam_fingerprint(self.training, self.seed)

    def examine(
        self, files: Mapping[str, bytes], names: Sequence[str]
    ) -> tuple[dict[str, ExerciseVerdict], str]:
        """Verdicts of these exercises, and how the student's code was kept apart."""
        with _in_turn:
            examiner = _examiner(self.training, self.seed, self.device)
            return examiner.examine(files, names), examiner.confinement


_in_turn = threading.Lock()  # a worker of a cluster may have several threads, and a process has one examiner


@functools.cache
def _examiner(training: bool, seed: int, device: str):
    from ..examiner import Examiner

    examiner = Examiner(training, seed, device=device)
    atexit.register(examiner.close)
    return examiner


def with_code(assignment: Assignment, submission: Submission) -> list[str]:
    """The exercises of an assignment that there is a module of: what the examiner is asked about."""
    table = exercises()
    return [
        name
        for name in assignment.exercises
        if name != clinic.NAME and table[name].module not in submission.missing
    ]


def ask_examiner(exam: Exam, files: Mapping[str, bytes], names: Sequence[str]) -> dict:
    """The examiner's answer, fit for JSON: `exercises` as in a verdict, `confinement`, `exam` and `seconds`."""
    started = time.monotonic()
    verdicts, confinement = exam.examine(files, names) if names else ({}, NOTHING_RUN)
    return {
        "exercises": {name: dataclasses.asdict(verdict) for name, verdict in verdicts.items()},
        "confinement": confinement,
        "exam": exam.fingerprint(),
        "seconds": round(time.monotonic() - started, 3),
    }


def assemble(course: Course, submission: Submission, fingerprint: str, answer: dict) -> SubmissionVerdict:
    """The verdict on a submission, out of the examiner's answer and what needs no code to be run.

    Args:
        fingerprint: of the exam that was to be used.
        answer: of `ask_examiner`.

    Raises:
        LabError: when the answer comes from other hidden tests than ours.
    """
    if answer["exam"] != fingerprint:
        raise LabError("the worker of the cluster has other hidden tests: install this checkout there")
    assignment = course.assignment(submission.assignment)
    verdicts = {}
    for name, points in assignment.exercises.items():
        if name == clinic.NAME:
            verdicts[name] = _to_points(clinic.clinic_verdict(submission.answers), points)
        elif name in answer["exercises"]:
            verdicts[name] = _to_points(ExerciseVerdict(**answer["exercises"][name]), points)
        else:
            why = submission.missing[exercises()[name].module]
            verdicts[name] = ExerciseVerdict(name, 0.0, points, (why,), examined=False)
    return SubmissionVerdict(
        assignment=submission.assignment,
        student=submission.student,
        exercises=verdicts,
        remarks=submission.remarks,
        confinement=answer["confinement"],
        exam=fingerprint,
        submission=submission.fingerprint,
        seconds=answer["seconds"],
    )


def confinements(verdicts: Iterable[SubmissionVerdict]) -> list[str]:
    """How the code of those was kept apart whose code was run."""
    return sorted({verdict.confinement for verdict in verdicts} - {NOTHING_RUN})


def lacks_training(course: Course, verdict: SubmissionVerdict) -> bool:
    """Whether a verdict leaves out the tests that train a model."""
    return verdict.exam == Exam(False, course.seed).fingerprint()


def _to_points(verdict: ExerciseVerdict, points: float) -> ExerciseVerdict:
    """In the points that the exercise had when it was released, which are those of the gradebook."""
    score = verdict.score if verdict.max == points else round(verdict.score * points / verdict.max, 2)
    return dataclasses.replace(verdict, score=score, max=points, messages=tuple(verdict.messages))
