"""Cases of rollout, update and training loop in `ppo.py`."""

import copy
import inspect
import math
import random
from functools import lru_cache

import numpy as np
import torch

from ..returned import PPO_INFO
from ..taught_code import TaughtCode
from .case import WrongReturn, case, entries, in_words, numbers, on_mask, one_number, parts, tensor
from .models import micro_folder, micro_tokenizer, reading_tokenizer, special_tokenizer, token_ids
from .training import Step, changes_with_padding, leave_over, noted, same_tensors, what_adds_up

# --- 3.5 response_mask ----------------------------------------------------------------------------


def _response_mask(code: TaughtCode, rows: list[list[int]], eos_id: int) -> dict:
    """What `response_mask` makes of these rows; it may be of whole numbers, floats or booleans."""
    ids = torch.tensor(rows)
    return {"the mask": tensor("response_mask", code.ppo.response_mask(ids, eos_id), ids.shape).long()}


@case("response_mask", "one number for each token", "[[7, 2, 9, 3, 5, 5]], EOS is 3 and 5 is padding")
def mask_shape(code: TaughtCode):
    return {"the shape of the mask": list(_response_mask(code, [[7, 2, 9, 3, 5, 5]], 3)["the mask"].shape)}


@case(
    "response_mask",
    "what stands before the EOS is real",
    "[[7, 2, 9, 3, 5, 5]], EOS is 3 and 5 is padding",
    mistake="The tokens before the EOS are the response: 1 means a real token.",
)
def mask_before_eos(code: TaughtCode):
    return {"the mask of 7, 2, 9": _response_mask(code, [[7, 2, 9, 3, 5, 5]], 3)["the mask"][0, :3]}


@case(
    "response_mask",
    "the EOS is real",
    "[[7, 2, 9, 3, 5, 5]], EOS is 3 and 5 is padding",
    mistake="The EOS itself is left out of your mask. It is a token that the policy chose, and the one that gets the "
    "score.",
)
def mask_of_eos(code: TaughtCode):
    return {"the mask of 7, 2, 9, 3": _response_mask(code, [[7, 2, 9, 3, 5, 5]], 3)["the mask"][0, :4]}


@case(
    "response_mask",
    "what stands after the EOS is not real",
    "[[7, 2, 9, 3, 5, 5]], EOS is 3 and 5 is padding",
    mistake="A response ends with its EOS: what stands after it is 0, from the next token on.",
)
def mask_after_the_eos(code: TaughtCode):
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
    "EOS as the last token",
    "[[7, 2, 9, 3]], EOS is 3",
    mistake="A response may end exactly at its limit: then every token is real, the first one too. Does something go "
    "around the end of the row in your code?",
)
def mask_eos_last(code: TaughtCode):
    return _response_mask(code, [[7, 2, 9, 3]], 3)


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
    "EOS as the first token",
    "[[3, 5, 5, 5]], EOS is 3",
    mistake="A response may be its EOS alone: the EOS is real, and nothing after it.",
)
def mask_eos_first(code: TaughtCode):
    return _response_mask(code, [[3, 5, 5, 5]], 3)


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
    ids = torch.tensor([[7, 2, 3, 5], [7, 2, 9, 8]])
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
        return 1 * self.logits[:, -logits_to_keep:], 1 * self.values


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
    return (
        policy,
        tensor("response_logprobs_and_values", logprobs),
        tensor("response_logprobs_and_values", values),
    )


@case("response_logprobs_and_values", "it runs", "3 rows: prompt 4, response 3 tokens")
def window_runs(code: TaughtCode):
    _, logprobs, values = _window(code)
    return {"dimensions of logprobs": logprobs.dim(), "dimensions of values": values.dim()}


@case(
    "response_logprobs_and_values",
    "one number for each response token",
    "3 rows: prompt 4, response 3 tokens",
    mistake="Log-probabilities and values are [batch, response]: one column for each token of the response block, "
    "none for the prompt, and none for the state after the last token.",
)
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
    return {
        "the ids that the policy reads": policy.asked[0][0] if policy.asked else "none: it was not called"
    }


@case(
    "response_logprobs_and_values",
    "the policy knows what is padding",
    "row 1 is padded on the left, row 2 on the right",
    mistake="The policy gets another attention mask than `full_mask`, so it reads padding as text.",
)
def window_mask(code: TaughtCode):
    policy, _, _ = _window(code)
    mask = policy.asked[0][1]
    return {
        "the mask that the policy gets": mask.long() if isinstance(mask, torch.Tensor) else in_words(mask)
    }


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
    return {
        "the positions of the tokens": on_mask(tensor("your code", positions, WINDOW_MASK.shape), WINDOW_MASK)
    }


@case(
    "response_logprobs_and_values",
    "gradients reach the policy",
    "a gradient from logprobs and one from values",
    mistake="The update learns through this window: log-probabilities and values must keep their gradient. Who does "
    "not want one, like `rollout`, switches it off around the call.",
)
def window_gradients(code: TaughtCode):
    _, logprobs, values = _window(code)
    return {
        "logprobs carry a gradient": logprobs.requires_grad,
        "values carry a gradient": values.requires_grad,
    }


@case(
    "response_logprobs_and_values",
    "in one pass",
    "how often the policy is called",
    mistake="One pass gives logits and values together. A second one doubles the time of every update.",
)
def window_passes(code: TaughtCode):
    policy, _, _ = _window(code)
    return {"passes through the policy": len(policy.asked)}


# --- 3.5 rollout ----------------------------------------------------------------------------------

# one longer than the others, one of a single token, one with an EOS that ends nothing
PROMPTS = ["there is a garden and the weather", "soup", "the <|endoftext|> room", "kindness is"]
TENSORS = ("full_ids", "full_mask", "old_logprobs", "ref_logprobs", "old_values", "rm_score", "response_mask")


@lru_cache(maxsize=1)  # loading it takes longer than all that a case does with it
def _loaded_policy(code: TaughtCode):
    policy = code.ppo.PolicyWithValueHead(micro_folder())
    _set(policy.value_head, lambda seed, weight: numbers(seed, *weight.shape, std=0.5))
    return policy.eval()


def _policy(code: TaughtCode):
    """The student's policy on the micro model, with a critic that has an opinion; dropout is off."""
    return copy.deepcopy(_loaded_policy(code))


def _other(policy):
    """A copy with other weights."""
    other = copy.deepcopy(policy)
    _set(other, lambda seed, weight: weight + numbers(seed, *weight.shape, std=0.1))
    return other


@torch.no_grad()
def _set(module, rule) -> None:
    for seed, weight in enumerate(module.parameters()):
        weight.copy_(rule(seed, weight))


@torch.no_grad()
def _sure(policy):
    """Make a policy that samples one token with probability 1 in each state: chance has no say. It returns it."""
    final_norm = policy.lm.transformer.ln_f
    final_norm.weight.fill_(1e4)
    final_norm.bias.zero_()
    return policy


@torch.no_grad()
def _constant(policy, logits: torch.Tensor):
    """Make a policy that has the same logits in every state. It returns it."""
    final_norm, embedding = policy.lm.transformer.ln_f, policy.lm.transformer.wte
    final_norm.weight.zero_()
    final_norm.bias.zero_()
    final_norm.bias[0] = 1.0
    embedding.weight[:, 0] = logits  # the LM head is the same matrix
    return policy


