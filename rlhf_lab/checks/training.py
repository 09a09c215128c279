"""What a training loop does to its optimiser and to its model, seen from outside."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .case import numbers


@dataclass(frozen=True)
class Step:
    """One call of an optimiser's `step()`.

    Attributes:
        optimizer: whose step it is.
        lrs: the learning rate of each of its groups of weights.
        weights: how many numbers it holds.
        gradient: that it moved along, of all weights in one row; 0 where there is none.
    """

    optimizer: torch.optim.Optimizer
    lrs: list[float]
    weights: int
    gradient: Tensor

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
def recorded_steps() -> Iterator[list[Step]]:
    """All steps that optimisers of torch take inside the `with`, in a list that grows."""
    steps = []
    entered = set()

    def enter(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        entered.add(optimizer)

    # Gradients are read behind the step: before it, a closure or a hook of the student's may not have made them yet.
    def record(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if optimizer not in entered:  # a `step()` around that of a parent class, which is recorded already
            return
        entered.remove(optimizer)
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        row = torch.cat([gradient.detach().flatten() for gradient in gradients])
        lrs = [float(group["lr"]) for group in optimizer.param_groups]
        steps.append(Step(optimizer, lrs, row.numel(), row.clone()))

    handles = register_optimizer_step_pre_hook(enter), register_optimizer_step_post_hook(record)
    try:
        yield steps
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Pass:
    """One forward pass of a `WatchedModel`: its mode, and the devices of the ids and of the weights."""

    training: bool
    ids_on: str
    weights_on: str


class WatchedModel(nn.Module):
    """A reader of a few numbers, without dropout: the mean of the embeddings that the mask lets through, so far.

    Attributes:
        passes: what each forward pass saw.
    """

    def __init__(self, n_out: int, scale: float, bias: bool):
        super().__init__()
        self.backbone = nn.Embedding(9, 4)
        self.v_head = nn.Linear(4, n_out, bias=bias)
        self.scale = scale  # of what comes out, and so of the gradient
        self.passes: list[Pass] = []
        with torch.no_grad():
            for seed, weight in enumerate(self.parameters()):
                weight.copy_(numbers(100 + seed, *weight.shape))

    def read(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Output at each position, `[batch, seq, n_out]`."""
        weights_on = self.v_head.weight.device.type
        self.passes.append(Pass(self.training, input_ids.device.type, weights_on))
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        seen = mask.unsqueeze(-1)
        mean = (self.backbone(input_ids) * seen).cumsum(dim=1) / seen.cumsum(dim=1).clamp(min=1)
        return self.scale * self.v_head(mean)

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
