"""Cases of 8: the estimators of the KL, the controller of its price, and the trainer."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..taught_code import TaughtCode
from .case import WrongReturn, case, entries, in_words, numbers, one_number, raised, tensor
from .models import micro_tokenizer, reading_lm
from .ppo_loop import SmallPolicy
from .training import Step, leave_over, noted

# --- 8.1 kl_k1, kl_k2, kl_k3 ----------------------------------------------------------------------

ESTIMATORS = ("kl_k1", "kl_k2", "kl_k3")


def _estimate(code: TaughtCode, name: str, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """What an estimator makes of these log-probabilities: one number for each."""
    return tensor(name, getattr(code.trainer, name)(logprobs, ref_logprobs), logprobs.shape)


def _pair() -> tuple[Tensor, Tensor]:
    """Log-probabilities of six tokens, and of the reference, which differs by up to one and a half."""
    logprobs = -1.0 - numbers(1, 2, 3).abs()
    return logprobs, logprobs - torch.tensor([[0.5, -1.0, 0.1], [1.5, -0.2, 0.0]])


def _of_each_estimator(title: str, tried: str, mistake: str = ""):
    """Declare the decorated function, `(code, name) -> observation`, as a case of each of the three."""

    def register(observe):
        for name in ESTIMATORS:
            declare = case(name, title, tried, mistake)
            declare(lambda code, name=name: observe(code, name))
        return observe

    return register


@_of_each_estimator("one number for each token", "six log-probabilities, [2, 3]")
def kl_shape(code: TaughtCode, name: str):
    return {"the shape": list(_estimate(code, name, *_pair()).shape)}


@_of_each_estimator(
    "models that agree",
    "the same log-probabilities twice",
    mistake="Where policy and reference give a token the same probability, there is no distance between them.",
)
def kl_agree(code: TaughtCode, name: str):
    logprobs, _ = _pair()
    return {"the estimate": _estimate(code, name, logprobs, logprobs.clone())}


@_of_each_estimator(
    "which of the two is larger",
    "two tokens: the policy likes the first one more by 1 nat, the second one less",
    mistake="The estimate has the wrong sign, or policy and reference are the wrong way round.",
)
def kl_direction(code: TaughtCode, name: str):
    logprobs = torch.tensor([-1.0, -2.0])
    liked, disliked = _estimate(code, name, logprobs, torch.tensor([-2.0, -1.0])).tolist()
    sign = ["above 0" if x > 1e-6 else "below 0" if x < -1e-6 else "0" for x in (liked, disliked)]
    order = "the first" if liked > disliked + 1e-6 else "the second" if disliked > liked + 1e-6 else "neither"
    return {"of the liked token": sign[0], "of the other": sign[1], "the larger one is": order}


@_of_each_estimator(
    "the numbers",
    "log-ratios 0.5, -1, 0.1, 1.5, -0.2 and 0",
    mistake="The numbers are not those of this estimator.",
)
def kl_numbers(code: TaughtCode, name: str):
    return {"the estimate": _estimate(code, name, *_pair())}


@_of_each_estimator(
    "the level of the log-probabilities has no say",
    "the same log-ratios for likely and for unlikely tokens",
    mistake="The estimate depends on how likely a token is. The samples come from the policy: likely tokens are weighted "
    "by coming more often.",
)
def kl_level(code: TaughtCode, name: str):
    logprobs, ref_logprobs = _pair()
    likely, unlikely = (_estimate(code, name, logprobs - far, ref_logprobs - far) for far in (0.0, 4.0))
    return {"the largest difference": (likely - unlikely).abs().max()}


@_of_each_estimator(
    "tokens far apart",
    "log-ratios of 3 and -3",
    mistake="Large log-ratios are limited. What is far apart has to count as it is.",
)
def kl_far(code: TaughtCode, name: str):
    logprobs = torch.tensor([-1.0, -4.0])
    return {"the estimate": _estimate(code, name, logprobs, logprobs.flip(0))}


@_of_each_estimator(
    "the mean over all tokens",
    "three tokens with probabilities 0.5, 0.3 and 0.2; the reference has 0.2, 0.3 and 0.5",
    mistake="Weighted with the policy's probabilities, the estimates do not add up to what they should.",
)
def kl_mean(code: TaughtCode, name: str):
    probabilities = torch.tensor([0.5, 0.3, 0.2])
    logprobs, ref_logprobs = probabilities.log(), probabilities.flip(0).log()
    return {"the mean": (probabilities * _estimate(code, name, logprobs, ref_logprobs)).sum()}


@_of_each_estimator(
    "gradients pass through",
    "gradients of the sum, with respect to both arguments",
    mistake="Gradient has to reach both arguments: whoever puts the estimate into a loss needs it.",
)
def kl_gradients(code: TaughtCode, name: str):
    pair = [logprobs.requires_grad_() for logprobs in _pair()]
    estimate = _estimate(code, name, *(1 * logprobs for logprobs in pair))
    if not estimate.requires_grad:
        return {"the estimate carries a gradient": False}
    found = torch.autograd.grad(estimate.sum(), pair, allow_unused=True)
    return {"the estimate carries a gradient": True, "of logprobs": found[0], "of ref_logprobs": found[1]}


@_of_each_estimator(
    "double precision",
    "float64 in, and what comes out",
    mistake="Numbers in double precision lose digits on their way through.",
)
def kl_double(code: TaughtCode, name: str):
    logprobs, ref_logprobs = (x.double() for x in _pair())
    return {"dtype": str(_estimate(code, name, logprobs, ref_logprobs).dtype)}


@_of_each_estimator(
    "the arguments stay as they are",
    "both, before and after",
    mistake="An argument is changed: somebody else still needs it.",
)
def kl_arguments(code: TaughtCode, name: str):
    given, before = _pair(), _pair()
    _estimate(code, name, *given)
    return {
        f"{what} is the same": torch.equal(one, other)
        for what, one, other in zip(("logprobs", "ref_logprobs"), given, before)
    }


# --- 8.2 AdaptiveKLController ---------------------------------------------------------------------

CONTROLLER = "AdaptiveKLController"


def _value(controller: object) -> float:
    """The price now, which has to be one number."""
    return one_number(f"{CONTROLLER}.value", getattr(controller, "value", None))


def _prices(
    code: TaughtCode, *updates: tuple[float, int], start=0.3, target=6.0, horizon=1000
) -> list[float]:
    """The price at the start and after each update."""
    controller = code.trainer.AdaptiveKLController(start, target, horizon)
    prices = [_value(controller)]
    for current_kl, n_steps in updates:
        controller.update(current_kl, n_steps)
        prices.append(_value(controller))
    return prices


def _change(code: TaughtCode, current_kl: float, n_steps: int = 10, horizon: int = 1000, **settings) -> float:
    """By which share one update changes the price, times `horizon / n_steps`: what is left is the error."""
    before, after = _prices(code, (current_kl, n_steps), horizon=horizon, **settings)
    return (after / before - 1) * horizon / n_steps


@case(
    CONTROLLER,
    "the price at the start",
    "init_kl_coef 0.3",
    mistake="Before the first update, value is the price to start with.",
)
def controller_start(code: TaughtCode):
    return {"value": _prices(code)[0]}


@case(
    CONTROLLER,
    "on target",
    "a KL of 6 where the target is 6",
    mistake="On target there is no error, and the price stays.",
)
def controller_on_target(code: TaughtCode):
    return {"value before and after": _prices(code, (6.0, 10))}


@case(
    CONTROLLER,
    "up or down",
    "a KL of 6.6, then of 5.4, each on a new controller with the target 6",
    mistake="The price goes the wrong way, or nowhere: KL that is too high has to become dearer, and KL that is low cheaper.",
)
def controller_direction(code: TaughtCode):
    def way(current_kl: float) -> str:
        before, after = _prices(code, (current_kl, 10))
        return "up" if after > before + 1e-9 else "down" if after < before - 1e-9 else "nowhere"

    return {"above the target, the price goes": way(6.6), "below the target": way(5.4)}


@case(
    CONTROLLER,
    "how far",
    "a KL 10 % above and 10 % below the target, 10 samples, horizon 1000",
    mistake="The price goes the right way, by the wrong amount. What is the error where the KL is a tenth off its target?",
)
def controller_small_error(code: TaughtCode):
    return {
        "change of the price, as a multiple of n_steps / horizon": [_change(code, kl) for kl in (6.6, 5.4)]
    }


@case(
    CONTROLLER,
    "far above the target",
    "a KL of 7.8 and of 600 where the target is 6",
    mistake="One batch with a huge KL moves the price too far, or not far enough: the error is limited from above.",
)
def controller_far_above(code: TaughtCode):
    return {
        "change of the price, as a multiple of n_steps / horizon": [_change(code, kl) for kl in (7.8, 600.0)]
    }


@case(
    CONTROLLER,
    "far below the target",
    "a KL of 4.2, of 0, of -1 and of -20 (an estimate may be below 0) where the target is 6",
    mistake="A batch without KL moves the price too far, or not far enough: the error is limited from below.",
)
def controller_far_below(code: TaughtCode):
    return {
        "change of the price, as a multiple of n_steps / horizon": [
            _change(code, kl) for kl in (4.2, 0.0, -1.0, -20.0)
        ]
    }


@case(
    CONTROLLER,
    "samples and horizon",
    "10 and 30 samples; horizons 1000 and 4000",
    mistake="The share of the horizon that was measured says how far the price moves: more samples, further; a longer horizon, "
    "less far.",
)
def controller_horizon(code: TaughtCode):
    def change(n_steps: int, horizon: int) -> float:
        before, after = _prices(code, (6.6, n_steps), horizon=horizon)
        return 1000 * (after / before - 1)

    return {
        f"change in thousandths, {n_steps} samples, horizon {horizon}": change(n_steps, horizon)
        for n_steps, horizon in ((10, 1000), (30, 1000), (30, 4000))
    }


@case(
    CONTROLLER,
    "another target",
    "a KL of 0.55 where the target is 0.5",
    mistake="The error is a share of the target: it is the same for a small and for a large target.",
)
def controller_target(code: TaughtCode):
    return {"change of the price, as a multiple of n_steps / horizon": _change(code, 0.55, target=0.5)}


@case(
    CONTROLLER,
    "another price",
    "prices of 0.001 and 3, 10 % above the target",
    mistake="The price changes by a share of itself, whatever it is.",
)
def controller_price(code: TaughtCode):
    return {
        "change of the price, as a multiple of n_steps / horizon": [
            _change(code, 6.6, start=price) for price in (0.001, 3.0)
        ]
    }


@case(
    CONTROLLER,
    "one update after the other",
    "a KL of 12, twenty times, then of 1, ten times",
    mistake="The first update is right, and the later ones are not: each starts from the price that the last one left.",
)
def controller_many(code: TaughtCode):
    prices = _prices(code, *[(12.0, 10)] * 20, *[(1.0, 10)] * 10)
    return {"value, in units of the first, every ten updates": [price / prices[0] for price in prices[::10]]}


@case(
    CONTROLLER,
    "two controllers",
    "one is updated, another one is not",
    mistake="Two controllers share their price.",
)
def controller_two(code: TaughtCode):
    one, other = (code.trainer.AdaptiveKLController(price, 6.0, 100) for price in (0.3, 0.7))
    one.update(12.0, 10)
    return {"value of the updated one": _value(one), "of the other": _value(other)}


# --- 8.3 PPOTrainer: generate ---------------------------------------------------------------------

TRAINER = "PPOTrainer"
ASKED = {  # an EOS, id 0, stands in the second and third query; the responses have different lengths
    "three tokens": [5, 9, 200],
    "an EOS inside": [12, 0, 44],
    "an EOS in front": [0, 8, 33, 900],
    "one token": [7],
}


class Speaker(nn.Module):
    """In place of a policy that is to respond: a language model, and nothing that a step would need."""

    def __init__(self):
        super().__init__()
        self.lm = copy.deepcopy(reading_lm())


def _generate(code: TaughtCode, asked, return_prompt: bool | None = None, **settings):
    """What the trainer answers to token ids, or to a list of them: at most six tokens, and nothing is said of sampling."""
    config = code.trainer.PPOConfig(batch_size=1, mini_batch_size=1)
    trainer = code.trainer.PPOTrainer(config, Speaker(), nn.Linear(1, 1), micro_tokenizer())
    if isinstance(asked[0], list):
        query = [torch.tensor(ids) for ids in asked]
    else:
        query = torch.tensor(asked)
    if return_prompt is not None:
        settings["return_prompt"] = return_prompt
    return trainer.generate(query, **{"max_new_tokens": 6} | settings)


def _row(returned) -> Tensor:
    return tensor("generate", returned)


def _rows(returned, n: int) -> list[Tensor]:
    if not isinstance(returned, (list, tuple)) or len(returned) != n:
        raise WrongReturn(f"generate returned {in_words(returned)}, expected a list of {n} tensors")
    return [tensor("generate", row) for row in returned]


@case(
    TRAINER,
    "a response to one query",
    "a query of three tokens; sampling is not asked for",
    mistake="For one query, what comes back is a row that starts with it and goes on with the response, up to its EOS.",
)
def generate_one(code: TaughtCode):
    return {"ids": _row(_generate(code, ASKED["three tokens"]))}


@case(
    TRAINER,
    "the response alone",
    "return_prompt=False",
    mistake="Without the prompt, the response alone is left: all of it, and nothing else.",
)
def generate_response(code: TaughtCode):
    return {"ids": _row(_generate(code, ASKED["three tokens"], return_prompt=False))}


@case(
    TRAINER,
    "an EOS in the query",
    "the EOS is the pad token; one in the middle of a query, and one in front",
    mistake="The policy does not read an EOS in the query. Every token of a query is real, whatever its id.",
)
def generate_eos(code: TaughtCode):
    return {
        what: _row(_generate(code, ASKED[what], return_prompt=False))
        for what in ("an EOS inside", "an EOS in front")
    }


@case(
    TRAINER,
    "a list of queries",
    "four queries of different lengths",
    mistake="For a list, what comes back is a list: each query and its response as they would be alone, with no padding.",
)
def generate_list(code: TaughtCode):
    return {"ids": [row.tolist() for row in _rows(_generate(code, list(ASKED.values())), len(ASKED))]}


@case(
    TRAINER,
    "a list of queries, the responses alone",
    "the same with return_prompt=False",
    mistake="return_prompt has to hold for every query of a list.",
)
def generate_list_responses(code: TaughtCode):
    returned = _generate(code, list(ASKED.values()), return_prompt=False)
    return {"ids": [row.tolist() for row in _rows(returned, len(ASKED))]}


@case(
    TRAINER,
    "settings are handed on",
    "max_new_tokens=2 of one query and of a list; another eos_token_id; sampling at temperature 50, and with top_k=1",
    mistake="What the caller says about sampling has to reach `generate` of the language model as it is.",
)
def generate_settings(code: TaughtCode):
    query = ASKED["three tokens"]
    as_is = {"return_prompt": False, "max_new_tokens": 12, "do_sample": True}
    wild = _rows(_generate(code, [query] * 3, temperature=50.0, top_k=0, **as_is), 3)
    return {
        "two tokens": _row(_generate(code, query, max_new_tokens=2)),
        "two tokens each": [row.tolist() for row in _rows(_generate(code, [query], max_new_tokens=2), 1)],
        "1504 for EOS": _row(_generate(code, query, eos_token_id=1504)),
        "top_k=1": _row(_generate(code, query, top_k=1, **as_is)),
        "at temperature 50, three samples are the same": wild[0].tolist()
        == wild[1].tolist()
        == wild[2].tolist(),
    }


@case(
    TRAINER,
    "nothing is added to the settings",
    "sampling is not asked for, twice; the first token of 20 samples",
    mistake="You add settings of your own to those of the caller.",
)
def generate_adds_nothing(code: TaughtCode):
    query = ASKED["three tokens"]
    same = [row.tolist() for row in _rows(_generate(code, [query] * 2), 2)]
    likely = set(reading_lm()(torch.tensor([query])).logits[0, -1].topk(50).indices.tolist())
    settings = {"return_prompt": False, "do_sample": True, "top_k": 0, "max_new_tokens": 1}
    drawn = _rows(_generate(code, [query] * 20, **settings), 20)
    outside = sum(int(row[0]) not in likely for row in drawn)
    return {
        "not asked to sample, it says the same twice": same[0] == same[1],
        "some of 20 samples are none of the 50 likeliest tokens": outside > 3,
    }


# --- 8.3 PPOTrainer: step -------------------------------------------------------------------------

QUERIES = [[3, 7], [5], [9, 2, 4], [6, 1]]
RESPONSES = [[4, 8, 1, 10], [2, 9], [7, 3, 6], [5]]
SCORES = [1.5, -0.7, 0.4, 0.9]
TWINS = {"queries": [[3, 7]] * 4, "responses": [[4, 8, 1]] * 4, "scores": [1.5] * 4}  # in any order the same
STATS = ("ppo/kl", "objective/kl", "objective/kl_coef", "ppo/mean_scores", "ppo/loss/policy", "ppo/loss/value",
         "ppo/loss/total", "ppo/policy/approxkl", "ppo/policy/clipfrac")  # fmt: skip
# one update on the whole batch: no clipping, nothing adapts
PLAIN = {
    "batch_size": 4, "mini_batch_size": 4, "ppo_epochs": 1, "init_kl_coef": 0.3, "adap_kl_ctrl": False,
    "cliprange": 9.0, "cliprange_value": 1e3, "vf_coef": 0.5, "max_grad_norm": 1e9,
}  # fmt: skip


class NotedPolicy(SmallPolicy):
    """A small policy that notes each pass: which rows it reads, and in which mode.

    Attributes:
        passes: of each pass the rows, by the ids that the mask lets through, whether gradients are recorded and whether
            dropout is on.
    """

    def __init__(self, other: bool = False):
        super().__init__()
        self.passes: list[tuple[list[tuple[int, ...]], bool, bool]] = []
        if other:
            with torch.no_grad():
                for seed, weight in enumerate(self.parameters()):
                    weight += numbers(50 + seed, *weight.shape, std=0.3)

    def forward(self, input_ids, attention_mask, position_ids=None, logits_to_keep=0):
        rows = [tuple(ids[mask.bool()].tolist()) for ids, mask in zip(input_ids, attention_mask, strict=True)]
        self.passes.append((rows, torch.is_grad_enabled(), self.training))
        return super().forward(input_ids, attention_mask, position_ids, logits_to_keep)


class NotedPrice:
    """In place of the controller: it has one price after the other, and notes what it is told."""

    def __init__(self, *prices: float):
        self._later = list(prices)
        self.value = self._later.pop(0)
        self.told: list[tuple[float, int]] = []

    def update(self, current_kl, n_steps):
        self.told.append((float(current_kl), int(n_steps)))
        if self._later:
            self.value = self._later.pop(0)


class NotedWriter:
    """In place of TensorBoard's writer."""

    def __init__(self):
        self.written: list[tuple[str, int]] = []

    def add_scalar(self, name, value, step):
        self.written.append((str(name), int(step)))

    def flush(self):
        pass


