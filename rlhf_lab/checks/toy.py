"""Visible checks of the exercises in `toy.py`: a language model that writes letters, its reward, PPO and pairs."""

import copy

import torch
from torch import Tensor, nn

from ..taught_code import TaughtCode
from .case import WrongReturn, case, entries, in_words, numbers, one_number, parts, tensor
from .training import leave_over, noted

PAD, BOS, EOS = 0, 1, 2
VOCAB, EMBED, HIDDEN = 9, 4, 5  # four special tokens, and the letters a to e

# --- 7.1 ToyLanguageModel -------------------------------------------------------------------------


def _new_model(code: TaughtCode, *sizes: int) -> nn.Module:
    model = code.toy.ToyLanguageModel(*sizes)
    if not isinstance(model, nn.Module):
        raise WrongReturn(f"ToyLanguageModel(...) is {in_words(model)}, expected a module of torch")
    return model


def _shapes(model: nn.Module) -> dict:
    return {name: list(weight.shape) for name, weight in model.named_parameters()}


def _filled(model: nn.Module, std: float = 0.8, seed: int = 300) -> nn.Module:
    """The model with weights that are the same each time."""
    with torch.no_grad():
        for at, (_, weight) in enumerate(sorted(model.named_parameters())):
            weight.copy_(numbers(seed + at, *weight.shape, std=std))
    return model


def _model(code: TaughtCode, sharp: float = 2.0) -> nn.Module:
    """A small model; the larger `sharp`, the surer it is of each token."""
    model = _filled(_new_model(code, VOCAB, EMBED, HIDDEN, 2))
    with torch.no_grad():
        model.lm_head.weight.mul_(sharp)
        model.lm_head.bias.mul_(sharp)
    return model


@torch.no_grad()
def _remembering(code: TaughtCode) -> nn.Module:
    """A model that is all but sure of each letter, which depends on all tokens before it; no other tokens come."""
    model = _filled(_new_model(code, VOCAB, EMBED, HIDDEN, 2), std=2.5, seed=2050)
    model.lm_head.weight.mul_(4000)
    model.lm_head.weight[:4] = 0.0
    model.lm_head.bias.zero_()
    model.lm_head.bias[:4] = -1e5
    return model


@torch.no_grad()
def _chain(code: TaughtCode, follows: dict[int, int]) -> nn.Module:
    """A model that is sure of what follows a token, whatever stood before: itself, unless `follows` says otherwise."""
    model = _new_model(code, VOCAB, VOCAB, VOCAB, 1)
    for weight in model.parameters():
        weight.zero_()
    model.embedding.weight.copy_(10 * torch.eye(VOCAB))
    model.lstm.weight_ih_l0[2 * VOCAB : 3 * VOCAB] = torch.eye(VOCAB)
    gates = torch.tensor([20.0, -20, 0, 20])  # in: open, forget: closed, what is new, out: open
    model.lstm.bias_ih_l0.copy_(gates.repeat_interleave(VOCAB))
    for token in range(VOCAB):
        model.lm_head.weight[follows.get(token, token), token] = 100.0
    return model


@torch.no_grad()
def _constant(code: TaughtCode, probabilities: list[float]) -> nn.Module:
    """A model that gives each token this probability, whatever stands before it."""
    model = _new_model(code, VOCAB, EMBED, HIDDEN, 1)
    for weight in model.parameters():
        weight.zero_()
    model.lm_head.bias.copy_(torch.tensor(probabilities).log())
    return model


def _log_probs(model: nn.Module, ids: Tensor) -> Tensor:
    return tensor("get_log_probs", model.get_log_probs(ids), [len(ids), ids.shape[1] - 1])


def _generated(model: nn.Module, prompt_ids: Tensor, max_len: int, *options: float) -> tuple[Tensor, Tensor]:
    """Response ids and log-probabilities `[batch, max_len]`; of a narrower answer, the rest is as it has to be."""
    ids, logprobs = parts(
        "generate", model.generate(prompt_ids, max_len, *options), "ids", "log-probabilities"
    )
    ids, logprobs = tensor("generate", ids), tensor("generate", logprobs)
    rows, n_prompt = prompt_ids.shape
    width = logprobs.shape[-1]
    if ids.dim() != 2 or list(ids.shape) != [rows, n_prompt + width] or logprobs.shape != (rows, width):
        raise WrongReturn(
            f"generate returned ids {list(ids.shape)} and log-probabilities {list(logprobs.shape)}, expected "
            f"[{rows}, {n_prompt} + {max_len}] and [{rows}, {max_len}]"
        )
    missing = max_len - width
    if missing < 0:
        raise WrongReturn(f"generate returned {width} response tokens, max_len is {max_len}")
    fill = nn.functional.pad
    return fill(ids[:, n_prompt:], (0, missing), value=PAD), fill(logprobs, (0, missing))


@case(
    "ToyLanguageModel",
    "embedding, LSTM, head",
    "9 tokens, 4 wide, 2 layers of 5",
    mistake="The weights are not those of the three layers in the docstring: which size, layer or bias is another one?",
)
def lm_parts(code: TaughtCode):
    return {"weights": _shapes(_new_model(code, VOCAB, EMBED, HIDDEN, 2))}


@case(
    "ToyLanguageModel",
    "every size is handed on",
    "7 tokens, 3 wide, 3 layers of 6",
    mistake="A size that is handed in does not reach its layer: there is a number in your __init__ where an argument "
    "should be.",
)
def lm_sizes(code: TaughtCode):
    return {"weights": _shapes(_new_model(code, 7, 3, 6, 3))}


@case(
    "ToyLanguageModel",
    "the defaults",
    "ToyLanguageModel()",
    mistake="Left out, a size has another value than it had in the signature that you were given.",
)
def lm_defaults(code: TaughtCode):
    return {"weights": _shapes(_new_model(code))}


@case(
    "ToyLanguageModel",
    "get_log_probs: one for each token but the first",
    "ids [3, 5]",
    mistake="There has to be one log-probability for each token but the first, in each row.",
)
def lm_log_probs_shape(code: TaughtCode):
    ids = torch.tensor([[1, 4, 5, 6, 2]] * 3)
    return {"the shape": list(tensor("get_log_probs", _model(code).get_log_probs(ids)).shape)}


@case(
    "ToyLanguageModel",
    "get_log_probs: a batch of one, two tokens",
    "ids [1, 2]",
    mistake="For a single row of two tokens a dimension is lost.",
)
def lm_log_probs_one(code: TaughtCode):
    log_probs = _model(code).get_log_probs(torch.tensor([[1, 4]]))
    return {"the shape": list(tensor("get_log_probs", log_probs).shape)}


@case(
    "ToyLanguageModel",
    "get_log_probs: probabilities of all tokens add up to 1",
    "each of 9 tokens behind BOS",
    mistake="The probabilities of all possible next tokens do not add up to 1: these are no log-probabilities over the "
    "vocabulary.",
)
def lm_normalised(code: TaughtCode):
    ids = torch.tensor([[BOS, token] for token in range(VOCAB)])
    return {"the sum of the probabilities": _log_probs(_model(code), ids).exp().sum()}


