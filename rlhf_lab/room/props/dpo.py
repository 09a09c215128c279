"""Props of the examinations in `dpo.py`."""

import copy
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor, nn

from ...backbones import load_causal_lm
from ...checkpoints import SFT
from ...checks.models import random_gpt2
from ...checks.training import recorded_steps
from .sft import SmallLM
from .shared import as_floats, examined

# --- sequence_logprobs ----------------------------------------------------------------------------

VOCABULARY = 64


@cache
def _random_lm(seed: int) -> nn.Module:
    return random_gpt2(seed, VOCABULARY, 32, 24, eos_id=0).eval()


def language_model(seed: int, sharp: float = 1.0) -> nn.Module:
    """A random GPT-2 of two layers in eval mode, the same in every process.

    Args:
        sharp: factor on the logits.
    """
    model = copy.deepcopy(_random_lm(seed))
    with torch.no_grad():
        model.transformer.ln_f.weight.mul_(sharp)
    return model


def sums(model: nn.Module, batches: list[tuple[Tensor, Tensor, Tensor]]) -> list[Tensor]:
    """What the student's function returns for each `(input_ids, attention_mask, labels)`."""
    return [examined("dpo").sequence_logprobs(model, *batch) for batch in batches]


# --- dpo_loss -------------------------------------------------------------------------------------


def losses(calls: list[tuple]) -> list:
    """What the student's loss returns for each `(policy_chosen, policy_rejected, ref_chosen, ref_rejected[, beta])`."""
    return [examined("dpo").dpo_loss(*call) for call in calls]


# --- train_dpo ------------------------------------------------------------------------------------


def train_small(
    weights: tuple[dict[str, Tensor], dict[str, Tensor]],
    scale: float,
    training: bool,
    batches: Iterable[dict[str, Tensor]],
    n_epochs: int,
    lr: float,
    beta: float,
    device: str = "cpu",
) -> dict:
    """Train a small policy beside a small frozen reference with the student's loop, and say what was seen.

    Args:
        weights: of policy and reference, by name.
        scale: of their logits.
        training: whether both come in training mode.

    Returns:
        The loop's answer, as it came and with floats for numbers; each step of an optimiser, with the number of weights
        that it holds (an optimiser is told by the number of the step at which it was first seen; the rest is that of
        `checks.training.Watched`); the passes of both models and their weights afterwards. Where the loop ended with an
        exception, on a device that holds no numbers, there is no answer.
    """
    policy, reference = (SmallLM(**each, scale=scale).train(training) for each in weights)
    reference.requires_grad_(False)
    seen = {"policy passes": policy.passes, "reference passes": reference.passes}
    train = examined("dpo").train_dpo
    if device == "meta":
        try:
            train(policy, reference, batches, n_epochs=n_epochs, lr=lr, device=device, beta=beta)
        except Exception:  # nothing can be read from "meta"
            pass
        return seen
    with recorded_steps(watched=policy) as steps:
        history = train(policy, reference, batches, n_epochs=n_epochs, lr=lr, device=device, beta=beta)
    optimizers = [step.optimizer for step in steps]
    return seen | {
        "history": history,
        "numbers": as_floats(history),
        "steps": [
            {
                "kind": step.kind,
                "optimizer": optimizers.index(step.optimizer),
                "n weights": step.weights,
                **vars(step.watched),
            }
            for step in steps
        ],
        "policy": policy.state_dict(),
        "reference": reference.state_dict(),
    }


def sft_lm(frozen: bool) -> nn.Module:
    """The shipped model after SFT, in eval mode."""
    return load_causal_lm(SFT).requires_grad_(not frozen)
