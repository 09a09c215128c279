"""The machinery of the checks: what a report says about right, wrong, unfinished, broken and odd code."""

import json
import os
import shutil
import sys
import textwrap

import pytest
import torch

from authoring.paths import SOLUTIONS, STUBS
from rlhf_lab import checks
from rlhf_lab.checks import differences, run
from rlhf_lab.checks.case import WrongReturn, entries, in_words, numbers, other_numbers, parts, raised, tensor
from rlhf_lab.course import exercises, find, select
from rlhf_lab.errors import LabError
from rlhf_lab.source_text import extent
from rlhf_lab.student_code import BrokenFile, fresh_code


@pytest.fixture
def solved(tmp_path):
    """A student's folder in which everything is right."""
    folder = tmp_path / "rlhf_exercises"
    shutil.copytree(SOLUTIONS, folder, ignore=shutil.ignore_patterns("__pycache__", "notebooks"))
    return folder


@pytest.fixture
def blank(tmp_path):
    folder = tmp_path / "rlhf_exercises"
    shutil.copytree(STUBS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def put(folder, name, text):
    """Write a function of the student's over the one that stands there."""
    path = folder / find(name).file
    module = path.read_text(encoding="utf-8")
    start, end = extent(module, name)
    path.write_text(module[:start] + textwrap.dedent(text).lstrip() + module[end:], encoding="utf-8")


def put_gae(folder, body):
    put(folder, "compute_gae", f"def compute_gae(rewards, values, mask, gamma=1.0, lam=0.95):\n    {body}\n")


# --- right and unfinished -------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(exercises()))
def test_the_solution_passes(name, solved):
    report = checks.check(name, solved)
    assert report.state == "passed", checks.to_text(report)
    assert {line.status for line in report.lines} == {"ok"}


@pytest.mark.parametrize("name", list(exercises()))
def test_a_stub_is_not_done_yet(name, blank):
    report = checks.check(name, blank)
    assert report.state in ("not written", "waits")
    assert any(
        f" {other} in " in report.closing or f"for {other}," in report.closing for other in exercises()
    )


def test_what_calls_an_unwritten_exercise_waits_for_it(blank):
    with (SOLUTIONS / "sft.py").open(encoding="utf-8") as file:
        solution = file.read()
    put(blank, "SFTDataset", solution[slice(*extent(solution, "SFTDataset"))])
    report = checks.check("SFTDataset", blank)
    assert (report.state, report.closing) == (
        "waits",
        "Waits for build_sft_example, which it calls and which is not written yet.",
    )


def test_what_calls_a_wrong_exercise_waits_for_it(solved):
    path = solved / "sft.py"
    path.write_text(
        path.read_text()
        .replace("+ [eos_id])[:max_len]\n    n_real", "+ [pad_id])[:max_len]\n    n_real")
        .replace("[1] * n_real", "[2] * n_real")
    )
    assert checks.check("build_sft_example", solved).state == "failed"
    report = checks.check("SFTDataset", solved)
    assert report.state == "waits"
    assert "1.1 build_sft_example" in report.closing
    assert checks.check("masked_ce_loss", solved).passed


# --- wrong ----------------------------------------------------------------------------------------


def test_a_failure_says_what_came_and_what_was_expected(solved):
    put_gae(solved, "return torch.zeros_like(rewards), torch.zeros_like(rewards)")
    report = checks.check("compute_gae", solved)
    text, page = checks.to_text(report), checks.to_html(report)
    assert report.state == "failed"
    assert " is 0, expected " in text
    assert "FAIL" in text and "tried: " in text
    assert "For a nudge: python -m rlhf_lab hint compute_gae" in text
    assert 'lab.hint("compute_gae")' in page


def test_an_exception_is_shown_with_the_students_line_and_without_a_traceback(solved):
    put_gae(solved, "nxt = values[:, rewards.shape[1]]\n    return nxt, nxt")
    text = checks.to_text(checks.check("compute_gae", solved))
    assert "your code raised IndexError" in text
    assert "rlhf_exercises/ppo.py, line " in text
    assert "in compute_gae: nxt = values[:, rewards.shape[1]]" in text
    assert "Traceback" not in text
    assert str(solved.parent) not in text


@pytest.mark.parametrize(
    "returned",
    ["None", "3", "rewards", "(rewards, None)", "[rewards]", "(rewards, values, mask)", "'ab'", "{}"],
)
def test_a_wrong_type_is_a_sentence(solved, returned):
    put_gae(solved, f"return {returned}")
    report = checks.check("compute_gae", solved)
    text = checks.to_text(report)
    assert report.state == "failed"
    assert "returned" in text
    assert "rlhf_lab/" not in text


@pytest.mark.parametrize(
    "body",
    [
        "raise SystemExit(3)",
        "import sys; sys.exit()",
        "raise KeyError('x')",
        "return compute_gae(rewards, values, mask)",
    ],
)
def test_code_that_ends_the_program_or_recurses_is_a_failure(solved, body):
    put_gae(solved, body)
    assert checks.check("compute_gae", solved).state == "failed"


ODD_EXCEPTIONS = {
    "its text raises": "class Odd(Exception):\n        def __str__(self): raise ValueError\n    raise Odd",
    "its text is a number": "class Odd(NotImplementedError):\n        def __str__(self): return 3\n    raise Odd",
    "it is no Exception": "raise GeneratorExit",
    "a huge number": "return 10 ** 6000",
    "a number with operators of its own": "class N(int):\n        __sub__ = None\n    return N(3)",
}


@pytest.mark.parametrize("kind", ODD_EXCEPTIONS)
def test_odd_exceptions_and_numbers_are_failures(solved, kind):
    put(solved, "rm_loss", f"def rm_loss(r_chosen, r_rejected):\n    {ODD_EXCEPTIONS[kind]}\n")
    assert checks.check("rm_loss", solved).state == "failed"


@pytest.mark.parametrize(
    "line",
    ["torch.set_default_dtype(torch.float64)", "torch.set_grad_enabled(False)", "import os; os.chdir('/')",
     "torch.manual_seed(3)", "torch.set_default_device('meta')", "import sys; sys.setrecursionlimit(3000)"],
)  # fmt: skip
def test_what_a_file_changes_for_the_whole_process_is_put_back(solved, line):
    def state():
        return (
            torch.get_default_dtype(), torch.is_grad_enabled(), os.getcwd(), torch.initial_seed() and torch.rand(1).item(),
            torch.get_default_device(), sys.getrecursionlimit(),
        )  # fmt: skip

    path = solved / "sft.py"
    path.write_text(path.read_text(encoding="utf-8") + f"\n{line}\n", encoding="utf-8")
    torch.manual_seed(0)
    before = state()
    torch.manual_seed(0)
    checks.check("masked_ce_loss", solved)
    assert state() == before


def test_a_helper_module_is_read_anew_too(solved):
    helper, path = solved / "helper.py", solved / "sft.py"
    helper.write_text("SIGN = 1\n")
    text = path.read_text(encoding="utf-8").replace(
        "import torch\n", "import torch\nfrom .helper import SIGN\n", 1
    )
    path.write_text(text.replace("return total /", "return SIGN * total /"), encoding="utf-8")
    for sign, state in ((1, "passed"), (7, "failed"), (1, "passed"), (7, "failed")):
        helper.write_text(f"SIGN = {sign}\n")
        assert checks.check("masked_ce_loss", solved).state == state


def test_a_file_that_another_file_misses_is_not_called_missing(solved):
    path = solved / "sft.py"
    path.write_text(f"open('/no/such/file')\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    closing = checks.check("masked_ce_loss", solved).closing
    assert "FileNotFoundError" in closing and "the file is missing" not in closing


def test_prints_stand_below_the_line_that_they_belong_to(solved, capsys):
    put_gae(solved, "print('shape', list(rewards.shape))\n    return rewards, values")
    text = checks.to_text(checks.check("compute_gae", solved))
    assert capsys.readouterr().out == ""
    assert text.count("shape [") == 1
    assert text.index("FAIL") < text.index("printed: shape [")
    put_gae(solved, "print('x' * 100000)\n    return rewards, values")
    assert len(checks.to_text(checks.check("compute_gae", solved))) < 4000


def test_an_interrupt_is_no_verdict_and_is_shown_with_its_line(solved):
    put_gae(solved, "raise KeyboardInterrupt")
    report = checks.check("compute_gae", solved)
    text = checks.to_text(report)
    assert report.state == "stopped"
    assert "stopped before it had finished" in text
    assert "in compute_gae: raise KeyboardInterrupt" in text
    assert report.mistake is None


@pytest.mark.parametrize("name", list(exercises()))
@pytest.mark.parametrize("returned", ["None", "torch.zeros(())", "{}", "'nothing'"])
def test_no_exercise_answers_nonsense_with_a_traceback(name, returned, solved):
    """Whatever a function returns, its check fails in words and blames no file of the workbench."""
    if name[0].isupper():
        put(
            solved,
            name,
            f"class {name}:\n    def __init__(self, *args, **kwargs):\n        self.x = {returned}\n",
        )
    else:
        put(solved, name, f"def {name}(*args, **kwargs):\n    return {returned}\n")
    report = checks.check(name, solved)
    assert report.state == "failed"
    assert "rlhf_lab/" not in checks.to_text(report)


# --- files ----------------------------------------------------------------------------------------


def test_a_syntax_error_names_file_and_line(solved):
    path = solved / "ppo.py"
    path.write_text(path.read_text(encoding="utf-8") + "\ndef broken(:\n    pass\n", encoding="utf-8")
    report = checks.check("compute_gae", solved)
    line = len(path.read_text(encoding="utf-8").splitlines()) - 1
    assert report.state == "broken"
    assert f"rlhf_exercises/ppo.py, line {line}" in report.closing
    assert "def broken(:" in report.closing


@pytest.mark.parametrize(
    "line", ["import no_such_thing", "1 / 0", "raise SystemExit", "from .sft import nothing"]
)
def test_a_file_that_fails_on_import_is_said(solved, line):
    path = solved / "sft.py"
    path.write_text(f"{line}\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    report = checks.check("masked_ce_loss", solved)
    assert report.state == "broken"
    assert "rlhf_exercises/sft.py, line 1" in report.closing


def test_a_missing_file_is_said(solved):
    (solved / "ppo.py").unlink()
    assert "rlhf_exercises/ppo.py: the file is missing" in checks.check("compute_gae", solved).closing


def test_a_quick_edit_of_the_same_length_is_seen(solved):
    """A .pyc goes by second and size: it would miss this edit."""
    put_gae(solved, "return 11111")
    assert "int" in checks.to_text(checks.check("compute_gae", solved))
    put_gae(solved, "return 'abc'")
    assert "str" in checks.to_text(checks.check("compute_gae", solved))


def test_a_check_leaves_what_is_imported_and_the_random_state_alone(solved):
    sys.path.insert(0, str(solved.parent))
    try:
        import rlhf_exercises.ppo as live

        torch.manual_seed(3)
        before = torch.get_rng_state()
        checks.check("compute_gae", solved)
        assert sys.modules["rlhf_exercises.ppo"] is live
        assert torch.equal(torch.get_rng_state(), before)
    finally:
        sys.path.remove(str(solved.parent))
        for name in [name for name in sys.modules if name.split(".")[0] == "rlhf_exercises"]:
            del sys.modules[name]


def test_fresh_code_is_gone_after_a_failed_import(solved):
    (solved / "ppo.py").write_text("1 / 0")
    with pytest.raises(BrokenFile), fresh_code(solved):
        pass
    assert not [name for name in sys.modules if name.startswith("rlhf_exercises")]


def test_an_unknown_exercise_lists_the_names(solved):
    with pytest.raises(LabError, match="no exercise 'gae'.*compute_gae"):
        checks.check("gae", solved)


def test_exercises_by_number_and_notebook():
    assert [e.name for e in select("3.3")] == ["shape_token_rewards", "compute_gae", "masked_whiten"]
    assert [e.name for e in select("04_end_to_end")] == ["train_ppo"]
    points = {e.notebook: 0 for e in exercises().values()}
    for e in exercises().values():
        points[e.notebook] += e.points
    assert sum(of for notebook, of in points.items() if notebook < "05") == 95  # and 5 for the clinic
    assert sum(of for notebook, of in points.items() if notebook >= "05") == 75


def test_needs_are_exercises_that_come_before():
    names = list(exercises())
    for exercise in exercises().values():
        assert all(names.index(needed) < names.index(exercise.name) for needed in exercise.needs)


# --- pages ----------------------------------------------------------------------------------------


def test_what_student_code_says_is_escaped(solved):
    put_gae(solved, "raise ValueError('<script>alert(1)</script>')")
    page = checks.to_html(checks.check("compute_gae", solved))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_the_page_says_what_the_text_says(solved):
    put_gae(solved, "return rewards, values")
    report = checks.check("compute_gae", solved)
    page = checks.to_html(report)
    for line in report.lines:
        assert line.title in page
    assert report.closing in page


# --- observations ---------------------------------------------------------------------------------


def test_the_first_difference_is_found_with_its_index():
    got, expected = (
        differences.plain({"a": torch.eye(2)}),
        differences.plain({"a": torch.tensor([[1.0, 0.0], [0.5, 1.0]])}),
    )
    assert str(differences.first_difference(got, expected, 1e-4)) == "a[1, 0] is 0, expected 0.5"
    assert differences.first_difference(expected, expected, 1e-4) is None


@pytest.mark.parametrize(
    ("got", "expected", "says"),
    [
        ([1, 2], [1, 2, 3], "the shape of x is [2], expected [3]"),
        ([[1.0]], [1.0], "the shape of x is [1, 1], expected [1]"),
        (True, 1, "x is True, expected 1"),
        ("nan", 0.5, "x is 'nan', expected 0.5"),
        (None, 0.5, "x is None, expected 0.5"),
        ({}, {"k": 1}, "x.k is 'missing', expected 1"),
        ("a", "b", "x is 'a', expected 'b'"),
    ],
)
def test_differences_in_words(got, expected, says):
    assert str(differences.first_difference(got, expected, 1e-4, "x")) == says


def test_numbers_agree_within_the_tolerance_however_large():
    assert differences.first_difference(1e6 + 50, 1e6, 1e-4) is None
    assert differences.first_difference(1e6 + 150, 1e6, 1e-4) is not None
    assert differences.first_difference(5e-5, 0.0, 1e-4) is None
    assert differences.first_difference(1, 1.0, 1e-4) is None


def test_observations_are_json():
    observed = differences.plain(
        {
            "t": torch.tensor([1.5, float("nan"), float("inf")]),
            "n": None,
            "o": object(),
            "b": True,
            "l": (1, [2.0]),
        }
    )
    assert json.loads(json.dumps(observed)) == {
        "t": [1.5, "nan", "inf"], "n": None, "o": "a object", "b": True, "l": [1, [2.0]],
    }  # fmt: skip


def test_helpers_of_the_cases_say_what_came():
    with pytest.raises(WrongReturn, match=r"f returned a tensor \[2\] of float32, expected a tensor \[3\]"):
        tensor("f", torch.zeros(2), [3])
    with pytest.raises(WrongReturn, match=r"f returned a tuple of 1, expected \(a, b\)"):
        parts("f", (1,), "a", "b")
    with pytest.raises(WrongReturn, match="f returned no 'b', only a"):
        entries("f", {"a": 1}, "b")
    assert in_words(None) == "None"
    assert raised(lambda: int("x"), "invalid", "nowhere") == "ValueError without nowhere in its text"
    assert raised(lambda: 1) == "no exception"


def test_numbers_are_the_same_everywhere_and_can_be_others():
    assert numbers(1, 3).tolist() == pytest.approx([1.6243454, -0.6117564, -0.5281718])
    with other_numbers(1):
        assert numbers(1, 3).tolist() != pytest.approx([1.6243454, -0.6117564, -0.5281718])
    assert numbers(1, 1).item() == pytest.approx(1.6243454)


def test_an_outcome_of_a_case_that_fails_itself_is_no_crash(solved):
    """A case must not raise, but if it does, the student sees a line and not a traceback of the workbench."""
    bad = run.Case("compute_gae", "bad", "nothing", "", 1e-4, lambda code: 1 / 0)
    with fresh_code(solved) as code:
        assert run.observe(bad, code, solved).observed == {"raises": "ZeroDivisionError: division by zero"}
