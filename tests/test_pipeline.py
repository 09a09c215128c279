"""The pipeline on a small random model: resumed, repeated, stopped, and handed bad input."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rlhf_lab.devices import choose_compute
from rlhf_lab.errors import LabError
from rlhf_lab.lab import open_lab
from rlhf_lab.pipeline import run_pipeline, start_over
from rlhf_lab.profiles import PROFILES, Profile
from rlhf_lab.runs import Run, read_tensors
from rlhf_lab.settings import Settings
from rlhf_lab.stages.ppo import optimizer_of
from rlhf_lab.taught_code import load_code
from rlhf_lab.watch import StageWatch

CHECKOUT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    """A few rows a file: what is tested here is the machinery."""
    folder = tmp_path_factory.mktemp("data")
    prompts = ["the garden", "the soup", "the room", "this weather"]
    rows = {
        "sft": [{"prompt": p, "response": f" was {w}"} for p in prompts for w in ("warm", "lovely", "rare")],
        "pairs": [
            {"prompt": p, "chosen": f" was {good}", "rejected": f" was {bad}"}
            for p in prompts
            for good in ("warm", "lovely")
            for bad in ("cold", "grey")
        ],
        "prompts": [{"prompt": p} for p in prompts],
    }
    for kind, content in rows.items():
        for split in ("train", "heldout"):
            text = "".join(json.dumps(row) + "\n" for row in content)
            (folder / f"{kind}_{split}.jsonl").write_text(text)
    return folder


@pytest.fixture
def settings(gpt2_folder, data_folder):
    def make(**changes):
        small = dict(
            max_len=24, sft_epochs=2, sft_batch=4, rm_epochs=1, rm_batch=4, batch=4, new_tokens=5, steps=3
        )
        return Settings(
            backbone=str(gpt2_folder), data=str(data_folder), judge="vader", **{**small, **changes}
        )

    return make


def without_times(history):
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in history]


def test_every_stage_leaves_checkpoint_history_and_figures(settings, tmp_path):
    results = run_pipeline(open_lab(settings(), tmp_path / "run"))
    found = {
        str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()
    }
    for stage, checkpoint in [("sft", "model/model.safetensors"), ("reward_model", "model.safetensors"),
                              ("ppo", "policy.safetensors")]:  # fmt: skip
        assert {
            f"{stage}/{name}" for name in (checkpoint, "history.json", "figures.json", "stage.json")
        } <= found
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["new_tokens"] == 5
    assert len(json.loads((tmp_path / "run" / "sft" / "history.json").read_text())["loss"]) == 6
    assert [point[0] for point in results.sft["heldout_loss"]] == [0, 3, 6]
    assert len(results.history) == 3
    wanted = {
        "mean_reward",
        "judge",
        "approx_kl",
        "kl_to_ref",
        "clipfrac",
        "policy_loss",
        "value_loss",
        "distinct_2",
    }
    assert wanted <= set(results.history[0])
    assert results.history[0]["kl_to_ref"] == pytest.approx(0, abs=1e-6)
    assert results.ppo["first_ratio_error"] < 1e-4
    assert results.ppo["own_ratio_error"] < 1e-4
    assert set(results.ppo["invariants"].values()) == {"held"}


def test_the_same_seed_gives_the_same_curve_and_another_seed_another(settings, tmp_path):
    runs = [
        run_pipeline(open_lab(settings(seed=seed), tmp_path / str(number)))
        for number, seed in enumerate((3, 3, 4))
    ]
    first, again, other = (without_times(results.history) for results in runs)
    assert first == again != other
    losses = [json.loads((tmp_path / str(n) / "sft" / "history.json").read_text())["loss"] for n in range(3)]
    assert losses[0] == losses[1] != losses[2]


def test_a_killed_run_goes_on_to_the_same_curve(settings, tmp_path):
    """kill -9 in the middle of PPO, after its first checkpoint; nothing that was finished is trained again."""
    whole = settings(steps=16)
    expected = without_times(run_pipeline(open_lab(whole, tmp_path / "whole")).history)

    command = [sys.executable, "-m", "rlhf_lab", "run", "--run", str(tmp_path / "killed")]
    for name in ("backbone", "data", "judge", "max_len", "sft_epochs", "sft_batch", "rm_epochs", "rm_batch", "batch",
                 "new_tokens", "steps"):  # fmt: skip
        command += ["--" + name.replace("_", "-"), str(getattr(whole, name))]
    for name in ("sft_lr", "rm_lr", "ppo_lr"):
        command += ["--" + name.replace("_", "-"), str(getattr(whole, name))]
    process = subprocess.Popen(
        command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # as in this process: the order of sums is part of the curve
    )  # fmt: skip
    history = tmp_path / "killed" / "ppo" / "history.json"
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if history.exists() and len(json.loads(history.read_text())) >= 11:
            break
        time.sleep(0.005)
    assert process.poll() is None, "the run ended before it could be killed"
    process.kill()
    process.wait()

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").glob("*/stage.json")}
    assert {path.parent.name for path in before} == {"sft", "reward_model"}
    resumed = run_pipeline(open_lab(whole, tmp_path / "killed"))
    assert without_times(resumed.history) == expected
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not list((tmp_path / "killed" / "ppo").glob("step-*")), "checkpoints go when the stage is finished"


def test_a_finished_run_is_read_and_a_stage_can_be_trained_again(settings, tmp_path, capsys):
    folder = tmp_path / "run"
    first = run_pipeline(open_lab(settings(), folder))
    again = run_pipeline(open_lab(settings(), folder))
    assert again.history == first.history
    assert capsys.readouterr().out.count("finished before") == 3
    start_over(folder, "reward_model", settings())
    assert (
        (folder / "ppo.old-1").exists()
        and (folder / "reward_model.old-1").exists()
        and (folder / "sft").exists()
    )
    repeated = run_pipeline(open_lab(settings(), folder))
    assert without_times(repeated.history) == without_times(first.history)


def test_other_taught_code_is_noticed_in_its_own_stage(settings, tmp_path, monkeypatch):
    package = tmp_path / "mine"
    shutil.copytree(CHECKOUT / "solutions", package)
    monkeypatch.chdir(tmp_path)
    run_pipeline(open_lab(settings(code="mine"), tmp_path / "run"))
    with open(package / "ppo.py", "a") as file:
        file.write("# a change\n")
    with pytest.raises(LabError, match=r"ppo was made with another ppo\.py: add --fresh ppo"):
        run_pipeline(open_lab(settings(code="mine"), tmp_path / "run"))


def test_the_workbench_runs_the_package_that_it_is_handed(settings, tmp_path, monkeypatch):
    package = tmp_path / "broken_package"
    shutil.copytree(CHECKOUT / "solutions", package)
    text = (package / "reward_model.py").read_text()
    (package / "reward_model.py").write_text(text.replace("-F.logsigmoid(r_chosen", "F.logsigmoid(r_chosen"))
    monkeypatch.chdir(tmp_path)
    results = run_pipeline(open_lab(settings(code="broken_package"), tmp_path / "run"))
    losses = json.loads((results.lab.folder / "reward_model" / "history.json").read_text())
    assert losses[-1]["loss"] < 0, "the flipped loss of the handed package was not used"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import no_such_library\n", "needs the package no_such_library, which is not installed"),
        ("def f(:\n", r"sft does not parse: .*sft\.py, line 1"),
        (
            "x = 1\nraise RuntimeError('boom')\n",
            r"fails while it is imported: .*sft\.py, line 2: RuntimeError",
        ),
    ],
)
def test_a_package_that_does_not_import_is_one_sentence(settings, tmp_path, monkeypatch, source, sentence):
    package = f"package_{abs(hash(source))}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / "sft.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LabError, match=sentence):
        open_lab(settings(code=package), tmp_path / "run")


def test_an_unknown_package_is_one_sentence(settings, tmp_path):
    with pytest.raises(LabError, match=r"no module nowhere\.sft: run from the course's folder"):
        open_lab(settings(code="nowhere"), tmp_path / "run")


def test_texts_that_do_not_fit_are_named_before_anything_is_trained(settings, tmp_path):
    with pytest.raises(
        LabError, match=r"sft_train: the prompt .the soup. has 4 tokens, and --max-len 4 leaves no room"
    ):
        open_lab(settings(max_len=4), tmp_path / "run")
    with pytest.raises(LabError, match=r"prompts_train: the prompt .* does not fit into the context of 64"):
        open_lab(settings(new_tokens=63), tmp_path / "run")
    with pytest.raises(LabError, match="--max-len is 65, but .* reads 64 tokens at most"):
        open_lab(settings(max_len=65), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_judge_that_is_the_reward_is_refused(settings, tmp_path):
    with pytest.raises(LabError, match="the judge must be independent of the reward, and both are vader"):
        open_lab(settings(reward="vader"), tmp_path / "run")


def test_ppo_on_a_stand_in_trains_no_reward_model(settings, tmp_path):
    lab = open_lab(Settings(**{**vars(settings(reward="vader")), "judge": "toy"}), tmp_path / "run")
    results = run_pipeline(lab)
    assert results.reward_model is None and not (tmp_path / "run" / "reward_model").exists()


def test_sft_can_be_left_out(settings, tmp_path):
    results = run_pipeline(open_lab(settings(sft_epochs=0), tmp_path / "run"))
    assert len(results.sft["heldout_loss"]) == 1


def test_bfloat16_trains(settings, tmp_path):
    """Autocast must not go on multiplying with the weights of the first step."""
    losses = {}
    for dtype in ("float32", "bfloat16"):
        folder = tmp_path / dtype
        run_pipeline(open_lab(settings(dtype=dtype, sft_epochs=6, sft_lr=5e-3, steps=1), folder))
        losses[dtype] = json.loads((folder / "sft" / "history.json").read_text())["loss"]
    for history in losses.values():
        assert history[-1] < 0.7 * history[0]
    assert losses["bfloat16"][-1] == pytest.approx(losses["float32"][-1], rel=0.1)


def test_bfloat16_keeps_the_weights_in_float32_and_the_first_ratio_near_1(settings, tmp_path):
    results = run_pipeline(open_lab(settings(dtype="bfloat16"), tmp_path / "run"))
    assert results.ppo["first_ratio_error"] < 1e-4
    assert results.ppo["own_ratio_error"] < 1e-3
    weights = read_tensors(tmp_path / "run" / "ppo" / "policy.safetensors")
    assert {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()} == {torch.float32}


def test_the_pipeline_runs_on_a_gpu(settings, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    results = run_pipeline(open_lab(settings(device="cuda"), tmp_path / "run"))
    assert results.lab.compute.dtype == torch.bfloat16
    assert results.ppo["first_ratio_error"] < 1e-4
    assert results.ppo["own_ratio_error"] < 1e-3


def test_a_profile_changes_no_number_of_a_run(settings, llama_folder, tmp_path, monkeypatch):
    """In float32, up to the order of sums; Llama has no dropout, which would draw other masks in SFT."""
    monkeypatch.setitem(PROFILES, "3 rows", Profile("3 rows", 8, 4, rows=3, checkpointing=True))
    runs = {}
    for name in ("none", "3 rows"):
        own = dataclasses.replace(settings(profile=name), backbone=str(llama_folder))
        runs[name] = run_pipeline(open_lab(own, tmp_path / name))
    for key, value in without_times(runs["none"].history)[-1].items():
        assert runs["3 rows"].history[-1][key] == pytest.approx(value, abs=1e-4), key
    assert [runs[name].ppo["profile"] for name in runs] == ["none", "3 rows"]
    assert set(runs["3 rows"].ppo["invariants"].values()) == {"held"}


def test_a_full_gpu_is_one_sentence_and_the_command_that_it_gives_goes_on(settings, tmp_path, monkeypatch):
    """The memory is full in PPO as long as more than four responses are read at a time."""
    package = tmp_path / "fills_the_card"
    shutil.copytree(CHECKOUT / "solutions", package)
    with open(package / "ppo.py", "a") as file:
        file.write(
            "\n\nwhole_forward = PolicyWithValueHead.forward\n\n\n"
            "def forward(self, input_ids, *args, **kwargs):\n"
            "    if len(input_ids) > 4:\n"
            "        raise torch.OutOfMemoryError('CUDA out of memory')\n"
            "    return whole_forward(self, input_ids, *args, **kwargs)\n\n\n"
            "PolicyWithValueHead.forward = forward\n"
        )
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    with pytest.raises(
        LabError,
        match=r"the memory of the device was full in ppo: .*needs 0\.\d GiB by computation without a profile; "
        r"give the same command with --profile 8gb \(0\.\d GiB\) and without --fresh: what was finished is kept",
    ):
        run_pipeline(open_lab(settings(code="fills_the_card", batch=6), folder))
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("*/stage.json")}
    assert {path.parent.name for path in finished} == {"sft", "reward_model"}
    results = run_pipeline(open_lab(settings(code="fills_the_card", batch=6, profile="8gb"), folder))
    assert len(results.history) == 3 and results.ppo["profile"] == "8gb"
    assert {path: path.stat().st_mtime_ns for path in finished} == finished


def test_a_full_gpu_under_the_smallest_profile_asks_for_a_smaller_batch(settings, tmp_path, monkeypatch):
    lab = open_lab(settings(profile="8gb", sft_batch=8), tmp_path / "run")

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(lab.code.sft, "train_sft", full)
    with pytest.raises(
        LabError, match=r"full in sft: .*with --sft-batch 4 --fresh: another batch makes another"
    ):
        run_pipeline(lab)
    monkeypatch.undo()
    smaller = settings(profile="8gb", sft_batch=4)
    start_over(tmp_path / "run", None, smaller)  # what --fresh does
    run_pipeline(open_lab(smaller, tmp_path / "run"))


def test_a_learning_rate_that_breaks_the_policy_stops_with_step_tensor_and_checkpoint(settings, tmp_path):
    with pytest.raises(
        LabError, match=r"ppo, step \d+: \w+ (holds|is) .*; the last good checkpoint is .*run/sft/model"
    ):
        run_pipeline(open_lab(settings(ppo_lr=1e30), tmp_path / "run"))
    with pytest.raises(
        LabError, match=r"sft, step \d+: \w+ (holds|is) .*; the last good checkpoint is the backbone"
    ):
        run_pipeline(open_lab(settings(sft_lr=1e30), tmp_path / "run2"))
    assert not (tmp_path / "run2" / "sft" / "model").exists()


def test_a_student_who_mends_a_stage_that_failed_goes_on_without_a_flag(settings, tmp_path, monkeypatch):
    package = tmp_path / "half_done"
    shutil.copytree(CHECKOUT / "solutions", package)
    monkeypatch.chdir(tmp_path)
    lab = open_lab(settings(code="half_done"), tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(lab.code.ppo, "compute_gae", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_pipeline(lab)
    with open(package / "ppo.py", "a") as file:
        file.write("# mended\n")
    run_pipeline(lab)


def test_what_a_taught_function_returned_is_one_sentence(settings, tmp_path, monkeypatch):
    lab = open_lab(settings(), tmp_path / "run")
    for module, function, result, sentence in [
        ("sft", "train_sft", None, r"train_sft returned nothing \(None\), not a list of 6 numbers"),
        ("sft", "train_sft", [0.1], r"train_sft returned a list of 1 \(float\), not a list of 6 numbers"),
        (
            "reward_model",
            "train_rm",
            [0.1] * 4,
            "train_rm returned a float, not a dictionary with loss, accuracy",
        ),
        ("reward_model", "train_rm", [{"loss": 0.1}] * 4, "train_rm returned no accuracy; it returned loss"),
        ("ppo", "ppo_step", {"policy_loss": 0.1}, "ppo_step returned no value_loss; it returned policy_loss"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(getattr(lab.code, module), function, lambda *_, **__: result)
            with pytest.raises(LabError, match=sentence):
                run_pipeline(lab)

    rollout = lab.code.ppo.rollout

    def without_eos(*arguments):
        batch = rollout(*arguments)
        batch.response_mask[1] = 0
        return batch

    def full_length(*arguments):
        batch = rollout(*arguments)
        batch.old_values = torch.zeros_like(batch.full_ids)
        return batch

    for broken, sentence in [
        (without_eos, "row 1 of response_mask has no valid token; the first EOS counts as one"),
        (full_length, r"old_values is a tensor \[4, \d+\], and response_mask is \[4, \d+\]"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(lab.code.ppo, "rollout", broken)
            with pytest.raises(LabError, match=sentence):
                run_pipeline(lab)


def test_a_nan_loss_is_stopped_in_its_own_step_before_it_reaches_the_weights(settings, tmp_path, monkeypatch):
    lab = open_lab(settings(), tmp_path / "run")
    loss = lab.code.sft.masked_ce_loss
    calls = []

    def nan_at_step_2(logits, labels):
        calls.append(1)
        return loss(logits, labels) * (float("nan") if len(calls) == 3 else 1)

    monkeypatch.setattr(lab.code.sft, "masked_ce_loss", nan_at_step_2)
    with pytest.raises(
        LabError, match="sft, step 2: the gradient of the loss holds NaN or infinity; the last good"
    ):
        run_pipeline(lab)


def test_a_training_that_skips_its_steps_is_not_finished(settings, tmp_path, monkeypatch):
    lab = open_lab(settings(), tmp_path / "run")
    monkeypatch.setattr(lab.code.ppo, "train_ppo", lambda *_, **__: [])
    with pytest.raises(LabError, match="train_ppo called on_step 0 times, not once for each of 3 steps"):
        run_pipeline(lab)
    assert not (tmp_path / "run" / "ppo" / "stage.json").exists()


def test_weights_that_the_last_step_broke_are_not_kept(settings, tmp_path, monkeypatch):
    lab = open_lab(settings(), tmp_path / "run")
    train_sft = lab.code.sft.train_sft

    def broken(model, *arguments, **options):
        losses = train_sft(model, *arguments, **options)
        with torch.no_grad():
            next(model.parameters())[0] = float("nan")
        return losses

    monkeypatch.setattr(lab.code.sft, "train_sft", broken)
    with pytest.raises(
        LabError, match="sft, step 6: transformer.wte.weight holds NaN or infinity after the last step"
    ):
        run_pipeline(lab)


def test_a_run_does_not_go_on_in_another_precision(settings, tmp_path):
    lab = open_lab(settings(), tmp_path / "run")
    run_pipeline(lab)
    elsewhere = dataclasses.replace(
        lab, compute=choose_compute("cpu", "bfloat16")
    )  # as `auto` would on a GPU
    with pytest.raises(LabError, match="sft was made with another device or dtype"):
        run_pipeline(elsewhere)


def test_a_helper_beside_the_taught_modules_is_part_of_the_code(tmp_path, monkeypatch):
    shutil.copytree(CHECKOUT / "solutions", tmp_path / "with_helper")
    monkeypatch.chdir(tmp_path)
    code = load_code("with_helper")
    before = code.fingerprint("sft"), code.fingerprint("sft", "reward_model")
    (tmp_path / "with_helper" / "ppo.py").write_text("# of a later stage")
    (tmp_path / "with_helper" / "notebooks" / "01_sft.py").write_text("# the source of a notebook")
    assert (code.fingerprint("sft"), code.fingerprint("sft", "reward_model")) == before
    (tmp_path / "with_helper" / "helper.py").write_text("BONUS = 1")
    assert code.fingerprint("sft") != before[0]


def test_start_over_leaves_alone_what_is_not_an_idle_run(settings, tmp_path):
    (tmp_path / "thesis").mkdir()
    with pytest.raises(LabError, match="thesis is not a run folder: it is left as it is"):
        start_over(tmp_path / "thesis", None, settings())
    run = Run(tmp_path / "run", {})
    with pytest.raises(LabError, match="another process is working in"):
        start_over(tmp_path / "run", None, settings())
    run.close()
    with pytest.raises(LabError, match="begun with backbone = None"):  # the stages that stay would be others
        start_over(tmp_path / "run", "ppo", settings())
    start_over(tmp_path / "run", None, settings())
    assert not (tmp_path / "run").exists() and (tmp_path / "run.old-1" / "run.json").exists()


def test_the_watch_names_the_first_step_that_is_not_finite():
    with StageWatch("reward model", 3, last_good="runs/x/sft") as watch:
        with pytest.raises(
            LabError, match="reward model, step 1: loss is nan; the last good checkpoint is runs/x/sft"
        ):
            watch.losses([0.1, float("nan"), 0.2])


def test_the_rate_of_ppo_rises_over_the_warm_up_and_a_resumed_run_goes_on_with_it(
    settings, tmp_path, monkeypatch
):
    seen = []

    def noted_step(policy, optim, batch, **kwargs):
        seen.append([group["lr"] for group in optim.param_groups])
        if len(seen) == 4:  # one step after the last checkpoint
            raise KeyboardInterrupt
        return ppo_step(policy, optim, batch, **kwargs)

    chosen = settings(ppo_lr=1e-3, ppo_warmup=4, value_lr_factor=5.0, steps=6)
    lab = open_lab(chosen, tmp_path / "run")
    ppo_step = lab.code.ppo.ppo_step
    monkeypatch.setattr(lab.code.ppo, "ppo_step", noted_step)
    monkeypatch.setattr("rlhf_lab.stages.ppo.CHECKPOINT_EVERY", 2)
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(lab)
    run_pipeline(lab)
    model, value_head = zip(*seen)
    assert model == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 7.5e-4, 1e-3, 1e-3, 1e-3])
    assert value_head == pytest.approx([5e-3] * 8)


def test_the_optimizer_has_each_weight_once_and_the_value_head_apart(settings, tmp_path):
    lab = open_lab(settings(), tmp_path / "run")
    policy = lab.code.ppo.PolicyWithValueHead(str(lab.base))
    model, head = optimizer_of(policy, settings(value_lr_factor=5.0)).param_groups
    assert {*map(id, head["params"])} == {*map(id, policy.value_head.parameters())}
    assert sorted(map(id, model["params"] + head["params"])) == sorted(map(id, policy.parameters()))
