"""Cases of rollout, update and training loop in `ppo.py`."""

import torch

from ..taught_code import TaughtCode
from .case import case, in_words, numbers, on_mask, parts, tensor

# --- 3.5 response_mask ----------------------------------------------------------------------------


def _response_mask(code: TaughtCode, rows: list[list[int]], eos_id: int) -> dict:
    """What `response_mask` makes of these rows; it may be of whole numbers, floats or booleans."""
    ids = torch.tensor(rows)
    return {"the mask": tensor("response_mask", code.ppo.response_mask(ids, eos_id), ids.shape).long()}


@case("response_mask", "one response that ends", "[[7, 2, 9, 3, 5, 5]], EOS is 3 and 5 is padding")
def mask_one_row(code: TaughtCode):
    return _response_mask(code, [[7, 2, 9, 3, 5, 5]], 3)


@case(
    "response_mask",
    "a response that reached its limit",
    "[[7, 2, 9, 4, 5, 8]], EOS is 3",
    mistake="A response without an EOS was cut at its limit, and all its tokens are real. What does your code find "
    "where there is no EOS to be found?",
)
def mask_without_eos(code: TaughtCode):
    return _response_mask(code, [[7, 2, 9, 4, 5, 8]], 3)


@case(
    "response_mask",
    "padding that looks like EOS",
    "[[7, 2, 3, 3, 3, 3]], EOS is 3 and padding is 3 too",
    mistake="Where padding is EOS, only the first one is real. Which of several EOS does your code go by?",
)
def mask_pad_is_eos(code: TaughtCode):
    return _response_mask(code, [[7, 2, 3, 3, 3, 3]], 3)


@case(
    "response_mask",
    "other tokens between two EOS",
    "[[7, 3, 9, 3, 8, 4]], EOS is 3",
    mistake="Nothing after the first EOS belongs to the response, whatever token it is. Your mask looks at each token "
    "by itself, or comes back to 1.",
)
def mask_after_eos(code: TaughtCode):
    return _response_mask(code, [[7, 3, 9, 3, 8, 4]], 3)


@case(
    "response_mask",
    "EOS as first and as last token",
    "[[3, 5, 5, 5]] and then [[7, 2, 9, 3]], EOS is 3",
    mistake="A response may be its EOS alone, and it may end exactly at its limit: in both, the EOS is real and "
    "nothing else changes.",
)
def mask_eos_at_the_ends(code: TaughtCode):
    first = _response_mask(code, [[3, 5, 5, 5]], 3)["the mask"]
    last = _response_mask(code, [[7, 2, 9, 3]], 3)["the mask"]
    return {"the mask of EOS first": first, "the mask of EOS last": last}


@case(
    "response_mask",
    "every row has its own end",
    "four rows of four tokens, EOS is 3",
    mistake="One row alone is right, and several are not: every row has an end of its own, and no other row may "
    "change it.",
)
def mask_rows(code: TaughtCode):
    return _response_mask(code, [[7, 3, 3, 3], [7, 2, 9, 5], [3, 3, 3, 3], [7, 2, 3, 3]], 3)


@case(
    "response_mask",
    "only EOS ends a response",
    "[[0, 9, 5, 0, 5, 5]], EOS is 5, and then [[5, 9, 0, 3, 0, 0]], EOS is 0",
    mistake="The ids say nothing about padding: only `eos_id` ends a response, and it is an ordinary number that can "
    "be 0 too.",
)
def mask_other_ids(code: TaughtCode):
    other = _response_mask(code, [[0, 9, 5, 0, 5, 5]], 5)["the mask"]
    zero = _response_mask(code, [[5, 9, 0, 3, 0, 0]], 0)["the mask"]
    return {"the mask with EOS 5": other, "the mask with EOS 0": zero}


@case(
    "response_mask",
    "the ids stay as they are",
    "the argument before and after the call",
    mistake="Your code writes into `response_ids`: whoever called it still needs the ids. Work on a copy.",
)
def mask_arguments(code: TaughtCode):
    ids = torch.tensor([[7, 2, 3, 3], [7, 2, 9, 8]])
    code.ppo.response_mask(ids, 3)
    return {"response_ids after the call": ids}


# --- 3.5 response_logprobs_and_values -------------------------------------------------------------

N_TOKENS = 11


class GivenOutputs:
    """In place of a policy: it returns what it was given, and notes what it is asked."""

    def __init__(self, batch: int, length: int):
        self.logits = (3 * numbers(1, batch, length, N_TOKENS)).requires_grad_()
        self.values = numbers(2, batch, length).requires_grad_()
        self.asked = []

    def __call__(self, input_ids, attention_mask, position_ids=None, logits_to_keep=0):
        self.asked.append((input_ids, attention_mask, position_ids))
        return self.logits[:, -logits_to_keep:], self.values


