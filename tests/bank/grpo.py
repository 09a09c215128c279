"""The bank's part about `grpo.py`."""

from . import body, right, wrong

# --- 6.1 group_advantages -------------------------------------------------------------------------

REFUSED = (
    "    if len(rewards) % group_size != 0:\n"
    '        raise ValueError(f"{len(rewards)} rewards do not make groups of {group_size}")\n'
)
GROUPS = "groups = rewards.view(-1, group_size)"
CENTRED = "centred = groups - groups.mean(dim=-1, keepdim=True)"
SCALED = "advantages = centred / (groups.std(dim=-1, keepdim=True) + eps)"
ALL_EQUAL = "all_equal = (groups == groups[:, :1]).all(dim=-1, keepdim=True)"
RETURNED = "return advantages.masked_fill(all_equal, 0.0).flatten()"

wrong(
    "group_advantages",
    "You return one row for each group. The result is [batch], in the order of the rewards.",
    (RETURNED, "return advantages.masked_fill(all_equal, 0.0)"),
)
wrong(
    "group_advantages",
    "You return one number for each group, its mean. Each answer has an advantage of its own.",
    (RETURNED, "return groups.mean(dim=-1)"),
)
wrong(
    "group_advantages",
    "You return the rewards as they are.",
    (RETURNED, "return rewards.clone()"),
)
wrong(
    "group_advantages",
    "Your advantages have the wrong sign: an answer that is better than its group has one above 0.",
    (CENTRED, "centred = groups.mean(dim=-1, keepdim=True) - groups"),
)
wrong(
    "group_advantages",
    "You compare each answer with the whole batch. An easy prompt then looks good whatever is answered to it: compare within "
    "the group.",
    (GROUPS, "groups = rewards.view(1, -1)"),
)
wrong(
    "group_advantages",
    "The mean is that of the whole batch, while the standard deviation is that of the group.",
    ("groups.mean(dim=-1, keepdim=True)", "rewards.mean()"),
)
wrong(
    "group_advantages",
    "The standard deviation is that of the whole batch. Each group has its own.",
    ("groups.std(dim=-1, keepdim=True)", "rewards.std()"),
)
wrong(
    "group_advantages",
    "Your standard deviation is that of all centred rewards together. Each group has its own.",
    ("groups.std(dim=-1, keepdim=True)", "centred.std()"),
)
wrong(
    "group_advantages",
    "Your groups are made of every n-th answer. Answers to one prompt stand next to each other.",
    (GROUPS, "groups = rewards.view(group_size, -1).T"),
    (RETURNED, "return advantages.masked_fill(all_equal, 0.0).T.flatten()"),
)
wrong(
    "group_advantages",
    "Your groups have as many answers as there are prompts: group_size is the number of answers, not of groups.",
    (GROUPS, "groups = rewards.view(group_size, -1)"),
)
wrong(
    "group_advantages",
    "You come back from groups to a batch in another order than you went there.",
    (RETURNED, "return advantages.masked_fill(all_equal, 0.0).T.flatten()"),
)
wrong(
    "group_advantages",
    "Your groups have 4 answers, whatever group_size says.",
    (GROUPS, "groups = rewards.view(-1, 4 if len(rewards) % 4 == 0 else group_size)"),
)
wrong(
    "group_advantages",
    "Every group is compared with the first one: its mean and its standard deviation are used for all.",
    (CENTRED, "centred = groups - groups[0].mean()"),
    (SCALED, "advantages = centred / (groups[0].std() + eps)"),
)
wrong(
    "group_advantages",
    "Mean or standard deviation lose the axis that they were taken over, and meet the wrong rows when you subtract or divide: "
    "keepdim.",
    (CENTRED, "centred = groups - groups.mean(dim=-1)"),
    (SCALED, "advantages = centred / (groups.std(dim=-1) + eps)"),
)
wrong(
    "group_advantages",
    "You take mean and standard deviation across the groups, for the first answers, the second ones and so on.",
    (CENTRED, "centred = groups - groups.mean(dim=0, keepdim=True)"),
    (SCALED, "advantages = centred / (groups.std(dim=0, keepdim=True) + eps)"),
)
wrong(
    "group_advantages",
    "You subtract the mean and do not divide by the standard deviation.",
    (SCALED, "advantages = centred"),
)
wrong(
    "group_advantages",
    "You divide by the standard deviation and do not subtract the mean.",
    (CENTRED, "centred = groups"),
)
wrong(
    "group_advantages",
    "You divide by the variance. Its square root, the standard deviation, has the unit of the rewards.",
    ("groups.std(dim=-1, keepdim=True)", "groups.var(dim=-1, keepdim=True)"),
)
wrong(
    "group_advantages",
    "You divide by the mean distance to the mean, which is smaller than the standard deviation.",
    ("groups.std(dim=-1, keepdim=True)", "centred.abs().mean(dim=-1, keepdim=True)"),
)
wrong(
    "group_advantages",
    "You divide by the range from the worst to the best answer of the group.",
    (
        "groups.std(dim=-1, keepdim=True)",
        "(groups.amax(dim=-1, keepdim=True) - groups.amin(dim=-1, keepdim=True))",
    ),
)
wrong(
    "group_advantages",
    "You divide by the error of the mean: there is one square root of the group's size too much.",
    ("groups.std(dim=-1, keepdim=True)", "groups.std(dim=-1, keepdim=True) / group_size**0.5"),
)
wrong(
    "group_advantages",
    "You divide by the square root of the mean squared reward. What is not centred has no standard deviation.",
    ("groups.std(dim=-1, keepdim=True)", "groups.square().mean(dim=-1, keepdim=True).sqrt()"),
)
wrong(
    "group_advantages",
    "You compare each answer with the median of its group.",
    ("groups.mean(dim=-1, keepdim=True)", "groups.median(dim=-1, keepdim=True).values"),
)
wrong(
    "group_advantages",
    "You compare each answer with the best of its group.",
    ("groups.mean(dim=-1, keepdim=True)", "groups.amax(dim=-1, keepdim=True)"),
)
wrong(
    "group_advantages",
    "You compare each answer with the mean of the others (RLOO does). Here the answer itself belongs to its group.",
    (
        CENTRED,
        (
            "others = (groups.sum(dim=-1, keepdim=True) - groups) / max(group_size - 1, 1)\n"
            "    centred = groups - others"
        ),
    ),
)
wrong(
    "group_advantages",
    "You scale the advantages of the whole batch once more at the end.",
    (
        RETURNED,
        "scaled = advantages.masked_fill(all_equal, 0.0).flatten()\n    return scaled / (scaled.std() + eps)",
    ),
)
wrong(
    "group_advantages",
    "A group of equal rewards gives NaN: you divide 0 by 0.",
    (SCALED, "advantages = centred / groups.std(dim=-1, keepdim=True)"),
    (RETURNED, "return advantages.flatten()"),
)
wrong(
    "group_advantages",
    "Equal rewards give advantages that are not 0: the mean of equal numbers is rounded, and you divide one rounding error by "
    "another.",
    (
        SCALED,
        "advantages = centred / (groups.std(dim=-1, keepdim=True, correction=int(group_size > 1)) + eps)",
    ),
    (RETURNED, "return advantages.flatten()"),
)
wrong(
    "group_advantages",
    "A group of equal rewards has advantage 1. Nobody in it is better than the others.",
    ("masked_fill(all_equal, 0.0)", "masked_fill(all_equal, 1.0)"),
)
wrong(
    "group_advantages",
    "A group of equal rewards keeps its rewards. Nobody in it is better than the others.",
    (RETURNED, "return torch.where(all_equal, groups, advantages).flatten()"),
)
wrong(
    "group_advantages",
    "One group of equal rewards is enough, and all groups get 0.",
    (ALL_EQUAL, "all_equal = (groups == groups[:, :1]).all(dim=-1, keepdim=True).any()"),
)
wrong(
    "group_advantages",
    "Your group of equal rewards is one whose first two rewards are equal.",
    (ALL_EQUAL, "all_equal = groups[:, :1] == groups[:, min(1, group_size - 1)][:, None]"),
)
wrong(
    "group_advantages",
    "A group whose rewards differ little gets 0. Only equal rewards say nothing.",
    (ALL_EQUAL, "all_equal = groups.amax(dim=-1, keepdim=True) - groups.amin(dim=-1, keepdim=True) < 0.3"),
)
wrong(
    "group_advantages",
    "You round the rewards before you compare them: close ones are taken for equal.",
    (
        ALL_EQUAL,
        "all_equal = (groups.round(decimals=2) == groups[:, :1].round(decimals=2)).all(dim=-1, keepdim=True)",
    ),
)
wrong(
    "group_advantages",
    "Your standard deviation is never smaller than 1: a group whose rewards differ little has small advantages.",
    ("(groups.std(dim=-1, keepdim=True) + eps)", "groups.std(dim=-1, keepdim=True).clamp(min=1.0)"),
)
wrong(
    "group_advantages",
    "A group of one answer gives NaN: the standard deviation of one number, with n - 1, is 0 divided by 0.",
    (ALL_EQUAL, ALL_EQUAL.replace("(groups ==", "(group_size > 1) & (groups ==")),
)
wrong(
    "group_advantages",
    "You limit the advantages: an answer that is far better than its group has to weigh as much as it does.",
    (RETURNED, RETURNED.replace(".flatten()", ".flatten().clamp(-2, 2)")),
)
wrong(
    "group_advantages",
    "The last group is left out: its advantages stay 0.",
    (RETURNED, "advantages[-1:] *= int(len(groups) == 1)\n    " + RETURNED),
)
wrong(
    "group_advantages",
    "Your code changes the rewards in place. Whoever logs them afterwards sees advantages.",
    (ALL_EQUAL + "\n", ""),
    (
        CENTRED,
        f"{ALL_EQUAL}\n    spread = groups.std(dim=-1, keepdim=True)\n"
        "    centred = groups.sub_(groups.mean(dim=-1, keepdim=True))",
    ),
    (SCALED + "\n", "advantages = centred / (spread + eps)\n"),
)
wrong(
    "group_advantages",
    "A batch that is no multiple of group_size has to be refused with a ValueError of your own. What comes now is torch's.",
    (REFUSED, ""),
)
wrong(
    "group_advantages",
    "A batch that is no multiple of group_size is cut: the last answers are lost, silently. Refuse it with a ValueError.",
    (REFUSED, "    rewards = rewards[: len(rewards) // group_size * group_size]\n"),
)
wrong(
    "group_advantages",
    "You refuse with an assert. Python leaves those out when it is told to optimise; the docstring names a ValueError.",
    (REFUSED, "    assert len(rewards) % group_size == 0, (len(rewards), group_size)\n"),
)
wrong(
    "group_advantages",
    "Your ValueError does not say which two numbers do not fit: the size of the batch and group_size.",
    (
        'f"{len(rewards)} rewards do not make groups of {group_size}"',
        '"the batch is no multiple of the group size"',
    ),
)
wrong(
    "group_advantages",
    "You refuse only a batch that is smaller than a group.",
    (
        REFUSED,
        REFUSED.replace("len(rewards) % group_size != 0", "len(rewards) < group_size")
        + "    rewards = rewards[: len(rewards) // group_size * group_size]\n",
    ),
)
wrong(
    "group_advantages",
    "You have changed the default of `eps` in the signature.",
    ("eps: float = 1e-8", "eps: float = 0.1"),
)
right(
    "group_advantages",
    "a loop over the groups, in Python's numbers",
    body("""
    if len(rewards) % group_size:
        raise ValueError(f"a batch of {len(rewards)} has no groups of {group_size}")
    advantages = []
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size].tolist()
        mean = sum(group) / group_size
        if max(group) == min(group):
            advantages += [0.0] * group_size
        else:
            spread = (sum((reward - mean) ** 2 for reward in group) / (group_size - 1)) ** 0.5
            advantages += [(reward - mean) / (spread + eps) for reward in group]
    return torch.tensor(advantages, dtype=rewards.dtype, device=rewards.device)
    """),
)
right(
    "group_advantages",
    "the population's standard deviation",
    ("groups.std(dim=-1, keepdim=True)", "groups.std(dim=-1, keepdim=True, unbiased=False)"),
    differs=True,
)
right(
    "group_advantages",
    "in float64, where the mean of a few equal float32 numbers is exact; statistics repeated for each answer",
    body("""
    n_groups, left = divmod(rewards.shape[0], group_size)
    if left:
        raise ValueError(f"{rewards.shape[0]} is no multiple of {group_size}")
    exact = rewards.double().reshape(n_groups, group_size)
    mean = exact.mean(dim=1).repeat_interleave(group_size)
    spread = exact.std(dim=1, correction=min(1, group_size - 1)).repeat_interleave(group_size)
    return ((rewards.double() - mean) / (spread + eps)).to(rewards.dtype)
    """),
)
right(
    "group_advantages",
    "eps inside the root, and 0 where the deviation is that of rounding",
    (
        SCALED,
        "spread = (groups.var(dim=-1, keepdim=True) + eps**2).sqrt()\n    advantages = centred / spread",
    ),
    (RETURNED, "return torch.where(spread > 1e-6, advantages, 0.0).reshape(-1)"),
)
right(
    "group_advantages",
    "a larger eps, as TRL has it",
    (
        SCALED,
        "advantages = centred / (groups.std(dim=-1, keepdim=True, correction=int(group_size > 1)) + 1e-4)",
    ),
    (RETURNED, "return advantages.flatten()"),
)

