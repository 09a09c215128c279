"""Is an answer right? It is when the code does the same with it as with the solution.

1. The answer is read as Python: it has to be what its blank takes (an expression, an argument, an index, a name or an
   operator), and the code with the answer in it has to parse.
2. Where the code is then the solution's but for spaces and brackets, it is right at once.
3. Everything else is decided by what the code does: a process of its own runs it beside the solution, on inputs on
   which a mistake shows (see `experiments`).

Each blank is judged alone, with the others as in the solution.
"""

import ast
import atexit
import json
import keyword
import os
import queue
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import LabError
from .blanks import OPERATORS, Blank
from .snippets import Snippet

START_LIMIT = 180.0  # seconds for torch, transformers and the solution, on a busy machine
LIMIT = 6.0  # seconds for an answer

PROMPTS = {
    "expression": "one expression",
    "argument": "one argument of a call, with its name or without",
    "index": "an index, as it stands between [ and ]",
    "name": "one name",
    "operator": "one operator, such as + or <=",
}


@dataclass(frozen=True)
class Verdict:
    """What is said about an answer.

    Attributes:
        right: whether it is.
        sentence: for the learner.
        read: False for what is no Python: such an answer is a slip and costs nothing.
    """

    right: bool
    sentence: str
    read: bool = True


class Judge:
    """Judges the answers to the blanks of one snippet.

    Args:
        solutions: the folder of the solutions.
    """

    def __init__(self, snippet: Snippet, solutions: Path):
        self.snippet = snippet
        self._worker = _worker(solutions.resolve())
        self._worker.prepare(snippet)

    def judge(self, blank: Blank, answer: str) -> Verdict:
        """Judge one answer.

        Raises:
            LabError: when the process that runs the code cannot be started.
        """
        answer = answer.strip()
        if problem := unreadable(blank, answer):
            return Verdict(False, problem, read=False)
        filled = self._filled(blank, answer)
        try:
            tree = ast.parse(filled)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return Verdict(False, "In its place, that is no Python any more.", read=False)
        if ast.dump(tree) == ast.dump(ast.parse(self.snippet.text)):
            return Verdict(True, "Right.")
        difference = self._worker.difference(self.snippet, filled)
        if difference is None:
            return Verdict(True, f"Right. It means the same as {blank.text}, which the course writes.")
        if blank.form == "expression" and _is_piece(answer):
            in_brackets = self._filled(blank, f"({answer})")
            if self._worker.difference(self.snippet, in_brackets) is None:
                return Verdict(False, "As it stands, only a part of it belongs together: put it in brackets.")
        return Verdict(False, difference)

    def _filled(self, blank: Blank, answer: str) -> str:
        if blank.form == "operator" and answer[-1].isalpha():
            answer = f" {answer} "
        return self.snippet.text[: blank.start] + answer + self.snippet.text[blank.end :]


def unreadable(blank: Blank, answer: str) -> str:
    """Why an answer is not what its blank takes; nothing when it is."""
    takes = f"This blank takes {PROMPTS[blank.form]}."
    if not answer or "\n" in answer or "\r" in answer:
        return takes
    if blank.form == "operator":
        return "" if answer in OPERATORS.values() else takes
    if blank.form == "name":
        return "" if answer.isidentifier() and not keyword.iskeyword(answer) else takes
    frame, kind = {
        "expression": ("{}", ast.AST),
        "argument": ("_({})", ast.Call),
        "index": ("_[{}]", ast.Subscript),
    }[blank.form]
    try:
        tree = ast.parse(frame.format(answer), mode="eval").body
    except SyntaxError as error:
        return f"That is no Python: {error.msg}. {takes}"
    except (ValueError, RecursionError, MemoryError):
        return f"That is no Python. {takes}"
    inside = getattr(tree, {"argument": "func", "index": "value"}.get(blank.form, ""), None)
    whole = isinstance(tree, kind) and (
        blank.form == "expression" or isinstance(inside, ast.Name) and inside.id == "_"
    )
    return "" if whole else takes


