"""Hidden tests of the exercises in `toy.py`: language model, rule reward, critic, GAE with ends, PPO step and pairs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

import solutions.toy as reference
from rlhf_lab.room.props import shared
from rlhf_lab.room.props import toy as props
from rlhf_lab.room.wire import Remote

from .candidate import Answer, Candidate
from .hidden import (
    Draw,
    agree,
    check,
    defaults_of,
    entries,
    hidden,
    number,
    parts,
    right_mask,
    tensor,
    unchanged,
)
from .updates import check_kept, in_one_row, moves, same_info, same_moves, spread, twice_as_far

PAD, BOS, EOS, UNK = range(4)
A = 4  # id of the first letter

# --- 7.1 ToyLanguageModel -------------------------------------------------------------------------

LM = "ToyLanguageModel"
Sizes = tuple[int, int, int, int]  # vocabulary, embedding, hidden, layers
Weights = dict[str, Tensor]


def _shapes(sizes: Sequence[int]) -> dict[str, torch.Size]:
    with torch.random.fork_rng(devices=[]):
        return {name: weight.shape for name, weight in reference.ToyLanguageModel(*sizes).named_parameters()}


def _weights(draw: Draw, sizes: Sizes, std: float = 0.8, sharp: float = 1.0) -> Weights:
    """Random weights; the larger `sharp`, the surer the model is of each token."""
    weights = {name: draw.normal(*shape, std=std) for name, shape in _shapes(sizes).items()}
    for name in ("lm_head.weight", "lm_head.bias"):
        weights[name] *= sharp
    return weights


def _own(sizes: Sizes, weights: Weights) -> reference.ToyLanguageModel:
    """The reference's model with these weights."""
    with torch.random.fork_rng(devices=[]):
        model = reference.ToyLanguageModel(*sizes)
    model.load_state_dict(weights)
    return model


def _chain(n_tokens: int, follows: dict[int, int]) -> tuple[Sizes, Weights]:
    """A model that is sure of what follows a token, whatever stood before: itself, unless `follows` says otherwise."""
    sizes = (n_tokens, n_tokens, n_tokens, 1)
    weights = {name: torch.zeros(shape) for name, shape in _shapes(sizes).items()}
    weights["embedding.weight"] = 10 * torch.eye(n_tokens)
    weights["lstm.weight_ih_l0"][2 * n_tokens : 3 * n_tokens] = torch.eye(n_tokens)
    gates = torch.tensor([20.0, -20, 0, 20])  # in: open, forget: closed, what is new, out: open
    weights["lstm.bias_ih_l0"] = gates.repeat_interleave(n_tokens)
    for token in range(n_tokens):
        weights["lm_head.weight"][follows.get(token, token), token] = 100.0
    return sizes, weights


def _constant(probabilities: Tensor) -> tuple[Sizes, Weights]:
    """A model that gives each token this probability, whatever stands before it."""
    sizes = (len(probabilities), 3, 3, 1)
    weights = {name: torch.zeros(shape) for name, shape in _shapes(sizes).items()}
    weights["lm_head.bias"] = probabilities.log()
    return sizes, weights


def _model(candidate: Candidate, sizes: Sizes, weights: Weights, training: bool = False) -> Remote:
    return candidate.call(props.language_model, sizes, weights, training).value


def _log_probs(candidate: Candidate, model: Remote, ids: Tensor) -> Tensor:
    answer = candidate.call(candidate.read(model, "get_log_probs"), ids)
    return tensor(answer.value, len(ids), ids.shape[1] - 1, what="what get_log_probs returns")


def _expected_log_probs(model: reference.ToyLanguageModel, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """From the logits, position by position."""
    logits = model.lm_head(model.lstm(model.embedding(ids))[0]).double() / temperature
    logits = logits[:, :-1] - logits[:, :-1].logsumexp(dim=-1, keepdim=True)
    return logits.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)


class _Responses:
    """What `generate` gave; where it is narrower than `max_len`, filled up as it has to be.

    Attributes:
        ids, logprobs: of the responses, `[batch, max_len]`.
        real: which tokens are real: up to the first EOS.
    """

    def __init__(
        self,
        candidate: Candidate,
        model: Remote,
        prompt_ids: Tensor,
        max_len: int,
        *options: float,
        seed: int = 0,
    ):
        answer = candidate.call(
            candidate.read(model, "generate"), prompt_ids, max_len, *options, after=(0,), seed=seed
        )
        ids, logprobs = (tensor(part) for part in parts(answer.value, 2))
        rows, n_prompt = prompt_ids.shape
        check(ids.dim() == 2 and logprobs.dim() == 2, "The shape of what generate returns is not right.")
        width = logprobs.shape[1]
        fits = 0 < width <= max_len and list(ids.shape) == [rows, n_prompt + width] and len(logprobs) == rows
        check(
            fits, "The shape of what generate returns is not right: ids with the prompt, and one number each."
        )
        self.answer, self.prompt_ids = answer, ids[:, :n_prompt]
        self.ids = F.pad(ids[:, n_prompt:], (0, max_len - width), value=PAD)
        self.logprobs = F.pad(logprobs, (0, max_len - width))
        is_eos = (self.ids == EOS).long()
        self.real = is_eos.cumsum(dim=1) - is_eos == 0
        # narrower is right only where all have ended
        check(
            width == max_len or not self.real[:, width:].any(),
            "A response ends before its EOS and its limit.",
        )


@hidden(
    LM,
    "embedding, LSTM and head, of the sizes asked for",
    points=0.25,
    catches=["sizes fixed", "bidirectional", "no bias", "another default"],
    message="The weights are not those of an embedding, an LSTM and a linear head with the sizes that are handed in, or "
    "left out.",
)
def lm_parts(candidate: Candidate, draw: Draw):
    sizes = draw.whole(6, 12), draw.whole(13, 16), draw.whole(17, 20), draw.whole(3, 5)
    for given in (sizes, (sizes[0], sizes[1], sizes[2], 1), ()):
        found = entries(candidate.call(props.weights_of_new, *given).value)
        expected = _shapes(given)
        check({name: tensor(weight).shape for name, weight in found.items()} == dict(expected))


@hidden(
    LM,
    "the log-probability of each token",
    points=0.75,
    catches=["shift", "no softmax", "probabilities", "along another dimension", "sum", "sign"],
    message="get_log_probs does not give, for each token but the first, its log-probability given the tokens before it.",
)
def lm_log_probs(candidate: Candidate, draw: Draw):
    sizes = (11, 5, 6, 2)
    weights = _weights(draw, sizes, sharp=2.0)
    model = _model(candidate, sizes, weights)
    for shape in ((4, 7), (1, 2)):
        ids = draw.integers(A, 11, *shape)
        agree(
            _log_probs(candidate, model, ids), _expected_log_probs(_own(sizes, weights), ids), tolerance=1e-3
        )


@hidden(
    LM,
    "special tokens are tokens",
    points=0.25,
    catches=["PAD gets 0", "EOS left out"],
    message="get_log_probs gives PAD, EOS or another special token a number that the logits do not give it.",
    after=["the log-probability of each token"],
)
def lm_special(candidate: Candidate, draw: Draw):
    sizes = (9, 5, 6, 1)
    weights = _weights(draw, sizes, sharp=2.0)
    ids = torch.tensor([draw.shuffled(range(9)) for _ in range(4)])
    expected = _expected_log_probs(_own(sizes, weights), ids)
    agree(_log_probs(candidate, _model(candidate, sizes, weights), ids), expected, tolerance=1e-3)


