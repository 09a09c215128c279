"""Props of the examinations in `sft.py`."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ...backbones import TINY, quiet_transformers

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


def items(dataset, indices: list[int]) -> list:
    return [dataset[index] for index in indices]


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
        self.passes: list[dict] = []

    def forward(self, input_ids, past_key_values=None, attention_mask=None, labels=None, **options):
        from transformers.modeling_outputs import CausalLMOutput

        weights_on, ids_on = self.head.device.type, input_ids.device.type
        self.passes.append({"training": self.training, "weights on": weights_on, "ids on": ids_on})
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        seen = mask.unsqueeze(-1)
        read = (self.embedding[input_ids] * seen).cumsum(dim=1) / seen.cumsum(dim=1).clamp(min=1)
        logits = self.scale * (read @ self.head.T + self.bias)
        if labels is None:
            return CausalLMOutput(logits=logits)
        predictions, targets = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        return CausalLMOutput(nn.functional.cross_entropy(predictions, targets), logits)


def small_lm(weights: dict[str, Tensor], scale: float, training: bool) -> SmallLM:
    return SmallLM(**weights, scale=scale).train(training)


class Loader:
    """Batches that can be gone through, again and again, and counted; they are fresh ones each time."""

    def __init__(self, batches: list[dict[str, Tensor]]):
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batch in self._batches:
            yield {name: column.clone() for name, column in batch.items()}


class StepNotes:
    """Notes of every step that an optimiser takes, from when it is made until `close`.

    Of each step: the optimiser's class in torch, which optimiser it is (counted from 0), and for each weight of
    `model`, by name, its learning rate, its value before and after, and the gradient that the step moved along.
    """

    def __init__(self, model: nn.Module):
        self._weights = dict(model.named_parameters())
        self._optimizers: list[Optimizer] = []
        self._before: dict[int, dict[str, Tensor]] = {}
        self._steps: list[dict] = []
        self._hooks = [
            register_optimizer_step_pre_hook(self._enter),
            register_optimizer_step_post_hook(self._leave),
        ]

    def close(self) -> list[dict]:
        for hook in self._hooks:
            hook.remove()
        return self._steps

    def _enter(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        self._before[id(optimizer)] = self._values()

    # Gradients are read behind the step: before it, a closure or a hook of the student's may not have made them yet.
    def _leave(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        before = self._before.pop(id(optimizer), None)
        if before is None:  # a `step()` around that of a parent class, which is noted already
            return
        if not any(optimizer is other for other in self._optimizers):
            self._optimizers.append(optimizer)
        number = next(i for i, other in enumerate(self._optimizers) if other is optimizer)
        lrs = {
            id(weight): float(group["lr"]) for group in optimizer.param_groups for weight in group["params"]
        }
        classes = [kind.__name__ for kind in type(optimizer).__mro__ if kind.__module__.startswith("torch.")]
        self._steps.append(
            {
                "kind": classes[0],
                "optimizer": number,
                "lr": {name: lrs.get(id(weight)) for name, weight in self._weights.items()},
                "before": before,
                "after": self._values(),
                "gradient": {
                    name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
                    for name, weight in self._weights.items()
                },
            }
        )

    def _values(self) -> dict[str, Tensor]:
        return {name: weight.detach().clone() for name, weight in self._weights.items()}


def take_notes(model: nn.Module) -> StepNotes:
    return StepNotes(model)


def hand_over(notes: StepNotes) -> list[dict]:
    """The notes, which end here."""
    return notes.close()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in model.named_parameters()}


def passes_of(model: SmallLM) -> list[dict]:
    return model.passes


def tiny_lm() -> nn.Module:
    """The backbone that is shipped with the course, as transformers loads it: in eval mode."""
    from transformers import AutoModelForCausalLM

    quiet_transformers()
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
