"""What a training loop does to its optimiser and to its model, seen from outside."""

from collections.abc import Callable, Iterator, Sequence
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
