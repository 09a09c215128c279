"""The one exception that the workbench raises on purpose."""


class LabError(Exception):
    """A mistake that one sentence explains: it names the culprit and says what to do.

    The command line prints the sentence without a traceback and ends with status 1.
    """
