"""Hidden tests of the exercises in `dpo.py`: log-probabilities of responses, the loss and the training loop."""

import math
from collections.abc import Callable, Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import solutions.dpo as reference
from rlhf_lab.backbones import load_causal_lm
from rlhf_lab.checkpoints import SFT
from rlhf_lab.checks.models import reading_tokenizer
from rlhf_lab.checks.training import Loader
from rlhf_lab.data import toy_rows
from rlhf_lab.room.props import dpo as props
from rlhf_lab.room.props import shared
from rlhf_lab.room.props.sft import SmallLM

from .candidate import Candidate
from .hidden import Draw, agree, check, close, defaults_of, entries, hidden, number, parts, tensor, unchanged

IGNORE = -100

# --- 5.1 sequence_logprobs ------------------------------------------------------------------------

SUM = "sequence_logprobs"
WHOLE = "texts without padding"
WHAT = "what it returns"
Text = tuple[list[int], list[int]]  # ids and labels
Batch3 = tuple[Tensor, Tensor, Tensor]


@cache
def _lm(seed: int, sharp: float = 1.0) -> nn.Module:
    return props.language_model(seed, sharp)


def _text(draw: Draw, n_prompt: int, n_response: int, ended: bool = False) -> Text:
    """A random text without EOS (id 0), or with one as its last token."""
    ids = draw.integers(1, props.VOCABULARY, n_prompt + n_response).tolist()
    if ended:
        ids[-1] = 0
    return ids, [IGNORE] * n_prompt + ids[n_prompt:]


def _labelled(ids: list[int], places: Sequence[int]) -> Text:
    return ids, [token if place in places else IGNORE for place, token in enumerate(ids)]


def _batch(draw: Draw, texts: list[Text], *sides: str, extra: int = 0, clean: bool = False) -> Batch3:
    """Ids, mask and labels of a batch whose padding holds random ids, or EOS where it is `clean`.

    Args:
        sides: "left" or "right", one for all rows or one for each.
        extra: columns of padding in the longest row.
    """
    sides = sides * len(texts) if len(sides) == 1 else sides
    width = max(len(ids) for ids, _ in texts) + extra
    shape = len(texts), width
    filled = torch.zeros(shape, dtype=torch.long) if clean else draw.integers(1, props.VOCABULARY, *shape)
    mask, labels = torch.zeros(shape, dtype=torch.long), torch.full(shape, IGNORE)
    for row, ((ids, label), side) in enumerate(zip(texts, sides, strict=True)):
        place = slice(0, len(ids)) if side == "right" else slice(width - len(ids), width)
        filled[row, place], mask[row, place], labels[row, place] = torch.tensor(ids), 1, torch.tensor(label)
    return filled, mask, labels


def _sums(candidate: Candidate, draw: Draw, *batches: Batch3, sharp: float = 1.0) -> list[Tensor]:
    """The candidate's answers for these batches, each `[batch]`."""
    model = candidate.call(props.language_model, draw.seed, sharp).value
    answers = candidate.call(props.sums, model, list(batches)).value
    return [tensor(x, len(batch[0]), what=WHAT) for x, batch in zip(answers, batches, strict=True)]


