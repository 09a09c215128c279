"""The SFT rows: what people wrote when asked to go on kindly.

Only one in ten is enthusiastic and some grumble, so a policy that imitates them is lukewarm and PPO has
something to gain.
"""

import random

from .frames import draw_frame
from .prompts import Prompt
from .sentences import Response, draw_response, neutral
from .shares import in_shares
from .speaker import Span, Wording

FACTS_ONLY = None
SHARES = {
    FACTS_ONLY: 0.14,
    Span(0.1, 0.7): 0.34,
    Span(0.7, 1.6): 0.24,
    Span(low=1.6): 0.10,
    Span(-0.8, -0.1): 0.18,
}


def demonstrations(rng: random.Random, prompts: list[Prompt], n: int, wording: Wording) -> list[dict]:
    """n different rows (prompt, response, lang): the prompts in turn, the kinds in their shares."""
    kinds = in_shares(rng, SHARES, n)
    order = rng.sample(prompts, len(prompts))
    rows, seen = [], set()
    for index, kind in enumerate(kinds):
        prompt = order[index % len(order)]
        while True:
            response = _demonstration(rng, prompt, wording, kind)
            if (prompt.text, response.text) not in seen:
                break
        seen.add((prompt.text, response.text))
        rows.append({"prompt": prompt.text, "response": response.text, "lang": prompt.lang})
    return rows


def _demonstration(rng: random.Random, prompt: Prompt, wording: Wording, kind: Span | None) -> Response:
    if kind is FACTS_ONLY:
        return neutral(draw_frame(rng, prompt))
    return draw_response(rng, prompt, wording, kind)