def _score(full_ids, full_mask, /):
    """A reward that depends on every real token and on its distance from the end of the row."""
    distance = torch.arange(full_ids.shape[1], 0, -1)
    return ((full_ids + 1) % 7 * full_mask * distance).float().mean(dim=1)


def _roll(code, policy, ref_policy, prompts=PROMPTS * 2, max_new_tokens=6, tokenizer=None, reward_fn=_score):
    """What `rollout` returned, which has to be a Rollout of tensors and texts."""
    tokenizer = tokenizer or micro_tokenizer()
    batch = code.ppo.rollout(policy, ref_policy, reward_fn, tokenizer, prompts, max_new_tokens)
    if not isinstance(batch, code.ppo.Rollout):
        raise WrongReturn(f"rollout returned {in_words(batch)}, expected a Rollout")
    for name in TENSORS:
        if not isinstance(getattr(batch, name), torch.Tensor):
            raise WrongReturn(f"{name} of the Rollout is {in_words(getattr(batch, name))}, expected a tensor")
    if not isinstance(batch.texts, list) or not all(isinstance(text, str) for text in batch.texts):
        raise WrongReturn(f"texts of the Rollout is {in_words(batch.texts)}, expected a list of texts")
    return batch


@lru_cache(maxsize=1)
def _usual_reference(code: TaughtCode):
    """A reference with other weights than the policy: to be looked at, not changed."""
    return _other(_policy(code))


@lru_cache(maxsize=1)
def _usual_rollout(code: TaughtCode):
    """A policy, a reference with other weights, and two responses to each prompt: to be looked at, not changed."""
    policy = _policy(code)
    ref_policy = _other(policy)
    return policy, ref_policy, _roll(code, policy, ref_policy)


def _split(batch):
    """The ids of prompt block and response block."""
    n_prompt = batch.full_ids.shape[1] - batch.response_mask.shape[1]
    return batch.full_ids[:, :n_prompt], batch.full_ids[:, n_prompt:]


def _before_responses(batch, prompts: list[str]) -> dict[str, str]:
    """The text before each response, as long as its prompt."""
    block, _ = _split(batch)
    return {
        f"what stands before response {row}": reading_tokenizer().decode(
            block[row, -len(token_ids(prompt)) :]
        )
        for row, prompt in enumerate(prompts)
    }


@torch.no_grad()
def _rows_as_if_alone(code, policy, batch, logprobs=None, values=None) -> list[bool]:
    """For each row, whether these are the numbers of a pass over the row alone, without padding and dropout."""
    agree = []
    for row, prompt in enumerate(PROMPTS):
        length = int(batch.response_mask[row].sum())
        response = _split(batch)[1][row, :length].tolist()
        ids = torch.tensor([token_ids(prompt) + response])
        alone = code.ppo.response_logprobs_and_values(policy, ids, torch.ones_like(ids), length)
        got, expected = (logprobs, alone[0]) if values is None else (values, alone[1])
        agree.append(torch.allclose(got[row, :length], expected[0], rtol=0, atol=1e-3))
    return agree


@case("rollout", "it runs", "8 prompts, at most 6 new tokens")
def rollout_runs(code: TaughtCode):
    _, _, batch = _usual_rollout(code)
    return {"rows of full_ids": len(batch.full_ids), "texts": len(batch.texts)}


@case(
    "rollout",
    "shapes",
    "8 prompts, at most 6 new tokens",
    mistake="full_ids and full_mask cover prompt and response; what is said of each token covers the response alone; "
    "a response has one score.",
)
def rollout_shapes(code: TaughtCode):
    _, _, batch = _usual_rollout(code)
    response = batch.response_mask.shape
    return {
        "the shape of rm_score": list(batch.rm_score.shape),
        "full_mask is as large as full_ids": batch.full_mask.shape == batch.full_ids.shape,
        "old_logprobs is as large as response_mask": batch.old_logprobs.shape == response,
        "ref_logprobs is as large as response_mask": batch.ref_logprobs.shape == response,
        "old_values is as large as response_mask": batch.old_values.shape == response,
        "full_ids is wider than response_mask": batch.full_ids.shape[1] > response[1],
    }


@case(
    "rollout",
    "each response follows its prompt",
    "4 prompts of different lengths",
    mistake="A response has to follow the last token of its prompt. On which side is the padding of your prompts, and "
    "is all of the prompt there?",
)
def rollout_layout(code: TaughtCode):
    _, _, batch = _usual_rollout(code)
    return _before_responses(batch, PROMPTS)


@case(
    "rollout",
    "no special tokens in a prompt",
    "a tokenizer that adds EOS before and after a text",
    mistake="The tokenizer adds special tokens to your prompts. The policy has to go on from the prompt itself.",
)
def rollout_special_tokens(code: TaughtCode):
    policy = _policy(code)
    batch = _roll(code, policy, policy, ["the soup"], tokenizer=special_tokenizer())
    return {"the prompt": reading_tokenizer().decode(_split(batch)[0][0])}


@case(
    "rollout",
    "full_mask on the prompts",
    "4 prompts of different lengths; padding is EOS, and one prompt has an EOS in it",
    mistake="On the prompt block, full_mask has to be 1 on every token of the prompt and 0 on the padding before it. "
    "The ids alone do not say which is which.",
)
def rollout_prompt_mask(code: TaughtCode):
    _, _, batch = _usual_rollout(code)
    width = max(len(token_ids(prompt)) for prompt in PROMPTS)
    n_prompt = _split(batch)[0].shape[1]
    return {"full_mask on the prompts": batch.full_mask[:4, n_prompt - width : n_prompt].long()}


@case(
    "rollout",
    "response_mask",
    "up to and including the first EOS of each response",
    mistake="Your response_mask is not what 3.5 `response_mask` says of the response block and the EOS.",
)
def rollout_response_mask(code: TaughtCode):
    _, _, batch = _usual_rollout(code)
    expected = code.ppo.response_mask(_split(batch)[1], reading_tokenizer().eos_token_id)
    return {
        "response_mask ends at the first EOS of a response": torch.equal(
            batch.response_mask.bool(), expected.bool()
        )
    }


@case(
    "rollout",
    "full_mask on the responses",
    "the same tokens are real in full_mask and in response_mask",
    mistake="full_mask goes on over the responses: a response token is real there where it is real in response_mask.",
)
def rollout_full_mask(code: TaughtCode):
    _, _, batch = _usual_rollout(code)
    on_response = batch.full_mask[:, -batch.response_mask.shape[1] :]
    return {"full_mask ends as response_mask": torch.equal(on_response.bool(), batch.response_mask.bool())}


@case(
    "rollout",
    "what follows the EOS",
    "the ids of the response block where response_mask is 0",
    mistake="What follows the EOS of a response has to be padding: `generate` does not know your EOS.",
)
def rollout_after_eos(code: TaughtCode):
    _, _, batch = _usual_rollout(code)
    behind = _split(batch)[1][~batch.response_mask.bool()]
    return {"all of it is padding": bool((behind == reading_tokenizer().pad_token_id).all())}