class Trial:
    """A trainer on small policies that has made some steps, and what could be seen of it.

    Attributes:
        stats: of each step, the numbers that the docstring promises.
        steps: those of the optimiser.
        read: the rows of each pass that recorded gradients.
    """

    def __init__(
        self,
        code: TaughtCode,
        queries: Sequence[Sequence[int]] = QUERIES,
        responses: Sequence[Sequence[int]] = RESPONSES,
        scores: Sequence[float] = SCORES,
        lr: float = 0.0,
        n_steps: int = 1,
        prices: Sequence[float] = (),
        left_over: float | None = None,
        no_kl: bool = False,
        **settings,
    ):
        """Make a trainer and let it make `n_steps` steps on one batch.

        Args:
            prices: of a controller that follows this list; by default the trainer has its own.
            left_over: a gradient that each weight has before.
            no_kl: let the reference be the policy as it is.
        """
        config = code.trainer.PPOConfig(**PLAIN | settings)
        self.policy, self.reference = NotedPolicy(), NotedPolicy(other=not no_kl)
        optimizer = torch.optim.SGD(self.policy.parameters(), lr=lr)
        self.steps: list[Step] = noted(optimizer)
        self.trainer = code.trainer.PPOTrainer(
            config, self.policy, self.reference, micro_tokenizer(), optimizer
        )
        self.price = NotedPrice(*prices) if prices else None
        if self.price is not None:
            self.trainer.kl_ctl = self.price
        self.writer = self.trainer._writer = NotedWriter()
        leave_over(self.policy, left_over)
        self.batch = (
            [torch.tensor(query) for query in queries],
            [torch.tensor(response) for response in responses],
            [torch.tensor(score) for score in scores],
        )
        self.stats = [self._stats(self.trainer.step(*self.batch)) for _ in range(n_steps)]

    @staticmethod
    def _stats(returned) -> dict[str, float]:
        returned = entries("step", returned, *STATS)
        return {name: one_number(name, returned[name]) for name in STATS}

    @property
    def read(self) -> list[list[tuple[int, ...]]]:
        return [rows for rows, recorded, _ in self.policy.passes if recorded]

    def says(self, *names: str) -> dict[str, float]:
        """These numbers of the first step."""
        return {name: self.stats[0][name] for name in names}


