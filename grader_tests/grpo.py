"""Hidden tests of stage 6: GRPO."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace

import torch
from torch import Tensor

import solutions.grpo as reference
from rlhf_lab.backbones import load_causal_lm, load_tokenizer
from rlhf_lab.checkpoints import SFT
from rlhf_lab.data import toy_rows
from rlhf_lab.room.props import grpo as props
from rlhf_lab.room.props import ppo_loop as loop_props
from rlhf_lab.room.props import shared

from .candidate import Candidate
from .hidden import (
    Draw,
    agree,
    check,
    close,
    defaults_of,
    entries,
    hidden,
    left_mask,
    number,
    parts,
    right_mask,
    tensor,
    unchanged,
)
from .updates import Update, check_kept, moves, sets_gradients_to_zero, spread


def _signs(*shape: int) -> Tensor:
    """1 and -1 in turns."""
    return 1 - 2 * (torch.arange(torch.Size(shape).numel()) % 2).reshape(shape).float()


# --- 6.1 group_advantages -------------------------------------------------------------------------

ADVANTAGES = "group_advantages"
NEAR = 2e-3  # eps may be anything up to 1e-4, and the deviations here are 0.05 at least


def _advantages(candidate: Candidate, rewards: Tensor, group_size: int, **options) -> Tensor:
    value = candidate.call("grpo.group_advantages", rewards, group_size, **options).value
    return tensor(value, len(rewards), what="the advantages")


def _expected(rewards: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """The advantages by the sample's and by the population's standard deviation: either will do."""
    groups = rewards.double().view(-1, group_size)
    off = groups - groups.mean(dim=1, keepdim=True)
    equal = (groups == groups[:, :1]).all(dim=1, keepdim=True)
    return tuple(
        (off / groups.std(dim=1, keepdim=True, correction=correction).where(~equal, 1.0)).flatten()
        for correction in (1, 0)
    )


def _agree_in_groups(got: Tensor, rewards: Tensor, group_size: int, message: str = "") -> None:
    """Raises `Wrong` when they are no advantages of these rewards."""
    check(any(close(got, right, tolerance=NEAR) for right in _expected(rewards, group_size)), message)


def _spread(draw: Draw, group_size: int, scale: float = 1.0) -> Tensor:
    """Rewards of one group, in any order: no two are near each other, and none is near their mean."""
    steps = torch.arange(group_size) + draw.uniform(-0.2, 0.2, group_size)
    return scale * torch.tensor(draw.shuffled(steps.square().tolist()))


def _levels(draw: Draw, n_groups: int, group_size: int) -> Tensor:
    """Rewards of groups on levels and scales of their own."""
    groups = [5.0 * row * (-1) ** row + _spread(draw, group_size, 0.3 * (row + 1)) for row in range(n_groups)]
    return torch.cat([groups[i] for i in draw.shuffled(range(n_groups))])


EACH_GROUP = "each group by itself"


@hidden(
    ADVANTAGES,
    "better and worse than the group",
    points=0.5,
    catches=[
        "sign",
        "mean not subtracted",
        "not divided",
        "variance",
        "another spread",
        "median, best, others",
    ],
    message="The advantages of one group are wrong: compare each answer with the mean, in units of the standard deviation.",
)
def advantages_one_group(candidate: Candidate, draw: Draw):
    for group_size in (4, draw.whole(5, 8)):
        rewards = _spread(draw, group_size, draw.number(0.5, 2.0)) + draw.number(-3, 3)
        _agree_in_groups(_advantages(candidate, rewards, group_size, eps=1e-8), rewards, group_size)


@hidden(
    ADVANTAGES,
    EACH_GROUP,
    points=1,
    catches=["whole batch", "stride", "first group for all", "number of groups", "last group lost", "shape"],
    message="Each answer is compared with the answers to its own prompt, which stand next to it: yours is compared with others, "
    "or comes back at another place.",
)
def advantages_groups(candidate: Candidate, draw: Draw):
    for n_groups, group_size in ((5, 3), (2, 6), (6, 2)):
        rewards = _levels(draw, n_groups, group_size)
        _agree_in_groups(_advantages(candidate, rewards, group_size, eps=1e-8), rewards, group_size)


@hidden(
    ADVANTAGES,
    "as many groups as answers",
    points=0.5,
    catches=["keepdim", "wrong axis"],
    message="With as many groups as answers in a group, your advantages are wrong: one axis is taken for the other.",
)
def advantages_square(candidate: Candidate, draw: Draw):
    size = draw.whole(3, 6)
    rewards = _levels(draw, size, size)
    _agree_in_groups(_advantages(candidate, rewards, size, eps=1e-8), rewards, size)


@hidden(
    ADVANTAGES,
    "a group of equal rewards",
    points=0.5,
    catches=["NaN", "1 or the rewards in place of 0", "all groups 0", "two equal are taken for all"],
    message="A group whose rewards are all equal has advantages of 0, and every other group has those that it has without it.",
)
def advantages_equal(candidate: Candidate, draw: Draw):
    equal = torch.full((4,), float(draw.whole(1, 5)))
    a, b = float(draw.whole(1, 4)), float(draw.whole(5, 9))
    some = torch.tensor([a, a, b, a, b, b, a, a])
    rewards = torch.cat([some, equal, _spread(draw, 4)])
    got = _advantages(candidate, rewards, 4, eps=1e-8)
    check(bool(got.isfinite().all()))
    check(bool((got[8:12].abs() < 5e-3).all()))
    _agree_in_groups(got, rewards, 4)


@hidden(
    ADVANTAGES,
    "equal rewards that are no round numbers",
    points=0.25,
    catches=["rounding of the mean"],
    message="Equal rewards have to give advantages of exactly 0: the mean of equal numbers is rounded, and one rounding error "
    "divided by another is no small number.",
    after=[EACH_GROUP],
)
def advantages_rounded(candidate: Candidate, draw: Draw):
    # of so many numbers some have a mean that is not they themselves
    values = torch.cat([torch.tensor([0.1, 0.3, 0.7, 0.9]), draw.uniform(0.1, 1.0, 60)])
    for group_size in (7, 8):
        rewards = values.repeat_interleave(group_size)
        check(bool((_advantages(candidate, rewards, group_size, eps=1e-8).abs() < 5e-3).all()))


@hidden(
    ADVANTAGES,
    "close rewards, and one far out",
    points=0.5,
    catches=["close taken for equal", "deviation limited", "advantages limited"],
    message="Close rewards, or one that is far from the others, are treated in another way than all others.",
)
def advantages_scales(candidate: Candidate, draw: Draw):
    close_ones = torch.cat([draw.number(0.5, 2) + _spread(draw, 4, 0.02), _spread(draw, 4, 3.0)])
    _agree_in_groups(_advantages(candidate, close_ones, 4, eps=1e-8), close_ones, 4)
    # so close that an eps of 1e-4 is seen: up to a factor near 1
    closer = draw.number(0.5, 2) + _spread(draw, 4, 5e-4)
    got = _advantages(candidate, torch.cat([closer, _spread(draw, 4, 3.0)]), 4, eps=1e-8)[:4]
    right, _ = _expected(closer, 4)
    factor = float(got.norm() / right.norm())
    check(0.8 < factor < 1.3)
    agree(got / factor, right, tolerance=5e-3)
    size = draw.whole(40, 50)
    far = draw.uniform(-0.5, 0.5, 2 * size)
    far[draw.whole(0, size)], far[size + draw.whole(0, size)] = 30.0, -30.0
    _agree_in_groups(_advantages(candidate, far, size, eps=1e-8), far, size)


@hidden(
    ADVANTAGES,
    "a batch that is no multiple",
    points=0.25,
    catches=["torch's error", "cut", "assert", "no numbers in the text"],
    message="A batch that is no multiple of group_size has to be refused with a ValueError that names both numbers.",
)
def advantages_refused(candidate: Candidate, draw: Draw):
    group_size = draw.whole(5, 9)
    for batch in (group_size * draw.whole(2, 4) + draw.whole(1, group_size), group_size - 1):
        raised = candidate.call("grpo.group_advantages", draw.normal(batch), group_size).raised
        check(raised is not None and raised.kind == "ValueError")
        check(str(batch) in raised.text and str(group_size) in raised.text)


@hidden(
    ADVANTAGES,
    "a group of one",
    points=0.25,
    catches=["NaN of a single number"],
    message="A group of one answer has nothing to be compared with: its advantage is 0.",
    after=[EACH_GROUP],
)
def advantages_one(candidate: Candidate, draw: Draw):
    n = draw.whole(1, 5)
    agree(_advantages(candidate, draw.normal(n), 1, eps=1e-8), torch.zeros(n))


@hidden(
    ADVANTAGES,
    "the rewards stay, and eps may be left out",
    points=0.25,
    catches=["in place", "default changed"],
    message="Your function changes the rewards in place, or its eps is another one than in the signature.",
    after=[EACH_GROUP],
)
def advantages_arguments(candidate: Candidate, draw: Draw):
    rewards = _levels(draw, 2, 5)
    answer = candidate.call("grpo.group_advantages", rewards, 5, after=(0,))
    unchanged(answer, [rewards])
    _agree_in_groups(tensor(answer.value, 10), rewards, 5)


# --- 6.2 grpo_loss --------------------------------------------------------------------------------

LOSS = "grpo_loss"
INFO = ("policy_loss", "kl_to_ref", "approx_kl", "clipfrac")
LENGTHS = (6, 3, 1)


def _options(draw: Draw) -> dict[str, float]:
    """Each away from its default."""
    return {"clip_range": draw.number(0.25, 0.3), "kl_coef": draw.number(0.5, 0.8)}


def _tokens(
    draw: Draw,
    log_ratio: Tensor,
    advantages: Tensor,
    to_ref: Tensor | None = None,
    mask: Tensor | None = None,
) -> list[Tensor]:
    """The five tensors of `grpo_loss`.

    Args:
        to_ref: log-ratio of the reference to the new policy; by default up to 0.8, on both sides.
    """
    shape = log_ratio.shape
    old_logprobs = draw.normal(*shape, mean=-3, std=0.5)
    new_logprobs = old_logprobs + log_ratio
    to_ref = draw.uniform(0.3, 0.8, *shape) * _signs(*shape) if to_ref is None else to_ref
    mask = torch.ones(shape) if mask is None else mask
    return [new_logprobs, old_logprobs, new_logprobs + to_ref, advantages, mask]


def _small_ratios(draw: Draw, *shape: int) -> Tensor:
    """Log-ratios within every clip range, and not near 0."""
    return draw.uniform(0.1, 0.2, *shape) * _signs(*shape)


def _dirty(draw: Draw) -> tuple[list[Tensor], list[Tensor]]:
    """Three responses of different length: with nothing on their padding, and with garbage there.

    Row by row the losses and the distances are on different levels.
    """
    mask = right_mask(*LENGTHS).float()
    log_ratio = (draw.uniform(0.02, 0.06, 3, 6) + torch.tensor([[0.0], [-0.2], [0.12]])) * mask
    to_ref = draw.uniform(0.8, 1.2, 3, 6) * torch.tensor([[0.3], [-0.9], [1.3]]) * mask
    advantages = torch.tensor([1.0, -3.0, 6.0]) * draw.uniform(0.8, 1.2, 3)
    clean = _tokens(draw, log_ratio, advantages, to_ref, mask)
    dirty = [x.clone() for x in clean]
    dirty[0] += draw.uniform(3, 6, 3, 6) * _signs(3, 6) * (1 - mask)
    dirty[2] += draw.uniform(3, 6, 3, 6) * (1 - mask)
    return clean, dirty


def _losses(candidate: Candidate, arguments: Sequence[Tensor], *names: str, **options) -> list[float]:
    """The entries of `info` with these names; "loss" is the loss itself."""
    loss, info = parts(candidate.call("grpo.grpo_loss", *arguments, **options).value, 2)
    found = {**entries(info, *(name for name in names if name != "loss")), "loss": loss}
    return [number(found[name]) for name in names]


def _right_losses(arguments: Sequence[Tensor], *names: str, **options) -> list[float]:
    loss, info = reference.grpo_loss(*arguments, **options)
    return [({"loss": float(loss)} | info)[name] for name in names]


def _agree_on(candidate: Candidate, arguments: Sequence[Tensor], *names: str, **options) -> None:
    """Raises `Wrong` when an entry is not that of the reference."""
    got = _losses(candidate, arguments, *names, **options)
    agree(torch.tensor(got), torch.tensor(_right_losses(arguments, *names, **options)))


WITHIN = "policy loss within the clip range"


@hidden(
    LOSS,
    WITHIN,
    points=0.75,
    catches=[
        "sign", "no advantages", "whitened advantages", "a sum", "another ratio", "old policy ignored",
        "advantage at one token only",
    ],
    message="The policy loss is wrong even where nothing is clipped: look at its sign, at the ratio and at the advantages.",
)  # fmt: skip
def loss_within(candidate: Candidate, draw: Draw):
    for log_ratio in (torch.zeros(1, 5), _small_ratios(draw, 1, 5), _small_ratios(draw, 3, 5)):
        # the same advantage everywhere: that each response has its own, another test asks
        advantages = draw.uniform(1, 5, 1).repeat(len(log_ratio))
        _agree_on(candidate, _tokens(draw, log_ratio, advantages), "policy_loss", **_options(draw))


@hidden(
    LOSS,
    "each response has its own advantage",
    points=0.5,
    catches=["[B] along the tokens", "responses of advantage 0 left out"],
    message="Every response has one advantage, at all of its tokens, and counts in the mean, also where that is 0: yours meet "
    "other responses or other tokens.",
)
def loss_broadcast(candidate: Candidate, draw: Draw):
    for batch, width in ((4, 4), (4, 3)):
        row = draw.uniform(0.05, 0.1, batch, 1) * _signs(batch, 1)
        log_ratio = row + draw.uniform(-0.03, 0.03, batch, width)
        advantages = torch.tensor(draw.shuffled([1.0, -2.0, 4.0, 7.0]))
        _agree_on(candidate, _tokens(draw, log_ratio, advantages), "policy_loss", **_options(draw))
    # of groups of equal rewards: they count among the responses
    advantages = torch.tensor(draw.shuffled([0.0, 0.0, 4.0, 7.0]))
    _agree_on(
        candidate, _tokens(draw, _small_ratios(draw, 4, 3), advantages), "policy_loss", **_options(draw)
    )


@hidden(
    LOSS,
    "what went the wrong way counts in full",
    points=0.5,
    catches=[
        "clipped candidate only",
        "minimum of the losses",
        "choice before the advantage comes in",
        "limited",
    ],
    message="A token that has moved the wrong way is clipped in the policy loss.",
)
def loss_harm(candidate: Candidate, draw: Draw):
    for log_ratio in (
        draw.number(0.6, 0.9),
        -draw.number(0.6, 0.9),
        draw.number(2.5, 3.5),
        -draw.number(2.5, 3.5),
    ):
        advantage = -math.copysign(draw.number(1, 3), log_ratio)
        arguments = _tokens(draw, torch.full((1, 3), log_ratio), torch.tensor([advantage]))
        _agree_on(candidate, arguments, "policy_loss", **_options(draw))


@hidden(
    LOSS,
    "what went far enough is clipped",
    points=0.75,
    catches=[
        "no clip",
        "one side only",
        "a range of its own",
        "log-ratio or product clipped",
        "ratio of the response",
    ],
    message="A token that has moved the right way far enough still drives the policy loss, or is clipped at another place.",
)
def loss_clipped(candidate: Candidate, draw: Draw):
    far = draw.uniform(0.6, 0.9, 2, 3)
    for sign in (1, -1):
        arguments = _tokens(draw, sign * far, sign * draw.uniform(1, 3, 2))
        _agree_on(candidate, arguments, "policy_loss", **_options(draw))
    # each token by itself: one far up, one far down, the others near
    log_ratio = torch.stack([torch.tensor(draw.shuffled([0.8, -0.7, 0.15, -0.1])) for _ in range(2)])
    arguments = _tokens(draw, log_ratio, torch.tensor([draw.number(1, 2), -draw.number(2, 3)]))
    _agree_on(candidate, arguments, "policy_loss", **_options(draw))


@hidden(
    LOSS,
    "the distance to the reference",
    points=0.75,
    catches=[
        "k1",
        "k2",
        "exchanged",
        "sign",
        "no 1",
        "old policy in it",
        "weighted with the ratio or kl_coef",
        "some tokens left out",
        "a sum",
    ],
    message="kl_to_ref is another estimate than the docstring's, has its arguments exchanged, or is not that of the new policy.",
)
def loss_kl(candidate: Candidate, draw: Draw):
    options = _options(draw)
    moved = draw.uniform(0.3, 0.5, 1, 1) * draw.shuffled([1, -1])[0]
    for sign in (1, -1):
        arguments = _tokens(draw, moved, torch.ones(1), sign * draw.uniform(0.7, 1.3, 1, 1))
        _agree_on(candidate, arguments, "kl_to_ref", **options)
    agreeing = _tokens(draw, moved, torch.ones(1), torch.zeros(1, 1))
    _agree_on(candidate, agreeing, "kl_to_ref", **options)
    # tokens that have moved far, on both sides, count like all others
    far = draw.uniform(0.8, 1.5, 2, 5) * _signs(2, 5)
    _agree_on(candidate, _tokens(draw, far, torch.tensor([1.0, -1.0])), "kl_to_ref", **options)
    several = _tokens(draw, _small_ratios(draw, 2, 5), torch.ones(2))
    _agree_on(candidate, several, "kl_to_ref", **options)


@hidden(
    LOSS,
    "the loss is made of both",
    points=0.5,
    catches=["no KL", "subtracted", "no kl_coef", "fixed kl_coef", "approx_kl in its place", "a mixture"],
    message="The loss that is returned is not made of its two parts as the docstring says.",
)
def loss_total(candidate: Candidate, draw: Draw):
    options = _options(draw)
    to_ref = draw.uniform(0.8, 1.2, 2, 5) * _signs(2, 5)
    arguments = _tokens(draw, _small_ratios(draw, 2, 5), draw.uniform(1, 5, 2), to_ref)
    loss, policy_loss, kl = _losses(candidate, arguments, "loss", "policy_loss", "kl_to_ref", **options)
    # what is wrong in a part costs points there, and not here again
    of_its_parts = policy_loss * kl != 0 and close(loss, policy_loss + options["kl_coef"] * kl)
    check(of_its_parts or close(loss, _right_losses(arguments, "loss", **options)[0]))


@hidden(
    LOSS,
    "policy loss of responses of different length",
    points=0.75,
    catches=["mean over all tokens", "sum over the tokens", "divided by the width", "padding counted"],
    message="The policy loss is no mean over responses of the mean over each one's real tokens.",
)
def loss_policy_mask(candidate: Candidate, draw: Draw):
    for arguments in _dirty(draw):
        _agree_on(candidate, arguments, "policy_loss", **_options(draw))


@hidden(
    LOSS,
    "kl_to_ref of responses of different length",
    points=0.5,
    catches=["mean over all tokens", "sum over the tokens", "divided by the width", "padding counted"],
    message="kl_to_ref is no mean over responses of the mean over each one's real tokens.",
)
def loss_kl_mask(candidate: Candidate, draw: Draw):
    for arguments in _dirty(draw):
        _agree_on(candidate, arguments, "kl_to_ref", **_options(draw))


@hidden(
    LOSS,
    "approx_kl",
    points=0.25,
    catches=["wrong sign", "k1 or k2", "old and new exchanged", "that of the reference"],
    message="approx_kl is another estimate than that of exercise 3.4, or has its sign or its direction the other way round.",
)
def loss_approx_kl(candidate: Candidate, draw: Draw):
    log_ratio = draw.uniform(0.4, 0.8, 1, 3)
    for sign in (1, -1):
        _agree_on(candidate, _tokens(draw, sign * log_ratio, torch.ones(1)), "approx_kl", **_options(draw))


@hidden(
    LOSS,
    "clipfrac",
    points=0.25,
    catches=["after the clip", "one side", "one sign of the advantage", "log-ratio compared", "a count"],
    message="clipfrac counts other tokens than that of exercise 3.4, or is no share of them.",
)
def loss_clipfrac(candidate: Candidate, draw: Draw):
    options = _options(draw)
    low, high = 1 - options["clip_range"], 1 + options["clip_range"]
    # of 7 tokens 4 are beyond the range, in each row; one within it is not by its log-ratio
    ratio = torch.tensor([[1.7, high + 0.1, 0.4, low - 0.1, low + 0.01, 0.95, 1.1]])
    rows = torch.cat([ratio[:, draw.shuffled(range(7))] for _ in range(2)])
    arguments = _tokens(draw, rows.log(), torch.tensor([draw.number(1, 2), -draw.number(1, 2)]))
    _agree_on(candidate, arguments, "clipfrac", **options)


@hidden(
    LOSS,
    "approx_kl and clipfrac of responses of different length",
    points=0.25,
    catches=["mean of means", "padding counted"],
    message="approx_kl or clipfrac is no mean over all tokens of the mask, as that of exercise 3.4 is.",
)
def loss_info_mask(candidate: Candidate, draw: Draw):
    _, arguments = _dirty(draw)
    arguments[0][1, 1] += draw.number(0.8, 1.0)
    arguments[0][2, 0] += draw.number(0.8, 1.0)
    _agree_on(candidate, arguments, "approx_kl", "clipfrac", **_options(draw))


GRADIENT = "the gradient of the new policy"


@hidden(
    LOSS,
    GRADIENT,
    points=0.5,
    catches=["ratio cut off", "KL cut off", "a part of k3 cut off", "no graph"],
    message="The loss does not move the new log-probabilities as it should: a part of it is cut off from the graph.",
)
def loss_gradient(candidate: Candidate, draw: Draw):
    options = _options(draw)
    _, dirty = _dirty(draw)
    arguments = [x.clone() for x in dirty]
    arguments[0][0, 0] += 0.8  # beyond the clip range, where only the distance pulls
    arguments[0][1, 0] -= 0.8
    # the distance alone: no advantage
    still = [*arguments[:3], torch.zeros(3), arguments[4]]
    for given in (arguments, still):
        given[0] = given[0].detach().requires_grad_()
        answer = candidate.call("grpo.grpo_loss", *given, **options)
        check(tensor(parts(answer.value, 2)[0], what="the loss").numel() == 1)
        (gradient,) = answer.gradients(0, of=(0,))
        check(gradient is not None)
        loss, _ = reference.grpo_loss(*given, **options)
        agree(gradient, torch.autograd.grad(loss, given[0])[0])


@hidden(
    LOSS,
    "no gradient elsewhere",
    points=0.25,
    catches=["old, reference or advantages not detached"],
    message="A gradient reaches what stays fixed during the update: old or reference log-probabilities, or the advantages.",
    after=[GRADIENT],
)
def loss_fixed(candidate: Candidate, draw: Draw):
    arguments = _tokens(draw, _small_ratios(draw, 2, 4), draw.uniform(1, 3, 2))
    for argument in arguments[:4]:
        argument.requires_grad_()
    answer = candidate.call("grpo.grpo_loss", *arguments, **_options(draw))
    found = answer.gradients(1, 2, 3, of=(0,))
    check(all(gradient is None or not gradient.any() for gradient in found))


@hidden(
    LOSS,
    "arguments, masks and info",
    points=0.25,
    catches=["in place", "one type of mask only", "info with a graph"],
    message="Your function changes its arguments, depends on the type of the mask, or leaves a graph in info.",
    after=[WITHIN],
)
def loss_side_effects(candidate: Candidate, draw: Draw):
    _, arguments = _dirty(draw)
    options = _options(draw)
    expected = _right_losses(arguments, "loss", **options)[0]
    for mask in (arguments[4].long(), arguments[4].bool()):
        given = [*arguments[:4], mask]
        answer = candidate.call("grpo.grpo_loss", *given, after=(0, 1, 2, 3, 4), **options)
        unchanged(answer, given)
        agree(number(parts(answer.value, 2)[0]), expected)
    learning = [arguments[0].clone().requires_grad_(), *arguments[1:]]
    _, info = parts(candidate.call("grpo.grpo_loss", *learning, **options).value, 2)
    check(
        not any(isinstance(info[name], Tensor) and info[name].requires_grad for name in entries(info, *INFO))
    )


@hidden(
    LOSS,
    "the defaults",
    points=0.25,
    catches=["a default changed"],
    message="Left out, an argument has another value than it had in the signature that you were given.",
    after=[WITHIN],
)
def loss_defaults(candidate: Candidate, draw: Draw):
    far = _tokens(draw, draw.uniform(0.5, 0.8, 1, 3), torch.tensor([2.0]), draw.uniform(0.9, 1.3, 1, 3))
    defaults = defaults_of(reference.grpo_loss)
    left_out, handed = (_losses(candidate, far, "policy_loss", "loss", **given) for given in ({}, defaults))
    agree(torch.tensor(left_out), torch.tensor(handed))


# --- 6.3 grpo_step --------------------------------------------------------------------------------

STEP = "grpo_step"
STEP_INFO = (*INFO, "mean_reward", "equal_groups")
TENSORS = ("full_ids", "full_mask", "old_logprobs", "ref_logprobs", "rewards", "response_mask")
N_TOKENS, WIDTH, N_POSITIONS = 13, 4, 24
# One step on the gradient as it is.
PLAIN = {"n_epochs": 1, "clip_range": 0.3, "kl_coef": 0.5, "max_grad_norm": 1e9}


@dataclass(frozen=True)
class Scene:
    """A rollout, and a policy that is to be updated with it.

    Attributes:
        name: its numbers are drawn from it.
        rewards: of each group, as many as there are answers in it.
        prompts, responses: how many tokens are real in each row, in turns.
        off_policy: how far the policy has moved since the rollout, at most, in log-ratios. By default less than any
            clip range, so that clipping has a test of its own.
        off_reference: how much more likely the reference finds every token, in nats, on top of what it does elsewhere.
        padding: which numbers stand in the padding; all of them are far out.
    """

    name: str
    rewards: tuple[tuple[float, ...], ...]
    prompts: tuple[int, ...] = (4,)
    responses: tuple[int, ...] = (5,)
    off_policy: float = 0.15
    off_reference: float = 0.0
    padding: int = 0


GROUPS = ((1.0, 2.0, 6.0), (0.0, -4.0, 2.0), (5.0, 5.5, 3.0), (-1.0, 0.0, 7.0))
RAGGED = {"prompts": (4, 2, 4, 1, 3), "responses": (5, 1, 3, 4)}


@cache
def _inputs(scene: Scene, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights of a small language model, and the tensors of a rollout."""
    draw, draw_padding = Draw(seed, scene.name), Draw(seed, f"padding {scene.padding}")
    batch = sum(map(len, scene.rewards))
    prompts, responses = (
        [lengths[row % len(lengths)] for row in range(batch)] for lengths in (scene.prompts, scene.responses)
    )
    mask = torch.cat(
        [left_mask(*prompts, width=max(scene.prompts)), right_mask(*responses, width=max(scene.responses))],
        dim=1,
    )
    n_response = max(scene.responses)
    real = mask[:, -n_response:].bool()
    weights = {
        "tokens.weight": draw.normal(N_TOKENS, WIDTH, std=1.5),
        "positions.weight": draw.normal(N_POSITIONS, WIDTH),
        "lm_head.weight": draw.normal(N_TOKENS, WIDTH),
        "lm_head.bias": draw.normal(N_TOKENS),
    }
    ids = torch.where(
        mask.bool(), draw.integers(0, N_TOKENS, *mask.shape), draw_padding.integers(1, N_TOKENS, *mask.shape)
    )
    with torch.no_grad():
        logprobs = reference.response_logprobs(props.SmallLM(weights), ids, mask, n_response)

    over_real = partial(spread, draw, draw_padding, real, far=(4, 6))  # spread over the real tokens

    fields = {
        "full_ids": ids,
        "full_mask": mask,
        "old_logprobs": logprobs - over_real(*moves(scene.off_policy)),
        "ref_logprobs": logprobs - over_real(0.7, -0.3, 0.5, 0.1, -0.9, 1.1) + scene.off_reference * real,
        "rewards": torch.tensor(scene.rewards).flatten(),
        "response_mask": mask[:, -n_response:].clone(),
    }
    return weights, fields


