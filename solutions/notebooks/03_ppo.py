# %% [markdown]
# {navigation}
#
# # 3 PPO, one function at a time
#
# A fine-tuned model writes. A reward model scores. **Proximal policy optimisation** (PPO) closes the loop: it
# changes the writer so that the score goes up, in small steps, and without leaving the language behind.
#
# **What you will have at the end:** ten functions in `rlhf_exercises/ppo.py` that together make one PPO step,
# a step that you put together by hand, and a short run in which the reward rises before your eyes.
#
# **Time:** about 3 to 4 hours of your own; the cells together run in less than a minute on two CPU cores.
# **It starts from** the course's own SFT checkpoint and the course's own reward model. Notebooks 01 and 02
# need not be finished.
#
# ### One PPO step in one picture
#
# ```
#  prompts ──► 1 ROLLOUT ───► 2 REWARDS ────► 3 ADVANTAGES ──► 4 UPDATE
#              sample         for each token:  was this token   a few times on
#              responses,     KL penalty,      better than      the same rollout:
#              read them      score at the end expected?        ratio, clip, values
#              ▲                                                │
#              └────────────── a slightly better policy ◄───────┘
# ```
#
# | model | is it updated? | where it comes from | what it is for |
# |:--|:--|:--|:--|
# | policy | yes | SFT | writes the responses |
# | critic (value head) | yes | new, on the policy's own backbone | says what score it expects |
# | reference | **frozen** | SFT, a copy | says how far the policy has gone |
# | reward model | **frozen** | stage 2 | scores a whole response |
#
# The formulas are short. What goes wrong in practice is the data flow: which token a number belongs to, what
# is frozen, and when something is computed. So this notebook shows your tensors as tables, with the tokens
# beside them.

# %%
# %load_ext autoreload
# %autoreload 2
import copy
import math
import statistics

import torch

import rlhf_lab.notebook as lab
import rlhf_exercises
from rlhf_exercises import ppo, reward_model

lab.begin("03_ppo", "rlhf_exercises")

# %% [markdown]
# What the examples below share. All of it is the course's own; nothing depends on your earlier notebooks.

# %%
tokenizer = lab.load_tokenizer(lab.SFT)
lm = lab.load_causal_lm(lab.SFT)  # the language model after SFT
reward_fn = lab.ShippedReward()  # reward_fn(full_ids, full_mask) -> one score for each row
judge = lab.ToyJudge()  # reads texts; nothing is ever trained on it
prompts = list(lab.load_data("toy").prompts_train["prompt"])

example = lab.examples.two_responses()  # tensors small enough to calculate by hand
written = lab.examples.written_responses(tokenizer)  # three real rows, laid out as a rollout lays them out


def tokens_of(ids):
    """The texts of the tokens of each row."""
    return [lab.token_texts(tokenizer, row) for row in ids.tolist()]


def fresh_policy():
    """Your policy with the weights of SFT, and a critic that knows nothing yet."""
    return ppo.PolicyWithValueHead(str(lab.SFT)).eval()  # no dropout in PPO; a fresh nn.Module is in training mode


# %% [markdown]
# ## 3.1 Actor and critic

# %% [markdown] exercise="PolicyWithValueHead"
# PPO needs two things from a text so far: what the model would write next (the **actor**), and what score it
# expects in the end (the **critic**). Both are read from one backbone in one pass:
#
# ```
#                                          ┌──► LM head ────► logits [B, T, V]   actor
#  input_ids ──► backbone ──► hidden state ─┤
#   [B, T]                      [B, T, H]   └──► value head ─► values [B, T]      critic
# ```
#
# - The value head is Linear, GELU, Linear. Its **last layer starts at zero**: a fresh critic expects nothing,
#   so it cannot push the backbone around in the first step.
# - Values read the last hidden state, after the final norm: the one that the LM head reads too.
# - **Left padding must not matter.** GPT-2 has a learned embedding for each position and does not look at the
#   mask to number them. `position_ids_from_mask` in `reward_model.py` is given for that.
# - What a checkpoint recommends for sampling (top-k, a repetition penalty) is not the policy: PPO samples the
#   bare model. So the policy gets an empty `GenerationConfig()`.
# - `logits_to_keep` is handed on to the language model: PPO needs no logits on the prompt.
# - `load_from_sft` takes over the weights of a language model and leaves the value head alone.

# %% [markdown]
# **Slow, then fast.** Slow: each text alone, no padding. Fast: your policy, all texts in one batch, padded on
# the left. The log-probability of the most likely next token has to be the same.
#
# **Before you run the next cell:** which number does the critic print at each position? Write it down, then
# look.

# %%
texts = ["This phone", "关于这家餐厅：", "Review of the camera:"]
batch = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")

with lab.todo("PolicyWithValueHead"), torch.no_grad():
    policy = fresh_policy()
    logits, values = policy(batch.input_ids, batch.attention_mask)
    rows = []
    for row, text in enumerate(texts):
        alone = lm(tokenizer(text, return_tensors="pt").input_ids).logits[0, -1].log_softmax(-1)
        together = logits[row, -1].log_softmax(-1)
        likely = alone.argmax().item()
        token = lab.token_texts(tokenizer, [likely])[0]
        slow, fast = alone[likely].item(), together[likely].item()
        rows.append(
            {"text": text, "likely next token": token, "slow: alone": slow, "fast: padded batch": fast}
        )
    lab.table(rows, "log-probability of the most likely next token")
    position_ids = reward_model.position_ids_from_mask(batch.attention_mask)
    tokens = tokens_of(batch.input_ids)
    lab.show(lab.token_table(tokens=tokens, mask=batch.attention_mask, position=position_ids, value=values))
    n_policy, n_lm = (sum(p.numel() for p in model.parameters()) for model in (policy, lm))
    print(f"parameters: {n_policy / n_lm:.3f} x the language model (two backbones would be 2 x)")