@case(
    "ToyLanguageModel",
    "get_log_probs: which logits are about which token",
    "a model that is sure that b follows a and c follows b",
    mistake="The logits at a position are about the token that comes after it. Yours are compared with another one.",
)
def lm_shift(code: TaughtCode):
    model = _chain(code, {BOS: 4, 4: 5, 5: 6, 6: EOS})
    log_probs = _log_probs(model, torch.tensor([[BOS, 4, 5, 6, EOS], [BOS, 4, 5, 4, 5]]))
    return {"a token is likely": (log_probs > -1).tolist()}


@case(
    "ToyLanguageModel",
    "get_log_probs: the number of each token",
    "two rows of 5 tokens",
    mistake="The log-probability of a token is not that which the logits give it.",
)
def lm_log_probs(code: TaughtCode):
    return {"log-probability": _log_probs(_model(code), torch.tensor([[1, 4, 5, 5, 2], [1, 8, 4, 7, 3]]))}


@case(
    "ToyLanguageModel",
    "get_log_probs: PAD and EOS are tokens",
    "rows with PAD and EOS inside",
    mistake="Some tokens get another number than the logits give them: leaving tokens out is the business of the mask.",
)
def lm_special_tokens(code: TaughtCode):
    return {"log-probability": _log_probs(_model(code), torch.tensor([[1, 4, 2, 0, 0], [1, 0, 6, 1, 3]]))}


@case(
    "ToyLanguageModel",
    "get_log_probs: rows do not see each other",
    "each row alone, and both together",
    mistake="A row changes with the other rows of its batch: which dimension does your LSTM take for time?",
)
def lm_rows(code: TaughtCode):
    model, ids = _model(code), torch.tensor([[1, 4, 5, 5, 2], [1, 8, 4, 7, 3]])
    alone = torch.cat([_log_probs(model, row.unsqueeze(0)) for row in ids])
    return {"a row changes in a batch": not torch.allclose(alone, _log_probs(model, ids), atol=1e-4)}


@case(
    "ToyLanguageModel",
    "get_log_probs: nothing random",
    "a model in training mode, two calls",
    mistake="Two calls give two answers: dropout is on.",
)
def lm_no_dropout(code: TaughtCode):
    model, ids = _model(code).train(), torch.tensor([[1, 4, 5, 5, 2, 8, 8, 4]] * 6)
    return {
        "the second answer is another one": not torch.equal(_log_probs(model, ids), _log_probs(model, ids))
    }


@case(
    "ToyLanguageModel",
    "get_log_probs: logits far out",
    "logits around 1000",
    mistake="A token that is next to impossible gets minus infinity or NaN: the probability was rounded to 0 before its "
    "logarithm was taken.",
)
def lm_far_out(code: TaughtCode):
    log_probs = _log_probs(_model(code, sharp=1000.0), torch.tensor([[1, 4, 5, 5, 2], [1, 8, 4, 7, 3]]))
    return {"all are finite": log_probs.isfinite().all().item(), "a hundredth": log_probs / 100}


@case(
    "ToyLanguageModel",
    "get_log_probs: a gradient for all weights",
    "the gradient of the sum",
    mistake="The gradient of the log-probabilities does not reach all weights: nothing could be trained with them.",
)
def lm_gradient(code: TaughtCode):
    model, ids = _model(code), torch.tensor([[1, 4, 0, 5, 2], [1, 8, 2, 7, 3]])
    log_probs = _log_probs(model, ids)
    if log_probs.requires_grad:
        log_probs.sum().backward()
    silent = [
        name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()
    ]
    of_tokens = model.embedding.weight.grad
    read = sorted(set(ids[:, :-1].flatten().tolist()))
    return {
        "weights without a gradient": silent,
        "tokens that were read whose vector gets none": []
        if of_tokens is None
        else [token for token in read if not of_tokens[token].any()],
    }


@case(
    "ToyLanguageModel",
    "generate: prompt and response",
    "3 prompts of 2 tokens, max_len 5, no EOS",
    mistake="generate returns each prompt with max_len tokens behind it, and one log-probability for each of these.",
)
def lm_generate_shape(code: TaughtCode):
    model, prompt_ids = _chain(code, {}), torch.tensor([[1, 4], [1, 5], [1, 6]])
    ids, logprobs = parts("generate", model.generate(prompt_ids, 5), "ids", "log-probabilities")
    ids, logprobs = tensor("generate", ids), tensor("generate", logprobs)
    return {
        "the shape of the ids": list(ids.shape),
        "the shape of the log-probabilities": list(logprobs.shape),
        "the first two columns": ids[:, :2],
    }


@case(
    "ToyLanguageModel",
    "generate: one prompt, one token",
    "ids [1, 2], max_len 1",
    mistake="For one prompt and one token a dimension is lost.",
)
def lm_generate_one(code: TaughtCode):
    ids, logprobs = _generated(_chain(code, {4: 5}), torch.tensor([[1, 4]]), 1)
    return {"the response": ids, "log-probability": logprobs}


@case(
    "ToyLanguageModel",
    "generate: each token follows the one before",
    "a model that is sure that b follows a, c follows b, d follows c",
    mistake="The tokens that you draw do not follow each other as the model says: which token is read before the next one "
    "is drawn?",
)
def lm_generate_chain(code: TaughtCode):
    model = _chain(code, {4: 5, 5: 6, 6: 7, 7: 8, 8: 4})
    return {"the response": _generated(model, torch.tensor([[1, 4], [1, 6]]), 5)[0]}


@case(
    "ToyLanguageModel",
    "generate: what was read before counts",
    "prompts of one token, a model that remembers and is all but sure of each token",
    mistake="The model forgets what it has read: the state that the LSTM hands back has to be handed in again.",
)
def lm_generate_state(code: TaughtCode):
    model = _remembering(code)
    return {"the response": _generated(model, torch.tensor([[4], [5], [8]]), 8)[0]}


@case(
    "ToyLanguageModel",
    "generate: the whole prompt is read",
    "prompts of 4 tokens that end in the same one",
    mistake="The response does not depend on the whole prompt: is its last token all that is read?",
)
def lm_generate_prompt(code: TaughtCode):
    model = _remembering(code)
    return {"the response": _generated(model, torch.tensor([[1, 4, 7, 5], [1, 8, 8, 5], [1, 5, 4, 5]]), 6)[0]}


@case(
    "ToyLanguageModel",
    "generate: a row ends with its EOS",
    "rows that end after 1, 3 and more than 5 tokens",
    mistake="Behind the EOS of a row stands something else than PAD, or a row ends when another one does.",
)
def lm_generate_end(code: TaughtCode):
    model = _chain(code, {4: 5, 5: EOS, EOS: 6, 6: 7, 7: 4, 8: 8})
    return {"the response": _generated(model, torch.tensor([[1, 5], [1, 7], [1, 8]]), 5)[0]}


