"""Hidden tests of exercises 3.1 to 3.4 in `ppo.py`: actor and critic, log-probabilities, rewards, losses."""

import copy
from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import solutions.ppo as reference
from rlhf_lab.checks.models import RECOMMENDED, recommending_folder
from rlhf_lab.room.props import ppo as props
from rlhf_lab.room.props import shared
from rlhf_lab.room.wire import Remote

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
from .models import micro_policy

LENGTHS = (6, 4, 1)  # of three responses; the mask of a test is float where its type is not what is tested


def _ragged() -> Tensor:
    return right_mask(*LENGTHS).float()


def _other_types(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The mask as a tokenizer and as a comparison hand it on."""
    return mask.long(), mask.bool()


def _signs(*shape: int) -> Tensor:
    """1 and -1 in turns."""
    return 1 - 2 * (torch.arange(torch.Size(shape).numel()) % 2).reshape(shape).float()


# --- 3.1 PolicyWithValueHead ----------------------------------------------------------------------

POLICY = "PolicyWithValueHead"
HEAD_TOLERANCE = 2e-3  # GELU's approximation by tanh is off by up to 5e-4, another activation by 0.1


def _words(draw: Draw, *shape: int) -> Tensor:
    """Ids of any token, and EOS inside the texts."""
    config = micro_policy().lm.config
    ids = draw.integers(0, config.vocab_size, *shape)
    ids[:, 1::4] = config.eos_token_id
    return ids


@torch.no_grad()
def _logits(ids: Tensor, positions: Tensor | None = None) -> Tensor:
    """Of the micro model itself, without padding."""
    return micro_policy()(ids, torch.ones_like(ids), positions)[0]


@torch.no_grad()
def _last_hidden_states(ids: Tensor) -> Tensor:
    return micro_policy().lm.transformer(ids).last_hidden_state


def _policy(candidate: Candidate) -> Remote:
    """A new policy of the candidate's on the micro model, in eval mode."""
    return candidate.call(props.new_policy).value


def _policy_with_head(candidate: Candidate, draw: Draw) -> tuple[Remote, list[dict[str, Tensor | None]]]:
    """The same with drawn numbers in its value head, and these; what it says is far from 0."""
    policy = _policy(candidate)
    layers = candidate.call(props.linear_layers, policy).value
    for layer in layers:
        rows, columns = tensor(layer["weight"]).shape
        # of one sign in the last layer: what one activation gives more than another adds up
        last = draw.uniform(2, 6, 1, columns) / columns
        layer["weight"] = last if rows == 1 else draw.normal(rows, columns, std=0.4)
        layer["bias"] = None if layer["bias"] is None else draw.normal(rows, std=0.3)
    return candidate.call(props.fill_layers, policy, layers).value, layers


def _pass(candidate: Candidate, policy: Remote, ids: Tensor, **options) -> Any:
    """What a pass without padding returns."""
    return candidate.call(policy, ids, torch.ones_like(ids), **options).value


def _both(returned: Any, ids: Tensor, kept: int | None = None) -> tuple[Tensor, Tensor]:
    """Logits and values of a pass, of the shapes that they have to have."""
    logits, values = parts(returned, 2)
    vocabulary = micro_policy().lm.config.vocab_size
    tensor(logits, len(ids), kept or ids.shape[1], vocabulary, what="the logits")
    return logits, tensor(values, *ids.shape, what="the values")


LOGITS = "the logits of the language model"


@hidden(
    POLICY,
    LOGITS,
    points=0.5,
    catches=[
        "random weights", "bfloat16", "log-probabilities or a temperature", "values first", "an output object",
        "the first token numbered 1", "dropout switched on", "EOS taken for padding",
    ],
    message="The logits of a text are not those of the language model that was asked for.",
)  # fmt: skip
def policy_logits(candidate: Candidate, draw: Draw):
    ids = _words(draw, 3, 9)
    logits, _ = parts(_pass(candidate, _policy(candidate), ids), 2)
    agree(tensor(logits), _logits(ids))


@hidden(
    POLICY,
    "a new critic expects nothing",
    points=0.25,
    catches=["last layer not zero", "its bias not zero", "no value for each token"],
    message="The values of a new policy are not what the docstring says of a fresh critic.",
)
def policy_fresh(candidate: Candidate, draw: Draw):
    ids = _words(draw, 3, 9)
    _, values = _both(_pass(candidate, _policy(candidate), ids), ids)
    check(not values.any())


VALUES = "values of the last hidden state"


@hidden(
    POLICY,
    VALUES,
    points=0.5,
    catches=[
        "an earlier layer", "before the final norm", "the norm twice", "the mean over the text", "shifted values",
        "the last value everywhere", "squashed values",
    ],
    message="The values are not what the value head says about the last hidden state of each position.",
)  # fmt: skip
def policy_values(candidate: Candidate, draw: Draw):
    ids = _words(draw, 3, 9)
    policy, _ = _policy_with_head(candidate, draw)
    _, values = _both(_pass(candidate, policy, ids), ids)
    hidden_states = _last_hidden_states(ids)
    judged = tensor(candidate.call(candidate.read(policy, "value_head"), hidden_states).value)
    agree(values, judged.reshape(values.shape))


@hidden(
    POLICY,
    "the layers of the value head",
    points=0.5,
    catches=["one layer", "three layers", "no activation", "another activation"],
    message="The value head is not built as the docstring says: look at its layers and at what stands between them.",
)
def policy_head(candidate: Candidate, draw: Draw):
    policy, layers = _policy_with_head(candidate, draw)
    check(len(layers) == 2)
    states = draw.normal(2, 8, micro_policy().lm.config.hidden_size)
    judged = tensor(candidate.call(candidate.read(policy, "value_head"), states).value)
    first, last = layers
    expected = F.linear(
        F.gelu(F.linear(states, first["weight"], first["bias"])), last["weight"], last["bias"]
    )
    agree(judged.reshape(2, 8), expected.squeeze(-1), tolerance=HEAD_TOLERANCE)


@hidden(
    POLICY,
    "one text, one token",
    points=0.25,
    catches=["squeeze without an axis", "an axis of length 1 left over"],
    message="Logits or values lose an axis, or gain one, when there is a single text or a single token.",
)
def policy_axes(candidate: Candidate, draw: Draw):
    passes = [{"ids": _words(draw, *shape)} for shape in ((1, 1), (1, 4), (3, 1))]
    returned = parts(candidate.call(props.forward_each, _policy(candidate), passes).value, len(passes))
    for each, one in zip(returned, passes, strict=True):
        _both(each, one["ids"])


@hidden(
    POLICY,
    "a padded text is read as the text alone",
    points=0.5,
    catches=[
        "no attention mask", "no position_ids", "padding numbered", "one row of the batch decides for all",
    ],
    message="A text that is padded gets other logits or values than the same text alone.",
)  # fmt: skip
def policy_padding(candidate: Candidate, draw: Draw):
    policy, _ = _policy_with_head(candidate, draw)
    ids, mask = _words(draw, 4, 9), torch.cat([left_mask(9, 6, 3), right_mask(5, width=9)])
    real = mask.bool()
    # a padded row stands behind a full one, and before it
    orders = torch.tensor([[0, 1, 2, 3], [2, 3, 1, 0]])
    alone = [{"ids": row[valid].unsqueeze(0)} for row, valid in zip(ids, real, strict=True)]
    # with numbers of the caller's, nothing but the mask says what is padding
    numbered = {"mask": mask, "position_ids": torch.arange(9).expand(4, 9)}
    passes = [
        *alone,
        *({"ids": ids[order], "mask": mask[order]} for order in orders),
        {"ids": ids, **numbered},
        {"ids": ids.where(real, _words(draw, 4, 9)), **numbered},
    ]
    returned = parts(candidate.call(props.forward_each, policy, passes).value, len(passes))
    seen = [_both(each, one["ids"]) for each, one in zip(returned, passes, strict=True)]
    check(bool(seen[0][0].std() > 0))
    for order, together in zip(orders, seen[4:6], strict=True):
        for row, *text in zip(order, *together, strict=True):
            for got, expected in zip(text, seen[row], strict=True):
                agree(got[real[row]], expected[0])
    for got, expected in zip(*seen[6:], strict=True):
        agree(got[real], expected[real])


@hidden(
    POLICY,
    "position_ids that are given",
    points=0.25,
    catches=["given position_ids ignored"],
    message="position_ids that the caller gives do not reach the language model.",
)
def policy_positions(candidate: Candidate, draw: Draw):
    ids = _words(draw, 2, 8)
    positions = torch.arange(8) + torch.tensor([[draw.whole(2, 20)], [draw.whole(20, 50)]])
    returned = _pass(candidate, _policy(candidate), ids, position_ids=positions)
    agree(_both(returned, ids)[0], _logits(ids, positions))


@hidden(
    POLICY,
    "logits_to_keep",
    points=0.25,
    catches=["not handed on", "shortens the values", "counts from the start"],
    message="logits_to_keep does not leave what the docstring says, of the logits or of the values.",
    after=[LOGITS],
)
def policy_keep(candidate: Candidate, draw: Draw):
    ids = _words(draw, 2, 9)
    policy, _ = _policy_with_head(candidate, draw)
    kept = draw.whole(2, 8)
    passes = [{"ids": ids}, {"ids": ids, "logits_to_keep": kept}]
    everything, some = parts(candidate.call(props.forward_each, policy, passes).value, 2)
    (logits, values), (some_logits, all_values) = _both(everything, ids), _both(some, ids, kept)
    agree(some_logits, logits[:, -kept:])
    agree(all_values, values)


@hidden(
    POLICY,
    "both losses can move the model",
    points=0.5,
    catches=[
        "values or logits cut off", "hidden states cut off", "frozen weights", "a pass without gradients",
        "first layer of the head zero",
    ],
    message="A gradient does not get where it has to: a loss of the logits and one of the values both reach the backbone, "
    "and a fresh value head can leave its zeros.",
)  # fmt: skip
def policy_gradients(candidate: Candidate, draw: Draw):
    ids = _words(draw, 2, 6)
    towards_values = draw.normal(2, 6)
    of_fresh = _gradients(candidate, _policy(candidate), ids, 1, towards_values)
    of_head = [x for name, x in of_fresh.items() if name.startswith("value_head.") and x is not None]
    check(any(x.ndim == 2 and len(x) == 1 and bool(x.any()) for x in of_head))

    policy, _ = _policy_with_head(candidate, draw)
    towards_logits = draw.normal(2, 6, micro_policy().lm.config.vocab_size)
    of_logits = _gradients(candidate, policy, ids, 0, towards_logits)
    of_values = _gradients(candidate, policy, ids, 1, towards_values)
    expected = shared.gradients(micro_policy(), ids, torch.ones_like(ids), towards_logits, output=0)
    for name, wanted in expected.items():
        if name.startswith("lm."):
            check(of_logits.get(name) is not None and _near(of_logits[name], wanted))
            check(of_values.get(name) is not None and bool(of_values[name].any()))


def _gradients(candidate: Candidate, policy: Remote, ids: Tensor, output: int, cotangent: Tensor) -> dict:
    return candidate.call(shared.gradients, policy, ids, torch.ones_like(ids), cotangent, output).value


def _near(got: Tensor, expected: Tensor) -> bool:
    scale = float(expected.abs().max()) + 1e-4
    return close(tensor(got) / scale, expected / scale, tolerance=1e-3)


@hidden(
    POLICY,
    "one backbone, one pass",
    points=0.25,
    catches=["a second pass", "a second backbone"],
    message="Actor and critic do not share one backbone and one pass through it.",
    after=[LOGITS, VALUES],
)
def policy_one_pass(candidate: Candidate, draw: Draw):
    seen = candidate.call(props.watched_pass, _policy(candidate), _words(draw, 2, 5)).value
    blocks, names = parts(seen, 2)
    expected, own = props.watched_pass(copy.deepcopy(micro_policy()), _words(draw, 2, 5))
    check(blocks == expected)
    check(
        {name for name in names if not name.startswith("value_head.")}
        == {n for n in own if n.startswith("lm.")}
    )


@hidden(
    POLICY,
    "what a checkpoint recommends is not the policy",
    points=0.25,
    catches=["generation_config left as it is"],
    message="The language model keeps what its checkpoint recommends for sampling: what is sampled is then not the policy.",
)
def policy_recommendations(candidate: Candidate, draw: Draw):
    policy = candidate.call("ppo.PolicyWithValueHead", candidate.call(recommending_folder).value).value
    top_k, penalty = parts(candidate.call(props.recommendations, policy).value, 2)
    check(top_k != RECOMMENDED["top_k"] and penalty != RECOMMENDED["repetition_penalty"])


LOADED = "load_from_sft takes over the weights"


def _fine_tuned(draw: Draw) -> dict[str, Tensor]:
    """The weights of the micro model after some training: each a little different."""
    state = {
        name: weight * draw.number(0.8, 1.2) + 0.02 for name, weight in micro_policy().lm.state_dict().items()
    }
    return state | {"lm_head.weight": state["transformer.wte.weight"].clone()}  # they are tied


@hidden(
    POLICY,
    LOADED,
    points=0.25,
    catches=["loaded into the whole policy", "without the LM head"],
    message="After load_from_sft the policy is not the fine-tuned model.",
)
def policy_load(candidate: Candidate, draw: Draw):
    state, ids = _fine_tuned(draw), _words(draw, 2, 7)
    policy = candidate.call(props.load_from_sft, _policy(candidate), state).value
    tuned = copy.deepcopy(micro_policy())
    tuned.load_from_sft(state)
    with torch.no_grad():
        expected, _ = tuned(ids, torch.ones_like(ids))
    logits, _ = parts(_pass(candidate, policy, ids), 2)
    agree(tensor(logits), expected)


@hidden(
    POLICY,
    "load_from_sft leaves everything else alone",
    points=0.25,
    catches=["the value head set back", "the caller's tensors become the policy's"],
    message="load_from_sft changes the value head, or policy and state dict are one and the same afterwards, so that training "
    "one changes the other.",
    after=[LOADED],
)
def policy_load_alone(candidate: Candidate, draw: Draw):
    policy, layers = _policy_with_head(candidate, draw)
    state = _fine_tuned(draw)
    answer = candidate.call(props.load_and_train, policy, state, after=(1,))
    for layer, kept in zip(answer.value, layers, strict=True):
        check(all(kept[name] is None or torch.equal(tensor(layer[name]), kept[name]) for name in kept))
    check(all(torch.equal(tensor(answer.after[1][name]), weight) for name, weight in state.items()))


@hidden(
    POLICY,
    "load_from_sft refuses a state dict of other names",
    points=0.25,
    catches=["strict=False", "refuses only names too many, or only when no name fits"],
    message="load_from_sft is silent about a state dict of which no name fits: the policy stays as it was, and nobody notices.",
    after=[LOADED],
)
def policy_load_refuses(candidate: Candidate, draw: Draw):
    state = _fine_tuned(draw)

    def refused(other: dict[str, Tensor]) -> bool:
        return candidate.call(props.load_from_sft, _policy(candidate), other).raised is not None

    check(refused({f"backbone.{name}": weight for name, weight in state.items()}))
    block = "transformer.h.1.mlp.c_fc.weight"
    check(
        refused({name: weight for name, weight in state.items() if name != block}),
        "load_from_sft is silent about a state dict that lacks a weight: that one stays as it was, and nobody notices.",
    )
    check(
        refused(state | {block.replace("1", "2"): state[block]}),
        "load_from_sft is silent about a state dict with a weight that the policy does not have: it is left out, and "
        "nobody notices.",
    )


@hidden(
    POLICY,
    "arguments stay as they are",
    points=0.25,
    catches=["mask or position_ids changed in place"],
    message="A pass changes its arguments in place: the next one reads something else.",
    after=[LOGITS],
)
def policy_arguments(candidate: Candidate, draw: Draw):
    ids, mask = _words(draw, 2, 7), left_mask(5, 3, width=7)
    for positions in (None, reference.position_ids_from_mask(mask)):
        arguments = [ids, mask] if positions is None else [ids, mask, positions]
        unchanged(
            candidate.call(_policy(candidate), *arguments, after=tuple(range(len(arguments)))), arguments
        )


# --- 3.2 gather_logprobs --------------------------------------------------------------------------

GATHER = "gather_logprobs"


def _gather(candidate: Candidate, logits: Tensor, ids: Tensor) -> Tensor:
    logprobs = candidate.call("ppo.gather_logprobs", logits, ids).value
    return tensor(logprobs, len(ids), ids.shape[1] - 1)


def _logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """In float64, token by token."""
    rows, length = ids.shape
    by_token = logits.double().log_softmax(-1)
    columns = [by_token[torch.arange(rows), t, ids[:, t + 1]] for t in range(length - 1)]
    return torch.stack(columns, dim=1)


@hidden(
    GATHER,
    "the tokens of one text",
    points=1,
    catches=[
        "no shift, shifted the wrong way or twice", "a column too many", "probabilities or logits", "base 2 or 10",
        "wrong sign", "a temperature", "half precision", "the likeliest token", "sums or means over the text",
    ],
    message="The log-probabilities of a text are wrong: which logits are read, at which token, and how are they normalised?",
)  # fmt: skip
def gather_one_text(candidate: Candidate, draw: Draw):
    length, vocabulary = draw.whole(7, 10), draw.whole(80, 120)
    # the same text twice: rows of their own, and a batch of one, have tests of their own
    logits = draw.normal(1, length, vocabulary, std=4).repeat(2, 1, 1)
    ids = draw.integers(1, vocabulary, 1, length).repeat(2, 1)
    agree(_gather(candidate, logits, ids), _logprobs(logits, ids))


WHO_PREDICTS = "each column is about one position and one token"


@hidden(
    GATHER,
    WHO_PREDICTS,
    points=0.75,
    catches=[
        "no shift, shifted the wrong way or twice",
        "softmax over the positions",
        "sums or means over the text",
    ],
    message="A column depends on other logits than those that predict its token, or on another token.",
)
def gather_who(candidate: Candidate, draw: Draw):
    logits, ids = draw.normal(1, 7, 12).repeat(2, 1, 1), draw.integers(0, 12, 1, 7).repeat(2, 1)
    at, other_logits, other_ids = draw.whole(1, 5), logits.clone(), ids.clone()
    other_logits[:, at, ids[0, at + 1]] -= 2
    other_ids[:, at + 1] = (ids[0, at + 1] + draw.whole(1, 12)) % 12
    one = _gather(candidate, logits, ids)
    for changed in (_gather(candidate, other_logits, ids), _gather(candidate, logits, other_ids)):
        check(((changed - one).abs() > 1e-6).nonzero().tolist() == [[0, at], [1, at]])


@hidden(
    GATHER,
    "several texts",
    points=0.5,
    catches=["rows mixed", "softmax over another axis", "tokens of the first text in every row"],
    message="Several texts at once are not read as each of them alone.",
    after=[WHO_PREDICTS],
)
def gather_rows(candidate: Candidate, draw: Draw):
    for rows, length, vocabulary in ((4, 4, 4), (5, 6, 11)):
        logits, ids = draw.normal(rows, length, vocabulary, std=3), draw.integers(0, vocabulary, rows, length)
        together = _gather(candidate, logits, ids)
        row = draw.whole(2, rows - 1)
        agree(together[row:], _gather(candidate, logits[row:], ids[row:]))
        agree(together[:row], _gather(candidate, logits[:row], ids[:row]))


@hidden(
    GATHER,
    "one text, two tokens",
    points=0.25,
    catches=["squeeze without an axis"],
    message="The result loses an axis when there is a single text or a single token to predict.",
    after=[WHO_PREDICTS],
)
def gather_small(candidate: Candidate, draw: Draw):
    for rows, length in ((1, 2), (3, 2), (1, 5)):
        _gather(candidate, draw.normal(rows, length, 6, std=3), draw.integers(0, 6, rows, length))


@hidden(
    GATHER,
    "every id is a token",
    points=0.25,
    catches=["an id taken for padding"],
    message="Some ids are treated as if they were padding. What padding is, the mask says, and not the ids.",
    after=[WHO_PREDICTS],
)
def gather_ids(candidate: Candidate, draw: Draw):
    logits, ids = draw.normal(2, 7, 9, std=3), torch.tensor([[8, 0, 0, 8, 3, 0, 0], [0, 1, 1, 0, 8, 8, 8]])
    renamed = torch.tensor([4, 5, 6, 7, 8, 0, 1, 2, 3])  # the same text in another vocabulary
    agree(_gather(candidate, logits[..., renamed.argsort()], renamed[ids]), _gather(candidate, logits, ids))


@hidden(
    GATHER,
    "tokens that are next to impossible",
    points=0.5,
    catches=["log of softmax", "a number added inside the logarithm", "exp of a large logit", "cut off"],
    message="Very large logits or very unlikely tokens come out infinite, or cut off.",
)
def gather_extreme(candidate: Candidate, draw: Draw):
    ids = draw.integers(0, 9, 3, 6)
    logits = draw.normal(3, 6, 9, std=2) + draw.uniform(100, 300, 3, 6, 1)
    unlikely = draw.uniform(120, 250, 3, 5) * (1 + _signs(3, 5)) / 2
    logits[:, :-1].scatter_add_(-1, ids[:, 1:, None], -unlikely[..., None])
    agree(_gather(candidate, logits, ids), _logprobs(logits, ids), tolerance=1e-3)


@hidden(
    GATHER,
    "the gradient",
    points=0.5,
    catches=["cut off from the graph", "normalisation without gradient"],
    message="The gradient that reaches the logits is wrong, or none does.",
)
def gather_gradient(candidate: Candidate, draw: Draw):
    logits, ids = draw.normal(2, 5, 7, std=2).requires_grad_(), draw.integers(0, 7, 2, 5)
    cotangent = draw.normal(2, 4, mean=1)
    answer = candidate.call("ppo.gather_logprobs", logits, ids)
    carries = tensor(answer.value, 2, 4).requires_grad
    (gradient,) = answer.gradients(0, cotangent=cotangent.to(answer.value.dtype))
    check(carries and gradient is not None)
    agree(gradient, torch.autograd.grad(_logprobs(logits, ids), logits, cotangent.double())[0])


@hidden(
    GATHER,
    "arguments stay as they are, and any type of float will do",
    points=0.25,
    catches=["logits changed in place", "works for float32 only"],
    message="The arguments are changed in place, or logits of another type of float are a problem.",
    after=[WHO_PREDICTS],
)
def gather_arguments(candidate: Candidate, draw: Draw):
    logits, ids = draw.normal(2, 6, 7, std=3), draw.integers(0, 7, 2, 6)
    unchanged(candidate.call("ppo.gather_logprobs", logits, ids, after=(0, 1)), (logits, ids))
    agree(_gather(candidate, logits.double(), ids), _gather(candidate, logits, ids))


# --- 3.3 shape_token_rewards ----------------------------------------------------------------------

SHAPE = "shape_token_rewards"


def _shaped(candidate: Candidate, *arguments: Tensor, **options) -> Tensor:
    rewards = candidate.call("ppo.shape_token_rewards", *arguments, **options).value
    return tensor(rewards, *arguments[1].shape)


def _two_logprobs(draw: Draw, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Under policy and reference: they differ everywhere, in both directions."""
    old = draw.normal(rows, columns, mean=-2, std=0.5)
    return old, old - draw.uniform(0.4, 1.5, rows, columns) * _signs(rows, columns)


def _scores(draw: Draw, rows: int) -> Tensor:
    """Distinct ones of both signs, none near 0."""
    return torch.tensor(draw.shuffled([2.0, -3.0, 4.0, -1.5][:rows])) + draw.uniform(-0.2, 0.2, rows)


def _coef(draw: Draw) -> float:
    return draw.number(0.2, 0.4)


ALL_COUNT = "score and log-probabilities count"


@hidden(
    SHAPE,
    ALL_COUNT,
    points=0.25,
    catches=["no penalty", "no score", "no reference"],
    message="Something that the docstring names has no influence on the rewards.",
)
def shape_all_count(candidate: Candidate, draw: Draw):
    arguments = (_scores(draw, 3), *_two_logprobs(draw, 3, 5))
    one = _shaped(candidate, *arguments, torch.ones(3, 5))
    for at in range(3):
        others = [x.clone() for x in arguments]
        others[at][1] += draw.number(1, 2)
        check(not close(_shaped(candidate, *others, torch.ones(3, 5)), one))


@hidden(
    SHAPE,
    "the penalty alone",
    points=0.75,
    catches=[
        "wrong sign", "no kl_coef", "cut off at 0", "absolute or squared", "k3", "probabilities", "policy alone",
        "summed or averaged over the response",
    ],
    message="Without a score, the tokens are not charged what the docstring says: look at sign, size and direction.",
)  # fmt: skip
def shape_penalty(candidate: Candidate, draw: Draw):
    old, ref = _two_logprobs(draw, 2, 5)
    coef = _coef(draw)
    rewards = _shaped(candidate, torch.zeros(2), old, ref, torch.ones(2, 5), kl_coef=coef)
    agree(rewards, coef * (ref - old))


@hidden(
    SHAPE,
    "the score alone",
    points=0.75,
    catches=[
        "at another token",
        "at every token",
        "subtracted",
        "scaled",
        "another row's score",
        "mean taken off",
    ],
    message="Where policy and reference agree, the score does not arrive where it belongs, or not as it is.",
)
def shape_score(candidate: Candidate, draw: Draw):
    for rows, columns in ((3, 3), (2, 5)):
        old, scores = draw.normal(rows, columns, mean=-2), _scores(draw, rows)
        rewards = _shaped(candidate, scores, old, old.clone(), torch.ones(rows, columns), kl_coef=_coef(draw))
        agree(rewards, F.pad(scores[:, None], (columns - 1, 0)))


@hidden(
    SHAPE,
    "score and penalty",
    points=0.5,
    catches=["the score takes the penalty's place", "a blend of the two"],
    message="Score and penalty do not come together as they should at the last token.",
)
def shape_both(candidate: Candidate, draw: Draw):
    for rows, columns in ((1, 1), (3, 5)):
        old, ref = _two_logprobs(draw, rows, columns)
        scores, coef = _scores(draw, rows), _coef(draw)
        rewards = _shaped(candidate, scores, old, ref, torch.ones(rows, columns), kl_coef=coef)
        agree(rewards, coef * (ref - old) + F.pad(scores[:, None], (columns - 1, 0)))


def _check_place_of_score(candidate: Candidate, draw: Draw, mask: Tensor) -> None:
    """Raises `Wrong` unless a score adds itself to the last 1 of its row."""
    old, ref = _two_logprobs(draw, *mask.shape)
    scores = _scores(draw, len(mask))
    with_score = _shaped(candidate, scores, old, ref, mask, kl_coef=0.3)
    # what a score adds: a penalty that is wrong costs points elsewhere
    added = with_score - _shaped(candidate, torch.zeros(len(mask)), old, ref, mask, kl_coef=0.3)
    agree(added, reference.shape_token_rewards(scores, old, old, mask), mask)


@hidden(
    SHAPE,
    "responses of different length",
    points=0.75,
    catches=[
        "in the last column",
        "one past the end",
        "no score without a 0 in the mask",
        "the longest row decides",
    ],
    message="In a batch of responses of different length a score does not stand at its response's last token.",
)
def shape_ragged(candidate: Candidate, draw: Draw):
    _check_place_of_score(candidate, draw, _ragged()[draw.shuffled(range(3))])


@hidden(
    SHAPE,
    "a mask that starts with the prompt",
    points=0.5,
    catches=["number of 1s as an index", "first 0 of the mask"],
    message="The score goes astray when the mask covers the prompt as well.",
)
def shape_prompt(candidate: Candidate, draw: Draw):
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0.0]])
    _check_place_of_score(candidate, draw, mask[draw.shuffled(range(3))])


@hidden(
    SHAPE,
    "0 outside the mask",
    points=0.25,
    catches=["penalty on padding"],
    message="Something is left outside the mask.",
    after=[ALL_COUNT],
)
def shape_outside(candidate: Candidate, draw: Draw):
    old, ref = _two_logprobs(draw, 3, 6)
    rewards = _shaped(candidate, _scores(draw, 3), old, ref, _ragged())
    agree(rewards, torch.zeros(3, 6), 1 - _ragged())


@hidden(
    SHAPE,
    "a response without a token",
    points=0.25,
    catches=["its score at the first or last column"],
    message="A row without a response token gets something.",
    after=[ALL_COUNT],
)
def shape_empty(candidate: Candidate, draw: Draw):
    mask = right_mask(4, 0, 2).float()[draw.shuffled(range(3))]
    old = draw.normal(3, 4, mean=-2)
    rewards = _shaped(candidate, _scores(draw, 3), old, old.clone(), mask)
    agree(rewards[mask.sum(1) == 0], torch.zeros(1, 4))


@hidden(
    SHAPE,
    "large scores and penalties",
    points=0.25,
    catches=["score or penalty limited"],
    message="Large scores or penalties are cut off.",
)
def shape_large(candidate: Candidate, draw: Draw):
    old, ref = _two_logprobs(draw, 2, 4)
    ref, scores = ref - draw.uniform(30, 60, 2, 4) * _signs(2, 4), _scores(draw, 2) * 40
    rewards = _shaped(candidate, scores, old, ref, torch.ones(2, 4), kl_coef=3.0)
    agree(rewards, reference.shape_token_rewards(scores, old, ref, torch.ones(2, 4), 3.0))


@hidden(
    SHAPE,
    "any type of mask and float",
    points=0.25,
    catches=["result in the mask's type", "arithmetic that bools do not have", "works for float32 only"],
    message="The result depends on the type of the mask, or of the numbers.",
    after=[ALL_COUNT],
)
def shape_types(candidate: Candidate, draw: Draw):
    numbers = (_scores(draw, 3), *_two_logprobs(draw, 3, 6))
    mask = _ragged()
    expected = _shaped(candidate, *numbers, mask)
    for other in _other_types(mask):
        agree(_shaped(candidate, *numbers, other), expected, mask)
    agree(_shaped(candidate, *(x.double() for x in numbers), mask), expected, mask)


@hidden(
    SHAPE,
    "arguments stay as they are",
    points=0.25,
    catches=["log-probabilities or mask changed in place"],
    message="An argument is changed in place. The update needs all of them once more.",
    after=[ALL_COUNT],
)
def shape_arguments(candidate: Candidate, draw: Draw):
    arguments = (_scores(draw, 3), *_two_logprobs(draw, 3, 6), right_mask(*LENGTHS))
    unchanged(candidate.call("ppo.shape_token_rewards", *arguments, after=(0, 1, 2, 3)), arguments)


@hidden(
    SHAPE,
    "the default of kl_coef",
    points=0.25,
    catches=["another default"],
    message="Left out, kl_coef is not what the signature said.",
    after=[ALL_COUNT],
)
def shape_default(candidate: Candidate, draw: Draw):
    old, ref = _two_logprobs(draw, 2, 5)
    arguments = (torch.zeros(2), old, ref, torch.ones(2, 5))
    handed = _shaped(candidate, *arguments, **defaults_of(reference.shape_token_rewards))
    agree(_shaped(candidate, *arguments), handed, tolerance=1e-5)


# --- 3.3 compute_gae ------------------------------------------------------------------------------

GAE = "compute_gae"


def _gae(candidate: Candidate, *arguments, **options) -> tuple[Tensor, Tensor]:
    advantages, returns = parts(candidate.call("ppo.compute_gae", *arguments, **options).value, 2)
    shape = arguments[0].shape
    return tensor(advantages, *shape, what="the advantages"), tensor(returns, *shape, what="the returns")


def _states(draw: Draw, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Rewards and values; both matter at every token."""
    return draw.normal(rows, columns, std=1), draw.normal(rows, columns, mean=2)


def _discounts(draw: Draw) -> dict[str, float]:
    return {"gamma": draw.number(0.85, 0.95), "lam": draw.number(0.6, 0.75)}


def _garbage(draw: Draw) -> Tensor:
    """What stands behind the ends of three ragged rows, and 0 on their tokens: neither 0 nor small."""
    return draw.normal(3, 6, mean=50, std=5) * (1 - _ragged())


LOOKS_AHEAD = "an advantage looks ahead"


@hidden(
    GAE,
    "advantages of a single full row",
    points=2.5,
    catches=[
        "recursion runs forwards", "gamma or lam missing or swapped", "no value of the next state",
        "a value after the last token", "the first or last token left out", "whitened",
    ],
    message="The advantages are wrong even where nothing is padded: look at the TD error and at how it is summed.",
)  # fmt: skip
def gae_full_row(candidate: Candidate, draw: Draw):
    for length in (1, 6):
        rewards, values = _states(draw, 1, length)
        mask, discounts = torch.ones(1, length), _discounts(draw)
        advantages, _ = _gae(candidate, rewards, values, mask, **discounts)
        agree(advantages, reference.compute_gae(rewards, values, mask, **discounts)[0])


@hidden(
    GAE,
    LOOKS_AHEAD,
    points=0.5,
    catches=["recursion runs forwards", "one TD error alone"],
    message="What happens late in a response does not reach the advantages before it, or reaches those after it.",
)
def gae_looks_ahead(candidate: Candidate, draw: Draw):
    (rewards, values), discounts, at = _states(draw, 1, 6), _discounts(draw), draw.whole(2, 5)
    one, _ = _gae(candidate, rewards, values, torch.ones(1, 6), **discounts)
    rewards[0, at] += draw.number(3, 4)
    other, _ = _gae(candidate, rewards, values, torch.ones(1, 6), **discounts)
    changed = ((other - one).abs() > 1e-3)[0]
    check(bool(changed[: at + 1].all()) and not changed[at + 1 :].any())


RETURNS = "returns of full rows"


@hidden(
    GAE,
    RETURNS,
    points=1,
    catches=["advantages alone", "values subtracted", "rewards-to-go", "one-step targets", "next values"],
    message="The returns are not what the critic should have said.",
    after=[LOOKS_AHEAD],
)
def gae_returns(candidate: Candidate, draw: Draw):
    (rewards, values), mask, discounts = _states(draw, 2, 6), torch.ones(2, 6), _discounts(draw)
    advantages, returns = _gae(candidate, rewards, values, mask, **discounts)
    # advantages that are wrong cost points elsewhere
    expected = reference.compute_gae(rewards, values, mask, **discounts)[1]
    check(close(returns, advantages + values) or close(returns, expected))


def _row_by_row(
    candidate: Candidate, rewards: Tensor, values: Tensor, lengths: Sequence[int], discounts: dict
):
    """Advantages and returns of each response alone, without padding; 0 behind its end."""
    columns, results = rewards.shape[1], []
    for row, length in enumerate(lengths):
        alone = (rewards[row : row + 1, :length], values[row : row + 1, :length], torch.ones(1, length))
        results.append([F.pad(x, (0, columns - length)) for x in _gae(candidate, *alone, **discounts)])
    return [torch.cat(rows) for rows in zip(*results, strict=True)]


@hidden(
    GAE,
    "several full rows",
    points=0.25,
    catches=["a loop over the rows", "one running sum for all rows"],
    message="Several responses at once are not judged as each of them alone.",
    after=[LOOKS_AHEAD],
)
def gae_rows(candidate: Candidate, draw: Draw):
    for rows, columns in ((4, 4), (2, 7)):
        (rewards, values), discounts = _states(draw, rows, columns), _discounts(draw)
        together = _gae(candidate, rewards, values, torch.ones(rows, columns), *discounts.values())
        alone = _row_by_row(candidate, rewards, values, [columns] * rows, discounts)
        agree(together[0], alone[0])


def _ragged_states(draw: Draw) -> tuple[Tensor, Tensor]:
    """Rewards and values of three responses, 0 behind their ends."""
    rewards, values = _states(draw, 3, 6)
    return rewards * _ragged(), values * _ragged()


@hidden(
    GAE,
    "responses of different length",
    points=0.5,
    catches=["last real token cut off", "rows cut at the shortest", "a value after the last real token"],
    message="A response that ends before the others is not judged as it is alone, although nothing stands on its padding.",
    after=[LOOKS_AHEAD],
)
def gae_clean(candidate: Candidate, draw: Draw):
    (rewards, values), discounts = _ragged_states(draw), _discounts(draw)
    together = _gae(candidate, rewards, values, _ragged(), **discounts)
    agree(together[0], _row_by_row(candidate, rewards, values, LENGTHS, discounts)[0], _ragged())


@hidden(
    GAE,
    "rewards behind the end",
    points=0.5,
    catches=["running sum comes in from the padding"],
    message="What stands in the rewards behind the end of a response reaches its tokens.",
    after=[LOOKS_AHEAD],
)
def gae_padded_rewards(candidate: Candidate, draw: Draw):
    (rewards, values), discounts = _ragged_states(draw), _discounts(draw)
    clean, _ = _gae(candidate, rewards, values, _ragged(), **discounts)
    dirty, _ = _gae(candidate, rewards + _garbage(draw), values, _ragged(), **discounts)
    agree(dirty, clean, _ragged())


@hidden(
    GAE,
    "values behind the end",
    points=0.75,
    catches=["value of a padded position in the TD error", "mask applied to the result only"],
    message="What stands in the values behind the end of a response reaches its tokens.",
    after=[LOOKS_AHEAD],
)
def gae_padded_values(candidate: Candidate, draw: Draw):
    (rewards, values), discounts = _ragged_states(draw), _discounts(draw)
    clean, _ = _gae(candidate, rewards, values, _ragged(), **discounts)
    dirty, _ = _gae(candidate, rewards, values + _garbage(draw), _ragged(), **discounts)
    agree(dirty, clean, _ragged())


@hidden(
    GAE,
    "returns of responses of different length",
    points=0.25,
    catches=["returns that see the padding"],
    message="What stands behind the end of a response changes its returns.",
    after=[RETURNS],
)
def gae_padded_returns(candidate: Candidate, draw: Draw):
    (rewards, values), discounts = _ragged_states(draw), _discounts(draw)
    _, clean = _gae(candidate, rewards, values, _ragged(), **discounts)
    _, dirty = _gae(candidate, rewards + _garbage(draw), values - _garbage(draw), _ragged(), **discounts)
    agree(dirty, clean, _ragged())


@hidden(
    GAE,
    "large numbers",
    points=0.25,
    catches=["rewards, TD errors or advantages limited"],
    message="Large rewards or values are cut off.",
)
def gae_large(candidate: Candidate, draw: Draw):
    (rewards, values), mask = _states(draw, 2, 5), torch.ones(2, 5)
    rewards, values, discounts = rewards * 300 + 200 * _signs(2, 1), values * 100, _discounts(draw)
    advantages, _ = _gae(candidate, rewards, values, mask, **discounts)
    agree(advantages, reference.compute_gae(rewards, values, mask, **discounts)[0])


@hidden(
    GAE,
    "any type of mask and float",
    points=0.25,
    catches=["result in the mask's type", "arithmetic that bools do not have", "works for float32 only"],
    message="The result depends on the type of the mask, or of the numbers.",
    after=[LOOKS_AHEAD],
)
def gae_types(candidate: Candidate, draw: Draw):
    mask = _ragged()
    rewards, values = _ragged_states(draw)
    expected = _gae(candidate, rewards, values, mask, 0.9, 0.7)
    others = [_gae(candidate, rewards, values, other, 0.9, 0.7) for other in _other_types(mask)]
    for other in (*others, _gae(candidate, rewards.double(), values.double(), mask, 0.9, 0.7)):
        for got, kept in zip(other, expected, strict=True):
            agree(got, kept, mask)


@hidden(
    GAE,
    "no gradient",
    points=0.5,
    catches=["advantages or returns carry a gradient"],
    message="A gradient flows through what comes back: both results are constants of the update.",
    after=[LOOKS_AHEAD],
)
def gae_gradient(candidate: Candidate, draw: Draw):
    rewards, values = (x.requires_grad_() for x in _states(draw, 3, 6))
    check(not any(x.requires_grad for x in _gae(candidate, rewards, values, _ragged())))


@hidden(
    GAE,
    "arguments stay as they are",
    points=0.25,
    catches=["rewards, values or mask changed in place"],
    message="An argument is changed in place.",
    after=[LOOKS_AHEAD],
)
def gae_arguments(candidate: Candidate, draw: Draw):
    arguments = (*_states(draw, 3, 6), right_mask(*LENGTHS))
    unchanged(candidate.call("ppo.compute_gae", *arguments, after=(0, 1, 2)), arguments)


@hidden(
    GAE,
    "0 outside the mask",
    points=0.25,
    catches=["values left on the padding", "a row without a token"],
    message="Something is left outside the mask.",
    after=[LOOKS_AHEAD],
)
def gae_outside(candidate: Candidate, draw: Draw):
    mask = right_mask(*LENGTHS, 0).float()
    for got in _gae(candidate, *_states(draw, 4, 6), mask):
        agree(got, torch.zeros(4, 6), 1 - mask)


@hidden(
    GAE,
    "the defaults",
    points=0.25,
    catches=["another default"],
    message="Left out, gamma or lam is not what the signature said.",
    after=[LOOKS_AHEAD],
)
def gae_defaults(candidate: Candidate, draw: Draw):
    arguments = (*_states(draw, 1, 6), torch.ones(1, 6))
    handed = _gae(candidate, *arguments, **defaults_of(reference.compute_gae))
    agree(_gae(candidate, *arguments)[0], handed[0])


# --- 3.3 masked_whiten ----------------------------------------------------------------------------

WHITEN = "masked_whiten"
CENTRED = "mean 0, and every number in its order"


def _whitened(candidate: Candidate, x: Tensor, mask: Tensor, **options) -> Tensor:
    return tensor(candidate.call("ppo.masked_whiten", x, mask, **options).value, *x.shape)


def _check_white(got: Tensor, x: Tensor) -> None:
    """Raises `Wrong` unless it is `x`, whitened by the population's variance or by the sample's."""
    centred = x.double() - x.double().mean()
    check(any(close(got, centred / centred.std(correction=c)) for c in (0, 1)))


def _check_packed(candidate: Candidate, x: Tensor, mask: Tensor) -> None:
    """Raises `Wrong` unless the tokens of the mask are whitened as they are when nothing else is there."""
    packed = x[mask.bool()].unsqueeze(0)
    agree(
        _whitened(candidate, x, mask)[mask.bool()], _whitened(candidate, packed, torch.ones_like(packed))[0]
    )


def _around(draw: Draw, rows: int, columns: int) -> Tensor:
    """Numbers whose mean, row means and column means are all far from 0 and from each other."""
    x = draw.normal(rows, columns, mean=3, std=2)
    return x + torch.arange(rows).unsqueeze(1) * 4 - torch.arange(columns) * 1.5


@hidden(
    WHITEN,
    CENTRED,
    points=0.25,
    catches=["not shifted", "the wrong mean taken off"],
    message="The mean is not 0, or the numbers do not stand in the order in which they stood.",
)
def whiten_centred(candidate: Candidate, draw: Draw):
    x = draw.normal(1, 8, mean=3, std=2)
    whitened = _whitened(candidate, x, torch.ones(1, 8))
    agree(whitened.mean(), 0.0)
    check(torch.equal(whitened.argsort(), x.argsort()))


@hidden(
    WHITEN,
    "variance 1",
    points=0.5,
    catches=[
        "not scaled",
        "divided by the variance",
        "variance from 0",
        "range, largest or absolute deviation",
    ],
    message="The variance is not 1, or the numbers are more than shifted and scaled.",
    after=[CENTRED],
)
def whiten_row(candidate: Candidate, draw: Draw):
    x = draw.normal(1, 8, mean=3, std=2)
    _check_white(_whitened(candidate, x, torch.ones(1, 8)), x)


@hidden(
    WHITEN,
    "all tokens of the batch together",
    points=0.25,
    catches=["each row or each column on its own"],
    message="Rows or columns are whitened on their own.",
    after=[CENTRED],
)
def whiten_batch(candidate: Candidate, draw: Draw):
    _check_packed(candidate, _around(draw, 3, 4), torch.ones(3, 4))


@hidden(
    WHITEN,
    "padded positions do not count",
    points=0.25,
    catches=["divided by all positions", "a mean of row means", "0 less the mean counted"],
    message="Padded positions count, although nothing stands there, or a short row counts more.",
    after=[CENTRED],
)
def whiten_counts(candidate: Candidate, draw: Draw):
    _check_packed(candidate, _around(draw, 3, 6) * _ragged(), _ragged())


@hidden(
    WHITEN,
    "what stands on the padding does not matter",
    points=0.5,
    catches=["padding in the mean or the variance"],
    message="What stands on the padding enters the mean or the variance.",
    after=[CENTRED],
)
def whiten_garbage(candidate: Candidate, draw: Draw):
    _check_packed(candidate, _around(draw, 3, 6) + _garbage(draw) * 20, _ragged())


@hidden(
    WHITEN,
    "a single token",
    points=0.25,
    catches=["0 divided by 0", "given back as it is"],
    message="With a single token on the mask the result is not what whitening leaves of one number.",
    after=[CENTRED],
)
def whiten_single(candidate: Candidate, draw: Draw):
    mask = torch.tensor([[0, 0, 0], [0, 1, 0.0]])
    agree(_whitened(candidate, draw.normal(2, 3, mean=5), mask), torch.zeros(2, 3), mask)


@hidden(
    WHITEN,
    "eps",
    points=0.25,
    catches=["division by 0", "a number in its place", "a variance below 0"],
    message="eps does not do what it is for.",
    after=[CENTRED],
)
def whiten_eps(candidate: Candidate, draw: Draw):
    equal = torch.full((2, 4), float(draw.whole(2, 9)))  # whole numbers: their mean is exact
    agree(_whitened(candidate, equal, torch.ones(2, 4)), torch.zeros(2, 4))
    for _ in range(20):
        equal = torch.full((3, 6), draw.number(1, 9))
        check(
            bool(_whitened(candidate, equal, _ragged()).isfinite().all()),
            "Where all numbers are equal, the result is not finite: rounding makes your variance negative.",
        )
    x = draw.uniform(1, 2, 1, 8) * _signs(1, 8)
    small, large = (_whitened(candidate, x, torch.ones(1, 8), eps=eps).abs().max() for eps in (1e-8, 4.0))
    check(bool(large < 0.95 * small))


@hidden(
    WHITEN,
    "an outlier stays one",
    points=0.25,
    catches=["limited to some standard deviations"],
    message="A number that is far from the mean is cut off.",
    after=[CENTRED],
)
def whiten_outlier(candidate: Candidate, draw: Draw):
    x = draw.normal(4, 60)
    x[draw.whole(0, 4), draw.whole(0, 60)] += draw.number(1e3, 2e3)
    largest = _whitened(candidate, x, torch.ones(4, 60)).max()
    check(bool(largest > 0.9 * sqrt(239)))  # one against 239 that are all but equal


@hidden(
    WHITEN,
    "any type of mask and float",
    points=0.25,
    catches=["indexing with integers", "arithmetic that bools do not have", "works for float32 only"],
    message="The result depends on the type of the mask, or of the numbers.",
    after=[CENTRED],
)
def whiten_types(candidate: Candidate, draw: Draw):
    mask = _ragged()
    x = _around(draw, 3, 6) * mask
    expected = _whitened(candidate, x, mask)
    for other in _other_types(mask):
        agree(_whitened(candidate, x, other), expected, mask)
    agree(_whitened(candidate, x.double(), mask), expected, mask)


@hidden(
    WHITEN,
    "0 outside the mask, arguments as they were",
    points=0.25,
    catches=["numbers left on the padding", "x changed in place"],
    message="Something is left outside the mask, or an argument is changed in place.",
    after=[CENTRED],
)
def whiten_outside(candidate: Candidate, draw: Draw):
    arguments = (_around(draw, 3, 6), right_mask(*LENGTHS))
    answer = candidate.call("ppo.masked_whiten", *arguments, after=(0, 1))
    agree(tensor(answer.value, 3, 6), torch.zeros(3, 6), 1 - _ragged())
    unchanged(answer, arguments)


# --- 3.4 ppo_losses -------------------------------------------------------------------------------

LOSSES = "ppo_losses"
GOOD, BAD = 1.0, -1.0  # the sign of an advantage


def _ranges(draw: Draw) -> dict[str, float]:
    """The options, each away from its default and from the others."""
    return {
        "clip_range": draw.number(0.25, 0.3),
        "clip_range_value": draw.number(0.45, 0.55),
        "vf_coef": draw.number(0.65, 0.8),
    }


def _tokens(
    draw: Draw,
    log_ratio: Tensor,
    advantages: Tensor,
    moved: Tensor | None = None,
    to_go: Tensor | None = None,
    mask: Tensor | None = None,
) -> list[Tensor]:
    """The seven tensors of `ppo_losses`.

    Args:
        moved: how far the values went from the old ones; by default less than their clip range.
        to_go: how far the returns are from the old values.
    """
    shape = log_ratio.shape
    old_logprobs, old_values = draw.normal(*shape, mean=-2, std=0.5), draw.normal(*shape, mean=1)
    moved = draw.uniform(0.1, 0.4, *shape) * _signs(*shape) if moved is None else moved
    returns = old_values + (draw.uniform(1, 2, *shape) if to_go is None else to_go)
    mask = torch.ones(shape) if mask is None else mask
    return [old_logprobs + log_ratio, old_logprobs, advantages, old_values + moved, old_values, returns, mask]


def _small_ratios(draw: Draw, *shape: int) -> Tensor:
    """Log-ratios within every clip range, and not near 0."""
    return draw.uniform(0.1, 0.2, *shape) * _signs(*shape)


def _dirty(draw: Draw) -> tuple[list[Tensor], list[Tensor]]:
    """Three responses of different length: with nothing on their padding, and with garbage there.

    Within the clip ranges; row by row the losses are on different levels.
    """
    mask, level = _ragged(), torch.tensor([[1.0], [2.0], [4.0]])
    clean = _tokens(
        draw,
        _small_ratios(draw, 3, 6) * mask,
        draw.uniform(0.8, 1.2, 3, 6) * level * mask,
        draw.uniform(0.1, 0.4, 3, 6) * mask,
        draw.uniform(0.8, 1.2, 3, 6) * level * mask,
        mask,
    )
    padding = 1 - mask
    dirty = [x.clone() for x in clean]
    dirty[0] += 3 * padding
    dirty[2] += draw.uniform(50, 100, 3, 6) * _signs(3, 6) * padding
    dirty[3] += 30 * padding
    dirty[5] -= draw.uniform(50, 100, 3, 6) * padding
    return clean, dirty


def _losses(candidate: Candidate, arguments: Sequence[Tensor], *names: str, **options) -> list[float]:
    """The entries of `info` with these names; "total" is the loss itself."""
    total, info = parts(candidate.call("ppo.ppo_losses", *arguments, **options).value, 2)
    found = {**entries(info, *(name for name in names if name != "total")), "total": total}
    return [number(found[name]) for name in names]


def _expected(arguments: Sequence[Tensor], *names: str, **options) -> list[float]:
    total, info = reference.ppo_losses(*arguments, **options)
    return [({"total": float(total)} | info)[name] for name in names]


def _agree_on(candidate: Candidate, arguments: Sequence[Tensor], *names: str, **options) -> None:
    """Raises `Wrong` when an entry is not that of the reference."""
    got = _losses(candidate, arguments, *names, **options)
    agree(torch.tensor(got), torch.tensor(_expected(arguments, *names, **options)))


@hidden(
    LOSSES,
    "policy loss within the clip range",
    points=0.75,
    catches=[
        "wrong sign", "no advantages", "whitened advantages", "a sum", "another ratio", "old policy ignored",
        "returns in place of advantages",
    ],
    message="The policy loss is wrong even where nothing is clipped: look at its sign and at the ratio.",
)  # fmt: skip
def losses_within(candidate: Candidate, draw: Draw):
    ranges = _ranges(draw)
    for log_ratio in (torch.zeros(2, 5), _small_ratios(draw, 2, 5)):
        arguments = _tokens(draw, log_ratio, draw.uniform(1, 5, 2, 5))
        _agree_on(candidate, arguments, "policy_loss", **ranges)


def _far_ratios(draw: Draw, *shape: int) -> Tensor:
    """Log-ratios beyond every clip range, on both sides in turns."""
    return draw.uniform(0.6, 0.9, *shape) * _signs(*shape)


@hidden(
    LOSSES,
    "what went the wrong way counts in full",
    points=0.5,
    catches=["clipped candidate only", "minimum of the losses", "choice before the advantage comes in"],
    message="A token that has moved the wrong way is clipped in the policy loss.",
)
def losses_harm(candidate: Candidate, draw: Draw):
    log_ratio = _far_ratios(draw, 1, 4)
    arguments = _tokens(draw, log_ratio, -draw.uniform(1, 3, 1, 4) * log_ratio.sign())
    for at in (0, 1):  # too likely, and not likely enough
        _agree_on(candidate, [x[:, at::2] for x in arguments], "policy_loss", **_ranges(draw))


@hidden(
    LOSSES,
    "what went far enough is clipped",
    points=0.75,
    catches=[
        "no clip",
        "one side only",
        "the range of the values",
        "a range of its own",
        "log-ratio or product clipped",
    ],
    message="A token that has moved the right way far enough still drives the policy loss, or is clipped at another place.",
)
def losses_clipped(candidate: Candidate, draw: Draw):
    log_ratio = _far_ratios(draw, 1, 4)
    arguments = _tokens(draw, log_ratio, draw.uniform(1, 3, 1, 4) * log_ratio.sign())
    for at in (0, 1):
        _agree_on(candidate, [x[:, at::2] for x in arguments], "policy_loss", **_ranges(draw))


@hidden(
    LOSSES,
    "value loss within the clip range",
    points=0.5,
    catches=[
        "no 0.5",
        "vf_coef in it",
        "absolute error",
        "compared with advantages or old values",
        "old values compared",
    ],
    message="The value loss is wrong even where nothing is clipped.",
)
def losses_value_within(candidate: Candidate, draw: Draw):
    arguments = _tokens(draw, _small_ratios(draw, 2, 5), draw.uniform(1, 5, 2, 5))
    _agree_on(candidate, arguments, "value_loss", **_ranges(draw))


@hidden(
    LOSSES,
    "a value that went the wrong way counts in full",
    points=0.5,
    catches=["clipped value only", "smaller of the two errors"],
    message="A value that has moved away from its target is clipped in the value loss.",
)
def losses_value_away(candidate: Candidate, draw: Draw):
    moved = draw.uniform(0.8, 1.2, 1, 4) * _signs(1, 4)
    arguments = _tokens(draw, _small_ratios(draw, 1, 4), torch.ones(1, 4), moved, -0.8 * moved)
    for at in (0, 1):  # upwards and downwards
        _agree_on(candidate, [x[:, at::2] for x in arguments], "value_loss", **_ranges(draw))


@hidden(
    LOSSES,
    "a value that went far enough is clipped",
    points=0.5,
    catches=[
        "no clip",
        "one side only",
        "around the new values",
        "by a factor",
        "the range of the ratio",
        "the values themselves",
    ],
    message="A value that has moved far enough toward its target still drives the value loss, or is clipped at another place.",
)
def losses_value_toward(candidate: Candidate, draw: Draw):
    moved = draw.uniform(0.8, 1.2, 1, 4) * _signs(1, 4)
    arguments = _tokens(draw, _small_ratios(draw, 1, 4), torch.ones(1, 4), moved, 1.5 * moved)
    for at in (0, 1):
        _agree_on(candidate, [x[:, at::2] for x in arguments], "value_loss", **_ranges(draw))


@hidden(
    LOSSES,
    "each token is judged on its own",
    points=0.25,
    catches=["means compared instead of tokens"],
    message="Clipped or unclipped is not chosen for each token by itself.",
)
def losses_each_token(candidate: Candidate, draw: Draw):
    _agree_on(candidate, _all_regimes(draw), "policy_loss", "value_loss", **_ranges(draw))


def _all_regimes(draw: Draw) -> list[Tensor]:
    """Eight tokens: log-ratio up and down with a good and a bad advantage, values up and down with both directions to go."""
    log_ratio = _far_ratios(draw, 2, 4)
    advantages = draw.uniform(1, 3, 2, 4) * torch.tensor([GOOD, GOOD, BAD, BAD])
    moved = draw.uniform(0.8, 1.2, 2, 4) * _signs(2, 4)
    to_go = moved * torch.tensor([1.5, 1.5, -0.8, -0.8])
    return _tokens(draw, log_ratio, advantages, moved, to_go)


@hidden(
    LOSSES,
    "the total",
    points=0.5,
    catches=["no vf_coef", "value loss subtracted or missing", "0.5 twice", "approx_kl added"],
    message="The loss that is returned is not made of its two parts as the docstring says.",
)
def losses_total(candidate: Candidate, draw: Draw):
    arguments, ranges = _tokens(draw, _small_ratios(draw, 2, 5), draw.uniform(1, 5, 2, 5)), _ranges(draw)
    total, policy_loss, value_loss = _losses(
        candidate, arguments, "total", "policy_loss", "value_loss", **ranges
    )
    # what is wrong in a part costs points there, and not here again
    of_its_parts = policy_loss * value_loss != 0 and close(
        total, policy_loss + ranges["vf_coef"] * value_loss
    )
    check(of_its_parts or close(total, _expected(arguments, "total", **ranges)[0]))


@hidden(
    LOSSES,
    "approx_kl",
    points=0.5,
    catches=["wrong sign", "k1 or k2", "old and new exchanged", "the other direction", "the 1 missing"],
    message="approx_kl is another estimate than the docstring's, or has its sign or its direction the other way round.",
)
def losses_kl(candidate: Candidate, draw: Draw):
    log_ratio = draw.uniform(0.4, 0.8, 1, 3)
    for sign in (1, -1):
        _agree_on(candidate, _tokens(draw, sign * log_ratio, torch.ones(1, 3)), "approx_kl", **_ranges(draw))


@hidden(
    LOSSES,
    "clipfrac",
    points=0.25,
    catches=[
        "after the clip",
        "one side",
        "one sign of the advantage",
        "log-ratio compared",
        "the other range",
        "a count",
    ],
    message="clipfrac counts other tokens than the docstring says, or is no share of them.",
)
def losses_clipfrac(candidate: Candidate, draw: Draw):
    ranges = _ranges(draw)
    low, high = 1 - ranges["clip_range"], 1 + ranges["clip_range"]
    # of 15 tokens 9 are beyond the range; one within it is not by its log-ratio
    ratio = torch.tensor(
        [1.7] * 2
        + [high + 0.1] * 2
        + [0.4, 0.5, low - 0.1, low - 0.1, low - 0.1]
        + [low + 0.01]
        + [0.9, 1.1] * 2
        + [1.0]
    )
    sign = torch.tensor([1, -1, 1, -1, 1, 1, 1, 1, -1, 1, 1, -1, -1, 1, 1])
    order = draw.shuffled(range(15))
    arguments = _tokens(
        draw, ratio[order].log().unsqueeze(0), sign[order].unsqueeze(0) * draw.uniform(1, 2, 1, 15)
    )
    _agree_on(candidate, arguments, "clipfrac", **ranges)


@hidden(
    LOSSES,
    "policy loss of responses of different length",
    points=0.5,
    catches=["mean over all positions", "a mean of row means", "divided by the rows", "padding summed"],
    message="The policy loss is no mean over the tokens of the mask.",
)
def losses_policy_mask(candidate: Candidate, draw: Draw):
    for arguments in _dirty(draw):
        _agree_on(candidate, arguments, "policy_loss", **_ranges(draw))


@hidden(
    LOSSES,
    "value loss of responses of different length",
    points=0.5,
    catches=["mean over all positions", "a mean of row means", "divided by the rows", "padding summed"],
    message="The value loss is no mean over the tokens of the mask.",
)
def losses_value_mask(candidate: Candidate, draw: Draw):
    for arguments in _dirty(draw):
        _agree_on(candidate, arguments, "value_loss", **_ranges(draw))


@hidden(
    LOSSES,
    "approx_kl and clipfrac of responses of different length",
    points=0.25,
    catches=["padding in approx_kl or clipfrac", "divided by all positions"],
    message="approx_kl or clipfrac is no mean over the tokens of the mask.",
)
def losses_info_mask(candidate: Candidate, draw: Draw):
    _, arguments = _dirty(draw)
    arguments[0][1, 2] += draw.number(0.8, 1.0)
    _agree_on(candidate, arguments, "approx_kl", "clipfrac", **_ranges(draw))


MOVES = "new policy and values can learn"


@hidden(
    LOSSES,
    MOVES,
    points=0.25,
    catches=["ratio or new values cut off", "no graph"],
    message="The loss does not move the new log-probabilities or the new values: something is cut off from the graph.",
)
def losses_move(candidate: Candidate, draw: Draw):
    arguments = _tokens(draw, _small_ratios(draw, 2, 4), draw.uniform(1, 3, 2, 4))
    for at in (0, 3):
        arguments[at].requires_grad_()
    answer = candidate.call("ppo.ppo_losses", *arguments, **_ranges(draw))
    check(tensor(parts(answer.value, 2)[0], what="the loss").numel() == 1)
    check(all(gradient is not None and gradient.all() for gradient in answer.gradients(0, 3, of=(0,))))


@hidden(
    LOSSES,
    "the gradient",
    points=0.25,
    catches=["a clipped token driven on", "gradient on the padding", "a term cut off"],
    message="The gradient is not that of the two losses, token by token.",
)
def losses_gradient(candidate: Candidate, draw: Draw):
    ranges = _ranges(draw)
    for arguments in (_all_regimes(draw), _dirty(draw)[1]):
        moving = [arguments[at].requires_grad_() for at in (0, 3)]
        answer = candidate.call("ppo.ppo_losses", *arguments, **ranges)
        expected = torch.autograd.grad(reference.ppo_losses(*arguments, **ranges)[0], moving)
        for got, wanted in zip(answer.gradients(0, 3, of=(0,)), expected, strict=True):
            check(got is not None and close(got, wanted))


@hidden(
    LOSSES,
    "no gradient elsewhere",
    points=0.25,
    catches=["old log-probabilities, old values, advantages or returns with a gradient"],
    message="A gradient reaches what the rollout has fixed.",
    after=[MOVES],
)
def losses_fixed(candidate: Candidate, draw: Draw):
    arguments = [x.requires_grad_() for x in _all_regimes(draw)[:-1]] + [torch.ones(2, 4)]
    answer = candidate.call("ppo.ppo_losses", *arguments, **_ranges(draw))
    for gradient in answer.gradients(1, 2, 4, 5, of=(0,)):
        check(gradient is None or not gradient.any())


@hidden(
    LOSSES,
    "very far from the old policy and the old value",
    points=0.25,
    catches=["log-ratio, ratio, advantage or error limited"],
    message="Large steps or errors are cut off where the docstring names no clip.",
)
def losses_far(candidate: Candidate, draw: Draw):
    for sign in (1, -1):  # apart: one is large, the other small
        log_ratio, advantage = sign * draw.uniform(5, 7, 1, 1), -sign * draw.uniform(60, 90, 1, 1)
        moved = sign * draw.uniform(15, 25, 1, 1)
        arguments = _tokens(draw, log_ratio, advantage, moved, -3 * moved)
        _agree_on(candidate, arguments, "policy_loss", "value_loss", "approx_kl", **_ranges(draw))


@hidden(
    LOSSES,
    "any type of mask and float",
    points=0.25,
    catches=["arithmetic that bools do not have", "works for float32 only"],
    message="The result depends on the type of the mask, or of the numbers.",
    after=[MOVES],
)
def losses_types(candidate: Candidate, draw: Draw):
    arguments, ranges = _dirty(draw)[0], _ranges(draw)
    (expected,) = _losses(candidate, arguments, "total", **ranges)
    for mask in _other_types(arguments[-1]):
        agree(_losses(candidate, [*arguments[:-1], mask], "total", **ranges)[0], expected)
    agree(_losses(candidate, [x.double() for x in arguments], "total", **ranges)[0], expected)


@hidden(
    LOSSES,
    "plain numbers in info, arguments as they were",
    points=0.25,
    catches=["tensors in info", "an argument changed in place"],
    message="An argument is changed in place.",
    after=[MOVES],
)
def losses_clean(candidate: Candidate, draw: Draw):
    arguments = [*_dirty(draw)[1][:-1], right_mask(*LENGTHS)]
    answer = candidate.call("ppo.ppo_losses", *arguments, after=tuple(range(7)))
    info = entries(parts(answer.value, 2)[1], "policy_loss", "value_loss", "approx_kl", "clipfrac")
    check(
        all(isinstance(info[name], float) for name in ("policy_loss", "value_loss", "approx_kl", "clipfrac")),
        "Every entry of info has to be a plain Python float: a tensor is none.",
    )
    unchanged(answer, arguments)


@hidden(
    LOSSES,
    "the defaults",
    points=0.25,
    catches=["another default"],
    message="Left out, an argument is not what the signature said.",
    after=[MOVES],
)
def losses_defaults(candidate: Candidate, draw: Draw):
    arguments, defaults = _all_regimes(draw), defaults_of(reference.ppo_losses)
    names = ("policy_loss", "value_loss", "clipfrac", "total")
    left_out = _losses(candidate, arguments, *names)
    agree(torch.tensor(left_out), torch.tensor(_losses(candidate, arguments, *names, **defaults)))
