"""The drill in a notebook: choose, draw, type, check. The keyboard is enough.

Tab goes from field to field, Enter checks the field that one is in, and `?` with Enter asks for a hint, as in the terminal.
What is right stays in the kernel: the page gets an answer only when it is found or asked for.
"""

import asyncio
import html
from collections.abc import Callable
from pathlib import Path

import ipywidgets as widgets

from ..errors import LabError
from .blanks import LEAST_SHARE, MOST_SHARE, mark
from .game import RULES, Round, new_round
from .scores import Scores, trend
from .snippets import ANY, MODULE_OF

STYLE = """
.rlhf-cloze { color: var(--jp-ui-font-color1, inherit); font-size: 13px; line-height: 1.45; white-space: normal; }
.rlhf-cloze pre { color: inherit; background: rgba(128,128,128,.08); border: 1px solid rgba(128,128,128,.3);
  border-radius: 4px; padding: .7em 1em; margin: .2em 0; font-size: 13px; line-height: 1.55; overflow-x: auto;
  font-family: var(--jp-code-font-family, ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace); }
.rlhf-cloze pre span { border-radius: 3px; padding: 0 2px; }
.rlhf-cloze .open { background: rgba(86,180,233,.35); font-weight: 600; }
.rlhf-cloze .right { background: rgba(0,158,115,.28); }
.rlhf-cloze .shown { background: rgba(230,159,0,.28); }
.rlhf-cloze .ok { color: rgb(0,158,115); font-weight: 700; }
.rlhf-cloze .no { color: rgb(230,97,0); font-weight: 700; }
.rlhf-cloze .small { opacity: .8; }
.rlhf-cloze-field input { font-family: var(--jp-code-font-family, ui-monospace, Menlo, Consolas, monospace); }
"""
KEYS = "Enter checks a field, ? and Enter gives a hint, Tab goes to the next one."
SETTLED = 0.15  # seconds: the page says "Enter" first and sends what was typed right after it


class _Row:
    """The field of one blank, its button, and what is said about it."""

    def __init__(self, number: int, on_enter: Callable[["_Row"], None], on_hint: Callable[["_Row"], None]):
        self.number = number
        self.judged = ""  # the last answer that was judged
        self.field = widgets.Text(
            description=str(number), continuous_update=False,
            layout={"width": "26em"}, style={"description_width": "2em"},
        )  # fmt: skip
        self.field.add_class("rlhf-cloze-field")
        # the Tab key goes from field to field: a hint is "?" there
        self.button = widgets.Button(description="Hint", tabbable=False, layout={"width": "4.5em"})
        self.said = widgets.HTML()
        self.box = widgets.HBox(
            [self.field, self.button, self.said], layout={"flex_flow": "row wrap", "align_items": "center"}
        )
        self.field.on_msg(lambda _, content, __: content.get("event") == "submit" and on_enter(self))
        self.button.on_click(lambda _: on_hint(self))

    def say(self, text: str, sign: str = "") -> None:
        self.said.value = _page(f"{sign} {html.escape(text)}")

    def close(self) -> None:
        for part in (self.field, self.button, self.said, self.box):
            part.close()


