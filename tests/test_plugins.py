"""What nbgrader does to a submission: put together, made harmless, given the examiner's verdict, and never run."""

import base64
import copy
import dataclasses
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import nbgrader
import pytest
from bs4 import BeautifulSoup
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output, new_raw_cell
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from traitlets.config import Config

from grader_tests.course.cells import restore
from grader_tests.course.defuse import as_typed, harmless_markdown, harmless_outputs
from grader_tests.course.intake import handed_in, take_in
from grader_tests.course.nbgrader_config import configure
from grader_tests.course.paths import Course
from grader_tests.course.plugins import OneSubmission
from grader_tests.course.release import release
from grader_tests.verdict import ExerciseVerdict, SubmissionVerdict
from tests.small_course import FakeExaminer

ASSIGNMENT, STUDENT, NOTEBOOK = "04_end_to_end", "alice", "04_end_to_end"
SCORES = {"train_ppo": 3.25, "clinic": 2.5, "reward_hacking": None, "negative_kl": 0.0}
ANSWER = "It **rises** while the judge falls: $r<0$."
ROOT = Path(__file__).parent.parent
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Course:
    root = tmp_path_factory.mktemp("class") / "course"
    release(Course(root), FakeExaminer(), [ASSIGNMENT])
    return Course(root)


@pytest.fixture
def submission(course):
    """The released notebook with one answer written, to be spoiled and handed in."""
    shutil.rmtree(course.submitted(ASSIGNMENT, STUDENT), ignore_errors=True)
    shutil.copytree(course.release(ASSIGNMENT), course.submitted(ASSIGNMENT, STUDENT))
    notebook = released(course)
    cell(notebook, "reward_hacking").source = ANSWER
    course.write_verdict(verdict())
    return notebook


def verdict(**changes) -> SubmissionVerdict:
    parts = {
        "train_ppo": ExerciseVerdict("train_ppo", 3.25, 4.0, ("The optimiser is made anew.", "<b>-0.75</b>")),
        "clinic": ExerciseVerdict("clinic", 2.5, 5.0, ("6 of 12 diagnoses are right.",)),
    }
    values = {"remarks": (), "confinement": "none", "exam": "", "submission": "", "seconds": 1.0, **changes}
    return SubmissionVerdict(ASSIGNMENT, STUDENT, **{"exercises": parts, **values})


def released(course: Course):
    return nbformat.read(course.release(ASSIGNMENT) / f"{NOTEBOOK}.ipynb", as_version=4)


def cell(notebook, grade_id: str):
    return next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


def autograde(course: Course, notebook=None) -> dict:
    """What nbgrader says about the submission, to which the verdict belongs."""
    if notebook is not None:
        path = course.submitted(ASSIGNMENT, STUDENT) / f"{NOTEBOOK}.ipynb"
        nbformat.write(notebook, path)
    if (verdict := course.read_verdict(ASSIGNMENT, STUDENT)) is not None:
        examined = take_in(course, ASSIGNMENT, STUDENT).fingerprint
        course.write_verdict(dataclasses.replace(verdict, submission=examined))
    return api(course).autograde(ASSIGNMENT, STUDENT)


def api(course: Course) -> NbGraderAPI:
    config = Config()
    configure(config, course.root)
    return NbGraderAPI(config=config)


def graded(course: Course):
    return nbformat.read(course.autograded(ASSIGNMENT, STUDENT) / f"{NOTEBOOK}.ipynb", as_version=4)


def scores(course: Course) -> dict:
    with Gradebook(course.gradebook_url) as gradebook:
        submission = gradebook.find_submission_notebook(NOTEBOOK, ASSIGNMENT, STUDENT)
        return {grade.name: grade.auto_score for grade in submission.grades}


# --- whatever became of the cells ---------------------------------------------------------------------


def untouched(notebook):
    pass


def checks_deleted(notebook):
    notebook.cells = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("solution", True)]


def all_marks_stripped(notebook):
    for c in notebook.cells:
        c.metadata = {}


def marks_and_ids_stripped(notebook):
    for number, c in enumerate(notebook.cells):
        c.metadata, c.id = {}, f"new-{number}"


