# %% [markdown]
# {navigation}
#
# # 6 GRPO: the group is the baseline
#
# PPO needs a **critic**: a guess at how good an answer will be, so that the reward can be compared with
# something. **Group relative policy optimisation** (GRPO, Shao et al. 2024, "DeepSeekMath", section 4.1) asks
# the policy itself. It samples several answers to the same prompt, and an answer is good if it is better than
# the others. The critic goes, and with it value loss, GAE and returns. Ratio and clip stay. The KL to the
# reference moves from the reward into the loss.
#
# **What you will have at the end:** three functions in [`rlhf_exercises/grpo.py`](../rlhf_exercises/grpo.py),
# a run in which they raise the reward, the same run without the KL, which collapses before your eyes, and a
# table that puts GRPO beside PPO and DPO.
#
# **Time:** about 1 to 2 hours of your own; the cells together run in about a minute on two CPU cores. **It
# starts from** the course's own SFT checkpoint and reward model. Two functions of stage 3 are called:
# `gather_logprobs` and `response_mask`, as they stand in your package.
#
# ```
#                   ┌► answer 1 ─► reward 0.9 ─┐
#  prompt ─ policy ─┼► answer 2 ─► reward 0.2 ─┼─► mean 0.5 ─► advantages +1.3, -0.9, ...
#                   ├► answer 3 ─► reward 0.6 ─┤   deviation    one for each answer,
#                   └► answer 4 ─► reward 0.3 ─┘                the same at all of its tokens
# ```
#
# | | PPO (stage 3) | GRPO |
# |:--|:--|:--|
# | answers to a prompt | 1 | G (here 4) |
# | compared with | the critic's value | the mean of the group |
# | advantage | one for each token | one for each answer |
# | KL to the reference | charged in the reward | a term of the loss |
# | models held | policy and critic, reference, reward model | policy, reference, reward model |

# %%
# %load_ext autoreload
# %autoreload 2
import copy
import math
import statistics
import time

import torch

import rlhf_lab.notebook as lab
from rlhf_exercises import grpo

lab.begin("06_grpo", "rlhf_exercises")

# %%
tokenizer = lab.load_tokenizer(lab.SFT)
sft = lab.load_causal_lm(lab.SFT).requires_grad_(False)  # after SFT: the start, and the reference
reward_fn = lab.ShippedReward()  # reward_fn(full_ids, full_mask) -> one score for each row
judge = lab.ToyJudge()  # reads texts; nothing is ever trained on it
prompts = list(lab.load_data("toy").prompts_train["prompt"])


def fresh_policy():
    """The SFT model once more, to be trained."""
    return copy.deepcopy(sft).requires_grad_(True)


# %% [markdown]
# ## How good is an answer among its group?

# %% [markdown] exercise="group_advantages"
# The advantage of an answer is a **z-score within its group**: how many standard deviations it lies above the
# mean of the answers to the same prompt (Shao et al. 2024, section 4.1.2).
#
# $$A_i = \frac{r_i - \mathrm{mean}(r_1 \dots r_G)}{\mathrm{std}(r_1 \dots r_G)}$$
#
# - In: `rewards [B]`, `group_size` G. Out: advantages `[B]`, in the same order.
# - Groups are **contiguous**: the first G rewards belong to the first prompt, the next G to the second.
# - The standard deviation is that of a sample (divide by G - 1). `eps` is added to it.
# - A group whose rewards are **all equal** says nothing: its advantages are exactly 0.
# - A batch that is no multiple of G is refused with a `ValueError` that names both numbers.

# %% [markdown]
# **Slow, then fast.** Slow: one group after the other, with Python's `statistics`. There are three prompts:
# the answers to the first differ a lot, those to the second by a few hundredths, those to the third not at
# all.
#
# **Before you run the next cell:** the second group's rewards lie fifty times closer together than those of
# the first. How large are its advantages, compared with the first group's? Write it down, then look.

# %%
rewards = torch.tensor([1.0, 2.0, 3.0, 6.0, 0.50, 0.52, 0.54, 0.60, 2.0, 2.0, 2.0, 2.0])

slow = []
for start in range(0, 12, 4):
    group = rewards[start : start + 4].tolist()
    mean, deviation = statistics.fmean(group), statistics.stdev(group)
    slow += [(reward - mean) / deviation if deviation > 1e-6 else 0.0 for reward in group]

