"""What a room needs besides in order to compute on a GPU (NVIDIA's, on Linux), and whether it can.

CUDA does not survive a fork: the warm parent never touches the card, and each child starts CUDA for itself, before it
is confined and before student code is there, since the driver opens a socket and files of its own.
"""

import ctypes
from glob import glob
from pathlib import Path

DEVICE = "cuda"
# Where the driver's library looks for the card and for the memory next to it, besides what Python needs.
SYSTEM_FOLDERS = ("/sys/devices", "/sys/bus/pci")
ENVIRONMENT = {
    "CUDA_CACHE_DISABLE": "1",  # it would be written into the home folder
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking whether there is a card would start CUDA in the warm parent
}
VARIABLES = (*ENVIRONMENT, "CUDA_VISIBLE_DEVICES")  # that reach a child with a GPU


def device_files(folder: str = "/dev") -> list[str]:
    """The driver's device files: one for each card, and the two that every card needs; none where one is missing."""
    cards = sorted(glob(f"{folder}/nvidia[0-9]*"))
    shared = [path for path in (f"{folder}/nvidiactl", f"{folder}/nvidia-uvm") if Path(path).exists()]
    return [*cards, *shared] if cards and len(shared) == 2 else []


def driver_folder() -> str | None:
    """The folder of the driver's library, as this process finds it; None where it does not.

    The library is only loaded: that starts nothing.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = (line.split(maxsplit=5)[5] for line in lines if "/libcuda.so" in line)
    return next((str(Path(path).parent) for path in paths), None)


def problem_of(device: str) -> str | None:
    """Train a small layer for a step on `device`: why that fails, in one line, or None."""
    import torch

    try:
        layer = torch.nn.Linear(8, 8, device=device)
        optim = torch.optim.AdamW(layer.parameters())
        layer(torch.ones(4, 8, device=device)).sum().backward()
        optim.step()
        layer.weight.cpu()
    except Exception as error:  # the driver, the library and torch each raise their own
        return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return None


def name_of(device: str) -> str:
    """What the device is called; it has to be one that works."""
    import torch

    return torch.cuda.get_device_name(device) if device == "cuda" else device
