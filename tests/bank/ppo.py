"""Wrong and correct implementations of the exercises in `ppo.py`."""

from . import body, right, wrong

# --- 3.3 compute_gae ------------------------------------------------------------------------------

TD_ERROR = "rewards[:, t] + gamma * next_value - values[:, t]"
RUNNING_SUM = "td_error + gamma * lam * next_advantage"
NEXT_VALUE = "next_value = values[:, t].where(valid[:, t], 0.0)"
NEXT_ADVANTAGE = "next_advantage = advantage.where(valid[:, t], 0.0)"
RETURNS = "returns = (advantages + values).where(valid, 0.0)"

wrong(
    "compute_gae",
    "Your TD error leaves out the value of the next state.",
    (TD_ERROR, "rewards[:, t] - values[:, t]"),
)
wrong(
    "compute_gae",
    "Your TD error leaves out the value of the state before the token.",
    (TD_ERROR, "rewards[:, t] + gamma * next_value"),
)
wrong(
    "compute_gae",
    "Your advantages sum rewards alone: no value enters them.",
    (TD_ERROR, "rewards[:, t]"),
)
wrong(
    "compute_gae",
    "Your TD error leaves out the reward.",
    (TD_ERROR, "gamma * next_value - values[:, t]"),
)
wrong(
    "compute_gae",
    "Your TD error has the opposite sign: when a token went better than the critic expected, its advantage is positive.",
    (TD_ERROR, "values[:, t] - rewards[:, t] - gamma * next_value"),
)
wrong(
    "compute_gae",
    "Your TD error adds the value of the state before the token. It is what the critic expected already: which sign does "
    "an expectation have in a surprise?",
    (TD_ERROR, "rewards[:, t] + gamma * next_value + values[:, t]"),
)
wrong(
    "compute_gae",
    "The two values in your TD error are exchanged: which of the two states is the earlier one?",
    (TD_ERROR, "rewards[:, t] + gamma * values[:, t] - next_value"),
)
wrong(
    "compute_gae",
    "The value of the next state is not discounted by gamma in your TD error.",
    (TD_ERROR, "rewards[:, t] + next_value - values[:, t]"),
)
wrong(
    "compute_gae",
    "Your TD error discounts both values by gamma. The state before the token is not in the future.",
    (TD_ERROR, "rewards[:, t] + gamma * (next_value - values[:, t])"),
)
wrong(
    "compute_gae",
    "Your TD error discounts the reward, too. The reward of a token comes with the token, not one step later.",
    (TD_ERROR, "gamma * (rewards[:, t] + next_value) - values[:, t]"),
)
wrong(
    "compute_gae",
    "Your TD error discounts the next value by lambda. Lambda blends TD errors; what discounts the future?",
    (TD_ERROR, "rewards[:, t] + lam * next_value - values[:, t]"),
)
wrong(
    "compute_gae",
    "Your TD error discounts the next value by gamma and by lambda. Lambda has no place in a single TD error.",
    (TD_ERROR, "rewards[:, t] + gamma * lam * next_value - values[:, t]"),
)
wrong(
    "compute_gae",
    "Your TD error takes the reward of the following token.",
    (
        TD_ERROR,
        "(rewards[:, t + 1] if t + 1 < rewards.shape[1] else 0.0 * rewards[:, t]) + gamma * next_value - values[:, t]",
    ),
)
wrong(
    "compute_gae",
    "Your running sum is not discounted by lambda.",
    (RUNNING_SUM, "td_error + gamma * next_advantage"),
)
wrong(
    "compute_gae",
    "Your running sum is not discounted by gamma.",
    (RUNNING_SUM, "td_error + lam * next_advantage"),
)
wrong(
    "compute_gae",
    "Your running sum is not discounted at all: neither by gamma nor by lambda.",
    (RUNNING_SUM, "td_error + next_advantage"),
)
wrong(
    "compute_gae",
    "Your running sum counts later TD errors by 1 - lambda. How much should one count when lambda is 0?",
    (RUNNING_SUM, "td_error + gamma * (1 - lam) * next_advantage"),
)
wrong(
    "compute_gae",
    "Your advantage is a weighted mean of the TD error and what follows: the TD error itself must not be scaled.",
    (RUNNING_SUM, "(1 - gamma * lam) * td_error + gamma * lam * next_advantage"),
)
wrong(
    "compute_gae",
    "Your running sum is forgotten at every token: each advantage is one TD error alone.",
    (RUNNING_SUM, "td_error"),
)
wrong(
    "compute_gae",
    "Your sum counts the discount from the start of the response. It starts anew at each token.",
    body("""
    valid = mask.bool()
    next_values = torch.cat([(values * mask)[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    td_errors = (rewards + gamma * next_values - values).where(valid, 0.0)
    discount = (gamma * lam) ** torch.arange(rewards.shape[1])
    advantages = (td_errors * discount).flip(1).cumsum(1).flip(1).where(valid, 0.0)
    return advantages, (advantages + values).where(valid, 0.0)
    """),
)
wrong(
    "compute_gae",
    "Your loop runs from the first token to the last. An advantage is made of what comes later, so it has to know the end "
    "first.",
    ("reversed(range(rewards.shape[1]))", "range(rewards.shape[1])"),
)
wrong(
    "compute_gae",
    "Your loop leaves out the last token.",
    ("reversed(range(rewards.shape[1]))", "reversed(range(rewards.shape[1] - 1))"),
)
wrong(
    "compute_gae",
    "Your loop leaves out the first token.",
    ("reversed(range(rewards.shape[1]))", "range(rewards.shape[1] - 1, 0, -1)"),
)
wrong(
    "compute_gae",
    "After the last token you use its own value again. The response is over: there is no state after it.",
    (
        "next_value = next_advantage = torch.zeros_like(rewards[:, 0])",
        "next_advantage = torch.zeros_like(rewards[:, 0])\n    next_value = values[:, -1]",
    ),
)
wrong(
    "compute_gae",
    "The last real token of every row gets its own value as the value of what follows. The response is over there, by EOS "
    "or by its limit: no state follows.",
    (
        "advantages = torch.zeros_like(rewards)",
        "ends = valid & ~torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], dim=1)\n"
        "    advantages = torch.zeros_like(rewards)",
    ),
    (TD_ERROR, "rewards[:, t] + gamma * values[:, t].where(ends[:, t], next_value) - values[:, t]"),
)
wrong(
    "compute_gae",
    "The value of a padded position enters the TD error of the last real token.",
    (NEXT_VALUE, "next_value = values[:, t]"),
)
wrong(
    "compute_gae",
    "The running sum of the padded positions reaches the last real token.",
    (NEXT_ADVANTAGE, "next_advantage = advantage"),
)
wrong(
    "compute_gae",
    "You mask your result and not the recursion: values and running sum come from the padding into the last real token.",
    (NEXT_VALUE, "next_value = values[:, t]"),
    (NEXT_ADVANTAGE, "next_advantage = advantage"),
    (RETURNS, "advantages = advantages.where(valid, 0.0)\n    " + RETURNS),
)
wrong(
    "compute_gae",
    "You mask the rewards and leave the values of padded positions in the recursion.",
    ("advantages = torch.zeros_like(rewards)", "rewards = rewards * mask\n    advantages = torch.zeros_like(rewards)"),
    (NEXT_VALUE, "next_value = values[:, t]"),
    (NEXT_ADVANTAGE, "next_advantage = advantage"),
)
wrong(
    "compute_gae",
    "You mask the values and leave the rewards of padded positions in the recursion.",
    ("advantages = torch.zeros_like(rewards)", "values = values * mask\n    advantages = torch.zeros_like(rewards)"),
    (NEXT_ADVANTAGE, "next_advantage = advantage"),
)
wrong(
    "compute_gae",
    "At a padded position you keep the last value that you saw, which lies further right: also a padded one.",
    ("next_value = next_advantage = torch.zeros_like(rewards[:, 0])", "next_advantage = torch.zeros_like(rewards[:, 0])\n"
     "    next_value = values[:, -1].where(~valid[:, -1], 0.0)"),
    (NEXT_VALUE, "next_value = values[:, t].where(valid[:, t], next_value)"),
)
wrong(
    "compute_gae",
    "You cut the last real token of a padded response off: the mask that belongs to the next state is applied to this "
    "token.",
    (
        RETURNS,
        "shifted = torch.cat([valid[:, 1:], valid[:, -1:]], dim=1)\n"
        "    advantages = advantages.where(shifted, 0.0)\n    " + RETURNS,
    ),
)
wrong(
    "compute_gae",
    "Every row is cut at the length of the shortest one.",
    ("valid = mask.bool()", "valid = mask.bool() & (torch.arange(mask.shape[1]) < mask.sum(-1).min())"),
)
wrong(
    "compute_gae",
    "Your loop runs over the rows of the batch instead of the tokens of a response.",
    body("""
    valid = mask.bool()
    advantages = torch.zeros_like(rewards)
    next_value = next_advantage = torch.zeros_like(rewards[0])
    for t in reversed(range(rewards.shape[0])):
        td_error = rewards[t] + gamma * next_value - values[t]
        next_advantage = (td_error + gamma * lam * next_advantage).where(valid[t], 0.0)
        next_value = values[t].where(valid[t], 0.0)
        advantages[t] = next_advantage
    return advantages, (advantages + values).where(valid, 0.0)
    """),
)
wrong(
    "compute_gae",
    "Your running sum is one number for the whole batch: what one row carries along reaches the others.",
    (RUNNING_SUM, "td_error + gamma * lam * next_advantage.mean()"),
)
wrong(
    "compute_gae",
    "Your returns are the advantages: the value is missing that they are measured from.",
    (RETURNS, "returns = advantages.clone()"),
)
wrong(
    "compute_gae",
    "Your returns subtract the values. They were subtracted in the advantage already: undo that.",
    (RETURNS, "returns = (advantages - values).where(valid, 0.0)"),
)
wrong(
    "compute_gae",
    "Your returns are advantage plus reward. The advantage was measured from the critic's value, not from the reward.",
    (RETURNS, "returns = (advantages + rewards).where(valid, 0.0)"),
)
wrong(
    "compute_gae",
    "Your returns are the discounted sums of the rewards. The target of the critic here goes with the advantages, and so "
    "depends on lambda.",
    (
        RETURNS,
        "returns, later = torch.zeros_like(rewards), torch.zeros_like(rewards[:, 0])\n"
        "    for t in reversed(range(rewards.shape[1])):\n"
        "        later = (rewards[:, t] + gamma * later).where(valid[:, t], 0.0)\n"
        "        returns[:, t] = later",
    ),
)
wrong(
    "compute_gae",
    "Your returns are one-step targets: reward plus the value that follows. With lambda above 0 they look further.",
    (
        RETURNS,
        "following = torch.cat([(values * mask)[:, 1:], torch.zeros_like(values[:, :1])], dim=1)\n"
        "    returns = (rewards + gamma * following).where(valid, 0.0)",
    ),
)
wrong(
    "compute_gae",
    "Your returns add the value of the next state: it is one step late.",
    (
        RETURNS,
        "following = torch.cat([(values * mask)[:, 1:], torch.zeros_like(values[:, :1])], dim=1)\n"
        "    returns = (advantages + following).where(valid, 0.0)",
    ),
)
wrong(
    "compute_gae",
    "You whiten the advantages, and the returns are built from the whitened ones. Whitening comes later, and the critic's "
    "target is not on that scale.",
    (RETURNS, "advantages = masked_whiten(advantages, mask)\n    " + RETURNS),
)
wrong(
    "compute_gae",
    "You whiten the advantages here. Whitening is a step of its own, after this function.",
    (RETURNS, RETURNS + "\n    advantages = masked_whiten(advantages, mask)"),
)
wrong(
    "compute_gae",
    "You take the mask's own type for the advantages, so that an integer mask cuts off everything after the decimal point.",
    ("torch.zeros_like(rewards)\n", "torch.zeros_like(mask)\n"),
)
wrong(
    "compute_gae",
    "Your code does arithmetic with the mask that does not work for bools.",
    ("valid = mask.bool()", "valid = (1 - mask) == 0"),
)
wrong(
    "compute_gae",
    "A gradient flows through advantages and returns into the values.",
    ("@torch.no_grad()\n", ""),
)
wrong(
    "compute_gae",
    "A gradient flows through your returns into the values.",
    ("@torch.no_grad()\n", ""),
    (RETURNS, "advantages = advantages.detach()\n    " + RETURNS),
)
wrong(
    "compute_gae",
    "You set the padding of rewards and values to 0 in place: the caller's tensors change.",
    ("advantages = torch.zeros_like(rewards)", "rewards *= valid\n    values *= valid\n"
     "    advantages = torch.zeros_like(rewards)"),
)
wrong(
    "compute_gae",
    "You write the advantages into the rewards: the caller's tensor changes.",
    ("advantages = torch.zeros_like(rewards)", "advantages = rewards"),
)
wrong(
    "compute_gae",
    "Your returns are not 0 on the padding: the values of padded positions are left there.",
    (RETURNS, "returns = advantages + values"),
)
wrong(
    "compute_gae",
    "Your advantages and returns are not 0 on the padding.",
    ("advantages[:, t] = next_advantage", "advantages[:, t] = advantage"),
    (RETURNS, "returns = advantages + values"),
)
right(
    "compute_gae",
    "row by row, without a mask in the recursion",
    body("""
    advantages, returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
    for row in range(len(rewards)):
        length = int(mask[row].sum())
        running, following = 0.0, 0.0
        for t in range(length - 1, -1, -1):
            running = rewards[row, t] + gamma * following - values[row, t] + gamma * lam * running
            following = values[row, t]
            advantages[row, t] = running
            returns[row, t] = running + values[row, t]
    return advantages, returns
    """),
)
right(
    "compute_gae",
    "rewards and values masked before a recursion without a mask",
    body("""
    mask = mask.to(rewards.dtype)
    rewards, values = rewards * mask, values * mask
    running = 0.0
    reversed_advantages = []
    for t in range(rewards.shape[1] - 1, -1, -1):
        next_value = values[:, t + 1] if t + 1 < rewards.shape[1] else 0.0
        running = rewards[:, t] + gamma * next_value - values[:, t] + gamma * lam * running
        reversed_advantages.append(running)
    advantages = torch.stack(reversed_advantages[::-1], dim=1) * mask
    return advantages, (advantages + values) * mask
    """),
)
right(
    "compute_gae",
    "a matrix of discounts, in float64",
    body("""
    real = mask.double()
    kept = values.double() * real
    following = torch.cat([kept[:, 1:], torch.zeros_like(kept[:, :1])], dim=1)
    td_errors = (rewards.double() * real + gamma * following - kept) * real
    steps = torch.arange(rewards.shape[1])
    distance = steps[:, None] - steps[None, :]
    discounts = torch.where(distance >= 0, (gamma * lam) ** distance.clamp(min=0).double(), 0.0)
    advantages = td_errors @ discounts * real
    return advantages.to(rewards.dtype), ((advantages + kept) * real).to(rewards.dtype)
    """),
)
right(
    "compute_gae",
    "the recursion of lambda-returns, advantages from them",
    body("""
    valid = mask.bool()
    targets = torch.zeros_like(rewards)
    target = value = torch.zeros(len(rewards), dtype=rewards.dtype, device=rewards.device)
    for t in range(rewards.shape[1])[::-1]:
        target = rewards[:, t] + gamma * ((1 - lam) * value + lam * target)
        target = torch.where(valid[:, t], target, torch.zeros_like(target))
        value = torch.where(valid[:, t], values[:, t], torch.zeros_like(target))
        targets[:, t] = target
    return (targets - values).masked_fill(~valid, 0.0), targets
    """),
)
right(
    "compute_gae",
    "a flag that says whether the next position is real, results as a list",
    body("""
    real = mask.float()
    goes_on = torch.cat([real[:, 1:], torch.zeros_like(real[:, :1])], dim=1)
    following = torch.roll(values, -1, dims=1)
    td_errors = rewards + gamma * following * goes_on - values
    advantages = td_errors.clone()
    for t in reversed(range(rewards.shape[1] - 1)):
        advantages[:, t] += gamma * lam * goes_on[:, t] * advantages[:, t + 1]
    return [advantages * real, (advantages + values) * real]
    """),
)
