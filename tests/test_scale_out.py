"""PPO and GRPO over several processes: two ranks do what one does, and stop together."""

import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from rlhf_lab.errors import LabError
from rlhf_lab.lab import open_lab
from rlhf_lab.runs import FORMAT, read_json, read_tensors
from rlhf_lab.scale_out import __main__ as command
from rlhf_lab.scale_out import ranks, steps, training
from rlhf_lab.settings import Settings

CHECKOUT = Path(__file__).parent.parent
LIMIT = 600  # seconds, for a machine that is busy; a launch takes about twenty

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="the launcher needs gloo and signals of POSIX"
)


def launched(*program: str, processes: int = 2) -> list[str]:
    # the launcher's own name for several processes on one machine; port 0 is any free one
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(processes)]
    return [sys.executable, *launcher, "--main_process_port", "0", *program]


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {**clean, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(CHECKOUT)}


def launch(*program: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        launched(*program), env=environment(), cwd=CHECKOUT, capture_output=True, text=True, timeout=LIMIT
    )


# --- the gradient of two ranks ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparisons():
    """Of two gloo processes with one, by quantity."""
    done = launch("-m", "authoring.scale_out", "--json")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("[{")] or [done.stderr]
    return {row["quantity"]: row["error"] for row in json.loads(line)}


@pytest.mark.parametrize(
    "quantity",
    [
        "PPO: gradient",
        "PPO: gradient, clipped",
        "PPO: figures",
        "PPO: gradient, through DistributedDataParallel",
        "GRPO: gradient",
        "GRPO: figures",
        "`train_rm` as it is, prepared by Accelerate: gradient",
    ],
)
def test_two_ranks_have_what_one_process_has(comparisons, quantity):
    assert comparisons[quantity] < 1e-5


@pytest.mark.parametrize(
    "mistake, at_least",
    [
        ("PPO: gradient, whitened on each rank alone", 1e-2),
        ("PPO: gradient, mean of the ranks' means", 1e-2),
        ("`train_sft` as it is, prepared by Accelerate: gradient", 1e-3),
    ],
)
def test_a_mistake_in_putting_the_ranks_together_is_far_off(comparisons, mistake, at_least):
    assert comparisons[mistake] > at_least


def test_the_two_ranks_of_the_comparison_differ_in_length_and_number_of_tokens():
    from authoring.scale_out import ppo_batch

    _, rollout = ppo_batch()
    lengths = rollout.response_mask.sum(-1)
    short, long = lengths[:4], lengths[4:]
    assert short.max() < long.max() and short.sum() < 0.8 * long.sum()


# --- training -----------------------------------------------------------------------------------------


def test_after_three_steps_both_ranks_hold_the_same_weights_and_have_sampled_answers_of_their_own(tmp_path):
    done = launch("tests/programs/three_steps.py", str(tmp_path))
    assert done.returncode == 0, done.stderr
    first, second = (read_json(tmp_path / f"rank{rank}.json") for rank in (0, 1))
    assert first["weights"] == second["weights"]
    figures = [{**row, "seconds": 0} for row in first["history"]]
    assert figures == [{**row, "seconds": 0} for row in second["history"]] and len(figures) == 3
    assert all(math.isfinite(value) for row in figures for value in row.values())
    assert all(len(texts) == 2 for texts in first["sampled"] + second["sampled"])
    assert first["sampled"] != second["sampled"]


def test_trouble_on_one_rank_ends_both_with_its_sentence(tmp_path):
    done = launch("tests/programs/three_steps.py", str(tmp_path), "nan-reward")  # who waits would never end
    assert done.returncode != 0
    sentence = "rlhf_lab.errors.LabError: rank 1: the reward rm returned nan for row 0 of the batch"
    assert sentence in done.stderr
    assert not list(tmp_path.glob("rank*.json"))


