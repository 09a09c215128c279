"""Processes that do one task at a time; what goes wrong in one costs its own task only.

Python's own process pool gives up all tasks when one of its processes dies. Here the task is tried once more in a fresh
process, and then comes back as a `Fault`.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from rlhf_lab.errors import LabError

PRELOADED = ["nbgrader.apps.api", "grader_tests.examiner"]  # once; every process starts as a copy of it
TRIES = 2
ALARM = getattr(signal, "SIGALRM", 0)


@dataclass(frozen=True)
class Fault:
    """Why a task has no result.

    Attributes:
        reason: a sentence.
        details: the traceback, where there is one.
        final: whether there is no sense in trying again.
    """

    reason: str
    details: str = ""
    final: bool = False


class Workers:
    """Use as a context manager.

    Args:
        number: of processes.
        limit: seconds that one task may take.
    """

    def __init__(self, number: int, limit: float):
        self._context = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
        if os.name == "posix":
            self._context.set_forkserver_preload(PRELOADED)
        self._number, self._limit = number, limit
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, _Worker] = {}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_) -> None:
        for worker in [*self._idle, *self._busy.values()]:
            worker.end()

    def run(self, function: Callable, tasks: Iterable[tuple]) -> Iterator[tuple[tuple, object]]:
        """Yield each task with what `function(*task)` returned, or with a `Fault`, as they are finished."""
        queue = deque((task, TRIES) for task in tasks)
        while queue or self._busy:
            while queue and len(self._busy) < self._number:
                worker = self._idle.pop() if self._idle else _Worker(self._context)
                worker.start(function, *queue.popleft(), self._limit)
                self._busy[worker.connection] = worker
            for connection in wait(list(self._busy)):
                worker = self._busy.pop(connection)
                result = worker.result()
                if not isinstance(result, Fault):
                    self._idle.append(worker)
                    yield worker.task, result
                    continue
                worker.end()  # whatever it holds may be broken as well
                if worker.tries > 1 and not result.final:
                    queue.appendleft((worker.task, worker.tries - 1))
                else:
                    yield worker.task, result


class _Worker:
    def __init__(self, context):
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,))
        self.process.start()
        theirs.close()  # so that the death of the process is the end of the connection

    def start(self, function: Callable, task: tuple, tries: int, limit: float) -> None:
        self.task, self.tries, self._limit = task, tries, limit
        self.connection.send((function, task, limit))

    def result(self):
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join(5)
            if self.process.exitcode == -ALARM:
                return Fault(f"It was not finished in {self._limit / 60:g} minutes.", final=True)
            return Fault(f"The process that was working on it died (exit status {self.process.exitcode}).")

    def end(self) -> None:
        self.connection.close()  # an idle one goes by itself, and closes what it holds
        self.process.join(0.5)
        self.process.kill()
        self.process.join()


def _work(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which then ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            function, task, limit = connection.recv()
        except EOFError:
            return
        _alarm(limit)
        try:
            result = function(*task)
        except LabError as error:
            result = Fault(str(error), final=True)
        except Exception as error:
            text = next(iter(str(error).splitlines()), "")
            result = Fault(f"{type(error).__name__}: {text}", traceback.format_exc())
        _alarm(0)
        try:
            connection.send(result)
        except BrokenPipeError:  # nobody waits for it any more
            return


def _alarm(seconds: float) -> None:
    """Let the system end this process after so long, whatever it is doing then; 0 takes that back.

    Windows has no such alarm: there the examiner's own limits have to do.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _end_with_parent() -> None:
    """Let nothing go on when the command was killed: the next one must find nobody at work."""
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)
