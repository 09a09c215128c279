"""Gradient accumulation around taught code: a batch goes through a model in several passes.

`ppo_step`, `train_sft` and `train_rm` hand a whole batch to the model, in one call, and stay as they are. Inside
`in_passes` that call is answered in passes of a few rows whose results are put together again. Each pass is
checkpointed (Chen et al. 2016, "Training deep nets with sublinear memory cost"): the forward pass keeps its inputs
alone, and the backward pass computes it again, one after the other, so that the activations of one pass are there at
a time. The gradients add up in the weights' `.grad` as they do without it. Numbers and gradients are the same up to the
order of sums, save where dropout is on: SFT and reward model of a backbone that has dropout draw other masks.

transformers' own gradient checkpointing is not used: it is inactive in eval mode, and the course trains PPO in eval mode,
which is how dropout is off. `checkpointing` does the same, layer by layer, in both modes.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import Cache, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput

from .profiles import Profile


@contextmanager
def in_passes(profile: Profile | None, *models: nn.Module) -> Iterator[None]:
    """Answer each call of `models` in passes of `profile.rows` rows, checkpointed where gradients are wanted.

    Without a profile nothing is changed. A language model must not generate inside: its cache belongs to a whole batch.
    (The `lm` of a policy may: the passes are the policy's.)
    """
    with ExitStack() as changed:
        for model in models if profile is not None else ():
            _replace_forward(changed, model, _split_forward(profile.rows))
            if profile.checkpointing:
                for layer in model.modules():
                    if isinstance(layer, GradientCheckpointingLayer):
                        _replace_forward(changed, layer, _checkpointed_layer)
        yield


def _replace_forward(changed: ExitStack, module: nn.Module, forward) -> None:
    module.forward = MethodType(forward, module)
    changed.callback(delattr, module, "forward")


def _split_forward(rows: int):
    def forward(model: nn.Module, *args, **kwargs):
        whole = type(model).forward
        n_rows = len(next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)))
        # transformers' own loss is a mean over the batch: it cannot be put together from means of unequal passes
        if n_rows <= rows or kwargs.get("labels") is not None:
            return whole(model, *args, **kwargs)
        if isinstance(model, PreTrainedModel):
            kwargs.setdefault("use_cache", False)
        results = []
        for start in range(0, n_rows, rows):
            own = slice(start, start + rows)
            results.append(
                _checkpointed(
                    whole,
                    model,
                    *(_rows(value, own, n_rows) for value in args),
                    **{name: _rows(value, own, n_rows) for name, value in kwargs.items()},
                )
            )
        return _joined(results)

    return forward


def _checkpointed_layer(layer: nn.Module, *args, **kwargs):
    if torch.is_grad_enabled():
        # the layer runs a second time in the backward pass, and would append its keys and values twice
        args = [None if isinstance(value, Cache) else value for value in args]
        kwargs = {name: None if isinstance(value, Cache) else value for name, value in kwargs.items()}
    return _checkpointed(type(layer).forward, layer, *args, **kwargs)


def _checkpointed(function, *args, **kwargs):
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    return checkpoint(function, *args, use_reentrant=False, **kwargs)


def _rows(value, own: slice, n_rows: int):
    return value[own] if isinstance(value, Tensor) and value.dim() > 0 and len(value) == n_rows else value


def _joined(results: list):
    first = results[0]
    if isinstance(first, Tensor):
        return torch.cat(results)
    if isinstance(first, ModelOutput):
        return type(first)(**{name: _joined([result[name] for result in results]) for name in first})
    return tuple(_joined(list(parts)) for parts in zip(*results, strict=True))
