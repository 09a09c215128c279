"""What goes through the wall of the room: frames of bytes, and values as JSON and safetensors.

Into the room goes pickle, which is safe in that direction. Out of it comes data only: JSON for the structure,
safetensors for the tensors, both of bounded size.
"""

import json
import math
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

DEPTH = 12  # of nested lists and dictionaries
ENTRIES = 100_000  # of all lists and dictionaries of one answer
TEXT = 10_000  # characters of one text
BYTES = 48 << 20  # of all tensors of one answer
ROWS = 100_000  # of a tensor's last dimension, also where it has none of them: somebody may go through them
_LENGTH = struct.Struct("!Q")


class Unreadable(Exception):
    """What came out of the room is no answer."""


def send(wall: socket.socket, frame: bytes) -> None:
    wall.sendall(_LENGTH.pack(len(frame)) + frame)


def receive(wall: socket.socket, limit: int) -> bytes:
    """The next frame.

    Raises:
        EOFError: when the other side is gone.
        Unreadable: when the frame is longer than `limit` bytes.
    """
    (length,) = _LENGTH.unpack(_exactly(wall, _LENGTH.size))
    if length > limit:
        raise Unreadable(f"an answer of {length} bytes")
    return _exactly(wall, length)


def _exactly(wall: socket.socket, length: int) -> bytes:
    frame = bytearray()
    while len(frame) < length:
        part = wall.recv(min(length - len(frame), 1 << 20))
        if not part:
            raise EOFError
        frame += part
    return bytes(frame)


@dataclass(frozen=True)
class Remote:
    """An object that stays in the room, seen from outside.

    Attributes:
        kind: name of its class.
        handle: the room's number for it, to be sent back as an argument.
        fields: of a dataclass, by name.
    """

    kind: str
    handle: int
    fields: dict[str, Any] = field(default_factory=dict, compare=False)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class Handle:
    """Stands in the arguments for an object in the room."""

    number: int


def replaced(value: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """Arguments with every object of one kind, also inside tuples, lists and dictionaries, replaced by another."""
    if isinstance(value, kind):
        return by(value)
    if isinstance(value, tuple):
        return tuple(replaced(entry, kind, by) for entry in value)
    if type(value) is list:
        return [replaced(entry, kind, by) for entry in value]
    if type(value) is dict:
        return {key: replaced(entry, kind, by) for key, entry in value.items()}
    return value


class TooLarge(Exception):
    """An answer that nobody wants to hold."""


class Packer:
    """Values as bytes, inside the room; `keep` gives numbers to the objects that cannot leave it.

    Packing raises `TooLarge` for more than `ENTRIES` values, `DEPTH` levels or `BYTES` of tensors.
    """

    def __init__(self, keep):
        self._keep = keep
        self._tensors: dict[str, Tensor] = {}
        self._entries = self._bytes = 0

    def pack(self, value: Any) -> bytes:
        structure = json.dumps(self._node(value, 0)).encode()
        return _LENGTH.pack(len(structure)) + structure + save(self._tensors)

    def _node(self, value: Any, depth: int) -> list:
        self._entries += 1
        if depth > DEPTH or self._entries > ENTRIES:
            raise TooLarge
        if value is None or isinstance(value, bool):
            return ["plain", value]
        if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta:
            return self._tensor(value)
        if isinstance(value, int):
            value = int.__index__(value)
            return ["plain", value] if value.bit_length() <= 64 else ["text", "a huge integer"]
        if isinstance(value, float):
            return ["float", float.__repr__(float.__float__(value))]
        if isinstance(value, str):
            return ["text", str.__str__(value)[:TEXT].encode("utf-8", "replace").decode()]
        if isinstance(value, Mapping):
            return ["dict", [[self._node(k, depth + 1), self._node(v, depth + 1)] for k, v in value.items()]]
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            return [kind, [self._node(entry, depth + 1) for entry in value]]
        if is_dataclass(value) and not isinstance(value, type):
            inside = {f.name: self._node(getattr(value, f.name, None), depth + 1) for f in fields(value)}
        else:
            inside = {}
        return ["remote", type(value).__name__[:100], self._keep(value), inside]

    def _tensor(self, value: Tensor) -> list:
        self._bytes += value.numel() * value.element_size()
        if self._bytes > BYTES:
            raise TooLarge
        name = str(len(self._tensors))
        carries = bool(value.requires_grad)
        self._tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return ["tensor", name, carries]


def unpack(frame: bytes) -> Any:
    """The value that a `Packer` has written; a tensor that carries a gradient in the room requires one out here.

    Raises:
        Unreadable: when the bytes are something else.
    """
    try:
        (length,) = _LENGTH.unpack(frame[: _LENGTH.size])
        start = _LENGTH.size + length
        structure = json.loads(frame[_LENGTH.size : start])
        return _value(structure, load(frame[start:]), 0)
    except Exception as error:  # whatever a forged frame leads to
        raise Unreadable(type(error).__name__) from None


def _value(node: list, tensors: dict[str, Tensor], depth: int) -> Any:
    if depth > DEPTH + 2:
        raise Unreadable("too deep")
    kind = node[0]
    if kind == "plain":
        if node[1] is not None and type(node[1]) not in (bool, int):
            raise Unreadable("a plain value of another kind")
        return node[1]
    if kind == "float":
        return float(node[1])
    if kind == "text":
        return str(node[1])
    if kind == "tensor":
        value = tensors[node[1]].clone()
        if math.prod(max(size, 1) for size in value.shape[:-1]) > ROWS:
            raise Unreadable("a tensor of too many rows")
        return value.requires_grad_() if node[2] is True and value.is_floating_point() else value
    if kind == "list":
        return [_value(entry, tensors, depth + 1) for entry in node[1]]
    if kind == "tuple":
        return tuple(_value(entry, tensors, depth + 1) for entry in node[1])
    if kind == "dict":
        return {_key(_value(k, tensors, depth + 1)): _value(v, tensors, depth + 1) for k, v in node[1]}
    if kind == "remote":
        inside = {str(name): _value(entry, tensors, depth + 1) for name, entry in node[3].items()}
        return Remote(str(node[1]), int(node[2]), inside)
    raise Unreadable("an unknown kind of value")


def _key(key: Any) -> Any:
    return key if isinstance(key, (str, int, float, bool, type(None))) else str(type(key))
