"""A model of the solution's that the tests of several stages hold the candidate's against."""

from functools import cache

from rlhf_lab.checks.models import micro_folder
from solutions.ppo import PolicyWithValueHead


@cache
def micro_policy() -> PolicyWithValueHead:
    """The policy on the micro model, in eval mode: to be looked at, not changed; loading it is slow, copying is not."""
    return PolicyWithValueHead(micro_folder())
