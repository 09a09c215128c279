"""Props of the examinations in `ppo_loop.py`."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ...checks.training import leave_over
from .shared import counting_sgd


class SmallPolicy(nn.Module):
    """In place of a language model with a value head: each output depends on all real tokens so far.

    It takes the arguments of a policy, and counts positions from the mask as one. There is dropout.

    Attributes:
        passes: how often the backbone has read something.
        steps: how often the optimiser of `learner` has made a step.
    """

    def __init__(self, weights: Mapping[str, Tensor]):
        super().__init__()
        n_tokens, width = weights["lm.0.weight"].shape
        n_positions = len(weights["lm.1.weight"])
        tokens, positions = nn.Embedding(n_tokens, width), nn.Embedding(n_positions, width)
        self.lm = nn.ModuleList([tokens, positions, nn.Linear(width, n_tokens)])
        self.value_head = nn.Linear(width, 1)
        self.dropout = nn.Dropout(0.1)
        self.load_state_dict(weights)
        self.passes = self.steps = 0
        self.eval()

    def forward(self, input_ids, attention_mask, position_ids=None, logits_to_keep=0):
        self.passes += 1
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        if position_ids is None:
            position_ids = (mask.cumsum(dim=-1) - 1).clamp(min=0)
        tokens, positions, lm_head = self.lm
        hidden = (tokens(input_ids) + positions(position_ids)) * mask.unsqueeze(-1)
        hidden = self.dropout(hidden.cumsum(dim=1) / mask.cumsum(dim=1).clamp(min=1).unsqueeze(-1))
        return lm_head(hidden)[:, -logits_to_keep:], self.value_head(hidden).squeeze(-1)


class WeightedReward:
    """A reward that depends on every token that the mask lets through, and on its distance from the end of the row.

    Args:
        weights: of each token, `[vocab]`.
    """

    def __init__(self, weights: Tensor):
        self.weights = weights.clone().requires_grad_()  # as those of a reward model in training

    def __call__(self, full_ids: Tensor, full_mask: Tensor, /) -> Tensor:
        distance = torch.arange(full_ids.shape[1], 0, -1)
        return (self.weights[full_ids] * full_mask * distance).sum(dim=1)


def set_up(policy: nn.Module, weights: Mapping[str, Tensor], training: bool = False) -> None:
    """Give a policy these weights, and this mode."""
    with torch.no_grad():
        policy.load_state_dict(weights)
    policy.train(training)


def shrink(policy: nn.Module, n_tokens: int) -> None:
    """Leave a policy the first tokens of its vocabulary: sampling is then quick."""
    policy.lm.resize_token_embeddings(n_tokens)


def set_apart(policy: nn.Module) -> None:
    """Give a policy's LM head a matrix of its own: it is no longer that of the embedding."""
    policy.lm.lm_head.weight = nn.Parameter(policy.lm.lm_head.weight.detach().clone())


def modes(policy: nn.Module) -> list[bool]:
    """Whether the policy, its language model and its value head are in training mode."""
    return [module.training for module in (policy, policy.lm, policy.value_head)]


def sgd(policy: nn.Module, lr: float, momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(policy.parameters(), lr=lr, momentum=momentum)


def adamw(policy: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(policy.parameters(), lr=lr)


def adamw_with_quick_critic(policy: nn.Module, lr: float, lr_of_critic: float) -> torch.optim.Optimizer:
    groups = [{"params": policy.lm.parameters(), "lr": lr}]
    return torch.optim.AdamW([*groups, {"params": policy.value_head.parameters(), "lr": lr_of_critic}])


def learner(
    weights: Mapping[str, Tensor], training: bool, left_over: float | None, lr: float, momentum: float
) -> tuple[SmallPolicy, torch.optim.Optimizer]:
    """A small policy in this mode, and the optimiser of its weights.

    Args:
        left_over: gradient that every weight has, as if from an earlier step; None: no gradient.
    """
    policy = SmallPolicy(weights).train(training)
    leave_over(policy, left_over)
    return policy, counting_sgd(policy, lr, momentum)


def inference_tensors(rollout: object) -> list[str]:
    """Names of the tensors in a rollout that were made in inference mode: no gradient can be computed from them."""
    return [
        name for name, value in vars(rollout).items() if isinstance(value, Tensor) and value.is_inference()
    ]