def _expected(lm: nn.Module, texts: list[Text]) -> Tensor:
    """Each text alone, token by token, in float64."""
    sums = []
    for ids, labels in texts:
        logprobs = lm(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
        sums.append(sum(logprobs[t - 1, ids[t]] for t in range(1, len(ids)) if labels[t] != IGNORE))
    return torch.stack(sums)


@torch.no_grad()
def _compare(candidate: Candidate, draw: Draw, *given: tuple[list[Text], Batch3], sharp: float = 1.0) -> None:
    """Raises `Wrong` where the candidate's sums of a batch are not those of its texts."""
    answers = _sums(candidate, draw, *(batch for _, batch in given), sharp=sharp)
    for answer, (texts, _) in zip(answers, given, strict=True):
        agree(answer, _expected(_lm(draw.seed, sharp), texts), tolerance=1e-3)


def _alone(candidate: Candidate, draw: Draw, texts: list[Text]) -> Tensor:
    """The candidate's number of each text by itself. It stands there twice: a batch of one has a test of its own."""
    answers = _sums(candidate, draw, *(_batch(draw, [text, text], "right") for text in texts))
    own = torch.stack([answer[0] for answer in answers])
    check(bool((own.abs() > 1e-3).all()) and bool(own.std() > 1e-3))  # numbers that say something
    return own


def _as_alone(candidate: Candidate, draw: Draw, texts: list[Text], *batches: Batch3) -> None:
    """Raises `Wrong` when a text has another number in one of these batches than it has alone."""
    own = _alone(candidate, draw, texts)
    for together in _sums(candidate, draw, *batches):
        agree(together, own, tolerance=1e-3)


@hidden(
    SUM,
    WHOLE,
    points=1,
    catches=[
        "no shift, shifted the wrong way or twice", "mean for sum", "logits or probabilities", "another token",
        "the prompt counted", "EOS left out", "the sign", "one number for the batch", "bits", "a temperature",
    ],
    message="Even without padding the number is not the log-probability of the response: which logits are about which token, "
    "which tokens belong to the response, and how are their log-probabilities put together?",
)  # fmt: skip
def sum_whole(candidate: Candidate, draw: Draw):
    texts = [
        _text(draw, n, 8 - n, ended) for n, ended in ((draw.whole(2, 4), True), (draw.whole(4, 6), False))
    ]
    _compare(candidate, draw, (texts, _batch(draw, texts, "right")))


@hidden(
    SUM,
    "every label counts, and by itself",
    points=0.5,
    catches=[
        "mean for sum",
        "everything behind the first label",
        "labels one place off",
        "first or last token left out",
    ],
    message="What is returned for several labels is not the sum of what is returned for each of them alone.",
)
def sum_adds_up(candidate: Candidate, draw: Draw):
    ids = draw.integers(1, props.VOCABULARY, 9).tolist()
    places = sorted(draw.shuffled(range(1, 8))[:3])
    other = [*ids[:8], ids[8] % (props.VOCABULARY - 1) + 1]  # another last token, behind all labels
    texts = [_labelled(ids, places), _labelled(other, places), *(_labelled(ids, [place]) for place in places)]
    together, again, *single = _alone(candidate, draw, texts)
    agree(together, sum(single), tolerance=1e-3)
    agree(again, together, tolerance=1e-3)


@hidden(
    SUM,
    "padding on the right",
    points=0.5,
    catches=["padding counted", "divided by the row's length", "rows mixed"],
    message="With padding on the right, or beside other texts, a text has another number than alone.",
)
def sum_right(candidate: Candidate, draw: Draw):
    texts = [_text(draw, draw.whole(1, 4), n, True) for n in draw.shuffled([1, 3, 6])]
    extra = draw.whole(1, 4)
    _as_alone(
        candidate, draw, texts, *(_batch(draw, texts, "right", extra=extra, clean=c) for c in (False, True))
    )


@hidden(
    SUM,
    "EOS inside the prompt, at the end and nowhere",
    points=0.5,
    catches=[
        "the response ends or begins at an EOS",
        "EOS taken for padding",
        "mask from ids",
        "padding counted",
    ],
    message="Where the pad token is EOS, a number is wrong if a text has an EOS in its prompt, one at its end or none: which "
    "tokens count, the labels say, and what is padding, the mask.",
)
def sum_eos(candidate: Candidate, draw: Draw):
    inside, ended, cut = _text(draw, 4, 3, True), _text(draw, 2, 4, True), _text(draw, 3, 3)
    inside[0][draw.whole(1, 3)] = 0
    texts = draw.shuffled([inside, ended, cut])
    sides = [_batch(draw, texts, side, extra=2, clean=True) for side in ("right", "left")]
    _compare(candidate, draw, *((texts, batch) for batch in sides))


@hidden(
    SUM,
    "padding on the left",
    points=0.5,
    catches=["no position ids", "positions from 1", "no attention mask"],
    message="With padding on the left a text has another number than alone. Which position has each token, and does the "
    "model see the padding?",
)
def sum_left(candidate: Candidate, draw: Draw):
    texts = [_text(draw, draw.whole(1, 4), n) for n in draw.shuffled([2, 3, 5])]
    _as_alone(candidate, draw, texts, _batch(draw, texts, "left", extra=draw.whole(2, 5)))


@hidden(
    SUM,
    "a batch of one",
    points=0.25,
    catches=["squeezed batch"],
    message="A batch of one text is not handled like any other.",
    after=["every label counts, and by itself"],
)
def sum_one(candidate: Candidate, draw: Draw):
    text = _text(draw, draw.whole(1, 4), draw.whole(2, 5))
    two, one = _sums(candidate, draw, *(_batch(draw, [text] * n, "right", extra=1) for n in (2, 1)))
    agree(one, two[:1])


@hidden(
    SUM,
    "full rows and both sides in one batch",
    points=0.25,
    catches=["positions only where all rows are padded on the left"],
    message="In a batch that holds full rows, or rows padded on different sides, a text has another number than alone.",
)
def sum_mixed(candidate: Candidate, draw: Draw):
    texts = [_text(draw, draw.whole(1, 4), n) for n in (7, 2, 3)]
    batches = (
        _batch(draw, texts, *sides)
        for sides in (("left",), ("right", "left", "right"), ("left", "right", "left"))
    )
    _as_alone(candidate, draw, texts, *batches)


@hidden(
    SUM,
    "tokens that are next to impossible",
    points=0.5,
    catches=["log of softmax", "a small number in the logarithm", "clamped"],
    message="Where a token is next to impossible the number is infinite, or cut off.",
)
def sum_extreme(candidate: Candidate, draw: Draw):
    texts = [_text(draw, 2, 5) for _ in range(3)]
    _compare(candidate, draw, (texts, _batch(draw, texts, "right")), sharp=draw.number(80, 120))


@hidden(
    SUM,
    "the gradient",
    points=0.5,
    catches=["no gradient", "detached", "a part of it cut off"],
    message="The gradient of what you return does not reach the model as it should: the policy is trained with it.",
)
def sum_gradient(candidate: Candidate, draw: Draw):
    texts = [_text(draw, 2, n, True) for n in (4, 3)]
    batch, cotangent = _batch(draw, texts, "left", extra=1), draw.normal(2, mean=1)
    model = candidate.call(props.language_model, draw.seed).value
    answer = candidate.call("dpo.sequence_logprobs", model, *batch)
    cotangent = cotangent.to(tensor(answer.value, 2).dtype)
    weights = [("transformer", "wte", "weight"), ("transformer", "ln_f", "bias")]
    found = answer.gradients(*((0, *path) for path in weights), cotangent=cotangent)
    lm = _lm(draw.seed)
    own = [lm.transformer.wte.weight, lm.transformer.ln_f.bias]
    expected = torch.autograd.grad(_expected(lm, texts), own, cotangent.double())
    for gradient, right in zip(found, expected, strict=True):
        check(gradient is not None and gradient.shape == right.shape)
        check(bool((gradient - right).norm() <= 1e-3 * right.norm()))


@hidden(
    SUM,
    "a row without a label, and the first token",
    points=0.25,
    catches=["NaN", "the first token's label read from the end of the row"],
    message="A row without any label, or a label on the first token of a row, which nothing predicts, gives a wrong number.",
    after=["every label counts, and by itself"],
)
def sum_no_label(candidate: Candidate, draw: Draw):
    ids = draw.integers(1, props.VOCABULARY, 6).tolist()
    some, none, first = _labelled(ids, [2, 3]), _labelled(ids, []), _labelled(ids, [0, 2, 3])
    (answer,) = _sums(candidate, draw, _batch(draw, [some, none, first], "right", extra=1))
    check(abs(answer[0]) > 1e-3 and close(answer, torch.stack([answer[0], 0 * answer[0], answer[0]])))


@hidden(
    SUM,
    "the arguments stay as they were",
    points=0.25,
    catches=["-100 replaced in the labels", "writes into the mask"],
    message="Your function changes ids, mask or labels: the next model that reads this batch reads another one.",
    after=["every label counts, and by itself"],
)
def sum_arguments(candidate: Candidate, draw: Draw):
    model = candidate.call(props.language_model, draw.seed).value
    for side in ("left", "right"):
        batch = _batch(draw, [_text(draw, 2, 4), _text(draw, 1, 2)], side, extra=1)
        answer = candidate.call("dpo.sequence_logprobs", model, *batch, after=(1, 2, 3))
        for position, before in enumerate(batch, 1):
            check(torch.equal(tensor(answer.after[position]), before))


# --- 5.2 dpo_loss ---------------------------------------------------------------------------------

LOSS = "dpo_loss"
ONE_PAIR = "the loss of one pair"
REWARDS = "the rewards"
Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _four(draw: Draw, n: int) -> Four:
    """Log-probabilities of `n` pairs: the policy is some nats away from the reference, the two texts are far apart."""
    ref_chosen, ref_rejected = draw.normal(n, mean=-15, std=3), draw.normal(n, mean=-9, std=3)
    return ref_chosen + draw.normal(n, std=2), ref_rejected + draw.normal(n, std=2), ref_chosen, ref_rejected


def _moved(chosen: float, rejected: float, ref_chosen: float = -11.0, ref_rejected: float = -7.5) -> Four:
    """One pair whose policy has moved by so many nats from the reference."""
    numbers = (ref_chosen + chosen, ref_rejected + rejected, ref_chosen, ref_rejected)
    return tuple(torch.tensor([x]) for x in numbers)


def _right_loss(four: Four, beta: float) -> Tensor:
    """In float64: log(1 + exp(-difference)), averaged."""
    pc, pr, rc, rr = (x.detach().double() for x in four)
    difference = beta * ((pc - rc) - (pr - rr))
    return torch.logaddexp(torch.zeros((), dtype=torch.float64), -difference).mean()


def _losses(candidate: Candidate, *calls: tuple) -> list[Tensor]:
    """The candidate's loss for each `(*four, beta)`."""
    answers = candidate.call(props.losses, list(calls)).value
    return [tensor(parts(answer, 3)[0], what="the loss") for answer in answers]


@hidden(
    LOSS,
    ONE_PAIR,
    points=0.75,
    catches=[
        "reversed", "sign", "reference missing, added or swapped", "logarithm missing", "hinge", "squared distance",
        "own sigmoid for each response", "beta outside", "margin", "smoothed labels", "ratios of log-probabilities",
    ],
    message="For one pair the loss is not the negative log-probability that the chosen response wins by the policy's own, "
    "implicit reward. It has to be one number.",
)  # fmt: skip
def loss_one_pair(candidate: Candidate, draw: Draw):
    beta, calls = draw.number(0.3, 0.8), []
    for chosen, rejected in ((1.0, -1.0), (-1.0, 1.0), (1.0, 0.3), (-0.3, 1.0)):
        size, at = draw.number(1, 3), (draw.number(-14, -10), draw.number(-9, -6))
        calls.append((*_moved(size * chosen, size * rejected, *at), beta))
    for loss, (*four, _) in zip(_losses(candidate, *calls), calls, strict=True):
        check(loss.dim() == 0)
        agree(loss, _right_loss(four, beta))


@hidden(
    LOSS,
    "what the reference says is the starting point",
    points=0.5,
    catches=[
        "reference missing",
        "reference added",
        "reference of one response only",
        "ratios of log-probabilities",
    ],
    message="The loss depends on how likely a response was before training. Where policy and reference agree it has to be ln "
    "2, and where both move by the same amount it has to stay as it is.",
)
def loss_reference(candidate: Candidate, draw: Draw):
    shift, beta = draw.number(3, 8), draw.number(0.2, 0.9)
    moved = _moved(1.5, -1.0)
    calls = [
        _moved(0, 0, draw.number(-14, -10), draw.number(-9, -6)),
        moved,
        (moved[0] + shift, moved[1], moved[2] + shift, moved[3]),
        (moved[0], moved[1] - shift, moved[2], moved[3] - shift),
    ]
    start, first, second, third = _losses(candidate, *((*four, beta) for four in calls))
    agree(start.reshape(()), math.log(2))
    check(not close(first, start, tolerance=1e-2))
    agree(second, first)
    agree(third, first)


@hidden(
    LOSS,
    "beta",
    points=0.5,
    catches=[
        "beta missing",
        "a number for beta",
        "beta twice",
        "divided by beta",
        "beta in front of the loss",
        "limited",
    ],
    message="beta does not scale the log-ratios inside the sigmoid: half of it and log-ratios twice as large have to be the "
    "same loss.",
)
def loss_beta(candidate: Candidate, draw: Draw):
    beta, chosen, rejected = draw.number(0.4, 1.5), draw.number(0.6, 1.4), -draw.number(0.2, 0.9)
    default = defaults_of(reference.dpo_loss)["beta"]
    once, half, thrice, other, left_out, given = _losses(
        candidate,
        (*_moved(chosen, rejected), beta),
        (*_moved(2 * chosen, 2 * rejected), beta / 2),
        (*_moved(chosen / 3, rejected / 3), 3 * beta),
        (*_moved(chosen, rejected), 3 * beta),
        _moved(chosen, rejected),
        (*_moved(chosen, rejected), default),
    )
    agree(half, once)
    agree(thrice, once)
    check(not close(once, other, tolerance=1e-2))
    agree(left_out, given)


@hidden(
    LOSS,
    "the mean over pairs",
    points=0.5,
    catches=["sum", "mean before the logarithm", "each chosen with every rejected", "one loss a pair"],
    message="The loss of several pairs is not the mean of what your function says to each of them alone.",
)
def loss_mean(candidate: Candidate, draw: Draw):
    four, beta = _four(draw, 5), draw.number(0.3, 0.8)
    single = [(*(x[i : i + 1] for x in four), beta) for i in range(5)]
    together, *each = _losses(candidate, (*four, beta), *single)
    check(together.dim() == 0)
    each = torch.stack([loss.reshape(()) for loss in each])
    check(bool(each.std() > 0.05))
    agree(together, each.mean())


@hidden(
    LOSS,
    "far ahead and far behind",
    points=0.5,
    catches=["log of sigmoid", "log of 1 + exp", "a small number in the logarithm", "clamped difference"],
    message="Where the policy is very sure the loss is infinite, no number or bounded: it has to stay exact for differences "
    "of any size.",
)
def loss_far(candidate: Candidate, draw: Draw):
    beta = draw.number(0.5, 1.5)
    sizes = [draw.number(60, 150), draw.number(400, 900), draw.number(1e4, 1e5), 10 ** draw.number(6, 20)]
    calls = [(*_moved(*both), beta) for size in sizes for both in ((size, 0.0), (0.0, size), (-size, 0.0))]
    for loss, (*four, _) in zip(_losses(candidate, *calls), calls, strict=True):
        agree(loss.reshape(()), _right_loss(four, beta))


@hidden(
    LOSS,
    REWARDS,
    points=0.5,
    catches=[
        "wrong order",
        "reference missing in the reward",
        "beta missing in the reward",
        "mean over the batch",
    ],
    message="The two rewards are not how much more the policy gives to each response than the reference does, times beta.",
)
def loss_rewards(candidate: Candidate, draw: Draw):
    beta = draw.number(0.3, 0.8)
    for n in (4, 1):
        pc, pr, rc, rr = four = _four(draw, n)
        _, chosen, rejected = parts(candidate.call("dpo.dpo_loss", *four, beta=beta).value, 3)
        agree(tensor(chosen, n, what="the reward of the chosen"), beta * (pc - rc))
        agree(tensor(rejected, n, what="the reward of the rejected"), beta * (pr - rr))


@hidden(
    LOSS,
    "the gradient",
    points=0.5,
    catches=["chosen detached", "rejected detached", "loss detached"],
    message="The gradient of the loss does not reach both of the policy's log-probabilities as it should.",
)
def loss_gradient(candidate: Candidate, draw: Draw):
    beta, four = draw.number(0.3, 0.8), _four(draw, 5)
    pc, pr, rc, rr = four
    answer = candidate.call("dpo.dpo_loss", pc.requires_grad_(), pr.requires_grad_(), rc, rr, beta=beta)
    loss = tensor(parts(answer.value, 3)[0])
    own = pc.detach().clone().requires_grad_(), pr.detach().clone().requires_grad_()
    right = F.softplus(-beta * ((own[0] - rc) - (own[1] - rr))).mean()
    expected = torch.autograd.grad(right, own)
    check(loss.dim() == 0 and loss.requires_grad)
    for gradient, wanted in zip(answer.gradients(0, 1, of=(0,)), expected, strict=True):
        check(gradient is not None and close(gradient, wanted))


@hidden(
    LOSS,
    "no gradient reaches the reference",
    points=0.25,
    catches=["reference not detached"],
    message="The gradient of the loss reaches the reference's log-probabilities: the reference would be trained too.",
    after=["the gradient"],
)
def loss_reference_gradient(candidate: Candidate, draw: Draw):
    four = [x.requires_grad_() for x in _four(draw, 4)]
    answer = candidate.call("dpo.dpo_loss", *four, beta=draw.number(0.3, 0.8))
    check(all(g is None or not bool(g.any()) for g in answer.gradients(2, 3, of=(0,))))


@hidden(
    LOSS,
    "the rewards carry no gradient",
    points=0.25,
    catches=["rewards not detached"],
    message="A reward carries a gradient. The rewards are there to be looked at, and would keep the whole step in memory.",
    after=[REWARDS],
)
def loss_rewards_gradient(candidate: Candidate, draw: Draw):
    pc, pr, rc, rr = _four(draw, 4)
    answer = candidate.call("dpo.dpo_loss", pc.requires_grad_(), pr.requires_grad_(), rc, rr)
    check(not any(tensor(x).requires_grad for x in parts(answer.value, 3)[1:]))


@hidden(
    LOSS,
    "numbers of another type, a batch of one",
    points=0.25,
    catches=["works for one type of float only", "squeezed batch"],
    message="With numbers in float64, or for a single pair, the loss is another one.",
    after=[ONE_PAIR],
)
def loss_types(candidate: Candidate, draw: Draw):
    beta = draw.number(0.3, 0.8)
    calls = [(*(x.double() for x in _four(draw, n)), beta) for n in (4, 1)]
    for loss, (*four, _) in zip(_losses(candidate, *calls), calls, strict=True):
        agree(loss, _right_loss(four, beta))


@hidden(
    LOSS,
    "the log-probabilities stay as they were",
    points=0.5,
    catches=["subtracts or scales in place"],
    message="Your function changes the log-probabilities that it is handed.",
    after=[ONE_PAIR],
)
def loss_arguments(candidate: Candidate, draw: Draw):
    for carries in (True, False):
        pc, pr, rc, rr = _four(draw, 4)
        four = [pc.requires_grad_(carries), pr.requires_grad_(carries), rc, rr]
        unchanged(candidate.call("dpo.dpo_loss", *four, beta=0.4, after=(0, 1, 2, 3)), four)


# --- 5.3 train_dpo --------------------------------------------------------------------------------

TRAIN = "train_dpo"
STEPS = "one step for each batch of each epoch"
HISTORY = ("loss", "accuracy", "margin", "chosen_logprob", "rejected_logprob")
COLUMNS = tuple(f"{side}_{kind}" for side in ("chosen", "rejected") for kind in ("ids", "mask", "labels"))
VOCAB, WIDTH, LONGEST = 11, 5, 8  # of the small models: vocabulary, embeddings, tokens of a row
SMALL, LARGE = 0.1, 3.0  # scales of the logits: gradients of norm below 1, and far above
Batch = dict[str, Tensor]
Weights = dict[str, Tensor]


def _weights(draw: Draw) -> Weights:
    return {
        "embedding": draw.normal(VOCAB, WIDTH),
        "head": draw.normal(VOCAB, WIDTH),
        "bias": draw.normal(VOCAB),
    }


def _two(draw: Draw) -> tuple[Weights, Weights]:
    """Weights of policy and reference, which differ."""
    return _weights(draw), _weights(draw)


def _pairs(draw: Draw, n: int, left: bool = False) -> Batch:
    """Ragged pairs, padded with random tokens."""
    batch = {}
    starts, prompts = [draw.whole(1, 4) for _ in range(n)], draw.integers(0, VOCAB, n, 3)
    for side in ("chosen", "rejected"):
        ids = draw.integers(0, VOCAB, n, LONGEST)
        mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORE)
        for row, n_prompt in enumerate(starts):
            length = n_prompt + draw.whole(1, 5)
            start = LONGEST - length if left else 0
            ids[row, start : start + n_prompt] = prompts[row, :n_prompt]
            mask[row, start : start + length] = 1
            labels[row, start + n_prompt : start + length] = ids[row, start + n_prompt : start + length]
        batch |= {f"{side}_ids": ids, f"{side}_mask": mask, f"{side}_labels": labels}
    return batch