with lab.todo("group_advantages"):
    fast = grpo.group_advantages(rewards, 4)
    lab.table(
        [
            {
                "prompt": i // 4,
                "answer": i % 4,
                "reward": rewards[i].item(),
                "slow": round(slow[i], 4),
                "fast": round(fast[i].item(), 4),
            }
            for i in range(12)
        ]
    )

# %% [markdown]
# **What you should see.** Groups 0 and 1 have the **same advantages**, -0.93 to 1.39, although 0.60 is hardly
# better than 0.50. Dividing by the deviation makes every group equally loud: one in which all answers are
# nearly the same, where the differences may be noise, speaks as loudly as one with a clear winner. "Dr. GRPO"
# (Liu et al. 2025, "Understanding R1-Zero-like training") leaves the division out for this reason. The course
# stays with the paper.
#
# Group 2 is silent. No answer is better than another, so there is nothing to learn from it.
#
# **Two details.** The deviation of a sample (G - 1) or of the population (G)? And why "exactly 0"?
#
# **Before you run the next cell:** eight answers all have reward 0.7. What is the mean of eight times 0.7 in
# 32-bit numbers, and what becomes of $(0.7 - \mathrm{mean}) / \mathrm{std}$ with an `eps` of 1e-8?

# %%
group = rewards[:4]
by_sample, by_population = (
    ((group - group.mean()) / group.std(correction=correction)).tolist() for correction in (1, 0)
)
print("by the sample's deviation    ", [round(a, 3) for a in by_sample])
print("by the population's deviation", [round(a, 3) for a in by_population])
print("one is", round(by_population[-1] / by_sample[-1], 3), "x the other, in every group of 4\n")

equal = torch.full((8,), 0.7)
naive = (equal - equal.mean()) / (equal.std() + 1e-8)
print(f"eight times 0.7: mean - 0.7 is {equal.mean() - 0.7:.1e}, and the formula alone says {naive[0]:.2f}")
with lab.todo("group_advantages"):
    print("your function:", grpo.group_advantages(equal, 8).tolist())

# %% [markdown]
# **What you should see.** The two deviations differ by one factor for all groups, $\sqrt{4/3}$ = 1.155. It acts
# like a slightly larger learning rate, and the check takes both.
#
# The mean of eight times 0.7 is off by the last digit. One rounding error divided by another is no small
# number: the formula alone gives every answer of a group that says nothing an advantage of about ±0.8. `eps`
# is too small to help. So compare the rewards themselves.

# %% check="group_advantages"

# %% [markdown]
# ## A loss with the KL inside

# %% [markdown] exercise="grpo_loss"
# The first half is that of PPO. With $\rho_t = \pi_{new}(x_t) / \pi_{old}(x_t)$ and one advantage $A$ for the
# whole answer:
#
# $$L_{policy} = \mathrm{mean}\; \max\big(-A\,\rho_t,\; -A\,\mathrm{clip}(\rho_t, 1-\epsilon, 1+\epsilon)\big)$$
#
# The second half is the KL to the reference, by the estimate **k3** (Schulman 2020). With
# $d_t = \log\pi_{ref}(x_t) - \log\pi_{new}(x_t)$:
#
# $$L_{KL} = \mathrm{mean}\;\big(e^{d_t} - 1 - d_t\big) \qquad\qquad L = L_{policy} + \beta\, L_{KL}$$
#
# - In: three log-probabilities `[B, R]`, `advantages [B]`, `mask [B, R]`. Out: `(loss, info)`; `info` holds the
#   floats `policy_loss`, `kl_to_ref`, `approx_kl`, `clipfrac`.
# - Each advantage stands at **all tokens of its own answer**. `[B]` does not line up with `[B, R]` by itself.
# - Both means are **means over answers of means over tokens**: `sequence_mean`, which stands above the stub.
#   `approx_kl` and `clipfrac` are the numbers of exercise 3.4, over all tokens.
# - Gradient reaches the new log-probabilities only, through both halves.
# - Note the order in $d_t$: **reference minus policy**.

# %% [markdown]
# **Slow, then fast.** Slow: two loops, over the answers and over the tokens of each. The two answers are
# those of stage 3; the second one ends after four tokens, and something stands in its padding.
#
# **Before you run the next cell:** the policy has already made the tokens of answer 0 more likely and those
# of answer 1 less likely, and that is what their advantages asked for. Is `policy_loss` above or below 0?
# Write it down, then look.

