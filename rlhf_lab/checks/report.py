"""A report as text for a terminal and as HTML for a notebook."""

import html
import time

from .run import Line, Report

WIDTH = 44  # columns of a case's title


def to_text(report: Report) -> str:
    lines = [_heading(report)]
    for line in report.lines:
        lines.append(f"  {line.status:<5}  {line.title:<{WIDTH}}  {line.detail}".rstrip())
        lines += ["         " + note.replace("\n", "\n         ") for note in line.notes]
    nudge = f" For a nudge: python -m rlhf_lab hint {report.exercise.name}" if _has_nudge(report) else ""
    return "\n".join([*lines, f"  {report.closing}{nudge}"])


def display_report(report: Report) -> None:
    """Show a report in a notebook; a reader without HTML gets the text."""
    from IPython.display import display  # only notebooks need it

    display({"text/html": to_html(report), "text/plain": to_text(report)}, raw=True)


STYLE = """
.rlhf-check { color: inherit; font-size: 13px; line-height: 1.45; margin: .4em 0 1em; }
.rlhf-check table { border-collapse: collapse; font-size: inherit; color: inherit; border: 0; margin: .2em 0; }
.rlhf-check tr { background: none !important; }
.rlhf-check td { color: inherit; border: 0; text-align: left !important; vertical-align: top; padding: .12em 1.1em .12em 0;
  white-space: normal; background: none; }
.rlhf-check .head { font-weight: 600; }
.rlhf-check .file, .rlhf-check .later, .rlhf-check .tried { opacity: .65; }
.rlhf-check .file { font-weight: 400; margin-left: 1em; }
.rlhf-check .mark { font-weight: 700; white-space: nowrap; }
.rlhf-check .title { min-width: 15em; max-width: 24em; }
.rlhf-check .detail { max-width: 46em; overflow-wrap: anywhere; }
.rlhf-check .ok { color: rgb(0,158,115); }
.rlhf-check .FAIL { color: rgb(230,97,0); }
.rlhf-check .tried { white-space: pre-wrap; }
.rlhf-check .mistake { border-left: 3px solid rgb(230,97,0); padding-left: .6em; margin: .2em 0; font-weight: 600; }
"""


def to_html(report: Report) -> str:
    """The report as a piece of a page, in the page's own text colour. What student code produced is escaped."""
    rows = "".join(_row(line) for line in report.lines)
    nudge = f' For a nudge: <code>lab.hint("{report.exercise.name}")</code>' if _has_nudge(report) else ""
    heading, _, file = _heading(report).partition("   ")
    return (
        f'<div class="rlhf-check"><style>{STYLE}</style>'
        f'<div class="head">{html.escape(heading)}<span class="file">{html.escape(file.strip())}</span></div>'
        f"<table><tbody>{rows}</tbody></table><div>{html.escape(report.closing)}{nudge}</div></div>"
    )


def _has_nudge(report: Report) -> bool:
    return report.state == "failed" and bool(report.exercise.hints)


def _row(line: Line) -> str:
    notes = "".join(_note(note) for note in line.notes)
    later = " later" if line.status == "--" else ""
    return (
        f'<tr><td class="mark {line.status if not later else "later"}">{line.status}</td>'
        f'<td class="title{later}">{html.escape(line.title)}</td>'
        f'<td class="detail{later}">{html.escape(line.detail)}{notes}</td></tr>'
    )


def _note(note: str) -> str:
    kind = "mistake" if note.startswith("-> ") else "tried"
    return f'<div class="{kind}">{html.escape(note.removeprefix("-> "))}</div>'


def _heading(report: Report) -> str:
    heading = f"{report.exercise.number} {report.exercise.name}"
    file = f"{report.file.parent.name}/{report.file.name}"
    if report.file.exists():
        file += f", saved {_ago(time.time() - report.file.stat().st_mtime)}"
    return f"{heading}   {file}"


def _ago(seconds: float) -> str:
    """How long ago, in the largest unit that fits: a check looks at what is saved, and this says how old that is."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"
