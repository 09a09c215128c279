"""The hidden tests: proved over the bank, and of the form that the course promises."""

import shutil
from pathlib import Path

import pytest

import rlhf_lab
from authoring.grader_kills import complaint, examine_bank, package_of
from authoring.stubs import stub_files
from grader_tests import clinic
from grader_tests.examiner import Examiner
from grader_tests.fingerprint import exam_fingerprint
from grader_tests.hidden import TESTS
from rlhf_lab.course import exercises
from tests.bank import entries


def stubs() -> dict[str, bytes]:
    return {path: text.encode() for path, text in stub_files().items()}


def test_the_bank_is_judged_fairly():
    sentences = examine_bank([], training=False)
    assert sum(not s.entry.correct for s in sentences) >= 900
    assert sum(s.entry.correct for s in sentences) >= 90
    assert [complaint(s) for s in sentences if not s.right] == []


@pytest.mark.parametrize("seed", range(5))
def test_full_marks_for_the_solution_and_none_for_stubs(seed):
    training = seed == 0
    with Examiner(training, seed) as examiner:
        solved = examiner.examine(package_of(None), exercises())
        blank = examiner.examine(stubs(), exercises())
    assert {name: verdict.messages for name, verdict in solved.items() if verdict.score < verdict.max} == {}
    assert {name: verdict.score for name, verdict in blank.items() if verdict.score} == {}
    assert all("is not written yet." in verdict.messages[0] for verdict in blank.values())
    assert {verdict.examined for verdict in solved.values()} == {True}
    assert {verdict.examined for verdict in blank.values()} == {False}


@pytest.mark.parametrize("name", exercises())
def test_points_and_titles(name):
    tests = TESTS[name]
    assert sum(test.points for test in tests) == exercises()[name].points
    titles = [test.title for test in tests]
    assert len(set(titles)) == len(titles)
    for number, test in enumerate(tests):
        assert test.points > 0 and test.catches and test.message
        assert set(test.after) <= set(titles[:number]), test.title


def test_most_points_do_not_depend_on_a_training_test():
    for name, tests in TESTS.items():
        trained = sum(test.points for test in tests if test.training)
        assert trained <= exercises()[name].points / 2, name


TRIVIAL = {
    "nothing": "return None",
    "its first argument": "return args[0] if args else None",
    "zeros": "import torch; return torch.zeros_like(args[0])",
    "twice zeros": "import torch; return torch.zeros_like(args[0]), torch.zeros_like(args[0])",
    "a number": "return 0.0",
}


@pytest.mark.parametrize("what", TRIVIAL)
def test_a_trivial_function_earns_next_to_nothing(what):
    files, functions = stubs(), [n for n in exercises() if n[0].islower()]
    for name in functions:
        path = exercises()[name].file
        files[path] += f"\n\ndef {name}(*args, **kwargs):\n    {TRIVIAL[what]}\n".encode()
    with Examiner(training=False) as examiner:
        verdicts = examiner.examine(files, functions)
    assert {n: v.score for n, v in verdicts.items() if v.score > v.max / 4} == {}


def test_messages_hold_no_numbers_of_the_test():
    """Zeros fail nearly every test: what they are told does not depend on the numbers that were drawn."""
    files = stubs()
    for name in (n for n in exercises() if n[0].islower()):
        files[exercises()[name].file] += (
            f"\n\nimport torch\ndef {name}(*args, **kwargs):\n    return torch.zeros_like(args[0])\n".encode()
        )
    messages = []
    for seed in (0, 1):
        with Examiner(training=False, seed=seed, naming=False) as examiner:
            verdicts = examiner.examine(files, exercises())
        messages.append({name: verdict.messages for name, verdict in verdicts.items()})
    assert messages[0] == messages[1]


def test_a_function_that_leans_on_a_change_of_another_exercise_is_right():
    files = package_of(None)
    text = files["ppo.py"].decode()
    text = text.replace("    eps: float = 1e-8,\n)", "    eps: float = 1e-8,\n    shift: bool = True,\n)")
    text = text.replace("masked_whiten(advantages, mask)", "masked_whiten(advantages, mask, shift=True)")
    assert text != files["ppo.py"].decode()
    with Examiner(training=False) as examiner:
        verdict = examiner.examine({**files, "ppo.py": text.encode()}, ["ppo_step"])["ppo_step"]
    assert (verdict.score, verdict.messages) == (verdict.max, ())


