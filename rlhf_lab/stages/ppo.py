"""Stage 3: PPO, with the judge beside the reward and checkpoints on the way."""

import copy
import dataclasses
import time
from pathlib import Path

import torch
from tqdm import tqdm

from .. import backbones, rewards
from ..checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from ..devices import reads_in_float32
from ..errors import LabError
from ..invariants import watch_invariants
from ..lab import Lab
from ..passes import in_passes
from ..returned import check_rollout, checked_ppo_info
from ..runs import read_json, read_tensors, write_json, write_tensors
from ..sampling import judged_samples, look_at, token_logprobs
from ..settings import Settings
from ..thresholds import ALONE_ERROR, RATIO_ERROR
from ..watch import StageWatch
from .reward_model import load_reward

CHECKPOINT_EVERY = 10  # steps


def train(lab: Lab, folder: Path) -> dict:
    """Train the policy; leaves `policy.safetensors`, `history.json`, samples and an example rollout."""
    policy, ref_policy = load_policies(lab)
    with in_passes(lab.profile, policy, ref_policy):
        return _train(lab, folder, policy, ref_policy)


def _train(lab: Lab, folder: Path, policy, ref_policy) -> dict:
    settings = lab.settings
    reward_fn = load_reward_function(lab)
    optim = optimizer_of(policy, settings)
    before = judged_samples(lab, ref_policy.lm)
    ratio_errors = _first_ratio_errors(lab, policy, ref_policy, reward_fn)

    history = []
    if (checkpoint := latest_checkpoint(folder)) is not None:
        history = load_checkpoint(checkpoint, policy, optim)
        print(f"ppo: goes on from step {len(history)}")

    seconds_before = sum(entry["seconds"] for entry in history)

    invariants = watch_invariants(
        lab.code.ppo,
        policy,
        ref_policy,
        reward_fn,
        lab.tokenizer,
        kl_coef=settings.kl_coef,
        max_new_tokens=settings.new_tokens,
        ratio_error=RATIO_ERROR[lab.compute.precision],
        alone_error=ALONE_ERROR[lab.compute.precision],
        step=len(history),
        say=tqdm.write,  # above the progress bar
    )
    with (
        StageWatch("ppo", settings.steps, str(checkpoint or lab.sft_model), done=len(history)) as watch,
        invariants,
    ):
        watch.module(policy.lm, "logits")
        watch.module(policy.value_head, "values")
        set_rate(optim, settings, len(history))
        clock = time.perf_counter()

        def on_step(info: dict, batch) -> None:
            nonlocal clock
            info = checked_ppo_info(info)
            watch.figures(info)
            check_rollout(batch, settings.batch)
            invariants.on_step(info, batch)
            seconds, clock = time.perf_counter() - clock, time.perf_counter()
            seen = look_at(batch, lab.judge, lab.tokenizer)
            history.append({"step": len(history), **info, **seen, "seconds": seconds})
            write_json(folder / "history.json", history)
            if len(history) % CHECKPOINT_EVERY == 0 and len(history) < settings.steps:
                watch.last_good = str(save_checkpoint(folder, history, policy, optim))
            set_rate(optim, settings, len(history))
            watch.advance(reward=info["mean_reward"], judge=history[-1]["judge"], kl=info["kl_to_ref"])

        lab.code.ppo.train_ppo(
            policy,
            ref_policy,
            reward_fn,
            lab.tokenizer,
            list(lab.data.prompts_train["prompt"]),
            optim,
            n_steps=settings.steps - len(history),
            batch_size=settings.batch,
            max_new_tokens=settings.new_tokens,
            ppo_epochs=settings.ppo_epochs,
            kl_coef=settings.kl_coef,
            on_step=on_step,
        )
        if len(history) != settings.steps:
            raise LabError(
                f"train_ppo called on_step {len(history)} times, not once for each of {settings.steps} steps"
            )
        watch.weights(policy)

    after = judged_samples(lab, policy.lm)
    write_tensors(folder / "policy.safetensors", policy.state_dict())
    samples = [
        {"prompt": b["prompt"], "before": b["response"], "after": a["response"],
         "judge_before": b["judge"], "judge_after": a["judge"]}
        for b, a in zip(before["shown"], after["shown"], strict=True)
    ]  # fmt: skip
    write_json(folder / "samples.json", samples)
    _save_example(lab, folder, policy, ref_policy, reward_fn)
    kept = ("judge", "distinct_2", "eos_share")
    return {
        "before": {name: before[name] for name in kept},
        "after": {name: after[name] for name in kept},
        **ratio_errors,
        "invariants": invariants.results,
        "seconds_before": seconds_before,
    }