@cache
def _right(
    scene: Scene,
    seed: int,
    population: bool,
    lr: float,
    momentum: float,
    settings: tuple[tuple[str, float], ...],
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """What `grpo_step` should return, and how it should move each weight.

    Args:
        population: whether advantages are made with the population's standard deviation, and not with the sample's.
    """
    (weights, fields), chosen = _inputs(scene, seed), dict(settings)
    policy, batch = props.SmallLM(weights), SimpleNamespace(**fields)
    optim = loop_props.sgd(policy, lr, momentum)
    advantages = _expected(batch.rewards, len(scene.rewards[0]))[population].float()
    info = {}
    for _ in range(chosen["n_epochs"]):
        new = reference.response_logprobs(
            policy, batch.full_ids, batch.full_mask, batch.response_mask.shape[1]
        )
        fixed = batch.old_logprobs, batch.ref_logprobs, advantages, batch.response_mask
        loss, info = reference.grpo_loss(new, *fixed, chosen["clip_range"], chosen["kl_coef"])
        optim.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), chosen["max_grad_norm"])
        optim.step()
    equal = sum(len(set(group)) == 1 for group in scene.rewards) / len(scene.rewards)
    info |= {"mean_reward": float(batch.rewards.mean()), "equal_groups": equal}
    return info, {name: weight - weights[name] for name, weight in policy.state_dict().items()}


