"""Props that examinations of several stages use."""

from ...checks.models import micro_tokenizer, special_tokenizer


def tokenizer(pad: str | None = None, padding_side: str = "right", special: bool = False):
    """A new tokenizer of the course's.

    Args:
        pad: its pad token; None where it comes without one.
        padding_side: on which it would pad a batch itself.
        special: whether it puts EOS before and after a text unless it is told not to.
    """
    made = special_tokenizer() if special else micro_tokenizer()
    made.pad_token = pad
    made.padding_side = padding_side
    return made
