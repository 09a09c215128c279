"""Cases of the exercises in `ppo.py`."""

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Model

from ..taught_code import TaughtCode
from .case import Observation, case, entries, numbers, on_mask, one_number, parts, raised, tensor
from .models import RECOMMENDED, micro_folder, micro_lm, recommending_folder


def _of_each_kind(mask: Tensor) -> dict[str, Tensor]:
    """The mask as tokenizers, comparisons and losses hand it on."""
    return {"an integer mask": mask.long(), "a bool mask": mask.bool(), "a float mask": mask.float()}


def _changes(call: Callable[..., Any], **arguments: Tensor) -> Observation:
    """Which arguments a call leaves changed."""
    before = {name: value.clone() for name, value in arguments.items()}
    call(**arguments)
    return {f"{name} changed": not torch.equal(value, before[name]) for name, value in arguments.items()}


def ragged() -> Tensor:
    """A mask of three responses, of 6, 4 and 1 tokens; a new one each time, for code that changes its arguments."""
    return torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]])


def behind_the_end() -> Tensor:
    """1000 on the padding of these responses, 0 on their tokens."""
    return (1 - ragged()) * 1000.0


# --- 3.1 PolicyWithValueHead ----------------------------------------------------------------------

TEXT = ((5, 81, 230, 17, 44), (301, 9, 77, 77, 150))


@lru_cache(maxsize=1)
def _new_policy(policy_class):
    return policy_class(micro_folder()).eval()


def fresh_policy(code: TaughtCode):
    """The student's class on the micro model, without dropout. Loading is slow: each case gets a copy."""
    return copy.deepcopy(_new_policy(code.ppo.PolicyWithValueHead))


def with_filled_head(policy):
    """The policy with a value head whose two layers hold known numbers, whatever its hidden width is."""
    first, last = linear_layers(policy.value_head)
    with torch.no_grad():
        first.weight.copy_(numbers(100, 1, first.in_features).expand_as(first.weight))
        last.weight.fill_(1 / last.in_features)
        for layer in (first, last):
            if layer.bias is not None:
                layer.bias.zero_()
    return policy