# %% [markdown]
# **What you should see.** The two columns agree to four digits, also in the first row, where padding stands
# in front. All values are 0: the last layer of the value head is zero. The policy is only about 2 % larger
# than the language model, since actor and critic share the backbone. Left padding is numbered 0 and the first
# real token is numbered 0 too: the mask keeps the two apart.

# %% check="PolicyWithValueHead"

# %% [markdown]
# ## 3.2 The log-probability of each token

# %% [markdown] exercise="gather_logprobs"
# Every quantity of PPO begins with one question: how likely was the token that was really there?
#
# $$\log \pi(x_{t+1} \mid x_0 \dots x_t) = \log\,\mathrm{softmax}(z_t)[x_{t+1}]$$
#
# - In: `logits [B, T, V]`, `input_ids [B, T]`. Out: `[B, T-1]`, in nats.
# - Logits at position `t` are about the token at `t + 1`. Nothing predicts the first token, and the last
#   logits predict a token that is not there: so the result has one column less.
# - Stay in log space all the way. The logarithm of a softmax is minus infinity where the softmax has rounded
#   to 0.

# %% [markdown]
# **Slow, then fast.** The loop visits one position at a time.
#
# **Before you run the next cell:** read the sentence aloud. Which of its words could you have guessed from
# the words before? That one should have the log-probability nearest to 0. Write it down, then look.

# %%
sentence = "This phone is not reliable at all."
ids = tokenizer(sentence, return_tensors="pt").input_ids
with torch.no_grad():
    logits = lm(ids).logits

slow = []
for t in range(ids.shape[1] - 1):
    probabilities = torch.softmax(logits[0, t], dim=-1)
    slow.append(math.log(probabilities[ids[0, t + 1]]))
print("slow, summed:", round(sum(slow), 4))

with lab.todo("gather_logprobs"):
    fast = ppo.gather_logprobs(logits, ids)
    print("fast, summed:", round(fast.sum().item(), 4))
    predicted = lab.token_texts(tokenizer, ids[0, 1:].tolist())
    lab.show(lab.token_table(tokens=predicted, logprob=fast[0], probability=fast[0].exp()))

# %% [markdown]
# **Known answer.** A model whose logits are all equal finds each of the $V$ tokens equally likely: $-\ln V$
# everywhere.

# %%
with lab.todo("gather_logprobs"):
    vocabulary = len(tokenizer)
    constant = ppo.gather_logprobs(torch.full((1, 4, vocabulary), 3.0), torch.tensor([[5, 7, 0, 2000]]))
    print("your function:", [round(number, 4) for number in constant[0].tolist()])
    print("-ln V        :", round(-math.log(vocabulary), 4))

# %% [markdown]
# **What you should see.** `·all` after `·at` is nearly certain (log-probability close to 0); the word that
# carries the opinion, `·reliable`, was hard to guess. There are seven rows for eight tokens: `This` was never
# predicted. The last cell prints -7.7424 three times, whatever constant the logits have.

# %% check="gather_logprobs"

# %% [markdown]
# ## 3.3 From a score to an advantage for each token

# %% [markdown] exercise="shape_token_rewards"
# The reward model gives **one number for a whole response**. PPO wants a reward for **each token**. Two
# things are paid:
#
# $$r_t = -\beta\,\big(\log\pi_{old}(x_t) - \log\pi_{ref}(x_t)\big) + [\,t \text{ is the last token}\,]\cdot \text{score}$$
#
# The first part is charged at every token: the policy pays $\beta$ (`kl_coef`) for each nat by which it
# prefers its token more than the reference does. Summed over a response this is a one-sample estimate of the
# KL divergence to the reference (Ziegler et al. 2019, eq. 2). Without it, the policy would leave the language
# for whatever scores best.
#
# - In: `rm_score [B]`, `old_logprobs`, `ref_logprobs`, `response_mask [B, R]`. Out: rewards, of the mask's
#   shape.
# - "Last token" means **the last 1 of the mask**: the EOS where there is one, otherwise the last token before
#   the limit. Counting the 1s is not the same thing: the mask may also be `[B, T-1]` and begin with zeros for
#   the prompt.
# - 0 outside the mask, whatever numbers stand there. A row without any response token gets nothing.
# - The arguments are not changed.

# %% [markdown]
# **Slow, then fast.** What each row must add up to, in plain Python: the score minus the bill for the KL. The
# example has two responses of six positions; the second one ends after four. `kl_coef` is 0.1, so that you
# can check by hand.
#
# **Before you run the next cell:** which token of the first response pays most, and what is its reward? Write
# it down, then look.

# %%
for row in range(2):
    total = example.rm_score[row].item()
    for t in range(6):
        if example.mask[row, t] == 1:
            total -= 0.1 * (example.old_logprobs[row, t] - example.ref_logprobs[row, t]).item()
    print(f"slow: row {row} adds up to {total:.3f}")

