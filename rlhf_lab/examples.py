"""Small tensors for the notebooks, with tokens that can be read and numbers that can be added in the head."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .sampling import sample


@dataclass(frozen=True)
class TwoResponses:
    """Two responses of six positions; the second ends after four. Each tensor is `[2, 6]`, `rm_score` is `[2]`.

    What a model puts out at a padded position is a number like any other, so `old_logprobs`, `ref_logprobs`
    and `values` are not zero there. `rewards` are: shaping has cleared them.
    """

    tokens: list[list[str]]
    mask: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor
    rm_score: Tensor
    rewards: Tensor
    values: Tensor


def two_responses() -> TwoResponses:
    """A response to praise, and a lukewarm one that is padded. `rewards` are shaped with `kl_coef=0.1`."""
    return TwoResponses(
        tokens=[
            ["·was", "·excellent", "·on", "·the", "·whole", "EOS"],
            ["包装", "尚可", "。", "EOS", "pad", "pad"],
        ],
        mask=torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]),
        old_logprobs=torch.tensor(
            [[-0.5, -1.0, -0.8, -0.2, -0.1, -0.4], [-1.2, -0.6, -0.3, -0.1, -9.0, -8.0]]
        ),
        ref_logprobs=torch.tensor(
            [[-0.5, -3.0, -1.3, -0.2, -0.1, -0.2], [-1.0, -1.6, -0.3, -0.1, -4.0, -2.0]]
        ),
        rm_score=torch.tensor([2.0, 0.5]),
        rewards=torch.tensor([[0.0, -0.20, -0.05, 0.0, 0.0, 2.02], [0.02, -0.10, 0.0, 0.5, 0.0, 0.0]]),
        values=torch.tensor([[0.5, 0.6, 1.5, 1.6, 1.8, 1.9], [0.5, 0.4, 0.2, 0.3, 7.0, 7.0]]),
    )


@dataclass(frozen=True)
class WrittenResponses:
    """Prompts and responses as `rollout` would lay them out, but written by hand instead of sampled."""

    full_ids: Tensor
    full_mask: Tensor
    response_ids: Tensor
    response_mask: Tensor
    texts: list[str]


def written_responses(tokenizer) -> WrittenResponses:
    """Three prompts of different length; the third response reached its limit of six tokens before its EOS."""
    prompts = ["This phone", "关于这家餐厅：", "Review of the camera:"]
    texts = [" was excellent.", "服务一流。", " it is not dull at all"]
    responses = [tokenizer(text).input_ids + [tokenizer.eos_token_id] for text in texts]
    return WrittenResponses(*_laid_out(tokenizer, prompts, responses, width=6), texts)


@dataclass(frozen=True)
class SampledResponses:
    """A real rollout without a critic, as far as `index_picture` reads one; `old_values` are 0."""

    full_ids: Tensor
    full_mask: Tensor
    response_mask: Tensor
    old_logprobs: Tensor
    old_values: Tensor


@torch.no_grad()
def sampled_responses(lm, tokenizer, prompts: list[str], max_new_tokens: int, seed: int) -> SampledResponses:
    """Responses that `lm` samples to prompts of different length, laid out as in PPO."""
    sampled = sample(lm, tokenizer, prompts, max_new_tokens, seed)
    responses = [
        ids + [tokenizer.eos_token_id] * ended for ids, ended in zip(sampled.token_ids, sampled.ended)
    ]
    width = max(len(ids) for ids in responses)
    full_ids, full_mask, response_ids, response_mask = _laid_out(tokenizer, prompts, responses, width)
    position_ids = (full_mask.cumsum(dim=1) - 1).clamp(min=0)
    logits = lm(input_ids=full_ids, attention_mask=full_mask, position_ids=position_ids).logits
    logprobs = logits[:, -width - 1 : -1].log_softmax(dim=-1).gather(-1, response_ids[..., None]).squeeze(-1)
    return SampledResponses(full_ids, full_mask, response_mask, logprobs, torch.zeros_like(logprobs))


def _laid_out(
    tokenizer, prompts: list[str], responses: list[list[int]], width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Full ids, full mask, response ids and response mask: prompts padded on the left, responses to `width`."""
    prompt = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    lengths = torch.tensor([len(ids) for ids in responses])
    response_ids = torch.tensor([(ids + [tokenizer.pad_token_id] * width)[:width] for ids in responses])
    response_mask = (torch.arange(width) < lengths[:, None]).long()
    full_ids = torch.cat([prompt.input_ids, response_ids], dim=1)
    full_mask = torch.cat([prompt.attention_mask, response_mask], dim=1)
    return full_ids, full_mask, response_ids, response_mask
