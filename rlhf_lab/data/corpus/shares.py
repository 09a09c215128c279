"""How many of each kind."""

import random
from collections.abc import Mapping
from typing import TypeVar

Kind = TypeVar("Kind")


def in_shares(rng: random.Random, shares: Mapping[Kind, float], n: int) -> list[Kind]:
    """n kinds in random order; exact shares, not drawn ones, and what rounding leaves goes to the first."""
    kinds = [kind for kind, share in shares.items() for _ in range(round(share * n))]
    kinds = (kinds + [next(iter(shares))] * n)[:n]
    rng.shuffle(kinds)
    return kinds
