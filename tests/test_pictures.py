"""The figures, the token table, the picture of indices and the report show what the data say."""

import base64
import io
import math
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from rlhf_lab import report
from rlhf_lab.errors import LabError
from rlhf_lab.pictures import (
    png_bytes,
    ppo_figure,
    reward_model_figure,
    seeds_figure,
    sft_figure,
)
from rlhf_lab.runs import write_bytes
from rlhf_lab.token_table import KINDS, index_picture, rollout_table, token_table, token_texts
from solutions import ppo

HOSTILE = '<script>alert("1")</script> & <b>'


def ppo_history(n_steps=20, **constant):
    keys = ["policy_loss", "value_loss", "approx_kl", "clipfrac", "mean_reward", "kl_to_ref"]
    keys += ["judge", "distinct_2", "eos_share", "response_length"]
    return [
        {"step": step, **{key: math.sin(step + i) ** 2 for i, key in enumerate(keys)}, **constant}
        for step in range(1, n_steps + 1)
    ]


def lines_of(figure):
    """Every line of a figure by its label; the rules' labels start with an underscore."""
    return {line.get_label(): line for axes in figure.axes for line in axes.lines}


def assert_labelled(figure):
    for axes in figure.axes:
        assert axes.get_title(loc="left") and axes.get_xlabel() and axes.get_ylabel()


# --- figures --------------------------------------------------------------------------------------


def test_sft_figure_shows_every_step_and_every_heldout_point():
    figure = sft_figure([4.0, 3.0, 2.5], [(0, 4.2), (3, 1.9)])
    lines = lines_of(figure)
    assert_labelled(figure)
    assert lines["training batch"].get_xydata().tolist() == [[1, 4.0], [2, 3.0], [3, 2.5]]
    assert lines["held-out"].get_xydata().tolist() == [[0, 4.2], [3, 1.9]]
    assert lines["_held-out threshold 2"].get_ydata()[0] == 2.0


def test_reward_model_figure_has_its_baselines_and_both_histograms():
    history = [{"loss": 0.7 - 0.01 * i, "accuracy": 0.5 + 0.01 * i} for i in range(30)]
    figure = reward_model_figure(history, 0.91, 0.52, 0.85, [1.0, 2.0, 3.0], [-1.0, 0.0])
    lines = lines_of(figure)
    assert_labelled(figure)
    assert lines["loss"].get_ydata().tolist() == [row["loss"] for row in history]
    assert lines["_ln 2: a coin toss"].get_ydata()[0] == math.log(2)
    for label, height in {"held-out 0.91": 0.91, "threshold 0.85": 0.85, "length only 0.52": 0.52}.items():
        assert lines[f"_{label}"].get_ydata()[0] == height
        assert label in {text.get_text() for text in figure.axes[1].texts}
    scores = figure.axes[2]
    drawn = sum(bar.get_height() for bars in scores.containers for bar in bars)
    assert drawn == 5  # each response once
    assert scores.get_legend_handles_labels()[1] == ["rejected", "chosen"]


def test_reward_model_figure_survives_equal_scores():
    png_bytes(reward_model_figure([{"loss": 0.69, "accuracy": 0.5}], 0.5, 0.5, 0.85, [0.0], [0.0]))


def test_ppo_figure_draws_each_quantity_over_its_steps():
    history = ppo_history()
    figure = ppo_figure(history)
    lines = lines_of(figure)
    assert_labelled(figure)
    for label, key in {"policy": "policy_loss", "value": "value_loss", "distinct-2": "distinct_2"}.items():
        lines[key] = lines[label]
    lines["eos_share"] = lines["end with EOS"]
    for key in set(history[0]) - {"step"}:
        assert lines[key].get_xydata().tolist() == [[row["step"], row[key]] for row in history], key
    assert lines["_limit 0.05"].get_ydata()[0] == 0.05
    assert lines["_goal 0.75"].get_ydata()[0] == 0.75


def test_ppo_figure_leaves_out_what_was_not_recorded():
    figure = ppo_figure([{"mean_reward": 0.1, "approx_kl": 0.01}, {"mean_reward": 0.2, "approx_kl": 0.02}])
    lines = lines_of(figure)
    assert lines["mean_reward"].get_xydata().tolist() == [[1, 0.1], [2, 0.2]]  # counts the steps itself
    assert "judge" not in lines and "value" not in lines
    assert sum(text.get_text() == "not recorded" for axes in figure.axes for text in axes.texts) == 6


def test_a_single_step_is_a_visible_point():
    line = lines_of(ppo_figure(ppo_history(1)))["judge"]
    assert line.get_marker() == "o"