def _is_piece(answer: str) -> bool:
    """Whether the answer has operators of its own, so that brackets around it can matter."""
    tree = ast.parse(answer, mode="eval").body
    return isinstance(
        tree, (ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp, ast.IfExp, ast.Lambda, ast.Tuple)
    )


@cache
def _worker(solutions: Path) -> "_Worker":
    """One process for all rounds: it takes seconds to start."""
    worker = _Worker(solutions)
    atexit.register(worker.close)
    return worker


class _Worker:
    """The process that runs snippets (see `worker`); it is started anew after an answer that has ended it."""

    def __init__(self, solutions: Path):
        self._solutions = solutions
        self._process: subprocess.Popen | None = None
        self._ready: Snippet | None = None  # what the process has prepared, or prepares
        self._waiting = 0  # solutions of which it has not said yet that they were run

    def prepare(self, snippet: Snippet) -> None:
        """Start the process, if it does not run yet, and return at once: it has seconds until the first answer."""
        if self._process is not None and self._process.poll() is not None:
            self.close()  # somebody else has ended it
        if self._process is None:
            self._start()
            self._run_solution(snippet)

    def difference(self, snippet: Snippet, text: str) -> str | None:
        """In what the text differs from the snippet when it runs, in a sentence; None when in nothing.

        Raises:
            LabError: when the process cannot be started, or the solution cannot be run.
        """
        self.prepare(snippet)
        if self._ready != snippet:
            self._run_solution(snippet)
        self._await_ready()
        self._send({"answer": text})
        try:
            reply = self._replies.get(timeout=LIMIT)
        except queue.Empty:
            self._start_over(snippet)
            return f"With it the code does not come to an end: it was stopped after {LIMIT:.0f} seconds."
        except KeyboardInterrupt:
            self.close()
            raise
        if reply is None:
            self._start_over(snippet)
            return "With it the code ends the program."
        return reply["difference"]

    def _run_solution(self, snippet: Snippet) -> None:
        self._send({"name": snippet.name, "module": snippet.module, "text": snippet.text})
        self._ready = snippet
        self._waiting += 1

    def _start_over(self, snippet: Snippet) -> None:
        self.close()
        self.prepare(snippet)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            self._process.stdout.close()
            self._log.close()
            self._scratch.cleanup()
        self._process = self._ready = None
        self._waiting = 0

    def _start(self) -> None:
        course = str(Path(__file__).resolve().parent.parent.parent)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([course, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",  # a model's name that is none must not be looked for in the hub
        }
        self._log = tempfile.TemporaryFile()
        self._scratch = tempfile.TemporaryDirectory(prefix="rlhf-cloze-", ignore_cleanup_errors=True)
        command = [sys.executable, "-m", "rlhf_lab.cloze.worker", str(self._solutions), self._scratch.name]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment,
            start_new_session=True,
        )  # fmt: skip
        self._replies: queue.Queue[dict | None] = queue.Queue()
        threading.Thread(target=_listen, args=(self._process.stdout, self._replies), daemon=True).start()

    def _send(self, request: dict) -> None:
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has ended: the missing reply says so

    def _await_ready(self) -> None:
        reply: dict | None = {}
        while self._waiting and reply is not None:
            try:
                reply = self._replies.get(timeout=START_LIMIT)
            except queue.Empty:
                self.close()
                raise LabError(
                    f"the process that judges the answers did not start in {START_LIMIT:.0f} seconds"
                ) from None
            self._waiting -= 1
        if reply is None:
            self._log.seek(0)
            last = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
            self.close()
            raise LabError(f"the process that judges the answers ended: {' '.join(last)}")
        if "broken" in reply:
            name = self._ready.name
            self.close()
            raise LabError(f"the solution of {name} cannot be run: {reply['broken']}")


def _listen(stream, replies: queue.Queue) -> None:
    """Hand on each reply, and None at the end."""
    try:
        for line in stream:
            replies.put(json.loads(line))
    except (OSError, ValueError):
        pass
    replies.put(None)
