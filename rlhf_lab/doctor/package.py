"""The package rlhf_exercises before it is imported: whether its files are there, ordinary, and Python."""

import ast
import stat
from collections.abc import Iterator
from pathlib import Path

from ..settings import MODULE_BYTES, MODULES
from .finding import Finding


def examine_package(folder: Path) -> Iterator[Finding]:
    """Say what is so with the files of the package in `folder`."""
    if folder.is_symlink():
        yield Finding("problem", folder.name, "is a link, which is not handed in: put the folder itself here")
        return
    if not folder.is_dir():
        deeper = next(folder.parent.glob(f"*/{folder.name}"), None)
        hint = (
            f" (there is {deeper.relative_to(folder.parent).as_posix()}: name its folder)" if deeper else ""
        )
        yield Finding("problem", folder.name, f"the folder is missing{hint}")
        return
    wanted = [folder / "__init__.py", *(folder / f"{module}.py" for module in MODULES)]
    others = [path for path in sorted(folder.rglob("*")) if path not in wanted and _counts(path)]
    for path in [*wanted, *others]:
        problem = _problem(path)
        status, sentence = ("problem", problem) if problem else ("ok", "is there, and is Python")
        if problem or path in wanted[1:]:
            yield Finding(status, path.relative_to(folder.parent).as_posix(), sentence)


def _counts(path: Path) -> bool:
    """Whether a file beside the released ones would be handed in or is in the way: a module, or no ordinary file."""
    return (
        path.suffix == ".py"
        or not stat.S_ISREG(path.lstat().st_mode)
        and not stat.S_ISDIR(path.lstat().st_mode)
    )


def _problem(path: Path) -> str | None:
    """What keeps a file from being read as Python, in a sentence."""
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            return "is a link, which is not handed in: put the file itself here"
        if not stat.S_ISREG(status.st_mode):
            return "is no ordinary file: take it away"
        if status.st_size > MODULE_BYTES:
            return f"has {status.st_size / 1e6:.1f} MB, which no module needs: take the data out"
        content = path.read_bytes()
    except FileNotFoundError:
        return f"is missing: python -m rlhf_lab reset {path.stem} puts the stubs back"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    try:
        ast.parse(content)
    except SyntaxError as error:
        if content.lstrip()[:1] == b"{" and b'"cells"' in content:
            return "is a notebook, no Python file: copy the functions into the file"
        line = f"line {error.lineno} " if error.lineno else ""
        return f"{line}does not parse: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"does not parse: {error}"
    return None