def test_the_command_speaks_with_one_voice_and_writes_one_folder(tmp_path):
    folder = tmp_path / "run"
    options = ["--steps", "2", "--batch", "8", "--group", "2", "--new-tokens", "8", "--run", str(folder)]
    done = launch("-m", "rlhf_lab.scale_out", "--device", "cpu", "--method", "grpo", *options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("grpo on 2 processes, 8 responses a step over all of them")
    assert [re.match(r"step +(\d)/2  mean_reward", line)[1] for line in lines[1:3]] == ["1", "2"]
    assert lines[3:] == [f"written: {folder}"]
    assert len(read_json(folder / "history.json")) == 2
    assert "transformer.wte.weight" in read_tensors(folder / "policy.safetensors")


def test_what_the_user_did_wrong_is_said_once(tmp_path):
    done = launch(
        "-m", "rlhf_lab.scale_out", "--device", "cpu", "--batch", "7", "--run", str(tmp_path / "run")
    )
    assert done.returncode != 0
    assert (
        done.stderr.count(
            "error: --batch 7 cannot be shared out equally to 2 processes: give a multiple of 2"
        )
        == 1
    )
    assert "Traceback" not in done.stderr.partition("torch/distributed/elastic")[0]  # then the launcher's own
    assert not (tmp_path / "run").exists()


def test_an_interrupt_leaves_no_process_behind(tmp_path):
    folder = tmp_path / "run"
    options = ["--steps", "10000", "--batch", "4", "--new-tokens", "4", "--run", str(folder)]
    process = subprocess.Popen(
        launched("-m", "rlhf_lab.scale_out", "--device", "cpu", *options),
        env=environment(), cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        while not process.stdout.readline().startswith("step"):
            assert process.poll() is None
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) >= 2
        os.killpg(process.pid, signal.SIGINT)  # Ctrl-C reaches every process of the terminal
        _, left = psutil.wait_procs(workers, timeout=LIMIT)
        assert left == []
        process.communicate(timeout=LIMIT)
        assert process.returncode != 0
        assert len(read_json(folder / "history.json")) > 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


# --- one rank, in this process ------------------------------------------------------------------------


@pytest.fixture
def alone():
    return ranks.start_accelerator("cpu")


def test_one_rank_takes_the_very_step_of_the_taught_function(alone):
    lab = open_lab(Settings(device="cpu"), Path())
    ppo, outcomes = lab.code.ppo, []
    for step in (ppo.ppo_step, lambda *args, **settings: steps.ppo_step(ppo, alone, *args, **settings)):
        start = training.load_start(lab, from_run=False)
        torch.manual_seed(0)
        batch = ppo.rollout(
            start.policy, start.ref_policy, start.reward_fn, start.tokenizer, start.prompts[:4], 8
        )
        info = step(start.policy, torch.optim.SGD(start.policy.parameters(), lr=0.1), batch, ppo_epochs=2)
        outcomes.append((info, start.policy.state_dict()))
    (info, weights), (found, found_weights) = outcomes
    assert found == pytest.approx(info, rel=1e-6)
    assert all(torch.equal(found_weights[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_shipped_start_is_read_in_float32(dtype):
    lab = open_lab(Settings(device="cpu", dtype=dtype), Path())
    start = training.load_start(lab, from_run=False)
    with lab.compute.autocast():
        batch = lab.code.ppo.rollout(
            start.policy, start.ref_policy, start.reward_fn, start.tokenizer, start.prompts[:2], 4
        )
    read = batch.old_logprobs, batch.ref_logprobs, batch.old_values, batch.rm_score
    assert {tensor.dtype for tensor in read} == {torch.float32}


def test_each_rank_of_each_run_has_a_seed_of_its_own():
    seeds = {ranks.seed_for_rank(seed, rank) for seed in range(20) for rank in range(20)}
    assert len(seeds) == 400


def test_every_row_belongs_to_one_rank_and_an_unequal_share_is_refused(alone):
    class Rank:
        num_processes = 3

        def __init__(self, process_index):
            self.process_index = process_index

    shares = [ranks.own_rows(Rank(index), range(6)) for index in range(3)]
    assert shares == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(LabError, match="7 prompts in a batch cannot be shared out equally to 3 processes"):
        ranks.own_rows(Rank(0), range(7))


def test_a_rank_that_has_drifted_away_is_noticed():
    class Ranks:
        def __init__(self, drift: float):
            self.drift = drift

        def gather(self, own):
            return torch.cat([own, own + self.drift])

    model = torch.nn.Linear(2, 2)
    ranks.check_same_weights(Ranks(0.0), model)
    with pytest.raises(LabError, match="the ranks hold different weights"):
        ranks.check_same_weights(Ranks(1e-9), model)


def test_a_batch_of_broken_groups_is_refused():
    training.check_batch(16, group_size=4, n_ranks=2)
    with pytest.raises(LabError, match="--batch 12 .* to 2 processes in groups of 4: give a multiple of 8"):
        training.check_batch(12, group_size=4, n_ranks=2)


def test_a_launcher_that_started_one_process_instead_of_two_is_noticed(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    with pytest.raises(LabError, match="--multi_gpu --num_processes N"):
        ranks.start_accelerator("cpu")


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(LabError, match="4 processes were started on a machine with 2 GPUs"):
        ranks.start_accelerator("auto")


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--backbone", "smollm2"], "--backbone smollm2 needs --start RUN"),
        (["--steps", "0"], "--steps is 0: it must be positive"),
        (["--seed", "-1"], "--seed is -1: it must be at least 0"),
        (["--kl-coef", "nan"], "--kl-coef is nan: it must be at most 1000000"),
        (["--method", "grpo", "--group", "1"], "--group is 1: a group needs at least 2 responses"),
        (["--start", "no-such-run"], "no-such-run is not a run folder"),
        (["--device", "tpu"], "--device is 'tpu': use auto or cpu"),
    ],
)
def test_a_wrong_option_is_one_sentence(options, sentence, tmp_path, capsys):
    assert command.main(["--run", str(tmp_path / "run"), *options]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and sentence in said and said.count("\n") == 1


def test_a_folder_that_is_there_already_is_left_alone(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    assert command.main(["--run", str(tmp_path), "--device", "cpu", "--batch", "2"]) == 1
    assert "is there already: give --run the name of a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_whose_earlier_stages_are_unfinished_is_refused(tmp_path, capsys):
    settings = dataclasses.asdict(Settings())
    (tmp_path / "run.json").write_text(json.dumps({"format": FORMAT, "settings": settings}), encoding="utf-8")
    assert command.main(["--start", str(tmp_path), "--device", "cpu", "--run", str(tmp_path / "new")]) == 1
    assert "has not finished its stage sft" in capsys.readouterr().err


def test_a_run_of_another_version_is_refused(tmp_path, capsys):
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    assert command.main(["--start", str(tmp_path), "--device", "cpu", "--run", str(tmp_path / "new")]) == 1
    assert "was made by another version of the course" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_train_together(tmp_path):
    done = launch("-m", "rlhf_lab.scale_out", "--steps", "2", "--run", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "2 processes" in done.stdout and "cuda" in done.stdout