@case(
    "ToyLanguageModel",
    "generate: an EOS in the prompt ends nothing",
    "prompts EOS a, a EOS",
    mistake="An EOS in the prompt ends your response before it has begun. It is the response's own EOS that ends it.",
)
def lm_generate_eos_in_prompt(code: TaughtCode):
    model = _chain(code, {4: 5, 5: 6, EOS: 7, 7: 8})
    return {"the response": _generated(model, torch.tensor([[EOS, 4], [4, EOS]]), 3)[0]}


@case(
    "ToyLanguageModel",
    "generate: a PAD that is drawn is a token",
    "a model that is sure that PAD follows a, and b follows PAD",
    mistake="A PAD that the model draws ends your response, or cannot be drawn. Only EOS ends a response.",
)
def lm_generate_pad(code: TaughtCode):
    model = _chain(code, {4: PAD, PAD: 5, 5: EOS, EOS: 4})
    return {"the response": _generated(model, torch.tensor([[1, 4]]), 5)[0]}


def _real(response_ids: Tensor) -> Tensor:
    """Which tokens of a response are real: up to the first EOS."""
    is_eos = (response_ids == EOS).long()
    return (is_eos.cumsum(1) - is_eos) == 0


@torch.no_grad()
def _scored(model: nn.Module, prompt_ids: Tensor, response_ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probability of each response token, from the model's own logits."""
    logits, _ = model(torch.cat([prompt_ids, response_ids], dim=1))
    before = (logits / temperature).log_softmax(-1)[:, prompt_ids.shape[1] - 1 : -1]
    return before.gather(-1, response_ids.unsqueeze(-1)).squeeze(-1)


def _agree(model: nn.Module, temperature: float) -> dict:
    """Whether the log-probabilities of sampled tokens are those of the model, in four places."""
    prompt_ids = torch.tensor([[1, 4], [1, 7]] * 40)
    ids, logprobs = _generated(model, prompt_ids, 8, temperature)
    real, error = _real(ids), (logprobs - _scored(model, prompt_ids, ids, temperature)).abs() > 1e-3
    ends = real & (ids == EOS)
    return {
        "wrong on letters": (error & real & ~ends & (ids != PAD)).any().item(),
        "wrong on an EOS": (error & ends).any().item(),
        "wrong on a PAD that was drawn": (error & real & (ids == PAD)).any().item(),
        "not 0 behind the end": logprobs[~real].any().item(),
    }


@case(
    "ToyLanguageModel",
    "generate: the log-probability of each token",
    "80 responses, beside what the logits say of them",
    mistake="The log-probabilities that come with the samples are not those of the distribution that was sampled, or not "
    "0 behind the end.",
)
def lm_generate_log_probs(code: TaughtCode):
    return _agree(_model(code, sharp=1.0), 1.0)


@case(
    "ToyLanguageModel",
    "generate: log-probabilities with a temperature",
    "temperature 0.5 and 3",
    mistake="With a temperature, the log-probabilities are not those of the distribution that the token was drawn from. "
    "Are the logits divided by it, before the softmax?",
)
def lm_generate_log_probs_temperature(code: TaughtCode):
    model = _model(code, sharp=1.0)
    return {f"temperature {t}": _agree(model, t) for t in (0.5, 3.0)}


def _shares(code: TaughtCode, temperature: float) -> dict:
    """How often tokens come, beside how often they should; 2400 draws of a model without a memory."""
    probabilities = torch.tensor([0.02, 0.02, 0.0, 0.02, 0.5, 0.3, 0.1, 0.03, 0.01]).clamp(min=1e-9)
    ids, _ = _generated(_constant(code, probabilities.tolist()), torch.tensor([[1, 4]] * 400), 6, temperature)
    expected = (probabilities.log() / temperature).softmax(0)
    found = torch.stack([(ids == token).float().mean() for token in range(VOCAB)])
    margin = 6 * (expected * (1 - expected) / ids.numel()).sqrt() + 1e-3
    off = ((found - expected) / margin).tolist()
    return {
        "abcde"[token - 4]: "too rare"
        if off[token] < -1
        else "too often"
        if off[token] > 1
        else "as it should"
        for token in range(4, VOCAB)
    }


@case(
    "ToyLanguageModel",
    "generate: samples",
    "2400 draws, how often each letter comes",
    mistake="The letters do not come as often as the model wants: is it a sample, and one of the whole distribution?",
)
def lm_generate_samples(code: TaughtCode):
    return _shares(code, 1.0)


@case(
    "ToyLanguageModel",
    "generate: samples with a temperature",
    "temperature 0.5 and 3",
    mistake="A low temperature has to sharpen the distribution, and a high one to flatten it.",
)
def lm_generate_temperature(code: TaughtCode):
    return {f"temperature {t}": _shares(code, t) for t in (0.5, 3.0)}


@case(
    "ToyLanguageModel",
    "generate: each row draws for itself, and each call anew",
    "20 equal prompts, twice",
    mistake="Equal prompts get equal responses, or a second call gives the same as the first: what do you draw once, or "
    "with the same seed?",
)
def lm_generate_rows(code: TaughtCode):
    model, prompt_ids = _constant(code, [1e-9] * 4 + [0.2] * 5), torch.tensor([[1, 4]] * 20)
    (one, _), (other, _) = (_generated(model, prompt_ids, 6) for _ in range(2))
    return {
        "all rows are equal": bool((one == one[0]).all()),
        "both calls are equal": torch.equal(one, other),
    }


@case(
    "ToyLanguageModel",
    "generate: prompt and model stay as they were",
    "before and after",
    mistake="Your generate changes the prompt that it is handed, or the model.",
)
def lm_generate_arguments(code: TaughtCode):
    model, prompt_ids = _model(code).train(), torch.tensor([[1, 4], [1, 5]])
    weights = copy.deepcopy(model.state_dict())
    _generated(model, prompt_ids, 6)
    return {
        "the prompt afterwards": prompt_ids,
        "the weights are the same": all(
            torch.equal(w, weights[name]) for name, w in model.state_dict().items()
        ),
        "in training mode": model.training,
    }


# --- 7.2 rule_reward ------------------------------------------------------------------------------


def _reward(code: TaughtCode, text: str) -> float:
    reward = code.toy.rule_reward(text)
    if isinstance(reward, bool) or not isinstance(reward, (int, float)):
        raise WrongReturn(f"rule_reward returned {in_words(reward)}, expected a float")
    return float(reward)


def _more(code: TaughtCode, *pairs: tuple[str, str]) -> dict:
    """How much more the first text of each pair is worth than the second."""
    return {
        f"{one} is worth more than {other} by": _reward(code, one) - _reward(code, other)
        for one, other in pairs
    }


@case("rule_reward", "one number", "the reward of 'button'")
def reward_kind(code: TaughtCode):
    return {"a float came back": isinstance(_reward(code, "button"), float)}


@case(
    "rule_reward",
    "no letter, one letter",
    "'' and 'b'",
    mistake="A text without letters, or without neighbours, is a text too: what do you divide by?",
)
def reward_short(code: TaughtCode):
    return {repr(text): _reward(code, text) for text in ("", "b")}


@case(
    "rule_reward",
    "length",
    "different consonants only: 5, 10, 15 and 20 of them",
    mistake="The length is not paid as it should be: where is the best one, and how fast does it fall to both sides?",
)
def reward_length(code: TaughtCode):
    letters = "bcdfghjklmnpqrstvwxz"
    return _more(code, *((letters[:15], letters[:n]) for n in (5, 10, 20)))


@case(
    "rule_reward",
    "too short",
    "1, 2, 3 and 4 different consonants",
    mistake="A text of fewer than three letters loses one for each that is missing; longer ones lose nothing.",
)
def reward_too_short(code: TaughtCode):
    return _more(code, ("bcd", "b"), ("bcd", "bc"), ("bcdf", "bcd"))


@case(
    "rule_reward",
    "diversity",
    "8 consonants, of which 8, 4 and 2 are different",
    mistake="Diversity is not paid as it should be: it is the share of different letters among all of them.",
)
def reward_diversity(code: TaughtCode):
    return _more(code, ("bcdfghjk", "bcdfbcdf"), ("bcdfghjk", "bcbcbcbc"))


@case(
    "rule_reward",
    "rhythm",
    "the same letters in another order",
    mistake="Rhythm is not paid as it should be: it is the share of neighbours of which one is a vowel and one is not.",
)
def reward_rhythm(code: TaughtCode):
    return _more(code, ("bacedifo", "bcdfaeio"), ("bacedifo", "bacdifeo"), ("acedifob", "aeiobcdf"))


@case(
    "rule_reward",
    "which letters are vowels",
    "a, e, i, o, u and y between two consonants",
    mistake="One of the letters is a vowel for you and not for the rule, or the other way round.",
)
def reward_vowels(code: TaughtCode):
    return _more(code, *((f"b{letter}d", "bcd") for letter in "aeiouy"))


@case(
    "rule_reward",
    "repetition",
    "the same consonants in another order: 2, 1 and 4 equal neighbours",
    mistake="A letter that repeats the one before it costs 0.5. What do you count?",
)
def reward_repetition(code: TaughtCode):
    return _more(code, ("bcbdcdb", "bbccdbd"), ("bcbd", "bbcd"), ("bcdbcdbf", "bbbccddf"))


@case(
    "rule_reward",
    "repetition costs 2 at most",
    "4, 6 and 9 equal neighbours",
    mistake="However many letters repeat the one before them, it costs no more than the limit.",
)
def reward_repetition_limit(code: TaughtCode):
    return _more(code, ("bcdbcdbd", "bbccddbb"), ("bcdbcdbcd", "bbbcccddd"), ("bcdbcdbcdbcd", "bbbbccccdddd"))


@case("rule_reward", "all together", "kitten, balloon, zoo, a text of 24 letters and one letter six times")
def reward_words(code: TaughtCode):
    texts = ("kitten", "balloon", "zoo", "unicornvaluesalibinamoke", "aaaaaa")
    return {text: _reward(code, text) for text in texts}


# --- 7.3 ValueNetwork -----------------------------------------------------------------------------


def _new_critic(code: TaughtCode, *sizes: int) -> nn.Module:
    critic = code.toy.ValueNetwork(*sizes)
    if not isinstance(critic, nn.Module):
        raise WrongReturn(f"ValueNetwork(...) is {in_words(critic)}, expected a module of torch")
    return critic


def _layers(critic: nn.Module) -> list[nn.Linear]:
    return [layer for layer in critic.modules() if isinstance(layer, nn.Linear)]


def _critic(code: TaughtCode) -> nn.Module:
    """A small critic whose weights are the same each time, whatever its layers are called."""
    critic = _new_critic(code, EMBED, 6)
    with torch.no_grad():
        for seed, layer in enumerate(_layers(critic)):
            layer.weight.copy_(numbers(400 + seed, *layer.weight.shape))
            if layer.bias is not None:
                layer.bias.copy_(numbers(450 + seed, *layer.bias.shape))
    return critic


def _layer_shapes(critic: nn.Module) -> dict:
    return {
        "linear layers, in and out": [[layer.in_features, layer.out_features] for layer in _layers(critic)],
        "all have a bias": all(layer.bias is not None for layer in _layers(critic)),
        "numbers in all weights": sum(weight.numel() for weight in critic.parameters()),
    }


@case(
    "ValueNetwork",
    "three layers",
    "4 wide, hidden 6",
    mistake="The critic is not made of three linear layers with bias of these sizes: which of them is another one?",
)
def critic_layers(code: TaughtCode):
    return _layer_shapes(_new_critic(code, EMBED, 6))


@case(
    "ValueNetwork",
    "the defaults",
    "ValueNetwork()",
    mistake="Left out, a size has another value than it had in the signature that you were given.",
)
def critic_defaults(code: TaughtCode):
    return _layer_shapes(_new_critic(code))


@case(
    "ValueNetwork",
    "one number for each state",
    "states [2, 3, 4], [1, 1, 4], [1, 4] and [4]",
    mistake="The shape of the values is not that of the states without their last dimension. Which dimension do you take "
    "away?",
)
def critic_shape(code: TaughtCode):
    critic = _critic(code)
    return {
        f"the shape for states {list(shape)}": list(tensor("ValueNetwork", critic(torch.ones(shape))).shape)
        for shape in ((2, 3, EMBED), (1, 1, EMBED), (1, EMBED), (EMBED,))
    }


@case(
    "ValueNetwork",
    "any value",
    "states far out, to both sides",
    mistake="Some values cannot come out: something limits what the last layer says.",
)
def critic_range(code: TaughtCode):
    critic = _critic(code)
    values = tensor("ValueNetwork", critic(1000 * numbers(40, 20, EMBED)))
    return {
        "a value is below -100": bool((values < -100).any()),
        "a value is above 100": bool((values > 100).any()),
    }


@case(
    "ValueNetwork",
    "the value of a state",
    "four states",
    mistake="The value is not that of three linear layers with a ReLU after the first and the second.",
)
def critic_values(code: TaughtCode):
    return {"value": tensor("ValueNetwork", _critic(code)(numbers(41, 4, EMBED)))}


@case(
    "ValueNetwork",
    "nothing random, no say of other states",
    "training mode; one state alone and among others",
    mistake="The value of a state changes from call to call, or with the states beside it.",
)
def critic_apart(code: TaughtCode):
    critic, states = _critic(code).train(), numbers(41, 4, EMBED)
    together = tensor("ValueNetwork", critic(states), [4])
    return {
        "another value in a second call": not torch.equal(together, critic(states)),
        "another value alone": not torch.allclose(together[:1], critic(states[:1]), atol=1e-4),
    }


@case(
    "ValueNetwork",
    "a gradient for all weights",
    "the gradient of the sum of values",
    mistake="The gradient does not reach all weights of the critic.",
)
def critic_gradient(code: TaughtCode):
    critic = _critic(code)
    values = tensor("ValueNetwork", critic(numbers(41, 20, EMBED)))
    if values.requires_grad:
        values.sum().backward()
    reached = [weight.grad is not None and bool(weight.grad.any()) for weight in critic.parameters()]
    return {"all weights have a gradient": all(reached)}


# --- 7.4 gae_with_dones ---------------------------------------------------------------------------

REWARDS, VALUES = [0.5, -1.0, 2.0, 0.25, 1.5, -0.75], [0.4, 1.2, -0.8, 0.9, 0.3, -1.1]


def _gae(
    code: TaughtCode, dones: list[int], next_value: float = 0.0, values=VALUES, rewards=REWARDS, **settings
):
    n = len(dones)
    given = (torch.tensor(rewards[:n]), torch.tensor(values[:n]), next_value, torch.tensor(dones).float())
    settings = {"gamma": 0.9, "lam": 0.7} | settings
    advantages = code.toy.gae_with_dones(*given, **settings)
    return {"advantages": tensor("gae_with_dones", advantages, [n])}


@case("gae_with_dones", "one number for each step", "6 steps, the last one done")
def gae_shape(code: TaughtCode):
    n = len(REWARDS)
    zeros = torch.zeros(n)
    return {
        "the shape": list(tensor("gae_with_dones", code.toy.gae_with_dones(zeros, zeros, 0.0, zeros)).shape)
    }


@case(
    "gae_with_dones",
    "a single step",
    "reward 0.5, value 0.4, done",
    mistake="The advantage of a single last step is what came beyond what was expected. Which terms do you have?",
)
def gae_one_step(code: TaughtCode):
    return _gae(code, [1])


@case(
    "gae_with_dones",
    "lambda 0",
    "6 steps, the last one done: the TD errors",
    mistake="With lambda 0 the advantages are the TD errors. A term of yours is missing, has another sign, or belongs to "
    "another step.",
)
def gae_td_errors(code: TaughtCode):
    return _gae(code, [0, 0, 0, 0, 0, 1], lam=0.0)


@case(
    "gae_with_dones",
    "one episode",
    "6 steps, the last one done; gamma 0.9, lambda 0.7",
    mistake="In one episode the TD errors do not add up as they should: from which end do you go, and what discounts each "
    "step?",
)
def gae_one_episode(code: TaughtCode):
    return _gae(code, [0, 0, 0, 0, 0, 1])


@case(
    "gae_with_dones",
    "an episode that goes on",
    "no step is done, the next value is 2",
    mistake="When the last step is not done, what comes after it is worth next_value. Does it count, once and discounted?",
)
def gae_goes_on(code: TaughtCode):
    return _gae(code, [0, 0, 0, 0], next_value=2.0)


@case(
    "gae_with_dones",
    "next_value behind an end",
    "the last step is done, the next value is 50",
    mistake="When the last step is done nothing comes after it: next_value must not count.",
)
def gae_next_value_done(code: TaughtCode):
    return _gae(code, [0, 0, 0, 1], next_value=50.0)


@case(
    "gae_with_dones",
    "two episodes: values",
    "an end at step 2, the values of the second episode are 100; lambda 0",
    mistake="The value of a step of the next episode enters a TD error of the one before: an episode is worth nothing "
    "after its end.",
)
def gae_value_leak(code: TaughtCode):
    values = [*VALUES[:3], 100.0, 100.0, 100.0]
    return {"first episode": _gae(code, [0, 0, 1, 0, 0, 1], values=values, lam=0.0)["advantages"][:3]}


@case(
    "gae_with_dones",
    "two episodes: advantages",
    "an end at step 2, the rewards of the second episode are 100",
    mistake="The advantages of the next episode run on into the one before: what stops the sum at an end?",
)
def gae_advantage_leak(code: TaughtCode):
    rewards = [*REWARDS[:3], 100.0, 100.0, 100.0]
    return {"first episode": _gae(code, [0, 0, 1, 0, 0, 1], rewards=rewards)["advantages"][:3]}


@case(
    "gae_with_dones",
    "two episodes: the last step of the first",
    "an end at step 2: the reward of that step",
    mistake="A step that is done has a reward of its own, and what the critic said before it. Does `dones` switch off more "
    "than what comes after?",
)
def gae_last_step(code: TaughtCode):
    return {"step 2": _gae(code, [0, 0, 1, 0, 0, 1])["advantages"][2:3]}


@case(
    "gae_with_dones",
    "several episodes, the last one goes on",
    "ends at steps 0 and 3, the next value is 2",
    mistake="With several episodes in a row some advantage is wrong: an episode may be one step long, and the last one may "
    "go on.",
)
def gae_several(code: TaughtCode):
    return _gae(code, [1, 0, 0, 1, 0, 0], next_value=2.0)


@case(
    "gae_with_dones",
    "gamma and lambda",
    "gamma 0.5, lambda 0.9",
    mistake="gamma and lambda are not where they belong: one of them is in the TD error, both are in the sum.",
)
def gae_gamma_lambda(code: TaughtCode):
    return _gae(code, [0, 0, 1, 0, 0], next_value=2.0, gamma=0.5, lam=0.9)


@case(
    "gae_with_dones",
    "the defaults",
    "gamma and lam left out",
    mistake="Left out, an argument has another value than it had in the signature that you were given.",
)
def gae_defaults(code: TaughtCode):
    given = (torch.tensor(REWARDS), torch.tensor(VALUES), 2.0, torch.tensor([0.0, 0, 1, 0, 0, 0]))
    return {"advantages": tensor("gae_with_dones", code.toy.gae_with_dones(*given), [6])}


@case(
    "gae_with_dones",
    "no gradient, arguments as they were",
    "values that carry a gradient",
    mistake="The advantages carry a gradient, or an argument has changed: they are fixed numbers for the update.",
)
def gae_arguments(code: TaughtCode):
    rewards, values = torch.tensor(REWARDS), torch.tensor(VALUES, requires_grad=True)
    dones = torch.tensor([0.0, 0, 1, 0, 0, 0])
    before = [x.detach().clone() for x in (rewards, values, dones)]
    advantages = tensor("gae_with_dones", code.toy.gae_with_dones(rewards, values, 2.0, dones), [6])
    return {
        "a gradient": advantages.requires_grad,
        "arguments that changed": [
            name
            for name, old, new in zip(("rewards", "values", "dones"), before, (rewards, values, dones))
            if not torch.equal(old, new)
        ],
    }


# --- 7.5 toy_ppo_step -----------------------------------------------------------------------------

INFO = ("policy_loss", "value_loss", "approx_kl", "mean_score", "kl_to_ref")
STEP_MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])


