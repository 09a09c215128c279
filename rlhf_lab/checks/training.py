"""What a training loop does to its optimiser and to its model, seen from outside."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .case import numbers


@dataclass(frozen=True)
class Step:
    """One call of an optimiser's `step()`, as it begins.

    Attributes:
        optimizer: whose step it is.
        lr: its learning rate.
        weights: how many numbers it holds.
        gradient: of all weights, in one row; 0 where there is none.
    """

    optimizer: torch.optim.Optimizer
    lr: float
    weights: int
    gradient: Tensor

    @property
    def norm(self) -> float:
        return self.gradient.norm().item()


@contextmanager
def recorded_steps() -> Iterator[list[Step]]:
    """All steps that optimisers of torch take inside the `with`, in a list that grows."""
    steps = []

    def record(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        row = torch.cat([gradient.detach().flatten() for gradient in gradients])
        steps.append(Step(optimizer, optimizer.param_groups[0]["lr"], row.numel(), row.clone()))

    handle = register_optimizer_step_pre_hook(record)
    try:
        yield steps
    finally:
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

    def all_weights(self) -> Tensor:
        """Every weight, in one row."""
        return torch.cat([weight.detach().flatten() for weight in self.parameters()])


def counted(number: float) -> float | str:
    """A number that a training loop returned; of anything that is no number, what it is."""
    if isinstance(number, (int, float)):
        return float(number)
    graph = " with its graph" if isinstance(number, Tensor) and number.requires_grad else ""
    return f"a {type(number).__name__}{graph}"