# --- 6.2 grpo_loss --------------------------------------------------------------------------------

VALID = "valid = mask.bool()"
DETACHED = "old_logprobs, ref_logprobs = old_logprobs.detach(), ref_logprobs.detach()"
TOKEN_ADVANTAGES = "token_advantages = advantages.detach().unsqueeze(-1)"
LOG_RATIO = "log_ratio = (new_logprobs - old_logprobs).where(valid, 0.0)"
RATIO = "ratio = log_ratio.exp()"
UNCLIPPED = "unclipped = -token_advantages * ratio\n"
CLIPPED = "clipped = -token_advantages * ratio.clamp(1 - clip_range, 1 + clip_range)"
WORSE = "torch.maximum(unclipped, clipped)"
POLICY_LOSS = f"policy_loss = sequence_mean({WORSE}, mask)"
REF_LOG_RATIO = "ref_log_ratio = (ref_logprobs - new_logprobs).where(valid, 0.0)"
K3 = "ref_log_ratio.expm1() - ref_log_ratio"
KL_TO_REF = f"kl_to_ref = sequence_mean({K3}, mask)"
APPROX_KL = "approx_kl = masked_mean((ratio - 1) - log_ratio, mask)"
CLIPFRAC = "clipfrac = masked_mean(((ratio - 1).abs() > clip_range).float(), mask)"
TOTAL = "return policy_loss + kl_coef * kl_to_ref, info"