def optimizer_of(policy, settings: Settings) -> torch.optim.AdamW:
    """AdamW over the whole policy, with a rate of its own for the value head."""
    model = [weight for name, weight in policy.named_parameters() if not name.startswith("value_head.")]
    head = {"params": policy.value_head.parameters(), "lr": settings.ppo_lr * settings.value_lr_factor}
    return torch.optim.AdamW([{"params": model}, head], lr=settings.ppo_lr, fused=True)


def set_rate(optim: torch.optim.Optimizer, settings: Settings, step: int) -> None:
    """Set the model's learning rate of a step: it rises in equal parts over the steps of the warm-up.

    A value head keeps its rate: the critic may learn what a prompt is worth before the policy moves.
    """
    model = optim.param_groups[0]
    model["lr"] = settings.ppo_lr * min(1.0, (step + 1) / max(settings.ppo_warmup, 1))


def load_policies(lab: Lab):
    """The policy as SFT left it, and its frozen copy, the reference."""
    policy = lab.code.ppo.PolicyWithValueHead(str(lab.base))
    policy.load_from_sft(backbones.load_causal_lm(lab.sft_model).state_dict())
    reads_in_float32(policy.to(lab.compute.device))
    return policy, copy.deepcopy(policy).eval().requires_grad_(False)


def load_reward_function(lab: Lab) -> rewards.CheckedReward:
    """What PPO is trained on, behind the workbench's door."""
    name = lab.settings.reward
    if name == "rm":
        return rewards.CheckedReward(name, load_reward(lab))
    return rewards.CheckedReward(name, rewards.TextReward(lab.stand_in, lab.tokenizer))


def load_example(lab: Lab):
    """The example rollout of the trained policy, for the token table and the picture of indices."""
    folder = lab.folder / "ppo"
    texts = read_json(folder / "example_texts.json")
    return lab.code.ppo.Rollout(**read_tensors(folder / "example.safetensors"), texts=texts)


def _save_example(lab: Lab, folder: Path, policy, ref_policy, reward_fn) -> None:
    prompts = lab.data.prompts_heldout["prompt"]
    spread = [prompts[i * (len(prompts) - 1) // 3] for i in range(4)]
    torch.manual_seed(lab.settings.seed)
    batch = lab.code.ppo.rollout(
        policy, ref_policy, reward_fn, lab.tokenizer, spread, lab.settings.new_tokens
    )
    tensors = {
        field.name: getattr(batch, field.name) for field in dataclasses.fields(batch) if field.name != "texts"
    }
    write_tensors(folder / "example.safetensors", tensors)
    write_json(folder / "example_texts.json", batch.texts)


@torch.no_grad()
def _first_ratio_errors(lab: Lab, policy, ref_policy, reward_fn) -> dict[str, float]:
    """Largest |ratio - 1| before the first update, of two kinds.

    `own_ratio_error` is PPO's: the batch read again as `ppo_step` reads it, in the run's precision.
    `first_ratio_error` is that between the batch and rows which the workbench reads one by one, without padding. Both are
    read in float32: it is a question about masks and positions, and bfloat16 rounds other sums to other numbers.
    """
    prompts = lab.data.prompts_train["prompt"][:8]
    with torch.random.fork_rng():
        batch = lab.code.ppo.rollout(
            policy, ref_policy, reward_fn, lab.tokenizer, prompts, lab.settings.new_tokens
        )
    check_rollout(batch, len(prompts))
    policy.eval()
    mask = batch.response_mask

    def read():
        return lab.code.ppo.response_logprobs_and_values(
            policy, batch.full_ids, batch.full_mask, mask.shape[1]
        )[0].detach()

    with torch.enable_grad():  # as in an update: some kernels are others without
        own_ratio = (read() - batch.old_logprobs)[mask.bool()].exp()
    errors = []
    with torch.autocast(lab.compute.device.type, enabled=False):
        padded = read()
        for row in range(len(prompts)):
            n_response = int(mask[row].sum())
            ids = batch.full_ids[row][batch.full_mask[row].bool()].tolist()
            logprobs = token_logprobs(policy.lm, ids[:-n_response], ids[-n_response:])
            errors.append(((logprobs - padded[row, :n_response]).exp() - 1).abs())
    return {
        "own_ratio_error": (own_ratio - 1).abs().max().item(),
        "first_ratio_error": torch.cat(errors).max().item(),
    }