def _seen(
    candidate: Candidate,
    weights: tuple[Weights, Weights],
    batches: list[Batch],
    n_epochs: int,
    lr: float,
    beta: float,
    scale: float = 1.0,
    training: bool = False,
    device: str = "cpu",
) -> dict:
    """What the candidate's loop does to small models, as `props.train_small` has it."""
    arguments = weights, scale, training, batches, n_epochs, lr, beta, device
    return candidate.call(props.train_small, *arguments).value


def _history(history: object, n_steps: int) -> list[dict]:
    check(
        isinstance(history, list) and len(history) == n_steps,
        "A list of one dictionary for each step was expected.",
    )
    return [entries(step, *HISTORY) for step in history]


def _column(seen: dict, name: str) -> list[float]:
    """A column of the history, whatever kind of number it holds."""
    return [number(step[name]) for step in _history(seen["numbers"], len(seen["steps"]))]


def _of(model: SmallLM, batch: Batch, side: str) -> Tensor:
    """The sum of a small model's log-probabilities of the responses."""
    ids, labels = batch[f"{side}_ids"], batch[f"{side}_labels"]
    logprobs = model(input_ids=ids, attention_mask=batch[f"{side}_mask"]).logits[:, :-1].log_softmax(-1)
    return (logprobs.gather(-1, ids[:, 1:, None])[..., 0] * (labels[:, 1:] != IGNORE)).sum(-1)