# %%
example = lab.examples.two_responses()
old, ref, mask = example.old_logprobs, example.ref_logprobs, example.mask
new = old + torch.tensor([[0.1, 0.4, 0.2, 0.0, 0.0, 0.1], [-0.1, -0.3, 0.0, -0.1, 2.0, -3.0]])
advantages = torch.tensor([1.0, -1.0])

policy_losses, kls = [], []
for row in range(2):
    token_losses, token_kls = [], []
    for t in range(int(mask[row].sum())):
        ratio = math.exp(new[row, t] - old[row, t])
        near, advantage = min(max(ratio, 0.8), 1.2), advantages[row].item()
        token_losses.append(max(-advantage * ratio, -advantage * near))
        d = (ref[row, t] - new[row, t]).item()
        token_kls.append(math.exp(d) - 1 - d)
    policy_losses.append(statistics.fmean(token_losses))
    kls.append(statistics.fmean(token_kls))
slow = {"policy_loss": statistics.fmean(policy_losses), "kl_to_ref": statistics.fmean(kls)}
slow["loss"] = slow["policy_loss"] + 0.1 * slow["kl_to_ref"]

with lab.todo("grpo_loss"):
    loss, info = grpo.grpo_loss(new, old, ref, advantages, mask, kl_coef=0.1)
    fast = info | {"loss": loss.item()}
    lab.table([{"": name, "slow": slow[name], "fast": fast[name]} for name in slow])

# %% [markdown]
# **What you should see.** Both columns agree, and `policy_loss` is a little below 0: the policy has gained
# something on both answers.
#
# **Known answers.** Before the first update the ratio is 1 everywhere. Then the policy loss is minus the mean
# of the advantages, and since those of a group add up to 0, so does the loss. Where policy and reference are
# the same, `kl_to_ref` is 0. Neither says that there is nothing to learn: the gradient is not 0.

# %%
with lab.todo("grpo_loss"):
    still = old.clone().requires_grad_()
    loss, info = grpo.grpo_loss(still, old, old, advantages, mask)
    loss.backward()
    print({name: round(value, 6) for name, value in info.items()}, "(known: all 0)")
    lab.show(lab.token_table(tokens=example.tokens, mask=mask, gradient=still.grad))

# %% [markdown]
# **What you should see.** The gradient is negative at the tokens of answer 0 (a step makes them more likely),
# positive at those of answer 1, and 0 in the padding. Within an answer all tokens get the same push: GRPO
# does not know which word earned the reward. And **a token of the shorter answer gets more**: -0.083 against
# 0.125. That is the next point.

# %% [markdown]
# ### Token mean and sequence mean
#
# Two answers, of 2 and of 10 tokens, nothing clipped. How much does one token of each weigh?
#
# - **Sequence mean** (the paper, and you): first the mean over each answer's tokens, then over the answers.
# - **Token mean** (PPO in this course, and many GRPO codes today): one mean over all tokens.
#
# **Before you run the next cell:** work out the four weights in your head. Under which of the two is it
# cheaper to be wrong at great length?

# %%
lengths = {"short": 2, "long": 10}
length_mask = torch.tensor([[1] * n + [0] * (10 - n) for n in lengths.values()])
with lab.todo("grpo_loss"):
    logprobs = torch.full((2, 10), -1.0).requires_grad_()
    loss, _ = grpo.grpo_loss(logprobs, logprobs.detach(), logprobs.detach(), torch.ones(2), length_mask)
    loss.backward()
    by_sequence = -logprobs.grad[:, 0]
    lab.table(
        [
            {
                "answer": f"{name}, {n} tokens",
                "sequence mean: a token weighs": by_sequence[row].item(),
                "the whole answer": by_sequence[row].item() * n,
                "token mean: a token weighs": 1 / 12,
                "the whole answer ": n / 12,
            }
            for row, (name, n) in enumerate(lengths.items())
        ]
    )

# %% [markdown]
# **What you should see.** Under the sequence mean both answers weigh 0.5, so a token of the short one weighs
# 0.25 and a token of the long one 0.05. Under the token mean every token weighs 0.083, and the long answer
# has five times the say of the short one.
#
# What each pushes to: with the **sequence mean**, a good answer is pushed harder per token when it is short,
# and a bad one is punished less per token when it is long. So bad answers tend to grow, and this is the second
# thing that Dr. GRPO objects to. With the **token mean** there is no such discount, but long answers decide
# where the batch goes. Neither is wrong. They are different objectives, and a check that says "token mean"
# means one of them. Here it is the paper's: the sequence mean.

