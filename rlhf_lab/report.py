"""The report of a run: one HTML file that holds everything it shows and needs neither network nor scripts."""

import base64
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup

from .runs import write_bytes
from .token_table import text_html

FIGURES = ("ppo", "seeds", "reward_model", "sft")


def write_report(
    path: Path,
    *,
    title: str,
    settings: dict,
    machine: str,
    seconds: dict[str, float],
    scorecard: Sequence,
    figures: dict[str, bytes],
    samples: Sequence[dict],
    token_table_html: str,
    index_picture_html: str,
    notes: Sequence[str],
    seeds_table: Sequence[dict] | None,
) -> None:
    """Write the report to `path`, which holds either what it held before or the whole new report.

    Args:
        settings: of the run, by name.
        machine: one line about processor, memory and versions.
        seconds: time of each stage.
        scorecard: points with `number, name, figure, threshold, passed`; may be empty.
        figures: PNG files by name, any of `FIGURES`; a section without its figure is left out.
        samples: dicts with `prompt`, `before`, `after` (the responses), `judge_before`, `judge_after`
            (probabilities of being positive).
        token_table_html, index_picture_html: of the two pictures' `_repr_html_`; put in as they are.
        notes: sentences that belong beside the score card.
        seeds_table: one dict per line, all with the same keys, in the order of the columns.

    Raises:
        LabError: when the file cannot be written.
    """
    if unknown := set(figures) - set(FIGURES):
        raise ValueError(f"no place in the report for the figures {sorted(unknown)}; it knows {FIGURES}")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["bilingual"] = lambda text: Markup(text_html(text))
    environment.filters["plain"] = _plain
    environment.filters["duration"] = _duration
    template = files(__package__).joinpath("report.html.jinja").read_text(encoding="utf-8")
    page = environment.from_string(template).render(
        title=title,
        settings=settings,
        machine=machine,
        seconds=seconds,
        scorecard=scorecard,
        figures={name: base64.b64encode(png).decode() for name, png in figures.items()},
        samples=samples,
        token_table=Markup(token_table_html),
        index_picture=Markup(index_picture_html),
        notes=notes,
        seeds_table=seeds_table,
    )
    write_bytes(path, page.encode())


def _plain(value) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"