@case(
    "rollout",
    "row by row",
    "5 prompts, of which one comes three times, before others have come",
    mistake="Row i has to answer prompts[i], also where a prompt comes more than once: your rows are in another order.",
)
def rollout_rows(code: TaughtCode):
    policy = _policy(code)
    prompts = [PROMPTS[at] for at in (1, 1, 3, 1, 0)]
    return _before_responses(_roll(code, policy, policy, prompts, 1), prompts)


@case(
    "rollout",
    "equal prompts",
    "a policy that can say anything, one prompt four times",
    mistake="Equal prompts get the same response: each row is a sample of its own.",
)
def rollout_equal_prompts(code: TaughtCode):
    policy = _policy(code)
    _constant(policy, torch.zeros(len(reading_tokenizer())))
    sampled = _split(_roll(code, policy, policy, ["soup"] * 4))[1]
    # a policy that always takes the same token has another mistake
    is_sample = bool((sampled != sampled[0, 0]).any())
    return {"all rows are one sample": is_sample and bool((sampled == sampled[0]).all())}


@case(
    "rollout",
    "where a response ends",
    "a policy without EOS with 3 and with 25 new tokens, and a policy that knows only EOS",
    mistake="A response ends with its EOS, or after max_new_tokens tokens of its own, and not before.",
)
def rollout_lengths(code: TaughtCode):
    logits = torch.zeros(len(reading_tokenizer()))
    logits[reading_tokenizer().eos_token_id] = -40.0
    endless, silent = _constant(_policy(code), logits), _constant(_policy(code), -logits)
    return {
        "response tokens with max_new_tokens 3": _roll(code, endless, silent, max_new_tokens=3)
        .response_mask.long()
        .sum(1),
        "response tokens with max_new_tokens 25": _roll(code, endless, silent, max_new_tokens=25)
        .response_mask.long()
        .sum(1),
        "response tokens of a policy that says EOS": _roll(code, silent, endless).response_mask.long().sum(1),
    }


@case(
    "rollout",
    "batch mates have no say in a response",
    "a policy that is sure of every token: each prompt alone, then all together",
    mistake="A prompt gets another response beside longer prompts than alone. Does what samples know which tokens are "
    "padding?",
)
def rollout_sampled_alone(code: TaughtCode):
    policy = _sure(_policy(code))
    together = _split(_roll(code, policy, _sure(_other(policy))))[1]
    return {
        f"response {row} is the same as alone": torch.equal(
            together[row], _split(_roll(code, policy, policy, [prompt]))[1][0]
        )
        for row, prompt in enumerate(PROMPTS)
    }


@case(
    "rollout",
    "samples come from the policy itself",
    "900 tokens from known probabilities: one of 0.5, a hundred of 0.003, the rest in the tail, a thousand very rare",
    mistake="Your samples do not have the probabilities of the policy: something sharpens, flattens or cuts off the "
    "distribution. What does `generate` do when it is not told otherwise?",
)
def rollout_distribution(code: TaughtCode):
    probabilities = torch.full((len(reading_tokenizer()),), 0.16 / (len(reading_tokenizer()) - 1102))
    probabilities[500] = 0.5
    probabilities[600:700] = 0.003
    probabilities[1000:2000] = 0.00004
    probabilities[reading_tokenizer().eos_token_id] = 1e-9
    policy = _policy(code)
    sampled = _split(_roll(code, _constant(policy, probabilities.log()), policy, ["soup"] * 150, 6))[1]
    likely, hundred = sampled == 500, (sampled >= 600) & (sampled < 700)
    rare = (sampled >= 1000) & (sampled < 2000)
    return {
        "the likeliest token comes": _how_often(likely, 0.5),
        "the hundred next tokens come": _how_often(hundred, 0.3),
        "the tail comes": _how_often(~likely & ~hundred, 0.2),
        "the rarest tokens come": _how_often(rare, 0.04),
    }


def _how_often(hits: torch.Tensor, probability: float) -> str:
    """How the share of hits stands to its probability; five standard deviations are allowed."""
    margin = 5 * math.sqrt(probability * (1 - probability) / hits.numel())
    excess = hits.float().mean().item() - probability
    if abs(excess) <= margin:
        return "as often as it should"
    if hits.all() or not hits.any():
        return "always" if hits.any() else "never"
    return "too often" if excess > 0 else "too rarely"


@case(
    "rollout",
    "a token may come again and again",
    "900 tokens from known probabilities: one of 0.9, however often it has come",
    mistake="The same token comes as often as the policy wants only as long as it is new: something forbids repetitions, "
    "or makes them rarer. The policy itself does not.",
)
def rollout_repetition(code: TaughtCode):
    probabilities = torch.full((len(reading_tokenizer()),), 0.1 / (len(reading_tokenizer()) - 2))
    probabilities[500] = 0.9
    probabilities[reading_tokenizer().eos_token_id] = 1e-9
    policy = _policy(code)
    # a penalty goes by the size of the logits, and the probabilities do not: all logits are far above 0
    repeating = _constant(policy, probabilities.log() + 30)
    sampled = _split(_roll(code, repeating, policy, ["soup"] * 150, 6))[1]
    return {
        "it comes first": _how_often(sampled[:, 0] == 500, 0.9),
        "it follows": _how_often(sampled[:, 1:] == 500, 0.9),
    }


@case(
    "rollout",
    "no token is forbidden",
    "64 tokens, all equally likely: EOS, digits, marks and letters",
    mistake="Some tokens never come, although the policy gives them the same probability as others: something forbids them.",
)
def rollout_every_token(code: TaughtCode):
    logits = torch.full((len(reading_tokenizer()),), -40.0)
    logits[:64] = 0.0
    policy = _policy(code)
    sampled = _split(_roll(code, _constant(policy, logits), policy, ["soup"] * 250, 6))[1]
    return {"tokens that never come": sorted(set(range(64)) - set(sampled.flatten().tolist()))}


@case(
    "rollout",
    "each rollout samples anew",
    "two rollouts in a row, of a policy that can say anything",
    mistake="Two rollouts in a row are the same: the seed is set anew each time. Set it once, before the run.",
)
def rollout_anew(code: TaughtCode):
    policy = _policy(code)
    _constant(policy, torch.zeros(len(reading_tokenizer())))
    first, second = (_split(_roll(code, policy, policy))[1].tolist() for _ in range(2))
    return {"the second has the responses of the first": first == second}


@case(
    "rollout",
    "old_logprobs",
    "compared with a pass over each row alone, without padding",
    mistake="Your old_logprobs are not those of the policy that sampled, on the text that it sampled.",
)
def rollout_old_logprobs(code: TaughtCode):
    policy, _, batch = _usual_rollout(code)
    return {
        "a row has the log-probabilities of the row alone": _rows_as_if_alone(
            code, policy, batch, batch.old_logprobs
        )
    }


@case(
    "rollout",
    "old_values",
    "compared with a pass over each row alone, without padding",
    mistake="Your old_values are not what the policy's own critic says before each token.",
)
def rollout_old_values(code: TaughtCode):
    policy, _, batch = _usual_rollout(code)
    return {
        "a row has the values of the row alone": _rows_as_if_alone(
            code, policy, batch, values=batch.old_values
        )
    }


