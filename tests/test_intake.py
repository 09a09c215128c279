"""Submissions that misbehave: each is taken in, what counts in it counts, and what was odd is said in a sentence."""

import encodings
import io
import json
import os
import pkgutil
import re
import shutil
import socket
import tokenize
import zipfile
from datetime import datetime
from pathlib import Path

import nbformat
import pytest

from grader_tests.course.intake import NOTHING, handed_in, stage, take_in, time_handed_in
from rlhf_lab.settings import MODULES
from tests.small_course import hand_in, make_course

PPO, END = "03_ppo", "04_end_to_end"
OWN = "# my own line"


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    return make_course(tmp_path_factory.mktemp("course") / "rlhf", PPO, END)


@pytest.fixture
def course(released):
    yield released
    shutil.rmtree(released.root / "submitted", ignore_errors=True)
    shutil.rmtree(released.scratch, ignore_errors=True)


@pytest.fixture
def folder(course):
    """A plain submission of 03_ppo by ada."""
    return hand_in(course, PPO, "ada", OWN)


def taken(course, assignment=PPO):
    return take_in(course, assignment, "ada")


def has_own_code(submission) -> bool:
    return OWN.encode() in submission.files["ppo.py"]


def is_stub(submission, course) -> bool:
    return submission.files["ppo.py"] == (course.package(PPO) / "ppo.py").read_bytes()


def change_notebook(path: Path, change) -> None:
    notebook = nbformat.read(path, as_version=4)
    change(notebook)
    nbformat.write(notebook, path)


def cell(notebook, grade_id):
    return next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


def test_a_plain_submission_has_no_remarks(course, folder):
    submission = taken(course)
    assert submission.remarks == () and submission.missing == {} and has_own_code(submission)
    assert set(submission.files) == {"__init__.py", *(f"{name}.py" for name in MODULES)}
    assert list(submission.notebooks) == [PPO]


# What is done to a submission, what the remark says, and whether the student's ppo.py still counts.


def link_module(folder):
    secret = folder.parent.parent.parent / "source" / PPO / "rlhf_exercises" / "ppo.py"
    (folder / "rlhf_exercises" / "ppo.py").unlink()
    (folder / "rlhf_exercises" / "ppo.py").symlink_to(secret)


def link_package(folder):
    shutil.rmtree(folder / "rlhf_exercises")
    (folder / "rlhf_exercises").symlink_to(folder.parent.parent.parent / "source" / PPO / "rlhf_exercises")


def hard_link(folder):
    (folder / "rlhf_exercises" / "ppo.py").unlink()
    os.link(
        folder.parent.parent.parent / "source" / PPO / "rlhf_exercises" / "ppo.py",
        folder / "rlhf_exercises" / "ppo.py",
    )


def pipe(folder):
    (folder / "rlhf_exercises" / "ppo.py").unlink()
    os.mkfifo(folder / "rlhf_exercises" / "ppo.py")


def named_socket(folder):
    (folder / "rlhf_exercises" / "ppo.py").unlink()
    here = os.getcwd()
    os.chdir(folder / "rlhf_exercises")  # the name of a socket has little room
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind("ppo.py")
    finally:
        os.chdir(here)


def module(content: bytes):
    return lambda folder: (folder / "rlhf_exercises" / "ppo.py").write_bytes(content)


def rename_module(name):
    return lambda folder: (folder / "rlhf_exercises" / "ppo.py").rename(folder / "rlhf_exercises" / name)


def rename_notebook(name):
    return lambda folder: (folder / f"{PPO}.ipynb").rename(folder / name)


def notebook(content: bytes):
    return lambda folder: (folder / f"{PPO}.ipynb").write_bytes(content)


def deeper(folder):
    (folder / PPO).mkdir()
    for name in (f"{PPO}.ipynb", "rlhf_exercises"):
        shutil.move(folder / name, folder / PPO / name)


def as_in_the_checkout(folder):
    (folder / "notebooks").mkdir()
    shutil.move(folder / f"{PPO}.ipynb", folder / "notebooks")


def loose(folder):
    for path in (folder / "rlhf_exercises").iterdir():
        shutil.move(path, folder)
    (folder / "rlhf_exercises").rmdir()


def only_an_archive(folder):
    shutil.rmtree(folder)
    folder.mkdir()
    with zipfile.ZipFile(folder / "work.zip", "w") as archive:
        archive.writestr("../../../rlhf_exercises/ppo.py", OWN)


def write(name, content=b"x = 1\n"):
    def do(folder):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return do


