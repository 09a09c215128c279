"""The room for tests that train where there is a GPU: one that is opened when it is first asked for, and may fail.

What goes wrong with a GPU costs no student points: without a child from here, and whenever a test is lost on one, the
test is run in the ordinary room, on the CPU, and what comes out there counts.
"""

import torch

from rlhf_lab.errors import LabError
from rlhf_lab.room import gpu

from .room import Child, Gone, Gpu, Room, RoomLost, bubblewrap_works

START = 60.0  # seconds that a child may take to start CUDA


def find_gpu() -> Gpu | None:
    """The GPU of this machine, by the files of its driver; None where there is none, or torch is built without."""
    files = gpu.device_files()
    if not files or not torch.backends.cuda.is_built() or (driver := gpu.driver_folder()) is None:
        return None
    return Gpu(tuple(files), driver, gpu.DEVICE)


class GpuRoom:
    """A room with this machine's GPU, or none.

    Attributes:
        passed: number of tests that were passed on the GPU.
    """

    def __init__(self, patience: float = 1.0):
        self._patience, self._room = patience, None
        self._gpu = find_gpu()
        self._name, self._problem = "", ""
        self.passed = 0

    @property
    def remark(self) -> str:
        """Where the tests that train were run, once one was; empty where there is no GPU."""
        if self._problem:
            return f"training on the CPU, for the GPU cannot be used in the room ({self._problem})"
        if not self._name:
            return ""
        return f"training on {self._name}, {self.passed} tests passed there, the others were run on the CPU"

    def child(self) -> Child | None:
        """A child whose device works, or None; after a first failure always None."""
        if self._gpu is None:
            return None
        child = None
        try:
            if not bubblewrap_works():
                raise RoomLost("that needs bubblewrap")
            self._room = self._room or Room(self._patience, self._gpu)
            child = self._room.child()
            answer = child.ask("device", seconds=START)
            if answer["problem"] is not None:
                raise RoomLost(answer["problem"])
        except (LabError, RoomLost, Gone, OSError) as problem:
            if child is not None:
                child.close()
            self._give_up(str(problem))
            return None
        self._name = answer["name"]
        return child

    def close(self) -> None:
        if self._room is not None:
            self._room.close()
            self._room = None

    def _give_up(self, problem: str) -> None:
        self.close()
        self._gpu = None
        self._problem = " ".join(problem.split())[:200]
