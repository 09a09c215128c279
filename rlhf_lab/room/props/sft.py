"""Props of the examinations in `sft.py`."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from ...backbones import TINY, quiet_transformers
from ...checks.training import recorded_steps
from .shared import as_floats, examined

# --- 1.2 SFTDataset -------------------------------------------------------------------------------


class Rows(Sequence):
    """Demonstrations as a `datasets.Dataset` holds them: each row is made when it is asked for, by number; a text
    as index gives a column, a slice a dictionary of columns."""

    def __init__(self, rows: list[dict]):
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: int | str | slice) -> dict | list:
        if isinstance(key, str):
            return [row[key] for row in self._rows]
        if isinstance(key, slice):
            return {name: [row[name] for row in self._rows[key]] for name in self._rows[0]}
        return dict(self._rows[key])


def length(dataset) -> int:
    return len(dataset)


def first_batch(dataset, size: int) -> dict[str, Tensor]:
    """What a `DataLoader` makes of the first rows."""
    return next(iter(torch.utils.data.DataLoader(dataset, batch_size=size)))


# --- 1.4 train_sft --------------------------------------------------------------------------------


class SmallLM(nn.Module):
    """A language model of a few numbers, called as transformers' GPT-2 is: the attention mask is its third argument.

    What it reads at a position is the mean of the embeddings so far, of those that the mask lets through.

    Args:
        embedding [vocab, width], head [vocab, width], bias [vocab]: its weights.
        scale: of the logits, and so of the gradient.
    """

    def __init__(self, embedding: Tensor, head: Tensor, bias: Tensor, scale: float):
        super().__init__()
        self.embedding, self.head, self.bias = (nn.Parameter(w.clone()) for w in (embedding, head, bias))
        self.scale = scale
        self.dropout = nn.Dropout(0.0)  # whether it is switched on is seen, and no number depends on it
        self.passes: list[dict] = []

    def forward(self, input_ids, past_key_values=None, attention_mask=None, labels=None, **options):
        from transformers.modeling_outputs import CausalLMOutput

        weights_on, ids_on = self.head.device.type, input_ids.device.type
        training = all(module.training for module in self.modules())
        self.passes.append({"training": training, "weights on": weights_on, "ids on": ids_on})
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        seen = mask.unsqueeze(-1)
        read = (self.embedding[input_ids] * seen).cumsum(dim=1) / seen.cumsum(dim=1).clamp(min=1)
        logits = self.scale * (self.dropout(read) @ self.head.T + self.bias)
        if labels is None:
            return CausalLMOutput(logits=logits)
        predictions, targets = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        return CausalLMOutput(nn.functional.cross_entropy(predictions, targets), logits)


def small_lm(weights: dict[str, Tensor], scale: float, training: bool) -> SmallLM:
    return SmallLM(**weights, scale=scale).train(training)


def train_small(model: SmallLM, batches: Iterable[dict[str, Tensor]], n_epochs: int, lr: float) -> dict:
    """Train it with the student's loop, and say what was seen: the loop's answer, as it came and with floats for numbers,
    and each step of an optimiser.

    An optimiser is told by the number of the step at which it was first seen; the rest of a step is that of
    `checks.training.Watched`.
    """
    with recorded_steps(watched=model) as steps:
        losses = examined("sft").train_sft(model, batches, n_epochs, lr, "cpu")
    optimizers = [step.optimizer for step in steps]
    return {
        "losses": losses,
        "numbers": as_floats(losses),
        "steps": [
            {"kind": step.kind, "optimizer": optimizers.index(step.optimizer), **vars(step.watched)}
            for step in steps
        ],
        "passes": model.passes,
        "weights": model.state_dict(),
    }


def tiny_lm() -> nn.Module:
    """The backbone that is shipped with the course, as transformers loads it: in eval mode."""
    from transformers import AutoModelForCausalLM

    quiet_transformers()
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
