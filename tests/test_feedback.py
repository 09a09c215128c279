"""The page that a student gets back: what is on it, and what never is."""

import csv
import os
import re
import shutil
from unittest import mock

import nbformat
import pytest
from nbgrader.api import Gradebook

from grader_tests.course.export import export
from grader_tests.course.feedback import build_page, feedback
from grader_tests.course.nbgrader_config import search_path
from grader_tests.course.pages import LONGEST
from grader_tests.course.paths import Assignment, Course
from grader_tests.course.record import nbgrader_api
from grader_tests.course.release import CONFIG
from grader_tests.verdict import ExerciseVerdict, SubmissionVerdict
from rlhf_lab.errors import LabError

NAME = "01_sft"
EXERCISES = {"build_sft_example": 5.0, "masked_ce_loss": 5.0, "train_sft": 5.0, "clinic": 5.0}
QUESTIONS = {"why_mask": 2.0, "why_eos": 2.0}
SECRET, SCRIPT = "hidden-tests-canary", "<script>alert(1)</script>"
SOURCE = '''
def build_sft_example(prompt_ids):
    """Mine."""
    return "</pre><script>alert(1)</script>" if prompt_ids < 3 else prompt_ids & 1


def masked_ce_loss(logits, labels):
    return logits.sum()
'''


def cell(kind: str, source: str, grade_id: str | None = None, **mark):
    new = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}[kind]
    made = new(source)
    if grade_id:
        flags = {"grade": False, "solution": False, "locked": False, "task": False, "schema_version": 3}
        made.metadata["nbgrader"] = flags | {"grade_id": grade_id} | mark
    return made


def notebook(answers: dict[str, str], hidden: str = "") -> nbformat.NotebookNode:
    """The assignment's notebook with these answers, and hidden text with its output in every test cell."""
    cells = []
    for name, points in EXERCISES.items():
        test = cell("code", f"check(){hidden}", name, grade=True, locked=True, points=points)
        if hidden:
            test.outputs = [
                nbformat.v4.new_output("error", ename="E", evalue=SECRET, traceback=[f"/opt/{SECRET}.py"])
            ]
        cells.append(test)
    cells.append(cell("code", answers.get("diagnoses", "diagnoses = {}"), "diagnoses", solution=True))
    for number, (name, points) in enumerate(QUESTIONS.items(), 1):
        cells.append(cell("markdown", f"## Questions\n\n**Question {number}.** What of {name}?"))
        text = answers.get(name, "YOUR ANSWER HERE")
        cells.append(cell("markdown", text, name, solution=True, grade=True, points=points))
    return nbformat.v4.new_notebook(cells=cells)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    """A course in which `ann` and `bob` have been graded, as nbgrader and the examiner leave it."""
    course = Course(tmp_path_factory.mktemp("made_once"))
    course.config_file.write_text(CONFIG)
    cells = (*EXERCISES, "diagnoses", *QUESTIONS)
    course.write_assignments({NAME: Assignment(NAME, (NAME,), ("sft",), EXERCISES, QUESTIONS, {NAME: cells})})
    write(course.release(NAME) / f"{NAME}.ipynb", notebook({}))
    with mock.patch.dict(os.environ, PATH=search_path()), Gradebook(course.gradebook_url) as gradebook:
        gradebook.add_assignment(NAME)
        gradebook.add_notebook(NAME, NAME)
        for name, points in (EXERCISES | QUESTIONS).items():
            kind = "code" if name in EXERCISES else "markdown"
            gradebook.add_grade_cell(name, NAME, NAME, max_score=points, cell_type=kind)
        for name in ("diagnoses", *QUESTIONS):
            gradebook.add_solution_cell(name, NAME, NAME)
        for student in ("ann", "bob"):
            gradebook.add_student(student)
            gradebook.add_submission(NAME, student)
    hand_in(course, "ann", {"why_mask": "Because.", "diagnoses": 'diagnoses["A"] = "score lost"'})
    hand_in(course, "bob", {"why_mask": "bob's own words"})
    return course


@pytest.fixture
def course(made_once, tmp_path):
    shutil.copytree(made_once.root, tmp_path / "course")
    return Course(tmp_path / "course")