@hidden(
    LM,
    "logits far out",
    points=0.25,
    catches=["log of softmax", "epsilon in the logarithm", "clamped"],
    message="A token that is next to impossible gets minus infinity, NaN or a limit in place of its log-probability.",
)
def lm_far_out(candidate: Candidate, draw: Draw):
    sizes = (11, 5, 6, 2)
    weights = _weights(draw, sizes, sharp=10 ** draw.number(3, 4))
    ids = draw.integers(A, 11, 6, 7)
    expected = _expected_log_probs(_own(sizes, weights), ids)
    agree(_log_probs(candidate, _model(candidate, sizes, weights), ids), expected, tolerance=1e-3)


@hidden(
    LM,
    "rows apart, and nothing random",
    points=0.5,
    catches=["not batch first", "dropout"],
    message="The log-probabilities of a row change with the other rows, or from call to call: which dimension is time for "
    "your LSTM, and is there dropout?",
)
def lm_rows(candidate: Candidate, draw: Draw):
    sizes = (11, 5, 24, 2)
    model, ids = _model(candidate, sizes, _weights(draw, sizes), True), draw.integers(A, 11, 5, 8)
    together = _log_probs(candidate, model, ids)
    check(together.unique().numel() > 5)
    agree(torch.cat([_log_probs(candidate, model, row.unsqueeze(0)) for row in ids]), together)
    agree(_log_probs(candidate, model, ids), together)


@hidden(
    LM,
    "the gradient reaches all weights",
    points=0.5,
    catches=["detached", "padding index"],
    message="The gradient of the log-probabilities does not reach all weights as it should, those of every token that was "
    "read included.",
)
def lm_gradient(candidate: Candidate, draw: Draw):
    sizes = (8, 5, 6, 2)
    weights, cotangent = _weights(draw, sizes), draw.normal(5, 7, mean=1)
    ids = torch.tensor([draw.shuffled(range(8)) for _ in range(5)])
    found = entries(candidate.call(props.gradients, _model(candidate, sizes, weights), ids, cotangent).value)
    own = _own(sizes, weights)
    _expected_log_probs(own, ids).backward(cotangent.double())
    for name, weight in own.named_parameters():
        check(isinstance(found.get(name), Tensor))
        agree(found[name], weight.grad, tolerance=1e-3)


@hidden(
    LM,
    "responses begin after their prompt and end with their EOS",
    points=0.75,
    catches=["no PAD behind the end", "all rows end together", "rows never end", "max_len", "prompt missing"],
    message="generate does not return each prompt and behind it the response, up to its own EOS or max_len tokens, and PAD "
    "after that.",
)
def lm_ends(candidate: Candidate, draw: Draw):
    letters = draw.shuffled(range(A, 14))
    # a chain of letters that ends in EOS, behind which the model would begin anew, and a letter that repeats for ever
    follows = dict(zip(letters[:6], [*letters[1:6], EOS])) | {EOS: letters[0]}
    model = _model(candidate, *_chain(14, follows))
    starts = draw.shuffled([0, 3, 4, 5, 8])
    max_len = draw.whole(7, 9)
    prompt_ids = torch.tensor([[BOS, letters[9], letters[start]] for start in starts])
    found = _Responses(candidate, model, prompt_ids, max_len)
    check(torch.equal(found.prompt_ids, prompt_ids), "The prompt does not stand in front of its response.")
    expected = []
    for start in starts:
        response = [letters[8]] * max_len if start == 8 else [*letters[start + 1 : 6], EOS]
        expected.append(response + [PAD] * (max_len - len(response)))
    check(found.ids.tolist() == expected)
    one = _Responses(candidate, model, prompt_ids[:1], 1)
    check(one.ids.tolist() == [expected[0][:1]], "For one prompt and one token the response is another one.")


@hidden(
    LM,
    "only the response's own EOS ends it",
    points=0.25,
    catches=["EOS in the prompt", "PAD ends a response", "PAD forbidden"],
    message="An EOS in the prompt, or a PAD that is drawn, ends your response; or PAD cannot be drawn. Any token may be "
    "drawn, and only an EOS that is drawn is an end.",
)
def lm_only_eos(candidate: Candidate, draw: Draw):
    a, b, c, d = draw.shuffled(range(A, 10))[:4]
    model = _model(candidate, *_chain(10, {a: PAD, PAD: b, b: UNK, UNK: EOS, EOS: c}))
    prompts = torch.tensor([[EOS, d, a], [d, EOS, EOS], [EOS, d, b]])
    expected = [[PAD, b, UNK, EOS, PAD], [c] * 5, [UNK, EOS, PAD, PAD, PAD]]
    check(_Responses(candidate, model, prompts, 5).ids.tolist() == expected)


@hidden(
    LM,
    "all that was read before counts",
    points=0.5,
    catches=[
        "state not handed on",
        "last token of the prompt alone",
        "state of the prompt for ever",
        "read twice",
    ],
    message="Tokens come that the model would not write after what stands there: the whole prompt has to be read, and the "
    "state of the LSTM has to be carried from token to token.",
)
def lm_state(candidate: Candidate, draw: Draw):
    sizes = (12, 5, 6, 2)
    weights = _weights(draw, sizes, std=2.5, sharp=4000.0)
    weights["lm_head.bias"].zero_()
    for name, value in (("lm_head.weight", 0.0), ("lm_head.bias", -1e5)):
        weights[name][:A] = value
    own, model = _own(sizes, weights), _model(candidate, sizes, weights)
    for n_prompt in (1, 4):
        prompt_ids = draw.integers(A, 12, 16, n_prompt)
        found = _Responses(candidate, model, prompt_ids, 8)
        with torch.no_grad():
            logprobs = _expected_log_probs(own, torch.cat([prompt_ids, found.ids], dim=1))[:, n_prompt - 1 :]
        check(bool((logprobs > -16).all()))  # once in ten million tokens


@hidden(
    LM,
    "samples have the probabilities of the model",
    points=0.5,
    catches=[
        "greedy",
        "top-k",
        "uniform",
        "temperature not used or upside down",
        "one draw for all rows",
        "seed set",
    ],
    message="The tokens do not come as often as the model and the temperature say, or the rows or calls do not draw for "
    "themselves.",
)
def lm_samples(candidate: Candidate, draw: Draw):
    shares = torch.tensor([0.45, 0.25, 0.13, 0.08, 0.05, 0.04])[draw.shuffled(range(6))]
    probabilities = torch.cat([torch.tensor([0.02, 1e-9, 1e-9, 0.03]), shares * 0.95])
    model, prompt_ids = _model(candidate, *_constant(probabilities)), torch.full((300, 2), A)
    for temperature in (1.0, draw.number(0.4, 0.6), draw.number(2.0, 3.0)):
        found = _Responses(candidate, model, prompt_ids, 8, temperature)
        expected = (probabilities.log() / temperature).softmax(0)
        n = int(found.real.sum())
        for token, share in enumerate(expected.tolist()):
            came = int((found.ids[found.real] == token).sum())
            check(abs(came - n * share) <= 7 * math.sqrt(n * share) + 2)
        check(bool((found.ids[:-1] != found.ids[1:]).any()), "All rows draw the same.")
    one, other = (_Responses(candidate, model, prompt_ids, 8, seed=seed).ids for seed in (1, 2))
    check(not torch.equal(one, other), "Two calls draw the same, whatever the seed.")


@hidden(
    LM,
    "the log-probabilities of what was drawn",
    points=0.25,
    catches=["of temperature 1", "probabilities", "not 0 behind the end", "EOS gets 0", "carries a gradient"],
    message="The log-probabilities that come with a response are not those of the distribution that its tokens were drawn "
    "from, EOS included, and 0 behind the end.",
)
def lm_drawn(candidate: Candidate, draw: Draw):
    sizes = (9, 5, 6, 2)
    weights = _weights(draw, sizes)
    weights["lm_head.bias"][[PAD, EOS]] = 1.0
    model, prompt_ids = _model(candidate, sizes, weights), draw.integers(A, 9, 60, 3)
    for options in ((), (draw.number(0.4, 0.6),), (draw.number(2.0, 3.0),)):
        found = _Responses(candidate, model, prompt_ids, 9, *options)
        ids = torch.cat([prompt_ids, found.ids], dim=1)
        with torch.no_grad():
            expected = _expected_log_probs(_own(sizes, weights), ids, *options)[:, 2:]
        agree(found.logprobs, expected, found.real, tolerance=1e-3)
        check(not found.logprobs[~found.real].any(), "Behind the end of a response the log-probability is 0.")
        check(
            not tensor(parts(found.answer.value, 2)[1]).requires_grad,
            "What generate returns carries a gradient.",
        )