@case(
    "rollout",
    "ref_logprobs",
    "a reference with other weights, compared with a pass over each row alone",
    mistake="Your ref_logprobs are not those of the reference on the same tokens.",
)
def rollout_ref_logprobs(code: TaughtCode):
    _, ref_policy, batch = _usual_rollout(code)
    return {
        "a row has the log-probabilities of the row alone": _rows_as_if_alone(
            code, ref_policy, batch, batch.ref_logprobs
        )
    }


@case(
    "rollout",
    "rm_score",
    "a reward that depends on every real token",
    mistake="rm_score is not what the reward function says of full_ids and full_mask.",
)
def rollout_score(code: TaughtCode):
    widths = []

    def reward_fn(full_ids, full_mask, /):
        widths.append(full_ids.shape[1])
        return _score(full_ids, full_mask)

    policy = _policy(code)
    batch = _roll(code, policy, policy, reward_fn=reward_fn)
    blocks = {
        batch.full_ids.shape[1]: "prompt and response",
        batch.response_mask.shape[1]: "the response alone",
    }
    expected = _score(batch.full_ids, batch.full_mask)
    return {
        "the reward function sees": [blocks.get(width, "something else") for width in widths[:1]],
        "rm_score has the mean of the rewards": torch.isclose(batch.rm_score.mean(), expected.mean()),
        "rm_score is the reward of the row": torch.isclose(batch.rm_score, expected),
    }


@case(
    "rollout",
    "texts",
    "decoded responses",
    mistake="Your texts are not the responses: the real tokens of each response block, decoded, without special "
    "tokens.",
)
def rollout_texts(code: TaughtCode):
    _, _, batch = _usual_rollout(code)
    tokenizer, (_, response_ids) = reading_tokenizer(), _split(batch)
    decoded = [
        tokenizer.decode(ids[real.bool()], skip_special_tokens=True)
        for ids, real in zip(response_ids, batch.response_mask, strict=True)
    ]
    return {
        "a text is its response": [got.strip() == text.strip() for got, text in zip(batch.texts, decoded)]
    }


@case(
    "rollout",
    "padding that is not EOS",
    "'?' is the pad token, and a prompt has one in it",
    mistake="Your masks go by the ids of pad and EOS. What is real follows from the lengths: a prompt may contain the "
    "pad token, and a response ends at its EOS.",
)
def rollout_other_padding(code: TaughtCode):
    policy, tokenizer = _policy(code), micro_tokenizer()
    tokenizer.pad_token = "?"
    batch = _roll(
        code, policy, _other(policy), ["is there soup? yes", "soup", "the room is"] * 4, tokenizer=tokenizer
    )
    prompt_ids, response_ids = _split(batch)
    expected = code.ppo.response_mask(response_ids, tokenizer.eos_token_id)
    return {
        "real prompt tokens": batch.full_mask[:3, : prompt_ids.shape[1]].long().sum(1),
        "response_mask ends at the first EOS of a response": torch.equal(
            batch.response_mask.bool(), expected.bool()
        ),
    }


@case(
    "rollout",
    "a batch of one",
    "1 prompt, 1 new token",
    mistake="A batch of one keeps its batch dimension, and a response of one token its response dimension.",
)
def rollout_one(code: TaughtCode):
    policy = _policy(code)
    batch = _roll(code, policy, policy, ["the soup"], 1)
    return {f"the shape of {name}": list(getattr(batch, name).shape) for name in TENSORS}


@case(
    "rollout",
    "dropout is off in the policy",
    "a policy in training mode, with dropout 0.1",
    mistake="Dropout is on in the policy: it then samples from one function and is read as another, and no ratio of "
    "the update starts at 1.",
)
def rollout_dropout(code: TaughtCode):
    policy = _policy(code)
    batch = _roll(code, policy.train(), _other(policy))
    policy.eval()
    read = _rows_as_if_alone(code, policy, batch, batch.old_logprobs)
    ref_policy = _other(policy)
    calm = _split(_roll(code, _sure(policy), ref_policy))[1]
    shaken = _split(_roll(code, policy.train(), ref_policy))[1]
    return {
        "responses are sampled without dropout": torch.equal(calm, shaken),
        "a row is read without dropout": read,
    }


@case(
    "rollout",
    "dropout is off in the reference",
    "a reference in training mode, with dropout 0.1",
    mistake="Dropout is on in the reference: the KL to it is then a random number.",
)
def rollout_reference_dropout(code: TaughtCode):
    policy = _policy(code)
    ref_policy = _other(policy)
    batch = _roll(code, policy, ref_policy.train())
    return {
        "a row is read without dropout": _rows_as_if_alone(code, ref_policy.eval(), batch, batch.ref_logprobs)
    }


@case(
    "rollout",
    "the policy's mode is as before",
    "once in training mode before, once in eval mode",
    mistake="Whoever calls `rollout` finds the policy in another mode than before.",
)
def rollout_mode(code: TaughtCode):
    policy = _policy(code)
    ref_policy, seen = copy.deepcopy(policy), {}
    for mode, call in ((True, "train()"), (False, "eval()")):
        _roll(code, policy.train(mode), ref_policy, PROMPTS[:2], 2)
        seen[f"training mode after {call}"] = [
            module.training for module in (policy, policy.lm, policy.value_head)
        ]
    return seen


@case(
    "rollout",
    "nothing carries a gradient",
    "a reward with a gradient of its own",
    mistake="A rollout is what stays fixed during the update: nothing in it may lead a gradient back.",
)
def rollout_gradients(code: TaughtCode):
    policy, factor = _policy(code), torch.ones((), requires_grad=True)
    try:
        batch = _roll(code, policy, _other(policy), reward_fn=lambda ids, mask: factor * _score(ids, mask))
        seen = {f"{name} carries a gradient": getattr(batch, name).requires_grad for name in TENSORS}
        can_learn = not any(getattr(batch, name).is_inference() for name in TENSORS)
        return seen | {
            "the update can use the tensors": can_learn,
            "gradients are on afterwards": torch.is_grad_enabled(),
        }
    finally:
        torch.set_grad_enabled(True)


@case(
    "rollout",
    "policy and reference keep their weights",
    "weights before and after",
    mistake="A rollout looks at policy and reference and changes neither.",
)
def rollout_weights(code: TaughtCode):
    policy = _policy(code)
    models = {"the policy": policy, "the reference": _other(policy)}
    before = {name: copy.deepcopy(model.state_dict()) for name, model in models.items()}
    _roll(code, *models.values())
    return {
        f"{name} keeps its weights": all(
            torch.equal(w, before[name][key]) for key, w in model.state_dict().items()
        )
        for name, model in models.items()
    }


@case(
    "rollout",
    "the default of max_new_tokens",
    "a policy that never says EOS, max_new_tokens left out",
    mistake="Left out, max_new_tokens has another value than it had in the signature that you were given.",
)
def rollout_default_length(code: TaughtCode):
    logits = torch.zeros(len(reading_tokenizer()))
    logits[reading_tokenizer().eos_token_id] = -40.0
    policy = _constant(_policy(code), logits)
    batch = code.ppo.rollout(policy, policy, _score, micro_tokenizer(), ["soup"])
    return {"response tokens": batch.response_mask.long().sum(dim=1)}