@torch.no_grad()
def _episodes(
    code: TaughtCode, off_policy: float = 1.0, kl: bool = True, garbage: float = 3.0, times: int = 1
):
    """Three responses of 4, 2 and 3 tokens, so many times over; garbage stands in the padding.

    Off-policy 1, half of the ratios are far from 1; 0, all are 1. Without KL, the reference agrees with the policy
    that sampled.
    """
    mask = STEP_MASK.repeat(times, 1)
    ids = (numbers(7, len(mask), 6).abs() * 1e4).long() % 5 + 4
    ids[:, 0] = BOS
    ids[:, 2:][mask == 0] = int(garbage)
    logprobs = _log_probs(_model(code), ids)[:, 1:]
    old_logprobs = logprobs + off_policy * numbers(3, *mask.shape, std=0.4)
    ref_logprobs = old_logprobs + kl * numbers(5, *mask.shape, mean=-0.3, std=0.5)
    return code.toy.Episodes(
        ids=ids,
        n_prompt=2,
        mask=mask.clone(),
        old_logprobs=old_logprobs.where(mask == 1, torch.tensor(-garbage)),
        ref_logprobs=ref_logprobs.where(mask == 1, torch.tensor(2 * garbage)),
        scores=torch.tensor([1.5, -0.7, 0.4]).repeat(times),
    )