def test_seeds_figure_has_one_line_a_seed_their_mean_and_spread():
    histories = {seed: ppo_history(10, judge=0.5 + 0.1 * seed) for seed in range(3)}
    histories[2] = histories[2][:7]  # stopped early
    figure = seeds_figure(histories)
    lines = lines_of(figure)
    assert_labelled(figure)
    assert [len(lines[f"seed {seed}"].get_xdata()) for seed in range(3)] == [10, 10, 7]
    mean = lines["mean of 3 seeds"]
    assert mean.get_xdata().tolist() == list(range(1, 8))
    assert mean.get_ydata().tolist() == pytest.approx([0.6] * 7)
    band = figure.axes[0].collections[0].get_datalim(figure.axes[0].transData)
    assert (band.y0, band.y1) == pytest.approx((0.5, 0.7))


def test_seeds_figure_of_one_seed_claims_no_spread():
    figure = seeds_figure({0: ppo_history(5)})
    assert not figure.axes[0].collections
    assert "mean of 1 seeds" not in lines_of(figure)


def test_a_saved_figure_is_sharp_and_small(tmp_path):
    path = tmp_path / "ppo.png"
    write_bytes(path, png_bytes(ppo_figure(ppo_history(50))))
    assert path.stat().st_size < 200_000
    image = Image.open(path).convert("RGB")
    assert image.size == (1500, 1200)
    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_data_give_the_same_file():
    assert png_bytes(sft_figure([2.0, 1.0], [])) == png_bytes(sft_figure([2.0, 1.0], []))


def test_a_figure_shows_itself_in_a_notebook_at_half_its_pixels():
    data, shown = sft_figure([1.0], [])._repr_png_()
    assert Image.open(io.BytesIO(data)).size[0] > shown["width"]


# --- token table ----------------------------------------------------------------------------------


