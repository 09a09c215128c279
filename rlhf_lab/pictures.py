"""Figures of a run: SFT, reward model, PPO, and PPO over several seeds.

Each function takes plain numbers (histories as the stages record them) and returns a matplotlib `Figure` that
has never met pyplot: nothing global changes, and it draws without a display. In a notebook the figure shows
itself as the last line of a cell.

Colours are those of Okabe and Ito (2008, "Color universal design"), which stay apart under every common form
of colour blindness; lines that share a panel differ in dash or width too. No text in a figure is Chinese,
since the fonts that matplotlib ships lack the glyphs.
"""

import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from .cloze.scores import percent
from .thresholds import APPROX_KL, JUDGE

BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"
GREY = "#999999"

INK, RULE, GRID = "#222222", "#555555", "#DDDDDD"

DPI = 150
SHOWN_DPI = (
    96  # pixels per inch on the page: a PNG carries more than it shows, so that it is sharp on any screen
)

STYLE = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": RULE,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.02,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "text.color": INK,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
}


class LabFigure(Figure):
    """A figure that a notebook can show without pyplot."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        width, height = (round(inches * SHOWN_DPI) for inches in self.get_size_inches())
        return png_bytes(self), {"width": width, "height": height}


def png_bytes(figure: Figure) -> bytes:
    """The figure as a PNG file; the same figure gives the same bytes.

    64 colours are plenty for lines and text, and make the file three times smaller.
    """
    drawn, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    image = Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    image.save(packed, format="png", optimize=True, dpi=(DPI, DPI))
    return packed.getvalue()


def _panel(axes: Axes, title: str, ylabel: str, xlabel: str = "step") -> Axes:
    axes.set_title(title)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if xlabel == "step":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    return axes


def _series(history: Sequence[dict], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of one key; a history that does not number its steps counts from 1."""
    rows = [(row.get("step", i), row[key]) for i, row in enumerate(history, 1) if row.get(key) is not None]
    return [step for step, _ in rows], [value for _, value in rows]


def _line(axes: Axes, history: Sequence[dict], key: str, color: str, label: str = "", **style) -> None:
    """Draw one key over the steps; what was not recorded is not drawn."""
    steps, values = _series(history, key)
    if steps:
        marker = "o" if len(steps) < 15 else ""  # a single step is a point, not a line
        axes.plot(steps, values, color=color, label=label or key, marker=marker, markersize=3.5, **style)


def _rule(
    axes: Axes, y: float, label: str, *, above: bool = True, at: float = 0.99, color: str = RULE
) -> None:
    """A horizontal dashed line that says what it is, at its right end or at the share `at` of the width."""
    axes.axhline(y, color=color, linestyle=(0, (5, 3)), linewidth=1.1, label=f"_{label}")
    axes.annotate(
        label,
        (at, y),
        xycoords=("axes fraction", "data"),
        xytext=(0, 2 if above else -3),
        textcoords="offset points",
        ha="right" if at > 0.5 else "left",
        va="bottom" if above else "top",
        fontsize=8.5,
        color=color,
        bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6},
    )


def _from_zero(axes: Axes, least_top: float) -> None:
    """Let the y axis start at 0 and reach at least `least_top`."""
    top = max([least_top, *(y for line in axes.lines for y in line.get_ydata() if math.isfinite(y))])
    axes.set_ylim(0, top * 1.12)


def _figure(width: float, height: float) -> LabFigure:
    figure = LabFigure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.09)
    return figure


@rc_context(STYLE)
def sft_figure(
    losses: Sequence[float], heldout: Sequence[tuple[int, float]], threshold: float = 2.0
) -> Figure:
    """Cross-entropy of supervised fine-tuning, in nats per response token.

    Args:
        losses: training loss of each step; step `i` is drawn at `i + 1`, so that 0 is "before training".
        heldout: `(steps done, held-out loss)`, usually before the first step and after each epoch.
        threshold: the held-out loss to fall under; `inf` for none.
    """
    figure = _figure(8, 3.6)
    axes = _panel(figure.subplots(), "SFT: loss on response tokens", "loss (nats per token)")
    axes.plot(range(1, len(losses) + 1), losses, color=SKY, linewidth=1.2, label="training batch")
    if heldout:
        axes.plot(*zip(*heldout, strict=True), color=BLUE, marker="o", markersize=5, label="held-out")
        step, loss = heldout[-1]
        axes.annotate(
            f"{loss:.2f}",
            (step, loss),
            xytext=(0, 7),
            textcoords="offset points",
            ha="right",
            color=BLUE,
            fontweight="bold",
        )
    if math.isfinite(threshold):
        _rule(axes, threshold, f"held-out threshold {threshold:g}")
    _from_zero(axes, threshold if math.isfinite(threshold) else 0.0)
    axes.legend(loc="upper right")
    return figure


