"""One update of PPO and one of GRPO, on a batch whose rows lie on several ranks.

Both are the taught `ppo_step` and `grpo_step` with five additions, the numbered comments; everything else is the
taught functions, called as they are.

The gradients are summed by hand. Accelerate's `prepare` would wrap the policy in torch's DistributedDataParallel, which
does that inside `backward` and hides the cost behind it. But a wrapped model has no `.lm`, and its gradients are summed
only when `forward` of the wrapper is called: `rollout` would have to be handed another model than the update, and a
correct `response_logprobs_and_values` that reads `policy.lm` would fail. Here the taught code gets the very policy that
it knows, and the sum is a line one can read.
"""

from types import ModuleType

import torch
from accelerate import Accelerator
from torch import nn

from . import ranks


def ppo_step(
    ppo: ModuleType,
    accelerator: Accelerator,
    policy: nn.Module,
    optim: torch.optim.Optimizer,
    rollout,
    ppo_epochs: int = 4,
    clip_range: float = 0.2,
    clip_range_value: float = 0.2,
    kl_coef: float = 0.05,
    vf_coef: float = 0.5,
    max_grad_norm: float = 1.0,
) -> dict[str, float]:
    """Exercise 3.5's `ppo_step` over all ranks: same gradient, same weights, same `info` as on one.

    Args:
        ppo: the taught module.
        rollout: this rank's rows, as many as on any other rank; prompt and response may be of another width.

    Returns:
        `info` as the taught `ppo_step` returns it, of the whole batch and the same on every rank.
    """
    policy.eval()
    mask = rollout.response_mask

    # 1. rewards, advantages and returns look along a row, never across rows: each rank computes its own
    token_rewards = ppo.shape_token_rewards(
        rollout.rm_score, rollout.old_logprobs, rollout.ref_logprobs, mask, kl_coef
    )
    advantages, returns = ppo.compute_gae(token_rewards, rollout.old_values, mask)

    # 2. mean and variance are those of the whole batch: a rank with poor answers only must not call half of them good
    advantages = ranks.whiten_over_ranks(accelerator, ppo.masked_whiten, advantages, mask)

    # 3. the ranks hold different numbers of tokens: this is what one rank's token mean weighs in the batch's
    share = ranks.token_share(accelerator, mask)

    for _ in range(ppo_epochs):
        new_logprobs, new_values = ppo.response_logprobs_and_values(
            policy, rollout.full_ids, rollout.full_mask, mask.shape[1]
        )
        loss, info = ppo.ppo_losses(
            new_logprobs,
            rollout.old_logprobs,
            advantages,
            new_values,
            rollout.old_values,
            returns,
            mask,
            clip_range,
            clip_range_value,
            vf_coef,
        )
        optim.zero_grad()
        (share * loss).backward()
        # 4. sum first, clip after: the norm in question is that of the whole batch's gradient
        ranks.sum_gradients(accelerator, policy)
        torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
        optim.step()

    # 5. what is reported is of the whole batch: token means by their share, means over rows by equal parts
    log_ratio_to_ref = (rollout.old_logprobs - rollout.ref_logprobs).where(mask.bool(), 0.0)
    of_tokens = {name: share.item() * value for name, value in info.items()}
    of_rows = {
        "mean_reward": rollout.rm_score.mean().item() / accelerator.num_processes,
        "kl_to_ref": log_ratio_to_ref.sum(dim=-1).mean().item() / accelerator.num_processes,
    }
    return ranks.sum_figures(accelerator, {**of_tokens, **of_rows})


def grpo_step(
    grpo: ModuleType,
    accelerator: Accelerator,
    policy: nn.Module,
    optim: torch.optim.Optimizer,
    rollout,
    n_epochs: int = 4,
    clip_range: float = 0.2,
    kl_coef: float = 0.04,
    max_grad_norm: float = 1.0,
) -> dict[str, float]:
    """Exercise 6.3's `grpo_step` over all ranks: same gradient, same weights, same `info` as on one.

    Two of PPO's additions fall away. A group lies on one rank as a whole, so that its mean and deviation need no other
    rank. And the loss is a mean over responses, of which each rank holds as many: their weights are equal.

    Args:
        grpo: the taught module.
        rollout: this rank's groups, as many as on any other rank.
    """
    policy.eval()
    mask = rollout.response_mask
    equal_part = 1 / accelerator.num_processes
    share = ranks.token_share(accelerator, mask)  # for the figures alone

    # 1. no further than the group
    advantages = grpo.group_advantages(rollout.rewards, rollout.group_size)

    for _ in range(n_epochs):
        new_logprobs = grpo.response_logprobs(policy, rollout.full_ids, rollout.full_mask, mask.shape[1])
        loss, info = grpo.grpo_loss(
            new_logprobs,
            rollout.old_logprobs,
            rollout.ref_logprobs,
            advantages,
            mask,
            clip_range,
            kl_coef,
        )
        optim.zero_grad()
        (equal_part * loss).backward()
        # 2. sum first, clip after
        ranks.sum_gradients(accelerator, policy)
        torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
        optim.step()

    # 3. two of the figures are means over tokens, the others over responses or groups
    groups = rollout.rewards.view(-1, rollout.group_size)
    weights = {"approx_kl": share.item(), "clipfrac": share.item()}
    info["mean_reward"] = rollout.rewards.mean().item()
    info["equal_groups"] = (groups == groups[:, :1]).all(dim=-1).float().mean().item()
    own = {name: weights.get(name, equal_part) * value for name, value in info.items()}
    return ranks.sum_figures(accelerator, own)