def test_marks_do_not_depend_on_who_was_examined_before():
    calls = package_of(None)
    text = calls["ppo.py"].decode()
    text = text.replace("masked_whiten(advantages, mask)", "masked_whiten(advantages, mask, shift=True)")
    defines = text.replace("    eps: float = 1e-8,\n)", "    eps: float = 1e-8,\n    shift: bool = True,\n)")
    with Examiner(training=False) as examiner:
        scores = [
            examiner.examine({**calls, "ppo.py": each.encode()}, ["ppo_step"])["ppo_step"].score
            for each in (text, defines, text)
        ]
    assert scores[0] == scores[2] == 0 < scores[1] == exercises()["ppo_step"].points


def test_what_a_module_does_at_its_import_may_lean_on_the_students_own_functions():
    files = package_of(None)
    text = files["ppo.py"].decode()
    text = text.replace("    eps: float = 1e-8,\n)", "    eps: float = 1e-8,\n    shift: bool = True,\n)")
    text += "\n\n_WHITE = masked_whiten(torch.ones(1, 2), torch.ones(1, 2), shift=True)\n"
    with Examiner(training=False) as examiner:
        verdict = examiner.examine({**files, "ppo.py": text.encode()}, ["response_mask"])["response_mask"]
    assert (verdict.score, verdict.messages) == (verdict.max, ())


def test_an_import_that_never_ends_is_waited_for_once(monkeypatch):
    entered = []
    enter = Examiner._enter
    monkeypatch.setattr(Examiner, "_enter", lambda self, *given: entered.append(given) or enter(self, *given))
    files = package_of(None)
    files["reward_model.py"] += b"\n\nwhile True:\n    pass\n"
    names = [name for name, exercise in exercises().items() if exercise.module == "reward_model"]
    with Examiner(training=False, patience=0.2) as examiner:
        verdicts = examiner.examine(files, names)
    assert len(entered) == 1
    assert {verdict.score for verdict in verdicts.values()} == {0}
    assert all("while it is imported" in verdict.messages[0] for verdict in verdicts.values())


def test_a_package_that_fails_as_a_whole_is_said():
    files = {**package_of(None), "__init__.py": b"1 / 0\n"}
    with Examiner(training=False) as examiner:
        verdict = examiner.examine(files, ["rm_loss"])["rm_loss"]
    assert verdict.messages[0] == "__init__.py raises ZeroDivisionError in line 1 while it is imported."


@pytest.mark.parametrize(
    ("text", "line", "kind"),
    [
        (b"x = 1\n1 / 0\n", 2, "ZeroDivisionError"),
        (b"def f():\n    return [][3]\n\nf()\n", 2, "IndexError"),
        (b"\nfrom .helper import x\n", 2, "ZeroDivisionError"),  # it is the file's own line that is said
    ],
)
def test_an_error_at_import_comes_with_the_line_of_the_file(text, line, kind):
    files = {**package_of(None), "helper.py": b"x = 2\n\n1 / 0\n"}
    line += files["reward_model.py"].count(b"\n")
    files["reward_model.py"] += text
    with Examiner(training=False) as examiner:
        verdict = examiner.examine(files, ["rm_loss"])["rm_loss"]
    assert verdict.messages == (f"reward_model.py raises {kind} in line {line} while it is imported.",)


def test_the_fingerprint_holds_what_the_tests_use(tmp_path, monkeypatch):
    copy = shutil.copytree(Path(rlhf_lab.__file__).parent, tmp_path / "rlhf_lab")
    monkeypatch.setattr(rlhf_lab, "__file__", str(copy / "__init__.py"))
    fingerprint = exam_fingerprint.__wrapped__
    before = fingerprint(True, 0)
    assert fingerprint(True, 0) == before != fingerprint(True, 1)
    for path in ("clinic/answers.py", "data/topics.py", "checkpoints/sft/model.safetensors"):
        was = (copy / path).read_bytes()
        (copy / path).write_bytes(was + b" ")
        assert fingerprint(True, 0) != before, path
        (copy / path).write_bytes(was)
    assert fingerprint(True, 0) == before