def linear_layers(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def texts() -> Tensor:
    return torch.tensor(TEXT)


def padded_texts() -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and position ids of two texts of 5 and 3 tokens, padded on the left with ids that are words."""
    ids = torch.tensor([[12, 40, *TEXT[0]], [33, 33, 60, 61, *TEXT[1][:3]]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1]])
    positions = torch.tensor([[0, 0, 0, 1, 2, 3, 4], [0, 0, 0, 0, 0, 1, 2]])
    return ids, mask, positions


def _pass(policy, ids: Tensor, mask: Tensor | None = None, **options: Any) -> dict[str, Tensor]:
    """Logits of the first three token ids, and values: what `policy(ids, mask)` returns."""
    returned = policy(ids, torch.ones_like(ids) if mask is None else mask, **options)
    logits, values = parts("PolicyWithValueHead", returned, "logits", "values")
    logits = tensor("PolicyWithValueHead, for its logits,", logits)
    return {
        "logits": logits[..., :3],
        "values": tensor("PolicyWithValueHead, for its values,", values, ids.shape),
    }


def _on_mask(shown: dict[str, Tensor], mask: Tensor) -> Observation:
    return {"logits": on_mask(shown["logits"], mask.unsqueeze(-1)), "values": on_mask(shown["values"], mask)}


@case(
    "PolicyWithValueHead",
    "logits and values",
    "two texts of 5 tokens",
)
def policy_shapes(code: TaughtCode):
    policy, ids = fresh_policy(code), texts()
    returned = policy(ids, torch.ones_like(ids))
    logits, values = parts("PolicyWithValueHead", returned, "logits", "values")
    return {
        "the shape of logits": list(tensor("PolicyWithValueHead, for its logits,", logits).shape),
        "the shape of values": list(tensor("PolicyWithValueHead, for its values,", values).shape),
    }


@case(
    "PolicyWithValueHead",
    "eval mode stays eval mode",
    "a pass in eval mode",
    mistake="Your forward switches to training mode, and dropout on with it. The mode is the caller's business.",
)
def policy_mode(code: TaughtCode):
    policy, ids = fresh_policy(code), texts()
    policy(ids, torch.ones_like(ids))
    return {"in training mode after a pass in eval mode": any(module.training for module in policy.modules())}


@case(
    "PolicyWithValueHead",
    "one token of one text",
    "ids [1, 1]: one value, as [1, 1]",
    mistake="Your values lose an axis when there is one text or one token. Which of your calls removes every axis of length "
    "1?",
)
def policy_one_token(code: TaughtCode):
    ids = texts()[:1, :1]
    _, values = parts(
        "PolicyWithValueHead", fresh_policy(code)(ids, torch.ones_like(ids)), "logits", "values"
    )
    return {"the shape of values": list(tensor("PolicyWithValueHead, for its values,", values).shape)}


@case(
    "PolicyWithValueHead",
    "the logits of the language model",
    "two texts of 5 tokens without padding, logits of three token ids",
    mistake="Your logits are not those of the language model in base_model_name. Are its pretrained weights loaded, in "
    "float32, and its logits returned as they are?",
)
def policy_logits(code: TaughtCode):
    return {"logits": _pass(fresh_policy(code), texts())["logits"]}


@case(
    "PolicyWithValueHead",
    "a fresh critic expects nothing",
    "the values of a new policy",
    mistake="The values of a new policy are not 0. Which layer decides that, and which two tensors does it have?",
)
def policy_fresh_values(code: TaughtCode):
    return {"values": _pass(fresh_policy(code), texts())["values"]}


@case(
    "PolicyWithValueHead",
    "the value head can learn",
    "the gradient of (value - 1)^2 for the weights of its last layer",
    mistake="No gradient reaches the last layer of your value head, so it will stay where it is: what comes into this layer "
    "must not be 0 as well, and the graph must not be cut.",
)
def policy_head_learns(code: TaughtCode):
    policy = fresh_policy(code)
    layers = linear_layers(policy.value_head)
    values = _pass(policy, texts())["values"]
    if not (layers and values.requires_grad):
        return {"linear layers in value_head": len(layers), "values carry a gradient": values.requires_grad}
    (values - 1).square().sum().backward()
    gradient = layers[-1].weight.grad
    return {
        "linear layers in value_head": len(layers),
        "values carry a gradient": True,
        "a gradient reaches its last layer": gradient is not None and bool(gradient.any()),
    }


@case(
    "PolicyWithValueHead",
    "the value head: Linear, GELU, Linear",
    "value_head on given hidden states, its two layers filled with known numbers",
    mistake="Your value head computes something else than Linear, GELU, Linear: is there an activation, is it GELU, and does "
    "nothing come after the last layer?",
)
def policy_head(code: TaughtCode):
    policy = with_filled_head(fresh_policy(code))
    values = policy.value_head(numbers(101, 1, 6, policy.lm.config.hidden_size))
    return {"values": tensor("value_head", values).reshape(-1)}


@case(
    "PolicyWithValueHead",
    "values of the last hidden state",
    "two texts without padding, the head filled with known numbers",
    mistake="Your values are not those of the last hidden state, after the final norm, each position its own. Which hidden "
    "states does the value head read?",
)
def policy_values(code: TaughtCode):
    return {"values": _pass(with_filled_head(fresh_policy(code)), texts())["values"]}


@case(
    "PolicyWithValueHead",
    "the attention mask",
    "two texts padded on the left, position_ids 0 to 6 given",
    mistake="What stands on the padding changes your logits or values: the tokens look at it. Does the language model get the "
    "attention mask?",
)
def policy_attention_mask(code: TaughtCode):
    # positions that begin anew after the padding would do: transformers takes them for two texts in one row
    ids, mask, _ = padded_texts()
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    return _on_mask(_pass(with_filled_head(fresh_policy(code)), ids, mask, position_ids=positions), mask)


@case(
    "PolicyWithValueHead",
    "position_ids by default",
    "two texts padded on the left, no position_ids",
    mistake="A text that is padded on the left is read as if it started in the middle of a text. Which number does its first "
    "real token have to get?",
)
def policy_default_positions(code: TaughtCode):
    ids, mask, _ = padded_texts()
    return _on_mask(_pass(with_filled_head(fresh_policy(code)), ids, mask), mask)


@case(
    "PolicyWithValueHead",
    "a padded text beside one without padding",
    "a text of 7 tokens above one of 3, padded on the left, and below it; no position_ids",
    mistake="A padded text is numbered right or wrong depending on the other rows of its batch. Does your code look at all "
    "rows, or at one row only, before it numbers them?",
)
def policy_positions_of_each_row(code: TaughtCode):
    policy, (ids, mask, _) = with_filled_head(fresh_policy(code)), padded_texts()
    mask[0] = 1
    return {
        f"the padded text {where}": _on_mask(_pass(policy, ids[order], mask[order]), mask[order])
        for where, order in (("below", [0, 1]), ("above", [1, 0]))
    }


@case(
    "PolicyWithValueHead",
    "position_ids that are given",
    "the same text, numbered from 3 on",
    mistake="position_ids are ignored: your own numbers take their place. They are the default for when none are given.",
)
def policy_given_positions(code: TaughtCode):
    ids = texts()
    positions = torch.arange(3, 8).expand_as(ids)
    return _pass(with_filled_head(fresh_policy(code)), ids, position_ids=positions)


@case(
    "PolicyWithValueHead",
    "logits_to_keep",
    "5 tokens, logits_to_keep 2: the logits of the last two, the values of all",
    mistake="logits_to_keep shortens the logits to the last positions, and the values not at all.",
)
def policy_logits_to_keep(code: TaughtCode):
    return _pass(with_filled_head(fresh_policy(code)), texts(), logits_to_keep=2)


@case(
    "PolicyWithValueHead",
    "one pass through one backbone",
    "passes through the first layer counted, parameters counted",
    mistake="Actor and critic share one backbone and one pass through it: a second pass doubles the time, a second copy the "
    "memory.",
)
def policy_one_pass(code: TaughtCode):
    policy, passes = fresh_policy(code), []
    for module in policy.modules():
        if isinstance(module, GPT2Model):
            module.h[0].register_forward_hook(lambda *_: passes.append(1))
    _pass(policy, texts())
    named = dict(policy.named_parameters())
    return {
        "passes through the backbone": len(passes),
        "parameters outside lm and value_head": sum(
            not name.startswith(("lm.", "value_head.")) for name in named
        ),
    }


@case(
    "PolicyWithValueHead",
    "gradients in the backbone",
    "of the sum of the logits, and of the sum of the values",
    mistake="Both losses have to move the backbone: no gradient of one of them gets there, or parameters are frozen.",
)
def policy_gradients(code: TaughtCode):
    policy = with_filled_head(fresh_policy(code))
    shown = _pass(policy, texts())
    weight = policy.lm.get_input_embeddings().weight

    def reaches(x: Tensor) -> bool:
        if not (x.requires_grad and weight.requires_grad):
            return False
        (gradient,) = torch.autograd.grad(x.sum(), weight, retain_graph=True, allow_unused=True)
        return gradient is not None and bool(gradient.any())

    return {
        "a gradient of the logits reaches the backbone": reaches(shown["logits"]),
        "a gradient of the values reaches the backbone": reaches(shown["values"]),
        "frozen parameters": sum(not parameter.requires_grad for parameter in policy.parameters()),
    }


@case(
    "PolicyWithValueHead",
    "what a checkpoint recommends is not the policy",
    "a checkpoint that recommends a top-k of 7 and a repetition penalty of 1.7",
    mistake="Your language model keeps what its checkpoint recommends for sampling (top-k, a repetition penalty): what is "
    "sampled is then not the policy. What is its generation_config?",
)
def policy_recommendations(code: TaughtCode):
    config = code.ppo.PolicyWithValueHead(recommending_folder()).lm.generation_config
    return {f"keeps {name}": getattr(config, name) == value for name, value in RECOMMENDED.items()}


def fine_tuned() -> dict[str, Tensor]:
    """The weights of the micro model after some training: each a little different."""
    return {name: weight * 1.1 + 0.01 for name, weight in micro_lm().state_dict().items()}


@case(
    "PolicyWithValueHead",
    "load_from_sft takes over the weights",
    "a state dict of the same language model with other numbers",
    mistake="After load_from_sft the logits are not those of the fine-tuned model. Into which part of the policy do its "
    "weights belong?",
)
def policy_load(code: TaughtCode):
    policy = fresh_policy(code)
    policy.load_from_sft(fine_tuned())
    return {"logits": _pass(policy, texts())["logits"]}


@case(
    "PolicyWithValueHead",
    "load_from_sft leaves the value head",
    "a value head with known numbers, compared before and after",
    mistake="load_from_sft changes the value head. It takes over the language model alone.",
)
def policy_load_keeps_head(code: TaughtCode):
    policy = with_filled_head(fresh_policy(code))
    before = [layer.weight.clone() for layer in linear_layers(policy.value_head)]
    policy.load_from_sft(fine_tuned())
    after = [layer.weight for layer in linear_layers(policy.value_head)]
    return {"value_head changed": not all(torch.equal(a, b) for a, b in zip(after, before, strict=True))}


@case(
    "PolicyWithValueHead",
    "load_from_sft refuses what does not fit",
    "state dicts of other names, with a name less, and with a name more",
    mistake="load_from_sft is silent about a state dict that does not fit: some weights stay as they were, and nobody "
    "notices.",
)
def policy_load_refuses(code: TaughtCode):
    policy, state, block = fresh_policy(code), fine_tuned(), "transformer.h.1.mlp.c_fc.weight"
    states = {
        "of other names": {f"backbone.{name}": weight for name, weight in state.items()},
        "with a name less": {name: weight for name, weight in state.items() if name != block},
        "with a name more": state | {block.replace("1", "2"): state[block]},
    }
    return {
        f"a state dict {kind} is refused": raised(lambda: policy.load_from_sft(other)) != "no exception"
        for kind, other in states.items()
    }


@case(
    "PolicyWithValueHead",
    "two policies, one state dict",
    "both load it, then the weights of the first are changed",
    mistake="Two policies that load the same state dict share their weights afterwards: training one moves the other, and "
    "the reference with it.",
)
def policy_load_copies(code: TaughtCode):
    state = fine_tuned()
    policy, reference = fresh_policy(code), code.ppo.PolicyWithValueHead(micro_folder()).eval()
    policy.load_from_sft(state)
    reference.load_from_sft(state)
    before = _pass(reference, texts())["logits"]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)
    return {"the second moves with the first": not torch.equal(_pass(reference, texts())["logits"], before)}


@case(
    "PolicyWithValueHead",
    "arguments stay as they are",
    "ids, mask and position ids compared before and after",
    mistake="Your forward changes its arguments in place.",
)
def policy_arguments(code: TaughtCode):
    ids, mask, positions = padded_texts()
    return _changes(fresh_policy(code), input_ids=ids, attention_mask=mask, position_ids=positions)


# --- 3.2 gather_logprobs --------------------------------------------------------------------------


def token_ids() -> Tensor:
    """Two texts, of a vocabulary of 7."""
    return torch.tensor([[3, 0, 6, 2, 2], [5, 1, 4, 0, 3]])


def _gather(code: TaughtCode, logits: Tensor, ids: Tensor) -> Tensor:
    rows, length = ids.shape
    return tensor("gather_logprobs", code.ppo.gather_logprobs(logits, ids), (rows, length - 1))


@case(
    "gather_logprobs",
    "one column less than tokens",
    "logits [2, 5, 7], ids [2, 5]",
    mistake="Five tokens have four log-probabilities, because nothing predicts the first one. Which column of the ids has "
    "no partner, and which position of the logits? (Or is a dimension of size 1 left over?)",
)
def gather_shape(code: TaughtCode):
    logprobs = tensor("gather_logprobs", code.ppo.gather_logprobs(numbers(30, 2, 5, 7), token_ids()))
    return {"the shape": list(logprobs.shape), "the first column is 0": not logprobs[:, :1].any()}


@case(
    "gather_logprobs",
    "equal logits",
    "all logits 5.0: every token has the same chance, whichever is read",
    mistake="With equal logits all 7 tokens have the same chance, and the natural logarithm of it is expected everywhere. "
    "Over which axis do your probabilities add up to 1, and did you take their logarithm once?",
)
def gather_equal_logits(code: TaughtCode):
    return {"logprobs": _gather(code, torch.full((2, 5, 7), 5.0), token_ids())}


@case(
    "gather_logprobs",
    "the softmax of one position",
    "every position has the same logits, every token is token 2",
    mistake="The normalisation is wrong as soon as the logits of a position differ, and no position or token can be mixed "
    "up here. Are the logits used as they are, in full precision?",
)
def gather_softmax(code: TaughtCode):
    logits = numbers(31, 7, std=2.0).expand(2, 5, 7).clone()
    return {"logprobs": _gather(code, logits, torch.full_like(token_ids(), 2))}


@case(
    "gather_logprobs",
    "which token is read",
    "every position has the same logits, the tokens differ",
    mistake="Your log-probabilities belong to other tokens than those expected. Column t is about the token that comes "
    "next: which index does it have?",
)
def gather_which_token(code: TaughtCode):
    logits = numbers(32, 7, std=2.0).expand(1, 5, 7).clone()
    return {"logprobs": _gather(code, logits, token_ids()[:1])}


@case(
    "gather_logprobs",
    "which position predicts it",
    "every position has other logits, every token is token 2",
    mistake="The tokens are right, and the logits are read at the wrong positions. Which position knows tokens 0 to t, "
    "and not yet token t + 1?",
)
def gather_which_position(code: TaughtCode):
    return {"logprobs": _gather(code, numbers(33, 1, 5, 7, std=2.0), torch.full((1, 5), 2))}


@case(
    "gather_logprobs",
    "several texts",
    "logits [2, 5, 7], ids [2, 5]",
    mistake="One text is right, two at once are not: the rows of your batch are mixed.",
)
def gather_rows(code: TaughtCode):
    return {"logprobs": _gather(code, numbers(34, 2, 5, 7, std=2.0), token_ids())}


@case(
    "gather_logprobs",
    "one text of two tokens",
    "logits [1, 2, 7], ids [1, 2]: one number, as [1, 1]",
    mistake="Your code loses an axis when a batch has one row or a row has two tokens. Which of your calls removes every "
    "axis of length 1?",
)
def gather_one_number(code: TaughtCode):
    return {"logprobs": _gather(code, numbers(35, 1, 2, 7, std=2.0), token_ids()[:1, :2])}


@case(
    "gather_logprobs",
    "tokens that are next to impossible",
    "logits between -200 and 200",
    mistake="A very unlikely token gets -inf, or a number that is cut off. Its probability is too small for a float, its "
    "log-probability is not: which function of torch never leaves the logarithm?",
)
def gather_extreme(code: TaughtCode):
    logits = numbers(36, 2, 5, 7).sign() * 200.0
    return {"logprobs": _gather(code, logits, token_ids())}


@case(
    "gather_logprobs",
    "the gradient",
    "of the sum of all log-probabilities, with respect to the logits",
    mistake="The numbers are right, and no gradient gets through to the logits: with it, nothing could be learned.",
)
def gather_gradient(code: TaughtCode):
    logits = numbers(37, 1, 3, 7).requires_grad_()
    logprobs = _gather(code, logits, token_ids()[:1, :3])
    if not logprobs.requires_grad:
        return {"the result carries a gradient": False}
    logprobs.sum().backward()
    return {"the result carries a gradient": True, "the gradient of the logits": logits.grad}


@case(
    "gather_logprobs",
    "arguments stay as they are",
    "logits and ids compared before and after",
    mistake="Your function changes its arguments in place: whoever uses the same tensor afterwards gets your numbers.",
)
def gather_arguments(code: TaughtCode):
    return _changes(code.ppo.gather_logprobs, logits=numbers(38, 2, 5, 7), input_ids=token_ids())


# --- 3.3 shape_token_rewards ----------------------------------------------------------------------

KL_COEF = 0.3


def prompt_first() -> Tensor:
    """A mask over all predicted tokens: it starts with zeros for the prompt."""
    return torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0]])


def _shaped(code: TaughtCode, score: Tensor, old: Tensor, ref: Tensor, mask: Tensor) -> Tensor:
    rewards = code.ppo.shape_token_rewards(score, old, ref, mask, KL_COEF)
    return tensor("shape_token_rewards", rewards, mask.shape)


def _two_logprobs(seed: int, *shape: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities under policy and reference."""
    return numbers(seed, *shape, mean=-2.0, std=0.5), numbers(seed + 1, *shape, mean=-2.0, std=0.5)


@case("shape_token_rewards", "one tensor, [batch, response]", "2 scores, log-probabilities [2, 6]")
def shape_shape(code: TaughtCode):
    old, ref = _two_logprobs(50, 2, 6)
    return {"the shape": list(_shaped(code, numbers(52, 2), old, ref, torch.ones(2, 6)).shape)}


@case(
    "shape_token_rewards",
    "score 0: the penalty alone",
    "[1, 6], kl_coef 0.3, tokens that the policy likes more and less",
    mistake="Without a score, every token is left with its KL penalty. A token that the policy likes more than the "
    "reference does has to cost something, and one that it likes less brings something in: what does yours get?",
)
def shape_penalty(code: TaughtCode):
    old, ref = _two_logprobs(53, 1, 6)
    return {"token rewards": _shaped(code, torch.zeros(1), old, ref, torch.ones(1, 6))}


@case(
    "shape_token_rewards",
    "policy as reference: the score alone",
    "[1, 6], score 2: without a penalty",
    mistake="When policy and reference agree there is no penalty, and the last token gets the score as it is. All others "
    "get nothing.",
)
def shape_score(code: TaughtCode):
    old, _ = _two_logprobs(55, 1, 6)
    return {"token rewards": _shaped(code, torch.tensor([2.0]), old, old.clone(), torch.ones(1, 6))}


@case(
    "shape_token_rewards",
    "score and penalty",
    "[1, 6], score 2",
    mistake="Penalty and score are right alone, and not together. The last token is a token like the others: what becomes "
    "of its penalty when the score comes?",
)
def shape_both(code: TaughtCode):
    old, ref = _two_logprobs(57, 1, 6)
    return {"token rewards": _shaped(code, torch.tensor([2.0]), old, ref, torch.ones(1, 6))}


@case(
    "shape_token_rewards",
    "each response its own score",
    "[3, 3] without padding, scores 1, -2 and 3",
    mistake="A score reaches another response than its own: [batch] beside [batch, response] is spread along the wrong "
    "axis. Which axis does the score need?",
)
def shape_rows(code: TaughtCode):
    old, ref = _two_logprobs(59, 3, 3)
    return {"token rewards": _shaped(code, torch.tensor([1.0, -2.0, 3.0]), old, ref, torch.ones(3, 3))}


@case(
    "shape_token_rewards",
    "large scores and penalties",
    "[2, 3], scores 40 and -40, log-ratios 20 and -20",
    mistake="Small scores and penalties are right, and large ones are cut off. Nothing limits them here.",
)
def shape_large(code: TaughtCode):
    old, _ = _two_logprobs(73, 2, 3)
    ref = old - torch.tensor([[20.0], [-20.0]])
    return {"token rewards": _shaped(code, torch.tensor([40.0, -40.0]), old, ref, torch.ones(2, 3))}


@case(
    "shape_token_rewards",
    "responses of different length",
    "6, 4 and 1 tokens",
    mistake="The score does not stand at the last real token of a padded response. How do you find that token?",
)
def shape_ragged(code: TaughtCode):
    old, ref = _two_logprobs(61, 3, 6)
    rewards = _shaped(code, torch.tensor([1.0, -2.0, 3.0]), old, ref, ragged())
    return {"token rewards": on_mask(rewards, ragged())}


@case(
    "shape_token_rewards",
    "a mask that starts with the prompt",
    "[3, 8], 3, 1 and 2 prompt tokens before the response",
    mistake="Your score stands in the prompt when the mask starts with zeros: the number of 1s is not the index of the "
    "last one.",
)
def shape_prompt_first(code: TaughtCode):
    old, ref = _two_logprobs(63, 3, 8)
    rewards = _shaped(code, torch.tensor([1.0, -2.0, 3.0]), old, ref, prompt_first())
    return {"token rewards": on_mask(rewards, prompt_first())}


@case(
    "shape_token_rewards",
    "a response without a token",
    "[2, 4], the second row of the mask is 0",
    mistake="A row without a response token gets nothing, nowhere. Where does your index of the last 1 point to when there "
    "is no 1?",
)
def shape_empty(code: TaughtCode):
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0]])
    old, _ = _two_logprobs(65, 2, 4)
    return {"token rewards": _shaped(code, torch.tensor([1.0, -2.0]), old, old.clone(), mask)}


