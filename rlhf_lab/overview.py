"""The picture of the whole course: three stages, four models, and which of them learn.

Drawn in the page's own text colour on the page's own ground, so that it follows a light or a dark theme.
"""

from IPython.display import HTML

STYLE = """
.rlhf-overview { max-width: 900px; margin: .5em 0 1em; }
.rlhf-overview svg { width: 100%; height: auto; font-size: 14px; }
.rlhf-overview text { fill: currentColor; text-anchor: middle; }
.rlhf-overview .stage { font-weight: 600; text-anchor: start; font-size: 16px; }
.rlhf-overview .name { font-weight: 600; }
.rlhf-overview .small { font-size: 12.5px; opacity: .85; }
.rlhf-overview .left { text-anchor: start; }
.rlhf-overview rect { stroke-width: 1.5; rx: 7px; }
.rlhf-overview .ground { fill: rgba(128,128,128,.07); stroke: none; }
.rlhf-overview .data { fill: none; stroke: rgba(128,128,128,.8); }
.rlhf-overview .learns { fill: rgba(0,114,178,.25); stroke: rgb(0,114,178); }
.rlhf-overview .frozen { fill: rgba(128,128,128,.18); stroke: rgb(128,128,128); stroke-dasharray: 6 4; }
.rlhf-overview .reward { fill: rgba(230,159,0,.25); stroke: rgb(230,159,0); }
.rlhf-overview path { fill: none; stroke: currentColor; stroke-width: 1.5; marker-end: url(#rlhf-head); }
.rlhf-overview marker path { fill: currentColor; stroke: none; marker-end: none; }
"""


def overview() -> HTML:
    """Three stages, and what the models of the third one are made from."""
    parts = [
        '<rect class="ground" x="5" y="5" width="430" height="150"/>',
        '<rect class="ground" x="465" y="5" width="430" height="150"/>',
        '<rect class="ground" x="5" y="205" width="890" height="280"/>',
        '<text class="stage" x="20" y="30">1 SFT: learn to answer</text>',
        '<text class="stage" x="480" y="30">2 Reward model: learn what people like</text>',
        '<text class="stage" x="20" y="230">3 PPO: write what scores well</text>',
        _box("data", 20, 55, 160, "demonstrations", "prompt + response"),
        _box("learns", 250, 55, 170, "language model", "imitates responses"),
        _box("data", 480, 55, 160, "comparisons", "chosen, rejected"),
        _box("learns", 710, 55, 170, "reward model", "scores a text"),
        _box("data", 20, 255, 160, "prompts", "nothing else"),
        _box("learns", 250, 255, 170, "policy", "+ value head (critic)"),
        _box("frozen", 480, 255, 170, "reference", "frozen"),
        _box("frozen", 710, 255, 170, "reward model", "frozen"),
        _box("data", 250, 375, 170, "responses", "sampled"),
        _box("reward", 480, 375, 400, "reward", "score of the reward model - β · KL to the reference"),
        _arrow("M180 85 H248"),
        _arrow("M640 85 H708"),
        _arrow("M335 115 V253"),
        _arrow("M420 100 C520 130 565 170 565 253"),
        _arrow("M795 115 V253"),
        _arrow("M180 285 H248"),
        _arrow("M335 315 V373"),
        _arrow("M420 405 H478"),
        _arrow("M565 315 V373"),
        _arrow("M795 315 V373"),
        _arrow("M680 435 V462 H215 V302 H248"),
        '<text class="small left" x="343" y="182">starts as</text>',
        '<text class="small left" x="572" y="182">a copy</text>',
        '<text class="small left" x="803" y="182">as it is</text>',
        '<text class="small" x="450" y="479">PPO update: what was better than the critic expected becomes more likely</text>',
    ]
    legend = (
        '<rect class="learns" x="20" y="500" width="22" height="16"/><text class="small left" x="50" y="513">learns</text>'
        '<rect class="frozen" x="120" y="500" width="22" height="16"/>'
        '<text class="small left" x="150" y="513">frozen: never changed in this stage</text>'
    )
    head = (
        '<defs><marker id="rlhf-head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 L10 5 L0 10 z"/></marker></defs>'
    )
    title = "Three stages: SFT, reward model, PPO, and the four models of the third stage"
    return HTML(
        f'<div class="rlhf-overview"><style>{STYLE}</style><svg viewBox="0 0 900 525" role="img" aria-label="{title}">'
        f"{head}{''.join(parts)}{legend}</svg></div>"
    )


def _box(kind: str, x: int, y: int, width: int, name: str, remark: str) -> str:
    middle = x + width / 2
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="60"/>'
        f'<text class="name" x="{middle}" y="{y + 26}">{name}</text>'
        f'<text class="small" x="{middle}" y="{y + 46}">{remark}</text>'
    )


def _arrow(way: str) -> str:
    return f'<path d="{way}"/>'
