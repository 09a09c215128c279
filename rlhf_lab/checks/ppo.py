"""Cases of the exercises in `ppo.py`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..taught_code import TaughtCode
from .case import Observation, case, entries, numbers, on_mask, parts, tensor
from .models import micro_folder, micro_lm


def _of_each_kind(mask: Tensor) -> dict[str, Tensor]:
    """The mask as tokenizers, comparisons and losses hand it on."""
    return {"an integer mask": mask.long(), "a bool mask": mask.bool(), "a float mask": mask.float()}


def _changes(call: Callable[..., Any], **arguments: Tensor) -> Observation:
    """Which arguments a call leaves changed."""
    before = {name: value.clone() for name, value in arguments.items()}
    call(**arguments)
    return {f"{name} changed": not torch.equal(value, before[name]) for name, value in arguments.items()}


# --- 3.3 compute_gae ------------------------------------------------------------------------------

RAGGED = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]])
BEHIND_THE_END = (1 - RAGGED) * 1000.0


def _gae(code: TaughtCode, rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Observation:
    """Advantages and returns, as `compute_gae` gives them."""
    returned = code.ppo.compute_gae(rewards, values, mask, gamma, lam)
    both = parts("compute_gae", returned, "advantages", "returns")
    return {
        name: tensor("compute_gae", x, mask.shape) for name, x in zip(("advantages", "returns"), both, strict=True)
    }


def _advantages(code: TaughtCode, rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float):
    """The advantages of real tokens."""
    return {"advantages": on_mask(_gae(code, rewards, values, mask, gamma, lam)["advantages"], mask)}


@case("compute_gae", "two tensors, [batch, response]", "rewards and values [3, 6]")
def gae_shapes(code: TaughtCode):
    shown = _gae(code, numbers(1, 3, 6), numbers(2, 3, 6), torch.ones(3, 6), 0.9, 0.7)
    return {f"the shape of {name}": list(x.shape) for name, x in shown.items()}


@case(
    "compute_gae",
    "a response of one token",
    "[2, 1]: nothing comes after this token",
    mistake="The only token of a response is wrong already. No state comes after the last token, so no value either: "
    "what is left of its TD error?",
)
def gae_one_token(code: TaughtCode):
    return _advantages(code, numbers(3, 2, 1, mean=2.0), numbers(4, 2, 1, mean=1.0), torch.ones(2, 1), 0.9, 0.7)


@case(
    "compute_gae",
    "lambda 0, values 0: the rewards",
    "[1, 6], gamma 0.9",
    mistake="With lambda 0 and a critic that says 0 everywhere, all that is left of an advantage is the reward of this "
    "very token. Does your loop reach every token, and does it read the reward at the right place?",
)
def gae_rewards(code: TaughtCode):
    return _advantages(code, numbers(5, 1, 6), torch.zeros(1, 6), torch.ones(1, 6), 0.9, 0.0)


@case(
    "compute_gae",
    "lambda 0, rewards 0: the values",
    "[1, 6], gamma 1",
    mistake="With lambda 0 and without rewards, an advantage compares the values of two states: the one before the token "
    "and the one after it. One of them is missing in yours, or has the wrong sign or the wrong index.",
)
def gae_values(code: TaughtCode):
    return _advantages(code, torch.zeros(1, 6), numbers(6, 1, 6, mean=1.0), torch.ones(1, 6), 1.0, 0.0)


@case(
    "compute_gae",
    "gamma in the TD error",
    "[1, 6], lambda 0, gamma 0.5",
    mistake="Your TD error is right as long as gamma is 1. Which of its terms lies one step in the future?",
)
def gae_gamma_in_td_error(code: TaughtCode):
    return _advantages(code, numbers(7, 1, 6), numbers(8, 1, 6, mean=1.0), torch.ones(1, 6), 0.5, 0.0)


@case(
    "compute_gae",
    "gamma 1, lambda 1: the sum to the end",
    "[1, 6], values 0",
    mistake="Your TD errors are right, their sum is not: with gamma and lambda 1 an advantage adds up all TD errors from "
    "its token to the end. In which direction does your loop run, and what does it carry along?",
)
def gae_sum(code: TaughtCode):
    return _advantages(code, numbers(9, 1, 6), torch.zeros(1, 6), torch.ones(1, 6), 1.0, 1.0)


@case(
    "compute_gae",
    "gamma in the sum",
    "[1, 6], values 0, lambda 1, gamma 0.5",
    mistake="Gamma is missing in your running sum, or stands there too often: how much less does a TD error count that "
    "comes one step later?",
)
def gae_gamma_in_sum(code: TaughtCode):
    return _advantages(code, numbers(10, 1, 6), torch.zeros(1, 6), torch.ones(1, 6), 0.5, 1.0)


@case(
    "compute_gae",
    "lambda in the sum",
    "[1, 6], values 0, gamma 1, lambda 0.5",
    mistake="Lambda is missing in your running sum, or stands there too often: how much less does a TD error count that "
    "comes one step later?",
)
def gae_lambda_in_sum(code: TaughtCode):
    return _advantages(code, numbers(11, 1, 6), torch.zeros(1, 6), torch.ones(1, 6), 1.0, 0.5)


@case(
    "compute_gae",
    "everything together",
    "[1, 6], gamma 0.9, lambda 0.7",
    mistake="Gamma and lambda each work while the other one is 0 or 1, and not together. Where does each of them belong: "
    "in the TD error, in the running sum, or in both?",
)
def gae_together(code: TaughtCode):
    return _advantages(code, numbers(12, 1, 6), numbers(13, 1, 6, mean=1.0), torch.ones(1, 6), 0.9, 0.7)


@case(
    "compute_gae",
    "returns",
    "[1, 6], gamma 0.9, lambda 0.7",
    mistake="Your advantages are right and your returns are not. The returns are what the critic should have said: how do "
    "you get there from what it said, and from how much better it went?",
)
def gae_returns(code: TaughtCode):
    shown = _gae(code, numbers(12, 1, 6), numbers(13, 1, 6, mean=1.0), torch.ones(1, 6), 0.9, 0.7)
    return {"returns": shown["returns"]}


@case(
    "compute_gae",
    "three responses at once",
    "[3, 6], each of six tokens",
    mistake="One response alone is right, several at once are not: one row of your batch influences another.",
)
def gae_rows(code: TaughtCode):
    return _gae(code, numbers(14, 3, 6), numbers(15, 3, 6, mean=1.0), torch.ones(3, 6), 0.9, 0.7)


@case(
    "compute_gae",
    "a reward behind the end must not matter",
    "responses of 6, 4 and 1 tokens, reward 1000 on padding",
    mistake="Your advantages change when the rewards of padded positions change. Your running sum comes from the right, "
    "through the padding: what does it bring to the last real token?",
)
def gae_padded_rewards(code: TaughtCode):
    values = on_mask(numbers(17, 3, 6, mean=1.0), RAGGED)
    return _advantages(code, numbers(16, 3, 6) + BEHIND_THE_END, values, RAGGED, 0.9, 0.7)


@case(
    "compute_gae",
    "a value behind the end must not matter",
    "the same responses, value 1000 on padding too",
    mistake="Your advantages change when the values of padded positions change. Which value does the TD error of the last "
    "real token look at?",
)
def gae_padded_values(code: TaughtCode):
    values = numbers(17, 3, 6, mean=1.0) + BEHIND_THE_END
    return _advantages(code, numbers(16, 3, 6) + BEHIND_THE_END, values, RAGGED, 0.9, 0.7)


@case(
    "compute_gae",
    "returns of padded responses",
    "the same responses",
    mistake="Your returns change when padded positions change, although your advantages do not.",
)
def gae_padded_returns(code: TaughtCode):
    values = numbers(17, 3, 6, mean=1.0) + BEHIND_THE_END
    shown = _gae(code, numbers(16, 3, 6) + BEHIND_THE_END, values, RAGGED, 0.9, 0.7)
    return {"returns": on_mask(shown["returns"], RAGGED)}


@case(
    "compute_gae",
    "any kind of mask",
    "0s and 1s as integers, as bools and as floats",
    mistake="Your code depends on the type of the mask: a tokenizer gives integers, a comparison gives bools.",
)
def gae_mask_kinds(code: TaughtCode):
    rewards, values = numbers(18, 3, 6), numbers(19, 3, 6, mean=1.0)
    kinds = _of_each_kind(RAGGED).items()
    return {
        f"advantages with {kind}": on_mask(_gae(code, rewards, values, mask, 0.9, 0.7)["advantages"], mask)
        for kind, mask in kinds
    }


@case(
    "compute_gae",
    "no gradient",
    "values that carry a gradient",
    mistake="A gradient flows through what you return. Advantages and returns are targets: constants for the update.",
)
def gae_gradient(code: TaughtCode):
    shown = _gae(code, numbers(1, 3, 6), numbers(2, 3, 6).requires_grad_(), RAGGED, 0.9, 0.7)
    return {f"{name} carry a gradient": x.requires_grad for name, x in shown.items()}


@case(
    "compute_gae",
    "arguments stay as they are",
    "rewards, values and mask compared before and after",
    mistake="Your function changes its arguments in place: whoever uses the same tensor afterwards gets your numbers.",
)
def gae_arguments(code: TaughtCode):
    return _changes(code.ppo.compute_gae, rewards=numbers(1, 3, 6), values=numbers(2, 3, 6), mask=RAGGED.clone())


@case(
    "compute_gae",
    "0 outside the mask",
    "the padded positions, and a response without a token",
    mistake="On the mask all is right. Outside it, both results have to be 0.",
)
def gae_outside(code: TaughtCode):
    mask = torch.cat([RAGGED, torch.zeros(1, 6, dtype=RAGGED.dtype)])
    shown = _gae(code, numbers(20, 4, 6), numbers(21, 4, 6, mean=1.0), mask, 0.9, 0.7)
    return {f"{name} outside the mask": on_mask(x, 1 - mask) for name, x in shown.items()}