ROWS = [tuple(query + response) for query, response in zip(QUERIES, RESPONSES, strict=True)]


@case(TRAINER, "a step runs", "4 queries, responses and scores; a learning rate of 0")
def step_runs(code: TaughtCode):
    return {"stats has": list(Trial(code).stats[0])}


@case(
    TRAINER,
    "the batch stays as it is",
    "queries, responses and scores before and after",
    mistake="A step writes into the queries, responses or scores of the caller.",
)
def step_batch(code: TaughtCode):
    trial = Trial(code, lr=0.05)
    return {
        name: [x.tolist() for x in given]
        for name, given in zip(("queries", "responses", "scores"), trial.batch, strict=True)
    }


@case(
    TRAINER,
    "the score and the KL in the stats",
    "responses of 4, 2, 3 and 1 tokens",
    mistake="The KL in the stats is not that of a response to the reference, averaged over the responses.",
)
def step_kl(code: TaughtCode):
    return Trial(code).says("ppo/mean_scores", "ppo/kl", "objective/kl")


@case(
    TRAINER,
    "what stays fixed is read without gradient",
    "the first pass of the policy, and the passes of the reference",
    mistake="Nobody goes backward through the passes for what stays fixed: they need no gradients, and no memory for them.",
)
def step_no_grad(code: TaughtCode):
    trial = Trial(code)
    return {
        "the first pass of the policy records gradients": trial.policy.passes[0][1],
        "a pass of the reference does": any(recorded for _, recorded, _ in trial.reference.passes),
        "a pass has dropout": any(training for _, _, training in trial.policy.passes),
    }