def _right(
    policy: Weights, ref: Weights, batch: Batch, beta: float, scale: float = 1.0
) -> tuple[dict[str, float], Tensor]:
    """A step's entry in the history, and the gradient in one row, before clipping."""
    model = SmallLM(**policy, scale=scale)
    chosen, rejected = _of(model, batch, "chosen"), _of(model, batch, "rejected")
    with torch.no_grad():
        before = SmallLM(**ref, scale=scale)
        ref_chosen, ref_rejected = _of(before, batch, "chosen"), _of(before, batch, "rejected")
    margins = beta * ((chosen - ref_chosen) - (rejected - ref_rejected))
    loss = F.softplus(-margins).mean()
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*model.parameters()])])
    entry = {
        "loss": loss.item(),
        "accuracy": (margins > 0).double().mean().item(),
        "margin": margins.mean().item(),
        "chosen_logprob": chosen.mean().item(),
        "rejected_logprob": rejected.mean().item(),
    }
    return entry, gradient


def _row(by_name: Weights) -> Tensor:
    return torch.cat([by_name[name].detach().flatten() for name in ("embedding", "head", "bias")])


def _drawn(make: Callable[[], object], reaches: Callable[[object], bool]):
    """The first of what `make` draws that reaches what a test is about."""
    while not reaches(drawn := make()):
        pass
    return drawn


