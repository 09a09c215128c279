"""From the results of a run to its report: what is shown, and in which words."""

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path

from .machine import describe_machine
from .pictures import png_bytes, ppo_figure, reward_model_figure, seeds_figure, sft_figure
from .pipeline import Results
from .report import write_report
from .runs import read_json, write_bytes
from .scorecard import Point
from .stages.ppo import load_example
from .thresholds import asked_of
from .token_table import index_picture, rollout_table

STAGE_TITLES = {"sft": "SFT", "reward_model": "reward model", "ppo": "PPO"}


def write_run_report(results: Results, card: Sequence[Point]) -> Path:
    """Write pictures and report of one run into its folder; returns the path of the report."""
    lab = results.lab
    pictures = {name: png_bytes(figure) for name, figure in _figures(results).items()}
    for name, png in pictures.items():
        write_bytes(lab.folder / "pictures" / f"{name}.png", png)
    example = load_example(lab)
    shortest = int(example.response_mask.sum(-1).argmin())  # the row with the most padding to show
    path = lab.folder / "report.html"
    write_report(
        path,
        title=f"RLHF from scratch: {Path(lab.settings.backbone).name}, seed {lab.settings.seed}",
        settings=dataclasses.asdict(lab.settings),
        machine=f"{describe_machine()}; run on {lab.compute}",
        seconds={STAGE_TITLES[name]: figures["seconds"] for name, figures in results.stages.items()},
        scorecard=card,
        figures=pictures,
        samples=read_json(lab.folder / "ppo" / "samples.json"),
        token_table_html=rollout_table(
            example, lab.tokenizer, shortest, lab.settings.kl_coef, lab.code
        )._repr_html_(),
        index_picture_html=index_picture(example, lab.tokenizer)._repr_html_(),
        notes=_notes(results),
        seeds_table=None,
    )
    return path


def write_seeds_report(folder: Path, outcomes: Sequence[tuple[Results, Sequence[Point]]]) -> tuple[str, Path]:
    """Write the report of several seeds; returns their table as text, and the path of the report."""
    rows = [_seed_row(results, card) for results, card in outcomes]
    table = [*rows, _summary("mean", rows, statistics.fmean), _summary("spread", rows, _spread)]
    shown = [{column: _shown(value) for column, value in row.items()} for row in table]
    histories = {results.lab.settings.seed: results.history for results, _ in outcomes}
    first = outcomes[0][0].lab
    goal = statistics.fmean(results.judge_goal for results, _ in outcomes)
    path = folder / "report.html"
    write_report(
        path,
        title=f"RLHF from scratch: {Path(first.settings.backbone).name}, {len(rows)} seeds",
        settings={**dataclasses.asdict(first.settings), "seed": [row["seed"] for row in rows]},
        machine=f"{describe_machine()}; run on {first.compute}",
        seconds={f"seed {row['seed']}": row["seconds"] for row in rows},
        scorecard=[],
        figures={"seeds": png_bytes(seeds_figure(histories, goal))},
        samples=[],
        token_table_html="",
        index_picture_html="",
        notes=["spread: standard deviation over the seeds."],
        seeds_table=shown,
    )
    return as_text(shown), path


def _figures(results: Results) -> dict:
    folder = results.lab.folder
    sft = read_json(folder / "sft" / "history.json")
    asked = asked_of(results.lab.data.name)
    figures = {"ppo": ppo_figure(results.history, goal=results.judge_goal)}
    if results.reward_model is not None:
        scores = read_json(folder / "reward_model" / "heldout_scores.json")
        figures["reward_model"] = reward_model_figure(
            read_json(folder / "reward_model" / "history.json"),
            results.reward_model["heldout_accuracy"],
            results.reward_model["length_only_accuracy"],
            asked.rm_accuracy,
            scores["chosen"],
            scores["rejected"],
        )
    if sft["loss"]:
        figures["sft"] = sft_figure(
            sft["loss"], [tuple(point) for point in sft["heldout_loss"]], asked.sft_loss
        )
    return figures


def _notes(results: Results) -> list[str]:
    peak = max(figures["peak_memory_mib"] for figures in results.stages.values())
    notes = [f"Peak memory of the training: {peak} MiB."]
    if results.reward_model is None:
        notes.append(
            f"PPO was trained on the stand-in reward {results.lab.settings.reward}: there is no point 2."
        )
        return notes
    for column, accuracy in results.reward_model["heldout_accuracy_by"].items():
        kinds = ", ".join(f"{kind} {share:.2f}" for kind, share in accuracy.items())
        notes.append(f"Held-out accuracy of the reward model by {column.replace('_', ' ')}: {kinds}.")
    for name, where in (("dropped", "training"), ("dropped_heldout", "held-out")):
        if results.reward_model[name]:
            notes.append(
                f"{results.reward_model[name]} {where} pairs were the same after truncation and left out."
            )
    return notes


def _seed_row(results: Results, card: Sequence[Point]) -> dict:
    rm, before, after = results.reward_model, results.ppo["before"], results.ppo["after"]
    return {
        "seed": results.lab.settings.seed,
        "passed": f"{sum(point.passed for point in card)}/{len(card)}",
        "SFT loss": results.sft["heldout_loss"][-1][1],
        "EOS share": results.sft["eos_share"],
        **({"RM accuracy": rm["heldout_accuracy"], "length only": rm["length_only_accuracy"]} if rm else {}),
        "judge before": before["judge"],
        "judge after": after["judge"],
        "max approx_kl": max(entry["approx_kl"] for entry in results.history),
        "max KL to ref": max(entry["kl_to_ref"] for entry in results.history),
        "distinct-2 ratio": after["distinct_2"] / max(before["distinct_2"], 1e-9),
        "seconds": sum(figures["seconds"] for figures in results.stages.values()),
    }


def _summary(name: str, rows: Sequence[dict], of) -> dict:
    numbers = {
        column: of([row[column] for row in rows]) for column in rows[0] if column not in ("seed", "passed")
    }
    return {"seed": name, "passed": "", **numbers}


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _shown(value) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def as_text(rows: Sequence[dict[str, str]]) -> str:
    """Rows of texts as a table, its columns as wide as they have to be."""
    widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in rows[0]}
    lines = [[column.rjust(width) for column, width in widths.items()]]
    lines += [[row[column].rjust(width) for column, width in widths.items()] for row in rows]
    return "\n".join("  ".join(line) for line in lines)
