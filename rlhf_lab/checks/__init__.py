"""The visible checks: `check(EXERCISE, FOLDER)` runs small experiments on a student's code and names the mistake."""

from .report import display_report, to_html, to_text
from .run import Report, check

__all__ = ["Report", "check", "display_report", "to_html", "to_text"]