@case(
    TRAINER,
    "only real tokens are read",
    "what the masks let through in each pass: queries of 2, 1, 3 and 2 tokens, responses of 4, 2, 3 and 1",
    mistake="Padding is read as text, or a real token is not read: in one of your passes the mask is not the one that "
    "belongs to the ids.",
)
def step_masks(code: TaughtCode):
    trial = Trial(code)
    return {
        "every row is a query and its response": all(
            row in ROWS for rows, _, _ in trial.policy.passes + trial.reference.passes for row in rows
        )
    }


@case(
    TRAINER,
    "updates and mini-batches",
    "4 responses, 3 passes; mini-batches of 1, two of them for each update; then mini-batches of 2, one for each",
    mistake="The optimiser moves after gradient_accumulation_steps mini-batches of mini_batch_size responses, and ppo_epochs "
    "says how often the batch is gone through.",
)
def step_updates(code: TaughtCode):
    seen = {}
    for mini, accumulated in ((1, 2), (2, 1)):
        settings = {"mini_batch_size": mini, "gradient_accumulation_steps": accumulated, "ppo_epochs": 3}
        trial = Trial(code, **settings)
        seen[f"steps of the optimiser ({mini}, {accumulated})"] = len(trial.steps)
        seen[f"responses in each mini-batch ({mini}, {accumulated})"] = [len(rows) for rows in trial.read]
        seen[f"a step has a gradient ({mini}, {accumulated})"] = [
            bool(step.gradient.any()) for step in trial.steps
        ]
    return seen