with lab.todo("shape_token_rewards"):
    rewards = ppo.shape_token_rewards(
        example.rm_score, example.old_logprobs, example.ref_logprobs, example.mask, kl_coef=0.1
    )
    print("fast: rows add up to", [round(total, 3) for total in rewards.sum(-1).tolist()])
    lab.show(
        lab.token_table(
            tokens=example.tokens,
            mask=example.mask,
            logprob=example.old_logprobs,
            ref_logprob=example.ref_logprobs,
            reward=rewards,
        )
    )

# %% [markdown]
# **What you should see.** `·excellent` pays most: the policy gives it log-probability -1, the reference -3,
# so it pays 0.1 · 2 = 0.2. The EOS of row 0 collects the score 2 (and 0.02 back, because the reference liked
# it better). In row 1 the score lands on the EOS at position 3 and not in the padding.
#
# **Known answers.** Where policy and reference agree there is nothing to pay. And a mask that starts with
# three zeros for a prompt gives the same rewards, three columns later.

# %%
with lab.todo("shape_token_rewards"):
    agreed = ppo.shape_token_rewards(
        example.rm_score, example.old_logprobs, example.old_logprobs, example.mask, 0.1
    )
    lab.show(lab.token_table(tokens=example.tokens, mask=example.mask, reward=agreed))

    with_prompt = [
        torch.cat([torch.zeros(2, 3), x], dim=1)
        for x in (example.old_logprobs, example.ref_logprobs, example.mask)
    ]
    shifted = ppo.shape_token_rewards(example.rm_score, *with_prompt, kl_coef=0.1)
    rewards = ppo.shape_token_rewards(
        example.rm_score, example.old_logprobs, example.ref_logprobs, example.mask, kl_coef=0.1
    )
    print("largest difference, mask with and without prompt:", (shifted[:, 3:] - rewards).abs().max().item())

# %% check="shape_token_rewards"

# %% [markdown] exercise="compute_gae"
# The score arrives at the end. Which of the tokens before deserve it? The critic helps: $V_t$ is the reward
# that it still expects before token $t$. One **TD error** says how much better one token made things than
# expected:
#
# $$\delta_t = r_t + \gamma V_{t+1} - V_t$$
#
# It looks one step ahead and trusts the critic for the rest. The Monte-Carlo return looks to the very end and
# trusts nobody, but is noisy. **Generalised advantage estimation** blends the two with $\lambda$ (Schulman et
# al. 2016, eq. 16):
#
# $$A_t = \sum_{k \ge t} (\gamma\lambda)^{k-t}\,\delta_k \qquad\qquad \text{return}_t = A_t + V_t$$
#
# $\lambda = 0$ is the TD error alone, $\lambda = 1$ is Monte-Carlo minus $V_t$. The return is what the critic
# is trained towards.
#
# - In: `rewards, values, mask [B, R]`. Out: `advantages, returns [B, R]`, without gradient, 0 outside the
#   mask.
# - A response ends at its last valid token, by EOS or by its limit: **the value after it is 0**.
# - **Padding is not a state.** Nothing that stands there may reach a valid position: neither its value nor
#   the running sum.

# %% [markdown]
# **Slow, then fast.** The slow version is the double sum of the formula, for one response without padding.
# Your function gets both responses at once, and the padding of the second one holds a 7 on purpose.


# %%
def gae_slowly(rewards: list, values: list, gamma: float, lam: float) -> list:
    values = [*values, 0.0]  # the value after the end
    td_errors = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(len(rewards))]
    return [
        sum((gamma * lam) ** (k - t) * td_errors[k] for k in range(t, len(rewards)))
        for t in range(len(rewards))
    ]


for row, length in enumerate((6, 4)):
    slow = gae_slowly(example.rewards[row, :length].tolist(), example.values[row, :length].tolist(), 0.9, 0.7)
    print(f"slow, row {row}:", [round(advantage, 3) for advantage in slow])

with lab.todo("compute_gae"):
    advantages, returns = ppo.compute_gae(example.rewards, example.values, example.mask, gamma=0.9, lam=0.7)
    for row, length in enumerate((6, 4)):
        print(f"fast, row {row}:", [round(advantage, 3) for advantage in advantages[row, :length].tolist()])
    lab.show(
        lab.token_table(
            tokens=example.tokens,
            mask=example.mask,
            reward=example.rewards,
            value=example.values,
            advantage=advantages,
            **{"return": returns},
        )
    )

# %% [markdown]
# **What you should see.** The last token of each response has the advantage reward - value: 2.02 - 1.9 and
# 0.5 - 0.3. Before it, each row blends what comes after. Row 1 keeps its numbers small: the 7s in the padding
# did not get in.
#
# **Before you run the next cell:** with $\gamma = \lambda = 1$, what do the returns of row 1 have to be, and
# what changes if the critic is replaced by one that always says 0? And with $\gamma = 0$? Write it down, then
# look.

# %%
with lab.todo("compute_gae"):
    row_1 = slice(0, 4)
    _, monte_carlo = ppo.compute_gae(example.rewards, example.values, example.mask, gamma=1.0, lam=1.0)
    _, no_critic = ppo.compute_gae(
        example.rewards, torch.zeros_like(example.values), example.mask, gamma=1.0, lam=1.0
    )
    _, shortsighted = ppo.compute_gae(example.rewards, example.values, example.mask, gamma=0.0, lam=0.7)
    sums = example.rewards[1].flip(0).cumsum(0).flip(0)
    rewards = example.rewards[1]
    for name, numbers in {
        "rewards of row 1": rewards,
        "gamma 0: returns": shortsighted[1],
        "rewards still to come, summed": sums,
        "gamma 1, lambda 1: returns": monte_carlo[1],
        "the same, critic says 0": no_critic[1],
    }.items():
        print(f"{name:30}", [round(number, 3) for number in numbers[row_1].tolist()])

    poisoned = torch.where(example.mask.bool(), example.values, torch.tensor(1e6))
    before, _ = ppo.compute_gae(example.rewards, example.values, example.mask)
    after, _ = ppo.compute_gae(example.rewards, poisoned, example.mask)
    print("\npadding 7 -> 1000000 changes the advantages by", (after - before).abs().max().item())

