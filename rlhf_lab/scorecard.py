"""The document's seven-point score card, each point with its figure, its threshold and pass or fail.

Points 1, 2, 6 and 7 are read off the run; points 3, 4 and 5 are measured on the taught code itself.
"""

from dataclasses import dataclass
from math import isinf

import torch

from .data.ratings import clear_rows
from .pipeline import Results
from .runs import read_json
from .thresholds import (
    APPROX_KL,
    EOS_SHARE,
    GAE_ERROR,
    KL_TO_REF,
    LENGTH_ONLY,
    PARAMETER_RATIO,
    RATIO_ERROR,
    SFT_EPOCHS,
    UNPADDED_ERROR,
    Asked,
    asked_of,
)


@dataclass(frozen=True)
class Point:
    """One line of the score card."""

    number: int
    name: str
    figure: str
    threshold: str
    passed: bool


def score_card(results: Results) -> list[Point]:
    """The points that the run can show; point 2 is left out where no reward model was trained."""
    asked = asked_of(results.lab.data.name)
    points = [_sft(results, asked), _reward_model(results, asked), _value_head(results), _gae(results)]
    points += [_losses(results), _kl(results), _end_to_end(results, asked)]
    return [point for point in points if point is not None]


def format_card(points: list[Point]) -> str:
    """The card as text, two lines a point."""
    lines = []
    for point in points:
        verdict = "pass" if point.passed else "FAIL"
        lines += [
            f"{point.number}  {verdict}  {point.name}: {point.figure}",
            f"         asked: {point.threshold}",
        ]
    return "\n".join([*lines, f"{sum(point.passed for point in points)} of {len(points)} points passed"])


def _sft(results: Results, asked: Asked) -> Point:
    before, after = results.sft["heldout_loss"][0][1], results.sft["heldout_loss"][-1][1]
    eos_share = results.sft["eos_share"]
    epochs = results.lab.settings.sft_epochs
    loss_asked = "the loss falls" if isinf(asked.sft_loss) else f"loss < {asked.sft_loss}"
    return Point(
        1,
        "SFT converges, responses end",
        f"held-out loss {before:.2f} -> {after:.2f} in {epochs} epochs, {eos_share:.0%} end with EOS",
        f"{loss_asked} within {SFT_EPOCHS} epochs, EOS > {EOS_SHARE:.0%}",
        after < min(asked.sft_loss, before) and epochs <= SFT_EPOCHS and eos_share > EOS_SHARE,
    )


def _reward_model(results: Results, asked: Asked) -> Point | None:
    figures = results.reward_model
    if figures is None:
        return None
    accuracy, length_only = figures["heldout_accuracy"], figures["length_only_accuracy"]
    shown = f"accuracy {accuracy:.3f} on {figures['n_heldout']} pairs"
    if clear := _right_on_clear_pairs(results):
        accuracy = sum(clear) / len(clear)
        shown = f"accuracy {accuracy:.3f} on the {len(clear)} pairs with a clear margin, {shown[9:]}"
    return Point(
        2,
        "reward model ranks held-out pairs",
        f"{shown}, length alone {length_only:.3f}",
        f"accuracy > {asked.rm_accuracy}, length alone about 0.5",
        accuracy > asked.rm_accuracy and LENGTH_ONLY[0] <= length_only <= LENGTH_ONLY[1],
    )


def _right_on_clear_pairs(results: Results) -> list[bool]:
    """Whether each held-out pair is ranked right whose mean ratings lie clearly apart; of rated pairs only."""
    pairs, figures = results.lab.data.pairs_heldout, results.reward_model
    if "margin" not in pairs.column_names or figures["dropped_heldout"]:
        return []
    scores = read_json(results.lab.folder / "reward_model" / "heldout_scores.json")
    return [scores["chosen"][row] > scores["rejected"][row] for row in clear_rows(pairs)]


def _value_head(results: Results) -> Point:
    """One pass through one backbone gives logits and values, and the values train that backbone."""
    policy = results.lab.code.ppo.PolicyWithValueHead(str(results.lab.sft_model))
    ratio = sum(p.numel() for p in policy.parameters()) / sum(p.numel() for p in policy.lm.parameters())
    passes = []
    hook = policy.lm.base_model.register_forward_hook(lambda *_: passes.append(1))
    torch.nn.init.ones_(policy.value_head[-1].weight)  # at its start of zero it would hand no gradient down
    ids = torch.tensor([[1, 2, 3, 4]])
    _, values = policy(ids, torch.ones_like(ids))
    hook.remove()
    values.sum().backward()
    shared = any(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.lm.base_model.parameters())
    return Point(
        3,
        "value head shares the backbone",
        f"{len(passes)} pass, {ratio:.2f} x the parameters, value gradient {'reaches' if shared else 'misses'} it",
        f"1 pass, < {PARAMETER_RATIO} x, gradient reaches it",
        len(passes) == 1 and ratio < PARAMETER_RATIO and shared,
    )


