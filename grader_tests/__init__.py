"""Hidden tests and grading: for instructors only, no student receives this package.

`python -m grader_tests --help` is the instructor's command. The two functions here stand in the hidden lines of the
notebooks' grade cells, where they show what an exercise is worth; the verdict that reaches the gradebook is made by
`python -m grader_tests grade`, which runs no notebook.
"""

import atexit
from collections.abc import Mapping
from functools import cache


def grade(name: str) -> float:
    """Examine one exercise of the package beside this notebook, print why points are missing, and return the points.

    Raises:
        LabError: when there is no such exercise, or no package here.
    """
    from rlhf_lab.course import find
    from rlhf_lab.settings import STUB_PACKAGE
    from rlhf_lab.student_code import package_folder

    from .package import read_package

    exercise = find(name)
    package = read_package(package_folder(STUB_PACKAGE))
    verdict = _examiner().examine(package.files, [exercise.name])[exercise.name]
    for message in (*package.remarks, *verdict.messages):
        print(message)
    return verdict.score


def grade_clinic(diagnoses: Mapping[str, str]) -> float:
    """Points of the debugging clinic for these answers, by letter of the case."""
    from .clinic import clinic_verdict

    verdict = clinic_verdict(diagnoses)
    for message in verdict.messages:
        print(message)
    return verdict.score


@cache
def _examiner():
    from .examiner import Examiner

    examiner = Examiner()
    atexit.register(examiner.close)
    return examiner