def in_another_encoding(encoding):
    def do(folder):
        path = folder / "rlhf_exercises" / "ppo.py"
        path.write_bytes((path.read_text(encoding="utf-8") + "# Löwe\n").encode(encoding, errors="replace"))

    return do


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def many(folder):
    for number in range(2100):
        (folder / "rlhf_exercises" / f"z{number}.txt").touch()


KEPT, LOST = True, False
TABLE = {
    "module is a link": (link_module, r"ppo\.py is a link: it was not followed", LOST),
    "package is a link": (link_package, r"rlhf_exercises is a link: it was not followed", LOST),
    "module is a hard link": (hard_link, r"is a hard link, a second name of some other file", LOST),
    "module is a pipe": (pipe, r"is no regular file: it was not opened", LOST),
    "module is a socket": (named_socket, r"is no regular file: it was not opened", LOST),
    "module is too large": (module(b"#" * (2**20 + 1)), r"ppo\.py is larger than the 1 MB", LOST),
    "module is binary": (module(b"\x7fELF\0\0"), r"ppo\.py is binary, no text", LOST),
    "module is a zip": (module(b"PK\x03\x04..."), r"ppo\.py is a zip file under another name", LOST),
    "module is a notebook": (module(b'{"cells": []}'), r"ppo\.py is a notebook, no Python module", LOST),
    "module is a web page": (module(b"<!DOCTYPE html><html>"), r"ppo\.py is a web page", LOST),
    "module is empty": (module(b" \n"), r"ppo\.py is empty", LOST),
    "module is deleted": (lambda f: (f / "rlhf_exercises" / "ppo.py").unlink(), None, LOST),
    "module was downloaded twice": (
        rename_module("ppo (1).py"),
        r"ppo \(1\)\.py was taken for ppo\.py",
        KEPT,
    ),
    "module has capitals": (rename_module("PPO.py"), r"PPO\.py was taken for ppo\.py", KEPT),
    "a copy beside the module": (write("rlhf_exercises/ppo copy.py"), r"is not used: ppo\.py is there", KEPT),
    "merge conflict": (
        lambda f: write("rlhf_exercises/ppo.py", b"<<<<<<< HEAD\n" + OWN.encode() + b"\n>>>>>>> theirs\n")(f),
        r"ppo\.py holds the marks of a merge conflict",
        KEPT,
    ),
    "UTF-16": (in_another_encoding("utf-16"), r"was saved as UTF-16", KEPT),
    "Windows code page": (in_another_encoding("cp1252"), r"is not UTF-8", KEPT),
    "notebook was renamed": (
        rename_notebook("03_ppo (1).ipynb"),
        r"was recognised as 03_ppo by its cells",
        KEPT,
    ),
    "notebook has my name": (rename_notebook("ada.ipynb"), r"ada\.ipynb was recognised as 03_ppo", KEPT),
    "notebook is missing": (
        lambda f: (f / f"{PPO}.ipynb").unlink(),
        r"03_ppo was not found: the released",
        KEPT,
    ),
    "notebook is no JSON": (notebook(b'{"cells": [}'), r"its JSON is damaged", KEPT),
    "notebook is a list": (notebook(b"[[]]"), r"no notebook that can be read", KEPT),
    "notebook is deep": (notebook(b"[" * 100_000), r"nested too deeply", KEPT),
    "notebook is a zip": (notebook(b"PK\x03\x04"), r"is a zip file under another name", KEPT),
    "notebook is a web page": (notebook(b"\n<html>log in</html>"), r"is a web page", KEPT),
    "notebook has a conflict": (
        notebook(b"{\n<<<<<<< HEAD\n}"),
        r"holds the marks of a merge conflict",
        KEPT,
    ),
    "extra notebook": (
        write("draft.ipynb", b'{"cells": []}'),
        r"The notebook draft\.ipynb is not used",
        KEPT,
    ),
    "one folder deeper": (deeper, r"The package was found in 03_ppo/rlhf_exercises/", KEPT),
    "as in the checkout": (as_in_the_checkout, None, KEPT),
    "no package folder": (loose, r"modules that lay loose were taken", KEPT),
    "two packages": (write("old/rlhf_exercises/ppo.py"), r"old/rlhf_exercises/ is not used", KEPT),
    "only an archive": (only_an_archive, r"work\.zip is an archive: it was not unpacked", LOST),
    "empty folder": (empty, r"Nothing was handed in", LOST),
    "very many files": (many, r"more than 2000 files", None),
    "traps outside": (write("conftest.py"), r"outside rlhf_exercises/ are not used: conftest\.py", KEPT),
    "hidden tests of one's own": (
        write("grader_tests/__init__.py"),
        r"folder grader_tests is not used",
        KEPT,
    ),
    "solved module changed": (write("rlhf_exercises/sft.py"), r"sft\.py is no part of this assignment", KEPT),
    "package file changed": (write("rlhf_exercises/__init__.py"), r"__init__\.py is no part", KEPT),
    "name for no module": (
        write("rlhf_exercises/my helper.py"),
        r"Python cannot import a module of this",
        KEPT,
    ),
    "name that is no text": (
        lambda f: write(os.fsdecode(b"rlhf_exercises/\xff\x1b[2J.py"))(f),
        r"\\udcff\\x1b\[2J",
        KEPT,
    ),
    "false time": (write("timestamp.txt", b"yesterday"), r"timestamp\.txt holds no time", KEPT),
}


