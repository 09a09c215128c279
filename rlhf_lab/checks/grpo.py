"""Cases of 6: GRPO."""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from ..taught_code import TaughtCode
from .case import case, entries, numbers, one_number, parts, raised, tensor
from .models import SmallCausalLM
from .training import Step, changes_with_padding, leave_over, noted, same_tensors, what_adds_up

ADVANTAGES = "group_advantages"
LOSS = "grpo_loss"
STEP = "grpo_step"

# --- 6.1 group_advantages -------------------------------------------------------------------------

NEAR = 1e-3  # of advantages: eps may be anything small


def _advantages(code: TaughtCode, rewards: Tensor, group_size: int) -> Tensor:
    return tensor(ADVANTAGES, code.grpo.group_advantages(rewards, group_size, eps=1e-8), rewards.shape)


def _in_groups(code: TaughtCode, rewards: Tensor, group_size: int) -> Tensor:
    """The advantages, a row for each group."""
    return _advantages(code, rewards, group_size).reshape(-1, group_size)


def _levels(n_groups: int, group_size: int) -> Tensor:
    """Rewards of prompts that are easy and hard to different degrees, on scales of their own."""
    levels, scales = torch.arange(n_groups)[:, None] * 10.0, 1.0 + torch.arange(n_groups)[:, None]
    return (levels + scales * numbers(1, n_groups, group_size)).flatten()


@case(ADVANTAGES, "one number for each answer", "12 rewards in groups of 4")
def advantages_shape(code: TaughtCode):
    return {"its shape": list(_advantages(code, _levels(3, 4), 4).shape)}


@case(
    ADVANTAGES,
    "better and worse than the group",
    "the signs for rewards 1, 2, 3 and 8",
    mistake="An answer that is better than the mean of its group has an advantage above 0, and one that is worse has one "
    "below 0. With what do you compare, and which way round do you subtract?",
)
def advantages_sign(code: TaughtCode):
    return {"the signs": _advantages(code, torch.tensor([1.0, 2.0, 3.0, 8.0]), 4).sign()}


@case(
    ADVANTAGES,
    "the mean of a group is 0",
    "one group of 5",
    tolerance=NEAR,
    mistake="Within a group the advantages have to add up to 0: what has been gained against the mean has been lost against "
    "it elsewhere. What do you subtract?",
)
def advantages_mean(code: TaughtCode):
    return {"the mean of the advantages": _advantages(code, numbers(2, 5, mean=3.0, std=2.0), 5).mean()}


@case(
    ADVANTAGES,
    "divided by the standard deviation",
    "one group of 5",
    tolerance=NEAR,
    mistake="The advantages have the right signs and the wrong size. By what do you divide?",
)
def advantages_scale(code: TaughtCode):
    return {"advantages": _advantages(code, numbers(3, 5, mean=3.0, std=2.0), 5)}


@case(
    ADVANTAGES,
    "each group by itself",
    "5 groups of 3, on levels and scales of their own",
    tolerance=NEAR,
    mistake="One group alone is right, and several are not. Which answers does an answer have to be compared with, and where "
    "do they stand in the batch?",
)
def advantages_groups(code: TaughtCode):
    return {"advantages": _in_groups(code, _levels(5, 3), 3)}


@case(
    ADVANTAGES,
    "as many groups as answers",
    "4 groups of 4",
    tolerance=NEAR,
    mistake="With as many groups as answers in a group, a mistake with axes raises no error. Which axis do mean and deviation "
    "go over, and which do they lose?",
)
def advantages_square(code: TaughtCode):
    return {"advantages": _in_groups(code, _levels(4, 4), 4)}


@case(
    ADVANTAGES,
    "small differences",
    "4 answers whose rewards differ by 0.05 to 0.15, beside 4 that differ more",
    tolerance=1e-2,
    mistake="A group whose rewards differ little is treated in another way. Divided by its own standard deviation, it has "
    "advantages as large as those of every other group.",
)
def advantages_small(code: TaughtCode):
    return {"advantages": _in_groups(code, torch.tensor([0.60, 0.65, 0.75, 0.70, 1.0, 5.0, 2.0, -3.0]), 4)}


@case(
    ADVANTAGES,
    "an answer far better than its group",
    "one of 24 answers",
    tolerance=NEAR,
    mistake="You limit the advantages: an answer that is far better than its group has to weigh as much as it does.",
)
def advantages_outlier(code: TaughtCode):
    rewards = numbers(4, 24, std=0.1)
    rewards[7] = 9.0
    return {"its advantage": _advantages(code, rewards, 24)[7]}


@case(
    ADVANTAGES,
    "some equal rewards",
    "groups in which two of four answers have the same reward",
    tolerance=NEAR,
    mistake="Only a group in which all rewards are equal says nothing.",
)
def advantages_two_equal(code: TaughtCode):
    return {"advantages": _in_groups(code, torch.tensor([2.0, 2.0, 5.0, 1.0, 1.0, 3.0, 3.0, 1.0]), 4)}