SIDE_EFFECTS = (
    "responses begin after their prompt and end with their EOS",
    "the log-probability of each token",
)


@hidden(
    LM,
    "prompt and model stay as they were",
    points=0.25,
    catches=["writes into the prompt", "changes the mode or the weights", "gradients off for good"],
    message="Your generate changes the prompt, the model's mode or its weights, or switches gradients off for good.",
    after=SIDE_EFFECTS,
)
def lm_side_effects(candidate: Candidate, draw: Draw):
    sizes = (9, 5, 6, 2)
    weights, prompt_ids = _weights(draw, sizes), draw.integers(A, 9, 3, 2)
    for training in (True, False):
        model = _model(candidate, sizes, weights, training)
        found = _Responses(candidate, model, prompt_ids, 5)
        unchanged(found.answer, [prompt_ids])
        check(found.answer.records_gradients and candidate.read(model, "training") == training)
        after = candidate.call(shared.weights, model).value
        check(all(torch.equal(after[name], weight) for name, weight in weights.items()))


# --- 7.2 rule_reward ------------------------------------------------------------------------------

RULE = "rule_reward"
VOWELS, CONSONANTS = "aeiou", "bcdfghjklmnpqrstvwxyz"


def _reward(candidate: Candidate, text: str) -> float:
    return number(candidate.call("toy.rule_reward", text).value)


def _expected_reward(text: str) -> float:
    n = len(text)
    total = 2 * math.exp(-((n - 15) ** 2) / 50) - max(0, 3 - n)
    if n > 0:
        total += 3 * len(set(text)) / n
    if n > 1:
        total += 3 * sum((text[i] in VOWELS) ^ (text[i + 1] in VOWELS) for i in range(n - 1)) / (n - 1)
    return total - min(2, sum(text[i] == text[i + 1] for i in range(n - 1)) / 2)


def _differ(candidate: Candidate, *pairs: tuple[str, str]) -> None:
    """Raises `Wrong` when one text of a pair is worth more than the other by another number than it should be."""
    for one, other in pairs:
        got = _reward(candidate, one) - _reward(candidate, other)
        agree(got, _expected_reward(one) - _expected_reward(other))


def _different(draw: Draw, letters: str, n: int) -> list[str]:
    return draw.shuffled(letters)[:n]


@hidden(
    RULE,
    "length",
    points=0.5,
    catches=["another best length", "width", "not squared", "one side only", "factor"],
    message="Texts that differ in their length alone are not worth what the first rule says.",
)
def rule_length(candidate: Candidate, draw: Draw):
    text = "".join(_different(draw, CONSONANTS, 21))
    middle = text[: draw.whole(13, 18)]
    _differ(
        candidate, *((middle, text[:n]) for n in (draw.whole(4, 7), draw.whole(8, 12), draw.whole(19, 22)))
    )


@hidden(
    RULE,
    "diversity",
    points=0.5,
    catches=["count in place of share", "of the alphabet", "upside down", "factor"],
    message="Texts that differ in how many different letters they have are not worth what the second rule says.",
)
def rule_diversity(candidate: Candidate, draw: Draw):
    for n in (draw.whole(5, 7), draw.whole(9, 11)):
        letters = _different(draw, CONSONANTS, 2 * n)
        all_different, half, two = "".join(letters), "".join(letters[:n]) * 2, "".join(letters[:2]) * n
        _differ(candidate, (all_different, half), (half, two))


@hidden(
    RULE,
    "rhythm",
    points=0.5,
    catches=[
        "equal kinds",
        "one direction only",
        "divided by the letters",
        "every other pair",
        "vowels counted",
        "y",
    ],
    message="Texts of the same letters in another order are not worth what the third rule says.",
)
def rule_rhythm(candidate: Candidate, draw: Draw):
    for n in (4, 5):
        vowels, consonants = _different(draw, VOWELS, n), _different(draw, CONSONANTS, n)
        mixed = "".join(a + b for a, b in zip(vowels, consonants))
        apart, back = "".join(vowels + consonants), "".join(consonants + vowels)
        shuffled = "".join(draw.shuffled(vowels + consonants))
        _differ(candidate, (mixed, apart), (mixed[::-1], back), (mixed, shuffled))
    ends = _different(draw, CONSONANTS, 2)
    for letter in "aeiouybz":
        if letter not in ends:
            _differ(candidate, (ends[0] + letter + ends[1], "".join(_different(draw, CONSONANTS, 3))))


@hidden(
    RULE,
    "too short",
    points=0.25,
    catches=["no fine", "the same fine for all", "reward for long texts", "one letter off"],
    message="Texts of one, two and three letters are not worth what the rule about short ones says.",
)
def rule_too_short(candidate: Candidate, draw: Draw):
    text = "".join(_different(draw, CONSONANTS, 9))
    _differ(candidate, (text[:3], text[:2]), (text[:2], text[:1]), (text[:3], text[:4]), (text[:4], text))


@hidden(
    RULE,
    "repetition",
    points=0.5,
    catches=["factor", "runs counted once", "letters that occurred before", "sign"],
    message="Letters that equal the one before them do not cost what the fifth rule says.",
)
def rule_repetition(candidate: Candidate, draw: Draw):
    a, b, c = _different(draw, CONSONANTS, 3)
    _differ(
        candidate,
        (a + b + c + b, a + b + b + c),
        (b + a + b + c + b, a + b + b + b + c),
        (a + b + c + a + b + c, a + a + b + b + c + c),
    )


@hidden(
    RULE,
    "repetition costs only so much",
    points=0.25,
    catches=["no limit", "limit on the count", "maximum for minimum"],
    message="The fine for repetition goes beyond its limit, or stops before it.",
)
def rule_repetition_limit(candidate: Candidate, draw: Draw):
    a, b, c = _different(draw, CONSONANTS, 3)
    for times in (2, 3, draw.whole(4, 7)):
        _differ(candidate, ((a + b + c) * times, a * times + b * times + c * times))
    _differ(candidate, (a + b + a + b + a + b, a + a + a + b + b + b))


@hidden(
    RULE,
    "the sum of all rules",
    points=0.25,
    catches=["clamped", "averaged", "a rule left out", "rounded"],
    message="The reward is not the sum of the five rules.",
)
def rule_sum(candidate: Candidate, draw: Draw):
    for n in (1, 2, 3, 6, 12, 25, 40):
        text = "".join(draw.shuffled("abcdefghijklmnopqrstuvwxyz" + "aeiou" * 3 + "ssttnn")[:n])
        agree(_reward(candidate, text), _expected_reward(text))
    same = draw.shuffled(CONSONANTS)[0] * draw.whole(5, 7)
    agree(_reward(candidate, same), _expected_reward(same))


@hidden(
    RULE,
    "no letter, one letter",
    points=0.25,
    catches=["division by zero"],
    message="A text without letters, or of one letter, has a reward too.",
)
def rule_short(candidate: Candidate, draw: Draw):
    for text in ("", draw.shuffled(CONSONANTS)[0], draw.shuffled(VOWELS)[0]):
        agree(_reward(candidate, text), _expected_reward(text))


# --- 7.3 ValueNetwork -----------------------------------------------------------------------------