@pytest.mark.parametrize("case", TABLE)
def test_whatever_comes_in_is_taken_in_and_said(course, folder, case):
    spoil, remark, code = TABLE[case]
    spoil(folder)
    before = sorted(os.listdir(folder)) if folder.exists() else None
    submission = taken(course)
    if remark is not None:
        assert [r for r in submission.remarks if re.search(remark, r)], submission.remarks
    if code is not None:
        assert has_own_code(submission) is code
    if code is LOST:
        assert is_stub(submission, course) and "ppo" in submission.missing
    assert list(submission.notebooks) == [PPO]
    nbformat.validate(nbformat.reads(submission.notebooks[PPO], as_version=4))
    json.dumps(submission.remarks).encode()  # can be written whatever the names were
    assert before == (sorted(os.listdir(folder)) if folder.exists() else None)


def test_what_editors_and_systems_do_to_text_changes_nothing(course, folder):
    plain = taken(course)
    path = folder / "rlhf_exercises" / "ppo.py"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    (folder / "__pycache__").mkdir()
    (folder / ".DS_Store").touch()
    assert taken(course) == plain


def test_what_is_too_large_together_is_not_said_to_be_too_large_alone(course, folder, monkeypatch):
    monkeypatch.setattr("grader_tests.course.intake.MAX_TOTAL", 3 << 20)
    for name in ("first", "second"):
        (folder / f"{name}.ipynb").write_bytes(b"x" * (2 << 20))
    remarks = taken(course).remarks
    assert any(remark.startswith("first.ipynb is no notebook") for remark in remarks)
    assert "second.ipynb is beyond the 3 MB that all files may have together: it was not taken." in remarks


def test_a_helper_module_of_the_students_is_kept(course, folder):
    write("rlhf_exercises/helper.py", b"y = 2\n")(folder)
    assert taken(course).files["helper.py"] == b"y = 2\n" and taken(course).remarks == ()


def test_a_whole_submission_that_is_a_link_is_not_followed(course, folder):
    other = hand_in(course, PPO, "bob", OWN)
    shutil.rmtree(folder)
    folder.symlink_to(other)
    assert is_stub(taken(course), course) and "a link" in taken(course).remarks[0]
    folder.unlink()
    folder.parent.rmdir()
    folder.parent.symlink_to(other.parent)
    assert is_stub(taken(course), course)


def test_cells_are_put_right_and_answers_stay(course, folder):
    def spoil(notebook):
        answer = cell(notebook, "why_dropout_off")
        answer.source = "Because of the ratio."
        copy = answer.copy()
        copy.id = "copy"
        cell(notebook, "compute_gae").metadata.nbgrader.points = 100
        notebook.cells.append(copy)
        notebook.cells.remove(cell(notebook, "rollout"))

    change_notebook(folder / f"{PPO}.ipynb", spoil)
    submission = taken(course)
    notebook = nbformat.reads(submission.notebooks[PPO], as_version=4)
    assert cell(notebook, "why_dropout_off").source == "Because of the ratio."
    assert cell(notebook, "compute_gae").metadata.nbgrader.points == 8
    assert cell(notebook, "rollout")
    assert len(submission.remarks) == 3


def test_answers_survive_the_loss_of_all_marks_and_ids(course, folder):
    def strip(notebook):
        cell(notebook, "why_dropout_off").source = "Because of the ratio."
        for number, c in enumerate(notebook.cells):
            c.metadata, c.id = {}, f"n{number}"

    change_notebook(folder / f"{PPO}.ipynb", strip)
    rename_notebook("final version.ipynb")(folder)
    notebook = nbformat.reads(taken(course).notebooks[PPO], as_version=4)
    assert cell(notebook, "why_dropout_off").source == "Because of the ratio."


