"""Cases of the exercises in `dpo.py`."""

import copy

import torch
from torch import Tensor

from ..taught_code import TaughtCode
from .case import WrongReturn, case, entries, in_words, numbers, parts, raised, tensor
from .models import reading_lm
from .sft import WatchedLM
from .training import (
    Loader,
    changed,
    counted,
    gradient_changes,
    kinds_of_optimiser,
    learning_rates,
    norms,
    number_of_optimisers,
    recorded_steps,
    small_norms,
    weights_held,
)

# --- 5.1 sequence_logprobs ------------------------------------------------------------------------

# (prompt, response): the first ends in EOS, the second is cut, the third has an EOS inside its prompt
ENDED, CUT, EOS_INSIDE = ([31, 45], [77, 102, 0]), ([31], [45, 98, 200, 77]), ([54, 0, 31], [12, 0])
IGNORE = -100

Row = tuple[list[int], list[int]]


def _lm(*silent: str, sharp: float = 1.0):
    """The micro model in eval mode.

    Args:
        silent: parts of names; weights that carry one are set to 0.
        sharp: factor on the logits.
    """
    model = copy.deepcopy(reading_lm())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(part in name for part in silent):
                weight.zero_()
        model.transformer.ln_f.weight.mul_(sharp)
    return model


def _laid_out(
    *rows: Row, sides: str | list[str] = "right", extra: int = 0, filler: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and labels of a batch; the padding holds EOS, or ids that begin at `filler` and differ."""
    sides = [sides] * len(rows) if isinstance(sides, str) else sides
    width = max(len(prompt + response) for prompt, response in rows) + extra
    padding = torch.arange(filler, filler + width) if filler else torch.zeros(width, dtype=torch.int64)
    ids, mask = padding.repeat(len(rows), 1), torch.zeros(len(rows), width, dtype=torch.int64)
    labels = torch.full((len(rows), width), IGNORE)
    for row, (side, (prompt, response)) in enumerate(zip(sides, rows, strict=True)):
        length = len(prompt + response)
        start = width - length if side == "left" else 0
        ids[row, start : start + length] = torch.tensor(prompt + response)
        mask[row, start : start + length] = 1
        labels[row, start + len(prompt) : start + length] = torch.tensor(response)
    return ids, mask, labels


def _marked(ids: list[int], *labelled: int) -> tuple[Tensor, Tensor, Tensor]:
    """A batch of one text without padding, whose labels stand at these places only."""
    labels = [token if place in labelled else IGNORE for place, token in enumerate(ids)]
    return torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.int64), torch.tensor([labels])


def _sum(code: TaughtCode, model, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    return tensor("sequence_logprobs", code.dpo.sequence_logprobs(model, *batch), [len(batch[0])])


@case("sequence_logprobs", "one number a text", "3 texts of 6 tokens")
def sum_shape(code: TaughtCode):
    batch = _laid_out(ENDED, CUT, EOS_INSIDE, extra=1)
    returned = tensor("sequence_logprobs", code.dpo.sequence_logprobs(_lm(), *batch))
    return {"the shape": list(returned.shape)}


@case(
    "sequence_logprobs",
    "it can be learnt from",
    "a model whose weights carry a gradient",
    mistake="What you return carries no gradient, and the policy is to be trained with it. Which step cuts it off?",
)
def sum_learns(code: TaughtCode):
    return {"it carries a gradient": _sum(code, _lm(), _laid_out(ENDED)).requires_grad}


@case(
    "sequence_logprobs",
    "a response of one token",
    "4 tokens, the last one has a label",
    mistake="For a response of a single token you do not return the logarithm of its probability. Which logits are about "
    "it, how do they become log-probabilities, and which token do you look up?",
)
def sum_one_token(code: TaughtCode):
    return {"the sum": _sum(code, _lm(), _marked([31, 45, 77, 102], 3))}


@case(
    "sequence_logprobs",
    "a label in the middle",
    "5 tokens, the third one has a label",
    mistake="With a single label in the middle of a text you read another position than the one that predicts this token. "
    "The labels are not shifted.",
)
def sum_middle(code: TaughtCode):
    return {"the sum": _sum(code, _lm(), _marked([31, 45, 77, 102, 98], 2))}


@case(
    "sequence_logprobs",
    "the sum over the response",
    "a prompt of 1 token, a response of 4",
    mistake="For one token the number is right, for four it is not: the log-probabilities of the whole response are to be "
    "added up.",
)
def sum_response(code: TaughtCode):
    return {"the sum": _sum(code, _lm(), _laid_out(CUT))}


@case(
    "sequence_logprobs",
    "the prompt does not count",
    "a prompt of 4 tokens, a response of 2",
    mistake="Tokens of the prompt are in your sum. Which labels say that a token is to be left out?",
)
def sum_prompt(code: TaughtCode):
    return {"the sum": _sum(code, _lm(), _laid_out(([31, 45, 98, 200], [77, 102])))}


@case(
    "sequence_logprobs",
    "the EOS counts",
    "a response that ends in EOS, no padding",
    mistake="The EOS that ends the response is not in your sum. It is a token that the policy chooses like any other.",
)
def sum_eos(code: TaughtCode):
    return {"the sum": _sum(code, _lm(), _laid_out(ENDED))}


@case(
    "sequence_logprobs",
    "the first token of a row",
    "no prompt: every token has a label",
    mistake="Nothing predicts the first token of a row, and your sum is another one when it has a label.",
)
def sum_first(code: TaughtCode):
    return {"the sum": _sum(code, _lm(), _marked([31, 45, 77, 102], 0, 1, 2, 3))}


@case(
    "sequence_logprobs",
    "texts of different length",
    "padded on the right with tokens 55 and up",
    mistake="In a batch of texts of different length a sum is wrong. Is padding in it, or do the rows mix?",
)
def sum_right(code: TaughtCode):
    return {"the sum": _sum(code, _lm(), _laid_out(ENDED, CUT, ([31], [12]), extra=2, filler=55))}


@case(
    "sequence_logprobs",
    "the padding is EOS",
    "the pad token is EOS; one response ends in EOS, one is cut",
    mistake="Where the pad token is EOS, a sum is wrong: an EOS is left out, or padding is let in. Ids cannot tell the "
    "two apart; the labels can.",
)
def sum_pad_is_eos(code: TaughtCode):
    return {"the sum": _sum(code, _lm(), _laid_out(ENDED, CUT, extra=2))}


@case(
    "sequence_logprobs",
    "an EOS in the prompt",
    "EOS is the second token of the prompt",
    mistake="An EOS inside the prompt misleads you. Where the response begins, the labels say.",
)
def sum_eos_inside(code: TaughtCode):
    return {"the sum": _sum(code, _lm(), _laid_out(EOS_INSIDE, ENDED, extra=1))}


@case(
    "sequence_logprobs",
    "labels in two places",
    "tokens 2, 3 and 6 of 8 have a label, as the answers in a conversation",
    mistake="Where labelled and unlabelled tokens take turns, your sum is wrong: each label speaks for its own token.",
)
def sum_two_places(code: TaughtCode):
    return {"the sum": _sum(code, _lm(), _marked([31, 45, 77, 102, 98, 200, 12, 54], 2, 3, 6))}


@case(
    "sequence_logprobs",
    "padding on the left: what is seen",
    "a model that knows no positions",
    mistake="With padding on the left the text sees the padding before it: the attention mask does not reach the model.",
)
def sum_left_mask(code: TaughtCode):
    batch = _laid_out(ENDED, CUT, sides="left", extra=3, filler=55)
    return {"the sum": _sum(code, _lm("wpe"), batch)}


@case(
    "sequence_logprobs",
    "padding on the left: positions",
    "texts of 5 tokens behind 3 of padding",
    mistake="With padding on the left a text is read as if it began in the middle. Which position has each token? "
    "`position_ids_from_mask` in `reward_model.py` counts the real ones.",
)
def sum_left(code: TaughtCode):
    return {"the sum": _sum(code, _lm(), _laid_out(ENDED, CUT, sides="left", extra=3, filler=55))}


@case(
    "sequence_logprobs",
    "left and right in one batch",
    "row 0 padded on the right, row 1 on the left, row 2 full",
    mistake="Rows that are padded on different sides disturb each other: each row has to be read as if it stood alone.",
)
def sum_mixed(code: TaughtCode):
    rows = ENDED, CUT, ([31, 45, 98], [200, 77, 102, 0])
    return {"the sum": _sum(code, _lm(), _laid_out(*rows, sides=["right", "left", "right"], filler=55))}


@case(
    "sequence_logprobs",
    "a batch of one",
    "one text with padding",
    mistake="A batch of one text is not handled like any other.",
)
def sum_one_row(code: TaughtCode):
    return {"the sum": _sum(code, _lm(), _laid_out(EOS_INSIDE, extra=2))}


@case(
    "sequence_logprobs",
    "a row without a label",
    "row 1 has no label at all",
    mistake="A row whose labels are all -100 has nothing to add up: its number is 0.",
)
def sum_no_label(code: TaughtCode):
    ids, mask, labels = _laid_out(ENDED, CUT)
    labels[1] = IGNORE
    return {"the sum": _sum(code, _lm(), (ids, mask, labels))}


@case(
    "sequence_logprobs",
    "tokens that are next to impossible",
    "logits 60 times as large",
    mistake="Where a token is next to impossible your sum is infinite or cut off: the softmax is rounded to 0, and 0 has no "
    "logarithm. Which function takes both steps in one?",
)
def sum_extreme(code: TaughtCode):
    return {"the sum": _sum(code, _lm(sharp=60.0), _laid_out(ENDED, CUT))}


@case(
    "sequence_logprobs",
    "the gradient",
    "2 texts; at the 16 biases of the last norm",
    mistake="The sum is right and its gradient is not: a part of the way from the model is cut off.",
)
def sum_gradient(code: TaughtCode):
    model = _lm()
    _sum(code, model, _laid_out(ENDED, CUT)).sum().backward()
    gradient = model.transformer.ln_f.bias.grad
    return {"the gradient": torch.zeros(16) if gradient is None else gradient}


@case(
    "sequence_logprobs",
    "ids, mask and labels stay as they were",
    "before and after",
    mistake="Your function changes the tensors that it is handed: the reference is asked about the same batch next.",
)
def sum_arguments(code: TaughtCode):
    batch, before = (_laid_out(ENDED, CUT, sides="left", extra=1) for _ in range(2))
    code.dpo.sequence_logprobs(_lm(), *batch)
    names = ("input_ids", "attention_mask", "labels")
    return {f"{n} changed": not torch.equal(x, y) for n, x, y in zip(names, batch, before, strict=True)}


# --- 5.2 dpo_loss ---------------------------------------------------------------------------------


def _dpo(code: TaughtCode, pc, pr, rc, rr, **beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, reward of the chosen, reward of the rejected, from lists of log-probabilities or tensors."""
    arguments = [x if isinstance(x, Tensor) else torch.tensor(x) for x in (pc, pr, rc, rr)]
    returned = code.dpo.dpo_loss(*arguments, **beta)
    loss, chosen, rejected = parts("dpo_loss", returned, "loss", "chosen_reward", "rejected_reward")
    return (
        tensor("dpo_loss, as the loss,", loss, []),
        tensor("dpo_loss, as the reward of the chosen,", chosen, [len(arguments[0])]),
        tensor("dpo_loss, as the reward of the rejected,", rejected, [len(arguments[0])]),
    )


def _one_pair(code: TaughtCode, chosen: float, rejected: float, beta: float = 0.5) -> Tensor:
    """The loss of a pair, of which the policy gives the chosen response so much more than the reference, in nats."""
    return _dpo(code, [chosen - 12.0], [rejected - 9.0], [-12.0], [-9.0], beta=beta)[0]


def _four(seed: int) -> list[Tensor]:
    """Log-probabilities of three pairs: of the policy and of the reference."""
    return [numbers(seed + i, 3, mean=-12.0, std=2.0) for i in range(4)]


@case("dpo_loss", "a loss and two rewards", "3 pairs")
def dpo_shapes(code: TaughtCode):
    names = ("the loss", "the reward of the chosen", "the reward of the rejected")
    returned = _dpo(code, *_four(50), beta=0.5)
    return {f"the shape of {name}": list(x.shape) for name, x in zip(names, returned, strict=True)}


@case(
    "dpo_loss",
    "the loss can be learnt from",
    "log-probabilities of the policy that carry a gradient",
    mistake="The loss carries no gradient, so backward has nothing to go through. Which step cuts it off?",
)
def dpo_learns(code: TaughtCode):
    pc, pr, rc, rr = _four(50)
    loss, _, _ = _dpo(code, pc.requires_grad_(), pr.requires_grad_(), rc, rr)
    return {"the loss carries a gradient": loss.requires_grad}


@case(
    "dpo_loss",
    "at the start: ln 2",
    "policy and reference agree: -12 and -9 nats",
    mistake="Where the policy is still the reference, nothing is preferred: both rewards are 0 and the loss is ln 2. Does "
    "the reference enter your loss, and with which sign? Do you miss the logarithm, its sign or a factor?",
)
def dpo_start(code: TaughtCode):
    return {"the loss": _one_pair(code, 0.0, 0.0)}


@case(
    "dpo_loss",
    "the right direction",
    "the policy has moved 2 nats towards the chosen response; then towards the rejected one",
    mistake="The loss has to fall where the policy, beside the reference, has moved towards the chosen response, and to "
    "grow where it has moved towards the rejected one.",
)
def dpo_direction(code: TaughtCode):
    lower = _one_pair(code, 2.0, 0.0) < _one_pair(code, 0.0, 2.0)
    return {"the loss is lower towards the chosen one": bool(lower)}


@case(
    "dpo_loss",
    "only what has changed since the reference counts",
    "7 nats are added to the chosen response under both models; then to the rejected one",
    mistake="How likely a response was from the start must not count: when policy and reference move by the same amount "
    "the loss has to stay. Do you subtract the reference's own log-probability of the same response?",
)
def dpo_reference(code: TaughtCode):
    def change(chosen: float, rejected: float) -> Tensor:
        moved = _dpo(code, [-11.0 + chosen], [-9.5 + rejected], [-12.0 + chosen], [-9.0 + rejected], beta=0.5)
        return moved[0] - _one_pair(code, 1.0, -0.5)

    return {
        "the loss changes, 7 added to the chosen one, by": change(7.0, 0.0),
        "the loss changes, 7 added to the rejected one, by": change(0.0, 7.0),
    }


@case(
    "dpo_loss",
    "the loss of one pair",
    "beta 0.5: the chosen one 1.2 up and the rejected one 0.4 down, and the other way round",
    mistake="For one pair the loss has the right direction and a value that is not that of the docstring's formula.",
)
def dpo_one_pair(code: TaughtCode):
    return {
        "the loss, moved the right way": _one_pair(code, 1.2, -0.4),
        "the loss, moved the wrong way": _one_pair(code, -1.2, 0.4),
    }


@case(
    "dpo_loss",
    "beta",
    "beta 0.05, 1 and 3",
    mistake="With another beta the loss is wrong: beta scales the log-ratios inside the sigmoid, whatever its value.",
)
def dpo_beta(code: TaughtCode):
    return {f"the loss, beta {beta:g}": _one_pair(code, 1.2, -0.4, beta) for beta in (0.05, 1.0, 3.0)}


@case(
    "dpo_loss",
    "the mean over pairs",
    "4 pairs",
    mistake="For one pair the loss is right, for four it is not: each pair has a loss of its own, and these are averaged.",
)
def dpo_mean(code: TaughtCode):
    pc, pr = [-11.0, -12.5, -9.0, -20.0], [-10.0, -9.5, -9.0, -17.0]
    return {
        "the loss": _dpo(code, pc, pr, [-12.0, -12.0, -10.0, -16.0], [-9.0, -10.0, -8.0, -18.0], beta=0.5)[0]
    }


@case(
    "dpo_loss",
    "far ahead",
    "log-ratios that differ by 60, 400 and 20000",
    mistake="Where the policy is sure and right the loss goes to 0. Yours is something else, or no number.",
)
def dpo_far_ahead(code: TaughtCode):
    return {f"the loss, {d:g} ahead": _one_pair(code, d, 0.0) for d in (60.0, 400.0, 20000.0)}


@case(
    "dpo_loss",
    "far behind, and finite",
    "log-ratios that differ by -60, -400 and -20000",
    mistake="Where the policy is sure and wrong your loss is infinite or not a number: the sigmoid is rounded to 0, and 0 "
    "has no logarithm. Which function of torch takes both steps in one?",
)
def dpo_far_behind_finite(code: TaughtCode):
    losses = {d: _one_pair(code, 0.0, d) for d in (60.0, 400.0, 20000.0)}
    return {f"the loss, {d:g} behind, is a number": bool(loss.isfinite()) for d, loss in losses.items()}


@case(
    "dpo_loss",
    "far behind",
    "log-ratios that differ by -60, -400 and -20000",
    mistake="Your loss stops growing where the difference is large: something bounds it.",
)
def dpo_far_behind(code: TaughtCode):
    return {f"the loss, {d:g} behind": _one_pair(code, 0.0, d) for d in (60.0, 400.0, 20000.0)}


@case(
    "dpo_loss",
    "the rewards",
    "3 pairs, beta 0.5",
    mistake="The loss is right and the implicit rewards are not. Each response has its own: what the policy gives it more "
    "than the reference does, times beta.",
)
def dpo_rewards(code: TaughtCode):
    _, chosen, rejected = _dpo(code, *_four(60), beta=0.5)
    return {"the reward of the chosen": chosen, "the reward of the rejected": rejected}


@case(
    "dpo_loss",
    "the gradient",
    "3 pairs, beta 0.5",
    mistake="The loss is right and its gradient is not: one of the policy's two log-probabilities, or a part of the loss, "
    "is cut off.",
)
def dpo_gradient(code: TaughtCode):
    pc, pr, rc, rr = _four(70)
    loss, _, _ = _dpo(code, pc.requires_grad_(), pr.requires_grad_(), rc, rr, beta=0.5)
    loss.backward()
    zero = torch.zeros(3)
    return {
        "the gradient of policy_chosen": zero if pc.grad is None else pc.grad,
        "the gradient of policy_rejected": zero if pr.grad is None else pr.grad,
    }


@case(
    "dpo_loss",
    "the rewards carry no gradient",
    "log-probabilities of the policy that carry one",
    mistake="A reward carries a gradient. The rewards are there to be looked at: the loss alone is learnt from.",
)
def dpo_rewards_gradient(code: TaughtCode):
    pc, pr, rc, rr = _four(50)
    _, chosen, rejected = _dpo(code, pc.requires_grad_(), pr.requires_grad_(), rc, rr)
    return {
        "the reward of the chosen carries a gradient": chosen.requires_grad,
        "the reward of the rejected carries a gradient": rejected.requires_grad,
    }


@case(
    "dpo_loss",
    "no gradient reaches the reference",
    "log-probabilities of the reference that carry a gradient",
    mistake="The gradient of the loss reaches the reference's log-probabilities: training would move the reference, which "
    "is to stay where it is.",
)
def dpo_reference_gradient(code: TaughtCode):
    four = [x.requires_grad_() for x in _four(50)]
    _dpo(code, *four)[0].backward()
    names = ("ref_chosen", "ref_rejected")
    return {
        f"a gradient reaches {n}": x.grad is not None and bool(x.grad.any()) for n, x in zip(names, four[2:])
    }


@case(
    "dpo_loss",
    "a batch of one",
    "one pair",
    mistake="A batch of one pair is not handled like any other.",
)
def dpo_one(code: TaughtCode):
    loss, chosen, rejected = _dpo(code, [-11.0], [-9.5], [-12.0], [-9.0], beta=0.5)
    return {"the loss": loss, "the reward of the chosen": chosen, "the reward of the rejected": rejected}


@case(
    "dpo_loss",
    "the log-probabilities stay as they were",
    "before and after",
    mistake="Your function changes the log-probabilities that it is handed.",
)
def dpo_arguments(code: TaughtCode):
    four, before = _four(80), _four(80)
    code.dpo.dpo_loss(*four, beta=0.5)
    names = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")
    return {f"{n} changed": not torch.equal(x, y) for n, x, y in zip(names, four, before, strict=True)}


# --- 5.3 train_dpo --------------------------------------------------------------------------------

COLUMNS = tuple(f"{side}_{kind}" for side in ("chosen", "rejected") for kind in ("ids", "mask", "labels"))
HISTORY = ("loss", "accuracy", "margin", "chosen_logprob", "rejected_logprob")
BETA = 0.7


def _models(scale: float = 1.0, equal: bool = False) -> tuple[WatchedLM, WatchedLM]:
    """A policy over nine tokens and a frozen reference, whose head is another one unless they are `equal`."""
    policy, reference = WatchedLM(scale), WatchedLM(scale)
    if not equal:
        with torch.no_grad():
            reference.v_head.weight.add_(numbers(110, *reference.v_head.weight.shape))
    return policy, reference.requires_grad_(False)


def _pairs(*rows: tuple[list[int], list[int], list[int]], left: bool = False) -> dict[str, Tensor]:
    """A batch of `(prompt, chosen, rejected)` in rows of 7, padded with token 8 on the right or on the left."""
    batch = {name: [] for name in COLUMNS}
    for prompt, *responses in rows:
        for side, response in zip(("chosen", "rejected"), responses, strict=True):
            length = len(prompt + response)
            columns = {
                "ids": (prompt + response, 8),
                "mask": ([1] * length, 0),
                "labels": ([IGNORE] * len(prompt) + response, IGNORE),
            }
            for kind, (row, filler) in columns.items():
                padding = [filler] * (7 - length)
                batch[f"{side}_{kind}"].append(padding + row if left else row + padding)
    return {name: torch.tensor(column) for name, column in batch.items()}


def _batches() -> list[dict[str, Tensor]]:
    """Three batches of ragged pairs, of different accuracy."""
    return [
        _pairs(([5, 6], [1, 0], [2, 3, 4, 0]), ([7], [4, 0], [0]), ([1, 5], [5, 3, 2, 6], [2, 0])),
        _pairs(([4, 4], [1, 0], [7, 7, 6, 0]), ([2], [3, 0], [5, 5, 0]), ([6], [3, 0], [1, 7, 0])),
        _pairs(([3], [1, 0], [2, 2, 0]), ([5, 7], [7, 1, 0], [0]), ([6, 2], [4, 1, 1, 0], [6, 2, 0])),
    ]


def _train(
    code: TaughtCode, models: tuple, batches, n_epochs: int = 1, lr: float = 0.0, beta: float = BETA
) -> list[dict]:
    history = code.dpo.train_dpo(*models, batches, n_epochs=n_epochs, lr=lr, device="cpu", beta=beta)
    if not isinstance(history, list):
        raise WrongReturn(f"train_dpo returned {in_words(history)}, expected a list of dictionaries")
    return [entries("train_dpo, as a step,", step, *HISTORY) for step in history]


def _column(history: list[dict], name: str) -> list:
    return [counted(step[name]) for step in history]


@case("train_dpo", "it returns five numbers a step", "3 batches, 2 epochs, two models of 81 numbers")
def train_kinds(code: TaughtCode):
    history = _train(code, _models(), _batches(), n_epochs=2, lr=0.01)
    return {
        f"{name} is": sorted({x if isinstance(x, str) else "a number" for x in _column(history, name)})
        for name in HISTORY
    }


@case(
    "train_dpo",
    "one step a batch, in each epoch",
    "2 batches, 3 epochs",
    mistake="The optimiser does not step once for each batch of each epoch. Which of the two loops does the step "
    "stand in?",
)
def train_steps(code: TaughtCode):
    with recorded_steps() as steps:
        _train(code, _models(), _batches()[:2], n_epochs=3, lr=0.01)
    return {"steps of the optimiser": len(steps)}


@case(
    "train_dpo",
    "one entry a step",
    "2 batches, 3 epochs",
    mistake="You do not return one dictionary for each step. Which of the two loops does the append stand in?",
)
def train_count(code: TaughtCode):
    return {"the length of the history": len(_train(code, _models(), _batches()[:2], n_epochs=3, lr=0.01))}


@case(
    "train_dpo",
    "the policy moves",
    "3 batches, lr 0.01",
    mistake="The weights of the policy that you are handed are the same after training. Does the gradient reach the "
    "optimiser, and is it that policy that you train?",
)
def train_moves(code: TaughtCode):
    policy, reference = _models()
    before = policy.all_weights()
    _train(code, (policy, reference), _batches(), lr=0.01)
    return {"the weights of the policy moved": not torch.equal(before, policy.all_weights())}


@case(
    "train_dpo",
    "the reference does not move",
    "3 batches, lr 0.01",
    mistake="The weights of the reference are others after training. It says where the policy came from, and has to stay "
    "there.",
)
def train_reference_stays(code: TaughtCode):
    policy, reference = _models()
    before = reference.all_weights()
    _train(code, (policy, reference), _batches(), lr=0.01)
    return {"the weights of the reference moved": not torch.equal(before, reference.all_weights())}


@case(
    "train_dpo",
    "at the start: ln 2",
    "policy and reference have the same weights",
    mistake="When the policy is still the reference each loss has to be ln 2.",
)
def train_start(code: TaughtCode):
    return {"loss": _column(_train(code, _models(equal=True), _batches()), "loss")}


@case(
    "train_dpo",
    "the reference is asked",
    "learning rate 0, another reference: the loss is another one",
    mistake="The reference does not enter your loss: with another reference it stays the same. Which model reads the batch "
    "for ref_chosen and ref_rejected?",
)
def train_asks(code: TaughtCode):
    equal, other = (_train(code, _models(equal=e), _batches()[:1])[0]["loss"] for e in (True, False))
    return {"another reference, another loss": bool(abs(equal - other) > 1e-3)}


@case(
    "train_dpo",
    "the loss of each batch",
    "learning rate 0, 3 batches of ragged pairs, beta 0.7",
    mistake="With a learning rate of 0 each loss has to be that of exercise 5.2 for its own batch. Which model reads which "
    "text, with which mask and which labels, and in which order do the four numbers go in? Does beta arrive?",
)
def train_losses(code: TaughtCode):
    return {"loss": _column(_train(code, _models(), _batches()), "loss")}


@case(
    "train_dpo",
    "each text has its own mask",
    "learning rate 0, a batch that is padded on the left",
    mistake="With padding on the left a loss is wrong: the mask of a text does not go through the models with it.",
)
def train_left(code: TaughtCode):
    batch = _pairs(([5, 6], [1, 0], [2, 3, 4, 0]), ([7], [4, 0], [0]), left=True)
    return {"loss": _column(_train(code, _models(), [batch]), "loss")}


@case(
    "train_dpo",
    "beta is handed on",
    "learning rate 0, beta 0.05 and 3",
    mistake="Your loss does not depend on the `beta` that your function was handed.",
)
def train_beta(code: TaughtCode):
    return {
        f"loss, beta {beta:g}": _column(_train(code, _models(), _batches(), beta=beta), "loss")
        for beta in (0.05, 3.0)
    }


@case(
    "train_dpo",
    "the accuracy of each batch",
    "learning rate 0, 3 batches of 3 pairs",
    mistake="The losses are right and the accuracies are not: the share of the batch's pairs in which the chosen response "
    "has the higher implicit reward.",
)
def train_accuracies(code: TaughtCode):
    return {"accuracy": _column(_train(code, _models(), _batches()), "accuracy")}


@case(
    "train_dpo",
    "a tie is not correct",
    "two models for which all tokens are equally likely: both rewards are 0",
    mistake="You count a tie as right, or as half right. The chosen response has to have strictly the higher reward.",
)
def train_ties(code: TaughtCode):
    models = _models(equal=True)
    with torch.no_grad():
        for weight in [weight for model in models for weight in model.v_head.parameters()]:
            weight.zero_()
    return {"accuracy": _column(_train(code, models, _batches()), "accuracy")}


@case(
    "train_dpo",
    "the margin of each batch",
    "learning rate 0, beta 0.7",
    mistake="The margins are wrong: the mean over the batch of how far the reward of the chosen response is above that of "
    "the rejected one.",
)
def train_margins(code: TaughtCode):
    return {"margin": _column(_train(code, _models(), _batches()), "margin")}


@case(
    "train_dpo",
    "the log-probabilities of each batch",
    "learning rate 0, chosen and rejected",
    mistake="`chosen_logprob` or `rejected_logprob` is wrong: the mean over the batch of what the policy gives these "
    "responses in nats, without beta and without the reference.",
)
def train_logprobs(code: TaughtCode):
    history = _train(code, _models(), _batches())
    return {name: _column(history, name) for name in ("chosen_logprob", "rejected_logprob")}


@case(
    "train_dpo",
    "dropout is off in the policy",
    "a policy that comes in training mode, and one in eval mode",
    mistake="The policy is in training mode while it trains. With dropout it would differ from its own reference before "
    "the first step.",
)
def train_mode(code: TaughtCode):
    seen = {}
    for mode in (True, False):
        policy, reference = _models()
        _train(code, (policy.train(mode), reference), _batches()[:1], n_epochs=2, lr=0.01)
        off = not any(one.training or one.parts_training for one in policy.passes)
        seen[f"off in all passes, coming in {'training' if mode else 'eval'} mode"] = off
    return seen


@case(
    "train_dpo",
    "dropout is off in the reference",
    "a reference that comes in training mode",
    mistake="The reference reads in training mode: with dropout it says something else each time.",
)
def train_reference_mode(code: TaughtCode):
    policy, reference = _models()
    _train(code, (policy, reference.train()), _batches()[:1], n_epochs=2, lr=0.01)
    return {"off in all passes": not any(one.training or one.parts_training for one in reference.passes)}


@case(
    "train_dpo",
    "the optimiser is AdamW",
    "what takes the steps",
    mistake="The docstring asks for AdamW, and another optimiser takes the steps.",
)
def train_optimizer(code: TaughtCode):
    return kinds_of_optimiser(lambda: _train(code, _models(), _batches()[:1], lr=0.01))


@case(
    "train_dpo",
    "the learning rate is the one that was asked for",
    "lr 0.03, 2 batches, 2 epochs",
    mistake="The optimiser does not step with the learning rate that your function was handed: it is constant, for all "
    "weights and in all steps.",
)
def train_lr(code: TaughtCode):
    return learning_rates(lambda: _train(code, _models(), _batches()[:2], n_epochs=2, lr=0.03))


@case(
    "train_dpo",
    "all weights of the policy and none of the reference",
    "81 weights in each",
    mistake="The optimiser has to hold all weights of the policy, and none of the reference.",
)
def train_all_weights(code: TaughtCode):
    return weights_held(lambda: _train(code, _models(), _batches()[:1], lr=0.01))


@case(
    "train_dpo",
    "one optimiser for the whole run",
    "3 batches, 2 epochs",
    mistake="You make a new optimiser in the loop: AdamW forgets its running averages each time.",
)
def train_one_optimizer(code: TaughtCode):
    return number_of_optimisers(lambda: _train(code, _models(), _batches(), n_epochs=2, lr=0.01))


@case(
    "train_dpo",
    "a small gradient stays as it is",
    "the first step of a model with small logits",
    mistake="At the first step the gradient of a small loss is not the gradient of that loss: it is scaled, a part of it "
    "is cut off, or it is zeroed before the step.",
)
def train_small_gradient(code: TaughtCode):
    return small_norms(lambda: _train(code, _models(scale=0.05), _batches()[:1]))


@case(
    "train_dpo",
    "the first step goes down the gradient",
    "lr 0.01, one step: which way each weight of the head moves",
    mistake="A weight moves the wrong way, and the loss grows. A step goes against the gradient of the loss: look at the "
    "sign of what you call backward on, at the optimiser's options, and at what happens to the gradients.",
)
def train_downhill(code: TaughtCode):
    policy, reference = _models()
    moves = policy.moves_of_head(lambda: _train(code, (policy, reference), _batches()[:1], lr=0.01))
    return {"the moves of the head's weights": moves}


@case(
    "train_dpo",
    "each step has the gradient of its own batch",
    "the same batch twice, learning rate 0: the same gradient twice",
    mistake="The second step still carries the gradient of the first: gradients add up until they are set to zero.",
)
def train_zero_grad(code: TaughtCode):
    return small_norms(lambda: _train(code, _models(scale=0.05), _batches()[:1] * 2))


@case(
    "train_dpo",
    "the second epoch is like the first",
    "learning rate 0, 3 batches, 2 epochs: each batch comes back with the same numbers and gradient",
    mistake="The first epoch is right and the second is not, though nothing has changed in between: it reads other batches, "
    "or does something else with them.",
)
def train_second_epoch(code: TaughtCode):
    with recorded_steps() as steps:
        history = _train(code, _models(scale=0.05), _batches(), n_epochs=2)
    return {name: _column(history, name) for name in HISTORY} | gradient_changes(steps, 3)


@case(
    "train_dpo",
    "the norm of a large gradient is cut to 1",
    "two batches with a large gradient, 2 epochs",
    mistake="What reaches the step is not the gradient with its norm clipped to 1: the norm of all weights together, "
    "and before the step.",
)
def train_clip(code: TaughtCode):
    return norms(lambda: _train(code, _models(scale=3.0), _batches()[:2], n_epochs=2))


@case(
    "train_dpo",
    "the numbers are from before the step",
    "lr 0.5, the first step",
    mistake="A number in your history is not from before the step: it is computed again after it.",
)
def train_before_step(code: TaughtCode):
    first = _train(code, _models(), _batches()[:1], lr=0.5)[0]
    return {f"the first {name}": counted(first[name]) for name in HISTORY}


@case(
    "train_dpo",
    "the loss falls from ln 2",
    "the same batch 5 times, lr 0.05; the policy begins as its reference",
    mistake="The loss does not leave ln 2. Does the reference follow the policy?",
)
def train_falls(code: TaughtCode):
    losses = _column(_train(code, _models(equal=True), _batches()[:1] * 5, lr=0.05), "loss")
    return {"each loss is lower than the one before": [bool(b < a) for a, b in zip(losses, losses[1:])]}


@case(
    "train_dpo",
    "the data loader is gone through in each epoch",
    "a loader of 3 batches that can only be gone through, 2 epochs",
    mistake="You keep the batches of the first epoch, or ask for them by number. Going through the loader anew is what gives "
    "each epoch an order of its own.",
)
def train_loader(code: TaughtCode):
    loader = Loader(_batches())
    _train(code, _models(), loader, n_epochs=2)
    return {"the loader is gone through in both epochs": loader.rounds >= 2}


@case(
    "train_dpo",
    "no epoch, no change",
    "n_epochs 0",
    mistake="With n_epochs=0 there is nothing to train and nothing to return.",
)
def train_no_epoch(code: TaughtCode):
    policy, reference = _models()
    before = policy.all_weights()
    history = _train(code, (policy, reference), _batches(), n_epochs=0, lr=0.01)
    return {"the history": history, "the weights moved": not torch.equal(before, policy.all_weights())}


@case(
    "train_dpo",
    "a last batch of one pair",
    "learning rate 0, one pair",
    mistake="A batch of one pair (the last of an epoch may be one) is not handled like any other.",
)
def train_one_pair(code: TaughtCode):
    history = _train(code, _models(), [_pairs(([5, 6], [1, 0], [2, 3, 4, 0]))])
    return {name: _column(history, name) for name in HISTORY}


@case(
    "train_dpo",
    "models and batches go to the device",
    'the device "meta", which holds no numbers',
    mistake="A model or the batch does not go to `device`: on a GPU this stops with an error.",
)
def train_device(code: TaughtCode):
    policy, reference = _models()
    # nothing can be read from "meta": the loop ends with an error once it has a loss
    raised(lambda: code.dpo.train_dpo(policy, reference, _batches(), n_epochs=1, lr=0.01, device="meta"))
    seen = {}
    for name, model in (("policy", policy), ("reference", reference)):
        first = model.passes[0] if model.passes else None
        seen[f"the {name} is on"] = first and first.weights_on
        seen[f"what the {name} reads is on"] = first and first.ids_on
    return seen


@case(
    "train_dpo",
    "the batches stay as they were",
    "before and after",
    mistake="Your loop changes the batches that it is handed: the second epoch sees other data.",
)
def train_arguments(code: TaughtCode):
    batches = _batches()
    _train(code, _models(), batches, lr=0.01)
    return changed(batches, _batches())