# the policy's part
wrong(
    "grpo_loss",
    "Your policy loss has the wrong sign. It is minimised: what went well has to make it smaller.",
    (POLICY_LOSS, f"policy_loss = -sequence_mean({WORSE}, mask)"),
)
wrong(
    "grpo_loss",
    "Your policy loss rises with what went well, since the minus in front of the advantage is missing in both candidates.",
    (UNCLIPPED, "unclipped = token_advantages * ratio\n"),
    (CLIPPED, CLIPPED.replace("-token", "token")),
)
wrong(
    "grpo_loss",
    "The advantages are missing in your policy loss: every token is pushed up alike.",
    (UNCLIPPED, "unclipped = -ratio\n"),
    (CLIPPED, "clipped = -ratio.clamp(1 - clip_range, 1 + clip_range)"),
)
wrong(
    "grpo_loss",
    "The advantages [batch] run along the tokens, not along the responses: each response needs its own, at all of its tokens.",
    (TOKEN_ADVANTAGES, "token_advantages = advantages.detach()"),
)
wrong(
    "grpo_loss",
    "Only the first token of a response gets the advantage. All of its tokens share it.",
    (
        TOKEN_ADVANTAGES,
        "token_advantages = torch.zeros_like(new_logprobs)\n    token_advantages[:, 0] = advantages.detach()",
    ),
)
wrong(
    "grpo_loss",
    "The advantage is divided among the tokens of a response. Each of them gets all of it.",
    (TOKEN_ADVANTAGES, "token_advantages = (advantages.detach() / mask.sum(dim=-1)).unsqueeze(-1)"),
)
wrong(
    "grpo_loss",
    "You whiten the advantages here. They are used as they are given: `group_advantages` has scaled them.",
    (
        TOKEN_ADVANTAGES,
        (
            "advantages = (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)\n"
            "    token_advantages = advantages.detach().unsqueeze(-1)"
        ),
    ),
)
wrong(
    "grpo_loss",
    "Your policy loss is the plain policy gradient: advantage times log-probability. The old policy is not in it.",
    (POLICY_LOSS, "policy_loss = sequence_mean(-token_advantages * new_logprobs, mask)"),
)
wrong(
    "grpo_loss",
    "Your ratio is upside down: how much likelier is the token now than it was?",
    (RATIO, "ratio = (-log_ratio).exp()"),
    (APPROX_KL, "approx_kl = masked_mean((1 / ratio - 1) - log_ratio, mask)"),
    (CLIPFRAC, "clipfrac = masked_mean(((1 / ratio - 1).abs() > clip_range).float(), mask)"),
)
wrong(
    "grpo_loss",
    "Your ratio is the difference of the log-probabilities: the exponential is missing.",
    (RATIO, "ratio = log_ratio"),
)
wrong(
    "grpo_loss",
    "Your ratio divides two log-probabilities. The ratio of two probabilities is asked for.",
    (RATIO, "ratio = (new_logprobs / old_logprobs).where(valid, 1.0)"),
)
wrong(
    "grpo_loss",
    "Your ratio compares the new log-probabilities with themselves: it is always 1, and old_logprobs is ignored.",
    (LOG_RATIO, "log_ratio = (new_logprobs - new_logprobs.detach()).where(valid, 0.0)"),
)
wrong(
    "grpo_loss",
    "Your ratio compares with the reference. It has to compare with the policy that sampled.",
    (LOG_RATIO, "log_ratio = (new_logprobs - ref_logprobs).where(valid, 0.0)"),
)
wrong(
    "grpo_loss",
    "Your ratio is that of the whole response: you sum the log-ratios. Here each token has its own.",
    (RATIO, "ratio = log_ratio.sum(dim=-1, keepdim=True).exp().expand_as(log_ratio)"),
)
wrong(
    "grpo_loss",
    "Your ratio is the mean one of the whole response (GSPO does so). Here each token has its own.",
    (
        RATIO,
        "ratio = (log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp().expand_as(log_ratio)",
    ),
)
wrong(
    "grpo_loss",
    "Your policy loss has no clip.",
    (WORSE, "unclipped"),
)
wrong(
    "grpo_loss",
    "Your policy loss knows the clipped candidate only: a token that has moved the wrong way gets no gradient back.",
    (WORSE, "clipped"),
)
wrong(
    "grpo_loss",
    "You take the smaller of the two losses. The minimum in the paper is of gains, before the sign is turned: what is it of "
    "losses?",
    (WORSE, "torch.minimum(unclipped, clipped)"),
)
wrong(
    "grpo_loss",
    "You choose between the clipped and the unclipped ratio before the advantage comes in: for a negative advantage the "
    "choice is the other one.",
    (
        POLICY_LOSS,
        (
            "smaller = torch.minimum(ratio, ratio.clamp(1 - clip_range, 1 + clip_range))\n"
            "    policy_loss = sequence_mean(-token_advantages * smaller, mask)"
        ),
    ),
)
wrong(
    "grpo_loss",
    "You clip at the top only.",
    (CLIPPED, "clipped = -token_advantages * ratio.clamp(max=1 + clip_range)"),
)
wrong(
    "grpo_loss",
    "You clip at the bottom only.",
    (CLIPPED, "clipped = -token_advantages * ratio.clamp(min=1 - clip_range)"),
)
wrong(
    "grpo_loss",
    "Your clip range is 0.2, whatever clip_range says.",
    (CLIPPED, "clipped = -token_advantages * ratio.clamp(0.8, 1.2)"),
)
wrong(
    "grpo_loss",
    "You clip the log-ratio instead of the ratio.",
    (CLIPPED, "clipped = -token_advantages * log_ratio.clamp(-clip_range, clip_range).exp()"),
)
wrong(
    "grpo_loss",
    "You clip the ratio around 0: it stays between -clip_range and clip_range.",
    (CLIPPED, "clipped = -token_advantages * ratio.clamp(-clip_range, clip_range)"),
)
wrong(
    "grpo_loss",
    "You limit the log-ratio before the exponential. Where the docstring names no clip, there is none.",
    (RATIO, "ratio = log_ratio.clamp(-2, 2).exp()"),
)
wrong(
    "grpo_loss",
    "You clip the product of advantage and ratio. The ratio alone is clipped.",
    (CLIPPED, "clipped = (-token_advantages * ratio).clamp(-1 - clip_range, 1 + clip_range)"),
)

