"""Stage 6, group relative policy optimisation (GRPO): the other answers to the same prompt are the baseline.

PPO asks a critic how good an answer was to be expected. GRPO asks the policy itself: it samples a group of answers to
each prompt, and an answer is as good as it is better than its group. The critic goes, and with it value loss and GAE;
the ratio and the clip stay. The KL to the reference moves from the reward into the loss
(Shao et al. 2024, "DeepSeekMath", section 4.1).

Layout as in stage 3: `full_ids = [left pad | prompt | response .. EOS | right pad]`, per-token tensors
`[batch, response]`. The batch is made of groups, one after the other: rows `0 .. G-1` answer the first prompt, rows
`G .. 2G-1` the second.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .ppo import Mask, gather_logprobs, masked_mean, response_mask
from .reward_model import position_ids_from_mask


def group_advantages(
    rewards: Float[Tensor, "batch"],
    group_size: int,
    eps: float = 1e-8,
) -> Float[Tensor, "batch"]:
    """How much better each answer is than the others to its prompt (exercise 6.1).

    Shao et al. 2024, section 4.1.2: reward minus the mean of its group, divided by the standard deviation of its
    group (the sample's, with `n - 1`) plus `eps`. Groups are contiguous. A group whose rewards are all equal, as
    those of a group of one are, says nothing: its advantages are exactly 0, also where the mean of equal numbers is
    rounded. The rewards stay as they are.

    Raises:
        ValueError: when the batch is not a multiple of `group_size`; the message names both.
    """
    raise NotImplementedError(
        "exercise 6.1: write group_advantages in rlhf_exercises/grpo.py (notebooks/06_grpo.ipynb, section 6.1)"
    )


def sequence_mean(x: Float[Tensor, "batch response"], mask: Mask) -> Float[Tensor, ""]:
    """Mean over the responses of the mean over each one's tokens (given, not an exercise).

    Every response weighs the same, however long it is: a token of a short one weighs more than a token of a long one.
    `masked_mean` of stage 3 does the opposite.
    """
    token_sums = x.where(mask.bool(), 0.0).sum(dim=-1)
    return (token_sums / mask.sum(dim=-1).clamp(min=1)).mean()


def grpo_loss(
    new_logprobs: Float[Tensor, "batch response"],
    old_logprobs: Float[Tensor, "batch response"],
    ref_logprobs: Float[Tensor, "batch response"],
    advantages: Float[Tensor, "batch"],
    mask: Mask,
    clip_range: float = 0.2,
    kl_coef: float = 0.04,
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """Clipped policy loss with the KL to the reference inside (exercise 6.2).

    Shao et al. 2024, eq. 3 and 4, as a loss. With `ratio = exp(new_logprobs - old_logprobs)` and `A` the advantage of
    the whole response, the same at each of its tokens:

    - `policy_loss`: `max(-A * ratio, -A * clip(ratio, 1 - clip_range, 1 + clip_range))`;
    - `kl_to_ref`: `(exp(d) - 1) - d` with `d = ref_logprobs - new_logprobs`, the estimator called k3: never negative,
      and right on average over samples of the policy (Schulman 2020, "Approximating KL divergence").

    Both are the mean over responses of the mean over tokens (`sequence_mean`); what stands outside the mask has no say.
    Gradient reaches `new_logprobs` only, through both terms. The advantages are used as given.

    Returns:
        `policy_loss + kl_coef * kl_to_ref`, and `info` with floats: these two (`kl_to_ref` without its coefficient),
        and `approx_kl` and `clipfrac` as in exercise 3.4: means over all tokens of the mask.
    """
    raise NotImplementedError(
        "exercise 6.2: write grpo_loss in rlhf_exercises/grpo.py (notebooks/06_grpo.ipynb, section 6.2)"
    )


def response_logprobs(
    model: nn.Module,
    full_ids: Int[Tensor, "batch seq"],
    full_mask: Int[Tensor, "batch seq"],
    response_length: int,
) -> Float[Tensor, "batch response"]:
    """Log-probability of each response token, in one pass (given, not an exercise).

    The window of exercise 3.5 for a language model that has no value head.
    """
    window = response_length + 1  # the last prompt token predicts the first response token
    logits = model(
        input_ids=full_ids,
        attention_mask=full_mask,
        position_ids=position_ids_from_mask(full_mask),
        logits_to_keep=window,
        use_cache=False,
    ).logits
    return gather_logprobs(logits, full_ids[:, -window:])


@dataclass
class GroupRollout:
    """A batch of groups of sampled responses, and everything about them that stays fixed during the update.

    Attributes:
        group_size: responses to each prompt.
        full_ids: prompt block and response block, `[batch, prompt + response]`, with `batch = prompts * group_size`.
        full_mask: 1 on the real tokens of both blocks (prompt, response and its EOS).
        old_logprobs: log-probability of each response token under the policy that sampled it, `[batch, response]`.
        ref_logprobs: the same under the frozen reference.
        rewards: one for each whole response, `[batch]`.
        response_mask: 1 up to and including the first EOS of the response.
        texts: the responses, decoded, without prompt and special tokens.
    """

    group_size: int
    full_ids: Int[Tensor, "batch seq"]
    full_mask: Int[Tensor, "batch seq"]
    old_logprobs: Float[Tensor, "batch response"]
    ref_logprobs: Float[Tensor, "batch response"]
    rewards: Float[Tensor, "batch"]
    response_mask: Int[Tensor, "batch response"]
    texts: list[str]


@torch.no_grad()
def group_rollout(
    policy: nn.Module,
    ref_policy: nn.Module,
    reward_fn: Callable[[Tensor, Tensor], Tensor],
    tokenizer,
    prompts: Sequence[str],
    group_size: int,
    max_new_tokens: int = 20,
) -> GroupRollout:
    """Sample `group_size` responses to each prompt (given, not an exercise): `rollout` of stage 3 without values.

    Args:
        policy, ref_policy: causal language models of transformers, with nothing in their `generation_config` that
            changes how they sample. Both are in eval mode afterwards.
        reward_fn: `(full_ids, full_mask) -> [batch]`.
        tokenizer: with a pad token; prompts are padded on the left.
    """
    policy.eval()
    ref_policy.eval()
    prompt = tokenizer(
        [text for text in prompts for _ in range(group_size)],
        add_special_tokens=False,
        padding=True,
        padding_side="left",
        return_tensors="pt",
    ).to(policy.device)
    full_ids = policy.generate(
        input_ids=prompt.input_ids,
        attention_mask=prompt.attention_mask,
        max_new_tokens=max_new_tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    response_ids = full_ids[:, prompt.input_ids.shape[1] :]
    mask = response_mask(response_ids, tokenizer.eos_token_id)
    full_mask = torch.cat([prompt.attention_mask, mask], dim=1)
    response_length = response_ids.shape[1]
    return GroupRollout(
        group_size=group_size,
        full_ids=full_ids,
        full_mask=full_mask,
        old_logprobs=response_logprobs(policy, full_ids, full_mask, response_length),
        ref_logprobs=response_logprobs(ref_policy, full_ids, full_mask, response_length),
        rewards=reward_fn(full_ids, full_mask),
        response_mask=mask,
        texts=[
            tokenizer.decode(ids[valid.bool()], skip_special_tokens=True)
            for ids, valid in zip(response_ids, mask, strict=True)
        ],
    )


def grpo_step(
    policy: nn.Module,
    optim: torch.optim.Optimizer,
    rollout: GroupRollout,
    n_epochs: int = 4,
    clip_range: float = 0.2,
    kl_coef: float = 0.04,
    max_grad_norm: float = 1.0,
) -> dict[str, float]:
    """Update the policy on one rollout, `n_epochs` times over (exercise 6.3).

    Each epoch is one step of `optim` on the whole rollout, with the norm of the policy's gradient clipped to
    `max_grad_norm`. The advantages are computed once, from the rewards as they are, and reused; old and reference
    log-probabilities are those of the rollout in every epoch. Dropout is off, so that every ratio starts at 1. The
    rollout stays as it is.

    Returns:
        The `info` of the last epoch, with `mean_reward`, the mean reward of the rollout, and `equal_groups`, the share
        of groups whose rewards are all equal: they give no gradient but that of the KL.
    """
    raise NotImplementedError(
        "exercise 6.3: write grpo_step in rlhf_exercises/grpo.py (notebooks/06_grpo.ipynb, section 6.3)"
    )


def train_grpo(
    policy: nn.Module,
    ref_policy: nn.Module,
    reward_fn: Callable[[Tensor, Tensor], Tensor],
    tokenizer,
    prompts: Sequence[str],
    optim: torch.optim.Optimizer,
    n_steps: int = 50,
    n_prompts: int = 8,
    group_size: int = 4,
    max_new_tokens: int = 20,
    n_epochs: int = 4,
    kl_coef: float = 0.04,
    on_step: Callable[[dict[str, float], GroupRollout], None] | None = None,
) -> list[dict[str, float]]:
    """Run GRPO end to end (given, not an exercise): `train_ppo` of stage 4 with groups.

    Args:
        prompts: texts; each step draws `n_prompts` of them with replacement from torch's global random generator.
        on_step: called after each step with its `info` and its rollout.

    Returns:
        The `info` of `grpo_step` for each step.
    """
    history = []
    for _ in range(n_steps):
        drawn = [prompts[i] for i in torch.randint(len(prompts), (n_prompts,)).tolist()]
        batch = group_rollout(policy, ref_policy, reward_fn, tokenizer, drawn, group_size, max_new_tokens)
        info = grpo_step(policy, optim, batch, n_epochs, kl_coef=kl_coef)
        history.append(info)
        if on_step is not None:
            on_step(info, batch)
    return history
