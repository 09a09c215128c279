"""check, hint, status, solution, compare and reset, from the command line and from a notebook."""

import json
import shutil
import sys
from types import ModuleType

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from authoring.paths import NOTEBOOKS, PRISTINE, SOLUTIONS, STUBS
from rlhf_lab import notebook as lab
from rlhf_lab import source_text, student_code
from rlhf_lab.checks import run
from rlhf_lab.cli import main
from rlhf_lab.course import exercises
from rlhf_lab.progress import Progress
from rlhf_lab.source_text import extent


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course folder with blank stubs and solutions; the working directory is its notebooks' folder."""
    shutil.copytree(STUBS, tmp_path / "rlhf_exercises", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(
        SOLUTIONS, tmp_path / "solutions", ignore=shutil.ignore_patterns("__pycache__", "notebooks")
    )
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setattr("sys.path", list(sys.path))
    for name in [name for name in sys.modules if name.split(".")[0] == "rlhf_exercises"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(lab, "_session", None)
    monkeypatch.setattr(lab.todo, "last", None)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "rlhf_exercises"]:
        del sys.modules[name]  # what a test has imported lies in a folder that is gone


@pytest.fixture
def assignment(course, monkeypatch):
    """The folder of the assignment 02_reward_model as students get it: its notebook at the top, and no solutions."""
    monkeypatch.chdir(course)
    (course / "notebooks").rmdir()
    for name in ("00_welcome", "02_reward_model"):
        shutil.copy(NOTEBOOKS / f"{name}.ipynb", course)
    shutil.copy(SOLUTIONS / "sft.py", course / "rlhf_exercises")
    shutil.rmtree(course / "solutions")
    return course


@pytest.fixture(scope="module", autouse=True)
def notebook_shell():
    """What a notebook displays is caught only where IPython runs."""
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def solve(course, name):
    """Copy the solution of one exercise into the student's file."""
    file = exercises()[name].file
    ours, theirs = (course / folder / file for folder in ("solutions", "rlhf_exercises"))
    text, solution = theirs.read_text(), ours.read_text()
    start, end = extent(text, name)
    theirs.write_text(text[:start] + solution[slice(*extent(solution, name))] + text[end:])


# --- check and status -----------------------------------------------------------------------------


def test_check_on_the_command_line(course, capsys):
    assert main(["check", "compute_gae"]) == 2
    assert "Not done yet: write compute_gae in rlhf_exercises/ppo.py" in capsys.readouterr().out
    solve(course, "compute_gae")
    assert main(["check", "compute_gae"]) == 0
    assert main(["check", "3.3"]) == 2
    assert "1 of 3 exercises pass" in capsys.readouterr().out


def test_check_of_an_unknown_exercise_is_one_sentence(course, capsys):
    assert main(["check", "gae"]) == 1
    assert capsys.readouterr().err.startswith("error: there is no exercise 'gae'")


def test_check_where_there_is_no_package(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["check", "compute_gae", "--code", "no_such_package"]) == 1
    assert "there is no package no_such_package here" in capsys.readouterr().err


def test_status_counts_points_and_checks_again_only_after_a_change(course, capsys, monkeypatch):
    solve(course, "compute_gae")
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "3.3  compute_gae                     8 / 8    done" in out
    assert f" 8 / {ALL_POINTS} " in out
    assert "not part of" not in out

    calls = []
    monkeypatch.setattr("rlhf_lab.progress.check", lambda *arguments: calls.append(arguments) or 1 / 0)
    assert main(["status"]) == 0
    assert calls == []
    (course / "rlhf_exercises" / "sft.py").write_text("# changed")
    with pytest.raises(ZeroDivisionError):
        main(["status"])


@pytest.mark.parametrize("content", ["", "{", "[]", '{"compute_gae": 3}', '{"compute_gae": {"state": 1}}'])
def test_a_damaged_progress_file_is_begun_anew(course, content, capsys):
    (course / "runs").mkdir()
    (course / "runs" / "progress-rlhf_exercises.json").write_text(content)
    assert main(["hint", "compute_gae"]) == 0
    assert main(["status"]) == 0
    assert f" 0 / {ALL_POINTS} " in capsys.readouterr().out


ALL_POINTS = sum(exercise.points for exercise in exercises().values())
OTHERS = f"The {len(exercises()) - 5} other exercises of the course are not part of this assignment, 02_reward_model."


def test_status_of_an_assignment_has_its_own_exercises(assignment, capsys):
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert " 0 / 21 " in out and "masked_ce_loss" not in out and "compute_gae" not in out
    assert out.splitlines()[-1] == OTHERS
    begin()
    lab.status()
    assert capsys.readouterr().out == out


def test_check_without_a_name_in_an_assignment_is_of_its_own_exercises(assignment, capsys):
    shutil.copy(SOLUTIONS / "reward_model.py", assignment / "rlhf_exercises")
    assert main(["check"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["5 of 5 exercises pass", OTHERS]
    assert main(["check", "masked_whiten"]) == 2
    assert OTHERS not in capsys.readouterr().out


# --- hints and solutions --------------------------------------------------------------------------


def test_hints_come_one_after_the_other(course, capsys):
    for step in (1, 2, 3, 3):
        main(["hint", "compute_gae"])
        out = capsys.readouterr().out
        assert f"hint {step} of 3" in out
        assert exercises()["compute_gae"].hints[step - 1] in out
    main(["hint", "compute_gae", "1"])
    assert "hint 1 of 3: nudge" in capsys.readouterr().out


def test_a_solution_is_shown_when_asked_twice(course, capsys):
    main(["solution", "compute_gae"])
    assert "td_error" not in capsys.readouterr().out
    main(["solution", "compute_gae"])
    out = capsys.readouterr().out
    assert "td_error" in out and "raise NotImplementedError" in out
    assert "SOLUTION" not in out


@pytest.mark.parametrize("command", ["solution", "compare"])
def test_a_class_has_no_solutions(course, command, capsys):
    shutil.rmtree(course / "solutions")
    assert main([command, "compute_gae"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and "the solutions are not in this course folder" in said.err


def test_help_lists_what_can_be_done_here(course, capsys, monkeypatch):
    monkeypatch.setattr("rlhf_lab.cli.CHECKOUT", course)

    def listed() -> set[str]:
        with pytest.raises(SystemExit):
            main(["--help"])
        lines = capsys.readouterr().out.splitlines()
        return {line.split()[0] for line in lines if line.startswith("    ")}

    assert {"check", "solution", "compare", "cloze", "reset"} <= listed() and "test" not in listed()
    shutil.rmtree(course / "solutions")
    (course / "tests").mkdir()
    assert {"check", "reset", "test"} <= listed() and not {"solution", "compare", "cloze"} & listed()


def test_compare_names_the_first_difference(course, capsys):
    main(["compare", "masked_whiten"])
    assert "masked_whiten is not written yet" in capsys.readouterr().out
    solve(course, "masked_whiten")
    main(["compare", "masked_whiten"])
    out = capsys.readouterr().out
    assert out.count("the same") == len(run.cases_of(exercises()["masked_whiten"]))
    path = course / "rlhf_exercises" / "ppo.py"
    path.write_text(path.read_text().replace("mean = masked_mean(x, mask)", "mean = x.mean()"))
    main(["compare", "masked_whiten"])
    assert "draw 1: " in capsys.readouterr().out


# --- reset ----------------------------------------------------------------------------------------


def test_a_hint_that_is_not_there_is_a_sentence(course, capsys):
    for step in ("0", "4", "-1"):
        assert main(["hint", "compute_gae", step]) == 1 or step == "-1"
    assert "there are 3 hints, and no hint 4" in capsys.readouterr().err


def test_an_interrupted_check_is_not_recorded_and_ends_the_command(course, capsys):
    path = course / "rlhf_exercises" / "sft.py"
    text = path.read_text()
    start, end = extent(text, "masked_ce_loss")
    path.write_text(
        text[:start] + "def masked_ce_loss(logits, labels):\n    raise KeyboardInterrupt\n" + text[end:]
    )
    assert main(["check", "masked_ce_loss", "compute_gae"]) == 130
    assert "compute_gae" not in capsys.readouterr().out
    assert "masked_ce_loss" not in Progress(course / "rlhf_exercises")._read()
    assert main(["status"]) == 130
    begin()
    with capture_output() as shown:
        lab.check("masked_ce_loss", "compute_gae")
    assert len(shown.outputs) == 1


def test_reset_restores_one_stub_and_keeps_what_stood_there(course, capsys):
    path = course / "rlhf_exercises" / "ppo.py"
    solve(course, "compute_gae")
    solve(course, "masked_whiten")
    mine = path.read_text()
    main(["reset", "compute_gae"])
    assert "compute_gae.old-1.txt" in capsys.readouterr().out
    text, kept = path.read_text(), (course / "rlhf_exercises" / "compute_gae.old-1.txt").read_text()
    pristine = (PRISTINE / "ppo.txt").read_text()
    assert text[slice(*extent(text, "compute_gae"))] == pristine[slice(*extent(pristine, "compute_gae"))]
    assert text[slice(*extent(text, "masked_whiten"))] == mine[slice(*extent(mine, "masked_whiten"))]
    assert kept == mine[slice(*extent(mine, "compute_gae"))]
    main(["reset", "masked_whiten"])
    assert path.read_text() == pristine


def test_reset_never_overwrites_what_an_earlier_one_kept(course):
    for _ in range(3):
        main(["reset", "compute_gae"])
    kept = sorted(path.name for path in (course / "rlhf_exercises").glob("*.txt"))
    assert kept == ["compute_gae.old-1.txt", "compute_gae.old-2.txt", "compute_gae.old-3.txt"]


IN_BETWEEN = {
    "a text at column 0": '    note = """\nold code\n"""\n    return note\n',
    "a comment at column 0": "    x = 1\n# not now\n    return x\n",
    "a continued line": "    x = 1 + \\\n1\n    return x\n",
}


@pytest.mark.parametrize("kind", IN_BETWEEN)
def test_reset_takes_the_whole_function(course, kind):
    path = course / "rlhf_exercises" / "sft.py"
    pristine = path.read_text()
    start, end = extent(pristine, "masked_ce_loss")
    mine = "def masked_ce_loss(logits, labels):\n" + IN_BETWEEN[kind]
    path.write_text(pristine[:start] + mine + pristine[end:])
    main(["reset", "masked_ce_loss"])
    assert path.read_text() == pristine
    assert (path.parent / "masked_ce_loss.old-1.txt").read_text() == mine


def test_reset_of_a_function_that_stands_there_twice_or_is_named_in_a_text(course):
    path = course / "rlhf_exercises" / "sft.py"
    pristine = path.read_text()
    path.write_text(
        pristine.replace('"""\n\nfrom', '\ndef masked_ce_loss(x):\n    old notes\n"""\n\nfrom', 1)
        + "\n\ndef masked_ce_loss(x):\n    return 7\n"
    )
    main(["reset", "masked_ce_loss"])
    text = path.read_text()
    assert "return 7" not in text and "old notes" in text
    assert text.count("exercise 1.3: write masked_ce_loss") == 2  # the second one counts, as for Python


def test_reset_keeps_line_ends_mode_link_and_encoding(course, tmp_path):
    path = course / "rlhf_exercises" / "sft.py"
    real = tmp_path / "elsewhere.py"
    content = b"# -*- coding: latin-1 -*-\r\n# caf\xe9\r\n" + path.read_bytes().replace(b"\n", b"\r\n")
    real.write_bytes(content)
    real.chmod(0o640)
    path.unlink()
    path.symlink_to(real)
    assert main(["reset", "masked_ce_loss"]) == 0
    assert path.is_symlink()
    assert real.read_bytes() == content
    assert real.stat().st_mode & 0o777 == 0o640


def test_reset_by_number_where_it_names_one(course, capsys):
    assert main(["reset", "1.3"]) == 0
    assert main(["reset", "3.3"]) == 1
    assert (
        "3.3 stands for shape_token_rewards, compute_gae, masked_whiten: say which" in capsys.readouterr().err
    )


@pytest.mark.parametrize("obstacle", ["a file", "a folder", "a dangling link"])
def test_a_check_says_its_result_also_where_it_cannot_be_kept(course, obstacle, capsys):
    runs = course / "runs"
    if obstacle == "a file":
        runs.write_text("")
    elif obstacle == "a folder":
        (runs / "progress-rlhf_exercises.json").mkdir(parents=True)
    else:
        runs.symlink_to(course / "nowhere" / "deep")
    solve(course, "compute_gae")
    assert main(["check", "compute_gae"]) == 0
    out = capsys.readouterr().out
    assert "Done." in out
    assert "the result is not kept" in out


def test_two_processes_keep_each_others_results(course):
    folder = course / "rlhf_exercises"
    first, second = Progress(folder), Progress(folder)
    for progress, name in ((first, "compute_gae"), (second, "masked_whiten"), (first, "ppo_losses")):
        progress.record(run.check(name, folder))
    assert {"compute_gae", "masked_whiten", "ppo_losses"} <= first._read().keys()


def test_reset_works_on_a_file_that_does_not_parse(course):
    path = course / "rlhf_exercises" / "ppo.py"
    path.write_text(
        path.read_text().replace(
            '    raise NotImplementedError(\n        "exercise 3.3: write compute_gae',
            '    if (:\n    raise NotImplementedError(\n        "exercise 3.3: write compute_gae',
        )
    )
    main(["reset", "compute_gae"])
    assert path.read_text() == (PRISTINE / "ppo.txt").read_text()


def test_reset_of_a_module(course, capsys):
    path = course / "rlhf_exercises" / "sft.py"
    path.write_text("all gone\n")
    assert main(["reset", "masked_ce_loss"]) == 1
    assert "has no masked_ce_loss" in capsys.readouterr().err
    assert main(["reset", "sft"]) == 0
    assert path.read_text() == (PRISTINE / "sft.txt").read_text()
    assert (course / "rlhf_exercises" / "sft.old-1.txt").read_text() == "all gone\n"


@pytest.mark.parametrize("name", list(exercises()))
def test_every_exercise_can_be_found_in_its_file(name):
    text = (STUBS / exercises()[name].file).read_text()
    start, end = extent(text, name)
    others = [other for other in exercises() if other != name and f"\ndef {other}(" in text[start:end]]
    assert others == []
    assert text[start:end].count("raise NotImplementedError(") >= 1
    assert text[end : end + 1] in ("", "\n")


def test_an_extent_ends_where_the_function_ends():
    text = "def f(\n    a,\n) -> int:\n    return 1\n\n\nx = 2\n"
    assert text[slice(*extent(text, "f"))] == "def f(\n    a,\n) -> int:\n    return 1\n"
    assert extent(text, "g") is None
    assert extent("class ff:\n    pass\n", "f") is None


# --- in a notebook --------------------------------------------------------------------------------


def begin():
    with capture_output() as shown:
        lab.begin("03_ppo", "rlhf_exercises")
    return shown.stdout


def test_begin_says_whose_code_is_checked(course):
    assert "03_ppo: your code is rlhf_exercises/" in begin()
    assert lab._here().folder == course / "rlhf_exercises"


def test_the_package_beside_the_notebook_comes_before_an_installed_one(course):
    assert student_code.package_folder("rlhf_exercises") == course / "rlhf_exercises"


def test_a_package_of_another_folder_that_is_imported_already_is_said(course, monkeypatch):
    elsewhere = ModuleType("rlhf_exercises")
    elsewhere.__file__ = str(STUBS / "__init__.py")
    monkeypatch.setitem(sys.modules, "rlhf_exercises", elsewhere)
    with pytest.raises(lab.LabError, match="was imported from"):
        lab.begin("03_ppo", "rlhf_exercises")


def test_check_without_begin_is_a_sentence(course, capsys):
    lab.check("compute_gae")
    lab.status()
    assert capsys.readouterr().out.count("run the first code cell of this notebook") == 2


def test_check_shows_a_page_and_a_text(course):
    begin()
    with capture_output() as shown:
        lab.check("compute_gae")
    (output,) = shown.outputs
    assert "Not done yet" in output.data["text/plain"]
    assert 'class="rlhf-check"' in output.data["text/html"]


def test_check_without_a_name_checks_the_notebook(course):
    begin()
    with capture_output() as shown:
        lab.check()
    assert len(shown.outputs) == sum(e.notebook == "03_ppo" for e in exercises().values())


@pytest.mark.parametrize("call", ["check", "hint", "solution", "compare", "reset"])
def test_an_unknown_name_is_a_sentence(course, call, capsys):
    begin()
    getattr(lab, call)("gae")
    assert "there is no exercise 'gae'" in capsys.readouterr().out


def test_a_todo_cell_with_a_stub_goes_on(course, capsys):
    begin()
    with lab.todo("compute_gae"):
        from rlhf_exercises import ppo

        ppo.compute_gae(None, None, None)
    with lab.todo("compute_gae"):
        raise NotImplementedError()
    out = capsys.readouterr().out
    assert "not done yet: exercise 3.3: write compute_gae" in out
    assert "not done yet: this cell is for you to write" in out


def test_a_todo_cell_shows_the_students_line_and_the_traceback_on_request(course, capsys):
    path = course / "rlhf_exercises" / "ppo.py"
    path.write_text(path.read_text() + "\n\ndef mine():\n    return [][3]\n")
    begin()
    with student_code.fresh_code(course / "rlhf_exercises") as code, lab.todo("compute_gae"):
        code.ppo.mine()
    out = capsys.readouterr().out
    assert "IndexError: list index out of range" in out
    assert "in mine: return [][3]" in out
    assert "Traceback" not in out
    lab.traceback()
    assert "Traceback (most recent call last)" in capsys.readouterr().out


def test_a_not_implemented_error_of_somebody_else_is_not_called_a_stub(course, capsys):
    def helper():
        raise NotImplementedError("no such kernel")

    begin()
    with lab.todo("compute_gae"):
        helper()
    assert "NotImplementedError: no such kernel" in capsys.readouterr().out


def test_an_interrupt_ends_a_todo_cell(course):
    with pytest.raises(KeyboardInterrupt), lab.todo("compute_gae"):
        raise KeyboardInterrupt


def test_progress_is_kept_for_each_package(course):
    begin()
    with capture_output():
        lab.check("masked_whiten")
    kept = json.loads((course / "runs" / "progress-rlhf_exercises.json").read_text())
    assert kept["masked_whiten"]["state"] == "not written"
    assert Progress(course / "solutions").path != Progress(course / "rlhf_exercises").path


def test_live_draws_at_most_every_so_often_and_at_the_end():
    drawn = []
    with capture_output() as shown:
        update = lab.live(lambda n: drawn.append(n) or f"drawing {n}", every=1000)
        for n in range(5):
            update(n)
        update(5, last=True)
    assert drawn == [0, 5]
    assert len(shown.outputs) >= 1


def test_source_text_says_what_is_missing(tmp_path):
    with pytest.raises(lab.LabError, match="is missing"):
        source_text.text_of(tmp_path / "x.py", "f")
