"""The visible checks: `check(EXERCISE, FOLDER)` runs small experiments on a student's code and names the mistake."""

from .report import to_html, to_text
from .run import Report, check

__all__ = ["Report", "check", "to_html", "to_text"]
