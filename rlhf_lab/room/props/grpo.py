"""Props of the examinations in `grpo.py`."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ...backbones import load_causal_lm
from ...checkpoints import SFT
from .shared import counting_sgd, leave_over


class SmallLM(nn.Module):
    """In place of a language model of transformers, and called as one: the attention mask is its third argument.

    Each output depends on all real tokens so far, and on the positions that it is given. There is dropout.

    Attributes:
        steps: how often the optimiser of `learner` has made a step.
    """

    def __init__(self, weights: Mapping[str, Tensor]):
        super().__init__()
        n_tokens, width = weights["tokens.weight"].shape
        self.tokens = nn.Embedding(n_tokens, width)
        self.positions = nn.Embedding(len(weights["positions.weight"]), width)
        self.lm_head = nn.Linear(width, n_tokens)
        self.dropout = nn.Dropout(0.1)
        self.load_state_dict(weights)
        self.steps = 0
        self.eval()

    @property
    def device(self) -> torch.device:
        return self.lm_head.weight.device

    def forward(
        self, input_ids, past_key_values=None, attention_mask=None, position_ids=None, logits_to_keep=0, **_
    ):
        from transformers.modeling_outputs import CausalLMOutput

        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        read = (self.tokens(input_ids) + self.positions(position_ids)) * mask.unsqueeze(-1)
        hidden = self.dropout(read.cumsum(dim=1) / mask.cumsum(dim=1).clamp(min=1).unsqueeze(-1))
        return CausalLMOutput(logits=self.lm_head(hidden)[:, -logits_to_keep:])


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
