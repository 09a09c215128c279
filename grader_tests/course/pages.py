"""HTML pages that hold all they show: no network, no script. Every text that is put in is escaped."""

from pathlib import Path

import jinja2
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

LONGEST = 20_000  # characters of one piece of source that a page shows
SCHEMES = {"light": "default", "dark": "github-dark"}  # pygments' styles


def render(template: str, **values) -> str:
    """A page made from `TEMPLATE.html.jinja`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["points"] = points
    return environment.get_template(f"{template}.html.jinja").render(code_style=_code_style(), **values)


def points(number: float) -> str:
    """A number of points, without zeros that say nothing."""
    return f"{round(number, 2):g}"


def python_html(source: str) -> Markup:
    """Python source in colours; every character of it is escaped."""
    shown = source if len(source) <= LONGEST else f"{source[:LONGEST]}\n# ... (cut here: it is longer)"
    return Markup(highlight(shown, PythonLexer(), HtmlFormatter(nowrap=True)))


def _code_style() -> Markup:
    """The rules for the colours of code: light ones, and dark ones where the reader's screen is dark."""
    light, dark = (
        HtmlFormatter(style=style, nobackground=True).get_style_defs("pre.code") for style in SCHEMES.values()
    )
    return Markup(f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}")