CRITIC = "ValueNetwork"


def _layers(draw: Draw, embed_dim: int, hidden_dim: int, std: float = 1.0) -> props.Layers:
    outs, ins = (hidden_dim, hidden_dim, 1), (embed_dim, hidden_dim, hidden_dim)
    return [
        {"weight": draw.normal(n_out, n_in, std=std), "bias": draw.normal(n_out, std=std)}
        for n_out, n_in in zip(outs, ins)
    ]


def _value(layers: props.Layers, states: Tensor) -> Tensor:
    first, second, third = layers
    hidden_states = (states @ first["weight"].T + first["bias"]).clamp(min=0)
    hidden_states = (hidden_states @ second["weight"].T + second["bias"]).clamp(min=0)
    return (hidden_states @ third["weight"].T + third["bias"])[..., 0]


@hidden(
    CRITIC,
    "three linear layers",
    points=0.5,
    catches=["two layers", "fixed width", "no bias", "another default", "something else that learns"],
    message="The critic is not made of three linear layers with bias of the sizes that are handed in, or left out.",
)
def critic_layers(candidate: Candidate, draw: Draw):
    for sizes in ((draw.whole(5, 9), draw.whole(10, 15)), ()):
        embed_dim, hidden_dim = sizes or (64, 64)
        layers, n_numbers = parts(candidate.call(props.layers_of_new, *sizes).value, 2)
        shapes = [list(tensor(entries(layer, "weight", "bias")["weight"]).shape) for layer in layers]
        check(shapes == [[hidden_dim, embed_dim], [hidden_dim, hidden_dim], [1, hidden_dim]])
        check(all(isinstance(layer["bias"], Tensor) for layer in layers))
        check(n_numbers == hidden_dim * (embed_dim + hidden_dim + 1) + 2 * hidden_dim + 1)


VALUE = "the value of a state"


@hidden(
    CRITIC,
    VALUE,
    points=0.75,
    catches=["no ReLU", "ReLU at the end", "tanh", "sigmoid", "dropout", "mean over states"],
    message="The value is not that of three linear layers with a ReLU after the first and the second, of this state alone.",
)
def critic_values(candidate: Candidate, draw: Draw):
    layers = _layers(draw, 6, 9)
    critic = candidate.call(props.critic, (6, 9), layers, True).value
    for size in (1.0, 1000.0):
        states = size * draw.normal(12, 6)
        agree(tensor(candidate.call(critic, states).value, 12), _value(layers, states), tolerance=1e-3)


@hidden(
    CRITIC,
    "states of any shape",
    points=0.25,
    catches=["last dimension left", "squeezes too much"],
    message="The shape of the values is not that of the states without their last dimension.",
)
def critic_shapes(candidate: Candidate, draw: Draw):
    layers = _layers(draw, 5, 7)
    critic = candidate.call(props.critic, (5, 7), layers).value
    for shape in ((3, 4, 5), (1, 4, 5), (4, 1, 5), (1, 1, 5), (2, 5), (1, 5), (5,)):
        states = draw.normal(*shape)
        values = tensor(candidate.call(critic, states).value)
        check(values.shape == states.shape[:-1])
        agree(values, _value(layers, states), tolerance=1e-3)


@hidden(
    CRITIC,
    "the gradient reaches all layers",
    points=0.5,
    catches=["detached", "a layer twice"],
    message="The gradient does not reach all layers, or the states, as it should.",
    after=[VALUE],
)
def critic_gradient(candidate: Candidate, draw: Draw):
    layers, states, cotangent = _layers(draw, 5, 7), draw.normal(9, 5), draw.normal(9)
    critic = candidate.call(props.critic, (5, 7), layers).value
    found, of_states = parts(candidate.call(props.critic_gradients, critic, states, cotangent).value, 2)
    own = [{name: value.clone().requires_grad_() for name, value in layer.items()} for layer in layers]
    own_states = states.clone().requires_grad_()
    _value(own, own_states).backward(cotangent)
    for layer, expected in zip(found, own, strict=True):
        for name in ("weight", "bias"):
            agree(tensor(layer[name]), expected[name].grad, tolerance=1e-3)
    agree(tensor(of_states), own_states.grad, tolerance=1e-3)


# --- 7.4 gae_with_dones ---------------------------------------------------------------------------

GAE = "gae_with_dones"


def _gae(candidate: Candidate, given: tuple, **settings: float) -> Answer:
    return candidate.call("toy.gae_with_dones", *given, after=(0, 1, 3), **settings)


def _expected_gae(given: tuple, gamma: float, lam: float) -> Tensor:
    """The definition: the discounted sum of TD errors up to the end of the episode."""
    rewards, values, next_value, dones = given[0].tolist(), given[1].tolist(), given[2], given[3].tolist()
    advantages = []
    for t in range(len(rewards)):
        total, weight = 0.0, 1.0
        for k in range(t, len(rewards)):
            after = 0.0 if dones[k] else (values[k + 1] if k + 1 < len(rewards) else next_value)
            total += weight * (rewards[k] + gamma * after - values[k])
            weight *= gamma * lam
            if dones[k]:
                break
        advantages.append(total)
    return torch.tensor(advantages)


def _steps(draw: Draw, dones: Sequence[int]) -> tuple:
    """Rewards, values, next value (far from 0) and dones."""
    n, sign = len(dones), 1 if draw.number(0, 1) < 0.5 else -1
    return draw.normal(n, std=2), draw.normal(n, std=2), sign * draw.number(2, 5), torch.tensor(dones).float()


def _agree_gae(candidate: Candidate, given: tuple, gamma: float, lam: float, message: str = "") -> None:
    got = tensor(_gae(candidate, given, gamma=gamma, lam=lam).value, len(given[0]))
    agree(got, _expected_gae(given, gamma, lam), message=message)


EPISODE = "one episode"


@hidden(
    GAE,
    EPISODE,
    points=1.0,
    catches=[
        "terms or signs of the TD error",
        "forwards",
        "no sum",
        "gamma or lambda missing",
        "a step left out",
    ],
    message="In a single episode that ends with its last step, the advantages are not the discounted sums of TD errors.",
)
def gae_episode(candidate: Candidate, draw: Draw):
    for n in (draw.whole(5, 9), 2, 1):
        _agree_gae(
            candidate, _steps(draw, [0] * (n - 1) + [1]), draw.number(0.7, 0.95), draw.number(0.5, 0.8)
        )


@hidden(
    GAE,
    "an episode that goes on",
    points=0.5,
    catches=["last step always an end", "next_value not discounted", "next_value twice", "not carried on"],
    message="When the last step is not done, the value of the state after it has to count, once and discounted.",
)
def gae_goes_on(candidate: Candidate, draw: Draw):
    for n in (draw.whole(4, 8), 1):
        _agree_gae(candidate, _steps(draw, [0] * n), draw.number(0.7, 0.9), draw.number(0.5, 0.8))


@hidden(
    GAE,
    "next_value behind an end",
    points=0.25,
    catches=["next_value counts although done"],
    message="When the last step is done, next_value belongs to another episode and must not count.",
    after=[EPISODE],
)
def gae_done(candidate: Candidate, draw: Draw):
    rewards, values, _, dones = _steps(draw, [0] * draw.whole(2, 6) + [1])
    for next_value in (draw.number(50, 90), -draw.number(50, 90)):
        _agree_gae(candidate, (rewards, values, next_value, dones), 0.9, 0.7)


