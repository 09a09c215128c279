"""Props that examinations of several stages use."""

import importlib
from types import ModuleType

from torch import Tensor, nn

from ...checks.models import micro_tokenizer, special_tokenizer
from ...settings import STUB_PACKAGE


def examined(module: str) -> ModuleType:
    """A module of the package that is examined: "sft", "reward_model" or "ppo"."""
    return importlib.import_module(f"{STUB_PACKAGE}.{module}")


def tokenizer(pad: str | None = None, padding_side: str = "right", special: bool = False):
    """A new tokenizer of the course's.

    Args:
        pad: its pad token; None where it comes without one.
        padding_side: on which it would pad a batch itself.
        special: whether it puts EOS before and after a text unless it is told not to.
    """
    made = special_tokenizer() if special else micro_tokenizer()
    made.pad_token = pad
    made.padding_side = padding_side
    return made


def weights(model: nn.Module) -> dict[str, Tensor]:
    return model.state_dict()


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