def test_an_older_notebook_format_and_broken_cells_are_read(course, folder):
    raw = json.loads((folder / f"{PPO}.ipynb").read_text())
    raw["nbformat_minor"] = 2
    for c in raw["cells"]:
        c.pop("id", None)
    picture = {"cell_type": "markdown", "source": ["![x](", "attachment:x.png)"]}
    raw["cells"] += [
        None,
        {"cell_type": "code"},
        {"cell_type": "code", "id": ["a"], "source": 5, "outputs": [{"no": 1}], "metadata": {"tags": 3}},
        {**picture, "attachments": {"x.png": {"image/png": "aGk="}}},
        {**picture, "attachments": {"x.png": 7}},
    ]
    (folder / f"{PPO}.ipynb").write_text(json.dumps(raw))
    submission = taken(course)
    assert not [remark for remark in submission.remarks if "read" in remark]
    cells = nbformat.reads(submission.notebooks[PPO], as_version=4).cells
    assert [c.get("attachments") for c in cells if "attachment:" in c.source] == [
        {"x.png": {"image/png": "aGk="}},
        None,
    ]
    assert taken(course) == submission


def test_the_clinics_answers_are_read_without_running_them(course):
    folder = hand_in(course, END, "ada", OWN)

    def diagnose(notebook):
        cell(
            notebook, "diagnoses"
        ).source = 'diagnoses = {"A": "score lost"}\ndiagnoses["B"] = open("x").read()'

    change_notebook(folder / f"{END}.ipynb", diagnose)
    submission = taken(course, END)
    assert submission.answers == {"A": "score lost"}
    assert any("clinic" in remark for remark in submission.remarks)


def test_the_staged_copy_is_clean(course, folder):
    write("timestamp.txt", b"2026-11-29 12:00:00 UTC\n")(folder)
    write("conftest.py")(folder)
    (folder / "link").symlink_to("/etc/hostname")
    rename_notebook("03_ppo (1).ipynb")(folder)
    stage(course, taken(course))
    copy = course.clean_copy(PPO, "ada")
    assert sorted(path.name for path in copy.iterdir()) == [f"{PPO}.ipynb", "rlhf_exercises", "timestamp.txt"]
    assert not any(path.is_symlink() for path in copy.rglob("*"))


def test_the_fingerprint_holds_all_that_counts(course, folder):
    before = taken(course).fingerprint
    assert taken(course).fingerprint == before
    change_notebook(
        folder / f"{PPO}.ipynb", lambda n: cell(n, "why_dropout_off").__setitem__("source", "An answer.")
    )
    after = taken(course).fingerprint
    write("rlhf_exercises/helper.py")(folder)
    assert len({before, after, taken(course).fingerprint}) == 3


def test_what_is_no_submission_is_named(course, folder):
    (course.root / "submitted" / "notes.txt").touch()
    (course.root / "submitted" / "b[o]b").mkdir()
    (course.root / "submitted" / "ada" / "03ppo").mkdir()
    (course.root / "submitted" / ".DS_Store").touch()
    found, strays = handed_in(course)
    assert found == [(PPO, "ada")]
    assert [stray.path for stray in strays] == [
        "submitted/ada/03ppo",
        "submitted/b[o]b",
        "submitted/notes.txt",
    ]


def test_a_file_in_the_place_of_a_folder_is_told_from_a_folder_of_a_wrong_name(course):
    eve, fay = course.root / "submitted" / "eve", course.root / "submitted" / "fay"
    (eve / "ppo").mkdir(parents=True)
    fay.mkdir()
    (fay / f"{PPO}.ipynb").touch()
    wrong_name, no_folder = handed_in(course)[1]
    assert wrong_name.student == "eve" and no_folder.student == "fay"
    assert wrong_name.reason == f"no assignment has this name: rename the folder to one of {PPO}, {END}"
    assert no_folder.reason == (
        f"it is a file, and a submission is a folder: put it into a folder called {PPO} or {END}"
    )


def test_a_name_that_leaves_no_room_for_the_names_of_files_is_said(course):
    for name in ("王" * 84, "王" * 66):
        (course.root / "submitted" / name / PPO).mkdir(parents=True)
    found, (stray,) = handed_in(course)
    assert found == [(PPO, "王" * 66)] and "this name is too long" in stray.reason


ALL_ENCODINGS = sorted(module.name for module in pkgutil.iter_modules(encodings.__path__))