@rc_context(STYLE)
def reward_model_figure(
    history: Sequence[dict],
    heldout_accuracy: float,
    length_only_accuracy: float,
    threshold: float,
    scores_chosen: Sequence[float],
    scores_rejected: Sequence[float],
) -> Figure:
    """Pairwise loss, accuracy beside what length alone would reach, and held-out scores of both sides.

    Args:
        history: `loss` (nats per pair) and `accuracy` (share of the batch) of each step.
        heldout_accuracy, length_only_accuracy, threshold: shares of held-out pairs.
        scores_chosen, scores_rejected: reward of each held-out response.
    """
    figure = _figure(10, 3.5)
    loss, accuracy, scores = figure.subplots(1, 3)

    _panel(loss, "Reward model: pairwise loss", "loss (nats per pair)")
    _line(loss, history, "loss", BLUE, linewidth=1.3)
    _rule(loss, math.log(2), "ln 2: a coin toss")
    _from_zero(loss, math.log(2))

    _panel(accuracy, "Pairs in the right order", "accuracy (share of pairs)")
    _line(accuracy, history, "accuracy", SKY, "training batch", linewidth=1, alpha=0.8)
    passed = heldout_accuracy >= threshold  # the two lines are often close: label them on their outer sides
    _rule(accuracy, heldout_accuracy, f"held-out {heldout_accuracy:.2f}", above=passed, color=BLUE)
    _rule(accuracy, threshold, f"threshold {threshold:g}", above=not passed)
    _rule(
        accuracy, length_only_accuracy, f"length only {length_only_accuracy:.2f}", above=False, color=ORANGE
    )
    accuracy.set_ylim(0, 1.08)
    accuracy.legend(loc="lower left")

    _panel(scores, "Held-out scores", "responses", xlabel="reward (model's own scale)")
    bins = _bins([*scores_chosen, *scores_rejected])
    for values, color, hatch, label in [
        (scores_rejected, ORANGE, "////", "rejected"),
        (scores_chosen, BLUE, "", "chosen"),
    ]:
        scores.hist(values, bins=bins, color=color, alpha=0.45, hatch=hatch, edgecolor="white", linewidth=0)
        scores.hist(values, bins=bins, color=color, histtype="step", linewidth=1.4, label=label)
    scores.grid(axis="x", visible=False)
    scores.yaxis.set_major_locator(MaxNLocator(integer=True))
    scores.set_ylim(top=scores.get_ylim()[1] * 1.15)
    scores.legend(loc="upper center", ncols=2)
    return figure


def _bins(values: Sequence[float], count: int = 24) -> list[float]:
    low, high = min(values), max(values)
    width = (high - low) / count or 1.0
    return [low + i * width for i in range(count + 1)]


@rc_context(STYLE)
def ppo_figure(history: Sequence[dict], healthy: Sequence[dict] = (), goal: float = JUDGE) -> Figure:
    """PPO step by step: what it is trained on, what the judge says, and what keeps the two together.

    Args:
        history: one dict per step. Drawn where recorded: `mean_reward` (the trained reward's own scale),
            `judge` (mean probability of being positive), `approx_kl` (nats per token), `kl_to_ref` (nats per
            response), `clipfrac`, `policy_loss`, `value_loss`, `eos_share`, `distinct_2`, `response_length`
            (tokens).
        healthy: the history of another run to compare with, drawn thin and grey behind each line.
        goal: what the judge shall say in the end.
    """
    figure = _figure(10, 8)
    panels = figure.subplot_mosaic("AAABBB;CCDDEE;FFGGHH")

    def line(axes: Axes, key: str, color: str, label: str = "", **style) -> None:
        _line(axes, history, key, color, label, **style)
        thin = {**style, "linewidth": 1.0, "zorder": 1}
        _line(axes, healthy, key, GREY, "healthy run" if key == "mean_reward" else f"_healthy {key}", **thin)

    axes = _panel(panels["A"], "Trained reward: what PPO is paid", "mean score (reward's own scale)")
    line(axes, "mean_reward", ORANGE, linewidth=1.8)

    axes = _panel(panels["B"], "Judge: PPO never sees it", "mean P(positive)")
    line(axes, "judge", BLUE, linewidth=1.8)
    _rule(axes, goal, f"goal {goal:.2f}", at=0.01)
    axes.set_ylim(0, 1)

    axes = _panel(panels["C"], "approx_kl: new to old policy", "nats per token")
    line(axes, "approx_kl", BLUE)
    _rule(axes, APPROX_KL, f"limit {APPROX_KL}")
    _from_zero(axes, APPROX_KL)

    axes = _panel(panels["D"], "KL to the reference", "nats per response")
    line(axes, "kl_to_ref", BLUE)
    axes.axhline(0, color=RULE, linewidth=0.8)

    axes = _panel(panels["E"], "Clip fraction", "share of tokens")
    line(axes, "clipfrac", BLUE)
    _from_zero(axes, 0.1)

    axes = _panel(panels["F"], "Losses", "loss (mean over tokens)")
    line(axes, "value_loss", PURPLE, "value", linestyle=(0, (4, 1.5)))
    line(axes, "policy_loss", GREEN, "policy")
    axes.axhline(0, color=RULE, linewidth=0.8)

    axes = _panel(panels["G"], "Shape of the samples", "share")
    line(axes, "eos_share", BLUE, "end with EOS")
    line(axes, "distinct_2", ORANGE, "distinct-2", linestyle=(0, (4, 1.5)))
    axes.set_ylim(-0.03, 1.05)  # a line at 0 is seen

    axes = _panel(panels["H"], "Response length", "tokens (mean)")
    line(axes, "response_length", BLUE)
    _from_zero(axes, 1)

    for name, axes in panels.items():
        recorded = len(axes.get_legend_handles_labels()[0])
        if not recorded:
            axes.text(
                0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color=RULE
            )
            axes.set_xticks([])
        elif name in "FG":
            axes.legend(loc="best", ncols=2)
    if healthy:
        panels["A"].legend(loc="best")
    return figure


