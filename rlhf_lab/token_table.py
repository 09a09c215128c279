"""Two pictures of a rollout, drawn from its real tensors: the token table and the picture of indices.

Both show themselves in a notebook (as HTML, in the page's own text colour, so that they follow its light or
dark theme) and print as plain text in a terminal. Tokens are text that a model sampled: they are escaped, and
what cannot be seen is made visible.
"""

import html
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import LabError

# --- text of a token ------------------------------------------------------------------------------

SHOWN = {" ": "·", "\n": "⏎", "\t": "⇥"}


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character (as GPT-2's `encoder.py` does)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}


BYTE_OF_CHARACTER = _byte_of_character()


def token_texts(tokenizer, ids: Sequence[int]) -> list[str]:
    """Each token as it is to be read alone.

    A space is `·`, a line end `⏎`, bytes that are only a part of a character `‹E6 B1›`, and a character
    without a shape `‹U+200B›`.
    """
    return [_visible(_token_text(tokenizer, token_id)) for token_id in ids]


def _token_text(tokenizer, token_id: int) -> str:
    """The token's text; bytes that are no whole character come as lone surrogates (PEP 383)."""
    text = tokenizer.decode([token_id], clean_up_tokenization_spaces=False)
    piece = tokenizer.convert_ids_to_tokens(token_id)
    if "\N{REPLACEMENT CHARACTER}" not in text or piece is None:
        return text
    if byte_fallback := re.fullmatch(r"<0x([0-9A-F]{2})>", piece):  # SentencePiece's way to write a byte
        raw = bytes([int(byte_fallback[1], 16)])
    elif all(character in BYTE_OF_CHARACTER for character in piece):
        raw = bytes(BYTE_OF_CHARACTER[character] for character in piece)
    else:
        return text
    return raw.decode("utf-8", "surrogateescape")


def _visible(text: str) -> str:
    def show(match: re.Match) -> str:
        run = match[0]
        if "\udc80" <= run[0] <= "\udcff":
            return "‹" + " ".join(f"{ord(character) - 0xDC00:02X}" for character in run) + "›"
        return SHOWN.get(run) or (run if run.isprintable() else f"‹U+{ord(run):04X}›")

    return re.sub("[\udc80-\udcff]+|.", show, text, flags=re.DOTALL)


CHINESE = re.compile("([\u2e80-\u303f\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]+)")


def text_html(text: str) -> str:
    """The text, escaped; Chinese is marked as such, and the writing direction of the text stays inside it."""
    parts = CHINESE.sub(r'<span lang="zh-Hans">\1</span>', html.escape(text))
    return f"<bdi>{parts}</bdi>"


def _width(text: str) -> int:
    """Columns of a terminal: a Chinese character takes two."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _plain_table(rows: list[list[str]], right: set[int]) -> str:
    """Rows of cells as aligned columns; the columns numbered in `right` are flush right."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        fills = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [
            fill + cell if i in right else cell + fill
            for i, (cell, fill) in enumerate(zip(row, fills, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


STYLE = """
.rlhf-lab { color: inherit; font-size: 13px; line-height: 1.35; margin: .4em 0 1em; }
.rlhf-lab .scroll { overflow-x: auto; }
.rlhf-lab table { border-collapse: collapse; margin: .3em 0; font-size: inherit; color: inherit; border: 0; }
.rlhf-lab tr { background: none !important; } /* JupyterLab stripes its tables */
.rlhf-lab td, .rlhf-lab th { color: inherit; border: 0; white-space: nowrap; }
.rlhf-lab .token { font-family: ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono",
  "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", monospace; }
.rlhf-lab .note { opacity: .8; margin: .3em 0; max-width: 75em; }
.rlhf-lab .caption { font-weight: 600; margin: .6em 0 .2em; }
.rlhf-lab .values th { text-align: right; padding: .25em .7em; font-weight: 600;
  border-bottom: 1px solid rgba(128,128,128,.6); }
.rlhf-lab .values td { text-align: right; padding: .15em .7em; height: 1.75em;
  font-variant-numeric: tabular-nums; border-bottom: 1px solid rgba(128,128,128,.18); }
.rlhf-lab .values .token { text-align: left; }
.rlhf-lab .values th.token { font-family: inherit; }
.rlhf-lab .plain td.token { white-space: normal; min-width: 4em; max-width: 30em; }
.rlhf-lab .values tr.outside { opacity: .42; }
.rlhf-lab .values td.broken { font-weight: 700; text-decoration: underline wavy; }
.rlhf-lab .indices { border-collapse: separate; border-spacing: 2px 4px; font-size: 12px; }
.rlhf-lab .indices th, .rlhf-lab .indices td { text-align: center; padding: .1em 0; font-weight: 400;
  font-variant-numeric: tabular-nums; background: none; }
.rlhf-lab .indices th:first-child { text-align: right; white-space: normal; min-width: 7.2em;
  padding-right: .6em; font-weight: 600; }
.rlhf-lab .indices .block { border-bottom: 2px solid rgba(128,128,128,.7); font-weight: 600; }
.rlhf-lab .indices .position { opacity: .75; font-size: 11px; }
.rlhf-lab .indices .box, .rlhf-lab .legend .box { border: 1px solid rgba(128,128,128,.55); border-radius: 4px;
  font-size: 11px; }
.rlhf-lab .indices td.box { min-width: 1.6em; white-space: normal; padding: .25em .2em;
  word-break: keep-all; }
.rlhf-lab .legend .box { padding: .1em .5em; margin-right: .8em; display: inline-block; }
.rlhf-lab .box.left-pad, .rlhf-lab .box.right-pad { border-style: dashed; }
.rlhf-lab .box.left-pad bdi, .rlhf-lab .box.right-pad bdi { opacity: .5; }
.rlhf-lab .box.right-pad { background:
  repeating-linear-gradient(135deg, rgba(128,128,128,.22) 0 2px, transparent 2px 7px); }
.rlhf-lab .box.prompt { background: rgba(128,128,128,.22); }
.rlhf-lab .box.response { background: rgba(0,114,178,.26); }
.rlhf-lab .box.eos { background: rgba(230,159,0,.42); border: 2px solid rgb(230,159,0); font-weight: 600; }
.rlhf-lab .indices .first { outline: 2px solid rgb(213,94,0); outline-offset: 1px; border-radius: 4px;
  font-weight: 600; }
@media print { .rlhf-lab .scroll { overflow: visible; } .rlhf-lab .indices { zoom: .6; } }
"""


def _page(parts: list[str]) -> str:
    """The picture as a piece of a page; it brings its style along, since it may stand anywhere."""
    return f'<div class="rlhf-lab"><style>{STYLE}</style>{"".join(parts)}</div>'


def plain_table_html(rows: Sequence[dict], caption: str = "") -> str:
    """Rows of texts and numbers as a table in the same style; the keys of the first row are the headings."""
    names = list(rows[0]) if rows else []

    def cell(value) -> str:
        if isinstance(value, float):
            return f"<td>{value or 0.0:.4g}</td>".replace("-", "−")  # a zero has no sign
        number = isinstance(value, int) and not isinstance(value, bool)
        return f"<td>{value}</td>" if number else f'<td class="token">{text_html(str(value))}</td>'

    textual = {name for name in names if not isinstance(rows[0][name], (int, float))}
    header = "".join(
        f'<th scope="col"{" class=token" if name in textual else ""}>{html.escape(name)}</th>'
        for name in names
    )
    body = "".join(f"<tr>{''.join(cell(row[name]) for name in names)}</tr>" for row in rows)
    heading = f'<p class="caption">{text_html(caption)}</p>' if caption else ""
    return _page(
        [
            heading,
            f'<div class="scroll"><table class="values plain"><thead><tr>{header}</tr></thead>',
            f"<tbody>{body}</tbody></table></div>",
        ]
    )


# --- token table ----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class TokenTable:
    """One line per token, one block per response.

    Attributes:
        columns: `[batch, response]` each; floats are coloured by sign, `mask` decides what is greyed.
        tokens: texts of the same shape, or None.
        captions: a line above each block.
        note: a line below the last one.
    """

    columns: dict[str, Tensor]
    tokens: list[list[str]] | None
    captions: list[str]
    note: str = ""

    def _header(self) -> list[str]:
        return ["t", *(["token"] if self.tokens else []), *self.columns]

    def _valid(self, row: int, t: int) -> bool:
        return "mask" not in self.columns or bool(self.columns["mask"][row, t])

    def _scale(self, name: str) -> float:
        """Largest size of the column's finite values on the mask: the strongest colour."""
        values = self.columns[name].double()
        shown = values.isfinite()
        if "mask" in self.columns:
            shown &= self.columns["mask"].bool()
        return values[shown].abs().max().item() if shown.any() else 0.0

    def _cell(self, name: str, row: int, t: int, scale: float) -> str:
        values = self.columns[name]
        value = values[row, t].item()
        text = _number(value).replace("-", "−")
        if not values.is_floating_point():
            return f"<td>{text}</td>"
        if not math.isfinite(value):
            return f'<td class="broken">{text}</td>'
        strength = min(abs(value) / scale, 1.0) if scale else 0.0
        if not self._valid(row, t) or strength < 0.02:
            return f"<td>{text}</td>"
        color = "0,114,178" if value > 0 else "213,94,0"
        return f'<td style="background:rgba({color},{0.05 + 0.4 * strength:.2f})">{text}</td>'

    def _repr_html_(self) -> str:
        scales = {name: self._scale(name) for name in self.columns}
        parts = []
        for row, caption in enumerate(self.captions):
            header = "".join(
                f'<th scope="col"{" class=token" if name == "token" else ""}>{html.escape(name)}</th>'
                for name in self._header()
            )
            lines = []
            for t in range(self._length()):
                token = f'<td class="token">{text_html(self.tokens[row][t])}</td>' if self.tokens else ""
                cells = "".join(self._cell(name, row, t, scales[name]) for name in self.columns)
                outside = "" if self._valid(row, t) else ' class="outside"'
                lines.append(f"<tr{outside}><td>{t}</td>{token}{cells}</tr>")
            parts.append(
                (f'<p class="caption">{text_html(caption)}</p>' if caption else "")
                + f'<div class="scroll"><table class="values"><thead><tr>{header}</tr></thead>'
                + f"<tbody>{''.join(lines)}</tbody></table></div>"
            )
        parts.append(
            f'<p class="note">{html.escape(self.note)} {"Greyed: outside the mask. " if "mask" in self.columns else ""}'
            f"Background: blue above zero, orange below, the stronger the larger within its column.</p>"
        )
        return _page(parts)

    def __repr__(self) -> str:
        blocks = []
        for row, caption in enumerate(self.captions):
            lines = [[*self._header(), ""]]
            for t in range(self._length()):
                token = [self.tokens[row][t]] if self.tokens else []
                numbers = [_number(column[row, t].item()) for column in self.columns.values()]
                remark = "" if self._valid(row, t) else "(outside the mask)"
                lines.append([str(t), *token, *numbers, remark])
            flush_right = {0, *range(1 + bool(self.tokens), len(lines[0]) - 1)}
            blocks.append("\n".join(filter(None, [caption, _plain_table(lines, flush_right)])))
        return "\n\n".join([*blocks, self.note] if self.note else blocks)

    def _length(self) -> int:
        return next(iter(self.columns.values())).shape[1]


def _number(value: float | bool) -> str:
    if isinstance(value, int):
        return str(int(value))
    if value == 0 or not math.isfinite(value):
        return "0.000" if value == 0 else str(value)
    return f"{value:+.1e}" if abs(value) >= 1000 or abs(value) < 0.0005 else f"{value:+.3f}"


def token_table(
    tokens: Sequence[str] | Sequence[Sequence[str]] | None = None, **columns: Tensor
) -> TokenTable:
    """Show per-token tensors side by side.

    Args:
        tokens: texts of one response, or of each of several.
        columns: tensors `[response]`, or `[batch, response]` for several, in the order in which they are to
            stand. Floats are coloured by sign; where there is a `mask`, positions outside it are greyed.

    Raises:
        LabError: when the shapes do not agree; the sentence names the column.
    """
    if not columns:
        raise LabError("token_table needs at least one column, such as mask=response_mask")
    tensors = {name: torch.as_tensor(column).detach().cpu() for name, column in columns.items()}
    if "mask" in tensors:
        tensors["mask"] = tensors["mask"].long()  # 0 and 1, whichever dtype it came in
    first, expected = next((name, tuple(tensor.shape)) for name, tensor in tensors.items())
    for name, tensor in tensors.items():
        if tensor.dim() not in (1, 2) or tuple(tensor.shape) != expected:
            raise LabError(
                f"token_table: {name} has shape {list(tensor.shape)}; expected [response] or "
                f"[batch, response], and the same as {first}, which has {list(expected)}"
            )
    one_row = len(expected) == 1
    if tokens is not None:
        tokens = [list(tokens)] if one_row else [list(row) for row in tokens]
        shape = [len(tokens), *sorted({len(row) for row in tokens})]
        if shape != [1, *expected][-2:]:
            raise LabError(f"token_table: tokens has shape {shape[one_row:]}, {first} has {list(expected)}")
    tensors = {name: tensor.reshape(-1, expected[-1]) for name, tensor in tensors.items()}
    captions = [""] if one_row else [f"row {row}" for row in range(expected[0])]
    return TokenTable(tensors, tokens, captions)


def rollout_table(rollout, tokenizer, row: int, kl_coef: float, code) -> TokenTable:
    """Everything PPO knows about the tokens of one response.

    Args:
        rollout: a `Rollout` of the taught code.
        row: which response.
        kl_coef: price of a nat of KL to the reference.
        code: the taught package; its `ppo.shape_token_rewards` and `ppo.compute_gae` fill the columns reward,
            advantage and return, so that a reader sees their own functions at work.
    """
    mask, logprobs, ref_logprobs = rollout.response_mask, rollout.old_logprobs, rollout.ref_logprobs
    rewards = code.ppo.shape_token_rewards(rollout.rm_score, logprobs, ref_logprobs, mask, kl_coef)
    advantages, returns = code.ppo.compute_gae(rewards, rollout.old_values, mask)

    prompt_length = rollout.full_ids.shape[1] - mask.shape[1]
    prompt_ids = rollout.full_ids[row, :prompt_length][rollout.full_mask[row, :prompt_length].bool()]
    log_ratio = (logprobs - ref_logprobs)[row][mask[row].bool()]
    table = token_table(
        token_texts(tokenizer, rollout.full_ids[row, prompt_length:].tolist()),
        **{
            "mask": mask[row],
            "logprob": logprobs[row],
            "ref_logprob": ref_logprobs[row],
            "reward": rewards[row],
            "value": rollout.old_values[row],
            "advantage": advantages[row],
            "return": returns[row],
        },
    )
    caption = (
        f"row {row} · prompt “{tokenizer.decode(prompt_ids)}” · "
        f"score {_number(rollout.rm_score[row].item())} · "
        f"logprob - ref_logprob, summed: {_number(log_ratio.sum().item())}"
    )
    note = (
        f"Log-probabilities in nats. A token's reward is the KL penalty, {kl_coef:g} per nat; the score "
        f"joins it at the last token of the mask. Advantages are shown before whitening."
    )
    return TokenTable(table.columns, table.tokens, [caption], note)


# --- picture of indices ---------------------------------------------------------------------------

KINDS = {  # kind: its CSS class
    "left pad": "left-pad",
    "prompt": "prompt",
    "response": "response",
    "EOS": "eos",
    "right pad": "right-pad",
}


@dataclass(frozen=True, repr=False)
class IndexPicture:
    """Where each token stands, and where its log-probability and value are read.

    Attributes:
        rows: numbers of the rows shown.
        ids, texts, kinds: of each position of each row; the kinds are those of `KINDS`.
        prompt_length, response_length: widths P and R of the two blocks.
        example: one sentence about the first response token of the first row, with its real numbers.
    """

    rows: list[int]
    ids: list[list[int]]
    texts: list[list[str]]
    kinds: list[list[str]]
    prompt_length: int
    response_length: int
    example: str

    def _label(self, i: int, position: int) -> str:
        """A box shows its token, or what it is where the token says less."""
        kind = self.kinds[i][position]
        return {"left pad": "pad", "right pad": "pad", "EOS": "EOS"}.get(kind) or self.texts[i][position]

    def _repr_html_(self) -> str:
        P, R = self.prompt_length, self.response_length
        positions = "".join(f'<th scope="col" class="position">{i}</th>' for i in range(P + R))
        response_index = "".join(
            f'<th scope="col"{" class=first" if t == 0 else ""}>{t}</th>' for t in range(R)
        )
        read_index = "".join(f"<td{' class=first' if t == 0 else ''}>{t}↗</td>" for t in range(R))
        boxes = ["".join(self._box(i, position) for position in range(P + R)) for i in range(len(self.rows))]
        sequences = "".join(
            f'<tr><th scope="row">row {row}</th>{line}</tr>'
            for row, line in zip(self.rows, boxes, strict=True)
        )
        legend = "".join(f'<span class="box {css}"><bdi>{kind}</bdi></span>' for kind, css in KINDS.items())
        return _page(
            [
                '<div class="scroll"><table class="indices"><thead>',
                f'<tr><th></th><th class="block" colspan="{P}">prompt block, P = {P}</th>',
                f'<th class="block" colspan="{R}">response block, R = {R}</th></tr>',
                f'<tr><th scope="row">position</th>{positions}</tr>',
                f'<tr><th scope="row">response token&nbsp;t</th><td colspan="{P}"></td>{response_index}</tr>',
                f"</thead><tbody>{sequences}</tbody><tfoot>",
                '<tr><th scope="row">logprobs[:,&nbsp;t], values[:,&nbsp;t] are read here</th>',
                f'<td colspan="{P - 1}"></td>' if P > 1 else "",
                f"{read_index}<td></td></tr></tfoot></table></div>",
                f'<p class="legend">{legend}</p>',
                f'<p class="note">{html.escape(self._explanation())}</p>',
                f'<p class="note">{text_html(self.example)}</p>',
            ]
        )

    def _box(self, i: int, position: int) -> str:
        kind = self.kinds[i][position]
        first = " first" if position == self.prompt_length else ""
        title = html.escape(
            f"position {position}: {kind}, id {self.ids[i][position]}, {self.texts[i][position]}"
        )
        label = self._label(i, position)
        lines = "<wbr>".join(text_html(label[at : at + 7]) for at in range(0, len(label), 7))
        return f'<td class="token box {KINDS[kind]}{first}" title="{title}">{lines}</td>'

    def _explanation(self) -> str:
        return (
            f"What a causal model puts out at a position is about the next one: the log-probability and the "
            f"value of response token t, which stands at position P+t, are read one to the left, at P-1+t = "
            f"{self.prompt_length - 1}+t."
        )

    def __repr__(self) -> str:
        """Position by position from top to bottom, since a terminal is higher than wide."""
        P, R = self.prompt_length, self.response_length
        lines = [["position", "t", "reads t", *(f"row {row}" for row in self.rows)]]
        for position in range(P + R):
            t = str(position - P) if position >= P else ""
            reads = str(position - P + 1) if P - 1 <= position < P + R - 1 else ""
            boxes = [f"{kinds[position]:<9} {self._label(i, position)}" for i, kinds in enumerate(self.kinds)]
            lines.append([str(position), t, reads, *boxes])
        return "\n".join(
            [f"P = {P}, R = {R}", _plain_table(lines, right={0, 1, 2}), self._explanation(), self.example]
        )


def index_picture(rollout, tokenizer, rows: slice = slice(0, 4)) -> IndexPicture:
    """Draw the layout of a rollout: left pad, prompt, response, EOS, right pad, and the two indices.

    What a position is follows from the masks, not from the ids: pad and EOS may be the same token.

    Args:
        rollout: a `Rollout` of the taught code.
        rows: which of its sequences.
    """
    numbers = list(range(rollout.full_ids.shape[0]))[rows]
    ids = rollout.full_ids[rows].tolist()
    valid = rollout.full_mask[rows].bool().tolist()
    response_length = rollout.response_mask.shape[1]
    prompt_length = len(ids[0]) - response_length

    def kind(i: int, position: int) -> str:
        if position < prompt_length:
            return "prompt" if valid[i][position] else "left pad"
        if not valid[i][position]:
            return "right pad"
        return "EOS" if ids[i][position] == tokenizer.eos_token_id else "response"

    texts = [token_texts(tokenizer, row) for row in ids]
    first = numbers[0]
    logprob, value = rollout.old_logprobs[first, 0].item(), rollout.old_values[first, 0].item()
    example = (
        f"For example logprobs[{first}, 0] = {logprob:.3f} is the log-probability of "
        f"“{texts[0][prompt_length]}”, which stands at position {prompt_length}, and values[{first}, 0] = "
        f"{value:.3f} is the value before it: both are read at position "
        f"{prompt_length - 1}, where the model has just read “{texts[0][prompt_length - 1]}”."
    )
    return IndexPicture(
        rows=numbers,
        ids=ids,
        texts=texts,
        kinds=[[kind(i, position) for position in range(len(row))] for i, row in enumerate(ids)],
        prompt_length=prompt_length,
        response_length=response_length,
        example=example,
    )
