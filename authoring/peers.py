"""Our DPO and GRPO beside those of TRL (`pip install -e '.[peers]'`): the same numbers, and what a step costs.

Values: TRL's own trainers are handed random batches on the tiny model, a policy that has moved away from its
reference, and ours gets the same tokens. Where the two differ by convention, the comparison says so and tries both.

Steps: both train on the same model, prompts, batch and device with the same settings, in processes of their own that
take turns, so that a machine that is busy with something else slows both.
"""

import copy
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass

import datasets
import torch
from torch import Tensor

from rlhf_lab.backbones import TINY, load_causal_lm, load_tokenizer, quiet_transformers
from rlhf_lab.checkpoints import SFT
from rlhf_lab.data import load_data
from rlhf_lab.errors import LabError
from rlhf_lab.machine import memory_mib, peak_memory_mib
from solutions import dpo, grpo

from .comparison import Comparison
from .tables import markdown_table

DRAWS, PAIRS = 3, 8
GROUP, PROMPTS, NEW_TOKENS = 4, 8, 24
LEARNING_RATE, KL_COEF = 1e-5, 0.04  # small steps, so that responses stay as long as they are for both
WARM_UP, STEPS, TURNS = 3, 20, 3
WHOSE = ("ours", "TRL's")


def compare_values() -> list[Comparison]:
    """All quantities, each on several random batches; where a value is above 1, its difference is relative."""
    _needs_trl()
    quiet_transformers()
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL uses names that the newest transformers renames
        return [*_compare_dpo(folder), *_compare_grpo(folder)]


# --- models and batches ---------------------------------------------------------------------------


def _two_models(seed: int):
    """A reference, and a policy a little away from it; neither has dropout."""
    reference = load_causal_lm(SFT).eval().requires_grad_(False)
    policy = copy.deepcopy(reference).requires_grad_(True)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.05 * weight.std() * torch.randn_like(weight) if weight.numel() > 1 else 0.0
    return policy, reference