wrong(
    "grpo_loss",
    "You leave out responses whose advantage is 0. They count in the mean like every other.",
    (POLICY_LOSS, f"kept = advantages != 0\n    policy_loss = sequence_mean({WORSE}[kept], mask[kept])"),
)

# the KL's part
wrong(
    "grpo_loss",
    "kl_to_ref leaves out tokens that have become much less likely. All tokens count.",
    (KL_TO_REF, f"kl_to_ref = sequence_mean(({K3}) * (ratio.detach() > 0.5), mask)"),
)
wrong(
    "grpo_loss",
    "kl_to_ref has reference and policy exchanged. Which of the two stands above in the ratio of k3?",
    (REF_LOG_RATIO, "ref_log_ratio = (new_logprobs - ref_logprobs).where(valid, 0.0)"),
)
wrong(
    "grpo_loss",
    "kl_to_ref is k1, the mean log-ratio. It can be negative, and its gradient says nothing about the distance.",
    (K3, "-ref_log_ratio"),
)
wrong(
    "grpo_loss",
    "kl_to_ref is k2, half the squared log-ratio. The docstring asks for k3.",
    (K3, "0.5 * ref_log_ratio**2"),
)
wrong(
    "grpo_loss",
    "kl_to_ref is never positive: its sign is turned around.",
    (K3, "ref_log_ratio - ref_log_ratio.expm1()"),
)
wrong(
    "grpo_loss",
    "kl_to_ref forgets the 1: it is not 0 where policy and reference agree.",
    (K3, "ref_log_ratio.exp() - ref_log_ratio"),
)
wrong(
    "grpo_loss",
    "In kl_to_ref the log-ratio is added where it has to be taken away.",
    (K3, "ref_log_ratio.expm1() + ref_log_ratio"),
)
wrong(
    "grpo_loss",
    "kl_to_ref is the ratio less 1: the log-ratio is missing, and the sign is left to chance.",
    (K3, "ref_log_ratio.expm1()"),
)
wrong(
    "grpo_loss",
    "kl_to_ref is the absolute log-ratio. The docstring asks for k3.",
    (K3, "ref_log_ratio.abs()"),
)
wrong(
    "grpo_loss",
    "kl_to_ref compares the reference with the old policy: it cannot pull the new one back.",
    (REF_LOG_RATIO, "ref_log_ratio = (ref_logprobs - old_logprobs).where(valid, 0.0) + 0 * new_logprobs"),
)
wrong(
    "grpo_loss",
    "kl_to_ref compares the new policy with the old one. The distance to the reference is asked for.",
    (REF_LOG_RATIO, "ref_log_ratio = (old_logprobs - new_logprobs).where(valid, 0.0)"),
)
wrong(
    "grpo_loss",
    "kl_to_ref is multiplied by the ratio of new to old policy. Here the paper's k3 stands alone.",
    (K3, f"ratio * ({K3})"),
)
wrong(
    "grpo_loss",
    "kl_to_ref adds up over the tokens of a response. It is a mean over them, and then over the responses.",
    (KL_TO_REF, f"kl_to_ref = ({K3}).sum(dim=-1).mean()"),
)
wrong(
    "grpo_loss",
    "kl_to_ref is multiplied by kl_coef already: the entry of info is the distance before that.",
    ('"kl_to_ref": kl_to_ref.item()', '"kl_to_ref": kl_coef * kl_to_ref.item()'),
)
wrong(
    "grpo_loss",
    "Your loss is the policy loss alone: nothing holds the policy near the reference.",
    (TOTAL, "return policy_loss, info"),
)
wrong(
    "grpo_loss",
    "You subtract the KL: going away from the reference makes your loss smaller.",
    (TOTAL, "return policy_loss - kl_coef * kl_to_ref, info"),
)
wrong(
    "grpo_loss",
    "Your loss leaves kl_coef out.",
    (TOTAL, "return policy_loss + kl_to_ref, info"),
)
wrong(
    "grpo_loss",
    "Your loss weighs the KL with 0.04, whatever kl_coef says.",
    (TOTAL, "return policy_loss + 0.04 * kl_to_ref, info"),
)
wrong(
    "grpo_loss",
    "You add approx_kl in place of kl_to_ref: it holds the policy near its last rollout, not near the reference.",
    (TOTAL, "return policy_loss + kl_coef * masked_mean((ratio - 1) - log_ratio, mask), info"),
)
wrong(
    "grpo_loss",
    "You mix the loss out of both parts, with 1 - kl_coef for the policy. The policy loss counts in full.",
    (TOTAL, "return (1 - kl_coef) * policy_loss + kl_coef * kl_to_ref, info"),
)

# the means
wrong(
    "grpo_loss",
    "Your policy loss is a mean over all tokens of the batch: a long response counts more than a short one. First the mean "
    "of each response.",
    (POLICY_LOSS, f"policy_loss = masked_mean({WORSE}, mask)"),
)
wrong(
    "grpo_loss",
    "kl_to_ref is a mean over all tokens of the batch: a long response counts more than a short one. First the mean of each "
    "response.",
    (KL_TO_REF, f"kl_to_ref = masked_mean({K3}, mask)"),
)
wrong(
    "grpo_loss",
    "Your two parts are means over all tokens of the batch: a long response counts more than a short one. First the mean of "
    "each response.",
    (POLICY_LOSS, f"policy_loss = masked_mean({WORSE}, mask)"),
    (KL_TO_REF, f"kl_to_ref = masked_mean({K3}, mask)"),
)
wrong(
    "grpo_loss",
    "Your policy loss adds up over the tokens of a response. It is a mean over them, and then over the responses.",
    (POLICY_LOSS, f"policy_loss = {WORSE}.where(valid, 0.0).sum(dim=-1).mean()"),
)
wrong(
    "grpo_loss",
    "Your policy loss is a sum over the responses, not their mean.",
    (POLICY_LOSS, f"policy_loss = sequence_mean({WORSE}, mask) * len(mask)"),
)
wrong(
    "grpo_loss",
    "Your policy loss divides every response by the width of the block, not by its own number of tokens.",
    (POLICY_LOSS, f"policy_loss = {WORSE}.where(valid, 0.0).mean()"),
)
wrong(
    "grpo_loss",
    "kl_to_ref divides every response by the width of the block, not by its own number of tokens.",
    (KL_TO_REF, f"kl_to_ref = ({K3}).mean()"),
)
wrong(
    "grpo_loss",
    "The padding is in your policy loss: a mean is taken over the whole block.",
    (LOG_RATIO, "log_ratio = new_logprobs - old_logprobs"),
    (POLICY_LOSS, f"policy_loss = {WORSE}.mean()"),
    (APPROX_KL, "approx_kl = masked_mean((ratio - 1) - log_ratio, mask)"),
)
wrong(
    "grpo_loss",
    "The padding is in kl_to_ref: a mean is taken over the whole block.",
    (KL_TO_REF, "off = ref_logprobs - new_logprobs\n    kl_to_ref = (off.expm1() - off).mean()"),
)
wrong(
    "grpo_loss",
    "Your mask is made from the log-probabilities that are not 0. What stands on the padding is any number.",
    (VALID, "mask = (new_logprobs != 0).long()\n    valid = mask.bool()"),
)
wrong(
    "grpo_loss",
    "Your code takes a boolean mask only. A tokenizer gives integers.",
    (VALID, "valid = mask"),
)