@case(
    "shape_token_rewards",
    "any kind of mask",
    "0s and 1s as integers, as bools and as floats",
    mistake="Your code depends on the type of the mask: a tokenizer gives integers, a comparison gives bools.",
)
def shape_mask_kinds(code: TaughtCode):
    return {
        f"token rewards with {kind}": on_mask(
            _shaped(code, torch.tensor([1.0, -2.0, 3.0]), *_two_logprobs(67, 3, 6), mask), ragged()
        )
        for kind, mask in _of_each_kind(ragged()).items()
    }


@case(
    "shape_token_rewards",
    "arguments stay as they are",
    "all four compared before and after",
    mistake="Your function changes its arguments in place. The update needs the same log-probabilities once more.",
)
def shape_arguments(code: TaughtCode):
    old, ref = _two_logprobs(69, 3, 6)
    return _changes(
        code.ppo.shape_token_rewards,
        rm_score=torch.tensor([1.0, -2.0, 3.0]),
        old_logprobs=old,
        ref_logprobs=ref,
        response_mask=ragged(),
    )


@case(
    "shape_token_rewards",
    "0 outside the mask",
    "log-probabilities that differ on padding",
    mistake="On the mask all is right. Outside it, the reward has to be 0: no token, no penalty.",
)
def shape_outside(code: TaughtCode):
    old, ref = _two_logprobs(71, 3, 6)
    rewards = _shaped(code, torch.tensor([1.0, -2.0, 3.0]), old, ref, ragged())
    return {"token rewards outside the mask": on_mask(rewards, 1 - ragged())}


