"""What an examination says: of each exercise its points and why, of a submission all of them and what was odd about it."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ExerciseVerdict:
    """Points of one exercise.

    Attributes:
        name: of the function or class; "clinic" for the diagnoses of the debugging clinic.
        score: 0 to `max`, in points.
        max: points that the exercise is worth.
        messages: sentences to the student; where points are missing, the first one names the mistake.
        examined: whether there was anything to examine: not where the file is missing or cannot be read or imported,
            or the function is not written.
    """

    name: str
    score: float
    max: float
    messages: tuple[str, ...] = ()
    examined: bool = True


@dataclass(frozen=True)
class SubmissionVerdict:
    """Everything that was found out about one submission.

    Attributes:
        assignment, student: whose it is.
        exercises: by name, in the course's order.
        remarks: what is to be said about the submission as a whole: a missing file, a renamed notebook.
        confinement: how the student's code was kept apart, as the examiner says it.
        exam: fingerprint of the hidden tests; another one means that the verdict is out of date.
        submission: SHA-256 of what was examined.
        seconds: that the examination took.
    """

    assignment: str
    student: str
    exercises: dict[str, ExerciseVerdict]
    remarks: tuple[str, ...]
    confinement: str
    exam: str
    submission: str
    seconds: float

    @property
    def score(self) -> float:
        return sum(verdict.score for verdict in self.exercises.values())

    @property
    def max(self) -> float:
        return sum(verdict.max for verdict in self.exercises.values())

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "SubmissionVerdict":
        exercises = {
            name: ExerciseVerdict(**{**verdict, "messages": tuple(verdict["messages"])})
            for name, verdict in content["exercises"].items()
        }
        return cls(**{**content, "exercises": exercises, "remarks": tuple(content["remarks"])})
