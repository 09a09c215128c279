"""Samples for people to look at and for the judge to read, drawn by the workbench itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .lab import Lab
from .memory import SAMPLED_ROWS
from .rewards import TextReward, TextScorer

N_JUDGED = 192  # the mean of so many judged responses is known to about +-0.02
N_SHOWN = 8


@dataclass
class Samples:
    """Sampled responses, without prompts and special tokens, and which of them ended with EOS."""

    prompts: list[str]
    responses: list[str]
    ended: list[bool]
    token_ids: list[list[int]]

    @property
    def texts(self) -> list[str]:
        return [prompt + response for prompt, response in zip(self.prompts, self.responses, strict=True)]

    @property
    def eos_share(self) -> float:
        return sum(self.ended) / len(self.ended)


@torch.no_grad()
def sample(
    lm, tokenizer, prompts: Sequence[str], max_new_tokens: int, seed: int, batch_size: int = SAMPLED_ROWS
) -> Samples:
    """Draw one response to each prompt at temperature 1; the same seed gives the same responses.

    The global random generators and the model's training mode are as before afterwards.
    """
    was_training = lm.training
    lm.eval()
    samples = Samples(list(prompts), [], [], [])
    devices = [lm.device] if lm.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        for start in range(0, len(prompts), batch_size):
            batch = tokenizer(
                list(prompts[start : start + batch_size]),
                add_special_tokens=False,
                padding=True,
                padding_side="left",
                return_tensors="pt",
            ).to(lm.device)
            full_ids = lm.generate(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                max_new_tokens=max_new_tokens,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
            for ids in full_ids[:, batch.input_ids.shape[1] :].tolist():
                ended = tokenizer.eos_token_id in ids
                ids = ids[: ids.index(tokenizer.eos_token_id)] if ended else ids
                samples.token_ids.append(ids)
                samples.ended.append(ended)
                samples.responses.append(tokenizer.decode(ids, skip_special_tokens=True))
    lm.train(was_training)
    return samples


def distinct_2(token_ids: Sequence[Sequence[int]]) -> float:
    """Share of different bigrams among all bigrams of the responses (Li et al. 2016); 0 when there is none.

    It falls with the number of texts, so compare it between samples of the same size only.
    """
    bigrams = [pair for ids in token_ids for pair in zip(ids, ids[1:])]
    return len(set(bigrams)) / len(bigrams) if bigrams else 0.0


def look_at(rollout, judge: TextScorer, tokenizer) -> dict[str, float]:
    """What the workbench adds to the figures of a PPO step: the judge's view, and the signs of a collapse."""
    mask = rollout.response_mask.bool()
    responses = rollout.full_ids[:, -mask.shape[1] :]
    token_ids = [ids[valid].tolist() for ids, valid in zip(responses, mask, strict=True)]
    return {
        "judge": TextReward(judge, tokenizer)(rollout.full_ids, rollout.full_mask).mean().item(),
        "distinct_2": distinct_2(token_ids),
        "eos_share": sum(ids[-1] == tokenizer.eos_token_id for ids in token_ids) / len(token_ids),
        "response_length": sum(map(len, token_ids)) / len(token_ids),
    }


@torch.no_grad()
def token_logprobs(lm, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> torch.Tensor:
    """Log-probability of each response token, `[response]`, from a pass of its own, without padding."""
    ids = torch.tensor([[*prompt_ids, *response_ids]], device=lm.device)
    logits = lm(input_ids=ids).logits[0, len(prompt_ids) - 1 : -1]  # the token before predicts
    return logits.float().log_softmax(-1).gather(-1, ids[0, len(prompt_ids) :, None]).squeeze(-1)


def sample_heldout(lm, tokenizer, pool: Sequence[str], max_new_tokens: int, seed: int) -> Samples:
    """Fresh responses to held-out prompts, as many as a judge has to read; the same prompts at every call."""
    prompts = [pool[i % len(pool)] for i in range(N_JUDGED)]
    return sample(lm, tokenizer, prompts, max_new_tokens, seed)


def figures_of(samples: Samples, judged: Sequence[float]) -> dict[str, float]:
    """What is kept of judged samples."""
    return {
        "judge": sum(judged) / len(judged),
        "distinct_2": distinct_2(samples.token_ids),
        "eos_share": samples.eos_share,
    }


def judged_samples(lab: Lab, lm) -> dict:
    """Fresh responses to held-out prompts and what the judge says; the same prompts and seed at every call."""
    pool = lab.data.prompts_heldout["prompt"]
    samples = sample_heldout(lm, lab.tokenizer, pool, lab.settings.new_tokens, lab.settings.seed)
    prompts, judged = samples.prompts, lab.judge(samples.texts)
    n_different = min(len(pool), N_JUDGED)
    shown = [i * n_different // N_SHOWN for i in range(N_SHOWN)]  # spread out: neighbours share a topic
    return figures_of(samples, judged) | {
        "shown": [
            {"prompt": prompts[i], "response": samples.responses[i], "judge": judged[i]} for i in shown
        ],
    }