@case(
    ADVANTAGES,
    "all rewards of a group equal",
    "a group of 2, 2, 2, 2, in front of another one",
    tolerance=NEAR,
    mistake="A group whose rewards are all equal says nothing: its advantages are 0, and those of other groups are as before. "
    "What does your division make of it?",
)
def advantages_equal(code: TaughtCode):
    shown = _in_groups(code, torch.tensor([2.0, 2.0, 2.0, 2.0, 1.0, 2.0, 4.0, 3.0]), 4)
    return {"of the equal ones": shown[0], "of the other group": shown[1]}


@case(
    ADVANTAGES,
    "equal rewards that are no round numbers",
    "8 answers with reward 0.7, and 7 with 0.1",
    mistake="The mean of eight times 0.7 is not exactly 0.7, since floating-point numbers are rounded: what you divide there is "
    "one rounding error by another. How else can you tell that all rewards of a group are equal?",
)
def advantages_rounded(code: TaughtCode):
    eight, seven = (
        _advantages(code, torch.full((n,), reward), n).abs().max() for n, reward in ((8, 0.7), (7, 0.1))
    )
    return {"0 for eight": bool(eight < 5e-3), "0 for seven": bool(seven < 5e-3)}


@case(
    ADVANTAGES,
    "a group of one",
    "3 answers in groups of 1",
    mistake="A group of one answer says nothing, and its advantage is 0. What is the standard deviation of a single number?",
)
def advantages_one(code: TaughtCode):
    return {"advantages": _advantages(code, torch.tensor([3.0, -1.0, 0.5]), 1)}


@case(
    ADVANTAGES,
    "a batch that is no multiple",
    "10 rewards in groups of 4",
    mistake="A batch that is no multiple of group_size has to be refused, with a ValueError that names both numbers.",
)
def advantages_refused(code: TaughtCode):
    refusal = raised(lambda: code.grpo.group_advantages(torch.arange(10.0), 4), "10", "4")
    return {"what is raised": refusal}


@case(
    ADVANTAGES,
    "the rewards stay as they are",
    "compared before and after",
    mistake="Your function changes the rewards in place. Whoever logs them afterwards sees other numbers.",
)
def advantages_arguments(code: TaughtCode):
    rewards = _levels(3, 4)
    before = rewards.clone()
    code.grpo.group_advantages(rewards, 4)
    return {"the rewards changed": not torch.equal(rewards, before)}


@case(
    ADVANTAGES,
    "the default",
    "one group of 4, eps left out",
    tolerance=NEAR,
    mistake="Left out, eps has another value than it had in the signature that you were given.",
)
def advantages_default(code: TaughtCode):
    return {"advantages": code.grpo.group_advantages(torch.tensor([0.1, 0.4, 0.2, 0.9]), 4)}


# --- 6.2 grpo_loss --------------------------------------------------------------------------------

CLIP_RANGE, KL_COEF = 0.3, 0.6
INFO = ("policy_loss", "kl_to_ref", "approx_kl", "clipfrac")
LENGTHS = (6, 3, 1)


def ragged() -> Tensor:
    """A mask of three responses, of 6, 3 and 1 tokens; a new one each time, for code that changes its arguments."""
    return (torch.arange(6) < torch.tensor(LENGTHS)[:, None]).long()


def loss_arguments(
    ratio: Tensor, advantages: Tensor, *, to_ref: Tensor | None = None, mask: Tensor | None = None
) -> dict[str, Tensor]:
    """The tensors of `grpo_loss`: `to_ref` is the log-ratio of the reference to the new policy, by default 0.4 or less."""
    old_logprobs = numbers(10, *ratio.shape, mean=-2.0, std=0.5)
    new_logprobs = old_logprobs + ratio.log()
    to_ref = numbers(11, *ratio.shape, std=0.4).clamp(-0.4, 0.4) if to_ref is None else to_ref
    return {
        "new_logprobs": new_logprobs,
        "old_logprobs": old_logprobs,
        "ref_logprobs": new_logprobs + to_ref,
        "advantages": advantages,
        "mask": torch.ones_like(ratio) if mask is None else mask,
    }


def ragged_arguments(*, on_padding: float) -> dict[str, Tensor]:
    """The same for three responses of 6, 3 and 1 tokens, whose tokens differ from row to row, with garbage of this size
    on the padding. Ratios stay within the clip range."""
    mask = ragged()
    row = torch.tensor([[0.05], [0.12], [-0.2]])
    ratio = ((row + numbers(12, 3, 6, std=0.02)) * mask).exp()
    to_ref = (8 * row + numbers(13, 3, 6, std=0.2)) * mask
    arguments = loss_arguments(ratio, torch.tensor([3.0, -1.0, 2.0]), to_ref=to_ref, mask=mask)
    garbage = (1 - mask) * on_padding
    arguments["new_logprobs"] += garbage
    arguments["ref_logprobs"] += 2 * garbage
    return arguments