def nothing_but_the_answers_left(notebook):
    notebook.cells = [cell(notebook, "reward_hacking"), cell(notebook, "diagnoses")]


def grade_cell_copied(notebook):
    notebook.cells.insert(3, copy.deepcopy(cell(notebook, "train_ppo")))


def answer_copied_before_it_was_written(notebook):
    blank = copy.deepcopy(cell(notebook, "reward_hacking"))
    blank.source = "YOUR ANSWER HERE"
    notebook.cells.insert(0, blank)


def answer_split(notebook):
    first = cell(notebook, "reward_hacking")
    second = copy.deepcopy(first)
    first.source, second.source = ANSWER.split(" while ")[0], "while " + ANSWER.split(" while ")[1]
    notebook.cells.insert(notebook.cells.index(first) + 1, second)


def marks_exchanged(notebook):
    for c in notebook.cells:
        if mark := c.metadata.get("nbgrader"):
            mark.update(grade=not mark["grade"], solution=not mark["solution"], locked=False)


def points_raised(notebook):
    cell(notebook, "train_ppo").metadata["nbgrader"]["points"] = 400


def unknown_cells(notebook):
    for grade_id in ("bonus", 7, None, ["x"]):
        extra = new_code_cell("1")
        extra.metadata["nbgrader"] = {"grade_id": grade_id, "grade": True, "points": 100, "solution": False}
        notebook.cells.append(extra)
    notebook.cells.append(new_code_cell("1", metadata={"nbgrader": "broken"}))


def old_schema(notebook):
    for c in notebook.cells:
        if mark := c.metadata.get("nbgrader"):
            mark["schema_version"] = 1


def retyped(notebook):
    for grade_id in ("train_ppo", "reward_hacking"):
        old = cell(notebook, grade_id)
        make = new_markdown_cell if old.cell_type == "code" else new_code_cell
        notebook.cells[notebook.cells.index(old)] = make(old.source, metadata=old.metadata)


def locked_cell_edited(notebook):
    cell(notebook, "train_ppo").source = "4.0"


def results_forged(notebook):
    for grade_id in ("train_ppo", "clinic"):
        result = new_output("execute_result", data={"text/plain": "5.0"}, execution_count=1)
        cell(notebook, grade_id).outputs = [result]


def cells_moved(notebook):
    notebook.cells.reverse()


