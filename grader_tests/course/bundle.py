"""What a student gets: one zip with the assignment and the workbench around it, and nothing that is hidden."""

import io
import re
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

from rlhf_lab import clinic
from rlhf_lab.course import exercises
from rlhf_lab.runs import write_bytes
from rlhf_lab.settings import STUB_PACKAGE

from .drafts import Draft
from .paths import WELCOME

CHECKOUT = Path(__file__).resolve().parent.parent.parent
FILES = ("LICENSE", "constraints.txt", "environment.yml", "pyproject.toml")
WORKBENCH = "rlhf_lab"
NOT_THERE = re.compile(r', "(?:solutions|grader_tests)\*"')  # in pyproject.toml's list of packages

MAKEFILE = """\
# Each target is one command that works without make too, on Windows as well (see README.md).
#   PYTHON=...  the Python (3.11 or newer) that builds .venv       ARGS=...  further arguments of the command

ifeq ($(OS),Windows_NT)
PYTHON ?= python
VENV_PYTHON := .venv/Scripts/python.exe
else
PYTHON ?= python3
VENV_PYTHON := .venv/bin/python
endif

.PHONY: help setup lab check status doctor

help:
	@echo "make lab     open JupyterLab"
	@echo "make check   run the checks of all exercises on your code (one: make check ARGS=NAME)"
	@echo "make status  all exercises with points and state"
	@echo "make doctor  look through everything before you hand it in"
	@echo "make setup   build .venv; the others do it first when it is missing or out of date"

setup:
	@$(PYTHON) -m rlhf_lab setup

lab check status: setup
	@$(VENV_PYTHON) -m rlhf_lab $@ $(ARGS)

doctor: setup
	@$(VENV_PYTHON) -m rlhf_lab doctor . $(ARGS)
"""


def bundle_files(draft: Draft, released: Path) -> dict[str, bytes]:
    """Path inside the bundle, without its top folder, and content of each file."""
    files = {
        path.relative_to(released).as_posix(): path.read_bytes()
        for path in sorted(released.rglob("*"))
        if path.is_file()
    }
    files[f"{WELCOME}.ipynb"] = draft.welcome.encode()
    for path in sorted((CHECKOUT / WORKBENCH).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            files[path.relative_to(CHECKOUT).as_posix()] = path.read_bytes()
    files |= {name: (CHECKOUT / name).read_bytes() for name in FILES}
    files["pyproject.toml"] = _student_project(files["pyproject.toml"].decode()).encode()
    files["Makefile"] = MAKEFILE.encode()
    files["README.md"] = _readme(draft).encode()
    return files


def _student_project(text: str) -> str:
    """pyproject.toml without the packages that are not in the bundle, and what is said about them."""
    lines = NOT_THERE.sub("", text).splitlines(keepends=True)
    return "".join(line for line in lines if "grader_tests" not in line)


def write_bundle(path: Path, files: Mapping[str, bytes], top: str) -> None:
    """Write a zip with `files` in the folder `top`; one that holds just these already stays, with its times.

    Each file has the time of the release, since the workbench tells students when they saved theirs.

    Raises:
        LabError: when it cannot be written.
    """
    inside = {f"{top}/{name}": content for name, content in files.items()}
    if _content(path) != inside:
        write_bytes(path, _zip(inside, time.gmtime()[:6]))


def _content(path: Path) -> dict[str, bytes] | None:
    """What a zip holds; None where there is none, or a damaged one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return None


def _zip(files: Mapping[str, bytes], when: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system, entry.external_attr = 3, 0o644 << 16  # as on Unix, wherever it is made
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def _readme(draft: Draft) -> str:
    assignment = draft.assignment
    rows = [
        f"| {e.number} | `{e.name}` | `{STUB_PACKAGE}/{e.file}` | {e.minutes} | {assignment.exercises[e.name]} |"
        for e in exercises().values()
        if e.name in assignment.exercises
    ]
    if clinic.NAME in assignment.exercises:
        notebook = assignment.notebook_of(clinic.NAME)
        rows.append(f"| | {clinic.NAME} | `{notebook}.ipynb` | | {assignment.exercises[clinic.NAME]} |")
    questions = sum(assignment.questions.values())
    notebooks = ", ".join(f"`{name}.ipynb`" for name in draft.notebooks if name != WELCOME)
    handed_in = [f"{name}.ipynb" for name in draft.notebooks if name != WELCOME]
    handed_in += [f"{STUB_PACKAGE}/{module}.py" for module in assignment.modules]
    listing = "\n".join(f"    {name}" for name in handed_in)
    table = "\n".join(rows)
    return f"""# {draft.name}

Open a terminal in this folder.

```bash
make lab                  # builds .venv the first time (a few minutes), then opens JupyterLab
make check                # the checks of all exercises on what you have saved
make status               # exercises, points and how far you are
make doctor               # before you hand in: is everything there and as it should be?
```

Without `make`, on Windows for instance: `python -m rlhf_lab setup`, then
`.venv\\Scripts\\python -m rlhf_lab lab` (elsewhere `.venv/bin/python -m rlhf_lab lab`), and likewise `check`, `status`
and `doctor .`.
If you have an environment of an earlier assignment, start its Python instead: `PYTHON -m rlhf_lab lab`.

Begin with `{WELCOME}.ipynb` if you have not seen it. The work is in {notebooks}: it explains, calls your functions and
checks them. You write the functions in `{STUB_PACKAGE}/`. What earlier assignments asked for comes solved, so that
nothing holds you up.

| | exercise | file | minutes | points |
|---|---|---|---|---|
{table}

Questions in the notebook that a person grades: {questions} points. In all {assignment.max} points.

## Hand in

{listing}

with your own helper modules in `{STUB_PACKAGE}/`, if you have any. Keep the names. Save everything before.
"""