def _losses(code: TaughtCode, arguments: dict[str, Tensor]) -> dict[str, Any]:
    """What `grpo_loss` returns: its loss, and the entries of its dictionary as numbers."""
    loss, info = parts(
        LOSS, code.grpo.grpo_loss(**arguments, clip_range=CLIP_RANGE, kl_coef=KL_COEF), "loss", "info"
    )
    info = entries(LOSS, info, *INFO)
    return {
        "loss": tensor("grpo_loss, for its loss,", loss, ()),
        **{name: one_number(f"{name} of grpo_loss", info[name]) for name in INFO},
    }


def _policy_loss(code: TaughtCode, ratio: float, advantage: float) -> float:
    """The policy loss of a single token."""
    arguments = loss_arguments(torch.tensor([[ratio]]), torch.tensor([advantage]))
    return _losses(code, arguments)["policy_loss"]


def _kl(code: TaughtCode, to_ref: float, ratio: float = 1.0) -> float:
    """`kl_to_ref` of a single token."""
    arguments = loss_arguments(torch.tensor([[ratio]]), torch.ones(1), to_ref=torch.tensor([[to_ref]]))
    return _losses(code, arguments)["kl_to_ref"]


@case(LOSS, "a loss and four numbers", "tensors [2, 6], two advantages")
def loss_shape(code: TaughtCode):
    shown = _losses(code, loss_arguments(numbers(14, 2, 6, std=0.1).exp(), torch.tensor([2.0, 3.0])))
    return {"the shape of the loss": list(shown["loss"].shape)}


@case(
    LOSS,
    "policy loss before the first step",
    "[1, 6], ratio 1, advantage 3",
    mistake="While new and old policy agree, the policy loss of a response is minus its advantage: a loss that falls has to "
    "raise what went well. Is the sign right, and do you use the advantages as they are given?",
)
def loss_ratio_one(code: TaughtCode):
    return {
        "policy_loss": _losses(code, loss_arguments(torch.ones(1, 6), torch.tensor([3.0])))["policy_loss"]
    }


@case(
    LOSS,
    "policy loss within the clip range",
    "[1, 6], ratios between 0.8 and 1.25, clip_range 0.3",
    mistake="Within the clip range nothing is clipped, and yet your policy loss is not that of advantage times ratio, at each "
    "token. How do you make the ratio out of two log-probabilities?",
)
def loss_within(code: TaughtCode):
    ratio = torch.tensor([[0.8, 0.9, 0.95, 1.05, 1.1, 1.25]])
    return {"policy_loss": _losses(code, loss_arguments(ratio, torch.tensor([3.0])))["policy_loss"]}


@case(
    LOSS,
    "each response has its own advantage",
    "[4, 4], advantages 1, 3, -2 and 6",
    mistake="One response alone is right, and several are not: each has one advantage, at all of its tokens. Along which axis "
    "do the advantages [batch] lie when you multiply?",
)
def loss_broadcast(code: TaughtCode):
    ratio = (numbers(15, 4, 4, std=0.05) + torch.tensor([[0.1], [-0.1], [0.05], [-0.15]])).exp()
    arguments = loss_arguments(ratio, torch.tensor([1.0, 3.0, -2.0, 6.0]))
    return {"policy_loss": _losses(code, arguments)["policy_loss"]}


@case(
    LOSS,
    "a response of advantage 0",
    "[3, 4], advantages 0, 3 and -2",
    mistake="A response whose advantage is 0 counts in the mean over responses like every other.",
)
def loss_zero(code: TaughtCode):
    ratio = (numbers(15, 3, 4, std=0.05) + torch.tensor([[0.1], [-0.1], [0.05]])).exp()
    return {
        "policy_loss": _losses(code, loss_arguments(ratio, torch.tensor([0.0, 3.0, -2.0])))["policy_loss"]
    }


@case(
    LOSS,
    "what went the wrong way counts in full",
    "one token, ratio 1.6 with advantage -2, ratio 0.5 with advantage 2",
    mistake="A token that has moved the wrong way is clipped in your loss, and so gets no gradient to come back. Of the two "
    "candidates, clipped and unclipped, which one is the worse here?",
)
def loss_harm(code: TaughtCode):
    return {
        "policy_loss at ratio 1.6 and advantage -2": _policy_loss(code, 1.6, -2.0),
        "policy_loss at ratio 0.5 and advantage 2": _policy_loss(code, 0.5, 2.0),
    }