SPOILERS = [
    untouched, checks_deleted, all_marks_stripped, marks_and_ids_stripped, nothing_but_the_answers_left,
    grade_cell_copied, answer_copied_before_it_was_written, answer_split, marks_exchanged, points_raised, unknown_cells,
    old_schema, retyped, locked_cell_edited, results_forged, cells_moved,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
def test_the_scores_are_the_verdict_whatever_became_of_the_cells(course, submission, spoil):
    spoil(submission)
    result = autograde(course, submission)
    assert result["success"], result
    assert scores(course) == SCORES
    notebook = graded(course)
    answer = cell(notebook, "reward_hacking")
    assert answer.source.replace("\n\n", " ").replace("\N{ZERO WIDTH SPACE}", "") == ANSWER
    assert answer.cell_type == "markdown"
    assert cell(notebook, "train_ppo").source == 'lab.check("train_ppo")'


@pytest.mark.parametrize("spoil", SPOILERS[1:], ids=lambda spoil: spoil.__name__)
def test_what_became_of_the_cells_is_said_where_it_matters(course, submission, spoil):
    spoil(submission)
    _, remarks = restore(submission, released(course))
    assert bool(remarks) == (spoil not in (results_forged, cells_moved, old_schema))
    assert all(remark.endswith(".") for remark in remarks)


def test_the_students_own_cells_stay_in_their_places(course, submission):
    place = submission.cells.index(cell(submission, "reward_hacking"))
    submission.cells.insert(place + 1, new_code_cell("1 + 1", outputs=[new_output("stream", text="two")]))
    first = next(c for c in submission.cells if c.cell_type == "code" and "nbgrader" not in c.metadata)
    first.source = "my_experiment()"
    restored, remarks = restore(submission, released(course))
    assert remarks == []
    extra = restored.cells[restored.cells.index(cell(restored, "reward_hacking")) + 1]
    assert (extra.source, extra.outputs[0].text, dict(extra.metadata)) == ("1 + 1", "two", {})
    assert len(restored.cells) == len(submission.cells)
    assert "my_experiment()" in [c.source for c in restored.cells]


def test_a_split_cell_of_code_is_as_it_was(course, submission):
    first = cell(submission, "diagnoses")
    whole = 'diagnoses = {}\nwith lab.todo():\n    diagnoses["A"] = "score lost"\n    diagnoses["B"] = "dropout on"'
    second = copy.deepcopy(first)
    first.source, second.source = "\n".join(whole.split("\n")[:2]), "\n".join(whole.split("\n")[2:])
    submission.cells.insert(submission.cells.index(first) + 1, second)
    restored, remarks = restore(submission, released(course))
    assert cell(restored, "diagnoses").source == whole
    assert any("2 times" in remark for remark in remarks)


# --- the verdict --------------------------------------------------------------------------------------


def test_the_verdict_is_shown_in_the_cell(course, submission):
    course.write_verdict(verdict(remarks=("The notebook was renamed.",)))
    autograde(course, submission)
    notebook = graded(course)
    stream, result = cell(notebook, "train_ppo").outputs
    assert stream.text == "3.25 of 4 points\nThe optimiser is made anew.\n<b>-0.75</b>\n"
    assert result.data == {"text/plain": "3.25"}
    assert "The notebook was renamed." in notebook.cells[0].source


@pytest.mark.parametrize(
    ("score", "kept"), [(1e9, 4.0), (-1.0, 0.0), (float("nan"), 0.0), (float("inf"), 0.0), (1e-9, 1e-9)]
)
def test_a_score_is_a_number_from_0_to_the_points(course, submission, score, kept):
    parts = {**verdict().exercises, "train_ppo": ExerciseVerdict("train_ppo", score, 4.0)}
    course.write_verdict(verdict(exercises=parts))
    assert autograde(course, submission)["success"]
    assert scores(course)["train_ppo"] == kept


def test_without_a_verdict_nothing_is_graded(course, submission):
    course.verdict(ASSIGNMENT, STUDENT).unlink()
    result = autograde(course, submission)
    assert not result["success"]
    assert "alice: there is no verdict yet; run python -m grader_tests grade" in result["log"]
    assert not course.autograded(ASSIGNMENT, STUDENT).exists()


def test_a_verdict_on_an_earlier_submission_is_none(course, submission):
    autograde(course, submission)
    before = scores(course)
    module = course.submitted(ASSIGNMENT, STUDENT) / "rlhf_exercises" / "ppo.py"
    module.write_bytes(module.read_bytes() + b"# better now\n")
    result = api(course).autograde(ASSIGNMENT, STUDENT)
    assert not result["success"]
    assert "alice: what lies in submitted/ is not what the verdict is about; run python" in result["log"]
    assert scores(course) == before


def test_a_verdict_on_other_points_is_none(course, submission):
    parts = {**verdict().exercises, "train_ppo": ExerciseVerdict("train_ppo", 4.0, 10.0)}
    course.write_verdict(verdict(exercises=parts))
    assert "another version of the assignment" in autograde(course, submission)["log"]


def test_the_notebook_is_not_run(course, submission, tmp_path):
    trace = tmp_path / "ran"
    submission.cells.insert(0, new_code_cell(f"open({str(trace)!r}, 'w')"))
    assert autograde(course, submission)["success"]
    assert not trace.exists()


def test_only_the_students_own_module_is_the_students(course, submission):
    package = course.submitted(ASSIGNMENT, STUDENT) / "rlhf_exercises"
    for name in ("ppo.py", "sft.py", "helpers.py"):
        (package / name).write_text("# mine")
    autograde(course, submission)
    mine = {
        path.name
        for path in (course.autograded(ASSIGNMENT, STUDENT) / "rlhf_exercises").iterdir()
        if path.read_text(encoding="utf-8") == "# mine"
    }
    assert mine == {"ppo.py", "helpers.py"}


@pytest.mark.parametrize("what", ["file", "folder", "notebook", "device"])
def test_a_link_is_refused_before_anything_is_copied(course, submission, tmp_path, what):
    (tmp_path / "secret.py").write_text("secret")
    folder = course.submitted(ASSIGNMENT, STUDENT)
    nbformat.write(submission, folder / f"{NOTEBOOK}.ipynb")
    if what == "device":
        os.mkfifo(folder / "rlhf_exercises" / "pipe.py")
    elif what == "notebook":
        (folder / f"{NOTEBOOK}.ipynb").rename(tmp_path / "n.ipynb")
        (folder / f"{NOTEBOOK}.ipynb").symlink_to(tmp_path / "n.ipynb")
    else:
        target = tmp_path if what == "folder" else tmp_path / "secret.py"
        (folder / "rlhf_exercises" / f"link-{what}").symlink_to(target)
    shutil.rmtree(course.autograded(ASSIGNMENT, STUDENT), ignore_errors=True)
    result = autograde(course)
    assert not result["success"]
    assert "is a link or a device" in result["error"]
    assert not course.autograded(ASSIGNMENT, STUDENT).exists()


def test_a_name_with_markup_is_refused(course, submission):
    student = "<img src=x onerror=window.pwned=1>"
    shutil.copytree(course.submitted(ASSIGNMENT, STUDENT), course.submitted(ASSIGNMENT, student))
    result = api(course).autograde(ASSIGNMENT, student)
    assert "is no name for a student" in result["error"]
    assert not course.autograded(ASSIGNMENT, student).exists()
    shutil.rmtree(course.submitted(ASSIGNMENT, student).parent)


def test_files_that_a_browser_would_run_are_not_copied(course, submission):
    for name in ("evil.html", "evil.svg", "evil.xhtml", "note.txt"):
        (course.submitted(ASSIGNMENT, STUDENT) / name).write_text("<script>pwned()</script>")
    autograde(course, submission)
    copied = {path.name for path in course.autograded(ASSIGNMENT, STUDENT).iterdir()}
    assert copied == {f"{NOTEBOOK}.ipynb", "rlhf_exercises", "note.txt"}


# --- what a student writes is text --------------------------------------------------------------------

LIVE = [
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "<svg onload=window.pwned=1></svg>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "<a href='javascript:window.pwned=1'>x</a>",
    "[click](javascript:window.pwned=1)",
    "[click](JaVaScRiPt&colon;window.pwned=1)",
    "[click][ref]\n\n[ref]: javascript:window.pwned=1",
    "![x](javascript:window.pwned=1)",
    "[click](data:text/html;base64,PHNjcmlwdD4=)",
    "[click](evil.html)",
    "![x](https://example.org/spy.png)",
    "![x](attachment:nowhere.png)",
    "![x](attachment:evil.png)",
    "```mermaid\n<img src=x onerror=window.pwned=1>\n```",
    "# <img src=x onerror=window.pwned=1>",
    "| <img src=x onerror=window.pwned=1> |\n|---|\n| x |",
    "<!-- --><script>window.pwned=1</script>",
    "<?php <script>window.pwned=1</script>",
    "&#60;script>window.pwned=1&#60;/script>",
    "`` ` ``<script>window.pwned=1</script>",
    "```\n```\n<script>window.pwned=1</script>",
    "$$\\href{javascript:window.pwned=1}{x}$$",
    "$<img src=x onerror=window.pwned=1>$",
    "<style>*{display:none}</style>",
    "<" * 500 + "script>window.pwned=1</script>",
]  # fmt: skip
EVIL_DATA = {
    "text/html": LIVE[0],
    "image/svg+xml": "<svg onload=window.pwned=1 xmlns='http://www.w3.org/2000/svg'></svg>",
    "application/javascript": "window.pwned=1",
    "text/latex": "$$<img src=x onerror=window.pwned=1>$$",
    "text/markdown": LIVE[5],
    "application/vnd.jupyter.widget-view+json": {"model_id": "x"},
    "text/vnd.mermaid": LIVE[1],
    "image/png": '"><script>window.pwned=1</script>',
}


def test_text_stays_readable():
    plain = "# A\n\nWhere $r < 0$ and `a<b`, see [paper](https://arxiv.org/abs/1) <EOS>.\n\n| a |\n|:-:|\n| 1 |\n\n- [x] b"
    assert harmless_markdown(plain).replace("\N{ZERO WIDTH SPACE}", "") == plain
    assert harmless_markdown("![plot](https://x.org/p.png)") == "[plot](https://x.org/p.png)"
    pasted = {"p.png": {"image/png": PNG}}
    assert harmless_markdown("see ![plot](attachment:p.png)", pasted) == "see ![plot](attachment:p.png)"
    assert harmless_markdown("see ![plot](attachment:q.png)", pasted) == as_typed(
        "see ![plot](attachment:q.png)"
    )


@pytest.mark.parametrize("length", [10**3, 10**5])
@pytest.mark.parametrize("piece", ["[a](", "> ", "*a ", "`", "$", "- ", "\\begin{a}", "<", "![", "|"])
def test_no_text_holds_the_grading_up(piece, length):
    assert len(harmless_markdown(piece * length)) < 100_000


def test_outputs_are_text_and_pictures_of_limited_size():
    outputs = [
        new_output("stream", text="x" * 10**7),
        new_output(
            "display_data",
            data={"image/png": PNG, "text/html": LIVE[0]},
            metadata={"image/png": {"alt": "x"}},
        ),
        new_output("display_data", data={"image/png": PNG[:20] + "A" * 10**7}),
        new_output("error", ename="E", evalue="e", traceback=["\x1b[31mline\x1b[0m"]),
        *(new_output("display_data", data={kind: data}) for kind, data in EVIL_DATA.items()),
    ]
    kept = harmless_outputs(outputs)
    assert [o.output_type for o in kept] == ["stream", "display_data"]
    assert len(kept[0].text) < 21_000
    assert kept[1].data == {"image/png": PNG}
    assert kept[1].metadata == {}
    assert harmless_outputs(outputs[3:])[0].text == "\x1b[31mline\x1b[0m\n"


@pytest.fixture
def pages(course, submission):
    """The formgrader's page and the feedback of a harmless submission, and of one full of payloads."""

    def make() -> list[str]:
        assert autograde(course, submission)["success"]
        config = Config()  # not the course's: the notebook itself is harmless, whoever shows it
        config.HTMLExporter.template_name = "formgrade"
        server = Path(nbgrader.__file__).parent / "server_extensions" / "formgrader"
        config.HTMLExporter.extra_template_basedirs = [str(server / "templates")]
        path = course.autograded(ASSIGNMENT, STUDENT) / f"{NOTEBOOK}.ipynb"
        resources = {"base_url": "", "index": 0, "total": 1}
        formgrader, _ = HTMLExporter(config=config).from_filename(str(path), resources=resources)
        assert api(course).generate_feedback(ASSIGNMENT, STUDENT)["success"]
        feedback = course.feedback(ASSIGNMENT, STUDENT) / f"{NOTEBOOK}.html"
        return [formgrader, feedback.read_text(encoding="utf-8")]

    harmless = make()
    evil = {"evil.png": {"image/png": '"><script>window.pwned=1</script>', "text/html": LIVE[0]}}
    for payload in LIVE:
        submission.cells.append(new_markdown_cell(payload, attachments=evil))
        submission.cells.append(new_raw_cell(payload, metadata={"raw_mimetype": "text/html"}))
        submission.cells.append(new_code_cell(payload, outputs=[new_output("stream", text=payload)]))
    cell(submission, "reward_hacking").source = "\n\n".join(LIVE)
    cell(submission, "reward_hacking").attachments = evil
    for kind, data in EVIL_DATA.items():
        output = new_output(
            "display_data", data={kind: data}, metadata={kind: {"isolated": True, "width": LIVE[0]}}
        )
        submission.cells.append(new_code_cell("x", outputs=[output], metadata={"tags": [f'"{LIVE[0]}']}))
    for c in submission.cells:
        c.metadata["name"] = c.metadata["language"] = LIVE[0]
    submission.cells[-1].id = "onload-x"
    submission.metadata = {
        "title": f"</title>{LIVE[0]}",
        "widgets": {"application/vnd.jupyter.widget-state+json": {"x": LIVE[0]}},
        "kernelspec": {"name": LIVE[0], "display_name": LIVE[0], "language": LIVE[0]},
        "language_info": {"name": LIVE[0], "pygments_lexer": LIVE[0]},
    }
    course.write_verdict(verdict(remarks=tuple(LIVE)))
    return harmless, make()


def test_nothing_a_student_wrote_is_live_on_a_page(pages):
    for harmless, evil in zip(*pages, strict=True):
        assert "window.pwned" in evil  # it is there, as text
        before, after = (BeautifulSoup(page, "html.parser") for page in (harmless, evil))
        for tag in ("script", "style", "iframe", "object", "embed", "form", "svg", "link", "meta", "base"):
            assert len(after.find_all(tag)) == len(before.find_all(tag)), tag
        handlers = [
            sum(name.startswith("on") for t in page.find_all(True) for name in t.attrs)
            for page in (before, after)
        ]
        assert handlers[0] == handlers[1]
        addresses = {t.get(name) for t in after.find_all(True) for name in ("href", "src")}
        addresses -= {t.get(name) for t in before.find_all(True) for name in ("href", "src")}
        assert all(address.startswith(("#", "https://example.org/")) for address in addresses), addresses


def test_nothing_a_student_wrote_runs_in_a_browser(pages, tmp_path):
    from authoring.browser import chromium

    playwright = pytest.importorskip("playwright.sync_api")
    if chromium() is None:
        pytest.skip("no chromium")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page()
        page.route("http*://**", lambda route: route.abort())
        for number, html in enumerate(pages[1]):
            path = tmp_path / f"{number}.html"
            path.write_text(html, encoding="utf-8")
            page.goto(path.as_uri())
            page.wait_for_timeout(300)
            assert page.evaluate("window.pwned") is None
            for link in page.get_by_text("click").all()[:40]:
                if link.evaluate("e => e.tagName") == "A":
                    link.click(no_wait_after=True)
            assert page.evaluate("window.pwned") is None
        browser.close()


# --- when it was handed in ----------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"yesterday", b"\xff", b"0001-01-01 00:00:00"])
def test_a_time_that_is_none_leaves_formgraders_list_and_autograding(course, submission, content):
    other = course.submitted(ASSIGNMENT, "bob")
    shutil.copytree(course.submitted(ASSIGNMENT, STUDENT), other, dirs_exist_ok=True)
    try:
        (course.submitted(ASSIGNMENT, STUDENT) / "timestamp.txt").write_bytes(content)
        (other / "timestamp.txt").write_text("2026-11-29 12:00:00 UTC")
        assert autograde(course, submission)["success"]
        listed = {each["student"]: each for each in api(course).get_submissions(ASSIGNMENT)}
        assert listed[STUDENT]["autograded"] and listed[STUDENT]["timestamp"] is None
        assert listed["bob"]["timestamp"] == "2026-11-29T12:00:00"
    finally:
        shutil.rmtree(other)


# --- collecting ---------------------------------------------------------------------------------------


MOODLE, CANVAS = "Zoë O'Smith_48213_assignsubmission_file_", "smithzoe_12345_678901_"


@pytest.mark.parametrize(
    ("path", "student", "file"),
    [
        ("alice/04_end_to_end/04_end_to_end.ipynb", "alice", "04_end_to_end/04_end_to_end.ipynb"),
        ("alice/04_end_to_end.ipynb", "alice", "04_end_to_end.ipynb"),
        ("b.c@x.org/a/b/rlhf_exercises/ppo.py", "b.c@x.org", "a/b/rlhf_exercises/ppo.py"),
        ("Yan Li/rlhf_exercises/sub/helper.py", "Yan Li", "rlhf_exercises/sub/helper.py"),
        ("alice/hw_2026_11/ppo.py", "alice", "hw_2026_11/ppo.py"),
        (f"course-HW2-778812/{MOODLE}/04/rlhf_exercises/ppo.py", "Zoë O'Smith", "04/rlhf_exercises/ppo.py"),
        (f"course-HW2-778812/{MOODLE}/ppo.py", "Zoë O'Smith", "ppo.py"),
        (f"course-HW2-778812/{MOODLE}ppo.py", "Zoë O'Smith", "ppo.py"),
        (f"{MOODLE}/04_end_to_end.ipynb", "Zoë O'Smith", "04_end_to_end.ipynb"),
        (f"submissions/{CANVAS}04_end_to_end/rlhf_exercises/ppo.py", "smithzoe", "rlhf_exercises/ppo.py"),
        (f"submissions/{CANVAS}ppo-1.py", "smithzoe", "ppo-1.py"),
        ("smithzoe_LATE_12345_678901_work/ppo.py", "smithzoe", "ppo.py"),
        (f"course-HW2-778812/{MOODLE}/__MACOSX/04/ppo.py", None, None),
        ("course-HW2-778812/<b>_48213_assignsubmission_file_/ppo.py", None, None),
        ("alice/x/rlhf_lab/cli.py", None, None),
        ("alice/.venv/lib/rlhf_exercises/x.py", None, None),
        ("alice/.ipynb_checkpoints/04-checkpoint.ipynb", None, None),
        ("alice/__MACOSX/._04.ipynb", None, None),
        ("<img src=x onerror=pwned()>/04_end_to_end.ipynb", None, None),
        ("alice/evil.html", None, None),
    ],
)
def test_what_is_collected_from_a_learning_platform(course, path, student, file):
    config = Config()
    configure(config, course.root)
    place = f"{course.root}/.hidden/downloaded/{ASSIGNMENT}/extracted/{path}"
    found = OneSubmission(config=config).collect(place)
    assert (found and found["student_id"], found and found["file_id"]) == (student, file)


def packed(course: Course, *folders: str) -> bytes:
    """A zip of the released assignment in each of these folders."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for folder in folders:
            for path in course.release(ASSIGNMENT).rglob("*"):
                archive.write(path, f"{folder}{path.relative_to(course.release(ASSIGNMENT))}")
    return content.getvalue()


def test_nbgraders_own_command_collects_what_learning_platforms_pack(course, tmp_path):
    shutil.copytree(course.root, tmp_path / "course")
    course = Course(tmp_path / "course")
    shutil.rmtree(course.root / "submitted", ignore_errors=True)
    archive = course.root / "downloaded" / ASSIGNMENT / "archive"
    archive.mkdir(parents=True)
    work = packed(course, f"{ASSIGNMENT}/")
    (archive / "ann.zip").write_bytes(work)
    (archive / "Yan Li.zip").write_bytes(packed(course, "", "old/"))
    (archive / "all.zip").write_bytes(packed(course, "eve/", "fay/"))
    with zipfile.ZipFile(archive / "course-HW4-778812.zip", "w") as moodle:
        moodle.writestr(f"{MOODLE}/{ASSIGNMENT}.zip", work)
        moodle.writestr("Bo Ek_48214_assignsubmission_file_/ppo.py", "x = 1\n")
    with zipfile.ZipFile(archive / "submissions.zip", "w") as canvas:
        canvas.writestr(f"{CANVAS}{ASSIGNMENT}.zip", work)
    script = "from nbgrader.apps.nbgraderapp import main; main()"
    told = subprocess.run(
        [sys.executable, "-c", script, "zip_collect", ASSIGNMENT],
        cwd=course.root, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert re.search(r"all/ holds several submissions, and does not say whose", told.stderr)
    found, strays = handed_in(course)
    assert {student for _, student in found} == {"ann", "Yan Li", "Zoë O'Smith", "Bo Ek", "smithzoe"}
    assert strays == []
    for student in ("ann", "Yan Li", "Zoë O'Smith", "smithzoe"):
        assert take_in(course, ASSIGNMENT, student).missing == {}
    assert take_in(course, ASSIGNMENT, "Bo Ek").files["ppo.py"] == b"x = 1\n"