# %% [markdown]
# ### Why k3, and not the log-ratio itself
#
# A vocabulary of three tokens, so that nothing has to be sampled. `p` is the policy, `q` the reference. The
# log-ratio $\log p - \log q$ is the estimate **k1**, the one that PPO charges in the reward. $e^d - 1 - d$ is
# **k3**.
#
# **Before you run the next cell:** what is the mean of $\log p - \log q$ over the policy's own samples? And what is
# the mean of the *gradient* of $\log p$, for a policy whose probabilities always add up to 1?

# %%
p, q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.3, 0.5])
k1 = p.log() - q.log()
sampled = torch.tensor([0] * 6 + [1] * 3 + [2])  # ten samples that fall exactly as the policy says

with lab.todo("grpo_loss"):

    def kl_of(tokens: torch.Tensor) -> float:
        """Your kl_to_ref for these tokens, each an answer of its own."""
        new_logprobs, ref_logprobs = p.log()[tokens, None], q.log()[tokens, None]
        zeros, ones = torch.zeros(len(tokens)), torch.ones(len(tokens), 1)
        return grpo.grpo_loss(new_logprobs, new_logprobs, ref_logprobs, zeros, ones)[1]["kl_to_ref"]

    rows = []
    for i in range(3):
        row = {"token": "ABC"[i], "p": p[i].item(), "q": q[i].item(), "k1": k1[i].item()}
        rows.append(row | {"your k3": kl_of(torch.tensor([i]))})
    exact = (p * (p / q).log()).sum().item()
    mean_k1 = k1[sampled].mean().item()
    rows.append(
        {"token": "mean over the ten samples", "p": "", "q": "", "k1": mean_k1, "your k3": kl_of(sampled)}
    )
    lab.table(rows, f"KL(p, q) = {exact:.3f}")

# %% [markdown]
# **What you should see.** Both means are the KL, 0.498. But a single k1 may be negative (token C: -1.609),
# while k3 never is. So k3 is the calmer number to look at. There is a stronger reason inside a loss:

# %%
with lab.todo("grpo_loss"):

    def push(kind: str) -> list[float]:
        """The gradient by the three logits of the policy, over the ten samples."""
        logits = p.log().clone().requires_grad_()
        logprobs = logits.log_softmax(-1)
        if kind == "KL(p, q), exact":
            value = (logprobs.exp() * (logprobs - q.log())).sum()
        elif kind == "KL(q, p), exact":
            value = (q * (q.log() - logprobs)).sum()
        elif kind == "k1 in the loss":
            value = (logprobs - q.log())[sampled].mean()
        else:
            new_logprobs = logprobs[sampled, None]
            arguments = new_logprobs.detach(), q.log()[sampled, None], torch.zeros(10), torch.ones(10, 1)
            value, _ = grpo.grpo_loss(new_logprobs, *arguments, kl_coef=1.0)
        value.backward()
        return [round(slope, 4) for slope in logits.grad.tolist()]

    lab.table(
        [
            {"gradient of": kind, **{f"logit {token}": g for token, g in zip("ABC", push(kind))}}
            for kind in ("KL(p, q), exact", "k1 in the loss", "k3 in the loss, yours", "KL(q, p), exact")
        ]
    )
    xs = [i / 20 for i in range(-40, 41)]
    lines = {"k1": (xs, [-d for d in xs]), "k3": (xs, [math.exp(d) - 1 - d for d in xs])}
    slopes = {"k1": (xs, [1.0 for d in xs]), "k3": (xs, [1 - math.exp(d) for d in xs])}
    lab.show(
        lab.curves(
            lab.Panel("Value for one token", "d = log q - log p", "nats", lines),
            lab.Panel("Slope by log p", "d = log q - log p", "slope", slopes),
        )
    )

