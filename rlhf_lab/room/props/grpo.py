"""Props of the examinations in `grpo.py`."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ...backbones import load_causal_lm
from ...checkpoints import SFT
from ...checks.models import SmallCausalLM
from ...checks.training import leave_over
from .shared import counting_sgd


class SmallLM(SmallCausalLM):
    """A model with these weights.

    Attributes:
        steps: how often the optimiser of `learner` has made a step.
    """

    def __init__(self, weights: Mapping[str, Tensor]):
        n_tokens, width = weights["tokens.weight"].shape
        super().__init__(n_tokens, width, n_positions=len(weights["positions.weight"]))
        self.load_state_dict(weights)
        self.steps = 0
        self.eval()


def learner(
    weights: Mapping[str, Tensor], training: bool, left_over: float | None, lr: float, momentum: float
) -> tuple[SmallLM, torch.optim.Optimizer]:
    """A small language model in this mode, and the optimiser of its weights.

    Args:
        left_over: gradient that every weight has, as if from an earlier step; None: no gradient.
    """
    policy = SmallLM(weights).train(training)
    leave_over(policy, left_over)
    return policy, counting_sgd(policy, lr, momentum)


def sft_learner(lr: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The language model that is shipped with the course, after SFT, and an optimiser of its weights."""
    policy = load_causal_lm(SFT)
    return policy, torch.optim.AdamW(policy.parameters(), lr=lr)