class Step(Update):
    """What came back of a call of `grpo_step`."""

    def __init__(
        self,
        candidate: Candidate,
        draw: Draw,
        scene: Scene,
        lr: float = 0.1,
        momentum: float = 0.0,
        training: bool = False,
        left_over: float | None = None,
        seed: int = 0,
        left_out: Sequence[str] = (),
        **settings: float,
    ):
        """Make the call.

        Args:
            training: whether the policy comes in training mode.
            left_over: gradient that every weight has before.
            left_out: arguments that are not handed over.
        """
        weights, fields = _inputs(scene, draw.seed)
        settings = PLAIN | settings
        learner = candidate.call(props.learner, weights, training, left_over, lr, momentum).value
        group_size, texts = len(scene.rewards[0]), [""] * len(fields["rewards"])
        batch = candidate.call("grpo.GroupRollout", group_size=group_size, **fields, texts=texts).value
        given = {name: value for name, value in settings.items() if name not in left_out}

        def right(population: bool):
            return _right(scene, draw.seed, population, lr, momentum, tuple(settings.items()))

        super().__init__(candidate, "grpo.grpo_step", learner, batch, given, seed, weights, STEP_INFO, right)


UPDATE = "each epoch is a step down the loss"


@hidden(
    STEP,
    "the mean reward",
    points=0.25,
    catches=["a sum", "mean of the advantages", "KL in it", "missing"],
    message="mean_reward is the mean of the rewards of the rollout, as they are.",
)
def step_mean_reward(candidate: Candidate, draw: Draw):
    rewards = tuple((draw.number(1, 5), draw.number(6, 9), draw.number(-3, 0)) for _ in range(3))
    check(Step(candidate, draw, Scene("rewards", rewards)).says("mean_reward"))


