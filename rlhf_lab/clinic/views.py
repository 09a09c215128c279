"""What a recorded run shows: curves, the first step, samples and two token tables."""

from collections.abc import Sequence

import torch
from IPython.display import HTML, Markdown, display

from ..pictures import ppo_figure
from ..token_table import TokenTable, plain_table_html, token_table
from .diagnoses import DIAGNOSES

FIRST_STEP = {
    "ratio_min": "smallest ratio",
    "ratio_max": "largest ratio",
    "logprob_mean": "mean log-probability of the sampled tokens",
    "logprob_min": "lowest log-probability of a sampled token",
    "advantage_mean": "mean of the advantages",
    "advantage_std": "standard deviation of the advantages",
}
COLUMNS = ("mask", "logprob", "ref_logprob", "reward", "value", "advantage", "return")
NOTE = (
    "Recorded in the last step. Advantage and return are what ppo_losses was handed; in the healthy run the advantages "
    "are whitened by then."
)


def show_run(title: str, run: dict, healthy: dict | None = None) -> None:
    """Display a run; beside the healthy one, where it is given."""
    display(Markdown(f"#### {title}"))
    display(ppo_figure(run["history"], healthy["history"] if healthy else ()))
    display(HTML(plain_table_html(_first_step(run, healthy), "The first step, before any update")))
    display(HTML(plain_table_html(_samples(run["samples"]), "Samples to held-out prompts")))
    for row in run["rows"]:
        display(_token_table(row))


def show_diagnoses() -> None:
    """Display the names and what they mean."""
    rows = [
        {"diagnosis": name, "what is wrong": DIAGNOSES[name].line}
        for name in sorted(DIAGNOSES, key=str.lower)
    ]
    display(HTML(plain_table_html(rows, "Possible diagnoses; some belong to no case")))


def _first_step(run: dict, healthy: dict | None) -> list[dict]:
    rows = []
    for key, name in FIRST_STEP.items():
        rows.append({"": name, "this run": _to_zero(run["first_step"][key])})
        if healthy:
            rows[-1]["the healthy run"] = _to_zero(healthy["first_step"][key])
    return rows


def _to_zero(number: float) -> float:
    """The number; 0 where it is one but for rounding."""
    return 0.0 if abs(number) < 1e-6 else number


def _samples(samples: Sequence[dict]) -> list[dict]:
    """Two lines a prompt: before PPO and after it."""
    rows = []
    for sample in samples:
        for when in ("before", "after"):
            prompt = sample["prompt"] if when == "before" else ""
            judge = sample[f"judge_{when}"]
            rows.append({"prompt": prompt, "PPO": when, "judge": float(judge), "response": sample[when]})
    return rows


def _token_table(row: dict) -> TokenTable:
    table = token_table(row["tokens"], **{name: torch.tensor(row[name]) for name in COLUMNS})
    caption = f"prompt “{row['prompt']}” · score {row['score']:+.3f}"
    return TokenTable(table.columns, table.tokens, [caption], NOTE)