class _Standing:
    """Two epochs with a learning rate of 0 on three batches, one of them padded on the left: nothing may change."""

    def __init__(self, candidate: Candidate, seed: int):
        draw = Draw(seed, "train_dpo at learning rate 0")
        self.beta = draw.number(0.3, 0.8)

        def make() -> tuple:
            batches = [_pairs(draw, n, left) for n, left in ((4, False), (3, True), (5, False))]
            return _two(draw), batches

        def differ(drawn: tuple) -> bool:
            entries_ = [_right(*drawn[0], batch, self.beta)[0] for batch in drawn[1]]
            shares = {entry["accuracy"] for entry in entries_} | {0.0, 1.0}
            return len(shares) == 5 and all(abs(entry["margin"]) > 0.1 for entry in entries_)

        weights, batches = _drawn(make, differ)
        self.expected = [_right(*weights, batch, self.beta)[0] for batch in batches] * 2
        self.seen = _seen(candidate, weights, batches, 2, 0.0, self.beta)

    def compare(self, name: str) -> None:
        agree(_column(self.seen, name), [entry[name] for entry in self.expected])


def _standing(candidate: Candidate, draw: Draw) -> _Standing:
    return candidate.once("train_dpo at learning rate 0", lambda: _Standing(candidate, draw.seed))