class _Scene:
    """Policy, critic and an optimiser for each, with the steps that they take; with `lr=0` no weight moves."""

    def __init__(self, code: TaughtCode, lr: float = 0.0, value_lr: float | None = None):
        self.policy, self.critic = _model(code), _critic(code)
        value_lr = lr if value_lr is None else value_lr
        self.policy_optim = torch.optim.SGD(self.policy.parameters(), lr=lr)
        self.value_optim = torch.optim.SGD(self.critic.parameters(), lr=value_lr)
        self.policy_steps, self.value_steps = noted(self.policy_optim), noted(self.value_optim)
        self._step = code.toy.toy_ppo_step

    def step(self, episodes, **settings) -> dict[str, float]:
        """What `toy_ppo_step` returns, as numbers; one epoch unless it is said."""
        models = self.policy, self.critic, self.policy_optim, self.value_optim
        info = entries("toy_ppo_step", self._step(*models, episodes, **{"n_epochs": 1} | settings), *INFO)
        return {name: one_number(name, info[name]) for name in INFO}


@case("toy_ppo_step", "it runs", "3 responses, 1 epoch, a learning rate of 0")
def step_runs(code: TaughtCode):
    return {"info has": sorted(_Scene(code).step(_episodes(code)))}


@case(
    "toy_ppo_step",
    "mean_score",
    "scores 1.5, -0.7 and 0.4",
    mistake="mean_score is the mean of the scores, before any KL is charged.",
)
def step_mean_score(code: TaughtCode):
    return {"mean_score": _Scene(code).step(_episodes(code), kl_coef=0.7)["mean_score"]}


