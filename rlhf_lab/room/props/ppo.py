"""Props of the examinations in `ppo.py`: the policy on the micro model, and what can be seen of it."""

import copy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from ...checks.models import micro_folder
from .shared import examined


@cache
def _loaded() -> nn.Module:
    return examined("ppo").PolicyWithValueHead(micro_folder())


def new_policy() -> nn.Module:
    """A policy of the package that is examined, on the micro model and in eval mode; a copy, since loading is slow."""
    return copy.deepcopy(_loaded()).eval()


def linear_layers(policy: nn.Module) -> list[dict[str, Tensor | None]]:
    """Weight and bias of each linear layer of the value head."""
    return [{"weight": layer.weight, "bias": layer.bias} for layer in _layers(policy)]


@torch.no_grad()
def fill_layers(policy: nn.Module, numbers: list[dict[str, Tensor | None]]) -> nn.Module:
    """The policy, with these numbers written into the linear layers of its value head."""
    for layer, new in zip(_layers(policy), numbers, strict=True):
        layer.weight.copy_(new["weight"])
        if new["bias"] is not None:
            layer.bias.copy_(new["bias"])
    return policy


def _layers(policy: nn.Module) -> list[nn.Linear]:
    return [layer for layer in policy.value_head.modules() if isinstance(layer, nn.Linear)]


def forward_each(policy: nn.Module, passes: list[dict[str, Any]]) -> list[Any]:
    """What each of several passes returns: `ids`, a mask of 1s unless there is `mask`, and the other entries as they are."""
    returned = []
    for options in map(dict, passes):
        ids = options.pop("ids")
        returned.append(policy(ids, options.pop("mask", torch.ones_like(ids)), **options))
    return returned


def watched_pass(policy: nn.Module, ids: Tensor) -> tuple[list[str], list[str]]:
    """Names of the blocks that a pass goes through, each as often as it does, and of all parameters."""
    seen = []
    for name, module in policy.named_modules():
        if isinstance(module, GPT2Block):
            module.register_forward_hook(lambda *_, name=name: seen.append(name))
    policy(ids, torch.ones_like(ids))
    return seen, [name for name, _ in policy.named_parameters()]


def recommendations(policy: nn.Module) -> list[float | None]:
    """What the policy samples with when nothing is said: top-k and repetition penalty."""
    config = policy.lm.generation_config
    return [config.top_k, config.repetition_penalty]


def load_from_sft(policy: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    """The policy, after it has loaded a state dict."""
    policy.load_from_sft(state)
    return policy


@torch.no_grad()
def load_and_train(policy: nn.Module, state: dict[str, Tensor]) -> list[dict[str, Tensor | None]]:
    """Load a state dict, then change every parameter of the policy in place, as an optimiser does.

    Returns:
        `linear_layers` between the two.
    """
    policy.load_from_sft(state)
    layers = copy.deepcopy(linear_layers(policy))
    for parameter in policy.parameters():
        parameter.add_(0.1)
    return layers
