"""Where the sources are and where what is made from them goes."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "solutions"
NOTEBOOK_SOURCES = SOLUTIONS / "notebooks"

README = ROOT / "README.md"  # its table of exercises
STUBS = ROOT / "rlhf_exercises"
PRISTINE = ROOT / "rlhf_lab" / "course" / "stubs"  # the stubs once more, for `reset`
CELLS = ROOT / "rlhf_lab" / "course" / "cells.json"  # the notebooks' marked cells, for `doctor`
MANIFEST = ROOT / "authoring" / "generated.json"
NOTEBOOKS = ROOT / "notebooks"
EXECUTED = ROOT / "build" / "notebooks"  # solution notebooks with their outputs; not committed
