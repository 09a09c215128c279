"""The three stages of the pipeline. Each trains with the taught code and then looks at the result on its own.

A stage is a function `(lab, folder) -> figures`: it writes checkpoint and history into its folder of the run, and
what it returns is kept as `figures.json`.
"""
