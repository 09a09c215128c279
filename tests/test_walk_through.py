"""A class from release to report, with nbgrader's own gradebook and formgrader: twelve students, one of each kind."""

import csv
import importlib.util
from urllib.parse import urljoin

import pytest

from authoring.browser import chromium, formgrader
from authoring.classroom import class_of_twelve, hand_in, unexpected_marks
from grader_tests.course.export import export
from grader_tests.course.feedback import feedback
from grader_tests.course.grade import grade
from grader_tests.course.paths import Course
from grader_tests.course.regrade import regrade
from grader_tests.course.release import release
from grader_tests.course.report import report
from grader_tests.examiner import Examiner

ASSIGNMENT = "03_ppo"


@pytest.fixture(scope="module")
def pupils():
    return class_of_twelve(ASSIGNMENT)


@pytest.fixture(scope="module")
def course(tmp_path_factory, pupils):
    course = Course(tmp_path_factory.mktemp("course"))
    with Examiner(training=False, seed=course.seed) as examiner:
        release(course, examiner, [ASSIGNMENT])
    hand_in(course, ASSIGNMENT, pupils)
    (course.submitted(ASSIGNMENT, "chen") / "timestamp.txt").touch()  # nbgrader itself finds no time in it
    run = grade(course.root, training=False)
    assert run.failed == []
    return course


def submission_id(course: Course, student: str) -> str:
    from nbgrader.api import Gradebook

    with Gradebook(course.gradebook_url) as gradebook:
        return gradebook.find_submission_notebook(ASSIGNMENT, ASSIGNMENT, student).id


def test_every_mark_is_what_the_class_was_made_for(course, pupils):
    assert unexpected_marks(course, ASSIGNMENT, pupils) == []


def test_everybody_has_a_verdict_with_a_reason(course, pupils):
    for pupil in pupils:
        verdict = course.read_verdict(ASSIGNMENT, pupil.name)
        short = [v for v in verdict.exercises.values() if v.score < v.max]
        assert all(v.messages for v in short), pupil.says


def test_feedback_holds_the_students_own_source_and_nothing_hidden(course):
    assert feedback(course.root).status == 0
    page = (course.feedback(ASSIGNMENT, "chen") / f"{ASSIGNMENT}.html").read_text(encoding="utf-8")
    assert "td_error" in page
    assert "Your TD error leaves out the value of the next state." in page
    for hidden in ("BEGIN HIDDEN", "grader_tests", str(course.root)):
        assert hidden not in page
    hostile = (course.feedback(ASSIGNMENT, "juno") / f"{ASSIGNMENT}.html").read_text(encoding="utf-8")
    assert "<script>" not in hostile
    assert "onerror=" not in hostile.replace("onerror=&#34;", "").replace("onerror=&quot;", "")


def test_the_table_of_marks_and_the_report(course, pupils):
    with open(export(course.root), newline="", encoding="utf-8-sig") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert set(rows) == {pupil.name for pupil in pupils}
    assert float(rows["ada"]["compute_gae"]) == course.assignment(ASSIGNMENT).exercises["compute_gae"]
    page = report(course.root, ASSIGNMENT).read_text(encoding="utf-8")
    assert "Your TD error leaves out the value of the next state." in page


@pytest.mark.skipif(
    importlib.util.find_spec("playwright") is None, reason="needs playwright: pip install -e .[browser]"
)
@pytest.mark.skipif(chromium() is None, reason="needs Debian's package chromium, or CHROMIUM")
def test_formgrader_shows_the_marks_runs_nothing_and_keeps_a_comment(course, pupils):
    exercises = course.assignment(ASSIGNMENT).exercises
    with formgrader(course.root) as page:
        listed = page.page.request.get(urljoin(page.page.url, f"api/submissions/{ASSIGNMENT}"))
        assert {entry["student"] for entry in listed.json()} == {pupil.name for pupil in pupils}
        for student in ("chen", "juno", "kai"):
            page.open_submission(ASSIGNMENT, ASSIGNMENT, submission_id(course, student))
            verdict = course.read_verdict(ASSIGNMENT, student)
            shown = page.marks()
            assert {name: shown[name] for name in exercises} == {
                n: v.score for n, v in verdict.exercises.items()
            }
            assert "owned" not in page.page.title()
        page.open_submission(ASSIGNMENT, ASSIGNMENT, submission_id(course, "chen"))
        page.comment(0, "Well argued.")
        assert page.dialogs == []

        _, run = regrade(course.root, students=["chen"], training=False)
        assert run.failed == []
        page.open_submission(ASSIGNMENT, ASSIGNMENT, submission_id(course, "chen"))
        assert page.comments()[0] == "Well argued."
