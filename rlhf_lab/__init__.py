"""The workbench: backbones, data, rewards, runs, pictures and the report. Nobody edits it while learning.

It never imports the taught code by name; it is handed the package to run (`--code solutions`,
`--code rlhf_exercises`). Importing `rlhf_lab` imports neither torch nor transformers.
"""

__version__ = "0.1.0"
