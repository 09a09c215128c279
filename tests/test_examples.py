"""The small tensors of the notebooks are what their texts say."""

import torch

from rlhf_lab.backbones import TINY, load_tokenizer
from rlhf_lab.examples import two_responses, written_responses
from rlhf_lab.pictures import Panel, curves, png_bytes
from solutions.ppo import response_mask, shape_token_rewards


def test_rewards_are_shaped_with_a_kl_coef_of_a_tenth():
    example = two_responses()
    shaped = shape_token_rewards(
        example.rm_score, example.old_logprobs, example.ref_logprobs, example.mask, kl_coef=0.1
    )
    torch.testing.assert_close(shaped, example.rewards)


def test_padding_holds_numbers_that_would_be_seen_if_they_leaked():
    example = two_responses()
    outside = ~example.mask.bool()
    for tensor in (example.old_logprobs, example.ref_logprobs, example.values):
        assert (tensor[outside] != 0).all()


def test_written_responses_are_laid_out_as_a_rollout():
    tokenizer = load_tokenizer(TINY)
    written = written_responses(tokenizer)
    torch.testing.assert_close(
        written.response_mask, response_mask(written.response_ids, tokenizer.eos_token_id)
    )
    assert written.response_mask.sum(-1).tolist() == [4, 4, 6]
    assert written.full_mask.sum(-1).tolist() == [2 + 4, 3 + 4, 5 + 6]
    for ids, valid, text in zip(written.response_ids, written.response_mask, written.texts, strict=True):
        assert tokenizer.decode(ids[valid.bool()], skip_special_tokens=True) == text


def test_curves_draw_a_line_for_each_label():
    figure = curves(
        Panel("left", "x", "y", {"a": ([0, 1], [0, 1]), "b": ([0, 1], [1, 0])}),
        Panel("right", "x", "y", {"a": ([0, 1], [0, 1])}, rules={"limit": 0.5}),
    )
    assert [len(axes.lines) for axes in figure.axes] == [2, 2]
    assert png_bytes(figure).startswith(b"\x89PNG")
