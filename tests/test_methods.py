"""PPO, DPO and GRPO beside each other: what is measured, and what of it counts as reached. They are not trained here."""

import copy
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
import torch
from datasets import Dataset

from rlhf_lab import methods
from rlhf_lab.backbones import load_causal_lm, load_tokenizer
from rlhf_lab.checkpoints import SFT
from rlhf_lab.cli import main
from rlhf_lab.errors import LabError
from rlhf_lab.methods.start import start_of_run, start_shipped
from rlhf_lab.runs import FORMAT
from rlhf_lab.sampling import Samples
from rlhf_lab.settings import Settings

REACHED = methods.Outcome("ppo", 0, 0.5, 0.9, 6.0, 0.7, 0.95, 0.02, None, None, 60.0, 400.0)
DPO = dataclasses.replace(REACHED, method="dpo", approx_kl=None, accuracy=0.9, margin=1.0)


@pytest.fixture(scope="module")
def sft():
    return load_causal_lm(SFT).requires_grad_(False)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(SFT)


@pytest.mark.parametrize(
    "outcome, missed",
    [
        (REACHED, []),
        (dataclasses.replace(REACHED, judge=0.74), ["judge"]),
        (dataclasses.replace(REACHED, kl_to_ref=16.0), ["KL to the reference"]),
        (dataclasses.replace(REACHED, distinct_2=0.4, approx_kl=0.06), ["distinct-2", "approx_kl"]),
        (dataclasses.replace(REACHED, judge=float("nan")), ["judge"]),
        (DPO, []),
        (dataclasses.replace(DPO, judge=0.6), []),  # its preference data is not the judge's scale
        (
            dataclasses.replace(DPO, accuracy=0.84, margin=-0.1, eos_share=0.5),
            ["accuracy", "margin", "EOS share"],
        ),
    ],
)
def test_an_outcome_says_what_it_missed(outcome, missed):
    assert outcome.missed == missed


def test_the_kl_of_a_model_to_itself_is_zero(sft, tokenizer):
    found = methods.measure(sft, sft, tokenizer)
    assert found["kl_to_ref"] == 0.0
    assert 0.4 < found["judge"] < 0.7 and found["eos_share"] > 0.9


def test_the_mean_log_ratio_counts_every_response_token_and_its_eos(sft, tokenizer):
    """A model whose logits of one token are raised by 1: by hand, from the library's own loss."""
    other = copy.deepcopy(sft)
    other.transformer.wte.weight[5] *= 3
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in (" was excellent.", " dull")]
    prompts, eos = ["The film", "关于这家餐厅："], tokenizer.eos_token_id
    samples = Samples(prompts, ["", ""], [True, False], ids)
    expected = 0.0
    for prompt, response, ended in zip(prompts, ids, samples.ended):
        row = tokenizer(prompt, add_special_tokens=False).input_ids
        response = response + [eos] * ended
        full = torch.tensor([row + response])
        labels = torch.tensor([[-100] * len(row) + response])
        loss = [model(input_ids=full, labels=labels).loss.item() * len(response) for model in (other, sft)]
        expected += (loss[1] - loss[0]) / 2
    assert expected != pytest.approx(0, abs=1e-3)
    assert methods._mean_log_ratio(other, sft, tokenizer, samples) == pytest.approx(expected, abs=1e-4)


def test_held_out_pairs_are_judged_by_the_implicit_reward(sft, tokenizer):
    start = start_shipped("solutions")
    assert methods._on_pairs(start, sft, sft) == (0.0, 0.0)  # a tie is not correct
    data = dataclasses.replace(start.data, pairs_heldout=start.data.pairs_heldout.select(range(40)))
    other = copy.deepcopy(sft)
    other.transformer.wte.weight[:500] *= 1.1
    accuracy, margin = methods._on_pairs(dataclasses.replace(start, data=data), other, sft)
    swapped = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in data.pairs_heldout]
    data = dataclasses.replace(data, pairs_heldout=Dataset.from_list(swapped))
    other_way = methods._on_pairs(dataclasses.replace(start, data=data), other, sft)
    assert other_way == (pytest.approx(1 - accuracy), pytest.approx(-margin, abs=1e-6))


def test_the_recorded_rows_are_of_all_three():
    rows = methods.recorded_methods()
    assert [row["method"].split(",")[0] for row in rows] == ["PPO", "DPO", "GRPO"]
    assert all("mean of 3 seeds" in row["method"] for row in rows)


def test_every_recorded_outcome_reaches_what_is_asked():
    outcomes = [methods.Outcome(**entry) for entry in methods.read_json(methods.RECORDED)["outcomes"]]
    assert [(outcome.method, outcome.seed) for outcome in outcomes] == [
        (method, seed) for method in methods.METHODS for seed in (0, 1, 2)
    ]
    assert [outcome for outcome in outcomes if outcome.missed] == []


def test_a_method_that_there_is_not_is_one_sentence(capsys):
    assert main(["methods", "reinforce"]) == 1
    assert capsys.readouterr().err == "error: there is no method reinforce: there are ppo, dpo, grpo\n"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (None, "is not a run folder: train one first"),
        (
            {"method": "ppo", "processes": 2},
            "was made by another version of the course or by another command",
        ),
        ({}, "has not finished its stage sft"),
    ],
    ids=["no run", "several processes", "unfinished"],
)
def test_a_run_that_cannot_be_started_from_is_one_sentence(settings, sentence, tmp_path):
    if settings is not None:
        header = {"format": FORMAT, "settings": {**dataclasses.asdict(Settings()), **settings}}
        (tmp_path / "run.json").write_text(json.dumps(header))
    with pytest.raises(LabError, match=sentence):
        start_of_run("solutions", tmp_path)


def test_a_training_that_is_killed_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(methods, "_send", killed)
    assert main(["methods", "dpo"]) == 1
    sentence = "error: the training with dpo was ended from outside (exit code -9)\n"
    assert capsys.readouterr().err == sentence


def killed(*_) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_training_raises_is_raised_here(capsys):
    assert main(["methods", "dpo", "--code", "rlhf_exercises"]) == 1
    assert capsys.readouterr().err.startswith("not written yet: exercise 1.1")


class OwnError(Exception):
    """Of the kind that does not come through a pipe in one piece."""

    def __init__(self, number, text):
        super().__init__(text)


def failing(*_) -> None:
    raise OwnError(3, "the mask is empty")


def test_an_exception_of_taught_code_keeps_its_words(monkeypatch):
    monkeypatch.setattr(methods, "run_method", failing)
    monkeypatch.setattr(methods, "_end_with_parent", lambda: None)  # this process has none to end with
    sent = []
    methods._send(SimpleNamespace(send=sent.append), "solutions", "dpo", 0, None)
    assert str(sent[0]).startswith(
        "the training with dpo has failed: OwnError: the mask is empty (test_methods.py, line"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_training_ends_when_the_command_is_killed():
    script = (
        "from rlhf_lab import methods\n"
        "import tests.test_methods as here\n"
        "methods.run_method = here.endless\n"
        "methods._send = here.send_from_here\n"
        "methods.compare_methods('solutions', ['dpo'], [0])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    assert (
        parent.stdout.read() == ""
    )  # closed by the last process that held it, which would else go on for an hour
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


SEND = methods._send


def send_from_here(*arguments) -> None:
    methods.run_method = endless
    SEND(*arguments)


def endless(*_) -> None:
    print(os.getpid(), flush=True)
    time.sleep(3600)