# %% [markdown]
# **What you should see.** With $\gamma = 0$ the returns are the rewards. With $\gamma = \lambda = 1$ they are
# the sums of the rewards still to come, **whatever the critic says**: it cancels. Garbage in the padding
# changes nothing: 0.0.
#
# What $\lambda$ does, drawn with your function:

# %%
with lab.todo("compute_gae"):
    positions = range(6)
    lines = {}
    for lam in (0.0, 0.5, 0.95, 1.0):
        advantages, _ = ppo.compute_gae(example.rewards, example.values, example.mask, gamma=1.0, lam=lam)
        lines[f"lambda {lam:g}"] = (positions, advantages[0].tolist())
    lab.show(lab.curves(lab.Panel("Row 0: was excellent on the whole EOS", "token t", "advantage", lines)))

# %% [markdown]
# With $\lambda = 0$ only `·excellent` stands out: right after it, the critic expects 0.9 more than before.
# With $\lambda = 1$ the tokens in front of it share the credit. The usual choice, 0.95, is close to the
# second.

# %% check="compute_gae"

# %% [markdown] exercise="masked_whiten"
# The size of an advantage depends on the scale of the reward, and that scale means nothing. **Whitening**
# takes it out: subtract the mean, divide by the standard deviation. Then one learning rate fits all rewards,
# and about half of the tokens are pushed up and half down.
#
# - In: `x [B, R]`, `mask [B, R]`. Out: the same shape; mean 0 and variance 1 **over all valid tokens of the
#   batch**, 0 outside the mask.
# - The population variance: the mean of the squared distances to the mean.
# - Finite even when there is one valid token, or when all are equal: that is what `eps` is for.
# - `masked_mean` stands above the stub. You may use it.

# %% [markdown]
# **Slow, then fast.** Slow: collect the valid numbers in a list, and let Python's `statistics` do it.
#
# **Before you run the next cell:** the padding holds 50. What would the mean be if it were counted? Write it
# down, then look.

# %%
advantages = torch.tensor([[2.0, 1.0, 0.0, 1.0, 2.0, 3.0], [-1.0, 0.0, 1.0, -2.0, 50.0, 50.0]])

valid = advantages[example.mask.bool()].tolist()
mean, spread = statistics.fmean(valid), statistics.pstdev(valid)
print("slow:", [round((x - mean) / spread, 3) for x in valid])

