"""Cases of the exercises in `sft.py`."""