def _rows(seed: int, shortest: int, longest: int, how_many: int) -> list[list[int]]:
    """Random tokens, none of which is EOS."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (how_many,), generator=generator).tolist()
    return [torch.randint(1, 2000, (length,), generator=generator).tolist() for length in lengths]


def _largest(pairs: list[tuple[Tensor, Tensor]]) -> float:
    return max(((ours - theirs).abs() / theirs.abs().clamp(min=1)).max().item() for ours, theirs in pairs)


# --- DPO ------------------------------------------------------------------------------------------


def _random_pairs(tokenizer, seed: int) -> list[dict[str, list[int]]]:
    """Some of the course's preference pairs, as TRL's collator takes them."""

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    pairs, end = load_data("toy").pairs_train, [tokenizer.eos_token_id]
    drawn = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))[:PAIRS].tolist()
    return [
        {
            "prompt_ids": ids(pairs[at]["prompt"]),
            "chosen_ids": ids(pairs[at]["chosen"]) + end,
            "rejected_ids": ids(pairs[at]["rejected"]) + end,
        }
        for at in drawn
    ]


def _compare_dpo(folder: str) -> list[Comparison]:
    from trl import DPOConfig, DPOTrainer

    tokenizer = load_tokenizer(SFT)
    some_pair = datasets.Dataset.from_list(
        [{"prompt": "The film", "chosen": " was good.", "rejected": " was bad."}]
    )
    settings = DPOConfig(output_dir=folder, beta=0.3, use_cpu=True, bf16=False, report_to="none")
    logprobs, losses, rewards, gradients = [], [], [], []
    for draw in range(DRAWS):
        policy, reference = _two_models(draw)
        trainer = DPOTrainer(policy, reference, settings, train_dataset=some_pair, processing_class=tokenizer)
        batch = trainer.data_collator(_random_pairs(tokenizer, draw))
        labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, dpo.IGNORE)
        sides = [
            [tensor.chunk(2)[side] for tensor in (batch["input_ids"], batch["attention_mask"], labels)]
            for side in (0, 1)
        ]
        theirs = trainer.compute_ref_log_probs(reference, batch)
        with torch.no_grad():
            ours_of_reference = [dpo.sequence_logprobs(reference, *side) for side in sides]
        logprobs += list(zip(ours_of_reference, theirs))

        trainer.model.eval()
        their_loss = trainer.compute_loss(trainer.model, batch)
        ours_of_policy = [dpo.sequence_logprobs(policy, *side) for side in sides]
        loss, chosen_reward, rejected_reward = dpo.dpo_loss(*ours_of_policy, *ours_of_reference, beta=0.3)
        losses.append((loss, their_loss))
        gradients.append((_gradient(loss, policy), _gradient(their_loss, policy)))
        noted = trainer._metrics["eval"]
        for ours, name in ((chosen_reward, "rewards/chosen"), (rejected_reward, "rewards/rejected")):
            rewards.append((ours.mean(), torch.tensor(noted[name][-1])))
    return [
        Comparison("`sequence_logprobs`", _largest(logprobs)),
        Comparison("`dpo_loss`: loss", _largest(losses)),
        Comparison("`dpo_loss`: its gradient", _largest(gradients)),
        Comparison("`dpo_loss`: mean implicit rewards", _largest(rewards)),
    ]


def _gradient(loss: Tensor, model: torch.nn.Module) -> Tensor:
    gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return torch.cat([gradient.flatten() for gradient in gradients])


# --- GRPO -----------------------------------------------------------------------------------------


def _grpo_trainer(folder: str, policy, reward: Callable, prompts: list[str], **settings):
    from trl import GRPOConfig, GRPOTrainer

    arguments = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
        lr_scheduler_type="constant",
        learning_rate=LEARNING_RATE,
        per_device_train_batch_size=PROMPTS * GROUP,
        num_generations=GROUP,
        max_completion_length=NEW_TOKENS,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        beta=KL_COEF,
        **settings,
    )
    return GRPOTrainer(
        policy,
        reward,
        args=arguments,
        train_dataset=datasets.Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=load_tokenizer(SFT),
    )


def _compare_grpo(folder: str) -> list[Comparison]:
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def note(what: str, ours: Tensor, theirs: Tensor) -> None:
        found.setdefault(what, []).append((ours, theirs))

    for draw in range(DRAWS):
        policy, reference = _two_models(draw)
        rewards = torch.randn(PROMPTS * GROUP, generator=torch.Generator().manual_seed(draw))
        rewards[:GROUP] = 0.3  # one group in which all are equal
        trainer = _grpo_trainer(
            folder, policy, lambda completions, **_: rewards.tolist(), ["The film"], loss_type="grpo"
        )
        trainer.model.eval()
        trainer.model.requires_grad_(True)
        scored = trainer._generate_and_score_completions([{"prompt": "The film"}] * PROMPTS * GROUP)
        note("advantages", grpo.group_advantages(rewards, GROUP), scored["advantages"])
        note("advantages, eps", grpo.group_advantages(rewards, GROUP, eps=1e-4), scored["advantages"])

        for case, padded, corrected in (
            ("plain", False, False),
            ("padded", True, False),
            ("default", False, True),
        ):
            batch = _grpo_batch(draw, policy, reference, rewards, padded)
            trainer.args.use_bias_correction_kl = corrected
            their_loss = trainer._compute_loss(policy, batch)
            loss, _ = grpo.grpo_loss(
                _our_logprobs(policy, batch),
                batch["old_per_token_logps"],
                batch["ref_per_token_logps"],
                batch["advantages"],
                batch["completion_mask"],
                kl_coef=KL_COEF,
            )
            note(f"loss, {case}", loss, their_loss)
            note(f"gradient, {case}", _gradient(loss, policy), _gradient(their_loss, policy))
    errors = {what: _largest(pairs) for what, pairs in found.items()}
    return [
        Comparison("`group_advantages`", errors["advantages, eps"], "with TRL's eps, 1e-4 instead of 1e-8"),
        Comparison("`group_advantages`", errors["advantages"], "each with its own eps", agrees=False),
        Comparison(
            "`grpo_loss`: loss",
            errors["loss, plain"],
            'with `loss_type="grpo"` and `use_bias_correction_kl=False`',
        ),
        Comparison("`grpo_loss`: its gradient", errors["gradient, plain"], "the same two"),
        Comparison(
            "`grpo_loss`: loss, TRL's default for the KL",
            errors["loss, default"],
            "TRL multiplies k3 by the ratio (DeepSeek-V3.2, arXiv 2512.02556), we take the paper's",
            agrees=False,
        ),
        Comparison(
            "`grpo_loss`: loss, prompts padded on the left",
            errors["loss, padded"],
            "TRL counts positions with the padding, we without: GPT-2 has learned positions",
            agrees=False,
        ),
    ]


def _grpo_batch(seed: int, policy, reference, rewards: Tensor, padded: bool) -> dict[str, Tensor]:
    """Random prompts and responses as TRL lays them out; the old policy is a third model."""
    pad_sequence = torch.nn.utils.rnn.pad_sequence
    old_policy, _ = _two_models(seed + 50)
    rows = {
        "prompt": _rows(7 * seed, 2 if padded else 5, 9 if padded else 5, len(rewards)),
        "completion": _rows(7 * seed + 1, 1, 12, len(rewards)),
    }
    batch = {}
    for name, side in (("prompt", "left"), ("completion", "right")):
        ids = [torch.tensor(row) for row in rows[name]]
        batch[f"{name}_ids"] = pad_sequence(ids, batch_first=True, padding_side=side)
        batch[f"{name}_mask"] = pad_sequence(
            [torch.ones_like(row) for row in ids], batch_first=True, padding_side=side
        )
    with torch.no_grad():
        batch["old_per_token_logps"] = _our_logprobs(old_policy, batch)
        batch["ref_per_token_logps"] = _our_logprobs(reference, batch)
    batch["advantages"] = grpo.group_advantages(rewards, GROUP)
    batch["num_items_in_batch"] = batch["completion_mask"].sum()
    return batch


def _our_logprobs(model, batch: dict[str, Tensor]) -> Tensor:
    """Log-probabilities of a batch that is laid out as TRL's, by our function."""
    full_ids, full_mask = (
        torch.cat([batch[f"prompt_{what}"], batch[f"completion_{what}"]], dim=1) for what in ("ids", "mask")
    )
    return grpo.response_logprobs(model, full_ids, full_mask, batch["completion_ids"].shape[1])


