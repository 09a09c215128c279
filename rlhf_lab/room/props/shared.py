"""Props that examinations of several stages use."""

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ...checks.models import micro_tokenizer, special_tokenizer
from ...settings import STUB_PACKAGE


def examined(module: str) -> ModuleType:
    """A module of the package that is examined, such as "sft"."""
    return importlib.import_module(f"{STUB_PACKAGE}.{module}")


def tokenizer(
    pad: str | None = None, padding_side: str = "right", special: bool = False, eos: str = "<|endoftext|>"
):
    """A new tokenizer of the course's.

    Args:
        pad: its pad token; None where it comes without one.
        padding_side: on which it would pad a batch itself.
        special: whether it puts EOS before and after a text unless it is told not to.
        eos: its EOS token; the one of the course's has id 0.
    """
    made = special_tokenizer() if special else micro_tokenizer()
    made.eos_token = eos
    made.pad_token = pad
    made.padding_side = padding_side
    return made


def items(dataset, indices: list[int]) -> list:
    return [dataset[index] for index in indices]


def as_floats(value: Any) -> Any:
    """What a loop returned, with each number in its lists and dictionaries, of torch or NumPy too, as a float."""
    if isinstance(value, dict):
        return {name: as_floats(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [as_floats(entry) for entry in value]
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return value


def weights(model: nn.Module) -> dict[str, Tensor]:
    return model.state_dict()


def move(model: nn.Module, device: str) -> None:
    """Put a model on a device, before an optimiser learns of its weights."""
    model.to(device)


def counting_sgd(policy: nn.Module, lr: float, momentum: float) -> torch.optim.Optimizer:
    """SGD on all weights of a policy that counts the optimiser's steps in `steps`."""
    optim = torch.optim.SGD(policy.parameters(), lr=lr, momentum=momentum)
    optim.register_step_post_hook(lambda *_: setattr(policy, "steps", policy.steps + 1))
    return optim


def steps_of(policy: nn.Module) -> int:
    """How many steps the optimiser of `counting_sgd` has made."""
    return policy.steps


def gradients(
    model: nn.Module, ids: Tensor, mask: Tensor, cotangent: Tensor, output: int | None = None
) -> dict[str, Tensor | None]:
    """Gradient of each weight when `cotangent` arrives at what a pass returns; None where none arrives.

    Args:
        output: at which of several things that a pass returns; None: it returns one.
    """
    model.zero_grad()
    returned = model(ids, mask)
    reached = returned if output is None else returned[output]
    if reached.requires_grad:
        reached.backward(cotangent)
    found = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    return found