def test_a_syntax_error_names_its_line_and_spares_the_other_files():
    files = package_of(None)
    files["sft.py"] += b"\ndef broken(:\n"
    line = files["sft.py"].count(b"\n")
    with Examiner(training=False) as examiner:
        verdicts = examiner.examine(files, ["masked_ce_loss", "rm_loss"])
    assert verdicts["masked_ce_loss"].score == 0
    assert f"sft.py is no valid Python in line {line}" in verdicts["masked_ce_loss"].messages[0]
    assert verdicts["rm_loss"].score == verdicts["rm_loss"].max


def test_a_missing_file_and_a_missing_function_are_said():
    files = package_of(None)
    del files["sft.py"]
    files["reward_model.py"] = files["reward_model.py"].replace(b"def rm_loss(", b"def my_loss(")
    with Examiner(training=False) as examiner:
        verdicts = examiner.examine(files, ["masked_ce_loss", "rm_loss"])
    assert verdicts["masked_ce_loss"].messages == ("sft.py is missing.",)
    assert verdicts["rm_loss"].score == 0
    assert "rm_loss" in verdicts["rm_loss"].messages[0]
    assert not verdicts["masked_ce_loss"].examined and not verdicts["rm_loss"].examined


def test_an_error_comes_with_its_place():
    files = package_of(None)
    files["reward_model.py"] += (
        b"\n\ndef rm_loss(r_chosen, r_rejected):\n    x = 1\n    return r_chosen[999]\n"
    )
    with Examiner(training=False) as examiner:
        verdict = examiner.examine(files, ["rm_loss"])["rm_loss"]
    assert verdict.messages[0] == "Your code raised IndexError, in line 3 of rm_loss."


def test_only_a_mistake_that_the_bank_knows_is_named_after_it():
    files = package_of(None)
    unknown = files["reward_model.py"].replace(
        b"r_chosen - r_rejected).mean()", b"r_chosen - r_rejected).mean() * 1.37"
    )
    known = files["reward_model.py"].replace(
        b"F.logsigmoid(r_chosen - r_rejected)", b"F.logsigmoid(r_rejected - r_chosen)"
    )
    messages = {}
    for naming in (True, False):
        with Examiner(training=False, naming=naming) as examiner:
            for what, text in (("unknown", unknown), ("known", known)):
                assert text != files["reward_model.py"]
                verdict = examiner.examine({**files, "reward_model.py": text}, ["rm_loss"])["rm_loss"]
                messages[what, naming] = verdict.messages[0]
    assert messages["unknown", True] == messages["unknown", False]
    sentences = [entry.says for entry in entries("rm_loss")]
    assert messages["known", True] in sentences


def test_a_tensor_where_a_number_was_asked_for_costs_one_small_test():
    files = package_of(None)
    sft = files["sft.py"].replace(b"losses.append(loss.item())", b"losses.append(loss.detach())")
    rm = files["reward_model.py"].replace(
        b'"loss": loss.item(), "accuracy": accuracy.item()', b'"loss": loss, "accuracy": accuracy'
    )
    assert sft != files["sft.py"] and rm != files["reward_model.py"]
    with Examiner(training=False) as examiner:
        verdicts = examiner.examine(
            {**files, "sft.py": sft, "reward_model.py": rm}, ["train_sft", "train_rm"]
        )
    assert all(0 < verdict.max - verdict.score < 0.35 for verdict in verdicts.values()), verdicts


def test_points_of_the_clinic():
    from rlhf_lab.clinic import CASES

    assert clinic.clinic_verdict(None).score == 0
    assert clinic.clinic_verdict({letter: "score lost" for letter in CASES}).score < clinic.POINTS / 4
    assert clinic.clinic_verdict({letter: float("nan") for letter in CASES}).score == 0