@case(
    LOSS,
    "what went far enough is clipped",
    "one token, ratio 1.6 with advantage 2, ratio 0.5 with advantage -2; clip_range 0.3",
    mistake="A token that has moved the right way already, and by more than clip_range, still drives your loss, or is clipped "
    "at another place. What is clipped, around which number, and on both sides?",
)
def loss_clipped(code: TaughtCode):
    return {
        "policy_loss at ratio 1.6 and advantage 2": _policy_loss(code, 1.6, 2.0),
        "policy_loss at ratio 0.5 and advantage -2": _policy_loss(code, 0.5, -2.0),
    }


@case(
    LOSS,
    "each token is judged on its own",
    "[2, 3], some tokens within the clip range, some beyond it on either side",
    mistake="One token alone is right, several at once are not. Ratio and clip belong to each token by itself, before the mean.",
)
def loss_each_token(code: TaughtCode):
    ratio = torch.tensor([[1.6, 0.5, 1.1], [0.45, 1.5, 0.9]])
    return {"policy_loss": _losses(code, loss_arguments(ratio, torch.tensor([2.0, -1.0])))["policy_loss"]}


@case(
    LOSS,
    "kl_to_ref where policy and reference agree",
    "one token, ratio 1.2",
    mistake="Where policy and reference agree, their distance is 0. Between which two do you measure, and what is left over?",
)
def loss_kl_zero(code: TaughtCode):
    return {"kl_to_ref": _kl(code, 0.0, ratio=1.2)}


@case(
    LOSS,
    "kl_to_ref",
    "one token that the reference finds more likely by 1 nat, and one less likely by 1 nat",
    mistake="kl_to_ref is another estimate than the docstring's, or has its arguments or its sign the other way round. Can "
    "yours be negative? What does it say of both tokens?",
)
def loss_kl(code: TaughtCode):
    return {
        "the reference finds it more likely": _kl(code, 1.0),
        "the reference finds it less likely": _kl(code, -1.0),
    }


@case(
    LOSS,
    "kl_to_ref of a policy that has moved",
    "one token, ratio 1.5 and 0.6",
    mistake="kl_to_ref is the distance of the new policy to the reference, at every token alike. The old policy has no part in "
    "it.",
)
def loss_kl_moved(code: TaughtCode):
    return {f"kl_to_ref at ratio {ratio}": _kl(code, 0.8, ratio) for ratio in (1.5, 0.6)}


@case(
    LOSS,
    "kl_to_ref of several tokens",
    "[2, 4]",
    mistake="One token alone is right, and several are not. kl_to_ref is a mean over the tokens of a response, and then over "
    "the responses.",
)
def loss_kl_mean(code: TaughtCode):
    arguments = loss_arguments(torch.ones(2, 4), torch.ones(2), to_ref=numbers(16, 2, 4, std=0.7))
    return {"kl_to_ref": _losses(code, arguments)["kl_to_ref"]}


@case(
    LOSS,
    "the loss is made of both",
    "[2, 3], kl_coef 0.6",
    mistake="policy_loss and kl_to_ref are right, and the loss is not. How much does the distance count in it, and with which "
    "sign?",
)
def loss_total(code: TaughtCode):
    ratio = numbers(17, 2, 3, std=0.1).exp()
    arguments = loss_arguments(ratio, torch.tensor([2.0, 3.0]), to_ref=numbers(18, 2, 3, std=0.7))
    return {"loss": _losses(code, arguments)["loss"]}


@case(
    LOSS,
    "policy loss: each response counts the same",
    "responses of 6, 3 and 1 tokens, nothing on padding",
    mistake="Your policy loss is no mean over responses of the mean over each one's tokens, although what stands on the padding "
    "is 0. By what do you divide, and when?",
)
def loss_policy_mean(code: TaughtCode):
    return {"policy_loss": _losses(code, ragged_arguments(on_padding=0.0))["policy_loss"]}


@case(
    LOSS,
    "policy loss: padding must not matter",
    "the same responses, garbage on padding",
    mistake="Your policy loss changes when padded positions change.",
)
def loss_policy_padding(code: TaughtCode):
    return {"policy_loss": _losses(code, ragged_arguments(on_padding=3.0))["policy_loss"]}


@case(
    LOSS,
    "kl_to_ref: each response counts the same",
    "responses of 6, 3 and 1 tokens, nothing on padding",
    mistake="kl_to_ref is no mean over responses of the mean over each one's tokens, although what stands on the padding is 0. "
    "By what do you divide, and when?",
)
def loss_kl_of_responses(code: TaughtCode):
    return {"kl_to_ref": _losses(code, ragged_arguments(on_padding=0.0))["kl_to_ref"]}


@case(
    LOSS,
    "kl_to_ref: padding must not matter",
    "the same responses, garbage on padding",
    mistake="kl_to_ref changes when padded positions change.",
)
def loss_kl_padding(code: TaughtCode):
    return {"kl_to_ref": _losses(code, ragged_arguments(on_padding=3.0))["kl_to_ref"]}