def write(path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else nbformat.writes(content), encoding="utf-8")


def hand_in(course, student: str, answers: dict[str, str]) -> None:
    """Leave behind what grading does: verdict, autograded notebook and package, points in the gradebook."""
    folder = course.autograded(NAME, student)
    write(folder / f"{NAME}.ipynb", notebook(answers, hidden=f"\n### BEGIN HIDDEN TESTS\n{SECRET}"))
    write(folder / "rlhf_exercises" / "sft.py", SOURCE)
    verdicts = {
        "build_sft_example": ExerciseVerdict("build_sft_example", 5.0, 5.0),
        "masked_ce_loss": ExerciseVerdict(
            "masked_ce_loss", 2.5, 5.0, ("Logits and labels are not lined up.", f"And {SCRIPT}")
        ),
        "train_sft": ExerciseVerdict("train_sft", 0.0, 5.0, ("train_sft is not there.",)),
        "clinic": ExerciseVerdict("clinic", 0.42, 5.0, ("No diagnosis: B.",)),
    }
    remarks = (f"The file {SCRIPT}.ipynb is not used.",)
    course.write_verdict(
        SubmissionVerdict(NAME, student, verdicts, remarks, "bubblewrap", SECRET, SECRET, 1.0)
    )
    with Gradebook(course.gradebook_url) as gradebook:
        for name, verdict in verdicts.items():
            grade = gradebook.find_grade(name, NAME, NAME, student)
            grade.auto_score, grade.needs_manual_grade = verdict.score, False
        gradebook.db.commit()


def grade_by_hand(course, name: str, score: float | None = None, comment: str | None = None) -> None:
    """What a person does in formgrader, for ann."""
    with Gradebook(course.gradebook_url) as gradebook:
        if score is not None:
            grade = gradebook.find_grade(name, NAME, NAME, "ann")
            grade.manual_score, grade.needs_manual_grade = score, False
        if comment is not None:
            gradebook.find_comment(name, NAME, NAME, "ann").manual_comment = comment
        gradebook.db.commit()


def page(course):
    return build_page(course, course.assignment(NAME), "ann", NAME)


def html(course) -> str:
    feedback(course.root, students=["ann"])
    return (course.feedback(NAME, "ann") / f"{NAME}.html").read_text(encoding="utf-8")


def test_exercises_with_points_mistake_and_source(course):
    right, half, missing, clinic = page(course).exercises
    assert (right.title, right.score, right.messages) == ("1.1 build_sft_example", 5.0, ())
    assert half.messages[0] == "Logits and labels are not lined up."
    assert "logits.sum" in re.sub("<.*?>", "", half.source) and "build_sft" not in half.source
    assert missing.source is None
    assert "score lost" in clinic.source and clinic.score == 0.42
    assert page(course).total == pytest.approx((7.92, 24.0))


def test_what_the_assignment_was_released_with_is_not_shown_as_the_students(course):
    write(course.package(NAME) / "sft.py", SOURCE)
    assert [part.source for part in page(course).exercises[:3]] == [None, None, None]
    assert "There is nothing of yours here." in html(course) and "logits" not in html(course)


def test_answers_with_points_and_comments_of_a_person(course):
    grade_by_hand(course, "why_mask", 1.5, "Say more.\n")
    grade_by_hand(course, "diagnoses", comment="Look at D again.")
    grade_by_hand(course, "masked_ce_loss", 4.0)
    made = page(course)
    answered, open_ = made.answers
    assert (answered.question, answered.text, answered.comment) == (
        "What of why_mask?",
        "Because.",
        "Say more.",
    )
    assert (answered.score, answered.of, answered.waits) == (1.5, 2.0, False)
    assert (open_.text, open_.waits, open_.comment) == (None, True, "")
    assert made.comments == {"diagnoses": "Look at D again."}
    assert [part.by_hand for part in made.exercises] == [False, True, False, False]
    assert made.waiting == 1 and made.score == pytest.approx(5 + 4 + 0.42 + 1.5)
    text = html(course)
    assert "These points were given by a person; the tests gave 2.5." in text
    assert "1 answer still to be read by a person" in text


