"""The page of a run on a GPU, and its pictures, out of the results that are there so far."""

import statistics
from collections.abc import Mapping
from pathlib import Path

from rlhf_lab.bench import PHASES
from rlhf_lab.pictures import png_bytes, ppo_figure, seeds_figure
from rlhf_lab.runs import write_bytes

from ..tables import markdown_table

ASKED_SECONDS = 90  # for 50 PPO steps of batch 64, of a model of 124 to 135 million parameters
MISSING = "missing"
INTRODUCTION = """\
Made by `python -m authoring gpu`. `results.json` holds every figure, `NAME.txt` and `NAME.err` what each command printed.
"""


def write_page(out: Path, results: dict) -> None:
    """Write `gpu-run.md` and the pictures into the folder of the run."""
    machine, commands = results["machine"], results["commands"]
    lines = [f"# GPU run: {machine['card']}", "", INTRODUCTION]
    lines.append(markdown_table(["what", "here"], machine.items()))
    for title, prefix, section in SECTIONS:
        entries = {name: entry for name, entry in commands.items() if name.startswith(prefix)}
        lines += ["", f"## {title}", ""]
        for name, entry in entries.items():
            lines += [f"`{entry['command']}`  ", f"{name}: {entry['state']}, {entry['seconds']} s", ""]
        lines += section(out, entries) if entries else ["Not yet run."]
    write_bytes(out / "gpu-run.md", ("\n".join(lines).rstrip() + "\n").encode())


def _demo(out: Path, entries: Mapping[str, dict]) -> list[str]:
    printed = (
        (out / "demo.txt").read_text(encoding="utf-8", errors="replace").strip().replace(str(out), "OUT")
    )
    lines = ["```text", *printed.splitlines(), "```", "", *_runs(entries)]
    if history := entries["demo"]["figures"]["ppo"]:
        write_bytes(out / "demo.png", png_bytes(ppo_figure(history)))
        lines += ["", "![PPO on tiny](demo.png)"]
    return lines


def _curves(out: Path, entries: Mapping[str, dict]) -> list[str]:
    lines = [*_runs(entries), "", f"Asked of 50 steps of batch 64: under {ASKED_SECONDS} s."]
    histories = {
        int(name.removeprefix("curves-")): entry["figures"]["ppo"] for name, entry in entries.items()
    }
    if histories := {seed: history for seed, history in histories.items() if history}:
        write_bytes(out / "curves.png", png_bytes(seeds_figure(histories)))
        lines += ["", "![the judge over the steps, one line a seed](curves.png)"]
    return lines


def _runs(entries: Mapping[str, dict]) -> list[str]:
    columns = {
        "steps": "steps", "PPO, s": "seconds", "a step, s": "seconds_per_step", "reward, first 5": "reward_first",
        "reward, last 5": "reward_last", "judge before": "judge_before", "judge after": "judge_after",
        "largest approx_kl": "approx_kl", "largest KL to ref": "kl_to_ref",
    }  # fmt: skip
    rows = [
        (name, *(_shown(entry["figures"].get(key)) for key in columns.values()))
        for name, entry in entries.items()
    ]
    return [markdown_table(["run", *columns], rows)]


def _grading(out: Path, entries: Mapping[str, dict]) -> list[str]:
    found = entries["grading"]["figures"]
    if not found:
        return [f"Figures: {MISSING}."]
    rows = [
        (
            row["what"], f"{row['score']:g} of {row['max']:g}", "yes" if row["as_expected"] else "NO",
            _shown(row["seconds"]), row["messages"][0] if row["messages"] else "",
        )
        for row in found["rows"]
    ]  # fmt: skip
    trained = "" if found["training"] else " The tests that train were left out."
    table = markdown_table(
        ["`train_ppo`", "points", "as expected", "s", "the first sentence to the student"], rows
    )
    return [table, "", f"{len(rows)} of {found['asked']} examined; {found['confinement']}.{trained}"]


def _bench(out: Path, entries: Mapping[str, dict]) -> list[str]:
    """Each phase of each model beside its floor, and below the table what they were measured on."""
    rows = []
    for name, entry in entries.items():
        found = entry["figures"] or {}
        for phase in (*PHASES, "total"):
            taught, floor = found.get("taught", {}).get(phase), found.get("floor", {}).get(phase)
            share = found.get("share_of_floor", {}).get(phase)
            rows.append(
                (
                    name.removeprefix("bench-"), phase, _shown(taught and statistics.median(taught)), _shown(floor),
                    MISSING if share is None else f"{share:.1%}",
                    _shown(found.get("naive_over_taught", {}).get(phase)),
                )
            )  # fmt: skip
    columns = "model", "phase", "taught code, s", "floor, s", "speed, share of the floor's", "naive/taught"
    lines = [markdown_table(columns, rows)]
    for name, entry in entries.items():
        if found := entry["figures"]:
            lines += [
                "",
                f"{name}: {found['parameters'] / 1e6:.1f} million parameters, {found['compute']}, batch "
                f"{found['batch_size']}, {found['new_tokens']} new tokens; a {found['matmul_shape']} product does "
                f"{found['matmul_flops_per_second'] / 1e12:.3g} trillion operations a second, a copy moves "
                f"{found['copy_bytes_per_second'] / 1e9:,.1f} GB a second; peak memory "
                f"{found['taught_peak_bytes'] / 2**20:,.0f} MiB.",
            ]
    return lines


SECTIONS = (
    ("Demo on tiny", "demo", _demo),
    ("Curves", "curves-", _curves),
    ("Grading: the solution and wrong training loops", "grading", _grading),
    ("Speed beside the floor", "bench-", _bench),
)


def _shown(value: float | None) -> str:
    if value is None:
        return MISSING
    return str(value) if isinstance(value, int) else f"{value:.4g}"
