"""What a child of the room does: import a student's code, and call what it is told to."""

import os
import pickle
import random
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..student_code import builtin_kind, stub_of
from . import code, gpu
from .wire import Handle, Packer, TooLarge, receive, replaced, send

TEXT = 2000  # characters of an exception's message
TOO_LARGE = {"kind": "MemoryError", "text": "too large an answer", "stub": None, "function": "", "line": 0}
REQUEST = 1 << 30  # bytes; requests come from the examiner, who is trusted


def serve(wall: socket.socket, folder: Path, device: str, problem: str | None) -> None:
    """Answer requests until the examiner hangs up.

    Args:
        device: that tests which train may use here.
        problem: why it could not be started, or None.
    """
    child = Child(folder, device, problem)
    while True:
        try:
            operation, arguments = pickle.loads(receive(wall, REQUEST))
        except EOFError:
            os._exit(0)
        answer = getattr(child, operation)(*arguments)
        try:
            frame = Packer(child.keep).pack(answer)
        except TooLarge:
            frame = Packer(child.keep).pack({"raised": TOO_LARGE})
        send(wall, frame)


class Child:
    """The objects of one examination. Each public method is a request that an examiner may make."""

    def __init__(self, folder: Path, device: str, problem: str | None):
        self._folder = folder
        self._device, self._problem = device, problem
        self._objects: list[Any] = []
        self._code = None

    def keep(self, value: Any) -> int:
        self._objects.append(value)
        return len(self._objects) - 1

    def device(self) -> dict:
        """What the device is called, or why it does not work now that this process is confined."""
        problem = self._problem or gpu.problem_of(self._device)
        return {"problem": problem, "name": "" if problem else gpu.name_of(self._device)}

    def survey(self, files: Mapping[str, bytes], exercises: Mapping[str, list[str]]) -> dict:
        """`code.survey` of each module that is there."""
        found = {}
        for module, names in exercises.items():
            if f"{module}.py" in files:
                found[module] = code.survey(files[f"{module}.py"], names)
        return found

    def enter(self, files: Mapping[str, bytes], mixed: tuple | None) -> dict:
        """Import the student's package; with `mixed`, one exercise of it among the reference's others."""
        try:
            if mixed is None:
                self._code = code.import_package(self._folder, files)
            else:
                self._code = code.import_exercise(self._folder, files, *mixed)
            return {"problem": None}
        except code.Broken as broken:
            return {"problem": str(broken)}

    def call(
        self, target: str | Handle | Any, args: tuple, kwargs: dict, names: tuple, grad: bool, seed: int
    ) -> dict:
        """Call a function, and say what it returned or raised and what became of its arguments.

        Args:
            target: `module.name` of the student's package, an object here, or a function of `props`.
            names: of arguments that should come back as they are after the call: positions and keywords.
            grad: whether gradients are recorded, as a caller decides.
            seed: of the random generators, before the call.
        """
        args, kwargs = self._here(args), self._here(kwargs)
        answer: dict[str, Any] = {}
        try:
            function = self._find(target) if isinstance(target, str) else self._here(target)
            torch.manual_seed(seed)
            random.seed(seed)
            with torch.set_grad_enabled(grad):
                returned = function(*args, **kwargs)
                records = torch.is_grad_enabled()
            number = self.keep((returned, args, kwargs))
            answer = {"returned": returned, "number": number, "records": records}
        except BaseException as error:  # SystemExit and KeyboardInterrupt too, and what is derived from them
            answer = {"raised": _raised(error, self._folder)}
        after = {name: args[name] if isinstance(name, int) else kwargs[name] for name in names}
        return answer | {"after": after}

    def gradients(self, number: int, path: list, cotangent: Tensor | None, wrt: list[list]) -> dict:
        """Gradients of one output of an earlier call with respect to arguments, or to parameters of objects.

        Args:
            path: of the output in what was returned; keys and indices.
            cotangent: the gradient that arrives at the output; None: 1.
            wrt: paths that start with a position or a keyword of the arguments.
        """
        returned, args, kwargs = self._objects[number]
        try:
            output = _at(returned, path)
            inputs = [_at(args if isinstance(p[0], int) else kwargs, p) for p in wrt]
            differentiable = [x for x in inputs if x.requires_grad]
            if not isinstance(output, Tensor) or not output.requires_grad or not differentiable:
                return {"gradients": [None] * len(inputs)}
            found = torch.autograd.grad(
                output, differentiable, cotangent, retain_graph=True, allow_unused=True
            )
            by_input = iter(found)
            return {"gradients": [next(by_input) if x.requires_grad else None for x in inputs]}
        except BaseException as error:
            return {"raised": _raised(error, self._folder)}

    def read(self, handle: int, path: str) -> dict:
        """An attribute of an object, by dotted path."""
        try:
            return {"returned": _attribute(self._objects[handle], path)}
        except BaseException as error:
            return {"raised": _raised(error, self._folder)}

    def observe(self, exercise: str) -> dict:
        """What the visible check's experiments show."""
        from ..checks.run import observe_all
        from ..course import exercises

        outcomes = observe_all(exercises()[exercise], self._code, self._folder / self._code.package)
        return {
            "outcomes": [
                {"observed": out.observed, "crashed": out.crashed, "stub": out.stub} for out in outcomes
            ]
        }

    def _find(self, target: str) -> Any:
        module, _, name = target.partition(".")
        return _attribute(getattr(self._code, module), name)

    def _here(self, value: Any) -> Any:
        """`value` with the room's own objects in place of handles."""
        return replaced(value, Handle, lambda handle: self._objects[handle.number])


def _attribute(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value[int(name)] if name.isdecimal() else getattr(value, name)
    return value


def _at(value: Any, path: list) -> Any:
    for step in path:
        value = (
            getattr(value, step) if isinstance(step, str) and not isinstance(value, Mapping) else value[step]
        )
    return value


def _raised(error: BaseException, folder: Path) -> dict:
    """What an examiner needs to know of an exception."""
    function, line = "", 0
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame.f_code
        if str(frame.co_filename).startswith(str(folder)):
            function, line = frame.co_name, trace.tb_lineno - frame.co_firstlineno + 1
        trace = trace.tb_next
    try:
        text = str(error)[:TEXT]
    except BaseException:  # a class of the student's may have any __str__
        text = ""
    return {
        "kind": builtin_kind(error),
        "text": text,
        "stub": stub_of(error),
        "function": function,
        "line": line,
    }
