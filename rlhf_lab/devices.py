"""Where the tensors live and in which precision they are multiplied."""

from dataclasses import dataclass

import torch

from .errors import LabError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Compute:
    """A device and a dtype.

    Weights, optimiser state and log-probabilities stay in float32; with bfloat16 the matrix products run in it, by
    autocast, so that the taught code needs no casts.
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

    def __str__(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        threads = f", {torch.get_num_threads()} threads" if self.device.type == "cpu" else ""
        return f"{self.device} ({name}{threads}), {str(self.dtype).removeprefix('torch.')}"


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
