"""Hidden tests of stage 8: the estimators of the KL, the controller of its price, and the trainer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import torch
from torch import Tensor

import solutions.ppo as ppo
from rlhf_lab.checks.models import reading_lm
from rlhf_lab.room.props import trainer as props

from .candidate import Candidate
from .hidden import (
    Draw,
    Wrong,
    agree,
    check,
    close,
    entries,
    hidden,
    number,
    parts,
    right_mask,
    tensor,
    unchanged,
)

# --- 8.1 kl_k1, kl_k2, kl_k3 ----------------------------------------------------------------------

MEAN = "right on average"


def _pair(draw: Draw, *shape: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities, and those of the reference: the log-ratios lie between -1.8 and 1.8, and none near 0."""
    logprobs = -0.2 - draw.normal(*shape).abs()
    size = draw.uniform(0.3, 1.8, *shape)
    signs = torch.tensor(draw.shuffled([(-1.0) ** i for i in range(size.numel())])).reshape(shape)
    return logprobs, logprobs - signs * size


def _right(name: str, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    log_ratio = logprobs - ref_logprobs
    if name == "kl_k1":
        return log_ratio
    return log_ratio.square() / 2 if name == "kl_k2" else torch.exp(-log_ratio) - 1 + log_ratio


def _kl_tests(name: str) -> None:
    """Declare the tests of one estimator."""
    values = "the numbers"

    def call(candidate: Candidate, *pair: Tensor, **options: Any):
        return candidate.call(f"trainer.{name}", *pair, **options)

    @hidden(
        name,
        values,
        points=0.75,
        catches=[
            "sign",
            "arguments swapped",
            "another estimator",
            "mean or sum",
            "weighted with the probability",
        ],
        message="The estimate is not that of this estimator: one number for each token, from two log-probabilities.",
    )
    def kl_values(candidate: Candidate, draw: Draw):
        for shape in ((3, 5), (7,), (1, 1), (2, 1, 3)):
            pair = _pair(draw, *shape)
            agree(tensor(call(candidate, *pair).value, *shape), _right(name, *pair))

    @hidden(
        name,
        MEAN,
        points=0.25,
        catches=["weighted with the probability", "the other direction", "limited"],
        message="Weighted with the policy's probabilities, the estimates of all tokens do not add up to what they should.",
        after=[values],
    )
    def kl_mean(candidate: Candidate, draw: Draw):
        one, other = draw.normal(6).softmax(-1), draw.normal(6, std=1.5).softmax(-1)
        found = tensor(call(candidate, one.log(), other.log()).value, 6)
        agree((one * found).sum(), (one * _right(name, one.log(), other.log())).sum())

    @hidden(
        name,
        "far apart and very near",
        points=0.25,
        catches=["limited", "digits lost"],
        message="Large log-ratios are limited, or models that agree are not at distance 0.",
        after=[values],
    )
    def kl_far(candidate: Candidate, draw: Draw):
        logprobs = -9 - draw.uniform(0, 1, 6)
        ref_logprobs = logprobs - torch.tensor([2.6, -2.8, 9.0, -8.5, 0.0, 1e-3])
        agree(call(candidate, logprobs, ref_logprobs).value, _right(name, logprobs, ref_logprobs))

    @hidden(
        name,
        "gradients",
        points=0.25,
        catches=["detached", "no_grad", "one argument detached"],
        message="Gradient has to pass through to both arguments.",
        after=[values],
    )
    def kl_gradients(candidate: Candidate, draw: Draw):
        pair, cotangent = [x.requires_grad_() for x in _pair(draw, 2, 4)], draw.normal(2, 4)
        found = call(candidate, *pair).gradients(0, 1, cotangent=cotangent)
        expected = torch.autograd.grad(_right(name, *pair), pair, cotangent)
        for got, right in zip(found, expected, strict=True):
            check(got is not None)
            agree(got, right)

    @hidden(
        name,
        "double precision",
        points=0.25,
        catches=["float()"],
        message="Numbers in double precision lose digits in your function.",
        after=[values],
    )
    def kl_double(candidate: Candidate, draw: Draw):
        pair = [x.double() + 1e-9 * draw.normal(3).double() for x in _pair(draw, 3)]
        agree(tensor(call(candidate, *pair).value, 3), _right(name, *pair), tolerance=1e-11)

    @hidden(
        name,
        "the arguments stay as they are",
        points=0.25,
        catches=["in place"],
        message="An argument is changed by your function: somebody else still needs it.",
        after=[values],
    )
    def kl_arguments(candidate: Candidate, draw: Draw):
        pair = _pair(draw, 2, 3)
        unchanged(call(candidate, *pair, after=(0, 1)), pair)


for _name in ("kl_k1", "kl_k2", "kl_k3"):
    _kl_tests(_name)

# --- 8.2 AdaptiveKLController ---------------------------------------------------------------------

CONTROLLER = "AdaptiveKLController"
WAY = "up or down"


def _prices(
    candidate: Candidate, settings: Sequence[dict[str, float]], *updates: list[tuple[float, int]]
) -> list[list[float]]:
    """For each controller, the price at the start and after each update."""
    found = parts(candidate.call(props.prices, list(settings), list(updates)).value, len(settings))
    return [[number(price) for price in each] for each in found]


def _settings(draw: Draw) -> dict[str, float]:
    """Of a controller; a batch is a small share of its horizon, so that the factor may also be an exponential."""
    target, horizon = draw.number(2, 9), draw.whole(30_000, 60_000)
    return {"init_kl_coef": draw.number(0.05, 0.6), "target": target, "horizon": horizon}


def _error(settings: dict[str, float], before: float, after: float, n_steps: int) -> float:
    """The error that this change of the price comes from."""
    return (after / before - 1) * settings["horizon"] / n_steps


def _same_error(got: float, expected: float) -> None:
    check(abs(got - expected) < 2e-3)


@hidden(
    CONTROLLER,
    WAY,
    points=1,
    catches=["sign", "target and KL swapped", "no update", "the one missing", "price at the start"],
    message="The price starts at init_kl_coef, rises while the KL is above its target, falls while it is below, and stays on "
    "target.",
)
def controller_way(candidate: Candidate, draw: Draw):
    given = _settings(draw)
    kls = [given["target"] * share for share in (1.1, 0.9, 1.0)]
    found = _prices(candidate, [given] * 3, *[[(kl, 50)] for kl in kls])
    for before, _ in found:
        agree(before, given["init_kl_coef"], tolerance=1e-6)
    (up, down, same) = ([before, after] for before, after in found)
    check(up[1] > up[0] * (1 + 1e-6) and down[1] < down[0] * (1 - 1e-6))
    agree(same[1], same[0], tolerance=1e-7)


@hidden(
    CONTROLLER,
    "how far",
    points=0.75,
    catches=[
        "error in nats",
        "share of the KL",
        "logarithm",
        "sign alone",
        "squared",
        "added, not multiplied",
        "price limited",
    ],
    message="Near its target, the KL moves the price by the wrong amount. What is the error there?",
    after=[WAY],
)
def controller_small(candidate: Candidate, draw: Draw):
    several = [_settings(draw) for _ in range(6)]
    several[4]["init_kl_coef"], several[5]["init_kl_coef"] = draw.number(0.0005, 0.001), draw.number(3, 8)
    errors = [sign * draw.number(0.1, 0.18) for sign in (1, -1, 1, -1, -1, 1)]
    updates = [[(given["target"] * (1 + error), 60)] for given, error in zip(several, errors)]
    for given, error, (before, after) in zip(several, errors, _prices(candidate, several, *updates)):
        _same_error(_error(given, before, after, 60), error)


@hidden(
    CONTROLLER,
    "the error is limited",
    points=1,
    catches=["not limited", "one side only", "other limits", "limits swapped", "a KL below 0"],
    message="The error is not limited as it should be, on both sides: one batch moves the price too far, or not far enough.",
    after=[WAY],
)
def controller_limits(candidate: Candidate, draw: Draw):
    given = _settings(draw)
    shares = (1.3, draw.number(2, 90), 0.7, draw.number(0, 0.5), -0.4, -draw.number(2, 9))
    found = _prices(candidate, [given] * len(shares), *[[(given["target"] * share, 60)] for share in shares])
    for share, (before, after) in zip(shares, found):
        _same_error(_error(given, before, after, 60), 0.2 if share > 1 else -0.2)


@hidden(
    CONTROLLER,
    "samples and horizon",
    points=0.5,
    catches=["n_steps or horizon not used", "upside down", "whole numbers", "a fixed horizon"],
    message="The price moves by the wrong share: more samples move it further, a longer horizon less far.",
    after=[WAY],
)
def controller_horizon(candidate: Candidate, draw: Draw):
    several = [_settings(draw) | {"horizon": horizon} for horizon in (20_000, 80_000)]
    for n_steps in (20, 160):
        updates = [[(1.15 * given["target"], n_steps)] for given in several]
        for given, (before, after) in zip(several, _prices(candidate, several, *updates)):
            check(abs((after / before - 1) / (0.15 * n_steps / given["horizon"]) - 1) < 0.02)


@hidden(
    CONTROLLER,
    "many updates, several controllers",
    points=0.75,
    catches=[
        "from the start each time",
        "shared by the class",
        "samples added up",
        "averaged",
        "limited by the start",
    ],
    message="After several updates the price is wrong: each starts from what the last one left, and controllers do not share.",
    after=[WAY],
)
def controller_many(candidate: Candidate, draw: Draw):
    several = [_settings(draw) | {"horizon": 10_000} for _ in range(3)]
    shares = [draw.shuffled([1.5, 0.5, 1.1, 0.95, 1.5, 1.5, 0.9, 3.0]) for _ in several]
    shares[1] = [1.3, 1.2, 1.4, 1.15] * 10  # it only rises
    shares[2] = [0.7, 0.8, 0.0, 0.9] * 10  # it only falls
    updates = [[(given["target"] * share, 64) for share in each] for given, each in zip(several, shares)]
    for given, each, found in zip(several, shares, _prices(candidate, several, *updates)):
        expected = [given["init_kl_coef"]]
        for share in each:
            expected.append(expected[-1] * (1 + min(max(share - 1, -0.2), 0.2) * 64 / 10_000))
        agree(found, expected, tolerance=1e-3)
        moved = abs(expected[-1] / expected[0] - 1)
        check(abs(found[-1] / expected[-1] - 1) < 0.02 * moved + 1e-4)


# --- 8.3 PPOTrainer: generate ---------------------------------------------------------------------

TRAINER = "PPOTrainer"
VOCABULARY = 2304  # of the micro model
LIMIT = 6
ONE = "a response to one query"


@torch.no_grad()
def _likeliest(query: list[int], limit: int = LIMIT, eos_id: int = props.PAD_ID) -> list[int]:
    """The response of the micro model that takes the likeliest token each time."""
    ids, response = torch.tensor([query]), []
    while len(response) < limit and eos_id not in response:
        response.append(int(reading_lm()(ids).logits[0, -1].argmax()))
        ids = torch.tensor([query + response])
    return response


@cache
def _queries(seed: int) -> list[list[int]]:
    """Queries whose responses have different lengths; EOS stands inside one, in front of one and at the end of another."""
    draw, found = Draw(seed, "queries"), {}
    for _ in range(200):
        query = draw.integers(1, VOCABULARY, draw.whole(2, 6)).tolist()
        length = len(_likeliest(query))
        if 1 < length < LIMIT:
            found.setdefault(length, query)
        if len(found) == 3:
            break
    plain = [found[length] for length in sorted(found)]
    some = draw.integers(1, VOCABULARY, 4).tolist()
    return [
        *plain,
        [some[0], props.PAD_ID, some[1]],
        [props.PAD_ID, some[2], some[3]],
        [some[1], props.PAD_ID],
    ]


def _speaks(candidate: Candidate, queries: list[int] | list[list[int]], **settings: Any):
    """What the trainer answers, in a list, one flat row for each query."""
    trainer = candidate.once("speaking trainer", lambda: candidate.call(props.speaking_trainer).value)
    many = isinstance(queries[0], list)
    asked = [torch.tensor(query) for query in queries] if many else torch.tensor(queries)
    settings = {"max_new_tokens": LIMIT} | settings
    seed = settings.pop("seed", 0)
    returned, after, carries = parts(
        candidate.call(props.generate, trainer, asked, seed=seed, **settings).value, 3
    )
    check(torch.equal(after, asked[0] if many else asked), "Your generate writes into the query.")
    check(carries is False)
    if not many:
        check(
            tensor(returned).ndim == 2 and len(returned) == 1,
            "For one query, generate returns a row: a tensor of one row.",
        )
        return returned[0].tolist()
    if not isinstance(returned, (list, tuple)) or len(returned) != len(queries):
        raise Wrong("For a list of queries, generate returns a list with an entry for each.")
    for row in returned:
        check(tensor(row).ndim == 1, "For a list of queries, each entry is a flat tensor of ids.")
    return [row.tolist() for row in returned]


@hidden(
    TRAINER,
    ONE,
    points=0.5,
    catches=["flat", "query missing", "EOS missing", "no EOS id", "settings not handed on"],
    message="The answer to one query is a row: the query, then the response up to its EOS or to the limit.",
)
def generate_one(candidate: Candidate, draw: Draw):
    for query in _queries(draw.seed)[:2]:
        check(_speaks(candidate, query) == query + _likeliest(query))
        check(_speaks(candidate, query, max_new_tokens=1) == query + _likeliest(query, 1))


@hidden(
    TRAINER,
    "the response alone",
    points=0.25,
    catches=["return_prompt ignored", "one off", "for lists"],
    message="With return_prompt=False, the response alone is left: all of it, and nothing else.",
)
def generate_response(candidate: Candidate, draw: Draw):
    query = _queries(draw.seed)[1]
    check(_speaks(candidate, query, return_prompt=False) == _likeliest(query))
    check(_speaks(candidate, [query, query], return_prompt=False) == [_likeliest(query)] * 2)


@hidden(
    TRAINER,
    "an EOS in the query",
    points=0.25,
    catches=["mask from the ids", "EOS left out"],
    message="The policy does not read an EOS that stands in the query: every token of a query is real.",
)
def generate_eos(candidate: Candidate, draw: Draw):
    for query in _queries(draw.seed)[-3:]:
        check(_speaks(candidate, query, return_prompt=False) == _likeliest(query))


@hidden(
    TRAINER,
    "a list of queries",
    points=0.5,
    catches=["padding", "padded on the right", "rows", "one response for all", "settings not handed on"],
    message="For a list, each entry is a query and its response as it would be alone, without padding.",
)
def generate_list(candidate: Candidate, draw: Draw):
    queries = draw.shuffled(_queries(draw.seed))
    check(_speaks(candidate, queries) == [query + _likeliest(query) for query in queries])
    check(
        _speaks(candidate, queries, max_new_tokens=2) == [query + _likeliest(query, 2) for query in queries]
    )


@hidden(
    TRAINER,
    "what the caller says about sampling",
    points=0.5,
    catches=["settings of its own", "EOS of the tokenizer wins", "always or never sampled"],
    message="What the caller says about sampling does not reach the language model as it is, or something is added to it.",
    after=[ONE],
)
def generate_settings(candidate: Candidate, draw: Draw):
    query = _queries(draw.seed)[2]
    response = _likeliest(query)
    check(_speaks(candidate, query, eos_token_id=response[0]) == query + response[:1])
    sampled = {"do_sample": True, "top_k": 0, "return_prompt": False}
    check(_speaks(candidate, query, **sampled | {"top_k": 1}) == response)
    draws = _speaks(candidate, [query] * 40, max_new_tokens=1, seed=draw.whole(0, 1000), **sampled)
    with torch.no_grad():
        logits = reading_lm()(torch.tensor([query])).logits[0, -1]
    far = set(logits.argsort(descending=True)[50:].tolist())
    # about two thirds of the samples are none of the 50 likeliest tokens; at a temperature of 0.3, hardly any is
    likely = 40 * float(logits.softmax(-1)[list(far)].sum())
    check(abs(sum(row[0] in far for row in draws) - likely) < 13)


# --- 8.3 PPOTrainer: step -------------------------------------------------------------------------

N_TOKENS, WIDTH, N_POSITIONS = 14, 5, 16
STATS = ("ppo/kl", "objective/kl", "objective/kl_coef", "ppo/mean_scores", "ppo/loss/policy", "ppo/loss/value",
         "ppo/loss/total", "ppo/policy/approxkl", "ppo/policy/clipfrac")  # fmt: skip
LOSSES = ("ppo/loss/policy", "ppo/loss/value", "ppo/loss/total", "ppo/policy/approxkl", "ppo/policy/clipfrac")
BATCH = 4
# one update on the whole batch: nothing is clipped, nothing adapts
PLAIN = {
    "batch_size": BATCH, "mini_batch_size": BATCH, "gradient_accumulation_steps": 1, "ppo_epochs": 1, "init_kl_coef": 0.3,
    "adap_kl_ctrl": False, "gamma": 1.0, "lam": 0.95, "cliprange": 9.0, "cliprange_value": 1e3, "vf_coef": 0.5,
    "max_grad_norm": 1e9, "target_kl": None,
}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """A batch, and a policy that is to be updated with it.

    Attributes:
        prompts, responses: how many tokens each has.
        outlier: score of the first response in place of its own; 0: its own.
    """

    name: str
    prompts: tuple[int, ...] = (3, 1, 2, 3)
    responses: tuple[int, ...] = (5, 1, 3, 2)
    outlier: float = 0.0


# equally long: whether a mean is over tokens or mini-batches is no question
LEVEL = {"responses": (3, 3, 3, 3)}


@cache
def _inputs(scene: Scene, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor], list, list, list]:
    """Weights of policy and reference, queries, responses and scores. Each query starts with a token of its own."""
    draw = Draw(seed, scene.name)
    weights = {
        "lm.0.weight": draw.normal(N_TOKENS, WIDTH, std=1.2),
        "lm.1.weight": draw.normal(N_POSITIONS, WIDTH, std=0.7),
        "lm.2.weight": draw.normal(N_TOKENS, WIDTH, std=0.8),
        "lm.2.bias": draw.normal(N_TOKENS, std=0.5),
        "value_head.weight": draw.normal(1, WIDTH, std=0.7),
        "value_head.bias": draw.normal(1, std=0.5),
    }
    ref_weights = {
        name: weight + draw.normal(*weight.shape, std=0.4 * ("lm" in name))
        for name, weight in weights.items()
    }
    queries = [
        torch.cat([torch.tensor([row + 1]), draw.integers(5, N_TOKENS, length - 1)])
        for row, length in enumerate(scene.prompts)
    ]
    responses = [draw.integers(5, N_TOKENS, length) for length in scene.responses]
    signs = draw.shuffled([1.0, -1.0, 1.0, -1.0])
    scores = [sign * size for sign, size in zip(signs, draw.uniform(0.5, 2.0, BATCH))]
    if scene.outlier:
        scores[0] = torch.tensor(scene.outlier)
    return weights, ref_weights, queries, responses, scores


