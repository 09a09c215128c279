"""Points of the debugging clinic in `04_end_to_end`."""

from collections.abc import Mapping

from rlhf_lab.clinic import CASES, NAME, grade_fraction

from .verdict import ExerciseVerdict

POINTS = 5


def clinic_verdict(diagnoses: object) -> ExerciseVerdict:
    """Points for a dictionary of diagnoses by letter; anything else has no diagnosis in it."""
    answers = {
        letter: answer
        for letter, answer in (diagnoses.items() if isinstance(diagnoses, Mapping) else ())
        if isinstance(letter, str) and isinstance(answer, str)
    }
    share = grade_fraction(answers)
    n_right = round(share * len(CASES))
    messages = () if n_right == len(CASES) else (f"{n_right} of {len(CASES)} diagnoses are right.",)
    return ExerciseVerdict(NAME, round(POINTS * share, 2), float(POINTS), messages)
