"""Where the tensors live and in which precision they are multiplied."""

from dataclasses import dataclass
from types import MethodType

import torch
from torch import Tensor, nn

from .errors import LabError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Compute:
    """A device and a dtype.

    Weights, gradients and optimiser state stay in float32; with bfloat16 the matrix products run in it, by autocast,
    so that the taught code needs no casts. What is read off a model leaves it in float32 where `reads_in_float32` has
    been over it.
    """

    device: torch.device
    dtype: torch.dtype

    def autocast(self) -> torch.autocast:
        # without its cache: the cache lives as long as the context, and a whole training runs inside this one, so
        # that every forward pass would go on multiplying with the weights as they were at the first step
        return torch.autocast(
            self.device.type,
            dtype=torch.bfloat16,
            enabled=self.dtype == torch.bfloat16,
            cache_enabled=False,
        )

    @property
    def precision(self) -> str:
        """The name of the dtype, one of `DTYPES`."""
        return str(self.dtype).removeprefix("torch.")

    def free_and_total(self) -> tuple[int, int] | None:
        """Free and total memory of the GPU in bytes; None on a CPU."""
        return torch.cuda.mem_get_info(self.device) if self.device.type == "cuda" else None

    def __str__(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        threads = f", {torch.get_num_threads()} threads" if self.device.type == "cpu" else ""
        return f"{self.device} ({name}{threads}), {self.precision}"


def choose_compute(device: str = "auto", dtype: str = "auto") -> Compute:
    """`cuda` with bfloat16 when there is a GPU, else the CPU with float32.

    Raises:
        LabError: for a device that this machine lacks or a dtype that is not one of `DTYPES`.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise LabError(f"there is no device called {device!r}: use auto, cpu, cuda or cuda:N") from None
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise LabError("device cuda was asked for, but torch sees no GPU here: use --device cpu")
        if (chosen.index or 0) >= torch.cuda.device_count():
            raise LabError(f"device {device} was asked for, but there are {torch.cuda.device_count()} GPUs")
    elif chosen.type != "cpu":
        raise LabError(f"device {device!r} is not supported: use auto, cpu, cuda or cuda:N")
    if dtype == "auto":
        dtype = "bfloat16" if chosen.type == "cuda" else "float32"
    if dtype not in DTYPES:
        raise LabError(f"dtype {dtype!r} is not supported: use auto, {' or '.join(DTYPES)}")
    return Compute(chosen, DTYPES[dtype])


HEADS = ("value_head", "v_head")  # that read one number off a hidden state, as the contracts name them


def reads_in_float32(model: nn.Module) -> nn.Module:
    """Let logits, values and scores leave `model` in float32 under autocast too; returns `model`.

    A logit in bfloat16 has 8 significant bits, and on a CPU autocast leaves `log_softmax` in bfloat16, so that every
    log-probability, ratio and loss would have 8 as well. What the model returns is therefore cast once, behind the LM head:
    its product, the largest of a small model, stays in bfloat16. `value_head` and `v_head` are small, so they run in
    float32 as a whole (docs/gpu.md has the rounding errors). Without autocast nothing changes.

    Copies of the model, by `copy.deepcopy`, do the same.

    Args:
        model: a causal language model, a policy, or a reward model; what it calls inside is its own affair.
    """
    for name in HEADS:
        if (head := getattr(model, name, None)) is not None:
            head.forward = MethodType(_outside_autocast, head)
    model.register_forward_hook(_returns_float32)
    return model


def _outside_autocast(head: nn.Module, *args, **kwargs) -> Tensor:
    args = [_in_float32(value) for value in args]
    kwargs = {name: _in_float32(value) for name, value in kwargs.items()}
    with torch.autocast(next(head.parameters()).device.type, enabled=False):
        return type(head).forward(head, *args, **kwargs)


def _returns_float32(_model, _inputs, output):
    if hasattr(output, "logits"):
        output.logits = _in_float32(output.logits)
        return output
    if isinstance(output, tuple):
        return tuple(_in_float32(value) for value in output)
    return _in_float32(output)


def _in_float32(value):
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