@case(
    "shape_token_rewards",
    "the default of kl_coef",
    "[1, 6], score 0, kl_coef left out",
    mistake="Left out, kl_coef has another value than it had in the signature that you were given.",
)
def shape_default(code: TaughtCode):
    old, ref = _two_logprobs(53, 1, 6)
    rewards = code.ppo.shape_token_rewards(torch.zeros(1), old, ref, torch.ones(1, 6))
    return {"token rewards": tensor("shape_token_rewards", rewards, (1, 6))}


# --- 3.3 compute_gae ------------------------------------------------------------------------------


def _gae(
    code: TaughtCode, rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float
) -> Observation:
    """Advantages and returns, as `compute_gae` gives them."""
    returned = code.ppo.compute_gae(rewards, values, mask, gamma, lam)
    both = parts("compute_gae", returned, "advantages", "returns")
    return {
        name: tensor("compute_gae", x, mask.shape)
        for name, x in zip(("advantages", "returns"), both, strict=True)
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
    "what is left of its TD error? (And do you return the advantages first?)",
)
def gae_one_token(code: TaughtCode):
    return _advantages(
        code, numbers(3, 2, 1, mean=2.0), numbers(4, 2, 1, mean=1.0), torch.ones(2, 1), 0.9, 0.7
    )


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
    values = on_mask(numbers(17, 3, 6, mean=1.0), ragged())
    return _advantages(code, numbers(16, 3, 6) + behind_the_end(), values, ragged(), 0.9, 0.7)


