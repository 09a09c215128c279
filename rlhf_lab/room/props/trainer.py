"""Props of the examinations in `trainer.py`: small policies that note what a trainer reads, and a trainer on them."""

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ...checks.models import reading_lm
from ...checks.training import leave_over
from .ppo_loop import SmallPolicy
from .shared import as_floats, examined

PAD_ID = 0  # which is EOS, too


def tokenizer() -> SimpleNamespace:
    """All that a trainer asks of a tokenizer."""
    return SimpleNamespace(pad_token_id=PAD_ID, eos_token_id=PAD_ID)


# --- 8.2 AdaptiveKLController ---------------------------------------------------------------------


def prices(settings: list[dict[str, float]], updates: list[list[tuple[float, int]]]) -> list[list[float]]:
    """For each controller the price at the start and after each of its updates, as floats; all of them exist from the
    start, and their updates take turns."""
    made = [examined("trainer").AdaptiveKLController(**each) for each in settings]
    found = [[as_floats(controller.value)] for controller in made]
    for turn in range(max(map(len, updates))):
        for controller, told, prices in zip(made, updates, found):
            if turn < len(told):
                controller.update(*told[turn])
                prices.append(as_floats(controller.value))
    return found


# --- 8.3 PPOTrainer -------------------------------------------------------------------------------


class Speaker(nn.Module):
    """In place of a policy that is to respond: the micro model alone."""

    def __init__(self):
        super().__init__()
        self.lm = copy.deepcopy(reading_lm())


def speaking_trainer() -> Any:
    """A trainer of the package that is examined, which can be asked to generate."""
    module = examined("trainer")
    config = module.PPOConfig(batch_size=1, mini_batch_size=1)
    return module.PPOTrainer(config, Speaker(), nn.Linear(1, 1), tokenizer())


def generate(trainer: Any, query: Tensor | list[Tensor], **settings: Any) -> tuple[Any, Tensor, bool]:
    """What a trainer answers, the query as it is afterwards (of a list, its first one), and whether an answer carries a
    gradient."""
    returned = trainer.generate(query, **settings)
    first = returned[0] if isinstance(returned, (list, tuple)) else returned
    return (
        returned,
        query[0] if isinstance(query, list) else query,
        bool(getattr(first, "requires_grad", False)),
    )


class NotedPolicy(SmallPolicy):
    """A small policy that notes each pass.

    Attributes:
        noted: of each pass the ids, the mask, whether gradients are recorded, whether dropout is on, and how many steps the
            optimiser had made.
    """

    def __init__(self, weights: Mapping[str, Tensor]):
        super().__init__(weights)
        self.noted: list[dict[str, Any]] = []

    def forward(self, input_ids, attention_mask, position_ids=None, logits_to_keep=0):
        self.noted.append({
            "ids": input_ids.clone(),
            "mask": attention_mask.long().clone(),
            "recorded": torch.is_grad_enabled(),
            "training": self.training,
            "steps": self.steps,
        })  # fmt: skip
        return super().forward(input_ids, attention_mask, position_ids, logits_to_keep)


class NotedPrice:
    """In place of the controller: one price after the other, whatever it is told."""

    def __init__(self, prices: list[float]):
        self._later = list(prices)
        self.value = self._later.pop(0)
        self.told: list[Any] = []

    def update(self, current_kl, n_steps):
        self.told.append([as_floats(current_kl), as_floats(n_steps)])
        if self._later:
            self.value = self._later.pop(0)


class NotedWriter:
    """In place of TensorBoard's writer."""

    def __init__(self):
        self.written: list[Any] = []

    def add_scalar(self, name, value, step):
        self.written.append([name, as_floats(value), step])

    def flush(self):
        pass


def trial(
    weights: Mapping[str, Tensor],
    ref_weights: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    queries: list[Tensor],
    responses: list[Tensor],
    scores: list[Tensor],
    prices: list[float],
    lr: float,
    n_steps: int,
    left_over: float | None,
) -> dict[str, Any]:
    """Let a trainer make steps on one batch, and say what was seen.

    Args:
        prices: that the controller has, one after the other; where there is none, the trainer has its own controller.
        left_over: a gradient that every weight has before.
    """
    module = examined("trainer")
    policy, reference = NotedPolicy(weights), NotedPolicy(ref_weights)
    optimizer = torch.optim.SGD(policy.parameters(), lr=lr)
    gradients: list[Tensor] = []

    def note(*_):
        policy.steps += 1
        found = [torch.zeros_like(w) if w.grad is None else w.grad for w in policy.parameters()]
        gradients.append(torch.cat([gradient.flatten() for gradient in found]).clone())

    optimizer.register_step_post_hook(note)
    trainer = module.PPOTrainer(module.PPOConfig(**settings), policy, reference, tokenizer(), optimizer)
    price = NotedPrice(prices) if prices else None
    if price is not None:
        trainer.kl_ctl = price
    writer = trainer._writer = NotedWriter()
    leave_over(policy, left_over)
    stats = [trainer.step(queries, responses, scores) for _ in range(n_steps)]
    return {
        "stats": [as_floats(dict(each)) if isinstance(each, Mapping) else None for each in stats],
        "price": as_floats(trainer.kl_ctl.value),
        "told": [] if price is None else price.told,
        "written": writer.written,
        "passes": policy.noted,
        "passes of the reference": len(reference.noted),
        "recorded by the reference": any(each["recorded"] for each in reference.noted),
        "gradients": gradients,
        "weights": policy.state_dict(),
        "reference": reference.state_dict(),
        "batch": (queries, responses, scores),
    }  # fmt: skip