@hidden(
    TRAIN,
    STEPS,
    points=0.25,
    catches=["one entry or step an epoch", "n_epochs ignored", "policy returned", "a copy is trained"],
    message="There is not one step and one dictionary with the five names for each batch of each epoch, or the policy that "
    "you are handed does not move.",
)
def train_steps(candidate: Candidate, draw: Draw):
    n_batches, n_epochs, weights = draw.whole(2, 4), draw.whole(3, 5), _two(draw)
    seen = _seen(candidate, weights, [_pairs(draw, 3) for _ in range(n_batches)], n_epochs, 0.01, 0.4)
    check(len(seen["steps"]) == n_batches * n_epochs)
    _history(seen["history"], n_batches * n_epochs)
    check(not close(_row(seen["policy"]), _row(weights[0])))


@hidden(
    TRAIN,
    "the history holds floats of Python",
    points=0.25,
    catches=["tensors", "graphs"],
    message="The history holds numbers that are no floats of Python but tensors or the like.",
    after=[STEPS],
)
def train_floats(candidate: Candidate, draw: Draw):
    history = _seen(candidate, _two(draw), [_pairs(draw, 3)], 2, 0.01, 0.4)["history"]
    values = [step[name] for step in _history(history, 2) for name in HISTORY]
    check(all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in values))


@hidden(
    TRAIN,
    "the loss of each batch",
    points=0.5,
    catches=[
        "policy and reference, or chosen and rejected, swapped", "the policy for the reference", "beta ignored",
        "another text's mask or labels", "running mean", "epochs that differ",
    ],
    message="While the weights do not change, the losses are not those of the batches, in their order and in every epoch. "
    "Which model reads which text, with which mask and labels, and does beta arrive?",
)  # fmt: skip
def train_losses(candidate: Candidate, draw: Draw):
    _standing(candidate, draw).compare("loss")


@hidden(
    TRAIN,
    "the accuracy",
    points=0.25,
    catches=[
        "ties counted",
        "compared without the reference",
        "reversed",
        "number of pairs",
        "mean probability",
    ],
    message="The accuracy is not the share of a batch's pairs whose chosen response has strictly the higher implicit reward.",
)
def train_accuracy(candidate: Candidate, draw: Draw):
    _standing(candidate, draw).compare("accuracy")
    weights = _weights(draw)
    flat = {"embedding": weights["embedding"], "head": 0 * weights["head"], "bias": 0 * weights["bias"]}
    seen = _seen(candidate, (flat, flat), [_pairs(draw, 4)], 1, 0.0, 0.4)  # no token is likelier than another
    agree(_column(seen, "accuracy"), [0.0])


@hidden(
    TRAIN,
    "the margin",
    points=0.25,
    catches=["sign", "without beta", "without the reference", "sum", "absolute values"],
    message="The margin is not the mean difference of the implicit rewards of chosen and rejected.",
)
def train_margin(candidate: Candidate, draw: Draw):
    _standing(candidate, draw).compare("margin")


@hidden(
    TRAIN,
    "the log-probabilities",
    points=0.25,
    catches=["those of the reference", "rewards", "changed places", "sum"],
    message="`chosen_logprob` or `rejected_logprob` is not the mean of the policy's own log-probabilities of these responses.",
)
def train_logprobs(candidate: Candidate, draw: Draw):
    for name in ("chosen_logprob", "rejected_logprob"):
        _standing(candidate, draw).compare(name)


