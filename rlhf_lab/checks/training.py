"""What a training loop does to its optimiser and to its model, seen from outside."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .case import numbers


@dataclass(frozen=True)
class Watched:
    """The weights of a model around a step, by name.

    Attributes:
        before, after: what they were.
        gradients: that the step moved along; 0 where there is none.
        rates: their learning rates; None where the optimiser does not hold a weight.
    """

    before: dict[str, Tensor]
    after: dict[str, Tensor]
    gradients: dict[str, Tensor]
    rates: dict[str, float | None]


@dataclass(frozen=True)
class Step:
    """One call of an optimiser's `step()`.

    Attributes:
        optimizer: whose step it is.
        lrs: the learning rate of each of its groups of weights.
        gradients: that it moved along, of each weight that it holds; 0 where there is none.
        watched: the weights of the model that is watched, where one is.
    """

    optimizer: torch.optim.Optimizer
    lrs: list[float]
    gradients: tuple[Tensor, ...]
    watched: Watched | None = None

    @property
    def weights(self) -> int:
        """How many numbers the optimiser holds."""
        return sum(gradient.numel() for gradient in self.gradients)

    @property
    def gradient(self) -> Tensor:
        """That of all weights that the optimiser holds, in one row."""
        return torch.cat([gradient.flatten() for gradient in self.gradients])

    @property
    def norm(self) -> float:
        return self.gradient.norm().item()

    @property
    def kind(self) -> str:
        """Name of the optimiser's class; of one that the student derived, that of torch's class behind it."""
        return next(
            kind.__name__ for kind in type(self.optimizer).__mro__ if kind.__module__.startswith("torch.")
        )


@contextmanager
def recorded_steps(watched: nn.Module | None = None) -> Iterator[list[Step]]:
    """All steps that optimisers of torch take inside the `with`, in a list that grows.

    Args:
        watched: a model; each step then says what became of the weights that it has now.
    """
    model = {} if watched is None else dict(watched.named_parameters())
    steps: list[Step] = []
    entered: dict[torch.optim.Optimizer, dict[str, Tensor]] = {}  # with the model's weights at that time

    def enter(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        entered[optimizer] = _copies(model)

    def record(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if optimizer not in entered:  # a `step()` around that of a parent class, which is recorded already
            return
        before = entered.pop(optimizer)
        steps.append(_step_of(optimizer, _watched(model, before, optimizer) if model else None))

    handles = register_optimizer_step_pre_hook(enter), register_optimizer_step_post_hook(record)
    try:
        yield steps
    finally:
        for handle in handles:
            handle.remove()


def noted(optimizer: torch.optim.Optimizer) -> list[Step]:
    """The steps that this optimiser of torch takes from now on, in a list that grows."""
    steps: list[Step] = []
    optimizer.register_step_post_hook(lambda stepping, args, kwargs: steps.append(_step_of(stepping)))
    return steps


# Gradients are read behind the step: before it, a closure or a hook of the student's may not have made them yet.
def _step_of(optimizer: torch.optim.Optimizer, watched: Watched | None = None) -> Step:
    """The step that an optimiser has just taken."""
    held = [weight for group in optimizer.param_groups for weight in group["params"]]
    lrs = [float(group["lr"]) for group in optimizer.param_groups]
    return Step(optimizer, lrs, tuple(map(_gradient, held)), watched)


def _watched(
    model: dict[str, nn.Parameter], before: dict[str, Tensor], optimizer: torch.optim.Optimizer
) -> Watched:
    rates = {weight: float(group["lr"]) for group in optimizer.param_groups for weight in group["params"]}
    return Watched(
        before=before,
        after=_copies(model),
        gradients={name: _gradient(weight) for name, weight in model.items()},
        rates={name: rates.get(weight) for name, weight in model.items()},
    )


def _copies(model: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.items()}


def _gradient(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad.detach().clone()


class Loader:
    """Batches that can be gone through, again and again, and counted; they are fresh ones each time.

    Attributes:
        rounds: how often it was gone through to its end.
    """

    def __init__(self, batches: list[dict[str, Tensor]]):
        self._batches = batches
        self.rounds = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batch in self._batches:
            yield {name: column.clone() for name, column in batch.items()}
        self.rounds += 1


@dataclass(frozen=True)
class Pass:
    """One forward pass of a `WatchedModel`: its mode, whether its parts are in training mode, the devices of ids and
    weights."""

    training: bool
    parts_training: bool
    ids_on: str
    weights_on: str


class WatchedModel(nn.Module):
    """A reader of a few numbers, with a dropout of nothing: the mean of the embeddings that the mask lets through, so far.

    Attributes:
        passes: what each forward pass saw.
    """

    def __init__(self, n_out: int, scale: float, bias: bool):
        super().__init__()
        self.backbone = nn.Embedding(9, 4)
        self.v_head = nn.Linear(4, n_out, bias=bias)
        self.dropout = nn.Dropout(0.0)
        self.scale = scale  # of what comes out, and so of the gradient
        self.passes: list[Pass] = []
        with torch.no_grad():
            for seed, weight in enumerate(self.parameters()):
                weight.copy_(numbers(100 + seed, *weight.shape))

    def read(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Output at each position, `[batch, seq, n_out]`."""
        weights_on = self.v_head.weight.device.type
        parts_training = all(part.training for part in self.children())
        self.passes.append(Pass(self.training, parts_training, input_ids.device.type, weights_on))
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        seen = mask.unsqueeze(-1)
        mean = (self.backbone(input_ids) * seen).cumsum(dim=1) / seen.cumsum(dim=1).clamp(min=1)
        return self.scale * self.v_head(self.dropout(mean))

    def moves_of_head(self, train: Callable[[], object]) -> list[str]:
        """Which way `train` moves each weight of the head."""
        before = self.v_head.weight.detach().flatten().clone()
        train()
        moved = self.v_head.weight.detach().flatten() - before
        return ["up" if move > 0 else "down" if move < 0 else "nowhere" for move in moved]

    def all_weights(self) -> Tensor:
        """Every weight, in one row."""
        return torch.cat([weight.detach().flatten() for weight in self.parameters()])