@hidden(
    GAE,
    "nothing reaches back over an end",
    points=1.0,
    catches=[
        "values leak",
        "advantages leak",
        "dones upside down",
        "ends off by one",
        "reward of the last step lost",
    ],
    message="With several episodes laid end to end, something of the next one reaches the one before, or the last step of "
    "an episode loses what is its own.",
)
def gae_ends(candidate: Candidate, draw: Draw):
    first, second = draw.whole(2, 5), draw.whole(2, 5)
    dones = [0] * (first - 1) + [1, 1] + [0] * (second - 1) + [1] + [0] * draw.whole(2, 4)
    rewards, values, next_value, ends = _steps(draw, dones)
    _agree_gae(candidate, (rewards, values, next_value, ends), draw.number(0.7, 0.9), draw.number(0.5, 0.8))
    values[first:] += 100.0
    rewards[first:] -= 70.0
    _agree_gae(candidate, (rewards, values, next_value, ends), draw.number(0.7, 0.9), draw.number(0.5, 0.8))


@hidden(
    GAE,
    "gamma and lambda",
    points=0.5,
    catches=["swapped", "one for both", "default changed"],
    message="gamma or lambda is not where it belongs, or has another value than in the signature when it is left out.",
)
def gae_discounts(candidate: Candidate, draw: Draw):
    for gamma, lam in ((draw.number(0.2, 0.5), 0.95), (0.95, draw.number(0.2, 0.5)), (1.0, 1.0), (0.8, 0.0)):
        _agree_gae(candidate, _steps(draw, [0, 0, 1, 0, 0, 0]), gamma, lam)
    given = _steps(draw, [0, 0, 0, 1, 0, 0, 0])
    defaults = defaults_of(reference.gae_with_dones)
    agree(tensor(_gae(candidate, given).value, 7), _expected_gae(given, **defaults))


@hidden(
    GAE,
    "numbers far out",
    points=0.25,
    catches=["limited", "whitened"],
    message="Large advantages are limited, or their scale is lost.",
)
def gae_far_out(candidate: Candidate, draw: Draw):
    rewards, values, next_value, dones = _steps(draw, [0, 0, 1, 0, 0, 1])
    size = 10 ** draw.number(2, 4)
    _agree_gae(candidate, (rewards * size, values * size, next_value, dones), 0.9, 0.7)


@hidden(
    GAE,
    "no gradient, and arguments as they were",
    points=0.5,
    catches=["writes into the rewards", "carries a gradient"],
    message="Your function changes what it is handed, or what it returns carries a gradient.",
    after=[EPISODE],
)
def gae_side_effects(candidate: Candidate, draw: Draw):
    rewards, values, next_value, dones = _steps(draw, [0, 0, 1, 0, 0, 1])
    answer = _gae(candidate, (rewards, values.clone().requires_grad_(), next_value, dones))
    check(not tensor(answer.value).requires_grad, "The advantages carry a gradient: they are fixed numbers.")
    for position, before in ((0, rewards), (1, values), (3, dones)):
        check(torch.equal(tensor(answer.after[position]).detach(), before))
    check(answer.records_gradients, "Gradients are off for the whole program after your call.")


# --- 7.5 toy_ppo_step -----------------------------------------------------------------------------

STEP = "toy_ppo_step"
INFO = ("policy_loss", "value_loss", "approx_kl", "mean_score", "kl_to_ref")
POLICY_SIZES, CRITIC_SIZES = (9, 4, 5, 2), (4, 6)
N_PROMPT = 2
MANY = 40  # responses, of which one can be six standard deviations from the mean
# one plain update: no clipping, and no price of the KL
PLAIN = {"n_epochs": 1, "clip_range": 9.0, "kl_coef": 0.0}
DEFAULTS = defaults_of(reference.toy_ppo_step)


@dataclass(frozen=True)
class Scene:
    """Episodes, and the policy and critic that are to be updated with them.

    Attributes:
        responses: how many tokens are real in each row; equal ones leave no padding.
        off_policy: how far the policy has moved since it sampled, at most, in log-ratios. By default less than the clip
            range is when nothing is said, so that clipping has a test of its own.
        shift: added to all log-ratios: with clip_range large, the gradient grows with it.
        scores: between which two sizes the scores lie; half of them are negative.
        outlier: the score of the first response in place of its own; 0: its own.
        padding: which numbers stand in the padding; all of them are far out.
    """

    name: str
    responses: tuple[int, ...] = (5, 5, 5, 5)
    off_policy: float = 0.15
    shift: float = 0.0
    scores: tuple[float, float] = (0.5, 2.0)
    outlier: float = 0.0
    padding: int = 0


RAGGED = (5, 1, 3, 4)


@cache
def _inputs(scene: Scene, seed: int) -> tuple[Weights, props.Layers, dict]:
    """Weights of a policy and of a critic, and the fields of `Episodes`."""
    draw, draw_padding = Draw(seed, scene.name), Draw(seed, f"padding {scene.padding}")
    mask = right_mask(*scene.responses)
    weights, layers = _weights(draw, POLICY_SIZES, std=0.5), _layers(draw, *CRITIC_SIZES)
    ids = torch.cat([draw.integers(A, 9, len(mask), N_PROMPT), draw.integers(A, 9, *mask.shape)], dim=1)
    ids[:, 0] = BOS
    ids[:, N_PROMPT:][mask == 0] = draw_padding.integers(A, 9, *mask.shape)[mask == 0]
    with torch.no_grad():
        logprobs = _expected_log_probs(_own(POLICY_SIZES, weights), ids)[:, N_PROMPT - 1 :].float()

    over_real = partial(spread, draw, draw_padding, mask.bool())  # spread over the real tokens

    old_logprobs = logprobs - over_real(*moves(scene.off_policy)) - scene.shift
    signs = torch.tensor(draw.shuffled([(-1.0) ** i for i in range(len(mask))]))
    scores = signs * draw.uniform(*scene.scores, len(mask))
    if scene.outlier:
        scores[0] = scene.outlier
    fields = {
        "ids": ids,
        "n_prompt": N_PROMPT,
        "mask": mask,
        "old_logprobs": old_logprobs,
        "ref_logprobs": old_logprobs - over_real(1.0, -0.3, 0.6, 0.1, 2.0, -0.8, 15.0),
        "scores": scores,
    }
    return weights, layers, fields


def _targets(fields: dict, values: Tensor, chosen: dict) -> tuple[Tensor, Tensor]:
    """Advantages as they come and returns of the real tokens, episode by episode."""
    advantages = []
    log_ratios = fields["old_logprobs"] - fields["ref_logprobs"]
    start = 0
    for row, n in enumerate(fields["mask"].sum(dim=-1).tolist()):
        rewards = -chosen["kl_coef"] * log_ratios[row, :n]
        rewards[-1] += fields["scores"][row]
        given = rewards, values[start : start + n], 0.0, torch.tensor([0.0] * (n - 1) + [1.0])
        advantages.append(_expected_gae(given, chosen["gamma"], chosen["lam"]))
        start += n
    found = torch.cat(advantages)
    return found, found + values