# the two numbers to watch
wrong(
    "grpo_loss",
    "Your approx_kl is the mean of new less old log-probability. It has the wrong sign, and can be negative.",
    (APPROX_KL, "approx_kl = masked_mean(log_ratio, mask)"),
)
wrong(
    "grpo_loss",
    "Your approx_kl is the estimate k1, which can be negative. The docstring asks for another one.",
    (APPROX_KL, "approx_kl = masked_mean(-log_ratio, mask)"),
)
wrong(
    "grpo_loss",
    "Your approx_kl is the estimate k2, half the squared log-ratio. The docstring asks for another one.",
    (APPROX_KL, "approx_kl = masked_mean(0.5 * log_ratio**2, mask)"),
)
wrong(
    "grpo_loss",
    "Your approx_kl has old and new policy exchanged. Which of them has the tokens been sampled from?",
    (APPROX_KL, "approx_kl = masked_mean((1 / ratio - 1) + log_ratio, mask)"),
)
wrong(
    "grpo_loss",
    "Your approx_kl is the KL to the reference. It is about new and old policy.",
    (APPROX_KL, "approx_kl = kl_to_ref"),
)
wrong(
    "grpo_loss",
    "Your approx_kl is a mean of means of responses. This one is over all tokens of the mask, as in exercise 3.4.",
    (APPROX_KL, "approx_kl = sequence_mean((ratio - 1) - log_ratio, mask)"),
)
wrong(
    "grpo_loss",
    "Your approx_kl is divided by the number of all positions, padding included.",
    (APPROX_KL, "approx_kl = ((ratio - 1) - log_ratio).mean()"),
)
wrong(
    "grpo_loss",
    "Your clipfrac is computed after the clip, where no ratio is beyond the range any more.",
    (CLIPFRAC, "clipfrac = masked_mean(((ratio.clamp(1 - clip_range, 1 + clip_range) - 1).abs() > 2 * clip_range).float(), mask)"),
)  # fmt: skip
wrong(
    "grpo_loss",
    "Your clipfrac counts only tokens at which the clipped loss was chosen. A ratio beyond the range counts with both signs "
    "of the advantage.",
    (CLIPFRAC, "clipfrac = masked_mean((clipped > unclipped).float(), mask)"),
)
wrong(
    "grpo_loss",
    "Your clipfrac counts ratios above the range only.",
    (CLIPFRAC, "clipfrac = masked_mean((ratio > 1 + clip_range).float(), mask)"),
)
wrong(
    "grpo_loss",
    "Your clipfrac compares the log-ratio with clip_range, not the ratio.",
    (CLIPFRAC, "clipfrac = masked_mean((log_ratio.abs() > clip_range).float(), mask)"),
)
wrong(
    "grpo_loss",
    "Your clipfrac is a mean of means of responses. This one is over all tokens of the mask, as in exercise 3.4.",
    (CLIPFRAC, "clipfrac = sequence_mean(((ratio - 1).abs() > clip_range).float(), mask)"),
)
wrong(
    "grpo_loss",
    "Your clipfrac is a number of tokens, not a share of them.",
    (CLIPFRAC, "clipfrac = (((ratio - 1).abs() > clip_range) & valid).sum().float()"),
)

# gradients and side effects
wrong(
    "grpo_loss",
    "Your ratio is cut off from the graph: the policy loss moves nothing.",
    (RATIO, "ratio = log_ratio.detach().exp()"),
)
wrong(
    "grpo_loss",
    "kl_to_ref is cut off from the graph: it stands in the loss and pulls nothing back.",
    (TOTAL, "return policy_loss + kl_coef * kl_to_ref.detach(), info"),
)
wrong(
    "grpo_loss",
    "A part of k3 is cut off from the graph: its value is right, and its gradient is not.",
    (K3, "ref_log_ratio.expm1().detach() - ref_log_ratio"),
)
wrong(
    "grpo_loss",
    "The loss that you return is a number without a graph.",
    (TOTAL, "return (policy_loss + kl_coef * kl_to_ref).detach(), info"),
)
wrong(
    "grpo_loss",
    "A gradient reaches the old log-probabilities. They stay fixed during the update.",
    (DETACHED, "ref_logprobs = ref_logprobs.detach()"),
)
wrong(
    "grpo_loss",
    "A gradient reaches the reference's log-probabilities. The reference stays fixed.",
    (DETACHED, "old_logprobs = old_logprobs.detach()"),
)
wrong(
    "grpo_loss",
    "A gradient reaches the advantages, and through them whatever made the rewards.",
    (TOKEN_ADVANTAGES, "token_advantages = advantages.unsqueeze(-1)"),
)
wrong(
    "grpo_loss",
    "Your function changes the advantages in place. The next epoch uses them once more.",
    (TOKEN_ADVANTAGES, TOKEN_ADVANTAGES + "\n    before = token_advantages.clone()"),
    (TOTAL, "token_advantages.mul_(0.5)\n    " + TOTAL),
    (UNCLIPPED, "unclipped = -before * ratio\n"),
    (CLIPPED, CLIPPED.replace("token_advantages", "before")),
)
wrong(
    "grpo_loss",
    "Your function clears the padding of old_logprobs in place. The rollout is not yours to change.",
    (DETACHED, DETACHED + "\n    old_logprobs.masked_fill_(mask == 0, 0.0)"),
)
wrong(
    "grpo_loss",
    "The entries of info carry the graph of the loss. They have to be plain floats: who keeps a history keeps every graph.",
    ('"policy_loss": policy_loss.item()', '"policy_loss": policy_loss'),
    ('"kl_to_ref": kl_to_ref.item()', '"kl_to_ref": kl_to_ref'),
)
for name, default, other in (
    ("clip_range", "float = 0.2", "float = 0.1"),
    ("kl_coef", "float = 0.04", "float = 0.4"),
):
    wrong(
        "grpo_loss",
        f"You have changed the default of `{name}` in the signature.",
        (f"    {name}: {default}", f"    {name}: {other}"),
    )