def counted(number: float) -> float | str:
    """A number that a training loop returned; of anything that is no number, what it is."""
    if isinstance(number, (int, float)):
        return float(number)
    graph = " with its graph" if isinstance(number, Tensor) and number.requires_grad else ""
    return f"a {type(number).__name__}{graph}"


def leave_over(model: nn.Module, gradient: float | None) -> None:
    """Give every weight this gradient, as if from an earlier step; None: no gradient."""
    for weight in model.parameters():
        weight.grad = None if gradient is None else torch.full_like(weight, gradient)


def what_adds_up(own: Step, steps: Sequence[Step], left_over: float) -> dict[str, bool]:
    """Whether the gradients of two epochs hold what was there before them.

    Args:
        own: the step of an epoch that nothing was left over from.
    """
    before = left_over, steps[0].gradient
    adds_up = [
        torch.allclose(steps[i].gradient, before[i] + own.gradient, rtol=1e-3, atol=1e-5) for i in (0, 1)
    ]
    return {
        "the gradient of epoch 0 holds what was left over": adds_up[0],
        "the gradient of epoch 1 holds that of epoch 0": adds_up[1],
    }


# --- what every loop over batches is asked: `train` makes one call of it ----------------------------


def steps_of(train: Callable[[], object]) -> list[Step]:
    with recorded_steps() as steps:
        train()
    return steps


def kinds_of_optimiser(train: Callable[[], object]) -> dict[str, list[str]]:
    return {"the optimiser": sorted({step.kind for step in steps_of(train)})}


def learning_rates(train: Callable[[], object]) -> dict[str, list[float]]:
    steps = steps_of(train)
    return {
        "the lowest lr of each step": [min(step.lrs) for step in steps],
        "the highest lr of each step": [max(step.lrs) for step in steps],
    }


def weights_held(train: Callable[[], object]) -> dict[str, list[int]]:
    return {"weights in the optimiser": [step.weights for step in steps_of(train)]}


def number_of_optimisers(train: Callable[[], object]) -> dict[str, int]:
    return {"optimisers": len({id(step.optimizer) for step in steps_of(train)})}


def small_norms(train: Callable[[], object]) -> dict[str, list[float]]:
    return {"the norm of the gradient, times 100": [100 * step.norm for step in steps_of(train)]}


def norms(train: Callable[[], object]) -> dict[str, list[float]]:
    return {"the norm of the gradient": [step.norm for step in steps_of(train)]}


def gradient_changes(steps: Sequence[Step], n_batches: int) -> dict[str, list[bool]]:
    """Whether the gradient of each batch is another one in the second of two epochs without a learning rate."""
    return {
        "the gradient changes": [
            bool((second.gradient - first.gradient).norm() > 0.01 * first.norm)
            for first, second in zip(steps[:n_batches], steps[n_batches:])
        ],
    }


def changed(
    batches: Sequence[Mapping[str, Tensor]], before: Sequence[Mapping[str, Tensor]]
) -> dict[str, bool]:
    """Whether batches are other ones than they were, in a name or in a number."""
    return {
        "the batches changed": any(
            batch.keys() != old.keys() or any(not torch.equal(batch[name], old[name]) for name in old)
            for batch, old in zip(batches, before, strict=True)
        )
    }


# --- what both update steps are asked ---------------------------------------------------------------


def changes_with_padding(
    one: tuple[Mapping[str, float], Sequence[Step]],
    other: tuple[Mapping[str, float], Sequence[Step]],
    names: Sequence[str],
) -> dict[str, list[str] | bool]:
    """What of `info`, and whether the gradient, is another one on a rollout with other padding."""
    (info, steps), (other_info, other_steps) = one, other
    different = [
        name for name in names if not math.isclose(info[name], other_info[name], rel_tol=1e-3, abs_tol=1e-5)
    ]
    same = torch.allclose(steps[0].gradient, other_steps[0].gradient, rtol=1e-3, atol=1e-5)
    return {"what changes in info": different, "the gradient is the same": same}


def same_tensors(rollout: object, before: object, names: Sequence[str]) -> dict[str, bool]:
    return {
        f"{name} is the same": torch.equal(getattr(rollout, name), getattr(before, name)) for name in names
    }