@case(
    LOSS,
    "approx_kl",
    "one token, log-ratio 0.5 and -0.5",
    mistake="Your approx_kl is another estimate than that of exercise 3.4, or has its arguments or its sign the other way "
    "round. Can yours be negative? Of which two policies is it?",
)
def loss_approx_kl(code: TaughtCode):
    ratios = {"a token that became likelier": 0.5, "a token that became less likely": -0.5}
    return {
        f"approx_kl of {name}": _losses(code, loss_arguments(torch.tensor([[x]]).exp(), torch.ones(1)))[
            "approx_kl"
        ]
        for name, x in ratios.items()
    }


@case(
    LOSS,
    "clipfrac",
    "[2, 7], ratios on both sides of 0.7 and 1.3, with both signs of the advantage",
    mistake="Your clipfrac counts other tokens than those whose ratio, as it is before the clip, is further than clip_range "
    "from 1.",
)
def loss_clipfrac(code: TaughtCode):
    ratio = torch.tensor([[1.6, 1.35, 0.5, 0.72, 1.1, 1.0, 0.6], [1.6, 1.7, 0.65, 0.71, 1.25, 0.9, 1.2]])
    return {"clipfrac": _losses(code, loss_arguments(ratio, torch.tensor([2.0, -2.0])))["clipfrac"]}


@case(
    LOSS,
    "approx_kl and clipfrac on padded responses",
    "responses of 6, 3 and 1 tokens, garbage on padding, two tokens beyond the clip range",
    mistake="These two numbers are means over all tokens of the mask at once, as in exercise 3.4. Over what do you average?",
)
def loss_info_padding(code: TaughtCode):
    arguments = ragged_arguments(on_padding=3.0)
    arguments["new_logprobs"][1, 2] += 1.0
    arguments["new_logprobs"][2, 0] += 1.0
    shown = _losses(code, arguments)
    return {name: shown[name] for name in ("approx_kl", "clipfrac")}


@case(
    LOSS,
    "any kind of mask",
    "0s and 1s as integers, as bools and as floats",
    mistake="Your code depends on the type of the mask: a tokenizer gives integers, a comparison gives bools.",
)
def loss_mask_kinds(code: TaughtCode):
    arguments = ragged_arguments(on_padding=3.0)
    kinds = {
        "an integer mask": ragged(),
        "a bool mask": ragged().bool(),
        "a float mask": ragged().float(),
    }
    return {
        f"loss with {kind}": _losses(code, {**arguments, "mask": mask})["loss"]
        for kind, mask in kinds.items()
    }


@case(
    LOSS,
    "the gradient of the new policy",
    "responses of 6, 3 and 1 tokens, two tokens beyond the clip range",
    mistake="The numbers are right, and the gradient is not: a part of your loss is cut off from new_logprobs. It has to come "
    "through both terms.",
)
def loss_gradient(code: TaughtCode):
    arguments = ragged_arguments(on_padding=0.0)
    arguments["new_logprobs"][0, :2] += torch.tensor([1.0, -1.0])
    arguments["new_logprobs"].requires_grad_()
    loss = _losses(code, arguments)["loss"]
    if not loss.requires_grad:
        return {"the loss carries a gradient": False}
    loss.backward()
    return {"the loss carries a gradient": True, "the gradient": arguments["new_logprobs"].grad}


@case(
    LOSS,
    "no gradient elsewhere",
    "old and reference log-probabilities and advantages that carry one",
    mistake="A gradient reaches tensors that stay fixed during the update. The loss must move the new policy only.",
)
def loss_gradient_elsewhere(code: TaughtCode):
    arguments = ragged_arguments(on_padding=0.0)
    for name in arguments.keys() - {"mask"}:
        arguments[name].requires_grad_()
    _losses(code, arguments)["loss"].backward()
    fixed = ("old_logprobs", "ref_logprobs", "advantages")
    return {f"a gradient reaches {name}": arguments[name].grad is not None for name in fixed}


@case(
    LOSS,
    "very far from the old policy",
    "one token, log-ratio 4 with advantage -2, log-ratio -4 with advantage 2",
    mistake="Small steps are right, and large ones are cut off. Where the docstring names no clip, there is none.",
)
def loss_large(code: TaughtCode):
    return {
        "policy_loss at log-ratio 4": _policy_loss(code, math.exp(4.0), -2.0),
        "policy_loss at log-ratio -4": _policy_loss(code, math.exp(-4.0), 2.0),
    }


@case(
    LOSS,
    "arguments stay as they are",
    "all five compared before and after",
    mistake="Your function changes its arguments in place. The next epoch uses the same rollout once more.",
)
def loss_arguments_stay(code: TaughtCode):
    arguments = ragged_arguments(on_padding=3.0)
    before = {name: value.clone() for name, value in arguments.items()}
    code.grpo.grpo_loss(**arguments)
    return {f"{name} changed": not torch.equal(value, before[name]) for name, value in arguments.items()}


