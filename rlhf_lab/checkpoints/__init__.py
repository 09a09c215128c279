"""Where each notebook starts from: `tiny` after SFT and its reward model, trained by the solutions and shipped.

So a student who is stuck in one stage can do the next. `python -m authoring checkpoints` trains them again.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..runs import read_json

SFT = Path(__file__).parent / "sft"
REWARD = Path(__file__).parent / "reward_model"


class ShippedReward:
    """The shipped reward model as a reward function, on the scale of its training texts (mean 0, deviation 1)."""

    def __init__(self):
        from transformers import AutoModelForSequenceClassification

        model = AutoModelForSequenceClassification.from_pretrained(REWARD, dtype=torch.float32)
        self.model = model.eval().requires_grad_(False)
        self._scale = read_json(REWARD / "scale.json")

    @torch.no_grad()
    def __call__(self, full_ids: Tensor, full_mask: Tensor) -> Tensor:
        texts = [ids[mask.bool()] for ids, mask in zip(full_ids, full_mask, strict=True)]
        hidden = self.model.base_model(pad_sequence(texts, batch_first=True)).last_hidden_state
        ends = torch.tensor([len(text) - 1 for text in texts])
        scores = self.model.score(hidden[torch.arange(len(texts)), ends]).squeeze(-1)
        return (scores - self._scale["mean"]) / self._scale["std"]
