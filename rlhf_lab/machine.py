"""What machine this is, and how much memory the process has taken."""

import os
import platform
import sys
from pathlib import Path

from .backbones import backbones_here


def describe_machine() -> str:
    """Processor, cores, memory and the versions that figures depend on, in one line."""
    import psutil
    import torch
    import transformers

    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}; "
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    )


def memory_mib() -> float:
    """The memory that this process has resident now, in MiB."""
    import psutil

    return psutil.Process().memory_info().rss / 2**20


def peak_memory_mib() -> float:
    """The most memory that this process had resident so far, in MiB."""
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset / 2**20
    if sys.platform == "linux":  # getrusage would count what the process was started from
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
        return int(peak) / 2**10
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB, but bytes on macOS
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine_rows() -> list[dict[str, str]]:
    """What a notebook says about this machine, and which backbones are on it."""
    import psutil
    import torch
    import transformers

    memory = psutil.virtual_memory()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none (not needed)"
    rows = {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{memory.total / 2**30:.0f} GiB, {memory.available / 2**30:.1f} GiB of it free",
        "GPU": gpu,
        "backbones": ", ".join(backbones_here()),
    }
    return [{"what": what, "here": here} for what, here in rows.items()]