@hidden(
    STEP,
    "groups of equal rewards",
    points=0.5,
    catches=[
        "a count",
        "advantages of 0",
        "two equal rewards",
        "first and last",
        "all 0",
        "close rewards",
        "stride",
    ],
    message="equal_groups is the share of groups in which all rewards are equal.",
)
def step_equal_groups(candidate: Candidate, draw: Draw):
    value = float(draw.whole(2, 6))
    others = [(0.0, 1.0, 2.0), (5.0, 0.0, 5.0), (3.0, 3.0, 0.0), (0.375, 0.125, 0.25), (1.0, 1.001, 1.0)]
    for equal in (1, 2):
        groups = draw.shuffled([*others, *[(value, value, value)] * equal])
        check(Step(candidate, draw, Scene(f"equal {equal}", tuple(groups))).says("equal_groups"))


@hidden(
    STEP,
    "advantages within each group",
    points=0.5,
    catches=[
        "raw rewards", "whole batch", "another group size", "whitened again", "limited", "KL charged in the rewards",
        "ratio to the reference",
    ],
    message="The policy loss is not that of advantages within each group and of the ratio of the new policy to the old.",
)  # fmt: skip
def step_advantages(candidate: Candidate, draw: Draw):
    check(Step(candidate, draw, Scene("groups", GROUPS)).says("policy_loss", "approx_kl"))
    wide = ((9.0, 2.0, 30.0, 1.0), (0.0, -4.0, -40.0, 2.0))
    check(Step(candidate, draw, Scene("wide", wide, **RAGGED)).says("policy_loss"))


