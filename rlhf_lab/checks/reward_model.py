"""Cases of the exercises in `reward_model.py`."""
