"""The student's code as a hidden test sees it: functions that can be called through the wall of the room."""

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rlhf_lab.room.wire import Handle, Remote, replaced

from .room import Child

CALL = 10.0  # seconds that one call may take, unless a test says otherwise


@dataclass(eq=False)
class Raised(Exception):
    """An exception of the candidate's code.

    Attributes:
        kind: name of Python's class that it is, or is derived from.
        text: its message.
        stub: name of the function whose stub raised it, or None.
        function: of the student's, where it arose; empty when it arose elsewhere.
        line: in that function, counted from its `def`.
    """

    kind: str
    text: str
    stub: str | None
    function: str
    line: int

    @classmethod
    def of(cls, said: dict) -> "Raised":
        """From what came out of the room, where a hostile student may have written anything into it."""
        name = said["kind"] if isinstance(getattr(builtins, str(said["kind"]), None), type) else "Exception"
        stub, function = (text if _is_name(text) else None for text in (said["stub"], said["function"]))
        return cls(name, str(said["text"]), stub, function or "", int(said["line"]))


def _is_name(text: Any) -> bool:
    return isinstance(text, str) and len(text) < 80 and all(part.isidentifier() for part in text.split("."))


class Answer:
    """What a call led to."""

    def __init__(self, candidate: "Candidate", answer: dict):
        self._candidate, self._answer = candidate, answer
        self.raised = Raised.of(answer["raised"]) if "raised" in answer else None

    @property
    def value(self) -> Any:
        """What the function returned: plain values, tensors (requiring a gradient where they carried one in the room),
        `Remote` for an object that stays there.

        Raises:
            Raised: when it raised.
        """
        if self.raised is not None:
            raise self.raised
        return self._answer["returned"]

    @property
    def records_gradients(self) -> bool:
        """Whether torch recorded gradients when the function came back: a function may not switch them for good."""
        self.value  # an exception is no answer
        return self._answer["records"] is True

    @property
    def after(self) -> dict[int | str, Any]:
        """The arguments that were asked for, as they are after the call."""
        self.value  # an exception is no answer
        return self._answer["after"]

    def gradients(
        self, *wrt: int | str | tuple, of: tuple = (), cotangent: Tensor | None = None
    ) -> list[Tensor | None]:
        """Gradients of an output with respect to arguments.

        Args:
            wrt: position or keyword of each argument; a tuple goes on from there: `(0, "v_head", "weight")`.
            of: path of the output in what was returned: `(0,)` for the first of a tuple.
            cotangent: gradient that arrives at the output; needed where that is no scalar.

        Returns:
            one for each of `wrt`; None where no gradient arrives.
        """
        self.value
        paths = [list(path) if isinstance(path, tuple) else [path] for path in wrt]
        arguments = (self._answer["number"], list(of), cotangent, paths)
        answer = self._candidate.ask("gradients", *arguments)
        if "raised" in answer:
            raise Raised.of(answer["raised"])
        return answer["gradients"]


class Candidate:
    """One child of the room with the student's code in it.

    Attributes:
        device: where a test that trains puts its models.
    """

    def __init__(self, child: Child):
        self._child = child
        self.device = child.device

    def call(
        self,
        target: str | Remote | Callable,
        *args: Any,
        after: tuple = (),
        grad: bool = True,
        seed: int = 0,
        seconds: float = CALL,
        **kwargs: Any,
    ) -> Answer:
        """Call a function of the candidate's.

        Args:
            target: `"ppo.compute_gae"`; an object that an earlier answer left in the room; or a function of
                `rlhf_lab.room.props`, which builds or watches something there.
            args, kwargs: plain values, tensors, objects of `props`, `Remote`s of earlier answers.
            after: positions and keywords of arguments to have back as they are afterwards.
            grad: whether gradients are recorded.
            seed: of torch's and Python's own generators, before the call.
            seconds: that it may take.
        """
        answer = self.ask(
            "call", _handles(target), _handles(args), _handles(kwargs), after, grad, seed, seconds=seconds
        )
        return Answer(self, answer)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make()` returned when a test of this child first asked for `name`: models, a long call's answer.

        What the tests share is only looked at, or is set anew by each of them.
        """
        if name not in self._child.shared:
            self._child.shared[name] = make()
        return self._child.shared[name]

    def read(self, thing: Remote, path: str) -> Any:
        """An attribute of an object in the room, by dotted path; a number is an index."""
        return Answer(self, self.ask("read", thing.handle, path)).value

    def ask(self, operation: str, *arguments: Any, seconds: float = CALL) -> Any:
        return self._child.ask(operation, *arguments, seconds=seconds)


def _handles(value: Any) -> Any:
    """`value` with a handle in place of each `Remote`."""
    return replaced(value, Remote, lambda remote: Handle(remote.handle))
