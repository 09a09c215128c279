"""The doctor: whatever is wrong with a folder, it is a line that says what to do, and no traceback."""

import json
import os
import shutil
from pathlib import Path

import nbformat
import psutil
import pytest

from authoring.paths import NOTEBOOKS, SOLUTIONS, STUBS
from rlhf_lab.cli import main
from rlhf_lab.clinic.answers import read_answers
from rlhf_lab.course import exercises
from rlhf_lab.doctor import child, closing, examine, handin, trial
from rlhf_lab.doctor.notebook import examine_notebook
from rlhf_lab.doctor.package import examine_package
from rlhf_lab.errors import LabError


@pytest.fixture
def folder(tmp_path):
    """The assignment 01_sft, with the notebook as it is released and the package solved."""
    folder = tmp_path / "01_sft"
    shutil.copytree(
        SOLUTIONS, folder / "rlhf_exercises", ignore=shutil.ignore_patterns("__pycache__", "notebooks")
    )
    shutil.copy(NOTEBOOKS / "01_sft.ipynb", folder)
    return folder


@pytest.fixture
def untried(monkeypatch):
    """For what is found without running the student's code."""
    monkeypatch.setattr("rlhf_lab.doctor.try_out", lambda package, names: ())


def found(findings, status: str) -> str:
    """The places and sentences of one status, in lines."""
    return "\n".join(f"{f.place}: {f.sentence}" for f in findings if f.status == status)