# %% [markdown]
# **What you should see.** **k1 inside a loss pulls nowhere**: its mean is the KL, and the mean of its gradient
# is 0. The slope is 1 at every token, whatever the reference says, and over the policy's samples that cancels.
# (In PPO k1 is fine: there it is a *reward*, a number without a gradient that the advantages carry.)
#
# k3 pulls back: token A, too likely, has a gradient above 0, so a step makes it less likely, and token C the
# other way round. The right panel shows why: where the reference finds the token more likely than the policy
# does ($d > 0$), the slope is negative, and a step makes the token more likely.
#
# Be careful with the name, though. The gradient of k3 is not exactly that of the KL: the numbers in the table are
# those of KL(q, p), **the KL the other way round** (0.4, 0, -0.4: simply p - q). Near the reference both point
# the same way, and it is what the paper uses. This is exact while the samples come from the policy itself;
# after a step or two it holds nearly.

# %% check="grpo_loss"

# %% [markdown]
# ## The step

# %% [markdown] exercise="grpo_step"
# `ppo_step` without the critic. What is left:
#
# - Advantages **once**, from the rewards and the group size of the rollout. Old and reference
#   log-probabilities are those of the rollout, in every epoch.
# - In each of `n_epochs` epochs: new log-probabilities (`response_logprobs`, given), loss, `zero_grad`,
#   `backward`, gradient norm clipped to `max_grad_norm`, **one** step of the optimiser on the whole rollout.
# - Dropout is off, so that every ratio starts at 1.
# - Out: the `info` of the **last** epoch, and two floats more: `mean_reward`, and `equal_groups`, the share of
#   groups whose rewards are all equal. Nobody learns anything from those, so it is worth a number of its own.

# %% [markdown]
# First a look at a rollout. `group_rollout` is given: it is `rollout` of stage 3 without values, and each
# prompt stands in it `group_size` times.
#
# **Before you run the next cell:** what do the four advantages below one prompt add up to?