def _gae(results: Results) -> Point:
    """Two ragged rows with garbage in the padding, against the definition as a double sum."""
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 6, generator=generator), torch.randn(2, 6, generator=generator)
    mask = torch.tensor([[1.0] * 6, [1.0, 1, 1, 1, 0, 0]])
    gamma, lam = 0.9, 0.7
    expected = torch.zeros(2, 6)
    for row, length in enumerate((6, 4)):
        v = values[row, :length].tolist() + [0.0]
        td_errors = [rewards[row, t].item() + gamma * v[t + 1] - v[t] for t in range(length)]
        for t in range(length):
            expected[row, t] = sum((gamma * lam) ** (k - t) * td_errors[k] for k in range(t, length))
    garbage = (1 - mask) * 1e6
    advantages, returns = results.lab.code.ppo.compute_gae(
        rewards + garbage, values + garbage, mask, gamma, lam
    )
    errors = torch.stack([advantages - expected, returns - (expected + values)]).abs()
    error = (errors * mask).max().item()  # NaN where one of them is
    return Point(
        4,
        "GAE runs backwards, padding stays out",
        f"largest error {error:.1e}",
        f"< {GAE_ERROR:.0e}",
        error < GAE_ERROR,
    )


def _losses(results: Results) -> Point:
    """Which of four tokens still get a policy gradient, and whether a fresh policy has ratio 1.

    The ratio has two figures: the batch read again as PPO does, and its responses read without padding.
    """
    log_ratio = torch.tensor([[0.5, 0.5, -0.5, -0.5]], requires_grad=True)
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
    zeros, ones = torch.zeros(1, 4), torch.ones(1, 4)
    loss, _ = results.lab.code.ppo.ppo_losses(log_ratio, zeros, advantages, zeros, zeros, zeros, ones)
    loss.backward()
    flows = [bool(g) for g in log_ratio.grad[0].abs() > 1e-8]
    right = sum(a == b for a, b in zip(flows, [False, True, True, False], strict=True))
    alone = results.ppo["first_ratio_error"]
    own = results.ppo["own_ratio_error"]
    limit = RATIO_ERROR[results.lab.compute.precision]
    lowest_kl = min(entry["approx_kl"] for entry in results.history)
    return Point(
        5,
        "PPO loss clips, ratio starts at 1",
        f"{right} of 4 clip cases, |ratio - 1| {own:.1e} at first ({alone:.1e} without padding), "
        f"lowest approx_kl {lowest_kl:.1e}",
        f"4 of 4, < {limit:.0e} (< {UNPADDED_ERROR:.0e}), >= 0",
        right == 4 and own < limit and alone < UNPADDED_ERROR and lowest_kl >= -1e-6,
    )


def _kl(results: Results) -> Point:
    highest = max(entry["approx_kl"] for entry in results.history)
    to_ref = max(entry["kl_to_ref"] for entry in results.history)
    return Point(
        6,
        "the policy stays near",
        f"approx_kl at most {highest:.4f}, KL to the reference at most {to_ref:.1f} nats a response",
        f"< {APPROX_KL}, < {KL_TO_REF:.0f}",
        highest < APPROX_KL and to_ref < KL_TO_REF,
    )


def _end_to_end(results: Results, asked: Asked) -> Point:
    before, after = results.ppo["before"], results.ppo["after"]
    variety = after["distinct_2"] / max(before["distinct_2"], 1e-9)
    goal = results.judge_goal
    up_by = f" (up by {asked.judge_gain})" if asked.judge is None else ""
    return Point(
        7,
        "the reward rises, judged independently",
        f"judge {before['judge']:.2f} -> {after['judge']:.2f} in {results.lab.settings.steps} steps, "
        f"distinct-2 {variety:.2f} x before",
        f"judge > {goal:.2g}{up_by}, distinct-2 > {asked.distinct_2} x",
        after["judge"] > goal and variety > asked.distinct_2,
    )