# --- 3.5 ppo_step ---------------------------------------------------------------------------------

STEP_MASK = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 0]])
STEP_RESPONSE = 4  # tokens of the response block, after a prompt block of three


class SmallPolicy(torch.nn.Module):
    """In place of a language model: each output depends on all real tokens so far, and there is dropout."""

    def __init__(self):
        super().__init__()
        self.lm = torch.nn.ModuleList([torch.nn.Embedding(N_TOKENS, 3), torch.nn.Linear(3, N_TOKENS)])
        self.value_head = torch.nn.Linear(3, 1)
        self.dropout = torch.nn.Dropout(0.1)
        _set(self, lambda seed, weight: numbers(seed, *weight.shape))

    def forward(self, input_ids, attention_mask, position_ids=None, logits_to_keep=0):
        embedding, lm_head = self.lm
        hidden = self.dropout((embedding(input_ids) * attention_mask.unsqueeze(-1)).cumsum(dim=1))
        return lm_head(hidden)[:, -logits_to_keep:], self.value_head(hidden).squeeze(-1)


def _sgd(policy: torch.nn.Module, lr: float) -> tuple[torch.optim.Optimizer, list[Step]]:
    """An optimiser of the policy's weights, and the steps that it will have taken."""
    optim = torch.optim.SGD(policy.parameters(), lr=lr)
    return optim, noted(optim)


@torch.no_grad()
def _given_rollout(
    code: TaughtCode, off_policy: float = 1.0, kl: bool = True, garbage: float = 3.0, times: int = 1
):
    """Three responses of 4, 2 and 3 tokens, so many times over; garbage stands in the padding.

    Off-policy 1, half of the ratios are far from 1; 0, all are 1. Without KL, the reference agrees with the policy
    that sampled.
    """
    full_mask = STEP_MASK.repeat(times, 1)
    full_ids = torch.where(full_mask == 1, _ids(*full_mask.shape), int(garbage))
    mask = full_mask[:, -STEP_RESPONSE:]
    policy = SmallPolicy().eval()
    logprobs, values = code.ppo.response_logprobs_and_values(policy, full_ids, full_mask, STEP_RESPONSE)
    old_logprobs = logprobs + off_policy * numbers(3, *mask.shape, std=0.4)
    old_values = values + off_policy * numbers(4, *mask.shape, std=0.4)
    ref_logprobs = old_logprobs + kl * numbers(5, *mask.shape, mean=-0.3, std=0.5)
    fill = torch.tensor(garbage)
    return code.ppo.Rollout(
        full_ids=full_ids,
        full_mask=full_mask,
        old_logprobs=old_logprobs.where(mask == 1, -fill),
        ref_logprobs=ref_logprobs.where(mask == 1, 2 * fill),
        old_values=old_values.where(mask == 1, fill),
        rm_score=torch.tensor([1.5, -0.7, 0.4]).repeat(times),
        response_mask=mask.clone(),
        texts=[""] * len(mask),
    )


def _step(code: TaughtCode, batch=None, policy=None, lr=0.0, **settings):
    """What `ppo_step` returns, as numbers, and the steps that its optimiser took; with `lr=0` no weight moves."""
    batch, policy = batch or _given_rollout(code), policy or SmallPolicy().eval()
    optim, steps = _sgd(policy, lr)
    settings = {"ppo_epochs": 1, "max_grad_norm": 1e9} | settings
    info = entries("ppo_step", code.ppo.ppo_step(policy, optim, batch, **settings), *PPO_INFO)
    return {name: one_number(name, info[name]) for name in PPO_INFO}, steps


@case("ppo_step", "it runs", "3 responses, 1 epoch, a learning rate of 0")
def step_runs(code: TaughtCode):
    info, _ = _step(code)
    return {"info has": list(info)}


@case(
    "ppo_step",
    "mean_reward",
    "scores 1.5, -0.7 and 0.4",
    mistake="mean_reward is the mean of the scores of the rollout, before any KL is charged.",
)
def step_mean_reward(code: TaughtCode):
    return {"mean_reward": _step(code)[0]["mean_reward"]}


@case(
    "ppo_step",
    "kl_to_ref",
    "responses of 4, 2 and 3 tokens, garbage in the padding",
    mistake="kl_to_ref is not the KL of a response to the reference, averaged over the responses. Over what do you "
    "sum, and over what do you average?",
)
def step_kl_to_ref(code: TaughtCode):
    batch = _given_rollout(code, off_policy=0.0)
    batch.ref_logprobs[0, 1] -= 15.0
    return {"kl_to_ref": _step(code, batch)[0]["kl_to_ref"]}


@case(
    "ppo_step",
    "kl_to_ref of the policy that sampled",
    "a policy that has moved since the rollout",
    mistake="kl_to_ref is about the policy that sampled, not about the one that is being updated.",
)
def step_kl_of_rollout(code: TaughtCode):
    return {"kl_to_ref": _step(code)[0]["kl_to_ref"]}


@case(
    "ppo_step",
    "one update an epoch",
    "3 epochs; the steps of the optimiser that is handed in",
    mistake="In each of ppo_epochs epochs, the optimiser that is handed in makes one step, on the gradient of that epoch's "
    "loss.",
)
def step_updates(code: TaughtCode):
    _, steps = _step(code, ppo_epochs=3)
    has_gradient = [bool(step.gradient.any()) for step in steps]
    return {"steps of the optimiser": len(steps), "a step has a gradient": has_gradient}


@case(
    "ppo_step",
    "a policy that has moved far",
    "3 epochs with ratios far from 1",
    mistake="You make fewer steps when the policy has moved far. ppo_epochs says how many there are.",
)
def step_far(code: TaughtCode):
    return {"steps of the optimiser": len(_step(code, _given_rollout(code, off_policy=8.0), ppo_epochs=3)[1])}


@case(
    "ppo_step",
    "dropout is off",
    "a policy in training mode, with dropout 0.1: two updates that have to be the same",
    mistake="Dropout is on during your update: old and new policy are then not the same function, and no ratio starts "
    "at 1.",
)
def step_dropout(code: TaughtCode):
    one, other = (_step(code, policy=SmallPolicy().train())[0] for _ in range(2))
    return {
        f"{name} is the same twice": math.isclose(one[name], other[name], rel_tol=1e-5)
        for name in PPO_INFO[:3]
    }


@case(
    "ppo_step",
    "padding has no say",
    "two rollouts that differ in the padding alone",
    mistake="What stands in the padding changes your update: a mask is not used, or not handed on.",
)
def step_padding(code: TaughtCode):
    return changes_with_padding(_step(code), _step(code, _given_rollout(code, garbage=4.0)), PPO_INFO)


@case(
    "ppo_step",
    "every ratio starts at 1",
    "a rollout of the policy itself, before any update",
    mistake="Before the first update, old and new log-probabilities are the same numbers. You compare other ones.",
)
def step_ratio(code: TaughtCode):
    info, _ = _step(code, _given_rollout(code, off_policy=0.0))
    return {name: info[name] for name in ("approx_kl", "clipfrac")}