@case(
    LOSS,
    "plain numbers in info",
    "the type of each entry",
    mistake="The entries of info have to be plain floats. A tensor that is kept in a history keeps its whole graph in memory.",
)
def loss_info_floats(code: TaughtCode):
    arguments = ragged_arguments(on_padding=0.0)
    arguments["new_logprobs"].requires_grad_()
    _, info = parts(LOSS, code.grpo.grpo_loss(**arguments), "loss", "info")
    return {f"{name} is a float": isinstance(entries(LOSS, info, *INFO)[name], float) for name in INFO}


@case(
    LOSS,
    "the defaults",
    "one token beyond the clip range and far from the reference, clip_range and kl_coef left out",
    mistake="Left out, an argument has another value than it had in the signature that you were given. Which default have "
    "you changed?",
)
def loss_defaults(code: TaughtCode):
    arguments = loss_arguments(torch.full((1, 1), 1.6), torch.tensor([2.0]), to_ref=torch.full((1, 1), 1.5))
    loss, info = parts(LOSS, code.grpo.grpo_loss(**arguments), "loss", "info")
    return {
        "policy_loss": one_number("policy_loss of grpo_loss", entries(LOSS, info, *INFO)["policy_loss"]),
        "loss": tensor("grpo_loss, for its loss,", loss, ()),
    }


# --- 6.3 grpo_step --------------------------------------------------------------------------------

STEP_INFO = (*INFO, "mean_reward", "equal_groups")
# five groups of three: all different, all equal, one exactly the mean, the best twice, all close
STEP_REWARDS = (1.0, 2.0, 6.0, 4.0, 4.0, 4.0, 0.0, 1.0, 2.0, 5.0, 0.0, 5.0, 0.375, 0.125, 0.25)
STEP_GROUP = 3
STEP_MASK = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 0]]).repeat(5, 1)
STEP_RESPONSE = 4  # tokens of the response block, after a prompt block of three
STEP_TENSORS = ("full_ids", "full_mask", "old_logprobs", "ref_logprobs", "rewards", "response_mask")
N_TOKENS = 11


class SmallLM(SmallCausalLM):
    """The same weights each time."""

    def __init__(self):
        super().__init__(N_TOKENS, width=3, n_positions=8, scale=2.0)
        with torch.no_grad():
            for seed, weight in enumerate(self.parameters(), 20):
                weight.copy_(numbers(seed, *weight.shape))


@torch.no_grad()
def _given_rollout(code: TaughtCode, off_policy: float = 1.0, garbage: float = 3.0):
    """Five groups of three responses, of 4, 2 and 3 tokens; garbage stands in the padding.

    Off-policy 1, many ratios are far from 1; 0, all are 1.
    """
    ids = torch.arange(STEP_MASK.numel()).reshape(STEP_MASK.shape) * 7 % N_TOKENS
    full_ids = torch.where(STEP_MASK == 1, ids, int(garbage))
    mask = STEP_MASK[:, -STEP_RESPONSE:]
    logprobs = code.grpo.response_logprobs(SmallLM().eval(), full_ids, STEP_MASK, STEP_RESPONSE)
    old_logprobs = logprobs + off_policy * numbers(30, *mask.shape, std=0.4)
    ref_logprobs = logprobs + numbers(31, *mask.shape, mean=-0.3, std=0.5)
    fill = torch.tensor(garbage)
    return code.grpo.GroupRollout(
        group_size=STEP_GROUP,
        full_ids=full_ids,
        full_mask=STEP_MASK.clone(),
        old_logprobs=old_logprobs.where(mask == 1, -fill),
        ref_logprobs=ref_logprobs.where(mask == 1, 2 * fill),
        rewards=torch.tensor(STEP_REWARDS),
        response_mask=mask.clone(),
        texts=[""] * len(mask),
    )


def _step(code: TaughtCode, batch=None, policy=None, lr: float = 0.0, **settings):
    """What `grpo_step` returns, as numbers, and the steps that its optimiser took; with `lr=0` no weight moves."""
    batch, policy = batch or _given_rollout(code), policy or SmallLM().eval()
    optim = torch.optim.SGD(policy.parameters(), lr=lr)
    steps: list[Step] = noted(optim)
    settings = {"n_epochs": 1, "max_grad_norm": 1e9, "clip_range": 0.3, "kl_coef": 0.6} | settings
    info = entries(STEP, code.grpo.grpo_step(policy, optim, batch, **settings), *STEP_INFO)
    return {name: one_number(name, info[name]) for name in STEP_INFO}, steps


@case(
    STEP,
    "it runs",
    "5 groups of 3 responses, 1 epoch, a learning rate of 0",
    mistake="Your info has to hold the entries of `grpo_loss`, and mean_reward and equal_groups beside them.",
)
def step_runs(code: TaughtCode):
    info, _ = _step(code)
    return {"info has": list(info)}


