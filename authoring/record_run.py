"""Record a finished run for the notebook and for docs/runs.md, with DPO and GRPO from the same SFT model beside it."""

import dataclasses
from pathlib import Path

from rlhf_lab.lab import open_lab
from rlhf_lab.machine import describe_machine
from rlhf_lab.memory_command import memory_table
from rlhf_lab.methods import METHODS, compare_methods, to_rows
from rlhf_lab.pictures import png_bytes, ppo_figure
from rlhf_lab.pipeline import Results, run_pipeline
from rlhf_lab.real_run import RECORDED
from rlhf_lab.runs import check_finished, read_json, read_settings, write_bytes, write_json
from rlhf_lab.scorecard import format_card, score_card
from rlhf_lab.settings import Settings, defaults_for, flag

from .paths import ROOT
from .tables import markdown_table, table_of_rows, write_table

PAGE = ROOT / "docs" / "runs.md"
PICTURE = ROOT / "docs" / "smollm2-ratings.png"


def record_run(folder: Path) -> None:
    """Read a finished run, train DPO and GRPO from its SFT model, and write what was found.

    Raises:
        LabError: when the folder is not that of a finished run.
    """
    settings = read_settings(folder)
    check_finished(folder, *settings.stages_before_ppo, "ppo")
    lab = open_lab(settings, folder)
    results = run_pipeline(lab)  # all of it is finished: nothing is trained
    outcomes = compare_methods(settings.code, METHODS, [settings.seed], folder)
    recorded = {
        "command": _command(settings),
        "machine": f"{describe_machine()}; {lab.compute}",
        "card": format_card(score_card(results)).splitlines(),
        "history": [{name: round(value, 5) for name, value in entry.items()} for entry in results.history],
        "goal": results.judge_goal,
        "memory": "\n\n".join(
            memory_table(dataclasses.replace(settings, profile=p)) for p in ("8gb", "auto")
        ),
        "samples": read_json(folder / "ppo" / "samples.json"),
        "methods": to_rows(outcomes),
    }
    write_json(RECORDED, recorded)
    write_bytes(PICTURE, png_bytes(ppo_figure(results.history, goal=recorded["goal"])))
    write_table(PAGE, "real run", _page(results, recorded))


def _command(settings: Settings) -> str:
    """The command that was given: every setting that is not the default."""
    usual = dataclasses.asdict(Settings()) | defaults_for(settings.backbone, settings.data)
    own = {name: value for name, value in dataclasses.asdict(settings).items() if value != usual[name]}
    options = [f"{flag(name)} {value}" for name, value in own.items()]
    return " ".join(["python -m rlhf_lab run", *options])


def _page(results: Results, recorded: dict) -> str:
    rm, first, last = results.reward_model, results.history[:5], results.history[-5:]
    before, after = results.ppo["before"], results.ppo["after"]

    def mean(entries: list[dict], name: str) -> float:
        return sum(entry[name] for entry in entries) / len(entries)

    def vader(judge: float) -> str:
        """On its own scale, not on the judge's of 0 to 1."""
        return f"{2 * judge - 1:+.3f}"

    seconds = ", ".join(f"{name} {figures['seconds']:.0f} s" for name, figures in results.stages.items())
    by_margin = ", ".join(
        f"{kind}: {share:.3f}" for kind, share in rm["heldout_accuracy_by"]["margin"].items()
    )
    changes = [
        (
            "learned reward, mean of the first and of the last five steps",
            f"{mean(first, 'mean_reward'):+.3f}",
            f"{mean(last, 'mean_reward'):+.3f}",
        ),
        ("VADER, -1 to 1, of the same responses", vader(mean(first, "judge")), vader(mean(last, "judge"))),
        (
            "VADER, -1 to 1, of 192 responses to held-out prompts",
            vader(before["judge"]),
            vader(after["judge"]),
        ),
        ("distinct-2 of these", f"{before['distinct_2']:.3f}", f"{after['distinct_2']:.3f}"),
        ("end with EOS", f"{before['eos_share']:.0%}", f"{after['eos_share']:.0%}"),
    ]
    samples = [
        (
            row["prompt"],
            row["before"],
            f"{row['judge_before']:.2f}",
            row["after"],
            f"{row['judge_after']:.2f}",
        )
        for row in recorded["samples"]
    ]
    lines = [
        f"Measured on {recorded['machine']}. One seed. {seconds}; peak memory "
        f"{max(figures['peak_memory_mib'] for figures in results.stages.values()):,} MiB. The machine's cores are "
        f"shared: the seconds are an upper bound.",
        "",
        "```console",
        f"$ {recorded['command']}",
        *recorded["card"],
        "```",
        "",
        markdown_table(["", "before", "after"], changes),
        "",
        f"Accuracy of the reward model on held-out pairs by the distance of their mean ratings: {by_margin}; by length "
        f"alone {rm['length_only_accuracy']:.3f}.",
        "",
        f"![curves]({PICTURE.name})",
        "",
        "Responses to the same held-out prompts, with VADER's score from 0 to 1:",
        "",
        markdown_table(["prompt", "before PPO", "VADER", "after PPO", "VADER"], samples),
        "",
        "DPO and GRPO from the same SFT model, judged by VADER too (0 to 1; `python -m rlhf_lab methods --run FOLDER`; the "
        "accuracy is that of DPO's implicit reward on held-out pairs with a clear margin):",
        "",
        table_of_rows(recorded["methods"]),
    ]
    return "\n".join(lines)
