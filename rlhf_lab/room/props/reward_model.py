"""Props of the examinations in `reward_model.py`."""

import tempfile
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ...backbones import TINY
from ...checks.models import random_gpt2
from ...checks.training import recorded_steps
from .shared import as_floats, examined

# --- RewardModel ----------------------------------------------------------------------------------

VOCABULARY, HIDDEN = 64, 24
COLUMNS = ("chosen_ids", "chosen_mask", "rejected_ids", "rejected_mask")


@cache
def backbone_folder(seed: int) -> str:
    """Where a random GPT-2 of two layers, 24 wide, is saved as a language model; it has no tokenizer."""
    folder = tempfile.mkdtemp(prefix="rlhf-backbone-")
    random_gpt2(seed, VOCABULARY, 32, HIDDEN, eos_id=0).save_pretrained(folder)
    return folder


@cache
def _built(seed: int) -> nn.Module:
    """What the student's `__init__` makes; made once, because loading takes the most time."""
    return examined("reward_model").RewardModel(backbone_folder(seed))


def weights_of_new(seed: int) -> dict[str, Tensor]:
    """The weights of a new reward model, by name."""
    return dict(_built(seed).named_parameters())  # a student's buffers are no weights


def scorer(seed: int, head: Tensor) -> nn.Module:
    """The reward model in eval mode with these weights `[1, hidden]` in its head, whatever the head is called."""
    model = _built(seed).eval()
    layer = next(m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == 1)
    with torch.no_grad():
        layer.weight.copy_(head)
        if layer.bias is not None:
            layer.bias.zero_()
    return model


# --- RMDataset ------------------------------------------------------------------------------------


def contents(dataset: Any) -> dict:
    """Length, count of dropped pairs (None where there is none) and every item of a data set."""
    n = len(dataset)
    return {
        "length": n,
        "dropped": getattr(dataset, "dropped", None),
        "items": [dataset[i] for i in range(n)],
    }


# --- train_rm -------------------------------------------------------------------------------------


class SmallScorer(nn.Module):
    """A reward model of a few numbers: reads the mean of the embeddings that the mask lets through.

    Attributes:
        passes: of each forward pass, whether all of the model was in training mode, and the devices of ids and weights.
    """

    def __init__(self, embeddings: Tensor, head: Tensor):
        super().__init__()
        self.backbone = nn.Embedding.from_pretrained(embeddings.clone(), freeze=False)
        self.v_head = nn.Linear(head.shape[1], 1, bias=False)
        self.v_head.weight = nn.Parameter(head.clone())
        self.dropout = nn.Dropout(0.0)  # whether it is switched on is seen, and no number depends on it
        self.passes: list[tuple[bool, str, str]] = []

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        training = all(module.training for module in self.modules())
        self.passes.append((training, input_ids.device.type, self.v_head.weight.device.type))
        seen = attention_mask.unsqueeze(-1)
        return self.v_head(self.dropout((self.backbone(input_ids) * seen).sum(1) / seen.sum(1)))[:, 0]

    def row(self) -> Tensor:
        """Every weight, in one row."""
        return torch.cat([weight.detach().flatten() for weight in self.parameters()])


def train_small(
    model: SmallScorer, batches: list[dict[str, Tensor]], n_epochs: int, lr: float, device: str = "cpu"
) -> dict:
    """Train it with the student's loop, and say what was seen: the loop's answer, as it came and with floats for numbers,
    and each step of an optimiser.

    An optimiser is told by the number of the step at which it was first seen.
    """
    before = model.row()
    with recorded_steps() as steps:
        history = examined("reward_model").train_rm(model, batches, n_epochs=n_epochs, lr=lr, device=device)
    optimizers = [step.optimizer for step in steps]
    return {
        "history": history,
        "numbers": as_floats(history),
        "steps": [
            {"gradient": step.gradient, "lrs": step.lrs, "kind": step.kind, "optimizer": optimizers.index(step.optimizer)}
            for step in steps
        ],
        "passes": model.passes,
        "before": before,
        "weights": model.row(),
    }  # fmt: skip


def loader(columns: dict[str, Tensor], batch_size: int) -> DataLoader:
    """A loader of pairs in this order; the last batch may be smaller."""
    n = len(columns[COLUMNS[0]])
    return DataLoader([{name: column[i] for name, column in columns.items()} for i in range(n)], batch_size)


def tiny_scorer() -> nn.Module:
    """A reward model on `tiny`, with a head that has learnt nothing."""
    return examined("reward_model").RewardModel(str(TINY))