@case(
    "toy_ppo_step",
    "kl_to_ref",
    "responses of 4, 2 and 3 tokens, garbage in the padding",
    mistake="kl_to_ref is not the KL of a response to the reference, averaged over the responses. Over what do you sum, "
    "and over what do you average?",
)
def step_kl_to_ref(code: TaughtCode):
    return {"kl_to_ref": _Scene(code).step(_episodes(code, off_policy=0.0))["kl_to_ref"]}


@case(
    "toy_ppo_step",
    "kl_to_ref of the policy that sampled",
    "a policy that has moved since",
    mistake="kl_to_ref is about the policy that sampled, not about the one that is being updated.",
)
def step_kl_of_episodes(code: TaughtCode):
    return {"kl_to_ref": _Scene(code).step(_episodes(code))["kl_to_ref"]}


@case(
    "toy_ppo_step",
    "one step of each optimiser in an epoch",
    "3 epochs",
    mistake="In each of n_epochs epochs, each of the two optimisers makes one step on the gradient of its own loss.",
)
def step_updates(code: TaughtCode):
    scene = _Scene(code)
    scene.step(_episodes(code), n_epochs=3)
    return {
        name: {"steps": len(steps), "with a gradient": [bool(step.gradient.any()) for step in steps]}
        for name, steps in {"policy_optim": scene.policy_steps, "value_optim": scene.value_steps}.items()
    }


@case(
    "toy_ppo_step",
    "padding has no say",
    "two batches that differ in the padding alone",
    mistake="What stands in the padding changes your update: a mask is not used.",
)
def step_padding(code: TaughtCode):
    one, other = _Scene(code), _Scene(code)
    infos = one.step(_episodes(code)), other.step(_episodes(code, garbage=7.0))
    return {
        "what changes": [name for name in INFO if abs(infos[0][name] - infos[1][name]) > 1e-3],
        "the policy's gradient is the same": _same(one.policy_steps, other.policy_steps),
        "the critic's gradient is the same": _same(one.value_steps, other.value_steps),
    }


def _same(one: list, other: list) -> bool:
    """Whether the gradients of the first steps are the same."""
    return torch.allclose(one[0].gradient, other[0].gradient, rtol=1e-3, atol=1e-5)


@case(
    "toy_ppo_step",
    "every ratio starts at 1",
    "episodes of the policy itself, before any update",
    mistake="Before the first update, old and new log-probabilities are the same numbers. You compare other ones.",
)
def step_ratio(code: TaughtCode):
    return {"approx_kl": _Scene(code).step(_episodes(code, off_policy=0.0))["approx_kl"]}


@case(
    "toy_ppo_step",
    "approx_kl",
    "a policy that has moved since",
    mistake="approx_kl is not the token mean that the docstring says, of the new policy and the one that sampled.",
)
def step_approx_kl(code: TaughtCode):
    return {"approx_kl": _Scene(code).step(_episodes(code))["approx_kl"]}


@case(
    "toy_ppo_step",
    "what the critic has to learn",
    "value_loss where there is no KL; gamma and lambda 1",
    mistake="The critic learns another target than the returns: what each step led to, up to the end of its own episode.",
)
def step_returns(code: TaughtCode):
    episodes = _episodes(code, kl=False)
    return {"value_loss": _Scene(code).step(episodes, gamma=1.0, lam=1.0)["value_loss"]}


@case(
    "toy_ppo_step",
    "gamma and lambda",
    "value_loss with gamma 0.8 and lambda 0.6",
    mistake="gamma or lambda does not reach `gae_with_dones`, or the advantages lack the critic's values.",
)
def step_gamma_lambda(code: TaughtCode):
    return {"value_loss": _Scene(code).step(_episodes(code, kl=False), gamma=0.8, lam=0.6)["value_loss"]}


@case(
    "toy_ppo_step",
    "kl_coef",
    "value_loss with kl_coef 0.9",
    mistake="kl_coef does not reach the token rewards, or the KL is charged with the wrong sign or in another place.",
)
def step_kl_coef(code: TaughtCode):
    return {"value_loss": _Scene(code).step(_episodes(code), kl_coef=0.9, gamma=0.8, lam=0.6)["value_loss"]}


@case(
    "toy_ppo_step",
    "the policy loss",
    "a policy that has moved since, clip_range 9",
    mistake="The policy loss is not that of the whitened advantages and of the ratio of the new policy to the old. Over "
    "which tokens do you whiten?",
)
def step_policy_loss(code: TaughtCode):
    episodes = _episodes(code, kl=False)
    return {"policy_loss": _Scene(code).step(episodes, clip_range=9.0, gamma=0.8, lam=0.6)["policy_loss"]}


@case(
    "toy_ppo_step",
    "the KL is in the reward alone",
    "policy_loss with kl_coef 0.9, clip_range 9",
    mistake="With a price of the KL the policy loss is another one: it belongs into the token rewards, not into the loss.",
)
def step_kl_in_reward(code: TaughtCode):
    settings = {"clip_range": 9.0, "gamma": 0.8, "lam": 0.6, "kl_coef": 0.9}
    return {"policy_loss": _Scene(code).step(_episodes(code), **settings)["policy_loss"]}