with lab.todo("masked_whiten"):
    whitened = ppo.masked_whiten(advantages, example.mask)
    print("fast:", [round(x, 3) for x in whitened[example.mask.bool()].tolist()])
    lab.show(
        lab.token_table(tokens=example.tokens, mask=example.mask, advantage=advantages, whitened=whitened)
    )
    numbers = whitened[example.mask.bool()]
    print(f"mean {numbers.mean():.1e}, variance {numbers.var(unbiased=False):.6f}; known: 0 and 1")
    one_token = torch.tensor([[1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    print("a single valid token:", ppo.masked_whiten(advantages, one_token).abs().max().item(), "and not NaN")

# %% [markdown]
# **What you should see.** The mean of the ten valid numbers is 0.7 (with the padding it would be 8.9). What
# was 0.7 is now 0, and 3 has become about 1.6. Note what whitening does to a token with advantage 0: it is
# worse than the average, so it is pushed *down*.

# %% check="masked_whiten"

# %% [markdown]
# ## 3.4 The two losses

# %% [markdown] exercise="ppo_losses"
# Tokens with a positive advantage should become more likely, the others less. But the responses were sampled
# by the **old** policy, and the further the new one moves, the less they say about it. PPO takes the profit
# only near the old policy (Schulman et al. 2017, eq. 7). With the ratio
# $\rho_t = \pi_{new}(x_t) / \pi_{old}(x_t)$:
#
# $$L_{policy} = -\,\mathrm{mean}_t\, \min\big(\rho_t A_t,\ \mathrm{clip}(\rho_t, 1-\epsilon, 1+\epsilon)\,A_t\big)$$
#
# The minimum is the pessimist's choice: a move that helps counts up to the border of the clip and no further,
# a move that hurts counts in full. The value loss is built in the same spirit, with
# $V_{clip} = V_{old} + \mathrm{clip}(V - V_{old}, \pm\epsilon_v)$:
#
# $$L_{value} = \tfrac12\, \mathrm{mean}_t\, \max\big((V_t - R_t)^2,\ (V_{clip,t} - R_t)^2\big)
# \qquad L = L_{policy} + c_v\, L_{value}$$
#
# - In: ten arguments, the tensors all `[B, R]`. Out: `(L, info)`; `info` holds four floats.
# - Every mean is over **all valid tokens of the batch**, not row by row.
# - Gradient reaches the new log-probabilities and the new values, and nothing else.
# - `approx_kl` is the token mean of $(\rho - 1) - \log\rho$: never negative, 0 when nothing moved (Schulman
#   2020). `clipfrac` is the share of tokens whose ratio is further than $\epsilon$ from 1.

# %% [markdown]
# **Slow, then fast.** Four tokens: the ratio is 1.5 or 0.5, the advantage +1 or -1. One token at a time
# first.
#
# **Before you run the next cell:** which two of the four tokens have gone too far in the direction that pays,
# and therefore get no gradient any more? Write it down, then look.

# %%
ratios, signs = [1.5, 1.5, 0.5, 0.5], [1.0, -1.0, 1.0, -1.0]
slow = []
for ratio, advantage in zip(ratios, signs, strict=True):
    clipped = min(max(ratio, 0.8), 1.2)
    slow.append(-min(ratio * advantage, clipped * advantage))
print("slow: losses", slow, "mean", round(statistics.fmean(slow), 4))

with lab.todo("ppo_losses"):
    new_logprobs = torch.tensor([ratios]).log().requires_grad_()
    zeros, ones = torch.zeros(1, 4), torch.ones(1, 4)
    loss, info = ppo.ppo_losses(new_logprobs, zeros, torch.tensor([signs]), zeros, zeros, zeros, ones)
    print("fast: policy loss", round(info["policy_loss"], 4), "clipfrac", info["clipfrac"])
    loss.backward()
    gradient = new_logprobs.grad[0].tolist()
    rows = []
    for ratio, advantage, token_loss, push in zip(ratios, signs, slow, gradient, strict=True):
        becomes = "more likely" if push < 0 else "less likely" if push > 0 else "stays"
        row = {"ratio": ratio, "advantage": advantage, "loss of the token": token_loss, "gradient": push}
        rows.append(row | {"the token becomes": becomes})
    lab.table(rows)

# %% [markdown]
# **What you should see.** The good token that is already 1.5 times as likely, and the bad token that is
# already half as likely, get gradient 0: enough for this rollout. The other two moved the wrong way, and
# nothing holds the gradient back.
#
# **Known answers.** Before the first update the new policy is the old one. Then every ratio is 1, the KL is
# 0, nothing is clipped, and the policy loss is minus the mean of the advantages.

# %%
with lab.todo("ppo_losses"):
    advantages = torch.tensor([[2.0, 1.0, 0.0, 1.0, 2.0, 3.0], [-1.0, 0.0, 1.0, -2.0, 50.0, 50.0]])
    returns = example.values + advantages
    _, info = ppo.ppo_losses(
        example.old_logprobs,
        example.old_logprobs,
        advantages,
        example.values,
        example.values,
        returns,
        example.mask,
    )
    valid = advantages[example.mask.bool()]
    known = {
        "policy_loss": -valid.mean().item(),
        "value_loss": 0.5 * valid.square().mean().item(),
        "approx_kl": 0.0,
        "clipfrac": 0.0,
    }
    lab.table([{"": name, "your function": info[name], "known": known[name]} for name in known])

# %% [markdown]
# **The clip, drawn from your function.** The first two panels are figure 1 of the PPO paper: what a token
# contributes to the objective (minus the loss) when its ratio moves. The third is the value loss of one token
# whose old value is 0 and whose return is 1.
#
# **Before you run the next cell:** on which side is the first curve flat? Draw it on paper, then look.

# %%
with lab.todo("ppo_losses"):
    one, nothing = torch.ones(1, 1), torch.zeros(1, 1)
    grid = [i / 50 for i in range(1, 101)]

    def objective(ratio: float, advantage: float) -> float:
        new = torch.tensor([[math.log(ratio)]])
        _, info = ppo.ppo_losses(new, nothing, advantage * one, nothing, nothing, nothing, one)
        return -info["policy_loss"]

    def value_loss(value: float) -> float:
        _, info = ppo.ppo_losses(nothing, nothing, nothing, value * one, nothing, one, one)
        return info["value_loss"]

    panels = []
    for title, advantage in (("A > 0", 1.0), ("A < 0", -1.0)):
        lines = {
            "your ppo_losses": (grid, [objective(ratio, advantage) for ratio in grid]),
            "without clip": (grid, [advantage * ratio for ratio in grid]),
        }
        panels.append(lab.Panel(title, "ratio", "objective", lines))
    values = [i / 25 - 0.5 for i in range(63)]
    lines = {
        "your ppo_losses": (values, [value_loss(value) for value in values]),
        "without clip": (values, [0.5 * (value - 1) ** 2 for value in values]),
    }
    panels.append(lab.Panel("Return 1, old value 0", "new value", "value loss", lines))
    lab.show(lab.curves(*panels))

# %% [markdown]
# **What you should see.** For a good token the curve is flat to the right of 1.2, for a bad token to the left
# of 0.8. A flat curve has no gradient: nothing pulls there any more. Where both lines coincide, PPO is the
# plain policy gradient. In the third panel the loss stops falling once the value has moved by 0.2: the critic
# may not run ahead either.

# %% check="ppo_losses"

# %% [markdown]
# ## 3.5 The whole step

# %% [markdown] exercise="response_mask"
# `generate` returns a rectangle. Rows that ended early are filled up with the pad token. Which tokens are the
# response?
#
# - In: `response_ids [B, R]`, `eos_id`. Out: `[B, R]`, 1 **up to and including the first EOS**, 0 after it.
# - The EOS is an action like any other: the model chose to stop, and it must be paid for that. Without it in
#   the mask nobody learns to stop.
# - A row without an EOS reached its limit and is valid as a whole.
# - `ids != pad` is not this mask. For this tokenizer, as for GPT-2, **the pad token is the EOS token**:
#   comparing with it would also drop the one EOS that is real.

# %% [markdown]
# **Slow, then fast.** Slow: the length of each row, by looking for the first EOS in a list.
#
# **Before you run the next cell:** how long are the three rows? Write it down, then look.

# %%
print("pad id", tokenizer.pad_token_id, "eos id", tokenizer.eos_token_id)
for row in written.response_ids.tolist():
    length = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
    print("slow:", row, "has length", length)

with lab.todo("response_mask"):
    mask = ppo.response_mask(written.response_ids, tokenizer.eos_token_id)
    print("fast: lengths", mask.sum(-1).tolist())
    lab.show(lab.token_table(tokens=tokens_of(written.response_ids), mask=mask, id=written.response_ids))

# %% [markdown]
# **What you should see.** Id 0 appears three times in row 0, and only the first one counts. The third row has
# no EOS: six tokens, all valid.

# %% check="response_mask"

# %% [markdown] exercise="response_logprobs_and_values"
# The response starts at position `P`. Its log-probabilities and values are read **one position to the left**,
# because what a causal model puts out at a position is about the next one. This window is where most
# off-by-one errors of PPO live. So it has a function of its own, and both the rollout and the update look
# through it.
#
# - In: the policy, `full_ids [B, P + R]`, `full_mask [B, P + R]`, `response_length` R. Out: `logprobs [B, R]`
#   and `values [B, R]`.
# - `logprobs[:, t]` is the log-probability of response token `t` given all before it.
# - `values[:, t]` is the value of the state **before** token `t`: what the critic expects when the token is
#   still to be chosen.
# - One pass through the policy for both. Ask it for the logits that you need and no more (`logits_to_keep`).

# %% [markdown]
# **Slow, then fast.** Slow: for each response token, give the model everything before it, without padding,
# and ask for that token.
#
# **Before you run the next cell:** the prompts have 2, 3 and 5 tokens. At which position of the batch does
# every response start, and where is its first log-probability read? Write it down, then look.


# %%
@torch.no_grad()
def logprobs_slowly(row: int) -> list[float]:
    ids = written.full_ids[row][written.full_mask[row].bool()]  # no padding
    n_response = int(written.response_mask[row].sum())
    start = len(ids) - n_response
    return [lm(ids[None, :t]).logits[0, -1].log_softmax(-1)[ids[t]].item() for t in range(start, len(ids))]


with lab.todo("response_logprobs_and_values"), torch.no_grad():
    policy = fresh_policy()
    logprobs, values = ppo.response_logprobs_and_values(policy, written.full_ids, written.full_mask, 6)
    slow = torch.tensor([(logprobs_slowly(row) + [0.0] * 6)[:6] for row in range(3)])
    lab.show(
        lab.token_table(
            tokens=tokens_of(written.response_ids),
            mask=written.response_mask,
            slow=slow,
            fast=logprobs,
            value=values,
        )
    )
    recorded = ppo.Rollout(
        full_ids=written.full_ids,
        full_mask=written.full_mask,
        old_logprobs=logprobs,
        ref_logprobs=logprobs,
        old_values=values,
        rm_score=torch.zeros(3),
        response_mask=written.response_mask,
        texts=written.texts,
    )
    lab.show(lab.index_picture(recorded, tokenizer))

# %% [markdown]
# **What you should see.** The columns slow and fast agree on the mask. In the picture every response starts
# at the same column, because the prompts are padded on the left. The bottom line says where each number is
# read: one to the left of its token.

# %% check="response_logprobs_and_values"

# %% [markdown] exercise="rollout"
# Sample one response to each prompt, and write down everything about it that stays fixed during the update:
# `full_ids, full_mask, old_logprobs, ref_logprobs, old_values, rm_score, response_mask, texts`.
#
# - **Sample from the policy itself**: temperature 1, no top-k, no top-p. Otherwise the tokens come from one
#   distribution, and the ratio is computed with another.
# - Prompts are padded on the **left**, so that every response starts in one column.
# - `full_mask` is 1 on the real tokens of both blocks, the response's EOS included. It comes from masks,
#   never from `ids != pad`.
# - **Dropout is off**, and the policy's training mode is afterwards what it was before.
# - Nothing carries a gradient. The reference and the reward are only read.
# - `texts` are the responses alone, decoded, without special tokens.

# %% [markdown]
# **Slow, then fast.** Slow: one token at a time, drawn from the softmax, until EOS. With the same seed
# `generate` draws the same tokens.


# %%
@torch.no_grad()
def sample_slowly(prompt: str, limit: int = 24) -> str:
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    start = ids.shape[1]
    while ids.shape[1] < start + limit and ids[0, -1] != tokenizer.eos_token_id:
        probabilities = lm(ids).logits[0, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(probabilities, 1)[None]], dim=1)
    return tokenizer.decode(ids[0, start:], skip_special_tokens=True)


torch.manual_seed(3)
print("slow:", sample_slowly("This phone"))

with lab.todo("rollout"):
    policy = fresh_policy()
    torch.manual_seed(3)
    print("fast:", ppo.rollout(policy, policy, reward_fn, tokenizer, ["This phone"], 24).texts[0])

# %% [markdown]
# Now four prompts at once, and at most 12 new tokens. The policy is still the reference, and its critic is
# fresh.
#
# **Before you run the next cell:** three columns of the token table below are known in advance. Which, and
# why? Write it down, then look.

# %%
with lab.todo("rollout", "shape_token_rewards", "compute_gae"):
    policy = fresh_policy()
    reference = copy.deepcopy(policy).requires_grad_(False)
    torch.manual_seed(0)
    four = ["This phone", "关于这家餐厅：", "Review of the camera:", "The new noodle shop"]
    batch = ppo.rollout(policy, reference, reward_fn, tokenizer, four, 12)
    lab.show(lab.index_picture(batch, tokenizer))
    shortest = int(batch.response_mask.sum(-1).argmin())
    lab.show(lab.rollout_table(batch, tokenizer, shortest, 0.05, rlhf_exercises))
    difference = (batch.old_logprobs - batch.ref_logprobs)[batch.response_mask.bool()].abs().max().item()
    print("largest |log-ratio| to the reference:", difference, "(known: 0)")

# %% [markdown]
# **What you should see.** The row that reached the limit has no EOS, and its last token gets the score.
# `logprob` equals `ref_logprob`: policy and reference are the same model, so there is no KL to pay, and the
# column reward is 0 up to the last token, where the score stands. `value` is 0 everywhere. So the advantage
# is the score, multiplied by 0.95 for each token between here and the end: with a critic that knows nothing,
# every token gets the credit.

# %% check="rollout"

# %% [markdown]
# ### One PPO step, put together by you
#
# You have all the parts. Before you write `ppo_step`, put one step together here, with your own functions:
# rollout → token rewards → advantages and returns → whitened advantages → new log-probabilities and values →
# losses → `backward()`.
#
# Use the names that the lines below the gap print: `batch`, `whitened`, `new_logprobs`, `info`.
#
# **Before you run it:** nothing has been updated yet. What are the ratios, the policy loss and `approx_kl`?
# And is the gradient 0 when the policy loss is? Write it down, then look.

# %% todo="one_step_by_hand"
with lab.todo("rollout", "ppo_losses"):
    policy = fresh_policy()
    reference = copy.deepcopy(policy).requires_grad_(False)
    torch.manual_seed(0)
    ### BEGIN SOLUTION
    batch = ppo.rollout(policy, reference, reward_fn, tokenizer, prompts[:32], 24)
    mask = batch.response_mask
    rewards = ppo.shape_token_rewards(
        batch.rm_score, batch.old_logprobs, batch.ref_logprobs, mask, kl_coef=0.05
    )
    advantages, returns = ppo.compute_gae(rewards, batch.old_values, mask)
    whitened = ppo.masked_whiten(advantages, mask)
    new_logprobs, new_values = ppo.response_logprobs_and_values(
        policy, batch.full_ids, batch.full_mask, mask.shape[1]
    )
    loss, info = ppo.ppo_losses(
        new_logprobs, batch.old_logprobs, whitened, new_values, batch.old_values, returns, mask
    )
    loss.backward()
    ### END SOLUTION
    valid = batch.response_mask.bool()
    ratio = (new_logprobs - batch.old_logprobs)[valid].exp()
    gradient = math.sqrt(sum(p.grad.square().sum() for p in policy.lm.parameters() if p.grad is not None))
    print(f"ratio         {ratio.min():.6f} to {ratio.max():.6f}    known: 1")
    print(
        f"advantages    mean {whitened[valid].mean():.1e}, variance {whitened[valid].var(unbiased=False):.4f}"
    )
    print(f"policy loss   {info['policy_loss']:.1e}    known: 0")
    print(f"approx_kl     {info['approx_kl']:.1e}    known: 0")
    print(f"gradient norm {gradient:.3f}    not 0!")

# %% [markdown]
# **What you should see.** Every ratio is exactly 1 (to six digits), `approx_kl` is 0, and the policy loss is
# 0 too, since it is minus the mean of whitened numbers. **Yet the gradient is not 0**: the derivative of
# the policy loss by the log-probability of a token is minus its advantage, divided by the number of tokens. A
# loss of 0 says nothing about learning; in PPO the loss is not what falls. (The norm is that of the language
# model, and the critic has no part in it: the last layer of its head is still zero, so no gradient passes
# through it into the backbone.)

# %% [markdown]
# ### What dropout would do
#
# GPT-2 has dropout of 10 %. Suppose that the update runs in training mode. Same weights, same tokens:

# %%
with lab.todo("response_logprobs_and_values"), torch.no_grad():
    policy = fresh_policy()
    old, _ = ppo.response_logprobs_and_values(policy, written.full_ids, written.full_mask, 6)
    torch.manual_seed(0)
    policy.train()
    new, _ = ppo.response_logprobs_and_values(policy, written.full_ids, written.full_mask, 6)
    policy.eval()
    ratio = (new - old).exp()
    lab.show(
        lab.token_table(
            tokens=tokens_of(written.response_ids), mask=written.response_mask, old=old, new=new, ratio=ratio
        )
    )

# %% [markdown]
# **Question.** In the table above no weight has changed. What do the ratios say, and why must dropout be off
# in PPO, both in the rollout and in the update, although it is on in SFT? (2 points, graded by a person)

# %% [markdown] answer="why_dropout_off" points=2
# The ratio is meant to say how far the *weights* have moved the policy from the one that sampled. With
# dropout each pass is another random network, so the ratio is far from 1 before anything has been learned.
# Tokens are then clipped (or weighted) at random, and the "update" is partly noise: the sampled responses
# come from one network and the ratio from another. SFT has no ratio between two passes; its loss is an
# average over the random networks, and dropout there only regularises.

# %% [markdown]
# **Question.** In which order are returns and whitened advantages computed, and what would the critic learn
# if it were the other way round? (2 points, graded by a person)

# %% [markdown] answer="why_returns_first" points=2
# First `returns = advantages + values`, from the raw advantages; then the advantages are whitened for the
# policy loss. The return is the critic's target and has to be on the scale of the rewards, because the next
# step subtracts the critic's values from rewards. Whitened advantages have mean 0 and variance 1 whatever the
# reward was; added to the values they would be a target that has lost its scale and its level: the critic
# would chase its own predictions plus noise, and its values would say nothing about the score.

# %% [markdown] exercise="ppo_step"
# The same as your hand-made step, as a function, with one thing more: the rollout is used **`ppo_epochs`
# times**.
#
# - Rewards, advantages, returns: **once**, before the epochs, then reused. Old log-probabilities and old
#   values are those of the rollout, in every epoch.
# - Only log-probabilities and values are new in each epoch. Then: loss, `zero_grad`, `backward`, gradient
#   norm clipped to `max_grad_norm`, optimiser step.
# - Dropout is off, so that the first ratio is 1.
# - Out: the `info` of the **last** epoch, and two more floats: `mean_reward`, the mean score of the rollout,
#   and `kl_to_ref`, the mean over responses of the summed log-ratio to the reference, in nats.

# %% [markdown]
# **Known answers.** With learning rate 0 nothing may change. And since `info` is that of the last epoch,
# `ppo_epochs=1` must report what you saw by hand: policy loss 0, KL 0.
#
# **Before you run the next cell:** the same rollout, the same start, one to four epochs. What happens to
# `approx_kl` and to the policy loss? Write it down, then look.

# %%
with lab.todo("ppo_step", "rollout"):
    start = fresh_policy()
    reference = copy.deepcopy(start).requires_grad_(False)
    torch.manual_seed(0)
    batch = ppo.rollout(start, reference, reward_fn, tokenizer, prompts[:32], 24)

    def after_one_step(ppo_epochs: int, lr: float) -> dict:
        policy = copy.deepcopy(start)
        optim = torch.optim.AdamW(policy.parameters(), lr=lr)
        info = ppo.ppo_step(policy, optim, batch, ppo_epochs=ppo_epochs)
        moved = max(
            (a - b).abs().max().item() for a, b in zip(policy.parameters(), start.parameters(), strict=True)
        )
        return {"epochs": ppo_epochs, "learning rate": lr, "largest change of a weight": moved, **info}

    lab.table([after_one_step(4, 0.0), *(after_one_step(epochs, 1e-4) for epochs in (1, 2, 3, 4))])

# %% [markdown]
# **What you should see.** In the first row nothing moved: all is 0 but for the value loss and the reward (the
# policy loss up to rounding). `kl_to_ref` is 0 in every row: it belongs to the rollout, like `mean_reward`,
# and this one was sampled by a copy of the reference. In the others `approx_kl` starts at 0 and stays small, `clipfrac` grows from 0,
# and the policy loss goes below 0: the policy has found tokens to make more likely.

# %% check="ppo_step"

# %% [markdown]
# ## A short run
#
# Eight steps with your own functions. Fill the two lines of the loop: a rollout of `batch_prompts` with at
# most 24 new tokens, and a PPO step. The workbench draws. The panel of the judge shows something that PPO
# never sees: the course's own reading of the texts.
#
# **Before you run it:** the reward model's scores have mean 0 and deviation 1 on its training texts. How far
# will eight steps get? And in which direction does the KL to the reference go? Write it down, then look.

# %% todo="short_run"
with lab.todo("rollout", "ppo_step"):
    policy = fresh_policy()
    reference = copy.deepcopy(policy).requires_grad_(False)
    optim = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    torch.manual_seed(0)
    history, picture = [], lab.live(lab.ppo_figure, every=3)
    for step in range(8):
        batch_prompts = prompts[32 * step : 32 * step + 32]
        ### BEGIN SOLUTION
        batch = ppo.rollout(policy, reference, reward_fn, tokenizer, batch_prompts, 24)
        info = ppo.ppo_step(policy, optim, batch)
        ### END SOLUTION
        history.append(info | lab.look_at(batch, judge, tokenizer))
        picture(history)
    picture(history, last=True)
    lab.table([{"prompt": p, "response": t} for p, t in zip(batch_prompts[:6], batch.texts[:6], strict=True)])
    most_changed = int(((batch.old_logprobs - batch.ref_logprobs) * batch.response_mask).sum(-1).argmax())
    lab.show(lab.rollout_table(batch, tokenizer, most_changed, 0.05, rlhf_exercises))

# %% [markdown]
# **What you should see.** The mean score climbs from 0.2 or 0.3 to between 0.5 and 1.1, the judge from between
# 0.5 and 0.6 to between 0.6 and 0.8, and the KL to the reference from 0 to between 0.5 and 2 nats. `approx_kl` stays below its
# limit of 0.05. The value loss *rises*, and that is no mistake: the score climbs faster than the critic can
# follow, which moves by about 0.2 in a step at most.
#
# The token table shows the response that has moved furthest from the reference. Look for the gaps between
# `logprob` and `ref_logprob`: the policy has come to prefer these tokens, praise among them, and pays for
# each of them with a negative reward. The score at the end pays it back.

# %%
lab.status()

# %% [markdown]
# ## Where to go next
#
# [04 End to end](04_end_to_end.ipynb): fifty steps, the whole pipeline from your own code, and a clinic of
# runs that went wrong.
#
# {navigation}