@case(
    TRAINER,
    "every response once in each pass",
    "3 passes over 4 responses, mini-batches of 2",
    mistake="In one pass, every response of the batch belongs to exactly one mini-batch.",
)
def step_partition(code: TaughtCode):
    read = Trial(code, mini_batch_size=2, ppo_epochs=3).read
    of_passes = [sum(read[start : start + 2], []) for start in range(0, len(read), 2)]
    return {"each pass has each response once": [sorted(rows) == sorted(ROWS) for rows in of_passes]}


@case(
    TRAINER,
    "a new order in each pass",
    "the orders of 8 passes over 4 responses",
    mistake="The batch is not gone through in a new order in each pass.",
)
def step_order(code: TaughtCode):
    read = Trial(code, mini_batch_size=1, ppo_epochs=8).read
    orders = {tuple(sum(read[start : start + 4], [])) for start in range(0, len(read), 4)}
    return {
        "there are several orders": len(orders) > 2,
        "it is always the order of the lists": orders == {tuple(ROWS)},
    }


@case(
    TRAINER,
    "what the critic has to learn",
    "ppo/loss/value where there is no KL, before the critic has moved",
    mistake="The critic learns another target than the returns that `compute_gae` finds in the token rewards and the values "
    "before the update.",
)
def step_returns(code: TaughtCode):
    return Trial(code, no_kl=True).says("ppo/loss/value")


