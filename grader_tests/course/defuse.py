"""Make what a student wrote harmless to look at: nothing in it runs in the browser of who grades it.

nbgrader's pages put Markdown into HTML as it is, with everything that a `<script>` or a link of the kind `javascript:`
can do to an instructor who is logged in. Here the text stays readable and becomes text. What the pages would make of it
is then looked at, with nbconvert's own renderer: if anything but plain formatting comes out, the text is shown as it
was typed, in a grey box.
"""

import base64
import binascii
import re
from collections.abc import Iterable

import nbformat
from bs4 import BeautifulSoup
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode

MAX_TEXT = 20_000  # characters of one Markdown cell or of all text that a code cell shows
MAX_PICTURES = 2_000_000  # characters of all pictures that a cell shows, in base64
CUT = "\n... (cut here: it was longer)"

TAG = re.compile(r"<(?=[A-Za-z/!?])")
NO_TAG = "<\N{ZERO WIDTH SPACE}"  # looks the same, and begins no tag
PICTURE = re.compile(r"!(?=\[)")  # loads something from somewhere; only pasted ones do not
PASTED = re.compile(r"!\[([^\[\]]*)\]\(attachment:([\w.-]+)\)")
MATHS = re.compile(r"\\(?:href|url|style|class|cssId|require)\b")  # what MathJax makes more of than a formula
FENCE = re.compile(r"`{3,}")

PICTURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}  # what such a file begins with

FORMATTING = {
    *(
        "p",
        "br",
        "hr",
        "em",
        "strong",
        "del",
        "code",
        "pre",
        "blockquote",
        "ul",
        "ol",
        "li",
        "dl",
        "dt",
        "dd",
    ),
    *("h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td", "a", "img"),
    *("div", "span", "input"),  # of highlighted code and of task lists
}
ATTRIBUTES = {"class", "id", "start", "title", "alt", "style", "type", "disabled", "checked"}
STYLE = re.compile(r"text-align:\s*(?:left|right|center);?")
LINK = re.compile(r"(?:https?://|mailto:|#)", re.IGNORECASE)
PASTED_PICTURE = re.compile(r"data:image/(?:png|jpeg);base64,")


def defuse(cells: Iterable[NotebookNode], released: Iterable[NotebookNode]) -> None:
    """Make every cell harmless that is not the course's own, word for word; change it in place."""
    own = {(cell.cell_type, cell.source) for cell in released}
    for cell in cells:
        if cell.cell_type == "code":
            cell.outputs = harmless_outputs(cell.outputs)
        elif (cell.cell_type, cell.source) not in own:
            pasted = _pasted_pictures(cell.pop("attachments", None))
            cell.source = harmless_markdown(cell.source, pasted)
            if pasted and cell.cell_type == "markdown":
                cell.attachments = pasted


def harmless_markdown(text: str, pasted: dict | None = None) -> str:
    """Markdown that looks like `text` and is nothing but text, formatting and links to the web.

    Args:
        pasted: pictures by name, as a cell's attachments.
    """
    text = TAG.sub(NO_TAG, _shortened(text, MAX_TEXT))
    names = set(pasted or ())
    parts = re.split(f"({PASTED.pattern})", text)
    # split gives the text between, then whole, label and name of each picture
    shown = "".join(
        parts[i] if i % 4 == 1 and parts[i + 2] in names else PICTURE.sub("", parts[i])
        for i in range(len(parts))
        if i % 4 < 2
    )
    return shown if not MATHS.search(shown) and _is_harmless(shown, pasted) else as_typed(text)


def as_typed(text: str) -> str:
    """Markdown that shows a text letter by letter, in a box."""
    fence = max(["```", *(run + "`" for run in FENCE.findall(text))], key=len)
    return f"{fence}\n{TAG.sub(NO_TAG, text)}\n{fence}"


def harmless_outputs(outputs: Iterable[NotebookNode]) -> list[NotebookNode]:
    """Text and pictures of a cell's outputs, the first of them where there are too many."""
    kept, text_left, pictures_left = [], MAX_TEXT, MAX_PICTURES
    for output in outputs:
        picture = _picture(output.get("data"))
        if picture is not None:
            (encoded,) = picture.values()
            if len(encoded) <= pictures_left:
                pictures_left -= len(encoded)
                kept.append(nbformat.v4.new_output("display_data", data=picture))
        elif text_left and (text := _text(output)):
            text = _shortened(text, text_left)
            text_left = max(0, text_left - len(text))
            name = "stderr" if output.get("name") == "stderr" else "stdout"
            kept.append(nbformat.v4.new_output("stream", name=name, text=text))
    return kept


def _text(output: NotebookNode) -> str:
    """What an output says, in letters."""
    if output.output_type == "stream":
        return _joined(output.get("text"))
    if output.output_type == "error":
        return "\n".join(line for line in output.get("traceback") or () if isinstance(line, str)) + "\n"
    data = output.get("data")
    text = _joined(data.get("text/plain")) if isinstance(data, dict) else ""
    return text and text + "\n"


def _joined(text: object) -> str:
    """nbformat allows a text as a list of lines."""
    if isinstance(text, list):
        return "".join(line for line in text if isinstance(line, str))
    return text if isinstance(text, str) else ""


def _picture(data: object) -> dict[str, str] | None:
    """Kind and base64 of the picture in an output's data or in an attachment, if it has one and it is one."""
    for kind, beginning in PICTURES.items():
        encoded = data.get(kind) if isinstance(data, dict) else None
        if isinstance(encoded, str):
            try:
                if base64.b64decode("".join(encoded.split()), validate=True).startswith(beginning):
                    return {kind: "".join(encoded.split())}
            except (binascii.Error, ValueError):
                continue
    return None


def _pasted_pictures(attachments: object) -> dict[str, dict[str, str]]:
    pictures, left = {}, MAX_PICTURES
    for name, data in attachments.items() if isinstance(attachments, dict) else ():
        picture = _picture(data)
        if picture is not None and re.fullmatch(r"[\w.-]{1,100}", name):
            (encoded,) = picture.values()
            if len(encoded) <= left:
                left -= len(encoded)
                pictures[name] = picture
    return pictures


def _is_harmless(markdown: str, pasted: dict | None) -> bool:
    """Whether a page that is made of this Markdown holds nothing but formatting."""
    try:
        # as nbconvert's HTML exporter calls it
        renderer = IPythonRenderer(escape=False, attachments=pasted or {})
        html = MarkdownWithMath(renderer=renderer).render(markdown)
    except Exception:  # a text that the page could not be made of at all
        return False
    return all(map(_is_formatting, BeautifulSoup(html, "html.parser").find_all(True)))


def _is_formatting(tag) -> bool:
    if tag.name not in FORMATTING:
        return False
    for name, value in tag.attrs.items():
        if name == "href":
            allowed = tag.name == "a" and LINK.match(value)
        elif name == "src":
            allowed = tag.name == "img" and PASTED_PICTURE.match(value)
        elif name == "style":
            allowed = STYLE.fullmatch(value.strip())
        else:
            allowed = name in ATTRIBUTES
        if not allowed:
            return False
    return True


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + CUT
