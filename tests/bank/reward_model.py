"""Wrong and correct implementations of the exercises in `reward_model.py`."""

from . import body, right, wrong
