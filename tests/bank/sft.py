"""Wrong and correct implementations of the exercises in `sft.py`."""

from . import body, right, wrong