@hidden(
    STEP,
    "the distance to the reference",
    points=0.25,
    catches=["kl_coef not handed on", "reference replaced", "swapped with the old"],
    message="kl_coef or the reference's log-probabilities do not reach the loss: equal rewards leave nothing else to go by.",
)
def step_reference(candidate: Candidate, draw: Draw):
    equal = ((2.0, 2.0, 2.0), (-1.0, -1.0, -1.0))
    step = Step(candidate, draw, Scene("distance", equal), kl_coef=draw.number(0.8, 1.2))
    check(step.says("kl_to_ref") and step.way.norm() > 1e-4 and step.moves())


@hidden(
    STEP,
    "clip_range",
    points=0.25,
    catches=["not handed on", "swapped with kl_coef", "old log-probabilities replaced"],
    message="clip_range does not reach the ratio, or the ratio is not that of the new policy to the one that sampled.",
)
def step_clip_range(candidate: Candidate, draw: Draw):
    scene = Scene("clipped", GROUPS, off_policy=0.8)
    for clip_range in (0.1, 0.4):
        step = Step(candidate, draw, scene, clip_range=clip_range)
        check(step.says("clipfrac") and step.moves())


@hidden(
    STEP,
    UPDATE,
    points=0.5,
    catches=["climbs", "no step", "gradient set back too late", "another optimiser"],
    message="Your loss does not go down as it should when the optimiser that is handed in steps along its gradient, once in "
    "each epoch.",
)
def step_update(candidate: Candidate, draw: Draw):
    scene, lr, small = Scene("update", GROUPS, off_policy=0.0), 0.1, 1e-4
    first = Step(candidate, draw, scene, lr=lr)
    later = Step(candidate, draw, scene, lr=small, n_epochs=2)
    # to first order, a step along the gradient lowers the loss by the learning rate times its squared norm
    drop = small * (first.way / lr).square().sum().item()
    before, after = (step.info["policy_loss"] + 0.5 * step.info["kl_to_ref"] for step in (first, later))
    check(drop > 1e-6 and abs(before - after - drop) < 0.05 * drop + 2e-7)