@case(
    "toy_ppo_step",
    "clip_range",
    "policy_loss with clip_range 0.1 and 0.4",
    mistake="clip_range does not clip the ratio as in exercise 3.4: of the clipped and the plain one, the worse counts.",
)
def step_clip_range(code: TaughtCode):
    settings = {"gamma": 0.8, "lam": 0.6}
    return {
        f"policy_loss with {limit}": _Scene(code).step(_episodes(code), clip_range=limit, **settings)[
            "policy_loss"
        ]
        for limit in (0.1, 0.4)
    }


@case(
    "toy_ppo_step",
    "which way the policy is pushed",
    "the direction of its gradient",
    mistake="The gradient of the policy points elsewhere: is the loss the one whose number you return, with its sign?",
)
def step_policy_gradient(code: TaughtCode):
    scene = _Scene(code)
    scene.step(_episodes(code), clip_range=0.3, gamma=0.8, lam=0.6)
    gradient = scene.policy_steps[0].gradient
    return {"of length 1": (gradient / gradient.norm().clamp(min=1e-12))[-20:]}


@case(
    "toy_ppo_step",
    "the norm of the policy's gradient",
    "ratios of 55, whose gradient is large, and of 0.02, whose gradient is small",
    mistake="The norm of the policy's whole gradient has to be at most 1 when its optimiser makes its step, and a small "
    "gradient stays as it is.",
)
def step_norm(code: TaughtCode):
    found = {}
    for name, shift in (("large", 4.0), ("small", -4.0)):
        scene = _Scene(code)
        episodes = _episodes(code, off_policy=0.0)
        episodes.old_logprobs -= shift
        scene.step(episodes, clip_range=1e9)
        found[f"a {name} gradient has norm"] = scene.policy_steps[0].norm
    return found


@case(
    "toy_ppo_step",
    "the critic's gradient",
    "of its mean squared error",
    mistake="The gradient that the critic's optimiser sees is not that of the mean squared error: it is neither halved nor "
    "clipped.",
)
def step_value_gradient(code: TaughtCode):
    scene = _Scene(code)
    scene.step(_episodes(code), gamma=0.8, lam=0.6)
    return {"the norm": scene.value_steps[0].norm}


@case(
    "toy_ppo_step",
    "the gradient is of this epoch alone",
    "gradients of an earlier step are left over, then 2 epochs with a learning rate of 0",
    mistake="Gradients add up from step to step. When are they set back to zero?",
)
def step_zero_grad(code: TaughtCode):
    clean, scene = _Scene(code), _Scene(code)
    for model in (scene.policy, scene.critic):
        leave_over(model, 7.0)
    clean.step(_episodes(code))
    scene.step(_episodes(code), n_epochs=2)
    return {
        f"{name}, epoch {epoch}": torch.allclose(own[0].gradient, steps[epoch].gradient, rtol=1e-3, atol=1e-5)
        for name, own, steps in (
            ("policy", clean.policy_steps, scene.policy_steps),
            ("critic", clean.value_steps, scene.value_steps),
        )
        for epoch in (0, 1)
    }


@case(
    "toy_ppo_step",
    "the targets stay from epoch to epoch",
    "weights of the critic and the policy after 3 epochs with learning rates above 0",
    mistake="One epoch is right and three are not. Which of states, values, advantages and returns change from epoch to "
    "epoch in your code?",
)
def step_epochs(code: TaughtCode):
    scene = _Scene(code, lr=0.3, value_lr=0.01)
    scene.step(_episodes(code, off_policy=0.0), n_epochs=3, gamma=0.8, lam=0.6)
    return {
        "critic": list(scene.critic.parameters()),
        "policy": [weight.flatten()[:6] for _, weight in sorted(scene.policy.named_parameters())],
    }


@case(
    "toy_ppo_step",
    "info is that of the last epoch",
    "the losses and approx_kl of 2 epochs",
    mistake="Your info is not that of the last epoch, before its steps.",
)
def step_info(code: TaughtCode):
    episodes = _episodes(code, off_policy=0.0)
    info = _Scene(code, lr=0.1, value_lr=0.01).step(episodes, n_epochs=2)
    return {name: info[name] for name in ("policy_loss", "value_loss", "approx_kl")}


@case(
    "toy_ppo_step",
    "a policy that has moved far",
    "3 epochs with ratios far from 1",
    mistake="You make fewer steps when the policy has moved far. n_epochs says how many there are.",
)
def step_far(code: TaughtCode):
    scene = _Scene(code)
    scene.step(_episodes(code, off_policy=8.0), n_epochs=3)
    return {"steps of policy_optim": len(scene.policy_steps)}


@case(
    "toy_ppo_step",
    "a response far better than the others",
    "48 responses, one with a score of 100",
    mistake="You limit scores or advantages: a response that is far better than all others has to weigh as much as it does.",
)
def step_outlier(code: TaughtCode):
    episodes = _episodes(code, times=16)
    episodes.scores[0] = 100.0
    return {"policy_loss": _Scene(code).step(episodes, clip_range=9.0)["policy_loss"]}


@case(
    "toy_ppo_step",
    "the episodes stay as they are",
    "before and after 2 epochs",
    mistake="Your update writes into the episodes. Whoever looks at them afterwards sees other numbers than were sampled.",
)
def step_arguments(code: TaughtCode):
    episodes = _episodes(code)
    before = copy.deepcopy(vars(episodes))
    _Scene(code, lr=0.1, value_lr=0.01).step(episodes, n_epochs=2)
    changed = [
        name
        for name, old in before.items()
        if not (
            torch.equal(old, vars(episodes)[name]) if isinstance(old, Tensor) else old == vars(episodes)[name]
        )
    ]
    return {"what has changed": changed}


@case(
    "toy_ppo_step",
    "the defaults",
    "a call with models, optimisers and episodes alone",
    mistake="Left out, an argument has another value than it had in the signature that you were given.",
)
def step_defaults(code: TaughtCode):
    scene = _Scene(code)
    models = scene.policy, scene.critic, scene.policy_optim, scene.value_optim
    info = entries("toy_ppo_step", code.toy.toy_ppo_step(*models, _episodes(code)), *INFO)
    return {
        "steps of policy_optim": len(scene.policy_steps),
        "policy_loss": one_number("policy_loss", info["policy_loss"]),
        "value_loss": one_number("value_loss", info["value_loss"]),
    }


# --- 7.6 preference_pair --------------------------------------------------------------------------

CANDIDATES = {  # of each prompt, by its letter: in the order in which they are "sampled"
    "a": ["bb", "banana", "tulip", "zzzzz"],
    "b": ["melon", "x", "tutututu", "cocoa"],
    "c": ["rrr", "abacus", "llll", "lemonade"],
}


