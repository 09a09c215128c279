"""A checkpoint in the middle of PPO: everything that the next step depends on, and no pickle."""

import shutil
from pathlib import Path

import torch
from torch import Tensor

from .runs import CHECKPOINTS, read_tensors, replace_folder, write_tensors


def save_checkpoint(
    stage_folder: Path, step: int, policy: torch.nn.Module, optim: torch.optim.Optimizer
) -> Path:
    """Keep weights, optimiser moments and random generators as they are after `step` steps.

    The checkpoint before is deleted once the new one is whole.
    """
    previous = latest_checkpoint(stage_folder)
    path = stage_folder / f"step-{step:05d}"
    random_state = {"cpu": torch.get_rng_state()}
    device = _device(policy)
    if device.type == "cuda":
        random_state["cuda"] = torch.cuda.get_rng_state(device)
    with replace_folder(path) as folder:
        write_tensors(folder / "policy.safetensors", policy.state_dict())
        write_tensors(folder / "optimizer.safetensors", _flatten(optim.state_dict()["state"]))
        write_tensors(folder / "random.safetensors", random_state)
    if previous is not None and previous != path:
        shutil.rmtree(previous)
    return path


def latest_checkpoint(stage_folder: Path) -> Path | None:
    return max(stage_folder.glob(CHECKPOINTS), default=None)


def load_checkpoint(path: Path, policy: torch.nn.Module, optim: torch.optim.Optimizer) -> int:
    """Put policy, optimiser and random generators back; returns the number of steps done.

    Raises:
        LabError: when a file is damaged.
    """
    policy.load_state_dict(read_tensors(path / "policy.safetensors"))
    state = optim.state_dict()
    optim.load_state_dict({**state, "state": _unflatten(read_tensors(path / "optimizer.safetensors"))})
    random_state = read_tensors(path / "random.safetensors")
    torch.set_rng_state(random_state["cpu"])
    device = _device(policy)
    if "cuda" in random_state and device.type == "cuda":
        torch.cuda.set_rng_state(random_state["cuda"], device)
    return int(path.name.removeprefix("step-"))


def _device(policy: torch.nn.Module) -> torch.device:
    return next(policy.parameters()).device


def _flatten(state: dict[int, dict[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{index}.{name}": tensor for index, entry in state.items() for name, tensor in entry.items()}


def _unflatten(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".")
        # a copy: the loaded tensor is a window on the file, and the file is deleted with the next checkpoint
        state.setdefault(int(index), {})[name] = tensor.clone()
    return state