@case(
    "compute_gae",
    "a value behind the end must not matter",
    "the same responses, value 1000 on padding too",
    mistake="Your advantages change when the values of padded positions change. Which value does the TD error of the last "
    "real token look at?",
)
def gae_padded_values(code: TaughtCode):
    values = numbers(17, 3, 6, mean=1.0) + behind_the_end()
    return _advantages(code, numbers(16, 3, 6) + behind_the_end(), values, ragged(), 0.9, 0.7)


@case(
    "compute_gae",
    "returns of padded responses",
    "the same responses",
    mistake="Your returns change when padded positions change, although your advantages do not.",
)
def gae_padded_returns(code: TaughtCode):
    values = numbers(17, 3, 6, mean=1.0) + behind_the_end()
    shown = _gae(code, numbers(16, 3, 6) + behind_the_end(), values, ragged(), 0.9, 0.7)
    return {"returns": on_mask(shown["returns"], ragged())}


@case(
    "compute_gae",
    "any kind of mask",
    "0s and 1s as integers, as bools and as floats",
    mistake="Your code depends on the type of the mask: a tokenizer gives integers, a comparison gives bools.",
)
def gae_mask_kinds(code: TaughtCode):
    rewards, values = numbers(18, 3, 6), numbers(19, 3, 6, mean=1.0)
    kinds = _of_each_kind(ragged()).items()
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
    shown = _gae(code, numbers(1, 3, 6), numbers(2, 3, 6).requires_grad_(), ragged(), 0.9, 0.7)
    return {f"{name} carry a gradient": x.requires_grad for name, x in shown.items()}


@case(
    "compute_gae",
    "arguments stay as they are",
    "rewards, values and mask compared before and after",
    mistake="Your function changes its arguments in place: whoever uses the same tensor afterwards gets your numbers.",
)
def gae_arguments(code: TaughtCode):
    return _changes(code.ppo.compute_gae, rewards=numbers(1, 3, 6), values=numbers(2, 3, 6), mask=ragged())


@case(
    "compute_gae",
    "0 outside the mask",
    "the padded positions, and a response without a token",
    mistake="On the mask all is right. Outside it, both results have to be 0.",
)
def gae_outside(code: TaughtCode):
    mask = torch.cat([ragged(), torch.zeros(1, 6, dtype=ragged().dtype)])
    shown = _gae(code, numbers(20, 4, 6), numbers(21, 4, 6, mean=1.0), mask, 0.9, 0.7)
    return {f"{name} outside the mask": on_mask(x, 1 - mask) for name, x in shown.items()}


@case(
    "compute_gae",
    "the defaults",
    "[1, 6], gamma and lam left out",
    mistake="Left out, an argument has another value than it had in the signature that you were given. Which default have "
    "you changed?",
)
def gae_defaults(code: TaughtCode):
    returned = code.ppo.compute_gae(numbers(12, 1, 6), numbers(13, 1, 6, mean=1.0), torch.ones(1, 6))
    advantages, _ = parts("compute_gae", returned, "advantages", "returns")
    return {"advantages": tensor("compute_gae", advantages, (1, 6))}


# --- 3.3 masked_whiten ----------------------------------------------------------------------------


def _whitened(code: TaughtCode, x: Tensor, mask: Tensor) -> Tensor:
    """What `masked_whiten` makes of x, on the mask."""
    return on_mask(tensor("masked_whiten", code.ppo.masked_whiten(x, mask), x.shape), mask)


@case("masked_whiten", "one tensor, [batch, response]", "x [2, 6]")
def whiten_shape(code: TaughtCode):
    x = numbers(40, 2, 6)
    return {"the shape": list(tensor("masked_whiten", code.ppo.masked_whiten(x, torch.ones(2, 6))).shape)}


@case(
    "masked_whiten",
    "mean 0",
    "[1, 6] without padding, mean 3",
    mistake="The mean of what you return is not 0. What has to be taken off every number, and is it done before or after "
    "the division?",
)
def whiten_mean(code: TaughtCode):
    return {"the mean": _whitened(code, numbers(41, 1, 6, mean=3.0, std=2.0), torch.ones(1, 6)).mean()}


@case(
    "masked_whiten",
    "variance 1",
    "[1, 6] without padding, standard deviation about 2",
    mistake="The mean is 0, and the variance is not 1. By what do you divide: what has the unit of x itself?",
)
def whiten_variance(code: TaughtCode):
    return {
        "the variance": _whitened(code, numbers(41, 1, 6, mean=3.0, std=2.0), torch.ones(1, 6)).var(
            correction=0
        )
    }


@case(
    "masked_whiten",
    "every number keeps its place and its sign",
    "[1, 6] without padding",
    mistake="Mean and variance are right, and the numbers are not: whitening only shifts and scales.",
)
def whiten_numbers(code: TaughtCode):
    return {"whitened": _whitened(code, numbers(42, 1, 6, mean=3.0, std=2.0), torch.ones(1, 6))}


@case(
    "masked_whiten",
    "an outlier stays one",
    "[2, 16], one number 50 above the others",
    mistake="A number that is far from the mean is cut off. Whitening only shifts and scales.",
)
def whiten_outlier(code: TaughtCode):
    x = numbers(48, 2, 16)
    x[0, 3] += 50
    return {"the outlier, whitened": _whitened(code, x, torch.ones(2, 16))[0, 3]}


@case(
    "masked_whiten",
    "all tokens of the batch together",
    "[3, 4] without padding, rows around -5, 0 and 10",
    mistake="You whiten each row, or each column, on its own. A response that is better than the others has to stay so: "
    "one mean and one variance for all tokens of the batch.",
)
def whiten_batch(code: TaughtCode):
    x = numbers(43, 3, 4) + torch.tensor([[-5.0], [0.0], [10.0]])
    return {"whitened": _whitened(code, x, torch.ones(3, 4))}


@case(
    "masked_whiten",
    "padding is not counted",
    "rows of 6, 4 and 1 tokens, 0 on padding",
    mistake="Padded positions count as numbers, although what stands there is 0. By how many do you divide, and what does "
    "a padded position become once the mean is taken off?",
)
def whiten_padding_counted(code: TaughtCode):
    return {"whitened": _whitened(code, on_mask(numbers(44, 3, 6, mean=3.0, std=2.0), ragged()), ragged())}