@case(
    "ppo_step",
    "clip_range",
    "clipfrac of an old rollout with clip_range 0.1 and 0.5; clip_range_value is 9",
    mistake="clip_range does not reach the ratio, or the ratio is not that of the new to the old policy.",
)
def step_clip_range(code: TaughtCode):
    return {
        f"clipfrac with clip_range {limit}": _step(code, clip_range=limit, clip_range_value=9.0)[0][
            "clipfrac"
        ]
        for limit in (0.1, 0.5)
    }


@case(
    "ppo_step",
    "what the critic has to learn",
    "value_loss where there is no KL, before the critic has moved",
    mistake="The critic learns another target than the returns that `compute_gae` finds in the token rewards and the "
    "old values.",
)
def step_returns(code: TaughtCode):
    return {"value_loss": _step(code, _given_rollout(code, off_policy=0.0, kl=False))[0]["value_loss"]}


@case(
    "ppo_step",
    "kl_coef",
    "value_loss with kl_coef 0.9, before the critic has moved",
    mistake="kl_coef does not reach the token rewards, or the KL is charged with the wrong sign.",
)
def step_kl_coef(code: TaughtCode):
    return {"value_loss": _step(code, _given_rollout(code, off_policy=0.0), kl_coef=0.9)[0]["value_loss"]}


@case(
    "ppo_step",
    "clip_range_value",
    "value_loss with clip_range_value 0.05 and 9",
    mistake="clip_range_value does not reach the value loss.",
)
def step_clip_range_value(code: TaughtCode):
    near, free = (
        _step(code, clip_range=9.0, clip_range_value=limit)[0]["value_loss"] for limit in (0.05, 9.0)
    )
    return {"the limit changes value_loss": not math.isclose(near, free, rel_tol=1e-4)}


@case(
    "ppo_step",
    "what the critic has to learn, after it has moved",
    "value_loss of an old rollout, with both clip ranges 9",
    mistake="When policy and critic have moved since the rollout, the critic learns another target than the returns of "
    "the rollout.",
)
def step_returns_of_rollout(code: TaughtCode):
    return {"value_loss": _step(code, clip_range=9.0, clip_range_value=9.0)[0]["value_loss"]}


@case(
    "ppo_step",
    "how far the critic may move",
    "value_loss with clip_range_value 0.05",
    mistake="clip_range_value does not reach the value loss as it is given.",
)
def step_near_values(code: TaughtCode):
    return {"value_loss": _step(code, clip_range=9.0, clip_range_value=0.05)[0]["value_loss"]}


@case(
    "ppo_step",
    "white advantages",
    "policy_loss of an old rollout",
    mistake="The policy loss is not that of the whitened advantages.",
)
def step_policy_loss(code: TaughtCode):
    return {"policy_loss": _step(code, kl_coef=0.3)[0]["policy_loss"]}


@case(
    "ppo_step",
    "a response far better than the others",
    "policy_loss of 48 responses, one with a score of 100",
    mistake="You limit scores or advantages: a response that is far better than all others has to weigh as much as it does.",
)
def step_outlier(code: TaughtCode):
    batch = _given_rollout(code, times=16)
    batch.rm_score[0] = 100.0
    return {"policy_loss": _step(code, batch)[0]["policy_loss"]}


@case(
    "ppo_step",
    "the gradient is of this epoch alone",
    "gradients of an earlier step are left over, then 2 epochs with a learning rate of 0",
    mistake="Gradients add up from step to step. When are they set back to zero?",
)
def step_zero_grad(code: TaughtCode):
    policy = SmallPolicy().eval()
    leave_over(policy, 7.0)
    batch = _given_rollout(code, off_policy=0.0)
    (_, clean), (_, steps) = _step(code, batch), _step(code, batch, policy, ppo_epochs=2)
    return what_adds_up(clean[0], steps, 7.0)


@case(
    "ppo_step",
    "max_grad_norm",
    "the norm of all gradients that the optimiser sees, with limits 0.02, 0.01 and 1000000",
    mistake="The norm of the whole gradient, of policy and critic together, has to be at most max_grad_norm when the "
    "optimiser makes its step.",
)
def step_max_grad_norm(code: TaughtCode):
    norms = [_step(code, max_grad_norm=limit)[1][0].norm for limit in (0.02, 0.01, 1e6)]
    return {
        "norm in units of the limit 0.02": norms[0] / 0.02,
        "norm in units of the limit 0.01": norms[1] / 0.01,
        "a gradient below its limit is made larger": norms[2] > 1e3,
    }


@case(
    "ppo_step",
    "vf_coef",
    "the gradient of the critic's head with vf_coef 0, 0.5 and 1.5",
    mistake="vf_coef does not reach the loss: it says how much the critic's loss weighs in the update.",
)
def step_vf_coef(code: TaughtCode):
    norms = [_step(code, vf_coef=vf_coef)[1][0].gradients[-1].norm().item() for vf_coef in (0.0, 0.5, 1.5)]
    return {"with vf_coef 0": norms[0], "with 1.5, in units of that with 0.5": norms[2] / max(norms[1], 1e-9)}


@case(
    "ppo_step",
    "the loss goes down",
    "value_loss before and after a small step",
    mistake="Your step goes the wrong way: after it, the loss is larger than before.",
)
def step_down(code: TaughtCode):
    before, _ = _step(code, clip_range_value=9.0)
    after, _ = _step(code, clip_range_value=9.0, lr=0.001, ppo_epochs=2)
    return {"value_loss is smaller after a step": after["value_loss"] < before["value_loss"]}


@case(
    "ppo_step",
    "the targets stay from epoch to epoch",
    "the weights after 3 epochs with a learning rate above 0",
    mistake="One epoch is right and three are not. Which of advantages, returns, old values and old log-probabilities "
    "change from epoch to epoch in your code?",
)
def step_epochs(code: TaughtCode):
    policy = SmallPolicy().eval()
    batch = _given_rollout(code, off_policy=0.0)
    _step(code, batch, policy, lr=0.1, ppo_epochs=3, kl_coef=0.3, clip_range_value=0.1, max_grad_norm=1.0)
    return dict(policy.named_parameters())


@case(
    "ppo_step",
    "info is that of the last epoch",
    "2 epochs at once, and twice 1 epoch on the same rollout",
    mistake="Your info is not that of the last epoch.",
)
def step_info(code: TaughtCode):
    batch, policy = _given_rollout(code, off_policy=0.0), SmallPolicy().eval()
    at_once, _ = _step(code, batch, lr=0.01, ppo_epochs=2)
    _step(code, batch, policy, lr=0.01)
    second, _ = _step(code, batch, policy)
    return {
        f"{name} is that of epoch 1": math.isclose(at_once[name], second[name], rel_tol=1e-3, abs_tol=1e-5)
        for name in ("policy_loss", "value_loss", "approx_kl")
    }


@case(
    "ppo_step",
    "the rollout stays as it is",
    "the tensors before and after 2 epochs",
    mistake="Your update writes into the rollout. Whoever logs it afterwards sees other numbers than were sampled.",
)
def step_rollout(code: TaughtCode):
    batch = _given_rollout(code)
    before = copy.deepcopy(batch)
    _step(code, batch, lr=0.1, ppo_epochs=2)
    return same_tensors(batch, before, TENSORS)