@cache
def _right(
    scene: Scene,
    seed: int,
    sample: bool,
    rates: tuple[float, float],
    momentum: float,
    settings: tuple[tuple[str, float], ...],
) -> tuple[dict[str, float], Weights, Weights]:
    """What `toy_ppo_step` should return, and how it should move policy and critic.

    Args:
        sample: whether the advantages are white by the sample's deviation, and not by the population's.
    """
    (weights, layers, fields), chosen = _inputs(scene, seed), DEFAULTS | dict(settings)
    policy, mask = _own(POLICY_SIZES, weights), fields["mask"].bool()
    own = [{name: value.clone().requires_grad_() for name, value in layer.items()} for layer in layers]
    critic_weights = [layer[name] for layer in own for name in ("weight", "bias")]
    optims = [
        torch.optim.SGD(held, lr=lr, momentum=momentum)
        for held, lr in zip((list(policy.parameters()), critic_weights), rates)
    ]
    with torch.no_grad():
        states = policy.embedding(fields["ids"]).cumsum(dim=1)[:, N_PROMPT - 1 : -1] / fields["ids"].shape[1]
        advantages, returns = _targets(fields, _value(layers, states)[mask], chosen)
    white = (advantages - advantages.mean()) / (advantages.std(unbiased=sample) + 1e-8)
    info = {}
    for _ in range(chosen["n_epochs"]):
        new = _expected_log_probs(policy, fields["ids"])[:, N_PROMPT - 1 :]
        log_ratio = (new - fields["old_logprobs"])[mask]
        ratio, limit = log_ratio.exp(), chosen["clip_range"]
        policy_loss = -torch.minimum(ratio * white, ratio.clamp(1 - limit, 1 + limit) * white).mean()
        value_loss = ((_value(own, states)[mask] - returns) ** 2).mean()
        info = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "approx_kl": (ratio - 1 - log_ratio).mean(),
        }
        for optim, loss in zip(optims, (policy_loss, value_loss)):
            optim.zero_grad()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        for optim in optims:
            optim.step()
    kl = ((fields["old_logprobs"] - fields["ref_logprobs"]) * mask).sum() / len(mask)
    info |= {"mean_score": fields["scores"].mean(), "kl_to_ref": kl}
    moved = {name: weight - weights[name] for name, weight in policy.state_dict().items()}
    critic_moved = {
        f"{name} {at}": (after[name] - before[name]).detach()
        for at, (after, before) in enumerate(zip(own, layers, strict=True))
        for name in ("weight", "bias")
    }
    return {name: float(value.detach()) for name, value in info.items()}, moved, critic_moved


class Step:
    """What came back of a call of `toy_ppo_step`.

    Attributes:
        info: its five numbers.
        moved, critic_moved: how far each weight of policy and critic has moved.
        steps: how many steps each optimiser has made.
        episodes: the episodes after the call.
    """

    def __init__(
        self,
        candidate: Candidate,
        draw: Draw,
        scene: Scene,
        rates: tuple[float, float] = (0.1, 0.01),
        momentum: float = 0.0,
        left_over: float | None = None,
        left_out: bool = False,
        **settings: float,
    ):
        """Make the call.

        Args:
            rates: learning rates of policy and critic.
            left_over: gradient that every weight has before.
            left_out: whether no setting is handed over.
        """
        weights, layers, fields = _inputs(scene, draw.seed)
        settings = PLAIN | settings
        arguments = POLICY_SIZES, weights, CRITIC_SIZES, layers, rates, momentum, left_over
        learner, *models = parts(candidate.call(props.learner, *arguments).value, 5)
        episodes = candidate.call("toy.Episodes", **fields).value
        answer = candidate.call(
            "toy.toy_ppo_step", *models, episodes, after=(4,), **({} if left_out else settings)
        )
        info = entries(answer.value, *INFO)
        self.info = {name: number(info[name]) for name in INFO}
        self.episodes = answer.after[4]
        after, critic_after, self.steps = parts(candidate.call(props.outcome, learner).value, 3)
        self.moved = {name: after[name] - before for name, before in weights.items()}
        self.critic_moved = {
            f"{name} {at}": now[name] - before[name]
            for at, (now, before) in enumerate(zip(critic_after, layers, strict=True))
            for name in ("weight", "bias")
        }
        self._right = lambda sample: _right(
            scene, draw.seed, sample, rates, momentum, tuple(settings.items())
        )

    @property
    def way(self) -> Tensor:
        """How far all weights of the policy have moved, in one row."""
        return in_one_row(self.moved.values())

    @property
    def critic_way(self) -> Tensor:
        return in_one_row(self.critic_moved.values())

    def says(self, *names: str) -> bool:
        """Whether these entries of `info` are right; a grader accepts both deviations."""
        return any(same_info(self.info, self._right(sample)[0], names) for sample in (False, True))

    def moves_policy(self) -> bool:
        """Whether every weight of the policy has moved as it should."""
        return any(same_moves(self.moved, self._right(sample)[1]) for sample in (False, True))

    def moves_critic(self) -> bool:
        return same_moves(self.critic_moved, self._right(False)[2])

    def does_as(self, other: "Step") -> bool:
        """Whether both have moved the weights, in the same way, and say the same."""
        moved = bool(self.way.norm() > 1e-4) and bool(self.critic_way.norm() > 1e-4)
        same = same_moves(self.moved, other.moved) and same_moves(self.critic_moved, other.critic_moved)
        return moved and same and same_info(self.info, other.info, INFO)


@hidden(
    STEP,
    "the mean score",
    points=0.25,
    catches=["KL in mean_score", "a sum", "limited"],
    message="mean_score is the mean of the scores of the episodes, before any KL is charged.",
)
def step_mean_score(candidate: Candidate, draw: Draw):
    scene = Scene("scores", responses=(5, 3, 2, 4), scores=(5.0, 40.0))
    check(Step(candidate, draw, scene, kl_coef=0.3).says("mean_score"))


@hidden(
    STEP,
    "the KL to the reference",
    points=0.25,
    catches=[
        "mean over tokens",
        "sum over the batch",
        "padding",
        "sign",
        "weighted",
        "of the updated policy",
    ],
    message="kl_to_ref is not the KL of a response to the reference, of the policy that sampled, averaged over the "
    "responses.",
)
def step_kl(candidate: Candidate, draw: Draw):
    step = Step(candidate, draw, Scene("kl", RAGGED, off_policy=0.8), kl_coef=0.3)
    check(step.says("kl_to_ref"))


@hidden(
    STEP,
    "what the critic has to learn",
    points=0.5,
    catches=[
        "returns whitened",
        "advantages or rewards as target",
        "no score",
        "halved",
        "no values",
        "states",
    ],
    message="The critic's loss is not the mean squared error to the returns of the episodes.",
)
def step_returns(candidate: Candidate, draw: Draw):
    check(Step(candidate, draw, Scene("returns")).says("value_loss"))
    check(Step(candidate, draw, Scene("far returns", scores=(5.0, 40.0))).says("value_loss"))


@hidden(
    STEP,
    "responses of different lengths",
    points=0.5,
    catches=["dones at the last column", "one long episode", "padding in the targets", "means over padding"],
    message="With responses of different lengths a loss is another one: where is an episode done, and over which tokens "
    "do you average?",
)
def step_lengths(candidate: Candidate, draw: Draw):
    step = Step(candidate, draw, Scene("lengths", RAGGED))
    check(step.says("value_loss"))
    check(step.says("policy_loss"))


@hidden(
    STEP,
    "gamma and lambda",
    points=0.25,
    catches=["not handed on", "swapped", "limited"],
    message="gamma or lambda does not reach the advantages.",
)
def step_discounts(candidate: Candidate, draw: Draw):
    gamma, lam = draw.number(0.5, 0.7), draw.number(0.8, 0.9)
    check(Step(candidate, draw, Scene("discounts"), gamma=gamma, lam=lam).says("value_loss", "policy_loss"))
    check(Step(candidate, draw, Scene("discounts"), gamma=1.0, lam=1.0).says("value_loss", "policy_loss"))


@hidden(
    STEP,
    "the price of the KL",
    points=0.5,
    catches=["kl_coef not handed on", "sign", "no KL", "KL in the loss"],
    message="The KL is not charged as it should be: token by token in the rewards, with kl_coef, and nowhere else.",
)
def step_kl_coef(candidate: Candidate, draw: Draw):
    step = Step(candidate, draw, Scene("price"), kl_coef=draw.number(0.6, 0.9))
    check(step.says("value_loss"))
    check(step.says("policy_loss"), "The KL belongs into the token rewards, and not into the policy loss.")