# --- what a step costs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What a GRPO step takes: the median of the steps in seconds, and the most memory of the training in MiB."""

    seconds: float
    memory: float


def step_costs() -> dict[str, list[Cost]]:
    """Costs of ours and TRL's, one for each turn."""
    _needs_trl()
    costs: dict[str, list[Cost]] = {name: [] for name in WHOSE}
    for _ in range(TURNS):
        for whose in WHOSE:
            command = [sys.executable, "-m", "authoring.peers", whose]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise LabError(f"the steps of {whose} failed: {done.stderr.strip().splitlines()[-1:]}")
            costs[whose].append(Cost(**json.loads(done.stdout.splitlines()[-1])))
    return costs


def measure_steps(whose: str) -> Cost:
    """Train in this process, from the shipped SFT model, on a reward that costs nothing: the share of vowels."""
    quiet_transformers()
    torch.manual_seed(0)
    load_causal_lm(TINY)
    prompts = list(load_data("toy").prompts_train["prompt"])
    before, seconds = memory_mib(), []
    (_our_steps if whose == WHOSE[0] else _trl_steps)(prompts, seconds)
    return Cost(statistics.median(seconds[WARM_UP:]), peak_memory_mib() - before)


def _share_of_vowels(text: str) -> float:
    return sum(letter in "aeiou" for letter in text) / max(len(text), 1)


def _our_steps(prompts: list[str], seconds: list[float]) -> None:
    policy, tokenizer = load_causal_lm(SFT), load_tokenizer(SFT)
    reference = copy.deepcopy(policy).requires_grad_(False)

    def reward_fn(full_ids: Tensor, full_mask: Tensor) -> Tensor:
        texts = [tokenizer.decode(ids[mask.bool()]) for ids, mask in zip(full_ids, full_mask, strict=True)]
        return torch.tensor([_share_of_vowels(text) for text in texts])

    clock = time.perf_counter()

    def on_step(info, rollout) -> None:
        nonlocal clock
        seconds.append(time.perf_counter() - clock)
        clock = time.perf_counter()

    grpo.train_grpo(
        policy,
        reference,
        reward_fn,
        tokenizer,
        prompts,
        torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE),
        n_steps=WARM_UP + STEPS,
        n_prompts=PROMPTS,
        group_size=GROUP,
        max_new_tokens=NEW_TOKENS,
        n_epochs=1,
        kl_coef=KL_COEF,
        on_step=on_step,
    )


def _trl_steps(prompts: list[str], seconds: list[float]) -> None:
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        """A step begins where the one before has ended: TRL samples between the two."""

        def on_train_begin(self, *_, **__):
            self.clock = time.perf_counter()

        def on_step_end(self, *_, **__):
            seconds.append(time.perf_counter() - self.clock)
            self.clock = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        trainer = _grpo_trainer(
            folder,
            load_causal_lm(SFT),
            lambda completions, **_: [_share_of_vowels(text) for text in completions],
            prompts,
            loss_type="grpo",
            max_steps=WARM_UP + STEPS,
            logging_steps=1000,
        )
        trainer.add_callback(Clock())
        trainer.train()


# --- what a person reads --------------------------------------------------------------------------


def values_table(comparisons: list[Comparison]) -> str:
    """A Markdown row for each comparison."""
    rows = []
    for one in comparisons:
        verdict = (
            "NOT AS EXPECTED" if not one.as_expected else "agrees" if one.agrees else "differs on purpose"
        )
        note = f"{verdict}: {one.convention}" if one.convention else verdict
        rows.append((one.quantity, f"{one.error:.1e}", note))
    return markdown_table(["ours beside TRL's", "largest difference", ""], rows)


def costs_table(costs: dict[str, list[Cost]]) -> str:
    """Seconds and memory of a step: the medians of all turns, and the ratio of each turn."""
    rows = []
    for name, unit, digits in (("seconds", "s", 2), ("memory", "MiB", 0)):
        ours, theirs = ([getattr(cost, name) for cost in costs[whose]] for whose in WHOSE)
        ratios = ", ".join(f"{their / our:.2f}" for our, their in zip(ours, theirs, strict=True))
        medians = [f"{statistics.median(values):.{digits}f} {unit}" for values in (ours, theirs)]
        rows.append((name, *medians, ratios))
    return markdown_table(["a GRPO step", "ours", "TRL's", "TRL's / ours, each turn"], rows)


def _needs_trl() -> None:
    if importlib.util.find_spec("trl") is None:
        raise LabError("TRL is not installed: pip install -c constraints.txt -e '.[peers]'")


if __name__ == "__main__":
    print(json.dumps(asdict(measure_steps(sys.argv[1]))))