def _tensors(scene: Scene, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The batch as `full_ids`, `full_mask`, the mask of the responses, and scores."""
    _, _, queries, responses, scores = _inputs(scene, seed)
    p, r = max(scene.prompts), max(scene.responses)
    ids, mask = torch.zeros(BATCH, p + r, dtype=torch.long), torch.zeros(BATCH, p + r, dtype=torch.long)
    for row, (query, response) in enumerate(zip(queries, responses, strict=True)):
        ids[row, p - len(query) : p], ids[row, p : p + len(response)] = query, response
        mask[row, p - len(query) : p + len(response)] = 1
    return ids, mask, right_mask(*scene.responses), torch.stack(scores)


class Expected:
    """What a right trainer makes of a scene.

    Attributes:
        stats: of each step; the losses are means over the updates, which is a mean over mini-batches where all responses
            are equally long.
        gradients: of each update, in one row.
        approx_kls: of each update.
        weights: in the end.
    """

    def __init__(
        self,
        scene: Scene,
        seed: int,
        settings: dict[str, Any],
        lr: float,
        orders: Sequence[Sequence[Sequence[Sequence[int]]]],
        prices: Sequence[float],
        sample: bool,
    ):
        """Go through it.

        Args:
            orders: of each step the passes, of each pass the updates, of each update its rows.
            prices: of each step.
            sample: whether the advantages are white by the sample's variance, and not by the population's.
        """
        weights, ref_weights, *_ = _inputs(scene, seed)
        ids, full_mask, mask, scores = _tensors(scene, seed)
        policy, reference = props.SmallPolicy(weights), props.SmallPolicy(ref_weights)
        optimizer = torch.optim.SGD(policy.parameters(), lr=lr)
        self.stats, self.gradients, self.approx_kls = [], [], []
        ranges = [settings[name] for name in ("cliprange", "cliprange_value", "vf_coef")]
        for passes, price in zip(orders, prices, strict=True):
            with torch.no_grad():
                old, values = ppo.response_logprobs_and_values(policy, ids, full_mask, mask.shape[1])
                ref, _ = ppo.response_logprobs_and_values(reference, ids, full_mask, mask.shape[1])
            rewards = ppo.shape_token_rewards(scores, old, ref, mask, price)
            advantages, returns = ppo.compute_gae(rewards, values, mask, settings["gamma"], settings["lam"])
            advantages = ppo.masked_whiten(advantages, mask)
            if sample:
                advantages = advantages * math.sqrt(1 - 1 / int(mask.sum()))
            infos = []
            for rows in (list(update) for updates in passes for update in updates):
                new, new_values = ppo.response_logprobs_and_values(
                    policy, ids[rows], full_mask[rows], mask.shape[1]
                )
                fixed = old[rows], advantages[rows], new_values, values[rows], returns[rows], mask[rows]
                loss, info = ppo.ppo_losses(new, *fixed, *ranges)
                optimizer.zero_grad()
                loss.backward()
                self.gradients.append(torch.cat([w.grad.flatten().clone() for w in policy.parameters()]))
                torch.nn.utils.clip_grad_norm_(policy.parameters(), settings["max_grad_norm"])
                optimizer.step()
                infos.append(info | {"total": float(loss.detach())})
            self.approx_kls += [info["approx_kl"] for info in infos]
            mean = {name: sum(info[name] for info in infos) / len(infos) for name in infos[0]}
            kl = float(((old - ref) * mask).sum() / BATCH)
            found = (mean[name] for name in ("policy_loss", "value_loss", "total", "approx_kl", "clipfrac"))
            self.stats.append(dict(zip(STATS, (kl, kl, price, float(scores.mean()), *found), strict=True)))
        self.weights = policy.state_dict()


class Trial:
    """What a trainer of the candidate's did.

    Attributes:
        stats: of each step, its promised numbers.
        orders: the rows of each mini-batch that was read with gradients, in groups of one update.
        gradients: of each update, in one row.
        noted: everything that came back.
    """

    def __init__(
        self,
        candidate: Candidate,
        draw: Draw,
        scene: Scene,
        lr: float = 0.0,
        n_steps: int = 1,
        prices: Sequence[float] = (),
        left_over: float | None = None,
        batch: Sequence[list] | None = None,
        **settings: Any,
    ):
        self.scene, self.seed, self.lr, self.n_steps = scene, draw.seed, lr, n_steps
        self.settings = PLAIN | settings
        self.prices = list(prices)
        weights, ref_weights, *own = _inputs(scene, draw.seed)
        given = [[x.clone() for x in each] for each in (own if batch is None else batch)]
        answer = candidate.call(
            props.trial, weights, ref_weights, self.settings, *given,
            prices=self.prices, lr=lr, n_steps=n_steps, left_over=left_over, seed=draw.whole(0, 1000),
        )  # fmt: skip
        self.noted = answer.value
        self.stats = []
        for each in parts(self.noted["stats"], n_steps):
            found = entries(each, *STATS)
            self.stats.append({name: number(found[name]) for name in STATS})
        self.gradients = self.noted["gradients"]
        self.orders = self._read()

    def _read(self) -> list[list[list[int]]]:
        """The rows of each mini-batch, in a list for each update; rows are told by the first token of their query."""
        updates: list[list[list[int]]] = [[] for _ in range(len(self.gradients) + 1)]
        for each in self.noted["passes"]:
            if each["recorded"]:
                first = each["mask"].argmax(dim=1)
                updates[each["steps"]].append(
                    [int(i) - 1 for i in each["ids"][torch.arange(len(first)), first]]
                )
        return [update for update in updates if update]

    @property
    def sizes(self) -> tuple[int, int]:
        """Mini-batches of an update, and updates of a pass."""
        per_update = self.settings["gradient_accumulation_steps"]
        return per_update, BATCH // (self.settings["mini_batch_size"] * per_update)

    def passes(self) -> list[list[list[list[int]]]]:
        """Mini-batches, by pass and update.

        Raises:
            Wrong: when a pass is not what the docstring says.
        """
        per_update, per_pass = self.sizes
        message = "In each pass, every response belongs to exactly one mini-batch, and the optimiser moves after as many of them as the config says."
        check(len(self.gradients) == len(self.orders) > 0 and len(self.orders) % per_pass == 0, message)
        for update in self.orders:
            check([len(rows) for rows in update] == [self.settings["mini_batch_size"]] * per_update, message)
        found = [self.orders[i : i + per_pass] for i in range(0, len(self.orders), per_pass)]
        for updates in found:
            rows = sorted(row for update in updates for rows in update for row in rows)
            check(rows == list(range(BATCH)), message)
        return found

    def expected(self, sample: bool) -> Expected:
        """What should have come of it, in the order in which it was done; a grader accepts both variances."""
        passes = [[sum(update, []) for update in updates] for updates in self.passes()]
        check(len(passes) % self.n_steps == 0)
        per_step = len(passes) // self.n_steps
        orders = [passes[i : i + per_step] for i in range(0, len(passes), per_step)]
        prices = self.prices or [self.settings["init_kl_coef"]] * self.n_steps
        return Expected(self.scene, self.seed, self.settings, self.lr, orders, prices[: self.n_steps], sample)

    def either(self, holds) -> bool:
        """Whether `holds(expected)` for one of the two variances."""
        return any(holds(self.expected(sample)) for sample in (False, True))

    def says(self, *names: str) -> bool:
        return self.either(
            lambda right: all(
                close(one[name], other[name], tolerance=1e-3)
                for one, other in zip(self.stats, right.stats, strict=True)
                for name in names
            )
        )

    def moves(self) -> bool:
        """Whether every weight is where it should be."""
        start = _inputs(self.scene, self.seed)[0]

        def same(right: Expected) -> bool:
            return all(
                (self.noted["weights"][name] - weight).norm() <= 3e-3 * (weight - start[name]).norm() + 1e-5
                for name, weight in right.weights.items()
            )

        return self.either(same)

    def pushes(self, tolerance: float = 1e-4) -> bool:
        """Whether every update had the gradient that it should have."""
        return self.either(
            lambda right: all(
                (one - other).norm() <= tolerance * other.norm() + 1e-6
                for one, other in zip(self.gradients, right.gradients, strict=True)
            )
        )


UPDATE = "the gradient of one update"


@hidden(
    TRAINER,
    UPDATE,
    points=1,
    catches=["not white", "returns", "KL", "sign", "padding", "a wrong mask", "no score", "scores changed"],
    message="One update on the whole batch does not have the gradient of the PPO losses: log-probabilities and values before "
    "the update, token rewards at the controller's price, GAE, white advantages.",
)
def step_gradient(candidate: Candidate, draw: Draw):
    check(Trial(candidate, draw, Scene("level", **LEVEL)).pushes())
    check(
        Trial(candidate, draw, Scene("ragged")).pushes(),
        "With responses of different lengths your update is another one.",
    )
    check(
        Trial(candidate, draw, Scene("outlier", outlier=60.0)).pushes(),
        "You limit or shift scores or advantages: a response that is far better than all others has to weigh as much as it does.",
    )


@hidden(
    TRAINER,
    "what the critic has to learn",
    points=0.5,
    catches=["gamma or lam not handed on", "swapped", "returns whitened", "price not handed on", "KL sign"],
    message="The critic learns another target than the returns of the token rewards, with the config's gamma and lam and the "
    "controller's price.",
)
def step_returns(candidate: Candidate, draw: Draw):
    settings = {"gamma": draw.number(0.7, 0.9), "lam": draw.number(0.3, 0.6)}
    check(Trial(candidate, draw, Scene("returns"), **settings).says("ppo/loss/value"))
    check(
        Trial(candidate, draw, Scene("price"), init_kl_coef=draw.number(0.8, 1.5)).says(
            "ppo/loss/value", "objective/kl_coef"
        )
    )


@hidden(
    TRAINER,
    "passes, updates and mini-batches",
    points=0.5,
    catches=["sizes", "accumulation ignored", "too many or few passes", "rows twice or never"],
    message="In each of ppo_epochs passes, every response belongs to exactly one mini-batch, and the optimiser moves after "
    "gradient_accumulation_steps of them.",
    after=[UPDATE],
)
def step_passes(candidate: Candidate, draw: Draw):
    for mini, accumulated in ((1, 2), (2, 1), (1, 4), (4, 1)):
        settings = {"mini_batch_size": mini, "gradient_accumulation_steps": accumulated, "ppo_epochs": 3}
        trial = Trial(candidate, draw, Scene("passes"), **settings)
        check(len(trial.passes()) == 3)


@hidden(
    TRAINER,
    "a new order in each pass",
    points=0.5,
    catches=["not shuffled", "shuffled once"],
    message="The batch is not gone through in a new order in each pass.",
    after=[UPDATE],
)
def step_order(candidate: Candidate, draw: Draw):
    trial = Trial(candidate, draw, Scene("order", **LEVEL), mini_batch_size=1, ppo_epochs=12)
    orders = {
        tuple(row for update in updates for rows in update for row in rows) for updates in trial.passes()
    }
    check(len(orders) > 2)  # by chance, hardly ever: there are 24 orders


@hidden(
    TRAINER,
    "accumulated gradients are those of the whole batch",
    points=1,
    catches=[
        "no weights",
        "equal weights",
        "weights by responses",
        "by the whole batch",
        "set back too often",
    ],
    message="The gradients of your mini-batches do not add up to the gradient of all their responses together. How much does a "
    "mini-batch with few tokens weigh?",
)
def step_accumulation(candidate: Candidate, draw: Draw):
    for mini, accumulated in ((1, 4), (2, 2), (1, 2)):
        settings = {"mini_batch_size": mini, "gradient_accumulation_steps": accumulated}
        check(Trial(candidate, draw, Scene("accumulated"), **settings).pushes(1e-5))


@hidden(
    TRAINER,
    "gradients are set back to zero",
    points=0.5,
    catches=["never", "once", "in each mini-batch"],
    message="Gradients add up from update to update, or are set back while they should add up.",
    after=[UPDATE],
)
def step_left_over(candidate: Candidate, draw: Draw):
    settings = {"mini_batch_size": 1, "gradient_accumulation_steps": 2, "ppo_epochs": 2}
    check(Trial(candidate, draw, Scene("left over"), left_over=draw.number(3, 9), **settings).pushes(1e-3))


@hidden(
    TRAINER,
    "the targets stay",
    points=0.75,
    catches=[
        "old numbers read anew",
        "advantages anew",
        "ratio always 1",
        "rows of others",
        "another optimiser",
    ],
    message="After several updates the weights are somewhere else than PPO takes them. What changes from update to update in "
    "your code?",
)
def step_targets(candidate: Candidate, draw: Draw):
    settings = {"mini_batch_size": 1, "gradient_accumulation_steps": 2, "ppo_epochs": 3}
    trial = Trial(candidate, draw, Scene("targets"), lr=0.05, max_grad_norm=1.0, **settings)
    check(len(trial.passes()) == 3 and trial.moves())
    # a second step starts from where the first one has ended, and the reference stays
    trial = Trial(candidate, draw, Scene("second step"), lr=0.05, max_grad_norm=1.0, n_steps=2)
    check(trial.moves() and trial.says("ppo/kl", "ppo/loss/value"))


@hidden(
    TRAINER,
    "the limits of the config",
    points=0.75,
    catches=[
        "clip ranges swapped or not handed on",
        "vf_coef",
        "max_grad_norm",
        "clipped too early",
        "part of it clipped",
    ],
    message="A limit or a weight of the config does not reach the update: cliprange, cliprange_value, vf_coef, or max_grad_norm.",
)
def step_limits(candidate: Candidate, draw: Draw):
    settings = {
        "mini_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "lr": 0.3,
        "max_grad_norm": 0.5,
        "ppo_epochs": 4,
    }
    for limits in ((0.05, 1e3, 0.5), (9.0, 0.05, 1.4)):
        ranges = dict(zip(("cliprange", "cliprange_value", "vf_coef"), limits, strict=True))
        check(Trial(candidate, draw, Scene("limits"), **settings, **ranges).moves())
    small = Trial(
        candidate,
        draw,
        Scene("norm"),
        mini_batch_size=1,
        gradient_accumulation_steps=4,
        lr=2.0,
        max_grad_norm=0.03,
    )
    check(small.moves())


@hidden(
    TRAINER,
    "target_kl",
    points=0.75,
    catches=[
        "ignored",
        "another limit",
        "in the middle of a pass",
        "one mini-batch alone",
        "the KL to the reference",
    ],
    message="target_kl ends the update too early, too late or never: what counts is the mean approx_kl of a pass, once the pass "
    "is over.",
    after=[UPDATE],
)
def step_target_kl(candidate: Candidate, draw: Draw):
    scene = Scene("target", **LEVEL)
    settings = {"lr": 0.4, "max_grad_norm": 1.0}

    def updates(mini: int, **given: Any) -> int:
        trial = Trial(candidate, draw, scene, mini_batch_size=mini, **settings, **given)
        trial.passes()
        return len(trial.gradients)

    check(updates(BATCH, ppo_epochs=5) == 5)
    # what the second pass finds, white by either variance: a limit below both, and one above both
    moved = [2 * _approx_kl(scene, draw.seed, settings, 2, sample) for sample in (False, True)]
    check(updates(BATCH, ppo_epochs=5, target_kl=min(moved) / 1.55) == 2)
    check(updates(BATCH, ppo_epochs=5, target_kl=max(moved) / 1.45) > 2)
    check(updates(BATCH, ppo_epochs=5, target_kl=1e6) == 5)
    check(updates(1, ppo_epochs=3, target_kl=1e-9) == BATCH)

    # four updates in a pass: the limit lies above the mean of their approx_kl and below the last, in nearly any order
    probe = Trial(candidate, draw, scene, mini_batch_size=1, **settings)
    limit = 1.5 * sum(probe.expected(sample=False).approx_kls) / BATCH
    for _ in range(3):
        trial = Trial(
            candidate, draw, scene, mini_batch_size=1, ppo_epochs=3, target_kl=limit / 1.5, **settings
        )
        check(trial.either(lambda right: _ends_in_time(right, limit)))


def _ends_in_time(right: Expected, limit: float) -> bool:
    """Whether the mean of each pass of four updates lies below the limit, but for the last; with a margin."""
    found = right.approx_kls
    means = [sum(found[i : i + BATCH]) / BATCH for i in range(0, len(found), BATCH)]
    return all(mean < 1.05 * limit for mean in means[:-1]) and (len(means) == 3 or means[-1] > 0.95 * limit)


def _approx_kl(scene: Scene, seed: int, settings: dict[str, float], n_passes: int, sample: bool) -> float:
    """The mean approx_kl of so many passes of one update each."""
    given = PLAIN | {"max_grad_norm": settings["max_grad_norm"]}
    orders = [[[list(range(BATCH))]] * n_passes]
    right = Expected(scene, seed, given, settings["lr"], orders, [given["init_kl_coef"]], sample)
    return right.stats[0]["ppo/policy/approxkl"]


@hidden(
    TRAINER,
    "what the controller is told",
    points=0.5,
    catches=[
        "never",
        "although fixed",
        "in each pass",
        "token mean",
        "sum",
        "padding",
        "sign",
        "n_steps",
        "another KL",
        "absolute value",
    ],
    message="The controller hears of each batch once, where adap_kl_ctrl says so: the KL to the reference of the policy that "
    "sampled, a sum over tokens and a mean over responses, and the number of responses.",
)
def step_controller(candidate: Candidate, draw: Draw):
    settings = {"mini_batch_size": 1, "ppo_epochs": 2, "lr": 0.1, "max_grad_norm": 1.0}
    fixed = Trial(candidate, draw, Scene("told"), prices=(0.3,), **settings)
    check(fixed.noted["told"] == [], "With adap_kl_ctrl=False, the price stays as it is.")
    for sign in (1, -1):
        scene = _told(draw.seed, sign)
        trial = Trial(candidate, draw, scene, prices=(0.3,), adap_kl_ctrl=True, **settings)
        told = parts(trial.noted["told"], 1)
        kl, n_steps = parts(told[0], 2)
        check(number(n_steps) == BATCH)
        agree(number(kl), trial.expected(sample=False).stats[0]["ppo/kl"], tolerance=1e-3)


@cache
def _told(seed: int, sign: int) -> Scene:
    """A batch whose KL to the reference, an estimate, has this sign."""
    for number_ in count():
        scene = Scene(f"told {number_}")
        right = Expected(scene, seed, PLAIN, 0.0, [[[list(range(BATCH))]]], [0.3], sample=False)
        if sign * right.stats[0]["ppo/kl"] > 0.1:
            return scene


@hidden(
    TRAINER,
    "the price of this batch and of the next",
    points=0.5,
    catches=["price at the start", "updated too early", "price of the next in the stats"],
    message="A step charges the price that the controller has when it begins; what the controller makes of it is the price of "
    "the next one.",
)
def step_prices(candidate: Candidate, draw: Draw):
    prices = draw.number(0.2, 0.5), draw.number(1.5, 3.0), 9.0
    trial = Trial(candidate, draw, Scene("prices"), prices=prices, n_steps=2, adap_kl_ctrl=True)
    check(trial.says("objective/kl_coef", "ppo/loss/value"))


@hidden(
    TRAINER,
    "the stats",
    points=0.5,
    catches=[
        "the last or first mini-batch alone",
        "the pass that ended the update left out",
        "KL",
        "not logged",
        "logged twice",
    ],
    message="A number in the stats is not what the docstring says, or does not reach TensorBoard once for each step.",
)
def step_stats(candidate: Candidate, draw: Draw):
    settings = {"mini_batch_size": 2, "ppo_epochs": 2, "lr": 0.3, "max_grad_norm": 1.0, "cliprange": 0.1}
    trial = Trial(candidate, draw, Scene("stats", **LEVEL), n_steps=2, **settings)
    check(trial.says(*STATS))
    # an update that ends between the approx_kl of the first pass and that of the second: the pass that ended it counts too
    found = trial.expected(sample=False).approx_kls
    ended = Trial(candidate, draw, Scene("stats", **LEVEL), target_kl=sum(found[:4]) / 4 / 1.5, **settings)
    check(ended.says(*LOSSES))
    for name in STATS:
        steps = [step for written, _, step in trial.noted["written"] if written == name]
        check(steps == [0, 1], "The stats do not reach TensorBoard once for each step: `_log` writes them.")


@hidden(
    TRAINER,
    "lists, rows, and what is left alone",
    points=0.25,
    catches=[
        "wrong lengths taken",
        "query not cut off",
        "writes into the batch",
        "the reference moves",
        "gradients of what is fixed",
    ],
    message="Lists of the wrong length are not refused, rows or responses with their query are not understood, or something is "
    "changed that is only read.",
    after=[UPDATE],
)
def step_lists(candidate: Candidate, draw: Draw):
    scene = Scene("lists")
    _, ref_weights, queries, responses, scores = _inputs(scene, draw.seed)
    whole = [torch.cat([query, response]).unsqueeze(0) for query, response in zip(queries, responses)]
    rows = Trial(candidate, draw, scene, batch=([query.unsqueeze(0) for query in queries], whole, scores))
    check(rows.pushes())
    plain = Trial(candidate, draw, scene, lr=0.1)
    for given, after in zip((queries, responses, scores), plain.noted["batch"], strict=True):
        check(all(torch.equal(one, tensor(other)) for one, other in zip(given, after, strict=True)))
    check(all(torch.equal(weight, plain.noted["reference"][name]) for name, weight in ref_weights.items()))
    check(plain.noted["recorded by the reference"] is False)
    check(not any(each["training"] for each in plain.noted["passes"]))
    try:
        Trial(candidate, draw, scene, batch=(queries, responses, scores[:3]))
    except Exception as error:
        check(getattr(error, "kind", "") == "ValueError")
    else:
        raise Wrong()