right(
    "grpo_loss",
    "one response after the other, its real tokens alone",
    body("""
    policy_losses, kls, kept_kl, kept_far = [], [], [], []
    for new, old, ref, advantage, row in zip(
        new_logprobs, old_logprobs.detach(), ref_logprobs.detach(), advantages.detach(), mask.bool()
    ):
        new, old, ref = new[row], old[row], ref[row]
        ratio = torch.exp(new - old)
        near = torch.clamp(ratio, 1 - clip_range, 1 + clip_range)
        policy_losses.append(-torch.minimum(ratio * advantage, near * advantage).mean())
        kls.append((torch.exp(ref - new) - (ref - new) - 1).mean())
        kept_kl.append((ratio - 1 - (new - old)).detach())
        kept_far.append(((ratio - 1).abs() > clip_range).float())
    policy_loss, kl = torch.stack(policy_losses).mean(), torch.stack(kls).mean()
    info = {
        "clipfrac": float(torch.cat(kept_far).mean()),
        "approx_kl": float(torch.cat(kept_kl).mean()),
        "kl_to_ref": float(kl),
        "policy_loss": float(policy_loss),
    }
    return policy_loss + kl_coef * kl, info
    """),
)
right(
    "grpo_loss",
    "masked by products, one weight for each token, k3 limited as verl does",
    (
        VALID,
        "weights = mask.float() / mask.sum(dim=-1, keepdim=True).float() / len(mask)\n    valid = mask.bool()",
    ),
    (POLICY_LOSS, f"policy_loss = torch.einsum('br,br->', {WORSE}, weights)"),
    (KL_TO_REF, f"kl_to_ref = (({K3}).clamp(-10, 10) * weights).sum()"),
)
right(
    "grpo_loss",
    "gains in place of losses, in float64, one term for each token",
    (RATIO, "log_ratio = log_ratio.double()\n    ratio = log_ratio.exp()"),
    (POLICY_LOSS, "gain = torch.min(-unclipped, -clipped)\n    policy_loss = -sequence_mean(gain, mask)"),
    (K3, "ref_log_ratio.exp() - 1 - ref_log_ratio"),
    (TOTAL, "per_token = kl_coef * (ref_log_ratio.exp() - 1 - ref_log_ratio) - gain\n"
     "    return sequence_mean(per_token, mask).to(new_logprobs.dtype), info"),
)  # fmt: skip
right(
    "grpo_loss",
    "numbers as tensors without a graph",
    ('"policy_loss": policy_loss.item()', '"policy_loss": float(policy_loss.detach())'),
    (CLIPFRAC, "far = (ratio < 1 - clip_range) | (ratio > 1 + clip_range)\n        clipfrac = (far & valid).sum() / valid.sum()"),
)  # fmt: skip

# --- 6.3 grpo_step --------------------------------------------------------------------------------

ADVANTAGES = "advantages = group_advantages(rollout.rewards, rollout.group_size)"
READ = "policy, rollout.full_ids, rollout.full_mask, rollout.response_mask.shape[1]"
ARGUMENTS = """            new_logprobs,
            rollout.old_logprobs,
            rollout.ref_logprobs,
            advantages,
            rollout.response_mask,
            clip_range,
            kl_coef,
"""
ZERO = "        optim.zero_grad()\n"
CLIP = "        torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)\n"
STEP = "        optim.step()\n"
LOSS = "        loss, info = grpo_loss(\n"
MEAN_REWARD = "rollout.rewards.mean().item()"
EQUAL = "(groups == groups[:, :1]).all(dim=-1).float().mean().item()"