class Page(HTMLParser):
    """Cells of all tables, row by row: (text, attributes of the cell, attributes of the row)."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.tags, self._in_cell = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
            self._row = dict(attributes)
        elif tag in ("td", "th"):
            self._in_cell = True
            self.rows[-1].append(["", dict(attributes), self._row])

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data):
        if self._in_cell:
            self.rows[-1][-1][0] += data


@pytest.fixture
def rollout(gpt2_folder, padded_tokenizer):
    policy = ppo.PolicyWithValueHead(gpt2_folder)
    torch.nn.init.normal_(policy.value_head[-1].weight)
    reference = ppo.PolicyWithValueHead(gpt2_folder)
    with torch.no_grad():
        reference.lm.transformer.wte.weight.mul_(0.9)
    return ppo.rollout(
        policy,
        reference,
        lambda ids, mask: torch.linspace(-1.0, 1.0, len(ids)),
        padded_tokenizer,
        ["there was rain", "soup", "今天的天气", "the garden is there and", "kindness"],
        max_new_tokens=8,
    )


def test_token_table_greys_what_is_outside_the_mask_and_colours_by_sign():
    table = token_table(["a", "b", "c"], mask=torch.tensor([1, 1, 0]), value=torch.tensor([0.5, -1.0, 9.0]))
    header, *rows = Page(table._repr_html_()).rows
    assert [text for text, *_ in header] == ["t", "token", "mask", "value"]
    assert [[text for text, *_ in row] for row in rows] == [
        ["0", "a", "1", "+0.500"],
        ["1", "b", "1", "−1.000"],
        ["2", "c", "0", "+9.000"],
    ]
    assert [row[0][2].get("class") for row in rows] == [None, None, "outside"]
    backgrounds = [row[3][1].get("style") for row in rows]
    assert backgrounds == ["background:rgba(0,114,178,0.25)", "background:rgba(213,94,0,0.45)", None]


def test_token_table_prints_as_aligned_text():
    lines = str(token_table(["汤", "ab"], mask=torch.ones(2), reward=torch.tensor([0.25, -3e-5]))).split("\n")
    assert lines == ["t  token  mask    reward", "0  汤        1    +0.250", "1  ab        1  -3.0e-05"]


def test_token_table_of_several_responses_has_a_block_for_each():
    rewards = torch.arange(6.0).reshape(2, 3)
    table = token_table(reward=rewards, mask=torch.tensor([[True, True, True], [True, False, False]]))
    assert str(table).count("outside the mask") == 2
    assert Page(table._repr_html_()).tags.count("table") == 2
    assert re.findall(r"^row \d", str(table), flags=re.MULTILINE) == ["row 0", "row 1"]


def test_token_table_shows_nan_as_broken():
    text = token_table(value=torch.tensor([math.nan, 1.0]))._repr_html_()
    assert '<td class="broken">nan</td>' in text


@pytest.mark.parametrize(
    ("tokens", "columns", "culprit"),
    [
        (None, {}, "at least one column"),
        (None, {"mask": torch.ones(3), "value": torch.ones(4)}, r"value has shape \[4\]"),
        (None, {"mask": torch.ones(1, 2, 3)}, r"mask has shape \[1, 2, 3\]"),
        (["a"], {"mask": torch.ones(3)}, r"tokens has shape \[1\]"),
        ([["a"], ["a", "b"]], {"mask": torch.ones(2, 2)}, r"tokens has shape \[2, 1, 2\]"),
    ],
)
def test_token_table_names_the_column_that_does_not_fit(tokens, columns, culprit):
    with pytest.raises(LabError, match=culprit):
        token_table(tokens, **columns)


def test_tokens_and_column_names_are_escaped():
    table = token_table([HOSTILE], **{HOSTILE: torch.ones(1)})
    page = Page(table._repr_html_())
    assert "script" not in page.tags and "b" not in page.tags
    assert page.rows[1][1][0] == HOSTILE


def test_what_cannot_be_seen_in_a_token_is_made_visible(padded_tokenizer):
    ids = padded_tokenizer.encode("汤 喝\n\x00\u200b", add_special_tokens=False)
    shown = "".join(token_texts(padded_tokenizer, ids))
    assert re.sub(r"[‹› ]", "", shown.replace("汤", "E6B1A4").replace("喝", "E5969D")) in (
        "E6B1A4·E5969D⏎U+0000U+200B",
        "E6B1A4·E5969D⏎U+0000E2808B",  # where the tokenizer cuts the last character into its bytes
    )
    assert token_texts(padded_tokenizer, padded_tokenizer.encode(" is")[:1])[0].startswith("·")


def test_rollout_table_shows_the_rollout_and_what_the_taught_code_makes_of_it(rollout, padded_tokenizer):
    row = int(rollout.response_mask.sum(-1).argmin())
    length = int(rollout.response_mask[row].sum())
    assert length < rollout.response_mask.shape[1]  # the row has something to grey
    table = rollout_table(rollout, padded_tokenizer, row, 0.05, SimpleNamespace(ppo=ppo))

    rewards = ppo.shape_token_rewards(
        rollout.rm_score, rollout.old_logprobs, rollout.ref_logprobs, rollout.response_mask, 0.05
    )
    advantages, returns = ppo.compute_gae(rewards, rollout.old_values, rollout.response_mask)
    expected = {
        "mask": rollout.response_mask,
        "logprob": rollout.old_logprobs,
        "ref_logprob": rollout.ref_logprobs,
        "reward": rewards,
        "value": rollout.old_values,
        "advantage": advantages,
        "return": returns,
    }
    assert list(table.columns) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(table.columns[name][0], tensor[row])

    _header, *rows = Page(table._repr_html_()).rows
    assert len(rows) == rollout.response_mask.shape[1]
    assert [line[0][2].get("class") for line in rows] == [None] * length + ["outside"] * (len(rows) - length)
    assert "prompt “" in table.captions[0]


# --- picture of indices ---------------------------------------------------------------------------


def test_index_picture_tells_the_kinds_apart_by_the_masks(rollout, padded_tokenizer):
    picture = index_picture(rollout, padded_tokenizer, slice(0, 5))
    prompt_length = rollout.full_ids.shape[1] - rollout.response_mask.shape[1]
    kinds = picture.kinds
    assert picture.prompt_length == prompt_length
    for row in range(5):
        valid = rollout.full_mask[row].bool().tolist()
        assert [kind in ("prompt", "response", "EOS") for kind in kinds[row]] == valid
        assert kinds[row][:prompt_length].count("prompt") == sum(valid[:prompt_length])
        assert kinds[row].count("EOS") <= 1  # pad is the EOS token too, and is not called EOS
    assert {kind for row in kinds for kind in row} == set(KINDS)


def test_index_picture_reads_one_to_the_left_of_each_response_token(rollout, padded_tokenizer):
    picture = index_picture(rollout, padded_tokenizer)
    P, R = picture.prompt_length, picture.response_length
    _blocks, positions, response, *sequences, read = Page(picture._repr_html_()).rows
    assert [text for text, *_ in positions][1:] == [str(i) for i in range(P + R)]
    assert [text for text, *_ in response][2:] == [str(t) for t in range(R)]
    assert response[1][1]["colspan"] == str(P)  # t = 0 stands at P ...
    assert read[1][1]["colspan"] == str(P - 1)  # ... and is read at P - 1
    assert [text for text, *_ in read][2:-1] == [f"{t}↗" for t in range(R)]
    assert [len(row) for row in sequences] == [1 + P + R] * 4
    classes = [cell[1]["class"] for cell in sequences[0][1:]]
    assert classes[P].endswith("first") and sum("first" in name for name in classes) == 1
    assert f"logprobs[0, 0] = {rollout.old_logprobs[0, 0]:.3f}" in picture.example
    assert f"position {P - 1}," in picture.example

    lines = str(picture).split("\n")
    assert lines[2 + P - 1].split()[:2] == [str(P - 1), "0"]
    assert lines[2 + P].split()[:3] == [str(P), "0", "1"]


def test_index_picture_escapes_its_tokens(rollout, padded_tokenizer):
    picture = index_picture(rollout, padded_tokenizer, slice(2, 3))
    assert picture.rows == [2]
    picture.texts[0][:] = [HOSTILE] * len(picture.texts[0])
    page = Page(picture._repr_html_())
    assert "script" not in page.tags and "b" not in page.tags
    assert HOSTILE in page.rows[3][-1][1]["title"]


# --- report ---------------------------------------------------------------------------------------


ONE_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTgtzwAAAABJRU5ErkJggg=="
)


def point(number, passed):
    return SimpleNamespace(
        number=number, name=f"point {number}", figure="0.91", threshold="> 0.85", passed=passed
    )


@pytest.fixture
def parts():
    return {
        "title": f"A run {HOSTILE}",
        "settings": {"backbone": HOSTILE, "ppo": {"kl_coef": 0.05}, "提示": "汤"},
        "machine": "2 cores",
        "seconds": {"sft": 31.24, "ppo": 65.0},
        "scorecard": [point(number, number != 3) for number in range(1, 8)],
        "figures": {name: ONE_PIXEL for name in report.FIGURES},
        "samples": [
            {
                "prompt": "今天的汤",
                "before": "",
                "after": f" {HOSTILE}",
                "judge_before": 0.25,
                "judge_after": 0.9,
            }
        ],
        "token_table_html": token_table([HOSTILE], mask=torch.ones(1))._repr_html_(),
        "index_picture_html": "<p>indices</p>",
        "notes": [HOSTILE],
        "seeds_table": [{"seed": 0, "judge": 0.123456}, {"seed": HOSTILE, "judge": 0.5}],
    }


def test_report_is_one_file_without_scripts_and_links(parts, tmp_path):
    path = tmp_path / "report.html"
    report.write_report(path, **parts)
    text = path.read_text(encoding="utf-8")
    without_pictures = re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)
    assert "http" not in without_pictures
    assert "<script" not in text
    assert "<b>" not in text
    assert not re.search(r"url\(|@import|<link|<iframe", without_pictures)
    assert set(re.findall(r'src="([^"]{10})', text)) == {"data:image"}
    assert text.count("data:image/png;base64,") == 4
    assert list(tmp_path.iterdir()) == [path]


def test_report_keeps_its_order_and_says_pass_or_fail_in_words(parts, tmp_path):
    path = tmp_path / "report.html"
    report.write_report(path, **parts)
    text = path.read_text(encoding="utf-8")
    order = re.findall(r'<h2 id="([a-z-]+)"', text)
    expected = [
        "scorecard",
        "samples",
        "ppo",
        "seeds",
        "tokens",
        "indices",
        "reward-model",
        "sft",
        "settings",
    ]
    assert order == expected
    assert text.count("✓ pass") == 6 and text.count("✗ fail") == 1
    assert "6 of 7 points pass" in text
    assert "1 min 36 s" in text and "31.2 s" in text  # together, and SFT alone
    assert '<html lang="en">' in text and '<span lang="zh-Hans">今天的汤</span>' in text
    assert "<em>(empty)</em>" in text
    assert "0.1235" in text


def test_report_leaves_out_what_it_was_not_given(parts, tmp_path):
    path = tmp_path / "report.html"
    empty = {"figures": {}, "samples": [], "token_table_html": "", "index_picture_html": "", "scorecard": []}
    report.write_report(path, **{**parts, **empty, "notes": [], "seeds_table": None})
    assert re.findall(r'<h2 id="([a-z-]+)"', path.read_text(encoding="utf-8")) == ["settings"]


def test_report_refuses_a_figure_that_it_has_no_place_for(parts, tmp_path):
    with pytest.raises(ValueError, match="dpo"):
        report.write_report(tmp_path / "report.html", **{**parts, "figures": {"dpo": b""}})


def test_a_write_that_fails_leaves_the_old_report(parts, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("the old one")

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        report.write_report(path, **parts)
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]