@hidden(
    STEP,
    "white advantages and the ratio",
    points=0.5,
    catches=[
        "not white",
        "within each episode",
        "ratio to the reference",
        "upside down",
        "limited",
        "approx_kl",
    ],
    message="The policy loss or approx_kl is not that of the whitened advantages and of the ratio of the new policy to the "
    "one that sampled.",
)
def step_advantages(candidate: Candidate, draw: Draw):
    # far off, where estimates of the KL differ
    check(Step(candidate, draw, Scene("moved far", off_policy=1.5, shift=-0.5)).says("approx_kl"))
    check(Step(candidate, draw, Scene("white", off_policy=0.8)).says("policy_loss", "approx_kl"))
    # the distance is that of the ratios before they are clipped
    check(Step(candidate, draw, Scene("moved", off_policy=0.8), clip_range=0.2).says("approx_kl"))
    check(
        Step(candidate, draw, Scene("one far out", (2,) * MANY, outlier=50.0)).says("policy_loss"),
        "You limit scores or advantages: a response that is far better than all others has to weigh as much as it does.",
    )


@hidden(
    STEP,
    "the clip range",
    points=0.5,
    catches=["no clip", "one side only", "maximum", "clipped alone", "fixed at 0.2"],
    message="The ratio is not clipped by clip_range as in exercise 3.4.",
)
def step_clip(candidate: Candidate, draw: Draw):
    for limit in (0.1, 0.4):
        check(Step(candidate, draw, Scene("clipped", off_policy=0.8), clip_range=limit).says("policy_loss"))


@hidden(
    STEP,
    "the policy steps down its loss",
    points=0.5,
    catches=[
        "climbs",
        "no step",
        "another optimiser",
        "critic's loss in the policy's gradient",
        "gradient set back too late",
    ],
    message="The policy does not move as it should when its optimiser steps along the gradient of its loss.",
)
def step_policy(candidate: Candidate, draw: Draw):
    # a shift to smaller ratios keeps the norm of the gradient below its limit
    check(Step(candidate, draw, Scene("policy", shift=-2.0)).moves_policy())


@hidden(
    STEP,
    "the critic steps down its loss",
    points=0.25,
    catches=["no step", "clipped", "halved", "gradient set back too late"],
    message="The critic does not move as it should when its optimiser steps along the gradient of its loss.",
)
def step_critic(candidate: Candidate, draw: Draw):
    check(Step(candidate, draw, Scene("critic", scores=(5.0, 20.0))).moves_critic())


@hidden(
    STEP,
    "the norm of the policy's gradient",
    points=0.25,
    catches=["no clipping", "clipped after the step", "each weight by itself", "by value", "always scaled"],
    message="The norm of the policy's whole gradient has to be at most 1 when its optimiser makes its step, and a smaller "
    "one stays as it is.",
)
def step_norm(candidate: Candidate, draw: Draw):
    lr = 0.01
    large = Step(candidate, draw, Scene("norm", shift=5.0), rates=(lr, 0.0), clip_range=1e9)
    small = Step(candidate, draw, Scene("norm", shift=-5.0), rates=(lr, 0.0), clip_range=1e9)
    agree(large.way.norm() / lr, 1.0, tolerance=1e-2)
    check(large.moves_policy() and 0 < small.way.norm() < 0.2 * lr)


@hidden(
    STEP,
    "several epochs",
    points=0.5,
    catches=[
        "number of epochs",
        "advantages, states or KL anew",
        "gradients add up",
        "info of another epoch",
    ],
    message="After several epochs the weights are somewhere else than PPO takes them. What changes from epoch to epoch in "
    "your code, and how many are there?",
)
def step_epochs(candidate: Candidate, draw: Draw):
    settings = {"clip_range": 0.2, "kl_coef": 0.3, "n_epochs": 4}
    scene = Scene("epochs", off_policy=0.0)
    step = Step(candidate, draw, scene, rates=(0.5, 0.003), momentum=0.8, **settings)
    check(step.moves_critic(), "After several epochs the critic is somewhere else than it should be.")
    check(step.moves_policy())
    check(step.says("policy_loss", "value_loss", "approx_kl"), "Your info is not that of the last epoch.")


@hidden(
    STEP,
    "one step of each optimiser in an epoch",
    points=0.25,
    catches=["early stop at some KL", "one epoch more or less"],
    message="Each optimiser makes one step in each of n_epochs epochs, however far the policy has moved.",
)
def step_steps(candidate: Candidate, draw: Draw):
    n_epochs = draw.whole(2, 5)
    for off_policy in (0.0, 4.0):
        step = Step(
            candidate, draw, Scene("far", off_policy=off_policy), rates=(1e-4, 1e-4), n_epochs=n_epochs
        )
        check(list(step.steps) == [n_epochs, n_epochs])


@hidden(
    STEP,
    "gradients do not add up",
    points=0.25,
    catches=["zero_grad missing", "zero_grad once"],
    message="Gradients add up from step to step, or from epoch to epoch. When are they set back to zero?",
)
def step_left_over(candidate: Candidate, draw: Draw):
    scene, rates = Scene("left over", off_policy=0.0, shift=-1.0), (1e-3, 1e-6)
    clean = Step(candidate, draw, scene, rates)
    other = Step(candidate, draw, scene, rates, left_over=draw.number(0.02, 0.05))
    for one, two in ((clean.way, other.way), (clean.critic_way, other.critic_way)):
        check(bool(one.norm() > 0 and (one - two).norm() < 0.02 * one.norm()))
    both = Step(candidate, draw, scene, rates, n_epochs=2)
    check(twice_as_far(clean.way, both.way) and twice_as_far(clean.critic_way, both.critic_way))


@hidden(
    STEP,
    "padding has no say",
    points=0.25,
    catches=["mask not used"],
    message="What stands in the padding changes your update: a mask is not used.",
)
def step_padding(candidate: Candidate, draw: Draw):
    settings = {"n_epochs": 2, "kl_coef": 0.2, "clip_range": 0.25}
    one, other = (Step(candidate, draw, Scene("padded", RAGGED, padding=i), **settings) for i in (1, 2))
    check(one.does_as(other))


@hidden(
    STEP,
    "the episodes stay as they are",
    points=0.25,
    catches=["writes into the scores", "replaces the old log-probabilities"],
    message="Your update writes into the episodes: whoever looks at them afterwards sees other numbers than were sampled.",
)
def step_episodes(candidate: Candidate, draw: Draw):
    scene = Scene("kept", RAGGED)
    step = Step(candidate, draw, scene, n_epochs=2, kl_coef=0.3)
    check_kept(step.way, step.episodes.fields, _inputs(scene, draw.seed)[2])


@hidden(
    STEP,
    "the defaults",
    points=0.25,
    catches=["a default changed"],
    message="Left out, an argument has another value than it had in the signature that you were given.",
)
def step_defaults(candidate: Candidate, draw: Draw):
    scene = Scene("defaults", off_policy=0.8)
    left_out, handed = (Step(candidate, draw, scene, left_out=out, **DEFAULTS) for out in (True, False))
    check(left_out.does_as(handed))


# --- 7.6 preference_pair --------------------------------------------------------------------------

PAIR = "preference_pair"
ALPHABET = reference.LETTERS


def _text(draw: Draw, low: int, high: int) -> str:
    return "".join(draw.shuffled(ALPHABET + "aeioull")[: draw.whole(low, high)])


def _candidates(draw: Draw, n: int) -> list[str]:
    """Texts of which neither the longest nor the first or last one is the best or the worst, with clear rewards."""
    while True:
        texts = [_text(draw, 1, 17) for _ in range(n)]
        rewards = [_expected_reward(text) for text in texts]
        best, worst = rewards.index(max(rewards)), rewards.index(min(rewards))
        lengths = [len(text) for text in texts]
        gaps = sorted(rewards)
        clear = all(b - a > 0.2 for a, b in zip(gaps, gaps[1:]))
        if (
            clear
            and {best, worst}.isdisjoint({0, n - 1})
            and lengths.index(max(lengths)) not in (best, worst)
        ):
            return texts