wrong(
    "grpo_step",
    "Dropout is on during your update: you put the policy into training mode.",
    ("policy.eval()", "policy.train()"),
)
wrong(
    "grpo_step",
    "Your update leaves the policy in the mode that it comes in: in training mode, dropout is on.",
    ("    policy.eval()\n", ""),
)
wrong(
    "grpo_step",
    "Gradients are never set back to zero: each step adds up all gradients before it.",
    (ZERO, ""),
)
wrong(
    "grpo_step",
    "Gradients are set back to zero once, before the first epoch. The later ones add up.",
    (ZERO, ""),
    ("    for _ in range(n_epochs):", "    optim.zero_grad()\n    for _ in range(n_epochs):"),
)
wrong(
    "grpo_step",
    "You set the gradients back to zero after `backward`: the optimiser then has nothing to go by.",
    (ZERO, ""),
    ("loss.backward()", "loss.backward()\n        optim.zero_grad(set_to_none=False)"),
)
wrong(
    "grpo_step",
    "The gradient is not clipped when the optimiser makes its step: clipping is missing, or stands before `backward` "
    "or after `step`.",
    (CLIP, ""),
)
wrong(
    "grpo_step",
    "The gradient norm is always clipped to 1: max_grad_norm is not used.",
    ("(policy.parameters(), max_grad_norm)", "(policy.parameters(), 1.0)"),
)
wrong(
    "grpo_step",
    "You clip each weight's gradient by itself. The limit is for the norm of all of them together.",
    (
        CLIP,
        "        [torch.nn.utils.clip_grad_norm_(weight, max_grad_norm) for weight in policy.parameters()]\n",
    ),
)
wrong(
    "grpo_step",
    "You clip each number of the gradient by its value. The limit is for the norm of all of them together.",
    ("clip_grad_norm_(", "clip_grad_value_("),
)
wrong(
    "grpo_step",
    "The optimiser never makes a step.",
    (STEP, ""),
)
wrong(
    "grpo_step",
    "You make a new optimiser in each update. The one that is handed in remembers earlier steps and has its own "
    "learning rate.",
    (
        "    policy.eval()\n",
        "    policy.eval()\n    optim = torch.optim.AdamW(policy.parameters(), lr=1e-5)\n",
    ),
)
wrong(
    "grpo_step",
    "You make one step only. Each epoch makes one.",
    (STEP + "\n", "    optim.step()\n\n"),
)
wrong(
    "grpo_step",
    "Your loop makes one epoch too many.",
    ("range(n_epochs)", "range(n_epochs + 1)"),
)
wrong(
    "grpo_step",
    "Your loop makes one epoch too few.",
    ("range(n_epochs)", "range(1, max(n_epochs, 2))"),
)
wrong(
    "grpo_step",
    "You make several steps in an epoch, one for each group. An epoch is one step on the whole rollout.",
    (
        STEP,
        STEP
        + "        for _ in range(len(rollout.rewards) // rollout.group_size - 1):\n            optim.step()\n",
    ),
)
wrong(
    "grpo_step",
    "You stop before the last epoch when the policy has moved far. n_epochs says how many there are.",
    (STEP, STEP + "        if info['approx_kl'] > 0.02:\n            break\n"),
)
wrong(
    "grpo_step",
    "You climb the loss: its sign is turned around before `backward`.",
    ("loss.backward()", "(-loss).backward()"),
)
wrong(
    "grpo_step",
    "You climb the loss from the second epoch on.",
    ("loss.backward()", "(loss if _ == 0 else -loss).backward()"),
)
wrong(
    "grpo_step",
    "Your old log-probabilities are the new ones, cut off from the gradient: every ratio is 1 for ever, and nothing "
    "is clipped.",
    (ARGUMENTS, ARGUMENTS.replace("rollout.old_logprobs", "new_logprobs.detach()")),
)
wrong(
    "grpo_step",
    "Your old log-probabilities are those of the epoch before. They stay those of the policy that sampled.",
    (ADVANTAGES, ADVANTAGES + "\n    old_logprobs = rollout.old_logprobs"),
    (ARGUMENTS, ARGUMENTS.replace("rollout.old_logprobs", "old_logprobs")),
    (STEP, STEP + "        old_logprobs = new_logprobs.detach()\n"),
)
wrong(
    "grpo_step",
    "You read the old log-probabilities again before the first epoch. Those of the rollout are given.",
    (
        ADVANTAGES,
        ADVANTAGES + f"\n    with torch.no_grad():\n        old_logprobs = response_logprobs({READ})",
    ),
    (ARGUMENTS, ARGUMENTS.replace("rollout.old_logprobs", "old_logprobs")),
)
wrong(
    "grpo_step",
    "old and new log-probabilities are swapped in your call of `grpo_loss`: the ratio is upside down.",
    (
        ARGUMENTS,
        ARGUMENTS.replace(
            "new_logprobs,\n            rollout.old_logprobs",
            "rollout.old_logprobs,\n            new_logprobs",
        ),
    ),
)
wrong(
    "grpo_step",
    "old and reference log-probabilities are swapped in your call of `grpo_loss`.",
    (
        ARGUMENTS,
        ARGUMENTS.replace(
            "rollout.old_logprobs,\n            rollout.ref_logprobs",
            "rollout.ref_logprobs,\n            rollout.old_logprobs",
        ),
    ),
)
wrong(
    "grpo_step",
    "Your KL is measured to the old policy: the reference does not reach `grpo_loss`.",
    (ARGUMENTS, ARGUMENTS.replace("rollout.ref_logprobs", "rollout.old_logprobs")),
)
wrong(
    "grpo_step",
    "Your reference moves along: its log-probabilities are those of the policy itself.",
    (ARGUMENTS, ARGUMENTS.replace("rollout.ref_logprobs", "new_logprobs.detach()")),
)
wrong(
    "grpo_step",
    "The raw rewards are your advantages: nothing is compared within a group.",
    (ADVANTAGES, "advantages = rollout.rewards"),
)
wrong(
    "grpo_step",
    "Your advantages are normalised over the whole batch, not within each group.",
    (ADVANTAGES, "advantages = group_advantages(rollout.rewards, len(rollout.rewards))"),
)
wrong(
    "grpo_step",
    "You hand the number of prompts to `group_advantages`. It wants the size of a group.",
    (
        ADVANTAGES,
        "advantages = group_advantages(rollout.rewards, len(rollout.rewards) // rollout.group_size)",
    ),
)
wrong(
    "grpo_step",
    "Your groups have 2 answers, whatever the rollout says.",
    (ADVANTAGES, "advantages = group_advantages(rollout.rewards, 2)"),
)
wrong(
    "grpo_step",
    "You charge the KL in the rewards, as PPO does. Here it stands in the loss, and once is enough.",
    (
        ADVANTAGES,
        (
            "gap = (rollout.old_logprobs - rollout.ref_logprobs).where(rollout.response_mask.bool(), 0.0)\n"
            "    charged = rollout.rewards - kl_coef * gap.sum(dim=-1)\n"
            "    advantages = group_advantages(charged, rollout.group_size)"
        ),
    ),
)
wrong(
    "grpo_step",
    "You whiten the advantages of the batch once more.",
    (ADVANTAGES, ADVANTAGES + "\n    advantages = advantages / (advantages.std() + 1e-8)"),
)
wrong(
    "grpo_step",
    "You limit the rewards before they are compared. What is far better has to count as far better.",
    ("group_advantages(rollout.rewards,", "group_advantages(rollout.rewards.clamp(-3, 3),"),
)
wrong(
    "grpo_step",
    "You leave out groups whose rewards are all equal. They have no advantage, and the KL still holds them.",
    (
        ADVANTAGES,
        ADVANTAGES
        + "\n    kept = (advantages.view(-1, rollout.group_size) != 0).any(-1).repeat_interleave(rollout.group_size)",
    ),
    (ARGUMENTS, ARGUMENTS.replace("rollout.response_mask", "rollout.response_mask * kept.unsqueeze(-1)")),
)
wrong(
    "grpo_step",
    "kl_coef does not reach `grpo_loss`: it works with its default.",
    (ARGUMENTS, ARGUMENTS.replace("            kl_coef,\n", "")),
)
wrong(
    "grpo_step",
    "clip_range does not reach `grpo_loss`: it works with its default.",
    (
        ARGUMENTS,
        ARGUMENTS.replace(
            "            clip_range,\n            kl_coef,\n", "            kl_coef=kl_coef,\n"
        ),
    ),
)
wrong(
    "grpo_step",
    "clip_range and kl_coef are swapped in your call of `grpo_loss`.",
    (
        ARGUMENTS,
        ARGUMENTS.replace("clip_range,\n            kl_coef", "kl_coef,\n            clip_range"),
    ),
)
wrong(
    "grpo_step",
    "The losses are averaged over the padding too: `grpo_loss` gets a mask of ones.",
    (ARGUMENTS, ARGUMENTS.replace("rollout.response_mask", "torch.ones_like(rollout.response_mask)")),
)
wrong(
    "grpo_step",
    "The policy reads the padding as text in your update: it gets a mask of ones.",
    (READ, READ.replace("rollout.full_mask", "torch.ones_like(rollout.full_mask)")),
)
wrong(
    "grpo_step",
    "Your info is that of the first epoch. The last one says where the update has ended.",
    (LOSS, LOSS.replace("info", "new_info")),
    (ZERO, "        info = new_info if _ == 0 else info\n" + ZERO),
)
wrong(
    "grpo_step",
    "Your info is a mean over the epochs. It is that of the last one.",
    (LOSS, LOSS.replace("info", "new_info")),
    (
        ZERO,
        "        info = {k: ((info[k] * _ if _ else 0.0) + v) / (_ + 1) for k, v in new_info.items()}\n"
        + ZERO,
    ),
)
wrong(
    "grpo_step",
    "Your mean_reward is a sum.",
    (MEAN_REWARD, "rollout.rewards.sum().item()"),
)
wrong(
    "grpo_step",
    "Your mean_reward is the mean of the advantages. That is always 0.",
    (MEAN_REWARD, "advantages.mean().item()"),
)
wrong(
    "grpo_step",
    "Your mean_reward is that of the best answers. All of them count.",
    (MEAN_REWARD, "groups.amax(dim=-1).mean().item()"),
)
wrong(
    "grpo_step",
    "mean_reward is missing in your info.",
    (f'    info["mean_reward"] = {MEAN_REWARD}\n', ""),
)
wrong(
    "grpo_step",
    "equal_groups is missing in your info.",
    (f'    info["equal_groups"] = {EQUAL}\n', ""),
)
wrong(
    "grpo_step",
    "equal_groups is a number of groups in your info. It is their share.",
    (EQUAL, EQUAL.replace(".float().mean()", ".float().sum()")),
)
wrong(
    "grpo_step",
    "equal_groups is the share of groups whose rewards are not all equal in your info.",
    (EQUAL, "(groups != groups[:, :1]).any(dim=-1).float().mean().item()"),
)
wrong(
    "grpo_step",
    "Your equal_groups counts answers whose advantage is 0. One that is exactly as good as the mean of its group has it too.",
    (EQUAL, "(advantages == 0).float().mean().item()"),
)
wrong(
    "grpo_step",
    "Your equal_groups counts groups in which two answers have the same reward. All of them have to.",
    (EQUAL, "(groups.sort(dim=-1).values.diff(dim=-1) == 0).any(dim=-1).float().mean().item()"),
)
wrong(
    "grpo_step",
    "Your equal_groups compares the first answer with the last one. All of them have to be equal.",
    (EQUAL, "(groups[:, 0] == groups[:, -1]).float().mean().item()"),
)
wrong(
    "grpo_step",
    "Your equal_groups counts groups whose rewards are all 0. Those that are all right say as little.",
    (EQUAL, "(groups == 0).all(dim=-1).float().mean().item()"),
)
wrong(
    "grpo_step",
    "Your equal_groups counts groups whose rewards differ little. Only equal rewards say nothing.",
    (EQUAL, "(groups.amax(dim=-1) - groups.amin(dim=-1) < 0.5).float().mean().item()"),
)
wrong(
    "grpo_step",
    "Your equal_groups takes rewards for equal that are only very close.",
    (EQUAL, "(groups.amax(dim=-1) - groups.amin(dim=-1) < 0.05).float().mean().item()"),
)
wrong(
    "grpo_step",
    "Your equal_groups makes its groups of every n-th answer. Answers to one prompt stand next to each other.",
    (EQUAL, "(rollout.rewards.view(rollout.group_size, -1) == rollout.rewards.view(rollout.group_size, -1)[:1]).all(dim=0).float().mean().item()"),
)  # fmt: skip
wrong(
    "grpo_step",
    "Your update writes into the rewards of the rollout.",
    (MEAN_REWARD, MEAN_REWARD + "\n    rollout.rewards.sub_(rollout.rewards.mean())"),
)
wrong(
    "grpo_step",
    "Your update replaces the old log-probabilities in the rollout by the new ones.",
    (STEP, STEP + "    rollout.old_logprobs = new_logprobs.detach()\n"),
)
for name, default, other in (
    ("n_epochs", "int = 4", "int = 1"),
    ("clip_range", "float = 0.2", "float = 0.1"),
    ("kl_coef", "float = 0.04", "float = 0.4"),
    ("max_grad_norm", "float = 1.0", "float = 0.5"),
):
    wrong(
        "grpo_step",
        f"You have changed the default of `{name}` in the signature.",
        (f"    {name}: {default}", f"    {name}: {other}"),
    )