# %%
with lab.todo("group_advantages", "response_mask", "gather_logprobs"):
    torch.manual_seed(1)
    batch = grpo.group_rollout(sft, sft, reward_fn, tokenizer, prompts[:8], 4, 24)
    advantages = grpo.group_advantages(batch.rewards, batch.group_size)
    lab.table(
        [
            {
                "prompt": prompts[i // 4] if i % 4 == 0 else "",
                "answer": batch.texts[i],
                "reward": batch.rewards[i].item(),
                "advantage": advantages[i].item(),
            }
            for i in range(12)
        ],
        "three of eight groups",
    )

# %% [markdown]
# **What you should see.** In each group the advantages add up to 0. An answer may have a reward that is good
# in itself and still an advantage below 0, because the others are better: only the comparison counts. That is
# what the critic was for.
#
# **Known answers.** With learning rate 0 nothing moves. With `n_epochs=1` the `info` is from before any
# update: policy loss, KL and clip fraction are 0. And in the last row all rewards are equal: the policy is
# still the reference, so not even the KL has something to say, and no weight moves.

# %%
with lab.todo("grpo_step", "response_mask"):
    torch.manual_seed(1)
    batch = grpo.group_rollout(sft, sft, reward_fn, tokenizer, prompts[:8], 4, 24)
    all_equal = copy.copy(batch)
    all_equal.rewards = torch.full_like(batch.rewards, 0.7)

    def after_one_step(name: str, n_epochs: int, lr: float, given=batch) -> dict:
        policy = fresh_policy()
        optim = torch.optim.SGD(policy.parameters(), lr=lr)
        info = grpo.grpo_step(policy, optim, given, n_epochs)
        moved = max(
            (a - b).abs().max().item() for a, b in zip(policy.parameters(), sft.parameters(), strict=True)
        )
        shown = {key: round(value, 5) + 0.0 for key, value in info.items()}
        return {"": name, "largest change of a weight": moved, **shown}

    lab.table(
        [
            after_one_step("learning rate 0, 4 epochs", 4, 0.0),
            after_one_step("1 epoch", 1, 0.02),
            after_one_step("2 epochs", 2, 0.02),
            after_one_step("4 epochs", 4, 0.02),
            after_one_step("4 epochs, equal rewards", 4, 0.02, all_equal),
        ]
    )

# %% [markdown]
# **What you should see.** The policy loss falls below 0 with the epochs, `approx_kl` and `kl_to_ref` grow.
# (The optimiser is plain SGD here, so that no gradient means no move: Adam turns even rounding errors into
# steps.) In the last row `equal_groups` is 1 and nothing happens at all. Thirty-two answers were sampled and
# scored, and all of it was for nothing.

# %% check="grpo_step"

# %% [markdown]
# ## A run
#
# Twenty steps with your functions, 8 prompts with 4 answers each. Two things are watched that nothing is trained
# on: the **judge**, which is the course's own reading of the texts, and **distinct-2**, the share of different
# word pairs in the samples. The KL to the reference is that of stage 3, in nats for a whole answer, from the
# rollout (`kl_to_ref` in `info` is a mean over tokens).

# %%
runs = {}  # by name: the trained model, its history and the seconds that it took


def run_figure(histories: dict[str, list[dict]]):
    """Four curves of one or several runs."""

    def panel(title: str, ylabel: str, key: str):
        lines = {
            name: (range(1, len(rows) + 1), [row[key] for row in rows]) for name, rows in histories.items()
        }
        return lab.Panel(title, "step", ylabel, lines)

    return lab.curves(
        panel("Trained reward", "mean score", "mean_reward"),
        panel("Judge: never trained on", "mean P(positive)", "judge"),
        panel("KL to the reference", "nats per answer", "distance"),
        panel("distinct-2", "share of word pairs", "distinct_2"),
    )


def looked_at(info: dict, batch) -> dict:
    """What is kept of a step."""
    gap = (batch.old_logprobs - batch.ref_logprobs) * batch.response_mask
    more = {"distance": gap.sum(dim=-1).mean().item(), "rewards": batch.rewards.tolist()}
    return info | lab.look_at(batch, judge, tokenizer) | more


def finished(name: str):
    if name not in runs:
        raise lab.LabError(f"not done yet: this cell looks at the run {name!r}, so do that one first")
    return runs[name]


# %% [markdown]
# Fill the two lines of the loop: a group rollout of `batch_prompts` with `sft` as the reference, groups of 4
# and at most 24 new tokens; and a step with `kl_coef=0.2`.
#
# The learning rate is three times that of the course's long runs, so that twenty steps are enough to see
# something.
#
# **Before you run it:** the reward model's scores have mean 0 and deviation 1 on its training texts. Where will
# twenty steps get, and how far from the reference? Write it down, then look.

# %% todo="grpo_run"
with lab.todo("grpo_step"):
    policy = fresh_policy()
    optim = torch.optim.AdamW(policy.parameters(), lr=3e-4)
    torch.manual_seed(0)
    history, picture = [], lab.live(run_figure, every=3)
    start = time.perf_counter()
    for step in range(20):
        batch_prompts = [prompts[i] for i in torch.randint(len(prompts), (8,)).tolist()]
        ### BEGIN SOLUTION
        batch = grpo.group_rollout(policy, sft, reward_fn, tokenizer, batch_prompts, 4, 24)
        info = grpo.grpo_step(policy, optim, batch, kl_coef=0.2)
        ### END SOLUTION
        history.append(looked_at(info, batch))
        picture({"kl_coef 0.2": history})
    picture({"kl_coef 0.2": history}, last=True)
    runs["kl_coef 0.2"] = policy, history, time.perf_counter() - start
    print(f"approx_kl, highest: {max(row['approx_kl'] for row in history):.3f}")
    print(f"groups of equal rewards: {sum(round(8 * row['equal_groups']) for row in history)}")

# %% [markdown]
# **What you should see.** The reward climbs from about 0 to more than 1, the judge from about 0.5 to between
# 0.8 and 0.9, and the KL to the reference to between 3 and 5 nats. There is no critic to warm up, so the climb
# starts at once. `approx_kl` may be a little above the course's limit of 0.05 in the first steps: that is the
# price of the larger learning rate. The reward model gives a different score to almost every text, so no group
# is silent.
#
# ## The same without the KL
#
# Same start, same seed, same rate, `kl_coef=0`. It is `train_grpo` this time, which is given: the loop that
# you have just filled, as a function.
#
# **Before you run it:** which of the four curves will tell that something is going wrong, and which will look
# better than before? Write it down, then look.

# %%
with lab.todo("grpo_step"):
    finished("kl_coef 0.2")
    policy, history = fresh_policy(), []
    optim = torch.optim.AdamW(policy.parameters(), lr=3e-4)
    torch.manual_seed(0)
    picture = lab.live(run_figure, every=3)
    start = time.perf_counter()

    def on_step(info, batch):
        history.append(looked_at(info, batch))
        picture({"kl_coef 0.2": runs["kl_coef 0.2"][1], "kl_coef 0": history})

    settings = {"n_steps": 20, "n_prompts": 8, "group_size": 4, "max_new_tokens": 24}
    grpo.train_grpo(
        policy, sft, reward_fn, tokenizer, prompts, optim, **settings, kl_coef=0.0, on_step=on_step
    )
    picture({"kl_coef 0.2": runs["kl_coef 0.2"][1], "kl_coef 0": history}, last=True)
    runs["kl_coef 0"] = policy, history, time.perf_counter() - start

# %%
with lab.todo("grpo_step"):
    heldout_prompts = list(lab.load_data("toy").prompts_heldout["prompt"])[::9][:7]
    texts = {
        name: lab.sample(model, tokenizer, heldout_prompts, 24, seed=0).responses
        for name, model in {
            "SFT": sft,
            "kl_coef 0.2": finished("kl_coef 0.2")[0],
            "kl_coef 0": finished("kl_coef 0")[0],
        }.items()
    }
    lab.table(
        [
            {"prompt": prompt, **{name: responses[i] for name, responses in texts.items()}}
            for i, prompt in enumerate(heldout_prompts)
        ]
    )

# %% [markdown]
# **What you should see.** Reward *and judge* are higher than before: by these two curves the run without the
# KL is the better one. The other two tell what happened. The KL to the reference goes on rising, to between 15
# and 25 nats, and distinct-2 falls to about half: the same few words of praise in nearly every answer, twice in
# one sentence, whatever the prompt is about. This is the **collapse**. The judge reads words and is fooled; a
# reader is not. It is why the KL is there, and why one watches more than the reward.

# %% [markdown]
# ## Silent groups
#
# GRPO became known for mathematics, where a reward is often only right or wrong. We make such a reward out of
# the reward model: 1 for a score above 1, and 0 otherwise.
#
# With four answers to a prompt there are now groups in which all are wrong, and groups in which all are right.
# Both are silent.
#
# **Before you run it:** at the start about one answer in ten is right. What share of the groups is silent
# then? ($0.9^4$ is about 0.66.) And at the end, when most are right? Draw the curve, then look.


# %%
def silent_figure(history: list[dict]):
    """The mean reward, and the share of silent groups, in which all are wrong or all are right."""
    steps = range(1, len(history) + 1)
    groups = [torch.tensor(row["rewards"]).view(-1, 4).mean(dim=1) for row in history]
    silent = {
        "equal_groups": [row["equal_groups"] for row in history],
        "all wrong": [(means == 0).float().mean().item() for means in groups],
        "all right": [(means == 1).float().mean().item() for means in groups],
    }
    reward = {"reward": (steps, [row["mean_reward"] for row in history])}
    return lab.curves(
        lab.Panel("Right answers", "step", "share", reward),
        lab.Panel("Silent groups", "step", "share", {name: (steps, ys) for name, ys in silent.items()}),
    )


def right_or_wrong(full_ids, full_mask):
    return (reward_fn(full_ids, full_mask) > 1).float()


with lab.todo("grpo_step"):
    policy, history, picture = fresh_policy(), [], lab.live(silent_figure, every=3)
    optim = torch.optim.AdamW(policy.parameters(), lr=3e-4)
    torch.manual_seed(0)

    def on_step(info, batch):
        history.append(looked_at(info, batch))
        picture(history)

    grpo.train_grpo(
        policy, sft, right_or_wrong, tokenizer, prompts, optim, n_steps=14, n_prompts=8, group_size=4,
        max_new_tokens=24, kl_coef=0.2, on_step=on_step,
    )  # fmt: skip
    picture(history, last=True)
    silent = sum(round(8 * row["equal_groups"]) for row in history)
    print(f"{silent} of {8 * len(history)} groups were silent: {4 * silent} answers taught nothing but the KL")

# %% [markdown]
# **What you should see.** Silent groups are many at the start, fewer in the middle, and more again at the end;
# first because all four are wrong, then because all four are right. With 8 groups a step the curve jumps, but
# the two causes change places. Learning is quickest where the policy is right about half of the time, so people
# choose prompts of that difficulty, take larger groups, or sample again until a batch is full of groups that
# say something (DAPO, Yu et al. 2025, calls this dynamic sampling).

# %% [markdown]
# ## Beside PPO and DPO
#
# Your twenty steps, measured on held-out prompts with fresh samples, and what the course's own code reached
# with each method (PPO and GRPO: 50 steps of 32 answers; DPO: one pass over the pairs; three seeds).

# %%
with lab.todo("grpo_step"):
    finished("kl_coef 0")
    before = lab.measure(sft, sft, tokenizer)
    rows = []
    for name in ("kl_coef 0.2", "kl_coef 0"):
        model, history, seconds = finished(name)
        after = lab.measure(model, sft, tokenizer)
        rows.append(
            {
                "method": f"GRPO, yours: {len(history)} steps, {name}",
                "judge": f"{before['judge']:.2f} -> {after['judge']:.2f}",
                "KL to the reference": f"{after['kl_to_ref']:.1f} nats",
                "distinct-2": f"{after['distinct_2'] / before['distinct_2']:.2f} x",
                "seconds": f"{seconds:.0f}",
                "memory": "",
                "models held": "policy, reference, reward model",
            }
        )
    lab.table(rows + lab.recorded_methods())

# %% [markdown]
# **What you should see.** On this small task GRPO gets nearly where PPO gets, without a critic. It pays with
# distance: in the recorded runs it has gone further from the reference, and its samples are less varied. One
# advantage for a whole answer is a blunter tool than one for each token, and 8 prompts a step are fewer than
# 32. What it saves is the critic. That costs next to nothing here, where it sits on the policy's own backbone;
# where the critic is a second model as large as the policy, it is half of all that is trained.

# %% [markdown]
# **Question.** A model is trained with a reward of 1 for a right and 0 for a wrong solution, with GRPO as in
# this notebook. Over the run, its *wrong* solutions become longer and longer. Explain how the loss can do
# this, what the token mean would change, and what the token mean may do in its turn. (2 points, graded by a
# person)

# %% [markdown] answer="token_or_sequence" points=2
# The sequence mean divides each answer's loss by its own length. A wrong answer has a negative advantage, and
# the push against each of its tokens is that advantage divided by the length: a wrong answer of 1000 tokens is
# punished ten times less per token than one of 100. So among wrong answers the long ones survive, and nothing
# of the kind holds for right ones, which are pushed harder when they are short. With the token mean every
# token weighs the same, whatever the length of its answer, and the discount is gone. But then a long answer has
# more say in the batch than a short one, so a few very long answers decide the direction of a step; and the
# weight of a token depends on how long the other answers in the batch happen to be.

# %% [markdown]
# **Question.** What does GRPO give up together with the critic? Name two things that PPO's advantages know and
# GRPO's do not, and say what GRPO pays in samples. (2 points, graded by a person)

# %% [markdown] answer="without_critic" points=2
# Credit within an answer: PPO has an advantage for each token, so that a word after which the expected score
# rises is told from one after which it falls. In GRPO all tokens of an answer get the same push, the good and
# the bad ones. And a baseline that is known beforehand: the critic has seen many prompts and can judge a single
# answer, while a group knows only its own few, so that its mean is noisy, its deviation noisier still, and a
# group in which all rewards are equal says nothing. It pays with G samples to every prompt: for the same number
# of answers it sees G times fewer prompts.

# %% [markdown]
# **Question.** PPO charges the KL in the reward, by k1, where it may be negative for a token. GRPO puts it into
# the loss. Why would k1 be useless there, although its mean is exactly the KL? (2 points, graded by a person)

# %% [markdown] answer="k1_in_the_loss" points=2
# A loss acts through its gradient, not through its value. The gradient of k1 at a sampled token is that of
# log pi, whatever the reference says: the reference's part is a constant. Over samples of the policy the mean
# of the gradient of log pi is 0, because the probabilities always add up to 1. So the term pulls nowhere on
# average and only adds noise. As a reward it works, because there it multiplies the gradient of log pi (through
# the advantage): a token that the reference likes less is paid less. k3 has a gradient of its own, 1 minus
# the ratio of reference to policy, which depends on the reference and pulls towards it.

# %%
lab.status()

# %% [markdown]
# ## Where to go next
#
# - Change one thing and run again: groups of 2 or of 8 with the same number of answers, `kl_coef=0.05`, a learning
#   rate of 1e-4 with 50 steps. Predict first.
# - Leave the division by the deviation out of `group_advantages` (Dr. GRPO) and run the right-or-wrong reward
#   again. Put it back afterwards: the check wants the paper.
# - `python -m rlhf_lab methods --code rlhf_exercises` puts the three methods beside each other with your code.
#
# {navigation}
