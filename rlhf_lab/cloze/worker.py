"""The process that runs the code with an answer in it: `python -m rlhf_lab.cloze.worker SOLUTIONS SCRATCH`.

A learner's answer may hang, end the program or eat its memory; none of it shall reach their notebook. Requests come as
lines of JSON on stdin, answers go as lines of JSON to stdout. What is written to disk goes to the folder SCRATCH. When
stdin ends, so does the process, and the folder with it.

    {"name": "rm_loss", "module": "reward_model", "text": the solution}     ->  {"ready": true} or {"broken": sentence}
    {"answer": the text with an answer in it}                               ->  {"difference": sentence or null}
"""

import importlib
import json
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path

import torch
from torch import Tensor

from ..student_code import describe, import_file
from .experiments import ARGUMENT, GRADIENT, OTHER_RESULT, REPORT, Seen, Variable, compiled, report, watch

PACKAGE = "rlhf_cloze_solutions"
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def main(solutions: str, scratch: str) -> None:
    torch.set_num_threads(1)
    tempfile.tempdir = scratch
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    lines: queue.Queue[str] = queue.Queue()
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # an answer that reads or prints shall not meet the requests
        os.dup2(nothing, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the drill
    threading.Thread(target=_read, args=(requests, lines, scratch), daemon=True).start()

    bench = None
    while True:
        request = json.loads(lines.get())
        if "answer" in request:
            reply = {"difference": bench.difference(request["answer"])}
        else:
            try:
                bench = Bench(Path(solutions), **request)
                reply = {"ready": True}
            except BaseException as error:
                reply = {"broken": describe(error)}
        print(json.dumps(reply), file=channel, flush=True)


def _read(requests, lines: queue.Queue, scratch: str) -> None:
    """Hand the requests on; at their end leave at once, whatever the answer is still doing."""
    for line in requests:
        lines.put(line)
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)


class Bench:
    """A snippet, and what its solution does.

    Raises:
        Exception: when the solution itself cannot be run.
    """

    def __init__(self, folder: Path, name: str, module: str, text: str):
        self.name = name
        if PACKAGE not in sys.modules:
            import_file(PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)])
        self.around = vars(importlib.import_module(f"{PACKAGE}.{module}"))
        self.expected = self._watch(text)

    def difference(self, text: str) -> str | None:
        """What the text does otherwise than the solution, in one sentence; None when there is nothing."""
        try:
            seen = self._watch(text)
        except BaseException as error:
            where = getattr(error, "__notes__", [""])[-1]
            return f"With it the code raises {describe(error)}{f' ({where})' if where else ''}."
        return first_difference(seen, self.expected)

    def _watch(self, text: str) -> list[tuple[str, Seen]]:
        random_state = torch.get_rng_state()
        around = self.around | {REPORT: report}
        try:
            exec(compiled(text), around)
            return watch(self.name, around[self.name])
        finally:
            torch.set_rng_state(random_state)
            torch.set_grad_enabled(True)
            torch.set_default_dtype(torch.float32)


def first_difference(seen: list[tuple[str, Seen]], expected: list[tuple[str, Seen]]) -> str | None:
    """The first thing that is not as expected, in a sentence: results before gradients."""
    for of_gradients in (False, True):
        for (title, got), (_, asked) in zip(seen, expected, strict=True):
            if OTHER_RESULT in got:
                return f"It then returns {got[OTHER_RESULT]} ({title})."
            for what, value in asked.items():
                if what.startswith(GRADIENT) is of_gradients:
                    if problem := _difference(what, got.get(what), value):
                        return f"{problem} ({title})."
    return None


def _difference(what: str, got, asked) -> str | None:
    if what.startswith(GRADIENT):
        same = torch.allclose(got, asked, equal_nan=True, **CLOSE)
        return (
            None
            if same
            else f"The values are right, but another gradient reaches {what.removeprefix(GRADIENT)}"
        )
    if isinstance(what, Variable):  # what it holds counts, and not as which type
        if got is None:
            return None
        got = got.to(asked.dtype)
    if isinstance(asked, (Tensor, float)):
        if type(got) is not type(asked):
            return f"Another type for {what}: {type(got).__name__} instead of {type(asked).__name__}"
        got, asked = torch.as_tensor(got), torch.as_tensor(asked)
        if got.shape != asked.shape:
            return f"Another shape for {what}: {list(got.shape)} instead of {list(asked.shape)}"
        # more digits than asked for are no mistake, fewer are one
        if got.dtype != asked.dtype and not (asked.is_floating_point() and got.dtype == torch.float64):
            return f"Another type for {what}: {got.dtype} instead of {asked.dtype}"
        if torch.allclose(got.to(asked.dtype), asked, equal_nan=True, **CLOSE):
            return None
        if what.startswith(ARGUMENT):
            return f"The call changes {what}"
        numbers = f": {got.item():.4g} instead of {asked.item():.4g}" if asked.dim() == 0 else ""
        return f"Another value for {what}{numbers}"
    if got == asked:
        return None
    short = all(len(str(value)) < 30 for value in (got, asked))
    return f"Not the same: {what}" + (f", {got} instead of {asked}" if short else "")


if __name__ == "__main__":
    main(*sys.argv[1:])