def _encode(text: str) -> list[int]:
    return [ALPHABET.index(letter) + A for letter in text]


class Pair:
    """What came back of a call of `preference_pair` with a policy that "samples" what it is told to.

    Attributes:
        chosen, rejected: responses as texts.
        calls: rows, max_len and temperature of each call of `generate`.
    """

    def __init__(
        self, candidate: Candidate, script: dict[str, list[str]], prompts: Sequence[str], *options: int
    ):
        rows = [[BOS, *_encode(prompt)] for prompt in script]
        responses = [[[*_encode(text), EOS] for text in texts] for texts in script.values()]
        policy = candidate.call(props.Scripted, rows, responses, PAD).value
        prompt_ids = torch.tensor([[BOS, *_encode(prompt)] for prompt in prompts])
        answer = candidate.call("toy.preference_pair", policy, prompt_ids, *options)
        sides = []
        for ids in parts(answer.value, 2):
            ids = tensor(ids)
            check(
                ids.dim() == 2 and len(ids) == len(prompts),
                "There is one row of ids for each prompt on each side.",
            )
            n_prompt = prompt_ids.shape[1]
            check(
                torch.equal(ids[:, :n_prompt], prompt_ids),
                "A row begins with its own prompt, in the order of the prompts.",
            )
            sides.append([reference.decode(row) for row in ids[:, n_prompt:].tolist()])
        self.chosen, self.rejected = sides
        self.calls = candidate.call(props.calls_of, policy).value


def _agree_pair(
    pair: Pair, script: dict[str, list[str]], prompts: Sequence[str], n_candidates: int = 4
) -> None:
    for prompt, chosen, rejected in zip(prompts, pair.chosen, pair.rejected, strict=True):
        texts = script[prompt][:n_candidates]
        check((chosen, rejected) == (max(texts, key=_expected_reward), min(texts, key=_expected_reward)))


@hidden(
    PAIR,
    "the best and the worst",
    points=1.0,
    catches=[
        "swapped",
        "both the best",
        "random",
        "second best",
        "first or last",
        "length",
        "log-probability",
    ],
    message="Of the candidates to a prompt you do not return the best and the worst by rule_reward, in this order.",
)
def pair_one(candidate: Candidate, draw: Draw):
    for prompt in draw.shuffled(CONSONANTS)[:3]:
        script = {prompt: _candidates(draw, 4)}
        _agree_pair(Pair(candidate, script, [prompt]), script, [prompt])


@hidden(
    PAIR,
    "each prompt has its own candidates",
    points=1.0,
    catches=[
        "repeat for repeat_interleave",
        "cut along the wrong dimension",
        "best of the batch",
        "one index for all",
    ],
    message="With several prompts their candidates are mixed up: how do the rows that you sample belong to the prompts?",
)
def pair_prompts(candidate: Candidate, draw: Draw):
    for n_prompts in (3, 6):
        prompts = draw.shuffled(ALPHABET)[:n_prompts]
        script = {prompt: _candidates(draw, 4) for prompt in prompts}
        _agree_pair(Pair(candidate, script, prompts), script, prompts)


@hidden(
    PAIR,
    "as many candidates as asked for",
    points=0.5,
    catches=["always four", "one more", "default changed"],
    message="n_candidates says how many responses are sampled for each prompt; left out, it is as in the signature.",
)
def pair_n(candidate: Candidate, draw: Draw):
    prompts = draw.shuffled(ALPHABET)[:2]
    script = {prompt: _candidates(draw, 7) for prompt in prompts}
    for options in ((2,), (3,), (6,), ()):
        pair = Pair(candidate, script, prompts, *options)
        n_candidates = options[0] if options else defaults_of(reference.preference_pair)["n_candidates"]
        check(sum(rows for rows, _, _ in pair.calls) == 2 * n_candidates)
        _agree_pair(pair, script, prompts, n_candidates)


@hidden(
    PAIR,
    "the response alone is scored",
    points=0.5,
    catches=["prompt scored too", "first letter left out", "last letter of the prompt"],
    message="Something else than the response is scored: its prompt, or a part of it.",
    after=["the best and the worst"],
)
def pair_response(candidate: Candidate, draw: Draw):
    found = {}
    while len(found) < 3:  # prompts that would change who wins, scored whole or by their last letter
        prompt, texts = _text(draw, 4, 5), _candidates(draw, 4)
        views = [texts, [prompt + t for t in texts], [prompt[-1] + t for t in texts], [t[1:] for t in texts]]
        ranks = [
            (view.index(max(view, key=_expected_reward)), view.index(min(view, key=_expected_reward)))
            for view in views
        ]
        need = len(found) + 1
        if ranks[need] != ranks[0] and prompt not in found:
            found[prompt] = texts
    _agree_pair(Pair(candidate, found, list(found)), found, list(found))


@hidden(
    PAIR,
    "bad ones and close ones",
    points=0.25,
    catches=["cut off at 0", "sizes compared", "rounded"],
    message="Where all rewards are below 0, or close together, the best or the worst is another one than yours.",
    after=["the best and the worst"],
)
def pair_bad(candidate: Candidate, draw: Draw):
    a, b, *letters = draw.shuffled(CONSONANTS)
    close_ones = ["".join(letters[:n]) for n in (13, 15, 12, 14)]
    script = {a: draw.shuffled([a * 5, a * 4, "", a * 7]), b: close_ones}
    script[a].sort(key=lambda text: text in ("", a * 4))  # the best and the worst of the bad ones come last
    _agree_pair(Pair(candidate, script, [a, b]), script, [a, b])


@hidden(
    PAIR,
    "plain samples of the policy",
    points=0.5,
    catches=["temperature", "max_len not handed on", "default changed"],
    message="The candidates are not plain samples of at most max_len tokens: what do you tell `generate`?",
    after=["the best and the worst"],
)
def pair_plain(candidate: Candidate, draw: Draw):
    prompts = draw.shuffled(ALPHABET)[:2]
    script, max_len = {prompt: _candidates(draw, 4) for prompt in prompts}, draw.whole(21, 30)
    for options, limit in (((4, max_len), max_len), ((), defaults_of(reference.preference_pair)["max_len"])):
        pair = Pair(candidate, script, prompts, *options)
        check({(told, temperature) for _, told, temperature in pair.calls} == {(limit, 1.0)})


@hidden(
    PAIR,
    "with a language model",
    points=0.25,
    catches=["one sample for all candidates", "carries a gradient", "prompts or policy changed"],
    message="With a language model equal prompts get equal pairs, or the prompts or the policy are changed.",
    after=["the best and the worst"],
)
def pair_model(candidate: Candidate, draw: Draw):
    probabilities = torch.cat([torch.tensor([1e-9, 1e-9, 0.1, 1e-9]), torch.full((26,), 0.9 / 26)])
    sizes, weights = _constant(probabilities)
    model = _model(candidate, sizes, weights, training=True)
    prompt_ids = torch.tensor([[BOS, A + draw.whole(0, 26)]] * 12)
    answer = candidate.call("toy.preference_pair", model, prompt_ids, after=(1,))
    texts = []
    for ids in parts(answer.value, 2):
        check(not tensor(ids).requires_grad and torch.equal(ids[:, :2], prompt_ids))
        texts.append([reference.decode(row) for row in ids[:, 2:].tolist()])
    rewards = [[_expected_reward(text) for text in side] for side in texts]
    check(all(best >= worst - 1e-6 for best, worst in zip(*rewards)))
    check(len(set(texts[0])) > 6 and texts[0] != texts[1])
    check(torch.equal(tensor(answer.after[1]), prompt_ids) and candidate.read(model, "training") is True)
    after = candidate.call(shared.weights, model).value
    check(all(torch.equal(after[name], weight) for name, weight in weights.items()))