def change(path: Path, of_cells) -> None:
    """Rewrite a notebook with what `of_cells` makes of its list of cells."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["cells"] = of_cells(notebook["cells"])
    path.write_text(json.dumps(notebook), encoding="utf-8")


def mark(cell) -> str | None:
    return cell["metadata"].get("nbgrader", {}).get("grade_id")


def with_cell(name: str, edit):
    """For `change`: `edit` the cell that is marked `name`."""

    def of_cells(cells):
        edit(next(cell for cell in cells if mark(cell) == name))
        return cells

    return of_cells


# --- a folder in order ----------------------------------------------------------------------------


def test_a_folder_in_order_has_no_problem_and_all_points(folder, monkeypatch):
    (folder / "torch.py").write_text("1 / 0")  # in the way of the notebook, but not of the checks
    monkeypatch.chdir(folder)
    findings = list(examine(Path(".")))
    assert found(findings, "problem") == ""
    assert "torch.py: Python takes it for the package torch" in found(findings, "warning")
    assert found(findings, "warning").count("is not answered yet (2 points)") == 3
    assert "4 of 4 exercises pass: estimated 19 of 19 points, by the visible checks only" in closing(findings)


def test_the_command_prints_lines_and_its_status_says_whether_points_would_be_lost(folder, untried, capsys):
    assert main(["doctor", str(folder)]) == 0
    assert "It can be handed in; 3 warnings to read before." in capsys.readouterr().out
    (folder / "rlhf_exercises" / "sft.py").unlink()
    assert main(["doctor", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "problem  rlhf_exercises/sft.py            is missing: python -m rlhf_lab reset sft" in out
    assert "1 problem: as it is, 19 points are lost." in out


def test_the_course_folder_has_all_notebooks(tmp_path, untried):
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks")
    shutil.copytree(STUBS, tmp_path / "rlhf_exercises")
    (tmp_path / "notebooks" / "02_reward_model.ipynb").unlink()
    assert found(examine(tmp_path), "problem") == "02_reward_model.ipynb: is missing"
    assert handin.find_hand_in(tmp_path)[0].exercises == tuple(exercises())


def test_no_folder_is_one_sentence(tmp_path, capsys):
    with pytest.raises(LabError, match="does not exist"):
        list(examine(tmp_path / "nothing"))
    (tmp_path / "hand-in.zip").write_bytes(b"PK")
    assert main(["doctor", str(tmp_path / "hand-in.zip")]) == 1
    assert "is a file: unpack it" in capsys.readouterr().err


# --- notebooks ------------------------------------------------------------------------------------


def test_a_renamed_notebook_is_recognised_and_a_copy_is_not_graded(folder, untried):
    (folder / "01_sft.ipynb").rename(folder / "01_sft (1).ipynb")
    assert "01_sft (1).ipynb: has to be called 01_sft.ipynb: rename it" in found(examine(folder), "warning")
    shutil.copy(NOTEBOOKS / "01_sft.ipynb", folder)
    assert "01_sft (1).ipynb: a second copy of 01_sft.ipynb" in found(examine(folder), "warning")


def test_no_notebook_at_all(folder, untried):
    (folder / "01_sft.ipynb").rename(folder / "01_sft.ipynb.txt")
    assert found(examine(folder), "problem") == "01_sft.ipynb: is missing"
    elsewhere = folder.rename(folder.with_name("mine"))
    assert "no notebook of the course is here, only 01_sft.ipynb.txt" in found(examine(elsewhere), "problem")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is no notebook but an empty file"),
        (b"{", "is no valid notebook"),
        (b"\xff\xfe\x00", "is no valid notebook"),
        (b"[]", "is no valid notebook"),
        (b'{"cells": 3, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "is no valid notebook"),
        (b'{"cells": [3], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "is no valid notebook"),
        (b"[" * 100_000, "is no valid notebook"),
        (b'{\n<<<<<<< HEAD\n"cells"\n>>>>>>> mine', "has unresolved merge conflicts"),
        (b"<!DOCTYPE html><html>", "is no notebook but a web page"),
        (b"PK\x03\x04", "is no notebook but a zip archive"),
    ],
)
def test_what_is_no_notebook(folder, content, sentence):
    path = folder / "01_sft.ipynb"
    path.write_bytes(content)
    assert sentence in found(examine_notebook("01_sft", path), "problem")


def test_a_notebook_that_is_too_large_or_no_file(folder, monkeypatch):
    path = folder / "01_sft.ipynb"
    monkeypatch.setattr("rlhf_lab.doctor.notebook.NOTEBOOK_BYTES", 100)
    assert "clear its outputs" in found(examine_notebook("01_sft", path), "problem")
    path.rename(folder / "kept.ipynb")
    path.symlink_to(folder / "kept.ipynb")
    assert "is a link" in found(examine_notebook("01_sft", path), "problem")
    path.unlink()
    os.mkfifo(path)
    assert "is no ordinary file" in found(examine_notebook("01_sft", path), "problem")


CHECK, ANSWER = "train_sft", "why_mask_the_prompt"


@pytest.mark.parametrize(
    ("of_cells", "status", "sentence"),
    [
        (lambda cells: [c for c in cells if mark(c) != CHECK], "warning", f"cell {CHECK}: it is missing"),
        (lambda cells: [c for c in cells if mark(c) != ANSWER], "problem", f"cell {ANSWER}: it is missing"),
        (
            lambda cells: cells + [c for c in cells if mark(c) == CHECK],
            "warning",
            f"cell {CHECK}: it is there more than once",
        ),
        (
            lambda cells: cells + [c | {"source": "another"} for c in cells if mark(c) == ANSWER],
            "warning",
            f"cell {ANSWER}: it is there more than once",
        ),
        (
            with_cell(CHECK, lambda cell: cell.update(source='print("ok")')),
            "warning",
            f"cell {CHECK}: its text was changed",
        ),
        (
            with_cell(CHECK, lambda cell: cell["metadata"]["nbgrader"].update(points=100)),
            "warning",
            f"cell {CHECK}: its nbgrader marks were changed",
        ),
        (
            with_cell(
                ANSWER,
                lambda cell: cell.update(cell_type="code", outputs=[], execution_count=None, source="x = 1"),
            ),
            "warning",
            f"cell {ANSWER}: it was a markdown cell: change it back",
        ),
        (
            lambda cells: cells + [c | {"cell_type": "raw"} for c in cells if mark(c) == ANSWER],
            "warning",
            f"cell {ANSWER}: it was a markdown cell: change it back",
        ),
        (
            with_cell(CHECK, lambda cell: cell["metadata"]["nbgrader"].update(grade_id="mine")),
            "warning",
            "a cell is marked 'mine'",
        ),
        (
            with_cell(CHECK, lambda cell: cell.update(metadata={})),
            "warning",
            "1 cell lost the nbgrader marks",
        ),
        (
            with_cell(CHECK, lambda cell: cell["metadata"].update(nbgrader=[1])),
            "warning",
            "1 cell lost the nbgrader marks",
        ),
        (
            lambda cells: [{**c, "metadata": {}, "id": f"c{i}"} for i, c in enumerate(cells)],
            "problem",
            "no cell has the mark",
        ),
    ],
)
def test_changed_cells(folder, of_cells, status, sentence):
    path = folder / "01_sft.ipynb"
    change(path, of_cells)
    findings = list(examine_notebook("01_sft", path))
    assert sentence in found(findings, status)
    assert "as they were released" not in found(findings, "ok")


def test_a_mark_that_grading_does_not_go_by_may_change(folder):
    path = folder / "01_sft.ipynb"
    change(path, with_cell(CHECK, lambda cell: cell["metadata"]["nbgrader"].update(schema_version=1)))
    assert "as they were released" in found(examine_notebook("01_sft", path), "ok")


def test_answers_that_are_empty_and_that_are_written(folder):
    path = folder / "01_sft.ipynb"
    change(path, with_cell(ANSWER, lambda cell: cell.update(source=" ")))
    assert f"{ANSWER} is not answered yet (2 points)" in found(examine_notebook("01_sft", path), "warning")
    change(path, with_cell(ANSWER, lambda cell: cell.update(source="Because.")))
    findings = list(examine_notebook("01_sft", path))
    assert ANSWER not in found(findings, "warning")
    assert "all 8 marked cells are there" in found(findings, "ok")


# --- the clinic -----------------------------------------------------------------------------------


def clinic_findings(tmp_path, source: str) -> list:
    path = tmp_path / "04_end_to_end.ipynb"
    shutil.copy(NOTEBOOKS / path.name, path)
    change(path, with_cell("diagnoses", lambda cell: cell.update(source=source)))
    return list(examine_notebook("04_end_to_end", path))


def test_right_diagnoses_have_their_share_of_the_points(tmp_path):
    findings = clinic_findings(tmp_path, 'diagnoses["D"] = "dropout on"\ndiagnoses["A"] = "gremlins"')
    line = next(finding for finding in findings if finding.place == "4 clinic")
    assert (line.status, line.sentence, line.of) == ("warning", "1 of 12 cases are right", 5)
    assert line.points == pytest.approx(5 / 12)


def test_diagnoses_that_cannot_be_read_are_a_problem(tmp_path):
    findings = clinic_findings(tmp_path, 'diagnoses["D"] = dropout\n')
    assert 'line 1 of the diagnoses is not of the form diagnoses["A"] = "name"' in found(findings, "problem")


@pytest.mark.parametrize(
    ("source", "answers", "problems"),
    [
        ('%time\ndiagnoses["A"] = "a"\ndiagnoses["A"] = "b"', {"A": "b"}, 0),
        ('diagnoses = {"A": "a"}\nif True:\n    diagnoses["B"] = "b"', {"A": "a", "B": "b"}, 0),
        ('diagnoses["A"] = "a"\ndiagnoses = dict.fromkeys("AB")', {}, 0),
        ('diagnoses.update({"A": "a"})\ndiagnoses |= {"B": "b"}', {"A": "a", "B": "b"}, 0),
        ('diagnoses["A"] = "a" + str(1)\ndiagnoses["B"] = "b"', {"B": "b"}, 1),
        ('diagnoses = {"A": 3, 4: "d"}', {}, 2),
        ('diagnoses["A"] = None', {}, 0),
        ("diagnoses[", {}, 1),
        ("\0", {}, 1),
        ("(" * 10_000, {}, 1),
        ('other["A"] = "a"\nprint(open("/etc/passwd"))', {}, 0),
    ],
)
def test_answers_are_read_without_running_the_cell(source, answers, problems):
    read, sentences = read_answers(source)
    assert (read, len(sentences)) == (answers, problems)


# --- the package ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"def f(:\n", "line 1 does not parse: invalid syntax"),
        (b"x = '\xe4'\n", "does not parse"),
        (b"\0\0", "does not parse"),
        (b"(" * 10_000, "does not parse"),
        (b'{"cells": [], "nbformat": 4', "is a notebook, no Python file"),
        (b"#" * 2**20 + b"#", "which no module needs"),
    ],
)
def test_a_module_that_cannot_be_read(folder, content, sentence):
    (folder / "rlhf_exercises" / "sft.py").write_bytes(content)
    assert sentence in found(examine_package(folder / "rlhf_exercises"), "problem")


def test_links_and_pipes_in_the_package(folder):
    package = folder / "rlhf_exercises"
    (package / "sft.py").unlink()
    (package / "sft.py").symlink_to(SOLUTIONS / "sft.py")
    (package / "data").symlink_to("/")
    os.mkfifo(package / "helper.py")
    problems = found(examine_package(package), "problem")
    assert "rlhf_exercises/sft.py: is a link" in problems
    assert "rlhf_exercises/data: is a link" in problems
    assert "rlhf_exercises/helper.py: is no ordinary file" in problems


def test_a_package_that_is_a_link_or_elsewhere(folder, untried):
    package, deeper = folder / "rlhf_exercises", folder / "sub" / "rlhf_exercises"
    deeper.parent.mkdir()
    package.rename(deeper)
    assert "the folder is missing (there is sub/rlhf_exercises: name its folder)" in found(
        examine(folder), "problem"
    )
    package.symlink_to(deeper)
    assert "rlhf_exercises: is a link" in found(examine(folder), "problem")


@pytest.mark.parametrize(
    "name", ["numpy.py", "torch.py", "random.py", "grader_tests", "ipykernel_launcher.py"]
)
def test_names_that_shadow_a_package(folder, name, untried):
    path = folder / name
    if path.suffix:
        path.write_text("1 / 0")
    else:
        path.mkdir()
        (path / "__init__.py").touch()
    assert f"{name}: Python takes it for the package {path.stem}" in found(examine(folder), "warning")


# --- what runs ------------------------------------------------------------------------------------


def append(folder, text: str, module: str = "sft") -> None:
    with open(folder / "rlhf_exercises" / f"{module}.py", "a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")


@pytest.fixture
def tried(folder, monkeypatch):
    """What the process writes for steps, done in this one, which has torch loaded."""
    monkeypatch.setattr("builtins.input", input)  # put back afterwards

    def tried(*steps) -> list[dict]:
        answers = folder / "answers.jsonl"
        child.main(str(folder / "rlhf_exercises"), str(answers), *steps)
        ready, *rest = map(json.loads, answers.read_text().splitlines())
        assert ready == {} and len(rest) == len(steps)
        return rest

    return tried


@pytest.fixture
def process(monkeypatch):
    """Set the program that the process runs to one that does for each step what its name says, and loads no torch."""
    for name in ("IMPORT_SECONDS", "CHECK_SECONDS"):
        monkeypatch.setattr(trial, name, 0.5)

    def process(**steps: str) -> None:
        program = f"""