@case(
    "ppo_step",
    "the defaults",
    "a call with policy, optimiser and rollout alone; a learning rate of 0",
    mistake="Left out, an argument has another value than it had in the signature that you were given. Which default have "
    "you changed?",
)
def step_defaults(code: TaughtCode):
    policy = SmallPolicy().eval()
    optim, steps = _sgd(policy, 0.0)
    info = entries("ppo_step", code.ppo.ppo_step(policy, optim, _given_rollout(code)), *PPO_INFO)
    return {
        "steps of the optimiser": len(steps),
        "clipfrac": one_number("clipfrac", info["clipfrac"]),
        "value_loss": one_number("value_loss", info["value_loss"]),
        "the norm of the gradient": steps[0].gradient.norm(),
        "the critic's share of it": steps[0].gradients[-1].norm() / steps[0].gradient.norm(),
    }


# --- 4 train_ppo ----------------------------------------------------------------------------------

RUN_PROMPTS = ["soup", "kindness is", "the room"]


class Run:
    """A short run of `train_ppo`, and what could be seen of it from outside."""

    def __init__(
        self,
        code: TaughtCode,
        policy=None,
        ref_policy=None,
        prompts=RUN_PROMPTS,
        lr=0.0,
        listen=False,
        **settings,
    ):
        self.policy = policy or _policy(code)
        self.ref_policy = ref_policy or _usual_reference(code)
        optim, self.steps = _sgd(self.policy, lr)
        self.rollouts = []  # ids, mask and scores of each call of the reward function
        self.heard = []  # arguments of each call of on_step, and how many rollouts and updates there had been
        if listen:
            settings["on_step"] = self._on_step
        settings = {"n_steps": 2, "batch_size": 3, "max_new_tokens": 2, "ppo_epochs": 1} | settings
        history = code.ppo.train_ppo(
            self.policy, self.ref_policy, self._reward, micro_tokenizer(), prompts, optim, **settings
        )
        if not isinstance(history, list):
            raise WrongReturn(
                f"train_ppo returned {in_words(history)}, expected a list of what each step says"
            )
        self.history = [entries("a step of train_ppo", info, *PPO_INFO) for info in history]

    def _reward(self, full_ids, full_mask, /):
        scores = _score(full_ids, full_mask)
        self.rollouts.append((full_ids.clone(), full_mask.clone(), scores))
        return scores

    def _on_step(self, *arguments):
        self.heard.append((arguments, len(self.rollouts), len(self.steps)))

    def drawn(self, step: int) -> list[int]:
        """Which of RUN_PROMPTS each row of a step begins with."""
        texts = [
            ids[real.bool()].tolist()
            for ids, real, _ in [self.rollouts[step]]
            for ids, real in zip(ids, real)
        ]
        starts = [token_ids(prompt) for prompt in RUN_PROMPTS]
        return [
            next((i for i, start in enumerate(starts) if text[: len(start)] == start), -1) for text in texts
        ]


@lru_cache(maxsize=1)
def _usual_run(code: TaughtCode) -> Run:
    """Three steps of five responses and two epochs, somebody listening: to be looked at, not changed."""
    return Run(code, n_steps=3, batch_size=5, ppo_epochs=2, listen=True)


@case("train_ppo", "one entry a step", "3 steps")
def run_history(code: TaughtCode):
    run = _usual_run(code)
    return {
        "entries of the history": len(run.history),
        "each entry has": [name for name in PPO_INFO if run.history],
    }


@case(
    "train_ppo",
    "one rollout a step",
    "3 steps; calls of the reward function",
    mistake="Each step makes one rollout: the responses of an earlier step are those of an earlier policy.",
)
def run_rollouts(code: TaughtCode):
    run = _usual_run(code)
    return {"rollouts": len(run.rollouts), "entries of the history": len(run.history)}


@case(
    "train_ppo",
    "batch_size",
    "batches of 5, of 3 prompts",
    mistake="batch_size says how many responses a step samples, whatever the number of prompts.",
)
def run_batch_size(code: TaughtCode):
    return {"responses of each step": [len(scores) for _, _, scores in _usual_run(code).rollouts]}


@case(
    "train_ppo",
    "max_new_tokens",
    "4 new tokens, a policy that never says EOS",
    mistake="max_new_tokens does not reach the rollout.",
)
def run_max_new_tokens(code: TaughtCode):
    logits = torch.zeros(len(reading_tokenizer()))
    logits[reading_tokenizer().eos_token_id] = -40.0
    run = Run(code, _constant(_policy(code), logits), prompts=RUN_PROMPTS[:1], max_new_tokens=4)
    lengths = [mask.long().sum(dim=1) - len(token_ids(RUN_PROMPTS[0])) for _, mask, _ in run.rollouts]
    return {"response tokens": lengths}


@case(
    "train_ppo",
    "each prompt has the same chance",
    "200 draws of 3 prompts",
    mistake="Some of the prompts are drawn too often, or never. Which indices can your draw give?",
)
def run_chances(code: TaughtCode):
    drawn = torch.tensor(Run(code, n_steps=1, batch_size=200, max_new_tokens=1).drawn(0))
    return {f"prompt {i} comes": _how_often(drawn == i, 1 / 3) for i in range(len(RUN_PROMPTS))}


@case(
    "train_ppo",
    "a text that stands in the list nine times",
    "200 draws of 9 times 'soup' and once 'the room'",
    mistake="Each entry of the list has the same chance, so a text that stands there nine times comes nine times as often "
    "as another. Do you make a set of the prompts?",
)
def run_duplicates(code: TaughtCode):
    prompts = [RUN_PROMPTS[0]] * 9 + [RUN_PROMPTS[2]]
    drawn = torch.tensor(Run(code, prompts=prompts, n_steps=1, batch_size=200, max_new_tokens=1).drawn(0))
    return {"'soup' comes": _how_often(drawn == 0, 0.9)}


@case(
    "train_ppo",
    "more prompts than a batch has rows",
    "3 steps with batches of 5, of 5 times 'soup' and 95 times 'the room'",
    mistake="The prompts behind the first batch_size are never drawn. All prompts are there to draw from, at each step.",
)
def run_many_prompts(code: TaughtCode):
    prompts = [RUN_PROMPTS[0]] * 5 + [RUN_PROMPTS[2]] * 95
    run = Run(code, prompts=prompts, n_steps=3, batch_size=5, max_new_tokens=1)
    return {"a later prompt comes in": [2 in run.drawn(step) for step in range(3)]}


@case(
    "train_ppo",
    "prompts are drawn anew, with replacement",
    "6 steps with batches of 3, of 3 prompts",
    mistake="Each row of each step is a draw of its own: a step may have a prompt twice, and another step has others.",
)
def run_draws(code: TaughtCode):
    run = Run(code, n_steps=6, max_new_tokens=1)
    batches = [run.drawn(step) for step in range(6)]
    return {
        "the order is not always the same": len({tuple(batch) for batch in batches}) > 1,
        "some step has a prompt twice": any(len(set(batch)) < 3 for batch in batches),
        "some step has different prompts": any(len(set(batch)) > 1 for batch in batches),
    }