@rc_context(STYLE)
def seeds_figure(histories: dict[int, Sequence[dict]], goal: float = JUDGE) -> Figure:
    """The judge's mean probability over PPO steps, one line per seed, with their mean and spread.

    Args:
        histories: a PPO history for each seed; mean and standard deviation cover the steps that all of them
            reached.
        goal: what the judge shall say in the end.
    """
    figure = _figure(8, 3.8)
    axes = _panel(figure.subplots(), "PPO over seeds: judge", "mean P(positive)")
    dashes = ["-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1, 1.5, 1))]
    colors = [SKY, ORANGE, GREEN, PURPLE]
    for i, (seed, history) in enumerate(sorted(histories.items())):
        _line(
            axes,
            history,
            "judge",
            colors[i % len(colors)],
            f"seed {seed}",
            linewidth=1.1,
            linestyle=dashes[i % len(dashes)],
        )

    if len(histories) > 1:
        columns = list(zip(*(_series(history, "judge")[1] for history in histories.values()), strict=False))
        steps = _series(next(iter(histories.values())), "judge")[0][: len(columns)]
        means = [statistics.fmean(column) for column in columns]
        spreads = [statistics.stdev(column) for column in columns]
        axes.fill_between(
            steps,
            [mean - spread for mean, spread in zip(means, spreads, strict=True)],
            [mean + spread for mean, spread in zip(means, spreads, strict=True)],
            color=BLUE,
            alpha=0.15,
            linewidth=0,
            label="mean ± standard deviation",
        )
        axes.plot(steps, means, color=BLUE, linewidth=2.4, label=f"mean of {len(histories)} seeds")
    _rule(axes, goal, f"goal {goal:.2f}", at=0.01)
    axes.set_ylim(0, 1)
    axes.legend(loc="lower right", ncols=2)
    return figure


@dataclass(frozen=True)
class Panel:
    """One panel of `curves`.

    Attributes:
        lines: label -> `(xs, ys)`; they differ in colour and dash, in this order.
        rules: label -> height of a horizontal dashed line.
    """

    title: str
    xlabel: str
    ylabel: str
    lines: dict[str, tuple[Sequence[float], Sequence[float]]]
    rules: dict[str, float] = field(default_factory=dict)


@rc_context(STYLE)
def curves(*panels: Panel) -> Figure:
    """Lines of plain numbers, in one panel or several side by side: for the small examples of the notebooks."""
    figure = _figure(max(5, 3.4 * len(panels)), 3.3)
    styles = [(BLUE, "-"), (ORANGE, (0, (5, 1.5))), (GREEN, (0, (1.5, 1))), (PURPLE, (0, (6, 1, 1.5, 1)))]
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _panel(axes, panel.title, panel.ylabel, panel.xlabel)
        for (label, (xs, ys)), (color, dash) in zip(panel.lines.items(), styles, strict=False):
            axes.plot(xs, ys, color=color, linestyle=dash, label=label)
        for label, height in panel.rules.items():
            _rule(axes, height, label)
        if len(panel.lines) > 1:
            axes.legend(loc="best")
    return figure


@rc_context(STYLE)
def cloze_figure(rounds: Sequence[dict]) -> Figure:
    """The drill's rounds one after the other: share of the points, and of the code that was hidden.

    Args:
        rounds: `points`, `of` and `share` of each.
    """
    figure = _figure(8, 3.2)
    axes = _panel(figure.subplots(), "Drill: points of each round", "percent", xlabel="round")
    rows = [{"points": percent(played), "hidden": 100 * played["share"]} for played in rounds]
    _line(
        axes,
        rows,
        "hidden",
        GREY,
        "share of the code that was hidden",
        linewidth=1.2,
        linestyle=(0, (4, 1.5)),
    )
    _line(axes, rows, "points", BLUE, "share of the points", linewidth=1.8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    axes.set_ylim(-3, 105)
    axes.legend(loc="best")
    return figure
