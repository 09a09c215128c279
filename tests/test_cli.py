"""The command line: light to import, one sentence for each mistake, and the score card at the end."""

import copy
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset

from rlhf_lab.cli import _run_name, main
from rlhf_lab.devices import choose_compute
from rlhf_lab.lab import Lab
from rlhf_lab.pipeline import Results
from rlhf_lab.runs import Run
from rlhf_lab.scorecard import Point, format_card, score_card
from rlhf_lab.settings import Settings
from rlhf_lab.taught_code import load_code
from solutions import ppo as solutions_ppo

CHECKOUT = Path(__file__).parent.parent
HEAVY = ("torch", "transformers", "datasets", "matplotlib", "numpy", "pandas")


def python(code: str, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=60,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("module", ["rlhf_lab", "rlhf_lab.cli", "rlhf_lab.environment", "rlhf_lab.settings"])
def test_importing_the_workbench_imports_nothing_heavy(module):
    loaded = python(f"import sys, {module}; print(sorted(set({HEAVY!r}) & set(sys.modules)))")
    assert loaded.stdout.strip() == "[]", loaded.stderr


def test_the_command_line_starts_on_a_bare_python():
    """`setup` has to work before anything is installed: -I -S leaves the standard library only."""
    bare = subprocess.run(
        [sys.executable, "-I", "-S", "-c",
         f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from rlhf_lab.cli import main; main(['--help'])"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert bare.returncode == 0 and "setup" in bare.stdout, bare.stderr


def test_a_bare_python_is_told_to_set_up():
    bare = subprocess.run(
        [sys.executable, "-I", "-S", "-c",
         f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from rlhf_lab.cli import main; sys.exit(main(['data']))"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert bare.returncode == 1 and "Traceback" not in bare.stderr
    assert "is not installed in" in bare.stderr and "python -m rlhf_lab setup" in bare.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--backbone", "./nope"], "there is no model folder ./nope"),
        (["run", "--data", "./nope"], "there is no data called ./nope"),
        (["run", "--device", "tpu"], "tpu"),
        (["run", "--steps", "0"], "--steps is 0: it must be positive"),
        (["run", "--ppo-lr", "-1"], "--ppo-lr is -1.0: it must be positive"),
        (["run", "--ppo-lr", "nan"], "--ppo-lr is nan: it must be at most 1000000"),
        (["run", "--batch", "10000000000"], "--batch is 10000000000: it must be at most 1000000"),
        (["run", "--seeds", "0", "0"], "--seeds names a seed twice"),
        (["run", "--reward", "/nope"], "there is no model folder /nope"),
        (["run", "--code", "nowhere"], "no module nowhere.sft"),
        (
            ["run", "--reward", "./nope", "--backbone", "tiny", "--judge", "./nope"],
            "independent of the reward",
        ),
        (["run", "--run", "x", "--seeds", "0", "1"], "give one of the two"),
    ],
)
def test_a_mistake_is_one_sentence_without_a_traceback(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    error = capsys.readouterr().err
    last_line = error.strip().splitlines()[-1]
    assert last_line.startswith("error: ") and sentence in last_line and "Traceback" not in error


FIRST_PAGE = (
    "--LabApp.default_url=/lab/tree/notebooks/00_welcome.ipynb"  # a later option of the same name wins
)


@pytest.mark.parametrize(
    ("command", "module"), [("test", ["pytest"]), ("lab", ["jupyter", "lab", FIRST_PAGE])]
)
def test_arguments_of_test_and_lab_are_passed_on(command, module, monkeypatch):
    called = []
    monkeypatch.setattr(subprocess, "call", lambda command, cwd: called.append(command) or 5)
    assert main([command, "-k", "gae", "--no-browser"]) == 5
    assert called == [[sys.executable, "-m", *module, "-k", "gae", "--no-browser"]]


def test_an_unknown_argument_of_another_command_is_an_error(capsys):
    with pytest.raises(SystemExit):
        main(["demo", "--stepz", "3"])
    assert "unrecognized arguments: --stepz 3" in capsys.readouterr().err


def test_a_stub_is_one_sentence(gpt2_folder, tmp_path, monkeypatch, capsys):
    package = tmp_path / "exercises"
    shutil.copytree(CHECKOUT / "solutions", package)
    text = (package / "sft.py").read_text()
    todo = "exercise 1.3: write masked_ce_loss in exercises/sft.py (notebooks/01_sft.ipynb, section 1.3)"
    head, tail = text.split("    predictions, targets =")
    (package / "sft.py").write_text(
        f"{head}    raise NotImplementedError({todo!r})\n    predictions, targets ={tail}"
    )
    monkeypatch.chdir(tmp_path)
    arguments = [
        "run",
        "--code",
        "exercises",
        "--backbone",
        str(gpt2_folder),
        "--data",
        str(_small_data(tmp_path)),
    ]
    assert main(arguments) == 1
    assert capsys.readouterr().err.strip().splitlines()[-1] == f"not written yet: {todo}"


def test_a_run_is_named_after_what_tells_it_from_others():
    for changes, name, expected in [
        ({}, "demo", "demo"),
        ({"code": "rlhf_exercises"}, "demo", "demo-rlhf_exercises"),
        ({"backbone": "./models/mine", "reward": "./clf"}, None, "mine-clf"),
        ({"backbone": "smollm2", "reward": "vader", "code": "mine"}, None, "smollm2-vader-mine"),
        ({"backbone": "smollm2", "data": "ratings"}, None, "smollm2-ratings-rm"),
        ({"data": "hh-rlhf:./copies/helpful"}, None, "tiny-helpful-rm"),
    ]:
        assert _run_name(Settings(**changes), name) == expected


def test_build_tiny_does_not_write_over_a_folder(tmp_path, capsys):
    assert main(["build-tiny", "--out", str(tmp_path)]) == 1
    assert "is there already" in capsys.readouterr().err


def test_a_run_is_not_moved_aside_for_a_command_that_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Run(tmp_path / "runs" / "tiny-rm-seed0", {}).close()
    assert main(["run", "--fresh", "--data", "./typo"]) == 1
    assert (tmp_path / "runs" / "tiny-rm-seed0").exists()


def test_taught_code_cannot_end_the_program_unnoticed(monkeypatch, capsys):
    def leave(*_):
        sys.exit(0)

    monkeypatch.setattr("rlhf_lab.lab.open_lab", leave)
    assert main(["run"]) == 1
    assert "the taught code ended the program (sys.exit(0))" in capsys.readouterr().err


def test_ctrl_c_says_that_nothing_is_lost(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rlhf_lab.lab.open_lab", interrupt)
    assert main(["run"]) == 130
    assert "the same command, without --fresh, goes on from there" in capsys.readouterr().err


def test_the_data_command_prints_the_baselines(capsys):
    assert main(["data", "toy-en"]) == 0
    assert "held-out accuracy by length alone         0.5" in capsys.readouterr().out


def test_a_small_run_prints_the_card_and_leaves_a_report(gpt2_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["--backbone", str(gpt2_folder), "--max-len", "63", "--sft-epochs", "1", "--rm-epochs", "1", "--batch", "4",
             "--new-tokens", "4", "--steps", "2", "--data", str(_small_data(tmp_path))]  # fmt: skip
    status = main(["run", *small, "--seeds", "0", "1"])
    out = capsys.readouterr().out
    assert status == 2, "a run that misses a threshold says so in its exit status"
    assert out.count("of 7 points passed") == 2
    for name in ("mean", "spread", "judge after", "max approx_kl"):
        assert name in out
    reports = sorted(path.relative_to(tmp_path).parts[1] for path in tmp_path.rglob("report.html"))
    assert len(reports) == 3
    for path in tmp_path.rglob("report.html"):
        page = path.read_text(encoding="utf-8")
        assert "<script" not in page and "http" not in page
    pictures = sorted(path.name for path in (tmp_path / "runs").rglob("*.png"))
    assert pictures == ["ppo.png", "ppo.png", "reward_model.png", "reward_model.png", "sft.png", "sft.png"]


GOOD_RUN = {
    "sft": {"heldout_loss": [[0, 5.0], [9, 1.9]], "eos_share": 0.95},
    "reward_model": {
        "heldout_accuracy": 0.9,
        "n_heldout": 10,
        "length_only_accuracy": 0.5,
        "dropped_heldout": 0,
    },
    "ppo": {
        "before": {"judge": 0.5, "distinct_2": 0.8},
        "after": {"judge": 0.8, "distinct_2": 0.6},
        "first_ratio_error": 1e-6,
        "own_ratio_error": 0.0,
    },
    "history": [{"approx_kl": 0.01, "kl_to_ref": 1.0}],
}
PAIRS = {
    "toy": Dataset.from_dict({"chosen": ["a"] * 10}),
    # by its scores (below), the reward model is right on 8 of the 10 clear pairs and on none of the others
    "ratings": Dataset.from_dict({"margin": ["0.5 to 1"] * 10 + ["1 to 2"] * 5 + ["2 and more"] * 5}),
}


@pytest.fixture
def failed_points(gpt2_folder, tmp_path):
    """Which points of the card fail when a good run on some data is changed in one place."""
    (tmp_path / "reward_model").mkdir()
    scores = {"chosen": [0.0] * 10 + [1.0] * 8 + [0.0] * 2, "rejected": [0.5] * 20}
    (tmp_path / "reward_model" / "heldout_scores.json").write_text(json.dumps(scores))
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft" / "model").symlink_to(gpt2_folder)
    solutions = load_code("solutions")

    def failed(changes=None, data_name="toy", **replaced_in_ppo):
        figures = copy.deepcopy(GOOD_RUN)
        for (part, *path, last), value in (changes or {}).items():
            place = figures[part]
            for key in path:
                place = place[key]
            place[last] = value
        ppo = SimpleNamespace(**{**vars(solutions.ppo), **replaced_in_ppo})
        code = dataclasses.replace(solutions, ppo=ppo)
        data = SimpleNamespace(name=data_name, pairs_heldout=PAIRS[data_name])
        lab = Lab(Settings(), tmp_path, choose_compute("cpu"), code, tmp_path, None, data, None, None)
        return [point.number for point in score_card(Results(lab, **figures)) if not point.passed]

    return failed


def test_a_good_run_passes_and_each_figure_that_falls_short_fails_its_own_point(failed_points):
    assert failed_points() == []
    for number, changes in [
        (1, {("sft", "heldout_loss", 1): [9, 2.1]}),
        (1, {("sft", "eos_share"): 0.85}),
        (2, {("reward_model", "heldout_accuracy"): 0.84}),
        (2, {("reward_model", "length_only_accuracy"): 0.7}),
        (5, {("ppo", "first_ratio_error"): 1e-3}),
        (5, {("ppo", "own_ratio_error"): 1e-3}),
        (6, {("history", 0, "approx_kl"): 0.06}),
        (6, {("history", 0, "kl_to_ref"): 99.0}),
        (7, {("ppo", "after", "judge"): 0.7}),
        (7, {("ppo", "after", "distinct_2"): 0.3}),
    ]:
        assert failed_points(changes) == [number], changes
    assert failed_points({("history", 0, "approx_kl"): -0.01}) == [5]
    assert failed_points({("ppo", "first_ratio_error"): float("nan")}) == [5]


def test_human_feedback_asks_for_a_gain_and_for_the_clear_pairs(failed_points):
    reached = {
        ("sft", "heldout_loss", 1): [9, 3.1],
        ("ppo", "after", "judge"): 0.66,
        ("ppo", "after", "distinct_2"): 0.7,
    }
    assert failed_points(reached, "ratings") == []
    for number, changes in [
        (1, {("sft", "heldout_loss", 1): [9, 5.1]}),
        (2, {("reward_model", "length_only_accuracy"): 0.7}),
        (7, {("ppo", "after", "judge"): 0.64}),
        (7, {("ppo", "after", "distinct_2"): 0.6}),
    ]:
        assert failed_points({**reached, **changes}, "ratings") == [number], changes
    # all pairs count where the margins cannot be told, since some were left out
    assert failed_points(
        {**reached, ("reward_model", "dropped_heldout"): 1, ("reward_model", "heldout_accuracy"): 0.7},
        "ratings",
    ) == [2]


def test_points_3_to_5_are_measured_on_the_handed_code(failed_points):
    class Detached(solutions_ppo.PolicyWithValueHead):
        def forward(self, *args, **kwargs):
            logits, values = super().forward(*args, **kwargs)
            return logits, values.detach() + 0 * sum(p.sum() for p in self.value_head.parameters())

    class TwoPasses(solutions_ppo.PolicyWithValueHead):
        def forward(self, *args, **kwargs):
            super().forward(*args, **kwargs)
            return super().forward(*args, **kwargs)

    def leaky(rewards, values, mask, gamma, lam):
        advantages, returns = solutions_ppo.compute_gae(rewards, values, torch.ones_like(mask), gamma, lam)
        return advantages * mask, returns * mask

    def unclipped(*args, **kwargs):
        return solutions_ppo.ppo_losses(*args, **{**kwargs, "clip_range": 1e9})

    assert failed_points(PolicyWithValueHead=Detached) == [3]
    assert failed_points(PolicyWithValueHead=TwoPasses) == [3]
    assert failed_points(compute_gae=leaky) == [4]
    assert failed_points(compute_gae=lambda rewards, *_: (rewards, rewards * float("nan"))) == [4]
    assert failed_points(ppo_losses=unclipped) == [5]


def test_the_printed_card_fits_a_terminal():
    points = [Point(1, "a name", "a figure", "a threshold", True), Point(2, "another", "1", "2", False)]
    assert format_card(points).splitlines() == [
        "1  pass  a name: a figure",
        "         asked: a threshold",
        "2  FAIL  another: 1",
        "         asked: 2",
        "1 of 2 points passed",
    ]


def _small_data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    prompts = ["the garden", "the soup", "the room", "this weather"]
    rows = {
        "sft": [{"prompt": p, "response": " was warm"} for p in prompts],
        "pairs": [{"prompt": p, "chosen": " was warm", "rejected": " was cold"} for p in prompts],
        "prompts": [{"prompt": p} for p in prompts],
    }
    for kind, content in rows.items():
        for split in ("train", "heldout"):
            (folder / f"{kind}_{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    return folder