@case(
    TRAINER,
    "the price of the KL",
    "ppo/loss/value with the price 0.9, before the critic has moved",
    mistake="The price of the KL does not reach the token rewards, or the KL is charged with the wrong sign.",
)
def step_price(code: TaughtCode):
    return Trial(code, init_kl_coef=0.9).says("ppo/loss/value", "objective/kl_coef")


@case(
    TRAINER,
    "gamma and lam",
    "ppo/loss/value with gamma 0.8 and lam 0.5, before the critic has moved",
    mistake="gamma or lam of the config does not reach `compute_gae`.",
)
def step_gamma(code: TaughtCode):
    return Trial(code, gamma=0.8, lam=0.5).says("ppo/loss/value")


@case(
    TRAINER,
    "the gradient of one update",
    "4 responses in one mini-batch: the policy's bias, and the critic's bias",
    mistake="The gradient of one update on the whole batch is not that of the losses with white advantages.",
)
def step_gradient(code: TaughtCode):
    gradients = Trial(code).steps[0].gradients
    return {"of the policy": gradients[2], "of the critic": gradients[-1]}


@case(
    TRAINER,
    "a response far better than the others",
    "the same with a score of 60",
    mistake="You limit or shift scores or advantages: a response that is far better than all others has to weigh as much as "
    "it does.",
)
def step_outlier(code: TaughtCode):
    trial = Trial(code, scores=[60.0, *SCORES[1:]])
    return {"the gradient of the policy": trial.steps[0].gradients[2], **trial.says("ppo/loss/value")}