@hidden(
    STEP,
    "several epochs",
    points=0.5,
    catches=[
        "wrong number of epochs",
        "old log-probabilities anew in each epoch",
        "gradients add up",
        "info",
        "early stop",
    ],
    message="After several epochs the weights are somewhere else than GRPO takes them. What changes from epoch to epoch in "
    "your code, and how many are there?",
)
def step_epochs(candidate: Candidate, draw: Draw):
    settings = {"n_epochs": 4, "kl_coef": 0.3, "max_grad_norm": 1.0, "clip_range": 0.25}
    step = Step(candidate, draw, Scene("epochs", GROUPS, off_policy=0.0), lr=0.5, momentum=0.5, **settings)
    check(step.moves())
    check(step.says(*INFO), "Your info is not that of the last epoch.")
    near, far = (
        Step(candidate, draw, Scene("far away", GROUPS, off_policy=move), lr=1e-4, n_epochs=3).steps
        for move in (0.0, 2.0)
    )
    check(near == far == 3, "You make another number of steps than n_epochs says.")


@hidden(
    STEP,
    "gradients do not add up",
    points=0.25,
    catches=["zero_grad missing", "zero_grad once", "zero_grad too late"],
    message="Gradients add up from step to step, or from epoch to epoch. When are they set back to zero?",
)
def step_zero_grad(candidate: Candidate, draw: Draw):
    step = partial(Step, candidate, draw, Scene("left over", GROUPS, off_policy=0.0), lr=1e-3)
    check(sets_gradients_to_zero(step, "n_epochs", draw.number(3, 9)))