@pytest.mark.parametrize(("penalty", "left"), [(3.0, 4.92), (100.0, 0.0)])
def test_the_page_and_the_table_take_the_same_penalty_off(course, penalty, left):
    with Gradebook(course.gradebook_url) as gradebook:
        gradebook.find_submission_notebook(NAME, NAME, "ann").late_submission_penalty = penalty
        gradebook.db.commit()
    made = page(course)
    assert (made.score, made.total, made.penalty) == (left, (left, 24.0), penalty)
    with open(export(course.root), encoding="utf-8-sig", newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["student"] == "ann")
    assert (float(row["total"]), float(row["late_penalty"])) == (left, penalty)


def test_everything_that_somebody_wrote_is_text(course):
    hand_in(course, "ann", {"why_mask": f"{SCRIPT} [x](javascript:alert(1)) <img src=x onerror=alert(1)>"})
    grade_by_hand(course, "why_mask", 1, SCRIPT)
    text = html(course)
    assert "<script" not in text and "<img" not in text and "javascript:alert" in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4  # remark, message, answer, comment
    assert set(re.findall(r'href="([^"]*)"', text)) <= {f"#part-{i}" for i in range(1, 5)} | {
        "#answer-1",
        "#answer-2",
    }
    assert "default-src 'none'" in text and "http" not in text.replace("http-equiv", "")


def test_text_that_grading_has_made_harmless_reads_as_it_was_written(course):
    hand_in(course, "ann", {"why_mask": "```\n<\N{ZERO WIDTH SPACE}b> a < b\n```", "why_eos": "` ``` `"})
    assert [answer.text for answer in page(course).answers] == ["<b> a < b", "` ``` `"]


def test_nothing_hidden_and_nobody_else_is_on_the_page(course):
    text = html(course)
    for secret in (SECRET, "HIDDEN", "bob", "Traceback (most", str(course.root), "/opt/"):
        assert secret not in text


def test_a_very_long_source_is_cut(course):
    text = SOURCE + "    # more" + "x" * LONGEST + "END"
    write(course.autograded(NAME, "ann") / "rlhf_exercises" / "sft.py", text)
    source = next(part.source for part in page(course).exercises if part.title.endswith("masked_ce_loss"))
    assert "it is longer" in source and "END" not in source


@pytest.mark.parametrize("source", ["", "def masked_ce_loss(:\n    broken\n", "\0", "(" * 10_000])
def test_a_module_that_does_not_parse_has_a_page(course, source):
    write(course.autograded(NAME, "ann") / "rlhf_exercises" / "sft.py", source)
    assert "Logits and labels are not lined up." in html(course)


def test_nbgraders_own_command_makes_the_same_page_and_copies_nothing(course):
    ours = html(course)
    result = nbgrader_api(course).generate_feedback(NAME)
    assert result["success"], result
    for student in ("ann", "bob"):
        folder = course.feedback(NAME, student)
        assert [path.name for path in folder.iterdir()] == [f"{NAME}.html"]
    assert (course.feedback(NAME, "ann") / f"{NAME}.html").read_text(encoding="utf-8") == ours


def test_who_has_no_page_is_said_and_the_others_have_theirs(course, capsys):
    course.verdict(NAME, "bob").write_text("{}")
    run = feedback(course.root)
    assert run.status == 1 and list(run.written) == [(NAME, "ann")]
    assert f"no feedback for bob in {NAME}: " in capsys.readouterr().out
    with pytest.raises(LabError, match="^carol has no verdict$"):
        feedback(course.root, students=["carol"])
    with pytest.raises(LabError, match="^carol, dan have no verdict$"):
        feedback(course.root, students=["dan", "ann", "carol"])
    with pytest.raises(LabError, match="there is no assignment '02'"):
        feedback(course.root, "02")


def test_a_submission_that_the_gradebook_does_not_know(course):
    with Gradebook(course.gradebook_url) as gradebook:
        gradebook.remove_submission(NAME, "ann")
    run = feedback(course.root, NAME, ["ann"])
    assert "the gradebook does not know 01_sft of ann" in run.failed[NAME, "ann"]