@pytest.mark.parametrize(
    "content", [b'x = "\\ud800 +2AA-"\n', "# Löwe\n".encode(), b"%s\n" % bytes(range(128, 256))]
)
def test_whatever_encoding_a_module_names_it_is_taken_as_utf_8(course, folder, content):
    others = ["rot13", "hex", "base64", "zlib", "bz2", "uu", "quopri", "no-such-encoding"]
    for number, encoding in enumerate(ALL_ENCODINGS + others):
        for line, head in enumerate(("# coding: ", "#!/usr/bin/python\n# -*- coding: ")):
            write(f"rlhf_exercises/helper_{number}_{line}.py", f"{head}{encoding}\n".encode() + content)(
                folder
            )
    helpers = {name: text for name, text in taken(course).files.items() if name.startswith("helper")}
    assert len(helpers) > 200
    for text in helpers.values():
        text.decode("utf-8")
        assert tokenize.detect_encoding(io.BytesIO(text).readline)[0] == "utf-8"


def test_what_looks_like_an_encoding_further_down_stays(course, folder):
    code = b"def read(path, encoding):\n    x = 'L\xf6we'\n    return open(path, encoding=encoding, errors='x')\n"
    write("rlhf_exercises/helper.py", code)(folder)
    assert taken(course).files["helper.py"].decode() == code.decode("cp1252")


@pytest.mark.parametrize("module", ["sft", "ppo"])
def test_a_folder_that_would_be_imported_in_the_place_of_a_module_is_not_used(course, folder, module):
    write(f"rlhf_exercises/{module}/__init__.py")(folder)
    submission = taken(course)
    assert set(submission.files) == {"__init__.py", *(f"{name}.py" for name in MODULES)}
    assert submission.remarks == (
        f"rlhf_exercises/{module}/__init__.py is not used: Python would import it in the place of a module.",
    )


@pytest.mark.parametrize("name", ["timestamp.txt", "handin.zip", "readme.txt", "rlhf_exercises/notes.md"])
def test_a_submission_of_which_nothing_could_be_taken_says_so(course, folder, name):
    empty(folder)
    write(name, b"2026-11-29 12:00:00 UTC")(folder)
    assert NOTHING in taken(course).remarks


def test_a_submission_without_notebook_or_without_code_is_one_all_the_same(course, folder):
    assert NOTHING not in taken(course).remarks
    (folder / f"{PPO}.ipynb").unlink()
    assert NOTHING not in taken(course).remarks
    shutil.rmtree(hand_in(course, PPO, "ada", OWN) / "rlhf_exercises")
    assert NOTHING not in taken(course).remarks


@pytest.mark.parametrize(
    ("content", "time"),
    [
        (b"2026-11-29T13:00:00+01:00\n", datetime(2026, 11, 29, 12)),
        (b"2026-11-29 12:00:00 UTC", datetime(2026, 11, 29, 12)),
        (b"", None),
        (b"\n", None),
        (b"yesterday", None),
        (b"\xff\xfe", None),
        (b"1e999", None),
        (b"0001-01-01 00:00:00", None),
        (b"9999-12-31 23:59:59", None),
        (b"2026-11-29 12:00:00" + b" " * 5000, None),
    ],
)
def test_a_time_is_the_same_for_intake_and_for_nbgrader(course, folder, content, time):
    write("timestamp.txt", content)(folder)
    assert time_handed_in(folder) == time
    assert (taken(course).timestamp is not None) == (time is not None)


def test_a_time_that_is_a_pipe_a_link_or_a_folder_is_none(course, folder):
    path = folder / "timestamp.txt"
    for make in (lambda: os.mkfifo(path), lambda: path.symlink_to("/etc/hostname"), lambda: path.mkdir()):
        make()
        assert time_handed_in(folder) is None
        path.rmdir() if path.is_dir() else path.unlink()
    assert time_handed_in(folder) is None


def test_of_very_many_outputs_the_first_are_read(course, folder):
    raw = json.loads((folder / f"{PPO}.ipynb").read_text())
    plain = next(c for c in raw["cells"] if c["cell_type"] == "code")
    plain["outputs"] = [{"output_type": "stream", "name": "stdout", "text": f"{n}\n"} for n in range(20_000)]
    (folder / f"{PPO}.ipynb").write_text(json.dumps(raw))
    read = nbformat.reads(taken(course).notebooks[PPO], as_version=4)
    (outputs,) = (c.outputs for c in read.cells if c.get("outputs"))
    assert len(outputs) == 1000 and outputs[-1].text == "999\n"