@hidden(
    TRAIN,
    "each step has the gradient of its own batch",
    points=0.25,
    catches=["no zero_grad", "scaled loss", "one response detached", "another loss added", "another batch"],
    message="A step does not have the gradient of the loss of its own batch, and of that alone.",
    after=[STEPS],
)
def train_gradients(candidate: Candidate, draw: Draw):
    beta = draw.number(0.3, 0.6)

    def small(drawn: tuple) -> bool:
        return all(0.02 < _right(*drawn[0], batch, beta, SMALL)[1].norm() < 0.4 for batch in drawn[1])

    weights, batches = _drawn(lambda: (_two(draw), [_pairs(draw, n) for n in (3, 4)]), small)
    steps = _seen(candidate, weights, batches, 2, 0.0, beta, SMALL)["steps"]
    check(len(steps) == 4)
    for step, batch in zip(steps, batches * 2, strict=True):
        agree(_row(step["gradients"]), _right(*weights, batch, beta, SMALL)[1], tolerance=1e-5)


@hidden(
    TRAIN,
    "the norm of the gradient is clipped",
    points=0.25,
    catches=["no clipping", "clipping after the step", "another norm", "entries clipped"],
    message="What reaches the step is not the gradient with the norm of all weights together clipped to 1.",
    after=[STEPS],
)
def train_clip(candidate: Candidate, draw: Draw):
    beta = draw.number(0.5, 0.9)

    def large(drawn: tuple) -> bool:
        gradient = _right(*drawn[0], drawn[1], beta, LARGE)[1]
        return bool(gradient.norm() > 2 and gradient.abs().max() > 1.1)

    weights, batch = _drawn(lambda: (_two(draw), _pairs(draw, 3)), large)
    steps = _seen(candidate, weights, [batch], 2, 0.0, beta, LARGE)["steps"]
    gradient = _right(*weights, batch, beta, LARGE)[1]
    check(len(steps) == 2)
    for step in steps:
        agree(_row(step["gradients"]), gradient / gradient.norm(), tolerance=1e-3)


@hidden(
    TRAIN,
    "AdamW holds the policy's weights for the whole run",
    points=0.5,
    catches=[
        "another optimiser",
        "a part of the weights",
        "the reference's too",
        "made again in the loop",
        "another rate",
    ],
    message="It is not one AdamW that takes all the steps, with the policy's weights alone and, throughout, the learning "
    "rate that was asked for.",
    after=[STEPS],
)
def train_optimizer(candidate: Candidate, draw: Draw):
    lr, weights = draw.number(0.01, 0.04), _two(draw)
    for step in _seen(candidate, weights, [_pairs(draw, 3) for _ in range(2)], 3, lr, 0.4)["steps"]:
        check(step["kind"] == "AdamW" and step["optimizer"] == 0)
        check(
            all(rate is not None and math.isclose(rate, lr, rel_tol=1e-6) for rate in step["rates"].values())
        )
        check(step["n weights"] == sum(weight.numel() for weight in weights[0].values()))


@hidden(
    TRAIN,
    "the reference stays where it was",
    points=0.5,
    catches=["reference follows the policy", "reference trained", "numbers taken after the step", "uphill"],
    message="In later steps the numbers are not those of the moving policy beside the first reference, or a step does not "
    "lead down the gradient. Does the reference follow the policy, and are the numbers from before the step?",
    after=[STEPS],
)
def train_reference(candidate: Candidate, draw: Draw):
    weights, batches, beta = _two(draw), [_pairs(draw, 3) for _ in range(2)], draw.number(0.3, 0.6)
    for start in (weights, (weights[1], weights[1])):
        seen = _seen(candidate, start, batches, 2, draw.number(0.03, 0.06), beta)
        check(all(torch.equal(seen["reference"][name], weight) for name, weight in start[1].items()))
        history = _history(seen["numbers"], 4)
        for step, entry, batch in zip(seen["steps"], history, batches * 2, strict=True):
            expected, gradient = _right(step["before"], start[1], batch, beta)
            for name in ("loss", "margin", "chosen_logprob", "rejected_logprob"):
                agree(number(entry[name]), expected[name], tolerance=1e-3)
        first = seen["steps"][0]
        gradient = _right(first["before"], start[1], batches[0], beta)[1]
        moves, clear = (
            _row(first["after"]) - _row(first["before"]),
            gradient.abs() > 0.02 * gradient.abs().max(),
        )
        check(bool((moves[clear] * gradient[clear] < 0).float().mean() > 0.9))


@hidden(
    TRAIN,
    "dropout is off",
    points=0.25,
    catches=["policy in training mode", "mode left as it was", "reference in training mode"],
    message="The policy or the reference reads in training mode: with dropout the policy differs from itself.",
    after=[STEPS],
)
def train_mode(candidate: Candidate, draw: Draw):
    for training in (True, False):
        seen = _seen(candidate, _two(draw), [_pairs(draw, 2)], 2, 0.01, 0.4, training=training)
        for model in ("policy passes", "reference passes"):
            check(len(seen[model]) > 0 and not any(one["training"] for one in seen[model]))


@hidden(
    TRAIN,
    "the data loader is gone through in each epoch",
    points=0.25,
    catches=["batches kept from the first epoch", "batches by index"],
    message="Your loop does not go through the data loader anew in each epoch, or asks more of it than that: a loader that "
    "shuffles has another order each time.",
    after=[STEPS],
)
def train_loader(candidate: Candidate, draw: Draw):
    loader, n_epochs = candidate.call(Loader, [_pairs(draw, 2) for _ in range(3)]).value, draw.whole(2, 4)
    candidate.call(props.train_small, _two(draw), 1.0, False, loader, n_epochs, 0.01, 0.4).value
    check(candidate.read(loader, "rounds") >= n_epochs)


