"""Read a student's `rlhf_exercises/` as data: nothing in it is run, and no link is followed."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

FILE_SIZE = 1 << 20  # bytes of one file; the largest solution has 20 kB
FILES = 200


@dataclass(frozen=True)
class Package:
    """Attributes:
    files: content by path inside the package, Python files only.
    remarks: one sentence for each thing that was left out.
    """

    files: dict[str, bytes]
    remarks: tuple[str, ...]


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
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            remarks.append(f"{shown} is a link or cannot be read: it was left out.")
            continue
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                remarks.append(f"{shown} is no file: it was left out.")
            elif len(content := file.read(FILE_SIZE + 1)) > FILE_SIZE:
                remarks.append(f"{shown} is larger than {FILE_SIZE >> 20} MiB: it was left out.")
            else:
                files[name] = content
    return Package(files, tuple(remarks))


def _python_files(folder: Path) -> list[Path]:
    found = []
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(f for f in folders if f != "__pycache__" and not f.startswith("."))
        found += [Path(parent) / name for name in sorted(names) if name.endswith(".py")]
    return found