def _ids(batch: int, length: int) -> torch.Tensor:
    """Token ids, no two neighbours alike."""
    return torch.arange(batch * length).reshape(batch, length) * 4 % N_TOKENS


# two tokens of left padding in row 1, one of right padding in row 2
WINDOW_MASK = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0]])
RESPONSE = 3  # tokens of the response block, after a prompt block of four


def _window(code: TaughtCode, batch=3, length=7, response=RESPONSE):
    """What comes back from a look through the window, and the policy that was asked."""
    policy, mask = GivenOutputs(batch, length), WINDOW_MASK[:batch, :length]
    returned = code.ppo.response_logprobs_and_values(policy, _ids(batch, length), mask, response)
    logprobs, values = parts("response_logprobs_and_values", returned, "logprobs", "values")
    return policy, tensor("response_logprobs_and_values", logprobs), tensor("response_logprobs_and_values", values)


@case("response_logprobs_and_values", "one number for each response token", "3 rows: prompt 4, response 3 tokens")
def window_shapes(code: TaughtCode):
    _, logprobs, values = _window(code)
    return {"the shape of logprobs": list(logprobs.shape), "the shape of values": list(values.shape)}


@case(
    "response_logprobs_and_values",
    "log-probabilities of the response tokens",
    "given logits, 3 rows: prompt 4, response 3 tokens",
    mistake="The shape is right and the log-probabilities are not. Which position of the logits predicts the first "
    "token of the response, and which token stands there?",
)
def window_logprobs(code: TaughtCode):
    _, logprobs, _ = _window(code)
    return {"logprobs": on_mask(logprobs, WINDOW_MASK[:, -RESPONSE:])}


@case(
    "response_logprobs_and_values",
    "values of the states before the tokens",
    "given values, 3 rows: prompt 4, response 3 tokens",
    mistake="Your values belong to other states. The value beside a token is that of the state before it: the policy "
    "has not seen the token yet.",
)
def window_values(code: TaughtCode):
    _, _, values = _window(code)
    return {"values": on_mask(values, WINDOW_MASK[:, -RESPONSE:])}


@case(
    "response_logprobs_and_values",
    "a batch of one, a response of one",
    "1 row: prompt 4, response 1 token; 2 rows: prompt 1, response 3 tokens",
    mistake="Your window fits one size only: a batch of one, a response of one token, and a prompt of one token are "
    "possible too, and the result stays [batch, response].",
)
def window_sizes(code: TaughtCode):
    _, logprobs, values = _window(code, batch=1, length=5, response=1)
    _, short_logprobs, short_values = _window(code, batch=1, length=4, response=3)
    return {
        "logprobs of one token": logprobs,
        "values of one token": values,
        "logprobs after a prompt of one": short_logprobs,
        "values after a prompt of one": short_values,
    }


@case(
    "response_logprobs_and_values",
    "the policy reads prompt and response",
    "the ids that the policy is asked about",
    mistake="The policy has to read the whole text: without its prompt, a response has other log-probabilities.",
)
def window_ids(code: TaughtCode):
    policy, _, _ = _window(code)
    return {"the ids that the policy reads": policy.asked[0][0] if policy.asked else "none: it was not called"}


@case(
    "response_logprobs_and_values",
    "the policy knows what is padding",
    "row 1 is padded on the left, row 2 on the right",
    mistake="The policy gets another attention mask than `full_mask`, so it reads padding as text.",
)
def window_mask(code: TaughtCode):
    policy, _, _ = _window(code)
    mask = policy.asked[0][1]
    return {"the mask that the policy gets": mask.long() if isinstance(mask, torch.Tensor) else in_words(mask)}


@case(
    "response_logprobs_and_values",
    "left padding is not numbered",
    "the positions that the policy goes by",
    mistake="You number the positions yourself, and the padding on the left is counted. The policy counts them from "
    "the mask when you leave `position_ids` out.",
)
def window_positions(code: TaughtCode):
    policy, _, _ = _window(code)
    positions = policy.asked[0][2]
    if positions is None:
        positions = code.ppo.position_ids_from_mask(WINDOW_MASK)
    return {"the positions of the tokens": on_mask(tensor("your code", positions, WINDOW_MASK.shape), WINDOW_MASK)}


@case(
    "response_logprobs_and_values",
    "gradients reach the policy",
    "a gradient from logprobs and one from values",
    mistake="The update learns through this window: log-probabilities and values must keep their gradient. Who does "
    "not want one, like `rollout`, switches it off around the call.",
)
def window_gradients(code: TaughtCode):
    _, logprobs, values = _window(code)
    return {"logprobs carry a gradient": logprobs.requires_grad, "values carry a gradient": values.requires_grad}


@case(
    "response_logprobs_and_values",
    "in one pass",
    "how often the policy is called",
    mistake="One pass gives logits and values together. A second one doubles the time of every update.",
)
def window_passes(code: TaughtCode):
    policy, _, _ = _window(code)
    return {"passes through the policy": len(policy.asked)}