@hidden(
    STEP,
    "the norm of the gradient",
    points=0.25,
    catches=["no clipping", "clipped to 1", "each weight by itself", "by value"],
    message="The norm of the whole gradient has to be at most max_grad_norm when the optimiser makes its step.",
)
def step_norm(candidate: Candidate, draw: Draw):
    way, lr = Step(candidate, draw, Scene("norm", GROUPS)).way, 5.0
    for limit in (0.02, 0.01):
        short = Step(candidate, draw, Scene("norm", GROUPS), lr=lr, max_grad_norm=limit).way
        agree(short.norm(), lr * limit, tolerance=1e-3)
        check(torch.cosine_similarity(short, way, dim=0) > 0.9999)


@hidden(
    STEP,
    "padding has no say",
    points=0.25,
    catches=[
        "a mask of ones",
        "losses over the padding",
        "full_mask not used",
        "groups left out of the mask",
    ],
    message="What stands in the padding changes your update: a mask is not used, or not handed on.",
)
def step_padding(candidate: Candidate, draw: Draw):
    groups = (*GROUPS, (3.0, 3.0, 3.0))
    one, other = (
        Step(candidate, draw, Scene("padded", groups, **RAGGED, padding=i), n_epochs=2) for i in (1, 2)
    )
    check(one.does_as(other))
    check(
        one.moves() and one.says("policy_loss", "kl_to_ref"),
        "Responses of different length: over which tokens, and over which responses, do you average?",
    )