@case(
    "masked_whiten",
    "padding must not matter",
    "the same rows, 1000 on padding",
    mistake="What stands on the padding enters your mean or your variance.",
)
def whiten_padding(code: TaughtCode):
    x = on_mask(numbers(44, 3, 6, mean=3.0, std=2.0), ragged()) + behind_the_end()
    return {"whitened": _whitened(code, x, ragged())}


@case(
    "masked_whiten",
    "any kind of mask",
    "0s and 1s as integers, as bools and as floats",
    mistake="Your code depends on the type of the mask: indexing with integers picks rows, and bools cannot be subtracted.",
)
def whiten_mask_kinds(code: TaughtCode):
    x = numbers(45, 3, 6, mean=3.0, std=2.0)
    return {
        f"whitened with {kind}": _whitened(code, x, mask) for kind, mask in _of_each_kind(ragged()).items()
    }


@case(
    "masked_whiten",
    "all numbers equal",
    "[2, 2], each 2: their variance is 0",
    mistake="When all numbers are equal, you divide by 0. What is eps for?",
)
def whiten_equal(code: TaughtCode):
    return {"whitened": _whitened(code, torch.full((2, 2), 2.0), torch.ones(2, 2))}


@case(
    "masked_whiten",
    "all numbers equal, whatever number",
    "twenty times rows of 6, 4 and 1 tokens, all of one number",
    mistake="Where all numbers are equal, the result is not finite: rounding makes your variance negative.",
)
def whiten_equal_fractions(code: TaughtCode):
    many = [_whitened(code, torch.full((3, 6), x), ragged()) for x in numbers(38, 20, mean=4.0).tolist()]
    return {"all are finite": all(bool(whitened.isfinite().all()) for whitened in many)}


@case(
    "masked_whiten",
    "eps",
    "[1, 6], eps 1e-8 and 4",
    mistake="eps makes no difference: your code uses a number of its own.",
)
def whiten_eps(code: TaughtCode):
    x, mask = numbers(49, 1, 6, std=2.0), torch.ones(1, 6)
    small, large = (
        tensor("masked_whiten", code.ppo.masked_whiten(x, mask, eps=eps), x.shape).abs().max().item()
        for eps in (1e-8, 4.0)
    )
    return {"a large eps makes the numbers smaller": large < 0.95 * small}


@case(
    "masked_whiten",
    "a single token",
    "[2, 3], one 1 in the mask",
    mistake="With a single token on the mask your result is not a finite number: a sample variance divides by the number "
    "of tokens less one.",
)
def whiten_single(code: TaughtCode):
    mask = torch.tensor([[0, 0, 0], [1, 0, 0]])
    return {"whitened": _whitened(code, torch.full((2, 3), 5.0), mask)}


@case(
    "masked_whiten",
    "arguments stay as they are",
    "x and mask compared before and after",
    mistake="Your function changes its arguments in place: whoever uses the same tensor afterwards gets your numbers.",
)
def whiten_arguments(code: TaughtCode):
    return _changes(code.ppo.masked_whiten, x=numbers(46, 3, 6), mask=ragged())


@case(
    "masked_whiten",
    "0 outside the mask",
    "the padded positions",
    mistake="On the mask all is right. Outside it, the result has to be 0.",
)
def whiten_outside(code: TaughtCode):
    whitened = tensor(
        "masked_whiten", code.ppo.masked_whiten(numbers(47, 3, 6, mean=3.0), ragged()), ragged().shape
    )
    return {"whitened outside the mask": on_mask(whitened, 1 - ragged())}


# --- 3.4 ppo_losses -------------------------------------------------------------------------------

CLIP_RANGE, CLIP_RANGE_VALUE, VF_COEF = 0.3, 0.4, 0.7
INFO = ("policy_loss", "value_loss", "approx_kl", "clipfrac")


def loss_arguments(
    ratio: Tensor,
    advantages: Tensor,
    *,
    moved: Tensor | None = None,
    returns: Tensor | None = None,
    mask: Tensor | None = None,
) -> dict[str, Tensor]:
    """The seven tensors of `ppo_losses`: `moved` is how far the values went from the old ones, which are near 1."""
    old_logprobs, old_values = (
        numbers(80, *ratio.shape, mean=-2.0, std=0.5),
        numbers(81, *ratio.shape, mean=1.0),
    )
    return {
        "new_logprobs": old_logprobs + ratio.log(),
        "old_logprobs": old_logprobs,
        "advantages": advantages,
        "new_values": old_values + (moved if moved is not None else numbers(82, *ratio.shape, std=0.1)),
        "old_values": old_values,
        "returns": returns if returns is not None else numbers(83, *ratio.shape, mean=1.0),
        "mask": mask if mask is not None else torch.ones_like(ratio),
    }


def ragged_arguments(*, on_padding: float) -> dict[str, Tensor]:
    """The same for three responses of 6, 4 and 1 tokens, with garbage of this size on the padding.

    Ratios and values move less than their clip ranges.
    """
    garbage = (1 - ragged()) * on_padding
    arguments = loss_arguments(
        on_mask(numbers(84, 3, 6, std=0.1), ragged()).exp(),
        on_mask(numbers(85, 3, 6, mean=3.0, std=2.0), ragged()) + garbage * 100,
        moved=on_mask(numbers(86, 3, 6, std=0.1), ragged()) + garbage * 50,
        mask=ragged(),
    )
    arguments["returns"] = (
        arguments["returns"].where(ragged().bool(), arguments["new_values"]) - garbage * 100
    )
    arguments["new_logprobs"] += garbage
    return arguments


def _losses(code: TaughtCode, arguments: dict[str, Tensor]) -> dict[str, Any]:
    """What `ppo_losses` returns: its total, and the entries of its dictionary as numbers."""
    returned = code.ppo.ppo_losses(
        **arguments, clip_range=CLIP_RANGE, clip_range_value=CLIP_RANGE_VALUE, vf_coef=VF_COEF
    )
    total, info = parts("ppo_losses", returned, "total", "info")
    info = entries("ppo_losses", info, *INFO)
    return {
        "total": tensor("ppo_losses, for its total,", total, ()),
        **{name: one_number(f"{name} of ppo_losses", info[name]) for name in INFO},
    }


def _policy_loss(code: TaughtCode, ratio: float, advantage: float) -> float:
    """The policy loss of a single token."""
    return _losses(code, loss_arguments(torch.tensor([[ratio]]), torch.tensor([[advantage]])))["policy_loss"]


def _value_loss(code: TaughtCode, moved: float, to_go: float) -> float:
    """The value loss of a single token whose return lies `to_go` from the old value."""
    arguments = loss_arguments(torch.ones(1, 1), torch.ones(1, 1), moved=torch.tensor([[moved]]))
    arguments["returns"] = arguments["old_values"] + to_go
    return _losses(code, arguments)["value_loss"]


@case("ppo_losses", "a loss and four numbers", "seven tensors [2, 6]")
def losses_shape(code: TaughtCode):
    shown = _losses(code, loss_arguments(numbers(87, 2, 6, std=0.1).exp(), numbers(88, 2, 6, mean=3.0)))
    return {"the shape of the loss": list(shown["total"].shape)}