class Drill(widgets.VBox):
    """The widget.

    Args:
        solutions: folder of the solutions.
        scores: where the rounds are kept.
        snippet, share, seed: of the first draw; see `new_round`.

    Raises:
        LabError: when there is no such snippet, share or seed.
    """

    def __init__(self, solutions: Path, scores: Scores, snippet: str, share: float, seed: int | None):
        self._solutions, self._scores = solutions, scores
        self.round = new_round(solutions, snippet, share, seed)
        self.lines: list[_Row] = []
        self.snippet = widgets.Dropdown(options=[ANY, *MODULE_OF], value=snippet, description="snippet")
        self.share = widgets.IntSlider(
            value=round(100 * share), min=round(100 * LEAST_SHARE), max=round(100 * MOST_SHARE), step=5,
            description="hidden, %", continuous_update=False,
        )  # fmt: skip
        self.new = widgets.Button(description="New draw", icon="refresh")
        self.check = widgets.Button(description="Check all", button_style="primary")
        self.show = widgets.Button(
            description="Show the rest", tooltip="The answers that are missing: it ends the round"
        )
        self.head, self.code, self.score = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.rows = widgets.VBox()
        self.new.on_click(lambda _: self.draw())
        self.check.on_click(lambda _: self.check_all())
        self.show.on_click(lambda _: self.show_rest())
        super().__init__(
            [
                widgets.HTML(f"<style>{STYLE}</style>"),
                widgets.HBox([self.snippet, self.share, self.new], layout={"flex_flow": "row wrap"}),
                self.head, self.code, self.rows, widgets.HBox([self.check, self.show]), self.score,
            ]
        )  # fmt: skip
        self._lay_out()

    def _repr_mimebundle_(self, **options) -> dict:
        """For a reader without widgets, the round as text."""
        bundle = super()._repr_mimebundle_(**options) or {}
        return bundle | {"text/plain": f"{self.round.title}\n\n{self.round.code()}"}

    # --- what the player does -----------------------------------------------------------------

    def draw(self) -> None:
        """Other blanks. A round that was begun ends here, as it stands."""
        if self.round.begun and self.round.open:
            self._end()
        try:
            self.round = new_round(self._solutions, self.snippet.value, self.share.value / 100, None)
        except LabError as error:
            self.head.value = _page(html.escape(str(error)))
            return
        self._lay_out()
        self.lines[0].field.focus()

    def enter(self, row: _Row) -> None:
        """Enter in a field: judge it, or with `?` give a hint."""
        if row.number not in self.round.open:
            return
        if row.field.value.strip() == "?":
            row.field.value = ""
            self.hint(row)
        elif self._judge(row):
            self._go_on()

    def hint(self, row: _Row) -> None:
        """Say the next hint of a blank; the last one is the answer."""
        row.say(self.round.hint(row.number))
        self._refresh()
        if row.number in self.round.open:
            row.field.focus()
        else:
            self._go_on()

    def check_all(self) -> None:
        """Judge what was written since it was judged last."""
        for row in self._open_rows():
            self._judge(row)
        self._go_on()

    def show_rest(self) -> None:
        """Show the answers that are missing, which ends the round."""
        for row in self._open_rows():
            row.say(f"It is {self.round.give_up(row.number)}.")
        self._refresh()

    # --- what follows from it -----------------------------------------------------------------

    def _judge(self, row: _Row) -> bool:
        """Judge the text of a row, unless it is empty or was judged before; whether it is right."""
        answer = row.field.value.strip()
        if not answer or answer == row.judged:
            return False
        row.say("...")
        try:
            verdict = self.round.answer(row.number, answer)
        except LabError as error:
            row.say(str(error))
            return False
        except KeyboardInterrupt:
            row.say("Stopped.")
            return False
        row.judged = answer
        sign = '<span class="ok">\u2713</span>' if verdict.right else '<span class="no">\u2717</span>'
        row.say(verdict.sentence, sign)
        self._refresh()
        return verdict.right

    def _go_on(self) -> None:
        """Put the cursor where it goes on."""
        rows = self._open_rows()
        (rows[0].field if rows else self.new).focus()

    def _open_rows(self) -> list[_Row]:
        return [row for row in self.lines if row.number in self.round.open]

    def _lay_out(self) -> None:
        """Fields for a new round."""
        old, drawn = self.lines, self.round.draw
        self._ended = False
        self.lines = [_Row(number, self._entered, self.hint) for number in self.round.numbers]
        self.rows.children = [row.box for row in self.lines]
        for row in old:
            row.close()
        call = f'lab.cloze("{drawn.snippet.name}", share={drawn.share:g}, seed={drawn.seed})'
        self.head.value = _page(
            f"<b>{html.escape(self.round.title)}</b> · {len(drawn.blanks)} blanks hide {drawn.hidden} of "
            f'{drawn.places} places <span class="small">· the same again: <code>{html.escape(call)}</code></span>'
        )
        self._refresh()

    def _entered(self, row: _Row) -> None:
        try:
            asyncio.get_running_loop().call_later(SETTLED, self.enter, row)
        except RuntimeError:  # no page that could still send something
            self.enter(row)

    def _refresh(self) -> None:
        """Code, fields and score as the round stands."""
        self.code.value = _page(f"<pre>{_code(self.round)}</pre>")
        for row in self.lines:
            is_open = row.number in self.round.open
            row.field.disabled, row.button.disabled = not is_open, not is_open
        self.check.disabled = self.show.disabled = not self.round.open
        if not self.round.open and not self._ended:
            self._end()
        elif self.round.open:
            self.score.value = _page(f'{self.round.score_line}. <span class="small">{KEYS} {RULES}</span>')

    def _end(self) -> None:
        """Keep the round and say how it went."""
        self._ended = True
        problem = self._scores.add(self.round.to_score())
        lines = [f"<b>{self.round.score_line}.</b>", html.escape(problem), trend(self._scores.rounds())]
        self.score.value = _page("<br>".join(filter(None, lines)))


def _page(inner: str) -> str:
    return f'<div class="rlhf-cloze">{inner}</div>'


def _code(game: Round) -> str:
    """The code as a piece of a page: open blanks, right answers and shown ones are marked."""
    pieces, filled = game.draw.pieces(), game.filled()
    parts = [html.escape(pieces[0])]
    for number, after in enumerate(pieces[1:], 1):
        kind = "right" if game.is_right(number) else "shown" if number in filled else "open"
        parts.append(
            f'<span class="{kind}">{html.escape(filled.get(number, mark(number)))}</span>{html.escape(after)}'
        )
    return "".join(parts)