@case(
    STEP,
    "mean_reward",
    "15 rewards",
    mistake="mean_reward is the mean of the rewards of the rollout, as they are.",
)
def step_mean_reward(code: TaughtCode):
    return {"mean_reward": _step(code)[0]["mean_reward"]}


@case(
    STEP,
    "equal_groups",
    "one group of five has three equal rewards; others have two, or close ones, or one that is the mean of its group",
    mistake="equal_groups is the share of groups in which all rewards are equal. Which groups do you count, and by what do you "
    "divide?",
)
def step_equal_groups(code: TaughtCode):
    return {"equal_groups": _step(code)[0]["equal_groups"]}


@case(
    STEP,
    "one update an epoch",
    "3 epochs; the steps of the optimiser that is handed in",
    mistake="In each of n_epochs epochs, the optimiser that is handed in makes one step, on the gradient of that epoch's loss.",
)
def step_updates(code: TaughtCode):
    _, steps = _step(code, n_epochs=3)
    has_gradient = [bool(step.gradient.any()) for step in steps]
    return {"steps of the optimiser": len(steps), "a step has a gradient": has_gradient}


@case(
    STEP,
    "a policy that has moved far",
    "3 epochs with ratios far from 1",
    mistake="You make fewer steps when the policy has moved far. n_epochs says how many there are.",
)
def step_far(code: TaughtCode):
    return {"steps of the optimiser": len(_step(code, _given_rollout(code, off_policy=5.0), n_epochs=3)[1])}


@case(
    STEP,
    "dropout is off",
    "a policy in training mode, with dropout 0.1: two updates that have to be the same",
    mistake="Dropout is on during your update: old and new policy are then not the same function, and no ratio starts at 1.",
)
def step_dropout(code: TaughtCode):
    one, other = (_step(code, policy=SmallLM().train())[0] for _ in range(2))
    return {
        f"{name} is the same twice": math.isclose(one[name], other[name], rel_tol=1e-5) for name in INFO[:3]
    }


@case(
    STEP,
    "padding has no say",
    "two rollouts that differ in the padding alone",
    mistake="What stands in the padding changes your update: a mask is not used, or not handed on.",
)
def step_padding(code: TaughtCode):
    return changes_with_padding(_step(code), _step(code, _given_rollout(code, garbage=4.0)), STEP_INFO)


@case(
    STEP,
    "every ratio starts at 1",
    "a rollout of the policy itself, before any update",
    mistake="Before the first update, old and new log-probabilities are the same numbers. You compare other ones.",
)
def step_ratio(code: TaughtCode):
    info, _ = _step(code, _given_rollout(code, off_policy=0.0))
    return {name: info[name] for name in ("approx_kl", "clipfrac")}


@case(
    STEP,
    "clip_range, and the policy that sampled",
    "clipfrac and approx_kl of an old rollout with clip_range 0.1 and 0.5",
    mistake="clip_range does not reach the ratio, or the ratio is not that of the new policy to the one that sampled.",
)
def step_clip_range(code: TaughtCode):
    narrow, wide = (_step(code, clip_range=limit)[0] for limit in (0.1, 0.5))
    return {
        "clipfrac with clip_range 0.1": narrow["clipfrac"],
        "clipfrac with clip_range 0.5": wide["clipfrac"],
        "approx_kl": wide["approx_kl"],
    }


@case(
    STEP,
    "the distance to the reference",
    "kl_to_ref of a rollout, before any update",
    mistake="The log-probabilities of the reference do not reach `grpo_loss`, or others take their place.",
)
def step_reference(code: TaughtCode):
    return {"kl_to_ref": _step(code)[0]["kl_to_ref"]}


@case(
    STEP,
    "advantages within each group",
    "policy_loss of an old rollout",
    tolerance=1e-3,
    mistake="The policy loss is not that of advantages that compare the answers of each group. Which rewards do you hand on, "
    "and which group size?",
)
def step_policy_loss(code: TaughtCode):
    return {"policy_loss": _step(code)[0]["policy_loss"]}


@case(
    STEP,
    "kl_coef",
    "the gradient with kl_coef 0, 1 and 2, where the advantages are all 0",
    mistake="kl_coef does not reach the loss as it is given: it says how much the distance to the reference weighs.",
)
def step_kl_coef(code: TaughtCode):
    batch = _given_rollout(code)
    batch.rewards = torch.full_like(batch.rewards, 2.0)
    free, once, twice = (_step(code, batch, kl_coef=kl_coef)[1][0].norm for kl_coef in (0.0, 1.0, 2.0))
    return {"the gradient with kl_coef 0": free, "with 2, in units of that with 1": twice / max(once, 1e-9)}


