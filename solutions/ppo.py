"""Stages 3 and 4, proximal policy optimisation (PPO): raise the reward without leaving the language behind.

One outer step samples a batch of responses (`rollout`), turns score and KL penalty into a reward per token, asks how
much better than expected each token was (`compute_gae`), and takes a few cautious gradient steps (`ppo_step`).

Layout of a rollout, `P` tokens of prompt block and `R` tokens of response block:

    full_ids = [left pad | prompt | response .. EOS | right pad]

Every per-token tensor is `[batch, response]`. At response token `t`, `logprobs[:, t]` is the log-probability of that
token given all before it, and `values[:, t]` is the value of the state *before* it is emitted: both are read at
position `P - 1 + t` of the full sequence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig

from .reward_model import position_ids_from_mask

Mask = Float[Tensor, "batch response"] | Int[Tensor, "batch response"] | Bool[Tensor, "batch response"]


class PolicyWithValueHead(nn.Module):
    """Actor and critic on one backbone (exercise 3.1).

    Attributes:
        lm: the causal language model of `base_model_name` (a Hugging Face id or a local folder). Its
            `generation_config` is an empty `GenerationConfig()`: what a checkpoint recommends for sampling (top-k,
            a repetition penalty) is not the policy.
        value_head: Linear, GELU, Linear; its last layer starts at zero, so that a fresh critic expects nothing.
    """

    def __init__(self, base_model_name: str = "gpt2"):
        super().__init__()
        ### BEGIN SOLUTION
        self.lm = AutoModelForCausalLM.from_pretrained(base_model_name, dtype=torch.float32)
        # what a checkpoint recommends for sampling (top-k, repetition penalty, ...) is not the policy
        self.lm.generation_config = GenerationConfig()
        hidden_size = self.lm.config.hidden_size
        self.value_head = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), nn.GELU(), nn.Linear(hidden_size, 1)
        )
        nn.init.zeros_(self.value_head[-1].weight)
        nn.init.zeros_(self.value_head[-1].bias)
        self.eval()  # as from_pretrained leaves a model
        ### END SOLUTION

    def forward(
        self,
        input_ids: Int[Tensor, "batch seq"],
        attention_mask: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "batch seq"] | None = None,
        logits_to_keep: int = 0,
    ) -> tuple[Float[Tensor, "batch kept vocab"], Float[Tensor, "batch seq"]]:
        """Logits and values of one pass through the backbone.

        Args:
            position_ids: by default counted from the attention mask, so that left padding is not numbered.
            logits_to_keep: apply the LM head to this many last positions only (transformers' own name for it);
                0 keeps all of them. The head is the largest matrix of a small model, and PPO needs no logits
                on the prompt.

        Returns:
            `logits [batch, kept, vocab]` and `values [batch, seq]`; the values read the last hidden state, after
            the final norm.
        """
        ### BEGIN SOLUTION
        if position_ids is None:
            position_ids = position_ids_from_mask(attention_mask)
        output = self.lm(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            logits_to_keep=logits_to_keep,
            output_hidden_states=True,
            use_cache=False,
        )
        values = self.value_head(output.hidden_states[-1]).squeeze(-1)
        return output.logits, values
        ### END SOLUTION

    def load_from_sft(self, state_dict: dict[str, Tensor]) -> None:
        """Take over the weights of a fine-tuned language model; the value head stays as it is.

        A state dict whose names do not fit, one missing or one too many, is refused with an error, and never passed
        over in silence.
        """
        ### BEGIN SOLUTION
        self.lm.load_state_dict(state_dict)
        ### END SOLUTION


def gather_logprobs(
    logits: Float[Tensor, "batch seq vocab"],
    input_ids: Int[Tensor, "batch seq"],
) -> Float[Tensor, "batch seq-1"]:
    """Log-probability of each token that was really there (exercise 3.2).

    `output[:, t]` is the log-probability, in nats, of `input_ids[:, t + 1]` given tokens 0 to `t`. There is one
    column less than tokens: nothing predicts the first one.
    """
    ### BEGIN SOLUTION
    next_ids = input_ids[:, 1:]
    logprobs = F.log_softmax(logits[:, :-1], dim=-1)
    return logprobs.gather(-1, next_ids.unsqueeze(-1)).squeeze(-1)
    ### END SOLUTION


def shape_token_rewards(
    rm_score: Float[Tensor, "batch"],
    old_logprobs: Float[Tensor, "batch response"],
    ref_logprobs: Float[Tensor, "batch response"],
    response_mask: Mask,
    kl_coef: float = 0.05,
) -> Float[Tensor, "batch response"]:
    """Reward of each token: a KL penalty everywhere, the score on top at the end (exercise 3.3).

    Each response token is charged `kl_coef * (old_logprobs - ref_logprobs)`, the one-sample estimate of the KL to
    the reference (Ziegler et al. 2019, "Fine-tuning language models from human preferences", eq. 2). The score
    joins the last token of the response, the last 1 of its mask: the EOS, or the last token of a response that
    reached its limit. A row without a response token gets nothing. 0 outside the mask; the arguments are unchanged.

    The mask may cover the response alone, `[batch, response]`, or all predicted tokens, `[batch, seq - 1]`, in
    which case it starts with zeros for the prompt.
    """
    ### BEGIN SOLUTION
    valid = response_mask.bool()
    tokens_left = valid.flip(-1).cumsum(-1).flip(-1)
    is_last = valid & (tokens_left == 1)
    token_rewards = -kl_coef * (old_logprobs - ref_logprobs) + is_last * rm_score.unsqueeze(-1)
    return token_rewards.where(valid, 0.0)
    ### END SOLUTION


@torch.no_grad()
def compute_gae(
    rewards: Float[Tensor, "batch response"],
    values: Float[Tensor, "batch response"],
    mask: Mask,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[Float[Tensor, "batch response"], Float[Tensor, "batch response"]]:
    """Generalised advantage estimation over response tokens (exercise 3.3).

    Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation", eq. 16:
    the advantage of a token is the sum of the TD errors from there on, each discounted by `gamma * lam`.

    A response ends at its last valid token, whether by EOS or by its length limit: the value after it is 0.
    Padded positions are not states, and nothing that stands there reaches a valid position.

    Returns:
        `advantages`, and `returns = advantages + values`, the target of the critic; both 0 outside the mask and
        without gradient.
    """
    ### BEGIN SOLUTION
    valid = mask.bool()
    advantages = torch.zeros_like(rewards)
    next_value = next_advantage = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        td_error = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = td_error + gamma * lam * next_advantage
        # a padded position hands on zeros, as the end of the response does
        next_advantage = advantage.where(valid[:, t], 0.0)
        next_value = values[:, t].where(valid[:, t], 0.0)
        advantages[:, t] = next_advantage
    returns = (advantages + values).where(valid, 0.0)
    return advantages, returns
    ### END SOLUTION


def masked_mean(x: Float[Tensor, "batch response"], mask: Mask) -> Float[Tensor, ""]:
    """Mean over the 1s of the mask; 0 when there is none (given, not an exercise)."""
    return x.where(mask.bool(), 0.0).sum() / mask.sum().clamp(min=1)


def masked_whiten(
    x: Float[Tensor, "batch response"],
    mask: Mask,
    eps: float = 1e-8,
) -> Float[Tensor, "batch response"]:
    """Shift and scale to mean 0 and variance 1 over the mask, 0 outside it (exercise 3.3).

    The population variance, over all valid tokens of the batch; finite even with a single one. Whiten advantages
    after the returns are computed: the critic's target is not on this scale.
    """
    ### BEGIN SOLUTION
    mean = masked_mean(x, mask)
    variance = masked_mean((x - mean) ** 2, mask)
    whitened = (x - mean) / (variance + eps).sqrt()
    return whitened.where(mask.bool(), 0.0)
    ### END SOLUTION


def ppo_losses(
    new_logprobs: Float[Tensor, "batch response"],
    old_logprobs: Float[Tensor, "batch response"],
    advantages: Float[Tensor, "batch response"],
    new_values: Float[Tensor, "batch response"],
    old_values: Float[Tensor, "batch response"],
    returns: Float[Tensor, "batch response"],
    mask: Mask,
    clip_range: float = 0.2,
    clip_range_value: float = 0.2,
    vf_coef: float = 0.5,
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """Clipped policy loss and clipped value loss (exercise 3.4).

    Schulman et al. 2017, "Proximal policy optimization algorithms", eq. 7. With
    `ratio = exp(new_logprobs - old_logprobs)`:

    - `policy_loss`: token mean of `max(-A * ratio, -A * clip(ratio, 1 - clip_range, 1 + clip_range))`;
    - `value_loss`: token mean of `0.5 * max((V - R)^2, (V_clipped - R)^2)`, where `V_clipped` leaves the old value
      by at most `clip_range_value`;
    - `approx_kl`: token mean of `(ratio - 1) - log ratio`, an estimate of KL(old policy, new policy) that is never
      negative (Schulman 2020, "Approximating KL divergence");
    - `clipfrac`: share of tokens whose ratio is further than `clip_range` from 1.

    Every mean is over all tokens of the mask. Gradient reaches `new_logprobs` and `new_values` only; the advantages
    are used as given.

    Returns:
        `policy_loss + vf_coef * value_loss`, and the four quantities above as floats.
    """
    ### BEGIN SOLUTION
    old_logprobs, old_values = old_logprobs.detach(), old_values.detach()
    advantages, returns = advantages.detach(), returns.detach()

    log_ratio = (new_logprobs - old_logprobs).where(mask.bool(), 0.0)
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_range, 1 + clip_range)
    policy_loss = masked_mean(torch.maximum(unclipped, clipped), mask)

    values_clipped = old_values + (new_values - old_values).clamp(-clip_range_value, clip_range_value)
    squared_error = torch.maximum((new_values - returns) ** 2, (values_clipped - returns) ** 2)
    value_loss = 0.5 * masked_mean(squared_error, mask)

    with torch.no_grad():
        approx_kl = masked_mean((ratio - 1) - log_ratio, mask)
        clipfrac = masked_mean(((ratio - 1).abs() > clip_range).float(), mask)
    info = {
        "policy_loss": policy_loss.item(),
        "value_loss": value_loss.item(),
        "approx_kl": approx_kl.item(),
        "clipfrac": clipfrac.item(),
    }
    return policy_loss + vf_coef * value_loss, info
    ### END SOLUTION


def response_mask(response_ids: Int[Tensor, "batch response"], eos_id: int) -> Int[Tensor, "batch response"]:
    """1 up to and including the first EOS of each row, 0 after it (exercise 3.5).

    A row without an EOS reached its limit and is valid as a whole. The ids say nothing else about padding: where
    the pad token is the EOS token, only the first one is real.
    """
    ### BEGIN SOLUTION
    is_eos = (response_ids == eos_id).long()
    eos_before = is_eos.cumsum(dim=-1) - is_eos
    return (eos_before == 0).long()
    ### END SOLUTION


def response_logprobs_and_values(
    policy: PolicyWithValueHead,
    full_ids: Int[Tensor, "batch seq"],
    full_mask: Int[Tensor, "batch seq"],
    response_length: int,
) -> tuple[Float[Tensor, "batch response"], Float[Tensor, "batch response"]]:
    """Log-probability of each response token and the value of the state before it, in one pass (exercise 3.5).

    `rollout` and `ppo_step` both look through this window, so that the two can never be off by one.
    """
    ### BEGIN SOLUTION
    window = response_length + 1  # the last prompt token predicts the first response token
    logits, values = policy(full_ids, full_mask, logits_to_keep=window)
    return gather_logprobs(logits, full_ids[:, -window:]), values[:, -window:-1]
    ### END SOLUTION


@dataclass
class Rollout:
    """A batch of sampled responses and everything about them that stays fixed during the update.

    Attributes:
        full_ids: prompt block and response block, `[batch, prompt + response]`; after the EOS of a response comes
            padding.
        full_mask: 1 on the real tokens of both blocks (prompt, response and its EOS).
        old_logprobs: log-probability of each response token under the policy that sampled it, `[batch, response]`.
        ref_logprobs: the same under the frozen reference.
        old_values: the critic's value before each response token.
        rm_score: reward of each whole response, `[batch]`.
        response_mask: 1 up to and including the first EOS of the response.
        texts: the responses, decoded, without prompt and special tokens.
    """

    full_ids: Int[Tensor, "batch seq"]
    full_mask: Int[Tensor, "batch seq"]
    old_logprobs: Float[Tensor, "batch response"]
    ref_logprobs: Float[Tensor, "batch response"]
    old_values: Float[Tensor, "batch response"]
    rm_score: Float[Tensor, "batch"]
    response_mask: Int[Tensor, "batch response"]
    texts: list[str]


@torch.no_grad()
def rollout(
    policy: PolicyWithValueHead,
    ref_policy: PolicyWithValueHead,
    reward_fn: Callable[[Tensor, Tensor], Tensor],
    tokenizer,
    prompts: Sequence[str],
    max_new_tokens: int = 20,
) -> Rollout:
    """Sample one response to each prompt and record it (exercise 3.5).

    The samples come from the policy itself: temperature 1, no top-k, no top-p. Anything else would sample from one
    distribution and compute the ratio of another. Row `i` answers `prompts[i]`, each row with a sample of its own, and
    the scores are stored as `reward_fn` returns them. Dropout is off; the policy's training mode is as before
    afterwards.

    Args:
        reward_fn: `(full_ids, full_mask) -> [batch]`; a `RewardModel` is one.
        tokenizer: with a pad token; prompts are padded on the left, so that every response starts in one column.
        max_new_tokens: at which a response is cut. `R` is smaller when all responses end before.
    """
    ### BEGIN SOLUTION
    was_training = policy.training
    policy.eval()
    ref_policy.eval()

    # 1. sample
    prompt = tokenizer(
        list(prompts), add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt"
    ).to(policy.lm.device)
    full_ids = policy.lm.generate(
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

    # 2. read it with the policy that sampled it, with the reference, and with the reward
    response_length = response_ids.shape[1]
    old_logprobs, old_values = response_logprobs_and_values(policy, full_ids, full_mask, response_length)
    ref_logprobs, _ = response_logprobs_and_values(ref_policy, full_ids, full_mask, response_length)
    rm_score = reward_fn(full_ids, full_mask)

    policy.train(was_training)
    return Rollout(
        full_ids=full_ids,
        full_mask=full_mask,
        old_logprobs=old_logprobs,
        ref_logprobs=ref_logprobs,
        old_values=old_values,
        rm_score=rm_score,
        response_mask=mask,
        texts=[
            tokenizer.decode(ids[valid.bool()], skip_special_tokens=True)
            for ids, valid in zip(response_ids, mask, strict=True)
        ],
    )
    ### END SOLUTION


def ppo_step(
    policy: PolicyWithValueHead,
    optim: torch.optim.Optimizer,
    rollout: Rollout,
    ppo_epochs: int = 4,
    clip_range: float = 0.2,
    clip_range_value: float = 0.2,
    kl_coef: float = 0.05,
    vf_coef: float = 0.5,
    max_grad_norm: float = 1.0,
) -> dict[str, float]:
    """Update the policy on one rollout, `ppo_epochs` times over (exercise 3.5).

    Each epoch is one step of `optim` on the whole rollout. Rewards, advantages and returns are computed once, from
    scores and KL as they are, and reused; advantages use the default `gamma` and `lam`. Dropout is off, so that new
    and old policy are the same function before the first update and every ratio starts at 1.

    Returns:
        The `info` of the last epoch, with `mean_reward`, the mean score of the rollout, and `kl_to_ref`, the KL to
        the reference in nats: mean over responses of the sum over tokens of `old_logprobs - ref_logprobs`.
    """
    ### BEGIN SOLUTION
    policy.eval()
    mask = rollout.response_mask

    # 1. returns first, then whiten: the critic's target stays on the scale of the rewards
    token_rewards = shape_token_rewards(
        rollout.rm_score, rollout.old_logprobs, rollout.ref_logprobs, mask, kl_coef
    )
    advantages, returns = compute_gae(token_rewards, rollout.old_values, mask)
    advantages = masked_whiten(advantages, mask)

    # 2. the same frozen targets for every epoch
    for _ in range(ppo_epochs):
        new_logprobs, new_values = response_logprobs_and_values(
            policy, rollout.full_ids, rollout.full_mask, mask.shape[1]
        )
        loss, info = ppo_losses(
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
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
        optim.step()

    log_ratio_to_ref = (rollout.old_logprobs - rollout.ref_logprobs).where(mask.bool(), 0.0)
    info["mean_reward"] = rollout.rm_score.mean().item()
    info["kl_to_ref"] = log_ratio_to_ref.sum(dim=-1).mean().item()
    return info
    ### END SOLUTION


def train_ppo(
    policy: PolicyWithValueHead,
    ref_policy: PolicyWithValueHead,
    reward_fn: Callable[[Tensor, Tensor], Tensor],
    tokenizer,
    prompts: Sequence[str],
    optim: torch.optim.Optimizer,
    n_steps: int = 50,
    batch_size: int = 32,
    max_new_tokens: int = 20,
    ppo_epochs: int = 4,
    kl_coef: float = 0.05,
    on_step: Callable[[dict[str, float], Rollout], None] | None = None,
) -> list[dict[str, float]]:
    """Run PPO end to end: draw prompts, roll out, update, `n_steps` times (exercise 4).

    Args:
        ref_policy: a frozen copy of the policy as it was before the first step; it is only read.
        prompts: texts, drawn with replacement from torch's global random generator.
        optim: optimiser over the policy's parameters. It is handed in, so that a run can be continued.
        on_step: called after each step with its `info` and its rollout, for logging and checkpoints.

    Returns:
        The `info` of `ppo_step` for each step.
    """
    ### BEGIN SOLUTION
    history = []
    for _ in range(n_steps):
        drawn = torch.randint(len(prompts), (batch_size,)).tolist()
        batch = rollout(policy, ref_policy, reward_fn, tokenizer, [prompts[i] for i in drawn], max_new_tokens)
        info = ppo_step(policy, optim, batch, ppo_epochs=ppo_epochs, kl_coef=kl_coef)
        history.append(info)
        if on_step is not None:
            on_step(info, batch)
    return history
    ### END SOLUTION
