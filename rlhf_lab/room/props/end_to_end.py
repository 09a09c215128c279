"""Props of the examinations in `end_to_end.py`: what `train_ppo` is handed, and notes of what it does with it."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...checkpoints import ShippedReward


class FlatLM(nn.Module):
    """A language model with the same distribution over the tokens in every state.

    Args:
        logits: of each token, `[vocab]`.
    """

    def __init__(self, logits: Tensor):
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def generate(self, input_ids: Tensor, max_new_tokens: int, **options: Any) -> Tensor:
        size = (len(input_ids), max_new_tokens)
        drawn = torch.multinomial(self.logits.detach().softmax(dim=0), size[0] * size[1], replacement=True)
        return torch.cat([input_ids, drawn.reshape(size)], dim=1)


class FlatPolicy(nn.Module):
    """In place of a language model with a value head: one distribution and one value for all states, and quick.

    Args:
        logits: of each token, `[vocab]`.
        value: of each state.
    """

    def __init__(self, logits: Tensor, value: float):
        super().__init__()
        self.lm = FlatLM(logits)
        self.value = nn.Parameter(torch.tensor(value))
        self.eval()

    def forward(self, input_ids, attention_mask, position_ids=None, logits_to_keep=0):
        logits = self.lm.logits.expand(*input_ids.shape, -1)[:, -logits_to_keep:]
        return logits, self.value.expand(input_ids.shape)


class WeightedMean:
    """A reward: mean over the real tokens of a text of a weight for each.

    Args:
        weights: `[vocab]`.
    """

    def __init__(self, weights: Tensor):
        self.weights = weights

    def __call__(self, full_ids: Tensor, full_mask: Tensor, /) -> Tensor:
        return (self.weights[full_ids] * full_mask).sum(dim=1) / full_mask.sum(dim=1)


class LikingReward:
    """A reward to train on: how much a text has of the tokens that somebody likes, and half of the shipped reward model.

    Args:
        liking: of each token, `[vocab]`.
        device: of the ids and masks that it is going to be asked about.
    """

    def __init__(self, liking: Tensor, device: str = "cpu"):
        self.liked = WeightedMean(liking.to(device))
        self._shipped = ShippedReward()
        self._shipped.model.to(device)

    def __call__(self, full_ids: Tensor, full_mask: Tensor, /) -> Tensor:
        return self.liked(full_ids, full_mask) + 0.5 * self._shipped(full_ids, full_mask)


class Run:
    """Notes of one run. It stands between the loop and a reward function, and behind the loop's optimiser.

    Args:
        other_seed: of Python's and numpy's random numbers after each call of the reward; None: they go on.

    Attributes:
        events: in their order, "sampled" (the reward was asked), "updated" (the optimiser made a step) and "told"
            (`on_step` was called).
        sampled: ids, mask and scores of each call of the reward.
        told: arguments of each call of `on_step`.
    """

    def __init__(
        self,
        optim: torch.optim.Optimizer,
        reward_fn: Callable[[Tensor, Tensor], Tensor],
        other_seed: int | None = None,
    ):
        self._reward_fn, self._other_seed = reward_fn, other_seed
        self.events: list[str] = []
        self.sampled: list[dict[str, Tensor]] = []
        self.told: list[tuple] = []
        optim.register_step_post_hook(lambda *_: self.events.append("updated"))

    def reward(self, full_ids: Tensor, full_mask: Tensor, /) -> Tensor:
        self.events.append("sampled")
        scores = self._reward_fn(full_ids, full_mask)
        self.sampled.append({"ids": full_ids.clone(), "mask": full_mask.clone(), "scores": scores.clone()})
        if self._other_seed is not None:
            random.seed(self._other_seed)
            np.random.seed(self._other_seed)
        return scores

    def on_step(self, *arguments: Any) -> None:
        self.events.append("told")
        self.told.append(arguments)

    def notes(self) -> dict[str, list]:
        return {"events": self.events, "sampled": self.sampled, "told": self.told}