@case(
    "ppo_losses",
    "policy loss before the first step",
    "[1, 6], ratio 1, advantages of mean 3",
    mistake="While new and old policy agree, the policy loss is minus the mean advantage: a loss that falls has to raise "
    "what went well. Is the sign right, and do you use the advantages as they are given?",
)
def losses_ratio_one(code: TaughtCode):
    shown = _losses(code, loss_arguments(torch.ones(1, 6), numbers(89, 1, 6, mean=3.0, std=2.0)))
    return {"policy_loss": shown["policy_loss"]}


@case(
    "ppo_losses",
    "policy loss within the clip range",
    "[1, 6], ratios between 0.8 and 1.2, clip_range 0.3",
    mistake="Within the clip range nothing is clipped, and yet your policy loss is not that of advantage times ratio. How do "
    "you make the ratio out of two log-probabilities?",
)
def losses_within(code: TaughtCode):
    ratio = torch.tensor([[0.8, 0.9, 0.95, 1.05, 1.1, 1.2]])
    return {
        "policy_loss": _losses(code, loss_arguments(ratio, numbers(90, 1, 6, mean=3.0, std=2.0)))[
            "policy_loss"
        ]
    }


@case(
    "ppo_losses",
    "what went the wrong way counts in full",
    "one token, ratio 1.6 with advantage -2, ratio 0.5 with advantage 2",
    mistake="A token that has moved the wrong way is clipped in your loss, and so gets no gradient to come back. Of the two "
    "candidates, clipped and unclipped, which one is the worse here?",
)
def losses_harm(code: TaughtCode):
    return {
        "policy_loss at ratio 1.6 and advantage -2": _policy_loss(code, 1.6, -2.0),
        "policy_loss at ratio 0.5 and advantage 2": _policy_loss(code, 0.5, 2.0),
    }


@case(
    "ppo_losses",
    "what went far enough is clipped",
    "one token, ratio 1.6 with advantage 2, ratio 0.5 with advantage -2; clip_range 0.3",
    mistake="A token that has moved the right way already, and by more than clip_range, still drives your loss, or is clipped "
    "at another place. Is the ratio clipped on both sides, and by the range of the policy?",
)
def losses_clipped(code: TaughtCode):
    return {
        "policy_loss at ratio 1.6 and advantage 2": _policy_loss(code, 1.6, 2.0),
        "policy_loss at ratio 0.5 and advantage -2": _policy_loss(code, 0.5, -2.0),
    }


@case(
    "ppo_losses",
    "value loss within the clip range",
    "[1, 6], values moved by less than clip_range_value",
    mistake="Within the clip range nothing is clipped, and yet your value loss is not half the mean squared distance between "
    "new values and returns.",
)
def losses_value_within(code: TaughtCode):
    moved = torch.tensor([[-0.35, -0.2, -0.1, 0.1, 0.2, 0.35]])
    arguments = loss_arguments(torch.ones(1, 6), numbers(91, 1, 6, mean=3.0), moved=moved)
    return {"value_loss": _losses(code, arguments)["value_loss"]}


@case(
    "ppo_losses",
    "a value that went the wrong way counts in full",
    "one token, moved by 1 away from its return, clip_range_value 0.4",
    mistake="A value that has moved away from its return is clipped in your loss, and so gets no gradient to come back. Of "
    "the two errors, clipped and unclipped, which one is the worse here?",
)
def losses_value_away(code: TaughtCode):
    return {
        "value_loss of a value moved up, its return below": _value_loss(code, 1.0, -0.8),
        "value_loss of a value moved down, its return above": _value_loss(code, -1.0, 0.8),
    }


@case(
    "ppo_losses",
    "a value that went far enough is clipped",
    "one token, moved by 1 toward its return, clip_range_value 0.4",
    mistake="A value that has moved toward its return by more than clip_range_value still drives your loss, or is clipped at "
    "another place. From where is the distance measured, on both sides, and which of the two ranges is it?",
)
def losses_value_toward(code: TaughtCode):
    return {
        "value_loss of a value moved up, its return above": _value_loss(code, 1.0, 1.5),
        "value_loss of a value moved down, its return below": _value_loss(code, -1.0, -1.5),
    }


@case(
    "ppo_losses",
    "each token is judged on its own",
    "[1, 6], some tokens within the clip ranges, some beyond them on either side",
    mistake="One token alone is right, several at once are not. Clipped or unclipped is chosen for each token by itself, "
    "before the mean.",
)
def losses_each_token(code: TaughtCode):
    ratio = torch.tensor([[1.6, 1.6, 0.5, 0.5, 1.1, 0.9]])
    moved = torch.tensor([[1.0, -1.0, 1.0, -1.0, 0.1, -0.2]])
    arguments = loss_arguments(ratio, torch.tensor([[2.0, -2.0, 2.0, -2.0, 1.0, -1.0]]), moved=moved)
    arguments["returns"] = arguments["old_values"] + torch.tensor([[1.5, 0.8, -0.8, -1.5, 0.5, 0.5]])
    shown = _losses(code, arguments)
    return {name: shown[name] for name in ("policy_loss", "value_loss")}


@case(
    "ppo_losses",
    "the total",
    "[1, 6], vf_coef 0.7",
    mistake="policy_loss and value_loss are right, and their sum is not. How much does the value loss count in it?",
)
def losses_total(code: TaughtCode):
    arguments = loss_arguments(numbers(87, 1, 6, std=0.1).exp(), numbers(88, 1, 6, mean=3.0))
    return {"total": _losses(code, arguments)["total"]}


@case(
    "ppo_losses",
    "approx_kl",
    "one token, log-ratio 0.5 and -0.5",
    mistake="Your approx_kl is another estimate than the docstring's, or has its arguments or its sign the other way round. "
    "Can yours be negative?",
)
def losses_approx_kl(code: TaughtCode):
    ratios = {"a token that became likelier": 0.5, "a token that became less likely": -0.5}
    return {
        f"approx_kl of {name}": _losses(code, loss_arguments(torch.tensor([[x]]).exp(), torch.ones(1, 1)))[
            "approx_kl"
        ]
        for name, x in ratios.items()
    }


@case(
    "ppo_losses",
    "clipfrac",
    "[1, 15], 9 ratios further than 0.3 from 1, on both sides and with both signs of the advantage",
    mistake="Your clipfrac counts other tokens than those whose ratio, as it is before the clip, is further than clip_range "
    "from 1.",
)
def losses_clipfrac(code: TaughtCode):
    ratio = torch.tensor([[1.6, 1.6, 1.6, 1.35, 0.5, 0.5, 0.5, 0.5, 0.65, 0.72, 0.8, 0.9, 1.0, 1.1, 1.25]])
    advantages = torch.tensor([[2.0, 2, -2, -2, 2, 2, 2, -2, 2, 2, 2, -2, 2, -2, -2]])
    return {"clipfrac": _losses(code, loss_arguments(ratio, advantages))["clipfrac"]}