@case(
    TRAINER,
    "gradients of mini-batches add up to that of the batch",
    "responses of 4, 2, 3 and 1 tokens: one mini-batch of 4, four of 1, two of 2",
    mistake="The sum of your mini-batches' gradients is not the gradient of the whole batch. A mini-batch with few tokens has "
    "to weigh less than one with many.",
    tolerance=1e-3,
)
def step_accumulation(code: TaughtCode):
    whole = Trial(code).steps[0].gradient
    ways = {f"{4 // mini} mini-batches": Trial(code, mini_batch_size=mini, gradient_accumulation_steps=4 // mini)
            for mini in (1, 2)}  # fmt: skip
    return {
        f"distance to the gradient of the batch, {what}": (trial.steps[0].gradient - whole).norm()
        / whole.norm()
        for what, trial in ways.items()
    }


@case(
    TRAINER,
    "two updates in one pass",
    "responses of 2 tokens each, in two updates of two mini-batches; the sum of both gradients",
    mistake="A mini-batch's share is that of the tokens in its own update, not in the whole batch.",
)
def step_share(code: TaughtCode):
    same_lengths = {"responses": [[4, 8], [2, 9], [7, 3], [5, 1]]}
    settings = {"mini_batch_size": 1, "gradient_accumulation_steps": 2}
    halves, whole = Trial(code, **same_lengths, **settings).steps, Trial(code, **same_lengths).steps
    both = sum(step.gradient for step in halves)
    return {"both updates, in units of the whole batch": both.norm() / whole[0].gradient.norm()}


@case(
    TRAINER,
    "the gradient is of this update alone",
    "gradients of an earlier step are left over; then two updates of twins, a learning rate of 0",
    mistake="Gradients add up from update to update. When are they set back to zero, and when must they not be?",
)
def step_zero_grad(code: TaughtCode):
    clean = Trial(code, **TWINS).steps[0].gradient
    steps = Trial(code, **TWINS, mini_batch_size=1, gradient_accumulation_steps=2, left_over=7.0).steps
    return {
        f"the gradient of update {number} is its own": torch.allclose(
            step.gradient, clean, rtol=1e-3, atol=1e-4
        )
        for number, step in enumerate(steps)
    }


@case(
    TRAINER,
    "max_grad_norm",
    "the norm of all gradients that the optimiser sees, from four mini-batches, with limits 0.02 and 1000000",
    mistake="The norm of the whole gradient, of policy and critic together and of all mini-batches of the update, has to be at "
    "most max_grad_norm when the optimiser moves.",
)
def step_max_grad_norm(code: TaughtCode):
    limited, free = (
        Trial(code, mini_batch_size=1, gradient_accumulation_steps=4, max_grad_norm=limit).steps[0]
        for limit in (0.02, 1e6)
    )
    way = torch.cosine_similarity(limited.gradient, Trial(code).steps[0].gradient, dim=0)
    return {
        "norm in units of the limit 0.02": limited.norm / 0.02,
        "a gradient below its limit is made larger": free.norm > 1e3,
        "it points where the free one points": bool(way > 0.9999),
    }


@case(
    TRAINER,
    "vf_coef",
    "the gradient of the critic's bias with vf_coef 0.1 and 0.7",
    mistake="vf_coef of the config does not reach the loss.",
)
def step_vf_coef(code: TaughtCode):
    small, large = (Trial(code, vf_coef=vf_coef).steps[0].gradients[-1].item() for vf_coef in (0.1, 0.7))
    return {"with 0.7, in units of that with 0.1": large / small if small else 0.0}


@case(
    TRAINER,
    "the targets stay",
    "twins, 3 passes of two updates each, a learning rate above 0: the weights",
    mistake="The first update is right, and the later ones are not. Which of old log-probabilities, old values, advantages and "
    "returns change from update to update in your code?",
)
def step_targets(code: TaughtCode):
    trial = Trial(code, **TWINS, lr=0.02, mini_batch_size=2, ppo_epochs=3)
    return dict(trial.policy.named_parameters())


@case(
    TRAINER,
    "cliprange and cliprange_value",
    "the same with cliprange 0.05, then with cliprange_value 0.05",
    mistake="A clip range of the config does not reach its loss: cliprange is for the ratio, cliprange_value for the values.",
)
def step_clip_ranges(code: TaughtCode):
    settings = {**TWINS, "lr": 0.02, "mini_batch_size": 2, "ppo_epochs": 3}
    ratio = Trial(code, **settings, cliprange=0.05).policy
    values = Trial(code, **settings, cliprange_value=0.05).policy
    return {
        f"{what}: {name}": weight
        for what, policy in (("cliprange", ratio), ("cliprange_value", values))
        for name, weight in policy.named_parameters()
    }


@case(
    TRAINER,
    "rows belong together",
    "2 passes with a learning rate above 0: four mini-batches of different responses lead where one of all leads",
    mistake="A mini-batch of yours does not have its own rows of everything: ids, mask, advantages, old numbers and returns.",
    tolerance=1e-3,
)
def step_rows(code: TaughtCode):
    whole = Trial(code, ppo_epochs=2, lr=0.02)
    parts = Trial(code, ppo_epochs=2, lr=0.02, mini_batch_size=1, gradient_accumulation_steps=4)
    return {
        "the weights end where one mini-batch of all leads": all(
            torch.allclose(one, other, rtol=1e-3, atol=1e-5)
            for one, other in zip(whole.policy.parameters(), parts.policy.parameters(), strict=True)
        )
    }


@case(
    TRAINER,
    "the stats are means over the mini-batches",
    "twins, 2 passes of two updates, a learning rate above 0",
    mistake="A loss in the stats is that of some mini-batch. It is the mean over all of them.",
)
def step_stats(code: TaughtCode):
    trial = Trial(code, **TWINS, lr=0.02, mini_batch_size=2, ppo_epochs=2)
    return trial.says("ppo/loss/policy", "ppo/loss/value", "ppo/policy/approxkl")


@case(
    TRAINER,
    "target_kl: too far",
    "5 passes; how many updates there are when target_kl is tiny, huge or None",
    mistake="target_kl ends the update too early, too late or never. When is it looked at, and at what?",
)
def step_target_kl(code: TaughtCode):
    return {
        f"updates with target_kl {target}": len(
            Trial(code, lr=0.05, ppo_epochs=5, target_kl=target, init_kl_coef=0.0).steps
        )
        for target in (1e-9, 1e9, None)
    }


@case(
    TRAINER,
    "target_kl: how far is too far",
    "the approx_kl of a pass is 1.4 and 1.6 times target_kl",
    mistake="The limit is 1.5 times target_kl, for the mean approx_kl of a pass.",
)
def step_target_kl_limit(code: TaughtCode):
    settings = {"lr": 0.02}
    # of two passes of one update each, only the second one has seen a policy that has moved
    moved = 2 * Trial(code, ppo_epochs=2, **settings).stats[0]["ppo/policy/approxkl"]
    return {
        f"at {times} times target_kl, the second pass is the last": len(
            Trial(code, ppo_epochs=4, target_kl=moved / times, **settings).steps
        )
        == 2
        for times in (1.4, 1.6)
    }


@case(
    TRAINER,
    "target_kl: a pass is gone through to its end",
    "twins, 4 updates in each pass; the mean of the first pass is 0.3, 0.8 and 1.2 of the limit",
    mistake="What counts is the mean of a whole pass, and a pass that has begun is gone through to its end.",
)
def step_target_kl_pass(code: TaughtCode):
    settings = {**TWINS, "lr": 0.02, "mini_batch_size": 1}
    mean = Trial(code, **settings, ppo_epochs=1).stats[0]["ppo/policy/approxkl"]
    return {
        f"updates where the mean of the first pass is {share} of the limit": len(
            Trial(code, **settings, ppo_epochs=3, target_kl=mean / share / 1.5).steps
        )
        for share in (0.3, 0.8, 1.2)
    }


@case(
    TRAINER,
    "the controller is told once",
    "2 passes of two updates: what the controller is told",
    mistake="The controller hears of each batch once: the KL to the reference of the policy that sampled, a sum over the "
    "tokens and a mean over the responses, and how many responses there were.",
)
def step_controller(code: TaughtCode):
    trial = Trial(code, prices=(0.3, 0.4), adap_kl_ctrl=True, mini_batch_size=2, ppo_epochs=2, lr=0.02)
    return {"told": [list(told) for told in trial.price.told]}


@case(
    TRAINER,
    "a price that is fixed",
    "adap_kl_ctrl=False",
    mistake="With adap_kl_ctrl=False, the price stays as it is.",
)
def step_fixed_price(code: TaughtCode):
    return {"told": len(Trial(code, prices=(0.3, 0.4)).price.told)}


@case(
    TRAINER,
    "the second step",
    "twins, 2 steps, a learning rate above 0: the KL of both",
    mistake="The first step is right, and the second one is not: what is fixed in a step is that of the policy when the step "
    "begins, and the reference is that of the very beginning.",
)
def step_second(code: TaughtCode):
    trial = Trial(code, **TWINS, n_steps=2, lr=0.02)
    return {
        **{
            f"{name} of the second step": trial.stats[1][name]
            for name in ("ppo/kl", "ppo/loss/value", "ppo/policy/approxkl")
        },
        "the reference has moved": not all(
            torch.equal(one, other)
            for one, other in zip(
                trial.reference.parameters(), NotedPolicy(other=True).parameters(), strict=True
            )
        ),
    }


@case(
    TRAINER,
    "the price of this batch and of the next one",
    "prices 0.3, then 2: objective/kl_coef and the critic's loss of two steps, a learning rate of 0",
    mistake="A step charges the price that the controller has when it begins; what the controller makes of this step is the "
    "price of the next one.",
)
def step_next_price(code: TaughtCode):
    trial = Trial(code, prices=(0.3, 2.0), adap_kl_ctrl=True, n_steps=2)
    return {
        name: [stats[name] for stats in trial.stats]
        for name in ("objective/kl_coef", "ppo/loss/value", "ppo/kl")
    }


@case(
    TRAINER,
    "rows, and responses with their query",
    "queries and responses as rows [1, tokens], each response with its query in front",
    mistake="A response that starts with its query has to be taken without it. `_batch` does that.",
)
def step_with_query(code: TaughtCode):
    plain = Trial(code)
    rows = Trial(
        code,
        queries=[[query] for query in QUERIES],
        responses=[[query + response] for query, response in zip(QUERIES, RESPONSES, strict=True)],
    )
    same = torch.allclose(plain.steps[0].gradient, rows.steps[0].gradient, rtol=1e-3, atol=1e-5)
    return {"the update is the same": same, **rows.says("ppo/kl")}


@case(
    TRAINER,
    "lists of the wrong length",
    "3 scores for 4 responses",
    mistake="Lists that are not batch_size long are refused with a ValueError. `_batch` does that.",
)
def step_wrong_lengths(code: TaughtCode):
    return {"the error": raised(lambda: Trial(code, scores=SCORES[:3]), "scores")}


@case(
    TRAINER,
    "the stats are logged",
    "a writer in place of TensorBoard's; 2 steps",
    mistake="The stats of a step do not reach TensorBoard, or not once for each step. `_log` writes them.",
)
def step_logged(code: TaughtCode):
    written = Trial(code, n_steps=2).writer.written
    return {f"times that {name} was written": [step for n, step in written if n == name] for name in STATS}