@case(
    "train_ppo",
    "a seed gives the same prompts",
    "two runs after torch.manual_seed(3), and one after torch.manual_seed(4)",
    mistake="Your draws do not come from torch's own random generator, or its seed is set in your loop: a run cannot "
    "be repeated, or every run is the same.",
)
def run_seed(code: TaughtCode):
    drawn = []
    states = random.getstate(), np.random.get_state()
    try:
        for seed, other_seed in ((3, 1), (3, 2), (4, 1)):
            torch.manual_seed(seed)
            random.seed(other_seed)
            np.random.seed(other_seed)
            drawn.append(Run(code, n_steps=1, batch_size=15, max_new_tokens=1).drawn(0))
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    return {
        "the same seed, the same prompts": drawn[0] == drawn[1],
        "another seed, others": drawn[0] != drawn[2],
    }


@case(
    "train_ppo",
    "the history is that of the steps",
    "mean_reward of each step, and the mean of the scores that the reward function gave",
    mistake="The history has to hold what `ppo_step` says of each step, in the order of the steps.",
)
def run_infos(code: TaughtCode):
    run = _usual_run(code)
    pairs = zip(run.history, run.rollouts, strict=True)
    return {
        "mean_reward is that of the step": [
            math.isclose(float(info["mean_reward"]), scores.mean().item(), rel_tol=1e-4)
            for info, (_, _, scores) in pairs
        ]
    }


@case(
    "train_ppo",
    "ppo_epochs updates a step",
    "3 steps with 2 epochs; steps of the optimiser that is handed in",
    mistake="The optimiser that is handed in makes ppo_epochs updates in each step. Is ppo_epochs handed on, and is it "
    "this optimiser?",
)
def run_epochs(code: TaughtCode):
    return {"updates": len(_usual_run(code).steps)}


@case(
    "train_ppo",
    "kl_coef",
    "value_loss with kl_coef 0.05 and 2; everything else is the same",
    mistake="kl_coef is not handed on to the update: it makes no difference.",
)
def run_kl_coef(code: TaughtCode):
    losses = []
    for kl_coef in (0.05, 2.0):
        torch.manual_seed(0)
        losses.append(float(Run(code, n_steps=1, kl_coef=kl_coef).history[0]["value_loss"]))
    return {"kl_coef makes a difference": not math.isclose(*losses, rel_tol=1e-5)}


@case(
    "train_ppo",
    "the policy moves, the reference does not",
    "weights before and after 2 steps",
    mistake="A run trains the policy that is handed in, and only reads the reference.",
)
def run_weights(code: TaughtCode):
    policy, ref_policy = _policy(code), _other(_policy(code))
    before = [copy.deepcopy(model.state_dict()) for model in (policy, ref_policy)]
    Run(code, policy, ref_policy, lr=0.1)
    moved = [
        any(not torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
        for model, state in zip((policy, ref_policy), before, strict=True)
    ]
    return {"the policy moves": moved[0], "the reference moves": moved[1]}


@case(
    "train_ppo",
    "the KL to the reference",
    "a reference that is a copy of the policy, 2 steps",
    mistake="kl_to_ref has to be 0 in the first step, when the policy is still the reference, and no longer in the "
    "second. Which policy do you hand on as the reference?",
)
def run_reference(code: TaughtCode):
    policy = _policy(code)
    kl = [float(info["kl_to_ref"]) for info in Run(code, policy, copy.deepcopy(policy), lr=0.5).history]
    return {"kl_to_ref is 0 in step 0": abs(kl[0]) < 1e-3, "kl_to_ref is 0 in step 1": abs(kl[1]) < 1e-3}


@case(
    "train_ppo",
    "each step samples from the policy of now",
    "approx_kl of 2 steps with 1 epoch each",
    mistake="A step has to sample with the policy as it is now: then, before its first update, every ratio is 1.",
)
def run_on_policy(code: TaughtCode):
    return {"approx_kl of each step": [float(info["approx_kl"]) for info in Run(code, lr=0.5).history]}


@case(
    "train_ppo",
    "on_step",
    "3 steps; what the function is called with, and when",
    mistake="on_step is called at the end of each step, with the info and the rollout of that very step.",
)
def run_on_step(code: TaughtCode):
    run = _usual_run(code)
    arguments = [heard[0] for heard in run.heard]
    if any(len(given) != 2 for given in arguments):
        raise WrongReturn(f"on_step was called with {len(arguments[0])} arguments, expected info and rollout")
    sampled = [full_ids.tolist() for full_ids, _, _ in run.rollouts]
    shown = [
        batch.full_ids.tolist() if isinstance(batch, code.ppo.Rollout) else in_words(batch)
        for _, batch in arguments
    ]
    return {
        "calls": len(run.heard),
        "rollouts before each call": [heard[1] for heard in run.heard],
        "updates before each call": [heard[2] for heard in run.heard],
        "the infos are those of the history": [info for info, _ in arguments] == run.history,
        "the rollouts are those of the steps": shown == sampled,
    }


@case(
    "train_ppo",
    "on_step in a longer run",
    "10 steps; how often the function is called",
    mistake="on_step is called at the end of each step, and not of some of them.",
)
def run_on_each_step(code: TaughtCode):
    return {"calls": len(Run(code, n_steps=10, batch_size=1, max_new_tokens=1, listen=True).heard)}


@case(
    "train_ppo",
    "the update is that of ppo_step",
    "1 step, its rollout once more through `ppo_step` with the same ppo_epochs and kl_coef and nothing else",
    mistake="Your step makes another update than `ppo_step` does with ppo_epochs and kl_coef alone. What else do you hand on "
    "to it, or do after it?",
)
def run_update(code: TaughtCode):
    policy = _policy(code)
    twin = copy.deepcopy(policy)
    run = Run(code, policy, lr=0.5, n_steps=1, ppo_epochs=3, kl_coef=0.3, listen=True)
    batch = run.heard[0][0][1]
    optim = torch.optim.SGD(twin.parameters(), lr=0.5)
    info = code.ppo.ppo_step(twin, optim, batch, ppo_epochs=3, kl_coef=0.3)
    return {
        "what changes in info": [
            name
            for name in PPO_INFO
            if not math.isclose(float(info[name]), float(run.history[0][name]), rel_tol=1e-3, abs_tol=1e-5)
        ],
        "the weights are the same": all(
            torch.allclose(one, other, rtol=1e-3, atol=1e-5)
            for one, other in zip(policy.parameters(), twin.parameters(), strict=True)
        ),
    }


@case(
    "train_ppo",
    "no steps",
    "n_steps 0",
    mistake="With no steps to go, nothing is sampled and the history is empty.",
)
def run_no_steps(code: TaughtCode):
    run = Run(code, n_steps=0)
    return {"rollouts": len(run.rollouts), "entries of the history": len(run.history)}


@case(
    "train_ppo",
    "the defaults",
    "the signature",
    mistake="Left out, an argument has another value than it had in the signature that you were given. Which default have "
    "you changed?",
)
def run_defaults(code: TaughtCode):
    parameters = inspect.signature(code.ppo.train_ppo).parameters
    names = ("n_steps", "batch_size", "max_new_tokens", "ppo_epochs", "kl_coef", "on_step")
    return {f"the default of {name}": parameters[name].default for name in names if name in parameters}