@case(
    "ppo_losses",
    "very far from the old policy and the old value",
    "one token, log-ratio 4 and -4; a value 35 from its return",
    mistake="Small steps and errors are right, and large ones are cut off. Where the docstring names no clip, there is none.",
)
def losses_large(code: TaughtCode):
    far = torch.tensor([[4.0]])
    less_likely, likelier = (_losses(code, loss_arguments(x.exp(), torch.ones(1, 1))) for x in (-far, far))
    return {
        "policy_loss at log-ratio 4 and advantage -2": _policy_loss(code, far.exp().item(), -2.0),
        "policy_loss at log-ratio -4 and advantage 2": _policy_loss(code, (-far).exp().item(), 2.0),
        "approx_kl at log-ratio 4": likelier["approx_kl"],
        "approx_kl at log-ratio -4": less_likely["approx_kl"],
        "value_loss": _value_loss(code, 5.0, -30.0),
    }


@case(
    "ppo_losses",
    "policy loss: each token counts the same",
    "responses of 6, 4 and 1 tokens, nothing on padding",
    mistake="Your policy loss is no mean over the tokens of the mask, although what stands on the padding is 0. Do you divide "
    "by the number of positions, or average within each row first?",
)
def losses_policy_mean(code: TaughtCode):
    return {"policy_loss": _losses(code, ragged_arguments(on_padding=0.0))["policy_loss"]}


@case(
    "ppo_losses",
    "policy loss: padding must not matter",
    "the same responses, garbage on padding",
    mistake="Your policy loss changes when padded positions change.",
)
def losses_policy_padding(code: TaughtCode):
    return {"policy_loss": _losses(code, ragged_arguments(on_padding=3.0))["policy_loss"]}


@case(
    "ppo_losses",
    "value loss: each token counts the same",
    "responses of 6, 4 and 1 tokens, no error on padding",
    mistake="Your value loss is no mean over the tokens of the mask, although the error on the padding is 0. Do you divide by "
    "the number of positions, or average within each row first?",
)
def losses_value_mean(code: TaughtCode):
    return {"value_loss": _losses(code, ragged_arguments(on_padding=0.0))["value_loss"]}


@case(
    "ppo_losses",
    "value loss: padding must not matter",
    "the same responses, garbage on padding",
    mistake="Your value loss changes when padded positions change.",
)
def losses_value_padding(code: TaughtCode):
    return {"value_loss": _losses(code, ragged_arguments(on_padding=3.0))["value_loss"]}


@case(
    "ppo_losses",
    "approx_kl and clipfrac on padded responses",
    "the same responses, garbage on padding, one token beyond the clip range",
    mistake="The losses are means over the tokens of the mask, and the two numbers beside them are not.",
)
def losses_info_padding(code: TaughtCode):
    arguments = ragged_arguments(on_padding=3.0)
    arguments["new_logprobs"][1, 2] += 1.0
    shown = _losses(code, arguments)
    return {name: shown[name] for name in ("approx_kl", "clipfrac")}


@case(
    "ppo_losses",
    "any kind of mask",
    "0s and 1s as integers, as bools and as floats",
    mistake="Your code depends on the type of the mask: a tokenizer gives integers, a comparison gives bools.",
)
def losses_mask_kinds(code: TaughtCode):
    arguments = ragged_arguments(on_padding=3.0)
    return {
        f"total with {kind}": _losses(code, {**arguments, "mask": mask})["total"]
        for kind, mask in _of_each_kind(ragged()).items()
    }


@case(
    "ppo_losses",
    "the gradient of the new policy and values",
    "responses of 6, 4 and 1 tokens, some tokens beyond the clip ranges",
    mistake="The numbers are right, and the gradient is not: a part of your loss is cut off from new_logprobs or new_values.",
)
def losses_gradient(code: TaughtCode):
    arguments = ragged_arguments(on_padding=0.0)
    arguments["new_logprobs"][0, :2] += torch.tensor([1.0, -1.0])
    arguments["new_values"][0, 2:4] += torch.tensor([1.0, -1.0])
    names = ("new_logprobs", "new_values")
    for name in names:
        arguments[name].requires_grad_()
    total = _losses(code, arguments)["total"]
    if not total.requires_grad:
        return {"the loss carries a gradient": False}
    total.backward()
    gradients = {f"the gradient of {name}": arguments[name].grad for name in names}
    return {"the loss carries a gradient": True, **gradients}


@case(
    "ppo_losses",
    "no gradient elsewhere",
    "old log-probabilities, advantages, old values and returns that carry one",
    mistake="A gradient reaches tensors that stay fixed during the update. The loss must move the new policy and the new "
    "values only.",
)
def losses_gradient_elsewhere(code: TaughtCode):
    arguments = ragged_arguments(on_padding=0.0)
    for name in arguments.keys() - {"mask"}:
        arguments[name].requires_grad_()
    _losses(code, arguments)["total"].backward()
    fixed = ("old_logprobs", "advantages", "old_values", "returns")
    return {f"a gradient reaches {name}": arguments[name].grad is not None for name in fixed}


@case(
    "ppo_losses",
    "arguments stay as they are",
    "all seven compared before and after",
    mistake="Your function changes its arguments in place. The next epoch uses the same rollout once more.",
)
def losses_arguments_stay(code: TaughtCode):
    return _changes(code.ppo.ppo_losses, **ragged_arguments(on_padding=3.0))


@case(
    "ppo_losses",
    "plain numbers in info",
    "the type of each entry",
    mistake="The entries of info have to be plain floats. A tensor that is kept in a history keeps its whole graph in memory.",
)
def losses_info_floats(code: TaughtCode):
    returned = code.ppo.ppo_losses(**ragged_arguments(on_padding=0.0))
    _, info = parts("ppo_losses", returned, "total", "info")
    return {
        f"{name} is a float": isinstance(entries("ppo_losses", info, *INFO)[name], float) for name in INFO
    }


@case(
    "ppo_losses",
    "the defaults",
    "one token beyond both clip ranges, clip_range, clip_range_value and vf_coef left out",
    mistake="Left out, an argument has another value than it had in the signature that you were given. Which default have "
    "you changed?",
)
def losses_defaults(code: TaughtCode):
    ones = torch.ones(1, 1)
    arguments = loss_arguments(1.6 * ones, 2 * ones, moved=ones)
    arguments["returns"] = arguments["old_values"] + 1.5
    total, info = parts("ppo_losses", code.ppo.ppo_losses(**arguments), "total", "info")
    info = entries("ppo_losses", info, *INFO)
    return {
        "policy_loss": one_number("policy_loss of ppo_losses", info["policy_loss"]),
        "value_loss": one_number("value_loss of ppo_losses", info["value_loss"]),
        "total": tensor("ppo_losses, for its total,", total, ()),
    }