@case(
    STEP,
    "the gradient is of this epoch alone",
    "gradients of an earlier step are left over, then 2 epochs with a learning rate of 0",
    mistake="Gradients add up from step to step. When are they set back to zero?",
)
def step_zero_grad(code: TaughtCode):
    policy = SmallLM().eval()
    leave_over(policy, 7.0)
    batch = _given_rollout(code, off_policy=0.0)
    (_, clean), (_, steps) = _step(code, batch), _step(code, batch, policy, n_epochs=2)
    return what_adds_up(clean[0], steps, 7.0)


@case(
    STEP,
    "max_grad_norm",
    "the norm of all gradients that the optimiser sees, with limits 0.02, 0.01 and 1000000",
    mistake="The norm of the whole gradient of the policy has to be at most max_grad_norm when the optimiser makes its step.",
)
def step_max_grad_norm(code: TaughtCode):
    norms = [_step(code, max_grad_norm=limit)[1][0].norm for limit in (0.02, 0.01, 1e6)]
    return {
        "norm in units of the limit 0.02": round(norms[0] / 0.02, 3),
        "norm in units of the limit 0.01": round(norms[1] / 0.01, 3),
        "a gradient below its limit is made larger": norms[2] > 1e3,
    }


@case(
    STEP,
    "the way of the step",
    "how far a small step goes along the gradient that the loss has",
    mistake="Your step goes the wrong way: after it, the loss is larger than before.",
)
def step_down(code: TaughtCode):
    batch = _given_rollout(code, off_policy=0.0)
    before, _ = _step(code, batch)
    after, _ = _step(code, batch, lr=1e-3, n_epochs=2)
    loss_before, loss_after = (info["policy_loss"] + 0.6 * info["kl_to_ref"] for info in (before, after))
    return {"the loss is smaller after a step": loss_after < loss_before}


@case(
    STEP,
    "the targets stay from epoch to epoch",
    "the weights after 3 epochs with a learning rate above 0",
    tolerance=1e-3,
    mistake="One epoch is right and three are not. Which of advantages, old and reference log-probabilities change from epoch to "
    "epoch in your code?",
)
def step_epochs(code: TaughtCode):
    policy = SmallLM().eval()
    batch = _given_rollout(code, off_policy=0.0)
    _step(code, batch, policy, lr=0.3, n_epochs=3, max_grad_norm=1.0)
    return dict(policy.named_parameters())


@case(
    STEP,
    "info is that of the last epoch",
    "2 epochs at once, and twice 1 epoch on the same rollout",
    mistake="Your info is not that of the last epoch.",
)
def step_info(code: TaughtCode):
    batch, policy = _given_rollout(code, off_policy=0.0), SmallLM().eval()
    at_once, _ = _step(code, batch, lr=0.05, n_epochs=2)
    _step(code, batch, policy, lr=0.05)
    second, _ = _step(code, batch, policy)
    return {
        f"{name} is that of epoch 1": math.isclose(at_once[name], second[name], rel_tol=1e-3, abs_tol=1e-6)
        for name in ("policy_loss", "kl_to_ref", "approx_kl")
    }


@case(
    STEP,
    "an answer far better than its group",
    "policy_loss where one answer of three has a reward of 40",
    tolerance=1e-3,
    mistake="You limit the rewards before they are compared. What is far better has to count as far better.",
)
def step_outlier(code: TaughtCode):
    batch = _given_rollout(code)
    batch.rewards[:3] = torch.tensor([40.0, 10.0, 0.0])
    return {"policy_loss": _step(code, batch)[0]["policy_loss"]}


@case(
    STEP,
    "the rollout stays as it is",
    "the tensors before and after 2 epochs",
    mistake="Your update writes into the rollout. Whoever logs it afterwards sees other numbers than were sampled.",
)
def step_rollout(code: TaughtCode):
    batch = _given_rollout(code)
    before = copy.deepcopy(batch)
    _step(code, batch, lr=0.1, n_epochs=2)
    return same_tensors(batch, before, STEP_TENSORS)


@case(
    STEP,
    "the defaults",
    "calls with policy, optimiser and rollout alone, and with a large kl_coef; a learning rate of 0",
    tolerance=1e-3,
    mistake="Left out, an argument has another value than it had in the signature that you were given. Which default have you "
    "changed?",
)
def step_defaults(code: TaughtCode):
    def gradient(**settings) -> tuple[dict, list[Step]]:
        policy = SmallLM().eval()
        optim = torch.optim.SGD(policy.parameters(), lr=0.0)
        steps: list[Step] = noted(optim)
        info = code.grpo.grpo_step(policy, optim, _given_rollout(code), **settings)
        return entries(STEP, info, *STEP_INFO), steps

    info, steps = gradient()
    _, long_steps = gradient(kl_coef=50.0)
    return {
        "steps of the optimiser": len(steps),
        "clipfrac": one_number("clipfrac", info["clipfrac"]),
        "the gradient, at ten weights": steps[0].gradient[-10:],
        "the norm of the gradient with kl_coef 50": long_steps[0].norm,
    }