class _Scripted:
    """In place of a policy: it "samples" from a script, for each prompt one candidate after the other.

    Attributes:
        calls: rows, max_len and temperature of each call.
    """

    def __init__(self, code: TaughtCode, script: dict[str, list[str]]):
        self._encode, self._decode = code.toy.encode, code.toy.decode
        self._script, self._next = script, dict.fromkeys(script, 0)
        self.calls: list[tuple[int, int, float]] = []

    def generate(self, prompt_ids: Tensor, max_len: int, temperature: float = 1.0):
        self.calls.append((len(prompt_ids), max_len, float(temperature)))
        rows = []
        for row in prompt_ids.tolist():
            prompt = self._decode(row[1:])
            candidates, at = self._script[prompt], self._next[prompt]
            self._next[prompt] = at + 1
            response = [*self._encode(candidates[at % len(candidates)]), EOS][:max_len]
            rows.append([*row, *response, *[PAD] * (max_len - len(response))])
        return torch.tensor(rows), torch.zeros(len(rows), max_len)


def _prompts(code: TaughtCode, *texts: str) -> Tensor:
    return torch.tensor([[BOS, *code.toy.encode(text)] for text in texts])


def _pair(code: TaughtCode, policy, prompt_ids: Tensor, *options: int) -> tuple[Tensor, Tensor]:
    pair = code.toy.preference_pair(policy, prompt_ids, *options)
    chosen, rejected = parts("preference_pair", pair, "chosen", "rejected")
    return tensor("preference_pair", chosen), tensor("preference_pair", rejected)


def _told(code: TaughtCode, policy, prompts: list[str], *options: int) -> dict:
    """Prompt and response of both rows of each pair, as texts."""
    pair = _pair(code, policy, _prompts(code, *prompts), *options)
    if any(ids.dim() != 2 or len(ids) != len(prompts) for ids in pair):
        raise WrongReturn(
            f"preference_pair returned {' and '.join(in_words(ids) for ids in pair)}, expected one row for each of "
            f"{len(prompts)} prompts"
        )
    n_prompt = 1 + len(prompts[0])
    return {
        name: [
            f"{code.toy.decode(row[1:n_prompt])} + {code.toy.decode(row[n_prompt:])}" for row in ids.tolist()
        ]
        for name, ids in zip(("chosen", "rejected"), pair)
    }


@case(
    "preference_pair",
    "two rows of ids",
    "1 prompt of 2 tokens, max_len 9",
    mistake="Chosen and rejected are ids, one row for each prompt: the prompt and the response behind it.",
)
def pair_shape(code: TaughtCode):
    chosen, rejected = _pair(code, _Scripted(code, CANDIDATES), _prompts(code, "a"), 4, 9)
    return {"shape of chosen": list(chosen.shape), "shape of rejected": list(rejected.shape)}


@case(
    "preference_pair",
    "the best and the worst",
    "4 candidates to one prompt",
    mistake="Of one prompt's candidates you do not take the best and the worst by rule_reward, in this order.",
)
def pair_one_prompt(code: TaughtCode):
    return _told(code, _Scripted(code, CANDIDATES), ["a"])


@case(
    "preference_pair",
    "each prompt has its own candidates",
    "3 prompts, 4 candidates to each",
    mistake="Candidates of different prompts are mixed up. How do the rows that you sample belong to the prompts?",
)
def pair_prompts(code: TaughtCode):
    return _told(code, _Scripted(code, CANDIDATES), ["a", "b", "c"])


@case(
    "preference_pair",
    "as many candidates as asked for",
    "n_candidates 2 and 3, for 2 prompts",
    mistake="n_candidates says how many responses there are to each prompt. Yours are more or fewer.",
)
def pair_n_candidates(code: TaughtCode):
    found = {}
    for n_candidates in (2, 3):
        policy = _Scripted(code, CANDIDATES)
        found[f"n_candidates {n_candidates}"] = _told(code, policy, ["a", "b"], n_candidates) | {
            "responses sampled": sum(rows for rows, _, _ in policy.calls)
        }
    return found


@case(
    "preference_pair",
    "the response alone is scored",
    "a prompt that changes which one is best",
    mistake="The prompt takes part in your score. It is the response that is compared.",
)
def pair_prompt_not_scored(code: TaughtCode):
    script = {
        "aeb": ["utorenipodisab", "cub", "gogogogogogo", "nnnnnnnnnnnn"],
        "ono": ["no", "ono", "orb", "ox"],
    }
    return _told(code, _Scripted(code, script), ["aeb", "ono"])


@case(
    "preference_pair",
    "all are bad",
    "candidates with rewards below 0",
    mistake="Where all rewards are below 0, the best of them is still the best.",
)
def pair_all_bad(code: TaughtCode):
    script = {"a": ["sssss", "ssss", "", "tttttt"], "b": ["", "ddddd", "aaaaaaa", "uuuuuu"]}
    return _told(code, _Scripted(code, script), ["a", "b"])


@case(
    "preference_pair",
    "samples of the policy itself",
    "max_len 7 and temperature, as `generate` is told",
    mistake="The candidates are not plain samples of at most max_len tokens: what do you tell `generate`?",
)
def pair_generate(code: TaughtCode):
    policy = _Scripted(code, CANDIDATES)
    _told(code, policy, ["a", "b"], 4, 7)
    return {
        "max_len": sorted({max_len for _, max_len, _ in policy.calls}),
        "temperature": sorted({temperature for _, _, temperature in policy.calls}),
    }


@case(
    "preference_pair",
    "the defaults",
    "n_candidates and max_len left out",
    mistake="Left out, an argument has another value than it had in the signature that you were given.",
)
def pair_defaults(code: TaughtCode):
    policy = _Scripted(code, CANDIDATES)
    _told(code, policy, ["a"])
    return {
        "responses": sum(rows for rows, _, _ in policy.calls),
        "max_len": sorted({max_len for _, max_len, _ in policy.calls}),
    }


@case(
    "preference_pair",
    "with a model",
    "20 equal prompts: a response may be sampled once for all of them",
    mistake="Equal prompts get the same pair, or a pair whose chosen one is worse than its rejected one: each candidate is "
    "a sample of its own.",
)
def pair_model(code: TaughtCode):
    model, prompt_ids = _constant(code, [1e-9] * 2 + [0.1, 1e-9] + [0.18] * 5), _prompts(code, *["a"] * 20)
    pair = _pair(code, model, prompt_ids)
    texts = [[code.toy.decode(row[2:]) for row in ids.tolist()] for ids in pair]
    rewards = [[code.toy.rule_reward(text) for text in side] for side in texts]
    return {
        "some chosen one is worse": any(chosen < rejected for chosen, rejected in zip(*rewards)),
        "all pairs are the same": len(set(zip(*texts))) == 1,
        "chosen and rejected are always the same": texts[0] == texts[1],
    }


@case(
    "preference_pair",
    "prompts and policy stay as they were",
    "before and after, no gradient",
    mistake="Your function changes the prompts or the policy, or hands out a gradient.",
)
def pair_arguments(code: TaughtCode):
    model, prompt_ids = _model(code).train(), _prompts(code, "a", "b")
    weights = copy.deepcopy(model.state_dict())
    _pair(code, model, prompt_ids)
    return {
        "the prompts afterwards": prompt_ids,
        "the weights are the same": all(
            torch.equal(w, weights[name]) for name, w in model.state_dict().items()
        ),
        "gradients of the weights": sum(weight.grad is not None for weight in model.parameters()),
    }
