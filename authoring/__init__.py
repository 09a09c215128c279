"""What the authors of the course run, and no student needs: `python -m authoring`.

Everything that students get (stubs, notebooks, known mistakes, clinic, checkpoints) is made here from `solutions/` and
the bank of wrong implementations in `tests/bank/`.
"""