right(
    "grpo_step",
    "arguments by name, gradients of the policy set back, the mode restored",
    body("""
    was_training = policy.training
    policy.train(False)
    white = group_advantages(rewards=rollout.rewards, group_size=rollout.group_size)
    info = {}
    for _ in range(n_epochs):
        policy.zero_grad()
        loss, info = grpo_loss(
            new_logprobs=response_logprobs(
                policy, rollout.full_ids, rollout.full_mask, response_length=rollout.old_logprobs.shape[1]
            ),
            old_logprobs=rollout.old_logprobs, ref_logprobs=rollout.ref_logprobs, advantages=white,
            mask=rollout.response_mask, clip_range=clip_range, kl_coef=kl_coef,
        )
        loss.backward()
        nn.utils.clip_grad_norm_(list(policy.parameters()), max_grad_norm)
        optim.step()
    policy.train(was_training)
    groups = rollout.rewards.reshape(-1, rollout.group_size)
    equal = sum(len(set(group)) == 1 for group in groups.tolist())
    return {**info, "mean_reward": float(groups.mean()), "equal_groups": equal / len(groups)}
    """),
)
right(
    "grpo_step",
    "logits of the whole text, cut here; gradients set back behind each step",
    (
        f"        new_logprobs = response_logprobs(\n            {READ}\n        )\n",
        """        logits = policy(
            rollout.full_ids,
            attention_mask=rollout.full_mask,
            position_ids=position_ids_from_mask(rollout.full_mask),
        ).logits
        new_logprobs = gather_logprobs(logits, rollout.full_ids)[:, -rollout.response_mask.shape[1] :]
""",
    ),
    (ZERO, ""),
    (STEP, STEP + ZERO),
    ("    for _ in range(n_epochs):", "    optim.zero_grad()\n    for _ in range(n_epochs):"),
)
right(
    "grpo_step",
    "clipped by hand, the tensors of info as torch makes them, a group equal when best and worst are",
    (
        CLIP,
        """        gradients = [weight.grad for weight in policy.parameters() if weight.grad is not None]
        norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
        for gradient in gradients:
            gradient.mul_((max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
""",
    ),
    (MEAN_REWARD, "rollout.rewards.mean()"),
    (EQUAL, "(groups.amax(dim=-1) == groups.amin(dim=-1)).double().mean()"),
)
right(
    "grpo_step",
    "a closure that sets back, goes backward and clips",
    (LOSS, LOSS.replace("info", "numbers")),
    (ZERO, "        info.update(numbers)\n"),
    (STEP, "        return loss\n\n    for _ in range(n_epochs):\n        optim.step(closure)\n"),
    (
        "    for _ in range(n_epochs):\n        new",
        "    info = {}\n\n    def closure():\n        optim.zero_grad()\n        new",
    ),
)
right(
    "grpo_step",
    "clipping in a hook of the optimiser",
    (CLIP, ""),
    (
        "    for _ in range(n_epochs):\n",
        """    def clip(*_):
        torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)

    hook = optim.register_step_pre_hook(clip)
    for _ in range(n_epochs):
""",
    ),
    ("    groups = rollout", "    hook.remove()\n    groups = rollout"),
)
right(
    "grpo_step",
    "advantages by the population's deviation, made here",
    (
        ADVANTAGES,
        "grouped = rollout.rewards.view(-1, rollout.group_size)\n"
        "    off = grouped - grouped.mean(dim=-1, keepdim=True)\n"
        "    advantages = (off / (grouped.std(dim=-1, keepdim=True, correction=0) + 1e-8)).flatten()",
    ),
    differs=True,
)
right(
    "grpo_step",
    "the model called here: ids by place, all logits, outputs by number; torch.distributions",
    body("""
    policy.eval()
    advantages, width = group_advantages(rollout.rewards, rollout.group_size), rollout.response_mask.shape[1]
    positions = position_ids_from_mask(rollout.full_mask)
    for _ in range(n_epochs):
        outputs = policy(rollout.full_ids, attention_mask=rollout.full_mask, position_ids=positions)
        drawn_from = torch.distributions.Categorical(logits=outputs[0][:, -width - 1 : -1])
        new = drawn_from.log_prob(rollout.full_ids[:, -width:])
        fixed = rollout.old_logprobs, rollout.ref_logprobs, advantages, rollout.response_mask
        loss, info = grpo_loss(new, *fixed, clip_range, kl_coef)
        optim.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
        optim.step()
    groups = rollout.rewards.unflatten(0, (-1, rollout.group_size))
    info["mean_reward"] = rollout.rewards.mean().item()
    info["equal_groups"] = (groups.amax(dim=-1) == groups.amin(dim=-1)).float().mean().item()
    return info
    """),
)
