"""A class of twelve from release to report, for somebody who wants to see grading before trusting it."""

import shutil
import webbrowser
from pathlib import Path

from grader_tests.course.export import export
from grader_tests.course.feedback import feedback
from grader_tests.course.grade import grade
from grader_tests.course.paths import Course
from grader_tests.course.release import release
from grader_tests.course.report import report
from grader_tests.examiner import Examiner
from rlhf_lab.errors import LabError

from .classroom import class_of_twelve, describe, hand_in, unexpected_marks

ASSIGNMENT = "03_ppo"
MARKER = ".grade-demo"  # in a folder that the demo has made, and may make again


def grade_demo(folder: Path, training: bool = True, browse: bool = True) -> int:
    """Release, hand in, grade, give feedback, report; 1 when a mark is not what the class was made for.

    Raises:
        LabError: when the folder holds something else than an earlier demo.
    """
    folder = folder.resolve()
    if folder.exists() and not (folder / MARKER).exists():
        raise LabError(f"{folder} is there already and is no earlier demo: choose another folder")
    shutil.rmtree(folder, ignore_errors=True)
    course, pupils = Course(folder), class_of_twelve(ASSIGNMENT)

    print(f"1. release {ASSIGNMENT} (the solution must get full marks, the blank assignment 0)")
    with Examiner(training, course.seed) as examiner:
        release(course, examiner, [ASSIGNMENT])
    (folder / MARKER).touch()
    print(f"2. twelve students hand in\n{describe(pupils)}")
    hand_in(course, ASSIGNMENT, pupils)
    print("3. grade")
    run = grade(folder, training=training)
    print("4. feedback, marks, report")
    feedback(folder)
    table, page = export(folder), report(folder, ASSIGNMENT)

    unexpected = unexpected_marks(course, ASSIGNMENT, pupils)
    for line in unexpected:
        print(f"not as expected: {line}")
    if not unexpected:
        print("every mark is what the class was made for")
    print(
        f"marks     {table}\nreport    {page}\nfeedback  {course.feedback(ASSIGNMENT, 'chen') / f'{ASSIGNMENT}.html'}"
    )
    print(f"by hand   cd {folder} && python -m jupyter lab    (menu Nbgrader, Formgrader)")
    if browse:
        webbrowser.open(page.as_uri())
    return 1 if unexpected or run.failed else 0
