"""The door for what taught functions return: a wrong type or shape is one sentence, not a traceback from in here."""

from numbers import Real

from torch import Tensor

from .errors import LabError

PPO_INFO = ("policy_loss", "value_loss", "approx_kl", "clipfrac", "mean_reward", "kl_to_ref")
PER_TOKEN = ("old_logprobs", "ref_logprobs", "old_values", "response_mask")


def checked_losses(losses, n_steps: int) -> list[float]:
    """What `train_sft` returned: one number a step."""
    if (
        not isinstance(losses, list)
        or len(losses) != n_steps
        or not all(isinstance(loss, Real) for loss in losses)
    ):
        raise LabError(
            f"train_sft returned {_in_words(losses)}, not a list of {n_steps} numbers, one loss per step"
        )
    return [float(loss) for loss in losses]


def checked_rm_history(history, n_steps: int) -> list[dict[str, float]]:
    """What `train_rm` returned: loss and accuracy of each step."""
    if not isinstance(history, list) or len(history) != n_steps:
        raise LabError(
            f"train_rm returned {_in_words(history)}, not a list of {n_steps} dictionaries, one per step"
        )
    return [_checked_info("train_rm", info, ("loss", "accuracy")) for info in history]


def checked_ppo_info(info) -> dict[str, float]:
    """What `ppo_step` returned."""
    return _checked_info("ppo_step", info, PPO_INFO)


def check_rollout(rollout, batch_size: int) -> None:
    """What `rollout` returned: `[batch, response]` tensors, at least one valid token in each row."""
    mask = getattr(rollout, "response_mask", None)
    if not isinstance(mask, Tensor) or mask.ndim != 2 or len(mask) != batch_size:
        raise LabError(f"rollout: response_mask is {_in_words(mask)}, not a tensor [{batch_size}, response]")
    for name in PER_TOKEN:
        tensor = getattr(rollout, name, None)
        if not isinstance(tensor, Tensor) or tensor.shape != mask.shape:
            raise LabError(f"rollout: {name} is {_in_words(tensor)}, and response_mask is {list(mask.shape)}")
    for name in ("full_ids", "full_mask"):
        tensor = getattr(rollout, name, None)
        if (
            not isinstance(tensor, Tensor)
            or tensor.shape[:-1] != (batch_size,)
            or tensor.shape[1] <= mask.shape[1]
        ):
            raise LabError(
                f"rollout: {name} is {_in_words(tensor)}, not a tensor [{batch_size}, prompt + response]"
            )
    if (empty := (mask != 0).sum(-1) == 0).any():
        row = int(empty.nonzero()[0])
        raise LabError(f"rollout: row {row} of response_mask has no valid token; the first EOS counts as one")


def _checked_info(function: str, info, names: tuple[str, ...]) -> dict[str, float]:
    if not isinstance(info, dict):
        raise LabError(f"{function} returned {_in_words(info)}, not a dictionary with {', '.join(names)}")
    for name in names:
        if name not in info:
            raise LabError(
                f"{function} returned no {name}; it returned {', '.join(map(str, info)) or 'nothing'}"
            )
    for name, value in info.items():
        if not isinstance(value, Real) and not (isinstance(value, Tensor) and value.numel() == 1):
            raise LabError(f"{function} returned {name} as {_in_words(value)}, not as one number")
    return {name: float(value) for name, value in info.items()}


def _in_words(thing) -> str:
    if isinstance(thing, Tensor):
        return f"a tensor {list(thing.shape)}"
    if isinstance(thing, (list, tuple)):
        kinds = sorted({type(entry).__name__ for entry in thing})
        return f"a {type(thing).__name__} of {len(thing)}" + (f" ({', '.join(kinds)})" if kinds else "")
    return "nothing (None)" if thing is None else f"a {type(thing).__name__}"