@hidden(
    TRAIN,
    "small batches and no epoch",
    points=0.25,
    catches=["squeezed rewards", "one epoch too many"],
    message="A batch of one pair is not handled like any other, or something is trained without an epoch.",
    after=[STEPS],
)
def train_small_batches(candidate: Candidate, draw: Draw):
    weights, batch, beta = _two(draw), _pairs(draw, 1), draw.number(0.3, 0.6)
    seen = _seen(candidate, weights, [batch], 1, 0.0, beta)
    expected = _right(*weights, batch, beta)[0]
    for name in HISTORY:
        agree(_column(seen, name), [expected[name]])
    seen = _seen(candidate, weights, [batch], 0, 0.01, beta)
    check(seen["history"] == [] and all(torch.equal(seen["policy"][n], w) for n, w in weights[0].items()))


@hidden(
    TRAIN,
    "models and batches go to the device",
    points=0.25,
    catches=["policy stays", "reference stays", "batch stays"],
    message="A model or the batch does not go to `device`: on a GPU this stops with an error.",
    after=[STEPS],
)
def train_device(candidate: Candidate, draw: Draw):
    # "meta" holds no numbers: the loop may end with an error, once it has a loss
    seen = _seen(candidate, _two(draw), [_pairs(draw, 2)], 1, 0.01, 0.4, device="meta")
    for model in ("policy passes", "reference passes"):
        check(len(seen[model]) > 0)
        check((seen[model][0]["weights on"], seen[model][0]["ids on"]) == ("meta", "meta"))


@hidden(
    TRAIN,
    "the batches stay as they were",
    points=0.25,
    catches=["writes into the labels"],
    message="Your loop changes the batches that it is handed: the next epoch sees other data.",
    after=[STEPS],
)
def train_arguments(candidate: Candidate, draw: Draw):
    batches = [_pairs(draw, 3) for _ in range(2)]
    arguments = _two(draw), 1.0, False, batches, 1, 0.01, 0.4
    after = candidate.call(props.train_small, *arguments, after=(3,)).after[3]
    check(isinstance(after, list) and len(after) == len(batches))
    for found, batch in zip(after, batches, strict=True):
        check(found.keys() == batch.keys())
        check(all(torch.equal(tensor(found[name]), batch[name]) for name in batch))


# Reference, seeds 0 to 7: accuracy 0.78 to 0.93, margin 1.2 to 1.6. Untrained: 0 and 0.
N_PAIRS, RATE, BETA = 128, 5e-4, 0.3
HELDOUT_ACCURACY, HELDOUT_MARGIN = 0.65, 0.6


@hidden(
    TRAIN,
    "a trained policy prefers what people prefer",
    points=0.5,
    catches=["nothing learnt", "works on small models only"],
    message="A policy that your loop has trained on a hundred pairs does not prefer the chosen responses of pairs that it "
    "has not seen, or its reference has moved.",
    after=[STEPS],
    training=True,
)
def train_prefers(candidate: Candidate, draw: Draw):
    columns = _laid_out(draw.shuffled(_toy_pairs("train"))[:N_PAIRS])
    batches = [{name: rows[i : i + 16] for name, rows in columns.items()} for i in range(0, N_PAIRS, 16)]
    policy, frozen = (candidate.call(props.sft_lm, is_frozen).value for is_frozen in (False, True))
    answer = candidate.call(
        "dpo.train_dpo", policy, frozen, Loader(batches), 1, RATE, "cpu", BETA, seconds=60
    )
    _history(answer.value, len(batches))
    before, trained = (candidate.call(shared.weights, model).value for model in (frozen, policy))
    sft = _sft_lm()
    check(all(torch.equal(tensor(entries(before, name)[name]), w) for name, w in sft.state_dict().items()))
    accuracy, margin = _heldout(trained)
    check(accuracy > HELDOUT_ACCURACY and margin > HELDOUT_MARGIN)


@cache
def _toy_pairs(part: str) -> list[dict]:
    """The English pairs that differ in praise or in its strength, of the toy data's part "train" or "heldout"."""
    rows = toy_rows(f"pairs_{part}")
    return [row for row in rows if row["lang"] == "en" and row["phenomenon"] in ("plain", "strength")]


def _laid_out(rows: list[dict]) -> Batch:
    dataset = reference.PreferenceDataset(rows, reading_tokenizer(), max_len=26)
    return {name: torch.stack([dataset[i][name] for i in range(len(dataset))]) for name in COLUMNS}


@cache
def _sft_lm() -> nn.Module:
    return load_causal_lm(SFT)


@torch.no_grad()
def _heldout_sums(model: nn.Module) -> list[Tensor]:
    batch = _laid_out(_toy_pairs("heldout"))
    return [
        reference.sequence_logprobs(
            model, batch[f"{side}_ids"], batch[f"{side}_mask"], batch[f"{side}_labels"]
        )
        for side in ("chosen", "rejected")
    ]


@cache
def _reference_sums() -> list[Tensor]:
    return _heldout_sums(_sft_lm())


def _heldout(weights: Weights) -> tuple[float, float]:
    """Accuracy and margin of these weights on all held-out pairs of the kind that was trained on."""
    model = load_causal_lm(SFT)
    names = model.state_dict().keys()
    trained = entries(weights, *names)
    model.load_state_dict({name: tensor(trained[name]) for name in names})
    _, chosen, rejected = reference.dpo_loss(*_heldout_sums(model), *_reference_sums(), BETA)
    return (chosen > rejected).float().mean().item(), (chosen - rejected).mean().item()