import json, os, subprocess, sys, time
with open(sys.argv[3], "a") as file:
    def say(**answer):
        file.write(json.dumps(answer) + chr(10))
        file.flush()
    say()
    for step in sys.argv[4:]:
        exec({steps!r}[step])
"""
        monkeypatch.setattr(trial, "PROGRAM", program)

    return process


WELL = 'say(complaints={}) if step == "import" else say(state="passed", sentence="Done.")'
FOR_EVER, OTHERS, DEATH = "while True: pass", "subprocess.run(['sleep', '1000'])", "os._exit(3)"


def findings_of(folder, *names) -> list:
    return list(trial.try_out(folder / "rlhf_exercises", names))


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (FOR_EVER, "takes longer than 0.5 s: does a loop never end?"),
        (DEATH, "ended Python (exit status 3): os._exit, or not enough memory?"),
    ],
)
def test_a_package_that_cannot_be_imported_ends_the_trial(folder, process, step, sentence):
    process(**{"import": step})
    assert found(findings_of(folder, "masked_ce_loss"), "problem") == (
        f"import: importing rlhf_exercises {sentence} (as it is, all points of the file that does it are lost)"
    )


def test_checks_that_hang_or_die_leave_the_others(folder, process):
    process(
        **{
            "import": WELL,
            "SFTDataset": WELL,
            "masked_ce_loss": DEATH,
            "rm_loss": FOR_EVER,
            "rollout": OTHERS,
        },
        train_sft=WELL,
    )
    findings = findings_of(folder, "SFTDataset", "masked_ce_loss", "rm_loss", "rollout", "train_sft")
    assert found(findings, "problem").splitlines() == [
        "1.3 masked_ce_loss: its check ended Python (exit status 3): os._exit, or not enough memory?",
        "2.4 rm_loss: its check takes longer than 0.5 s: does a loop never end?",
        "3.5 rollout: its check takes longer than 0.5 s: does a loop never end?",
    ]
    assert found(findings, "ok").splitlines()[1:] == ["1.2 SFTDataset: Done.", "1.4 train_sft: Done."]
    alive = [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
    assert not [p for p in alive if "1000" in p.cmdline()]


def test_a_process_that_does_not_start(folder, monkeypatch):
    monkeypatch.setattr(trial, "PROGRAM", "raise SystemExit(1)")
    assert found(findings_of(folder), "problem").startswith(
        "checks: they could not be started: the process ended"
    )


def test_a_package_that_waits_at_import(folder, tried):
    append(folder, "name = input('who are you?')")
    (answer,) = tried("import")
    assert answer["place"].startswith("rlhf_exercises/sft.py, line ")
    assert "input() waits for a person" in answer["problem"]


def test_signatures(folder, tried):
    append(folder, "del train_sft\ndef masked_ce_loss(labels, logits): pass\nSFTDataset.__len__ = None")
    append(folder, "def compute_gae(rewards, values, mask, gamma=0.99, lam=0.95): pass", "ppo")
    append(folder, "def response_mask(response_ids, eos_id, fill): pass", "ppo")
    append(folder, "def gather_logprobs(*args, **kwargs): pass", "ppo")
    append(folder, "class PolicyWithValueHead: pass", "ppo")
    append(folder, "def masked_whiten(x, mask, eps=1e-8, more=0): pass", "ppo")
    answer, *_ = tried("import", *exercises())
    assert answer["complaints"] == {
        "SFTDataset": "SFTDataset.__len__ is missing",
        "train_sft": "is not in sft.py any more: python -m rlhf_lab reset train_sft",
        "masked_ce_loss": "the parameters of masked_ce_loss were changed: they are (labels, logits), and the stub has "
        "(logits, labels)",
        "compute_gae": "the parameters of compute_gae were changed: the default of gamma is not 1.0 any more",
        "response_mask": "the parameters of response_mask were changed: fill is new and has no default",
        "PolicyWithValueHead": "PolicyWithValueHead.forward is missing",
    }


def test_stubs_and_mistakes(folder, tried):
    shutil.copy(STUBS / "reward_model.py", folder / "rlhf_exercises")
    append(folder, "def masked_ce_loss(logits, labels): return logits.sum()")
    stub, mistake, waits = tried("rm_loss", "masked_ce_loss", "train_sft")
    assert stub == {"state": "not written", "sentence": "not written yet"}
    assert mistake["state"] == "failed" and mistake["sentence"].startswith(
        "its check fails after 2 of 19. Logits"
    )
    assert waits["sentence"] == (
        "Waits for 1.3 masked_ce_loss, which it calls and which is not right yet. "
        "Grading puts right code in that one's place."
    )


def test_a_stub_is_not_written_also_where_its_check_meets_another_one_first(folder, tried):
    shutil.copy(STUBS / "ppo.py", folder / "rlhf_exercises")
    append(
        folder,
        "def ppo_step(*args, **kwargs):\n    # exercise 3.5: write ppo_step in ...\n    return {}",
        "ppo",
    )
    stub, written = tried("rollout", "ppo_step")
    assert stub == {"state": "not written", "sentence": "not written yet"}
    assert written["state"] == "waits"


def test_what_waits_for_a_wrong_exercise_is_not_counted_as_lost(folder, process):
    process(
        **{"import": WELL},
        masked_ce_loss='say(state="failed", sentence="its check fails")',
        train_sft='say(state="waits", sentence="Waits for it.")',
        SFTDataset=WELL,
    )
    said = closing(findings_of(folder, "SFTDataset", "masked_ce_loss", "train_sft"))
    assert said.startswith("1 problem may cost points. 1 of 3 exercises pass: estimated 9 of 14 points")
    assert said.endswith(
        "5 of these points are of exercises that wait for another one: grading puts right code in that one's place."
    )


LOST = "(as it is, all 19 points of its exercises are lost)"


def test_a_file_that_cannot_be_read_costs_all_its_points(folder, untried):
    append(folder, "def f(:")
    findings = list(examine(folder))
    assert f"does not parse: invalid syntax {LOST}" in found(findings, "problem")
    assert closing(findings) == "1 problem: as it is, 19 points are lost."
    shutil.copy(SOLUTIONS / "sft.py", folder / "rlhf_exercises")
    append(folder, "def f(:", "ppo")  # not asked for here
    assert closing(examine(folder)) == "1 problem may cost points."
    shutil.rmtree(folder / "rlhf_exercises")
    assert found(examine(folder), "problem") == f"rlhf_exercises: the folder is missing {LOST}"


def test_a_file_that_cannot_be_imported_costs_all_its_points(folder, process):
    process(
        **{"import": 'say(place="rlhf_exercises/sft.py, line 3, in <module>: 1 / 0", problem="it fails")'}
    )
    findings = list(examine(folder))
    assert found(findings, "problem").endswith(f"1 / 0: it fails {LOST}")
    assert closing(findings) == "1 problem: as it is, 19 points are lost."


def test_released_notebooks_are_what_the_doctor_expects():
    """The list of marked cells is generated with the notebooks; each exercise has its cell."""
    for name in handin.released_cells():
        assert not found(examine_notebook(name, NOTEBOOKS / f"{name}.ipynb"), "problem")
        nbformat.validate(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4))