@hidden(
    STEP,
    "dropout is off",
    points=0.25,
    catches=["train() in the update", "eval missing"],
    message="Dropout is on during your update: old and new policy are then not the same function, and no ratio starts at 1.",
)
def step_dropout(candidate: Candidate, draw: Draw):
    scene = Scene("dropout", GROUPS)
    one, other = (Step(candidate, draw, scene, training=bool(seed), seed=seed) for seed in (0, 1))
    check(one.does_as(other))


@hidden(
    STEP,
    "the rollout stays as it is",
    points=0.25,
    catches=["writes into the rollout", "replaces its log-probabilities"],
    message="Your update writes into the rollout: whoever logs it afterwards sees other numbers than were sampled.",
)
def step_rollout(candidate: Candidate, draw: Draw):
    scene = Scene("kept", GROUPS, **RAGGED)
    step = Step(candidate, draw, scene, n_epochs=2)
    check_kept(step.way, step.rollout.fields, _inputs(scene, draw.seed)[1])


@hidden(
    STEP,
    "the defaults",
    points=0.25,
    catches=["a default changed"],
    message="Left out, an argument has another value than it had in the signature that you were given.",
)
def step_defaults(candidate: Candidate, draw: Draw):
    defaults = defaults_of(reference.grpo_step)
    # far enough from the reference that its pull is longer than any limit
    scene = Scene("defaults", GROUPS, off_policy=0.8, off_reference=4.0)
    # where the norm is clipped, its limit is seen; where it is not, the rest
    for others in ({}, {"max_grad_norm": 1e9}):
        left_out, handed = (
            Step(candidate, draw, scene, lr=0.3, left_out=names, **(defaults | others))
            for names in (defaults.keys() - others.keys(), ())
        )
        check(left_out.does_as(handed))


N_ROLLOUTS, N_PROMPTS, GROUP_SIZE, NEW_TOKENS = 6, 8, 4, 8
TRAINED_LR, TRAINED_EPOCHS = 5e-4, 3
# Bands, from the solution with the seeds 0 to 5: of 128 fresh samples to other draws of prompts, the share of even tokens
# rose by 0.10 to 0.15, and their KL to the reference was 2.4 to 3.7 nats a response.
RISE, FROM_REFERENCE = 0.05, (0.3, 9.0)


@cache
def _sft():
    """The language model after SFT, to be copied, and its tokenizer."""
    return load_causal_lm(SFT), load_tokenizer(SFT)


def _sampled(lm, draw: Draw, n_prompts: int, group_size: int) -> reference.GroupRollout:
    """Groups of responses to prompts of SFT; the reward of a response is the share of its tokens whose id is even."""
    ref, tokenizer = _sft()
    rows = toy_rows("prompts_train")
    prompts = [rows[i]["prompt"] for i in draw.integers(0, len(rows), n_prompts).tolist()]
    nothing = torch.zeros(n_prompts * group_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.whole(0, 1_000_000))
        batch = reference.group_rollout(
            lm, ref, lambda ids, mask: nothing, tokenizer, prompts, group_size, NEW_TOKENS
        )
    mask = batch.response_mask
    even = (batch.full_ids[:, -mask.shape[1] :] % 2 == 0) * mask
    batch.rewards = even.sum(dim=1) / mask.sum(dim=1)
    return batch


@hidden(
    STEP,
    "a language model after a few steps",
    points=0.75,
    catches=["steps that teach nothing", "steps that leave the reference behind"],
    message="After a few steps of yours, a language model does not earn more than before, or has left its reference far behind.",
    training=True,
)
def step_trains(candidate: Candidate, draw: Draw):
    policy, optim = parts(candidate.call(props.sft_learner, TRAINED_LR).value, 2)
    lm = copy.deepcopy(_sft()[0])
    for _ in range(N_ROLLOUTS):
        batch = _sampled(lm, draw, N_PROMPTS, GROUP_SIZE)
        given = candidate.call("grpo.GroupRollout", **vars(batch)).value
        answer = candidate.call(
            "grpo.grpo_step", policy, optim, given, after=(2,), n_epochs=TRAINED_EPOCHS, seconds=60.0
        )
        for name in TENSORS:
            kept = torch.equal(tensor(answer.after[2].fields[name]), vars(batch)[name])
            check(kept, "Your update writes into the rollout.")
        lm.load_state_dict(candidate.call(shared.weights, policy).value)

    before, after = (_sampled(model, draw, 128, 1) for model in (_sft()[0], lm))
    gap = (after.old_logprobs - after.ref_logprobs) * after.response_mask
    check(after.rewards.mean() - before.rewards.mean() > RISE)
    low, high = FROM_REFERENCE
    check(low < gap.sum(dim=1).mean() < high)
