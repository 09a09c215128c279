"""Read a student's `rlhf_exercises/` as data: nothing in it is run, and no link is followed."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from rlhf_lab.settings import MODULE_BYTES

FILES = 200


@dataclass(frozen=True)
class Package:
    """Attributes:
    files: content by path inside the package, Python files only.
    remarks: one sentence for each thing that was left out.
    """

    files: dict[str, bytes]
    remarks: tuple[str, ...]


class Unusable(Exception):
    """A file that cannot be taken. The message completes "NAME ...": "is empty", "is a link"."""


def read_file(path: Path, limit: int) -> bytes:
    """The content of an ordinary file, up to one byte more than `limit`.

    Raises:
        Unusable: when it is a link, a device, or a second name of a file that may lie elsewhere.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Unusable("is no regular file")
            if status.st_nlink > 1:  # what an archive can make of a file outside the submission
                raise Unusable("is a hard link, a second name of some other file")
            return file.read(limit + 1)
    except OSError as error:
        raise Unusable(f"could not be read ({error.strerror})") from None


def read_package(folder: Path) -> Package:
    """The Python files below `folder`; links, devices and what is too large are left out and said."""
    if folder.is_symlink() or not folder.is_dir():
        return Package({}, (f"{folder.name}/ is missing or a link.",))
    files: dict[str, bytes] = {}
    remarks = []
    for path in _python_files(folder):
        name = path.relative_to(folder).as_posix()
        shown = ascii(name)[1:-1][:100]
        if len(files) >= FILES:
            remarks.append(f"There are more than {FILES} files in the package: the rest was left out.")
            break
        try:
            content = read_file(path, MODULE_BYTES)
        except Unusable as problem:
            remarks.append(f"{shown} {problem}: it was left out.")
            continue
        if len(content) > MODULE_BYTES:
            remarks.append(f"{shown} is larger than {MODULE_BYTES >> 20} MiB: it was left out.")
        else:
            files[name] = content
    return Package(files, tuple(remarks))


def _python_files(folder: Path) -> list[Path]:
    found = []
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(f for f in folders if f != "__pycache__" and not f.startswith("."))
        found += [Path(parent) / name for name in sorted(names) if name.endswith(".py")]
    return found
