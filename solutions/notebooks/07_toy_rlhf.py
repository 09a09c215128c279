# %% [markdown]
# {navigation}
#
# # 7 RLHF in a nutshell
#
# One language model that writes **letters**. One reward that is a **rule** which you can read. And around them
# the whole of RLHF: SFT, a critic, PPO, DPO, and a policy that cheats. All of it trains on a CPU in less than a
# minute.
#
# **What you will have at the end:** a small system that you wrote from its first line, sampling that you have
# checked against *exact* numbers, PPO and DPO side by side in one table, and a demonstration of reward hacking.
#
# **Time:** about 2 hours of your own. **It starts from** nothing: the model is trained here. Three functions of
# earlier stages are called, the ones in your `rlhf_exercises/`: `shape_token_rewards` (3.3) and `response_mask`
# (3.5) for PPO, `dpo_loss` (5.2) for DPO.
#
# | | in the large systems | here |
# |:--|:--|:--|
# | vocabulary | 50,000 pieces of words | 30: PAD, BOS, EOS, UNK and the letters a to z |
# | policy | a transformer | an LSTM |
# | critic | a head on the policy, or a second model | a small network on the policy's embeddings |
# | reference | the SFT model, frozen | the SFT model, frozen |
# | reward | a model, trained on comparisons | five rules |
#
# The **state** is the text so far, the **action** is the next letter, and an **episode** is one response.

# %%
# %load_ext autoreload
# %autoreload 2
import math

import torch

import rlhf_lab.notebook as lab
import rlhf_exercises
from rlhf_exercises import dpo, toy  # the run with DPO calls your dpo.dpo_loss

lab.begin("07_toy_rlhf", "rlhf_exercises")
torch.set_num_threads(1)  # so small a model gains nothing from a second thread

# %%
print(len(lab.toy.WORDS), "words:", *lab.toy.WORDS[:14], "...")
print("moon as ids:", [toy.BOS, *toy.encode("moon"), toy.EOS])
print("and back:   ", toy.decode([*toy.encode("moon"), toy.EOS, toy.PAD, toy.PAD]))

# %% [markdown]
# These words are what SFT will learn to spell. They were chosen with malice: most of them have a double letter,
# and the reward will not like that.

# %% [markdown]
# ## A language model of letters

# %% [markdown] exercise="ToyLanguageModel"
# $$\text{ids}\,[B, T] \;\xrightarrow{\text{embedding}}\; [B, T, 64] \;\xrightarrow{\text{LSTM}}\; [B, T, 128]
# \;\xrightarrow{\text{linear}}\; \text{logits}\,[B, T, 30]$$
#
# An LSTM reads from left to right and carries a **state** along. So its output at a position knows all letters
# up to there, and nothing after.
#
# **`__init__`** the three layers, with the names in the docstring. `forward` is given.
#
# **`get_log_probs`**
#
# - In: `input_ids [B, T]`. Out: `[B, T-1]`, the log-probability in nats of each token but the first.
# - The output at position `t` is about the token at `t + 1`.
# - All tokens alike, PAD and EOS too. The mask is the business of whoever calls it.
#
# **`generate`**
#
# - In: `prompt_ids [B, P]`, `max_len`, `temperature`. Out: ids `[B, P + max_len]`, and log-probabilities
#   `[B, max_len]`.
# - The **whole** prompt is read first. Then one token after the other, and the LSTM's state goes along.
# - A row ends with the first EOS that is *drawn*. Behind it: PAD, and log-probability 0.
# - Logits are divided by the temperature $\tau$: $\;p_i = e^{z_i/\tau} / \sum_j e^{z_j/\tau}$.
# - Any token may be drawn. A PAD that is drawn is a token like any other: only EOS ends a row.

# %% [markdown]
# **Slow, then fast.** Slow: the model reads `m`, then `mo`, then `moo` ..., each time from the beginning, and is
# asked for the next letter.
#
# **Before you run the next cell:** the model has learned nothing yet. Roughly which log-probability does each
# letter have? (There are 30 tokens.) Write it down, then look.

# %%
with lab.todo("ToyLanguageModel"), torch.no_grad():
    torch.manual_seed(0)
    untrained = toy.ToyLanguageModel()
    ids = torch.tensor([[toy.BOS, *toy.encode("moon"), toy.EOS]])
    fast = untrained.get_log_probs(ids)
    rows = []
    for t in range(1, ids.shape[1]):
        logits, _ = untrained(ids[:, :t])
        probabilities = torch.softmax(logits[0, -1], dim=-1)
        slow = math.log(probabilities[ids[0, t]])
        token = toy.decode(ids[0, t : t + 1].tolist()) or "EOS"
        rows.append({"token": token, "slow": slow, "yours": fast[0, t - 1].item()})
    lab.table(rows, f"known: about -ln 30 = {-math.log(30):.3f}")

# %% [markdown]
# **What you should see.** Both columns agree, and all numbers are near -3.4: an untrained model finds all tokens
# about equally likely. There are five rows for six tokens: BOS was not predicted.
#
# Now sampling: three responses to the letter `m`, from a model that is made to end often.
#
# **Before you run the next cell:** one column comes from `generate`, the other from `get_log_probs`, which is
# asked about the same tokens. Where must they agree, and where need they not? Write it down, then look.

# %%
with lab.todo("ToyLanguageModel"), torch.no_grad():
    torch.manual_seed(0)
    eager = toy.ToyLanguageModel()
    eager.lm_head.bias[toy.EOS] += 2.0
    torch.manual_seed(4)
    ids, logprobs = eager.generate(torch.tensor([[toy.BOS, *toy.encode("m")]] * 3), 6)
    names = ["PAD", "BOS", "EOS", "UNK", *toy.LETTERS]
    lab.show(
        lab.token_table(
            tokens=[[names[i] for i in row] for row in ids[:, 2:].tolist()],
            mask=toy.response_mask(ids[:, 2:], toy.EOS),
            generate=logprobs,
            get_log_probs=eager.get_log_probs(ids)[:, 1:],
        )
    )

# %% [markdown]
# **What you should see.** Up to and including the EOS both columns agree: what was sampled is what is scored.
# Behind it `generate` says 0 and PAD stands there, while `get_log_probs` scores PAD like any token. Rows that
# drew no EOS have six tokens. If you see a PAD whose mask is 1, it was *drawn*: the untrained model finds it
# as likely as any letter.

# %% check="ToyLanguageModel"

# %% [markdown]
# ## A reward that you can read

# %% [markdown] exercise="rule_reward"
# In stage 2 the reward was a model, and nobody can say why it likes a text. Here it is the sum of five rules.
# With $l$ letters in the text:
#
# | rule | worth |
# |:--|:--|
# | length | $2\,e^{-(l - 15)^2 / 50}$ |
# | diversity | 3 · (different letters) / $l$ |
# | rhythm | 3 · (neighbours of which one is a vowel and one is not) / ($l - 1$) |
# | too short | $-\max(0,\; 3 - l)$ |
# | repetition | -0.5 for each letter that equals the one before it, -2 at most |
#
# - In: a text of lower-case letters, perhaps none. Out: a float, between about -3 and 8.
# - Vowels are a, e, i, o, u.
# - A text without letters has no diversity and no rhythm (0, not an error). One letter has no neighbours.

# %% [markdown]
# **Known answers**, worked out by hand. `banana` has six letters: length $2 e^{-81/50} = 0.396$; three different
# letters of six, 1.5; all five pairs of neighbours alternate, 3; nothing is charged. Together 4.896.
#
# **Before you run the next cell:** order the six words by their reward.

# %%
by_hand = {"banana": 4.896, "kitten": 4.796, "zoo": 3.112, "puppy": 3.071, "aaaaaa": -1.104, "": -2.978}
with lab.todo("rule_reward"):
    lab.table(
        [
            {"text": text or "(nothing)", "by hand": number, "yours": toy.rule_reward(text)}
            for text, number in by_hand.items()
        ]
    )

# %% [markdown]
# **What you should see.** The two columns agree to three digits. Real words are not what the rule likes best. It
# has no dictionary: it likes long texts in which vowels and consonants take turns and no letter comes twice.
# Remember that for the end of this notebook.

# %% check="rule_reward"

# %% [markdown]
# ## An experiment: sampling against exact numbers
#
# All of RLHF rests on averages over samples. Are they right? With 30 tokens and 20 places nobody can tell:
# there are more responses than atoms in a cup of tea. With **5 tokens** (PAD, BOS, EOS, UNK and `a`) and at
# most 3 places, there are 85 responses. We write them *all* down, and every average becomes an exact sum.

# %%
everything = lab.toy.all_responses(5, 3, toy.EOS, toy.PAD)
every_ids = torch.cat([torch.full((len(everything), 1), toy.BOS), everything], dim=1)
bos_alone = torch.full((4000, 1), toy.BOS)  # a prompt, 4,000 times


@torch.no_grad()
def small_policy(seed):
    torch.manual_seed(seed)
    model = toy.ToyLanguageModel(5, embed_dim=6, hidden_dim=8, num_layers=1)
    for weight in model.parameters():
        weight.mul_(2.0)  # further from uniform than a new model is
    return model


with lab.todo("ToyLanguageModel"), torch.no_grad():
    probability = toy.response_log_prob(small_policy(0), every_ids, 1).exp()
    print(len(everything), "responses, the probabilities add up to", round(probability.sum().item(), 6))

# %% [markdown]
# **What you should see.** 85 responses, and a sum of 1: every response has been counted once, and EOS ends one.
# If the sum is not 1, then the shift, the mask or the end of a row is wrong somewhere.
#
# **Question for a guess:** below, 4,000 samples of your `generate` estimate the KL to another model. In two
# ways, as in PPO: $k_1 = \log\pi - \log\pi_{ref}$, and $k_3 = (\rho - 1) - \log\rho$ with $\rho = \pi_{ref} /
# \pi$ (Schulman 2020, "Approximating KL divergence"), each summed over the tokens of a response. Which of the
# two scatters less?

# %%
with lab.todo("ToyLanguageModel"), torch.no_grad():
    small, small_ref = small_policy(0), small_policy(1)
    log_prob, ref_log_prob = (toy.response_log_prob(model, every_ids, 1) for model in (small, small_ref))
    exact_kl = (log_prob.exp() * (log_prob - ref_log_prob)).sum()
    torch.manual_seed(1)
    ids, old = small.generate(bos_alone, 3)
    mask = toy.response_mask(ids[:, 1:], toy.EOS).bool()
    log_ratio = (small_ref.get_log_probs(ids) - old).where(mask, torch.zeros(()))
    rows = []
    for name, per_token in (("k1", -log_ratio), ("k3", log_ratio.exp() - 1 - log_ratio)):
        of_response = per_token.sum(dim=-1)
        error = of_response.std() / math.sqrt(len(ids))
        rows.append({
            "estimator": name,
            "exact KL": exact_kl.item(),
            "mean of 4,000 samples": of_response.mean().item(),
            "standard error": error.item(),
            "errors away": abs(of_response.mean() - exact_kl).item() / error.item(),
            "smallest sample": of_response.min().item(),
        })  # fmt: skip
    lab.table(rows)

# %% [markdown]
# **What you should see.** Both means are within two or three standard errors of the exact KL. A sample of $k_1$
# can be negative, $k_3$ never is, and it scatters less: its standard error is the smaller one.
#
# **The gradient of the expected reward.** PPO never differentiates the reward. It uses $\nabla\,
# \mathbb{E}[R] = \mathbb{E}[R\; \nabla \log \pi]$ (Williams 1992). On the left is something that we can
# compute exactly here: differentiate the sum $\sum_y \pi(y) R(y)$. On the right is a mean over samples.
#
# The third row of the table is about a popular mistake: to put $k_1$ *into the loss* in place of the reward.
# What would its gradient be, if we had all samples?

# %%
with lab.todo("ToyLanguageModel", "rule_reward"):
    rewards = torch.tensor([toy.rule_reward(toy.decode(row)) for row in everything.tolist()])

    def gradient(number):
        found = torch.autograd.grad(number, list(small.parameters()))
        return torch.cat([part.flatten() for part in found])

    small = small_policy(0)
    log_prob = toy.response_log_prob(small, every_ids, 1)
    exact = gradient((log_prob.exp() * rewards).sum())

    torch.manual_seed(2)
    ids, _ = small.generate(bos_alone, 3)
    sampled_rewards = torch.tensor([toy.rule_reward(toy.decode(row)) for row in ids[:, 1:].tolist()])
    sampled = gradient((toy.response_log_prob(small, ids, 1) * sampled_rewards).mean())

    with torch.no_grad():
        ref_log_prob = toy.response_log_prob(small_policy(1), every_ids, 1)
    log_prob = toy.response_log_prob(small, every_ids, 1)
    true_kl = gradient((log_prob.exp() * (log_prob - ref_log_prob)).sum())
    log_prob = toy.response_log_prob(small, every_ids, 1)
    k1_in_loss = gradient((log_prob.detach().exp() * (log_prob - ref_log_prob)).sum())
    lab.table([
        {"gradient": "of the expected reward, exact", "norm": exact.norm().item()},
        {"gradient": "of the expected reward, 4,000 samples", "norm": sampled.norm().item()},
        {"gradient": "of k1 in the loss, all responses", "norm": k1_in_loss.norm().item()},
        {"gradient": "of the KL itself, exact", "norm": true_kl.norm().item()},
    ])  # fmt: skip
    cosine = torch.cosine_similarity(exact, sampled, dim=0).item()
    print(f"direction: the cosine between exact and sampled gradient is {cosine:.4f}")

# %% [markdown]
# **What you should see.** The sampled gradient points where the exact one does: the cosine is above 0.95.
# That is the policy gradient, confirmed by counting.
#
# And the third row is **0**, up to rounding. The gradient of $\mathbb{E}_{y\sim\pi}[k_1]$ with *fixed
# samples* is $\sum_y \pi(y)\, \nabla \log\pi(y) = \nabla \sum_y \pi(y) = \nabla 1$. A KL penalty that is
# added to the loss in this way pulls nowhere, whatever its coefficient: it adds noise. In the *reward* the
# same $k_1$ works, because the policy gradient multiplies it with $\nabla\log\pi$. That is where our PPO step
# has it.

# %% [markdown]
# ## SFT: learn to spell
#
# A language model with EOS-terminated words, cross-entropy on letters and EOS, 30 epochs: stage 1 in three
# seconds. `lab.toy.pretrain` does it with your model. It is handed the letter that a word begins with, and
# writes on.

# %%
sft = before = None


def start():
    """The SFT model, from which everything below starts."""
    if sft is None:
        raise lab.LabError("not yet: first the cell that trains the SFT model (it needs 7.1 and 7.2)")
    return sft


with lab.todo("ToyLanguageModel", "rule_reward"):
    sft = lab.toy.pretrain(rlhf_exercises)
    before = lab.toy.look_at(rlhf_exercises, sft, sft)
    print(f"mean reward {before.reward:.2f}, distinct-2 {before.distinct_2:.3f}")
    known = sum(text in lab.toy.WORDS for text in before.texts) / len(before.texts)
    print(f"{known:.0%} are words of the list; samples:", *before.texts[:10])

# %% [markdown]
# **What you should see.** A mean reward of about 3.6. About a quarter of the samples are words of the list, the
# others look like words. Double letters are everywhere. This model is the start for PPO and DPO, and, frozen,
# the reference.
#
# **The temperature.** The same seed, four temperatures. The second column is the mean of what `generate`
# returns for a token, the third what `get_log_probs` says of the same tokens.
#
# **Before you run the next cell:** at which temperature do the two columns agree?

# %%
with lab.todo("ToyLanguageModel"):
    rows = []
    for temperature in (0.3, 1.0, 2.0, 10.0):
        torch.manual_seed(0)
        ids, logprobs = start().generate(lab.toy.prompts(rlhf_exercises, 200), 12, temperature)
        real = toy.response_mask(ids[:, 2:], toy.EOS).bool()
        scored = sft.get_log_probs(ids)[:, 1:][real].mean().item()
        row = {"temperature": temperature, "generate": logprobs[real].mean().item(), "get_log_probs": scored}
        rows.append(row | {"samples": " ".join(toy.decode(row) for row in ids[:6].tolist())})
    lab.table(rows)

# %% [markdown]
# **What you should see.** Only at temperature 1. At 0.3 the tokens come from a sharper distribution than the
# model's own: safe words, more likely than the model's own samples. At 10 they are letters out of a hat. PPO
# divides new by old probabilities of what was sampled, so it needs temperature 1.

# %% [markdown]
# ## A critic of its own

# %% [markdown] exercise="ValueNetwork"
# In stage 3 the critic was a head on the policy's backbone. Here it is a **separate network**: it shares
# nothing with the policy but what it reads. The state before a token is made from the policy's embeddings of
# all tokens so far, added up (`states_before`, given). So the critic can tell which letters have been used,
# and how many.
#
# $$V(s) = W_3\, \mathrm{relu}(W_2\, \mathrm{relu}(W_1 s + b_1) + b_2) + b_3$$
#
# - In: `states [..., 64]`. Out: `[...]`, one number a state, whatever the shape in front.
# - The number may be anything: nothing squashes it at the end.
# - Take away the last dimension and no other: a batch of one has to stay a batch.

# %% [markdown]
# **Slow, then fast.** Slow: one state at a time. Fast: a block `[2, 5, 64]` at once.
#
# **Before you run the next cell:** the critic is new. Are its values near the rewards that you have seen?

# %%
with lab.todo("ToyLanguageModel", "ValueNetwork"), torch.no_grad():
    torch.manual_seed(0)
    critic = toy.ValueNetwork()
    ids = torch.tensor([[toy.BOS, *toy.encode(word), toy.EOS] for word in ("moon", "zoom")])
    states = toy.states_before(start(), ids, 1)
    values = critic(states)
    slow = [[critic(states[row, t]).item() for t in range(5)] for row in range(2)]
    print("states", list(states.shape), "-> values", list(values.shape))
    print("largest difference, slow and fast:", (values - torch.tensor(slow)).abs().max().item())
    tokens = [[*word, "EOS"] for word in ("moon", "zoom")]
    lab.show(lab.token_table(tokens=tokens, value=values))

# %% [markdown]
# **What you should see.** A difference of 0, or some rounding. The values are near 0: a new critic knows
# nothing of rewards around 3.6. `zoom` has the letters of `moon` but for one; since the state is a sum, the
# critic does not know their order. It is a simple critic.

# %% check="ValueNetwork"

# %% [markdown]
# ## Advantages over episodes laid end to end

# %% [markdown] exercise="gae_with_dones"
# In stage 3 each response had a row of its own and a mask. Classical reinforcement learning does it in
# another way: episodes of any length lie **end to end** in one long row, and `dones[t] = 1` says that an
# episode ends with step $t$.
#
# $$\delta_t = r_t + \gamma\,(1 - d_t)\,V_{t+1} - V_t \qquad A_t = \delta_t + \gamma\lambda\,(1 - d_t)\,A_{t+1}$$
#
# (Schulman et al. 2016, eq. 16.)
#
# - In: `rewards, values, dones [time]`, and `next_value`, the value of the state after the last step. Out:
#   advantages `[time]`, without gradient.
# - At an end two things are cut: the next value and the next advantage. Both belong to another episode.
# - `next_value` counts only when the last step is not done: then its episode goes on.

# %% [markdown]
# **Slow, then fast.** Slow: each episode on its own, as the double sum of the definition. Three episodes, of
# 3, 1 and 2 steps; the last one is not finished.
#
# **Before you run the next cell:** which steps would change if the reward 5 of the second episode were 500?
# Write it down, then look.

# %%
rewards = torch.tensor([0.0, 0.0, 2.0, 5.0, 0.0, 1.0])
values = torch.tensor([1.0, 0.5, 1.5, 3.0, 0.0, 2.0])
dones = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0, 0.0])
next_value = 4.0


def one_episode(rewards: list, values: list, value_after: float, gamma: float, lam: float) -> list:
    values = [*values, value_after]
    td_errors = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(len(rewards))]
    return [
        sum((gamma * lam) ** (k - t) * td_errors[k] for k in range(t, len(td_errors)))
        for t in range(len(td_errors))
    ]


r, v = rewards.tolist(), values.tolist()
slow = one_episode(r[:3], v[:3], 0.0, 0.9, 0.8)
slow += one_episode(r[3:4], v[3:4], 0.0, 0.9, 0.8) + one_episode(r[4:], v[4:], next_value, 0.9, 0.8)

with lab.todo("gae_with_dones"):
    fast = toy.gae_with_dones(rewards, values, next_value, dones, gamma=0.9, lam=0.8)
    loud = rewards.clone()
    loud[3] = 500.0
    changed = toy.gae_with_dones(loud, values, next_value, dones, gamma=0.9, lam=0.8)
    lab.table([
        {"episode": 1 + (t > 2) + (t > 3), "reward": r[t], "value": v[t], "done": int(dones[t]), "slow": slow[t],
         "yours": fast[t].item(), "yours, reward 500": changed[t].item()}
        for t in range(6)
    ])  # fmt: skip

# %% [markdown]
# **What you should see.** Slow and yours agree. With the reward 500 only the step itself changes: it is the
# whole second episode, and nothing flows back over the end of the first. The last step has advantage 2.6: its
# reward is 1, the critic expects 4 after it (3.6 discounted), and it said 2.

# %% check="gae_with_dones"

# %% [markdown]
# ## One PPO step

# %% [markdown] exercise="toy_ppo_step"
# Everything comes together. Compare with `ppo_step` (3.5) as you go.
#
# 1. Token rewards: $-\beta\,(\log\pi_{old} - \log\pi_{ref})$ at each token, the score at the last one
#    (`shape_token_rewards`, 3.3).
# 2. Values of `states_before`, advantages with `gae_with_dones`: the response tokens of all episodes, laid
#    end to end; each episode is done at its last token. Returns are advantages plus values.
# 3. **Then** whiten the advantages: mean 0, deviation 1, over all tokens of the batch.
# 4. `n_epochs` times: clipped policy loss (3.4) as a token mean, one step of `policy_optim` with the gradient
#    norm clipped to 1; mean squared error of the critic to the returns, one step of `value_optim`.
#
# - In: policy, critic, an optimiser for each, and `Episodes` (given; it is what `sample_episodes` returns).
#   Out: `info`, five floats.
# - States, advantages and returns are computed once and reused in each epoch.
# - Two networks, two losses, two optimisers: the critic's loss does not reach the policy.
#
# **Why not whiten within each episode?** Two responses with scores 6 and 1. The critic is new and says 0, so
# with $\lambda = 1$ the advantages of the first are around 6 and those of the second around 1 (the KL makes
# the small differences):

# %%
good, bad = torch.tensor([6.0, 6.0, 6.0, 6.5]), torch.tensor([1.0, 1.0, 1.5])


def whitened(x):
    return (x - x.mean()) / x.std(unbiased=False)


together = whitened(torch.cat([good, bad]))
for name, of_good, of_bad in (
    ("each episode by itself", whitened(good), whitened(bad)),
    ("over the batch", together[:4], together[4:]),
):
    means = [round(part.mean().item(), 2) + 0.0 for part in (of_good, of_bad)]
    print(f"whitened {name:23}  mean of the good one {means[0]}, of the bad one {means[1]}")

# %% [markdown]
# Within an episode the mean is 0, for the good one and for the bad one: the policy would learn nothing of
# which one was better. So: over the batch.
#
# **Known answers for one step.** With one epoch, `info` is about the policy before any update: every ratio is 1.
#
# **Before you run the next cell:** what are `policy_loss` and `approx_kl` then? And which numbers of the
# table are the same in both rows, whatever the number of epochs? Write it down, then look.

# %%
with lab.todo("toy_ppo_step", "rule_reward"):
    rows = []
    for n_epochs in (1, 4):
        torch.manual_seed(0)
        policy = toy.ToyLanguageModel()
        policy.load_state_dict(start().state_dict())
        critic = toy.ValueNetwork()
        optims = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in (policy, critic)]
        episodes = toy.sample_episodes(policy, sft, lab.toy.prompts(rlhf_exercises, 32))
        info = toy.toy_ppo_step(policy, critic, *optims, episodes, n_epochs=n_epochs)
        rows.append({"epochs": n_epochs, **info})
    lab.table(rows)

# %% [markdown]
# **What you should see.** With one epoch the policy loss is 0 (minus the mean of whitened advantages) and
# `approx_kl` is 0, both up to rounding. After four both have moved. The value loss is around 10: the critic
# says 0 and the returns are around 3 to 4. `mean_score` and `kl_to_ref` belong to the episodes, so they are
# the same in both rows; and the KL is 0, because the policy still is the SFT model. An `approx_kl` of 0.13 is a
# long step: the course wants less than 0.05 from the larger model. Here the learning rate is high, because a
# minute has to be enough, and the KL in the reward brings the policy back.

# %% check="toy_ppo_step"

# %% [markdown]
# ### PPO
#
# 100 steps of 32 episodes. `lab.toy.train_ppo` is a loop around two lines, `sample_episodes` and your
# `toy_ppo_step`.
#
# **Before you run it:** the SFT model writes words like `moon` and `kitten`. What will the rewarded ones look
# like?


# %%
def ppo_curves(history):
    steps = range(1, len(history) + 1)

    def line(key):
        return {key: (steps, [info[key] for info in history])}

    return lab.curves(
        lab.Panel("What it is paid for", "step", "mean score", line("mean_score"), {"SFT": before.reward}),
        lab.Panel("KL to the SFT model", "step", "nats a response", line("kl_to_ref")),
        lab.Panel("The critic", "step", "squared error", line("value_loss")),
    )


after = {}
with lab.todo("toy_ppo_step", "rule_reward"):
    model = start()
    picture, ppo_history = lab.live(ppo_curves), []

    def on_step(history):
        ppo_history[:] = history
        picture(history)

    policy = lab.toy.train_ppo(rlhf_exercises, model, on_step=on_step)
    picture(ppo_history, last=True)
    after["PPO"] = lab.toy.look_at(rlhf_exercises, policy, sft)
    print(f"mean reward {before.reward:.2f} -> {after['PPO'].reward:.2f}, KL {after['PPO'].kl_to_ref:.1f} nats")
    print("before:", *before.texts[:12])
    print("after: ", *after["PPO"].texts[:12])

# %% [markdown]
# **What you should see.** The mean score climbs from about 3.6 to about 6, and the KL to between 5 and 8 nats
# a response, where it stays: to go further would cost more than it brings. The critic's error falls quickly,
# from around 10 to a small fraction of that. The samples begin with the same letters as before; double
# letters are gone, and vowels and consonants take turns. They look like words, though most of them are none.

# %% [markdown]
# ## DPO: learn from pairs

# %% [markdown] exercise="preference_pair"
# DPO needs no critic and no score for each token. It needs **pairs**: which of two responses is better. In
# stage 5 they came from people. Here we make them: sample four responses to a prompt, and let the rule pick
# the best and the worst.
#
# - In: `policy`, `prompt_ids [B, P]`, `n_candidates`, `max_len`. Out: `chosen` and `rejected`, one row for
#   each prompt: prompt and response, as `generate` returns them.
# - The candidates are plain samples of the policy (temperature 1).
# - The reward reads the **response**, without its prompt.
# - One call of `generate` can sample all candidates of all prompts. Then the question is which rows belong to
#   which prompt.

# %% [markdown]
# **Slow, then fast.** Slow: a loop over prompts, and for each prompt one sample after the other.
#
# **Before you run the next cell:** slow and fast draw other samples. Which of the two columns, chosen or
# rejected, has higher rewards in every row?

# %%
with lab.todo("preference_pair", "rule_reward"):
    torch.manual_seed(0)
    prompt_ids = torch.tensor([[toy.BOS, *toy.encode(letter)] for letter in "bmz"])

    def response(row):
        return toy.decode(row[2:].tolist())

    rows = []
    for prompt in prompt_ids:
        texts = []
        for _ in range(4):
            ids, _ = start().generate(prompt.unsqueeze(0), 20)
            texts.append(response(ids[0]))
        best, worst = max(texts, key=toy.rule_reward), min(texts, key=toy.rule_reward)
        rows.append((toy.decode(prompt.tolist()), "slow", best, worst))
    for chosen, rejected in zip(*toy.preference_pair(sft, prompt_ids)):
        rows.append((toy.decode(chosen[:2].tolist()), "yours", response(chosen), response(rejected)))
    lab.table([
        {"prompt": prompt, "": who, "chosen": best, "its reward": toy.rule_reward(best), "rejected": worst,
         "its reward ": toy.rule_reward(worst)}
        for prompt, who, best, worst in rows
    ])  # fmt: skip

# %% [markdown]
# **What you should see.** In every row the chosen response has the higher reward (or the same, where all four
# are the same). Each row answers its own prompt.

# %% check="preference_pair"

# %% [markdown]
# ### DPO
#
# 100 steps of 16 pairs, with `dpo_loss` (5.2) and $\beta = 0.1$. The pairs are sampled anew in each step,
# from the policy as it is then. (Plain DPO works on a fixed set of pairs. Then the policy soon writes what
# none of them is about.)
#
# **Before you run it:** the loss of DPO begins at ln 2 = 0.693. Will it fall to 0?


# %%
def dpo_curves(history):
    steps = range(1, len(history) + 1)

    def lines(*keys):
        return {key: (steps, [info[key] for info in history]) for key in keys}

    return lab.curves(
        lab.Panel("Reward of each side", "step", "mean", lines("chosen", "rejected"), {"SFT": before.reward}),
        lab.Panel("DPO loss", "step", "nats a pair", lines("loss"), {"ln 2": math.log(2)}),
        lab.Panel("Margin of implicit rewards", "step", "nats", lines("margin")),
    )


with lab.todo("preference_pair", "dpo_loss"):
    model = start()
    picture, dpo_history = lab.live(dpo_curves), []

    def on_step(history):
        dpo_history[:] = history
        picture(history)

    policy = lab.toy.train_dpo(rlhf_exercises, model, on_step=on_step)
    picture(dpo_history, last=True)
    after["DPO"] = lab.toy.look_at(rlhf_exercises, policy, sft)
    print(f"mean reward {before.reward:.2f} -> {after['DPO'].reward:.2f}, KL {after['DPO'].kl_to_ref:.1f} nats")
    print("after: ", *after["DPO"].texts[:12])

# %% [markdown]
# **What you should see.** Both sides of the pairs rise together: the worst of four samples at the end is
# better than the best of four at the start. The loss does not fall to 0, and that is no failure: with every
# step the pairs are closer to each other, and harder to tell apart. The margin wanders for the same reason.

# %% [markdown]
# ## Take the KL away
#
# The same PPO, the same seed, the same 100 steps. One number is different: `kl_coef` is 0. Nothing holds the
# policy near the language that it has learned.
#
# **Before you run it:** the reward has no dictionary. What is the cheapest way to please it, if words do not
# matter? And what happens to variety?

# %%
with lab.todo("toy_ppo_step", "rule_reward"):
    model = start()
    picture, free_history = lab.live(ppo_curves), []

    def on_step(history):
        free_history[:] = history
        picture(history)

    policy = lab.toy.train_ppo(rlhf_exercises, model, kl_coef=0.0, on_step=on_step)
    picture(free_history, last=True)
    after["PPO, KL free"] = lab.toy.look_at(rlhf_exercises, policy, sft)
    print("with the KL:   ", *(after["PPO"].texts[:8] if "PPO" in after else ["(not trained)"]))
    print("without the KL:", *after["PPO, KL free"].texts[:8])

# %% [markdown]
# **What you should see.** The reward ends a little higher than with the KL, and the KL has climbed to about
# three times as much, or more, in steps: each time the policy has found something that pleases the rule
# better. The samples have become nearly **all alike**, whatever letter they begin with: one made-up ending
# that the rule likes. That is **reward hacking**, and its usual companion, the collapse. By the number that
# it was trained on, this policy is about as good as the others. Only somebody who looks at the samples, or at
# the KL, can see what it has become.
#
# ## The table

# %%
rows = []
for name, look in (({"SFT": before} if before else {}) | after).items():
    rows.append({
        "method": name,
        "reward": look.reward,
        "gain": look.reward - before.reward,
        "KL to SFT": round(look.kl_to_ref, 2) + 0.0,
        "distinct-2": look.distinct_2,
        "words of the list": sum(text in lab.toy.WORDS for text in look.texts) / len(look.texts),
    })  # fmt: skip
if rows:
    lab.table(rows, f"512 samples each; asked of PPO and DPO: a gain of at least {lab.thresholds.TOY_GAIN}")
else:
    print("train the models first (the cells above)")

# %% [markdown]
# **What you should see.** PPO and DPO both gain more than 2. DPO goes much further away from the SFT model:
# its $\beta$ is a price of the KL too, but 0.1 is a low one here, and its samples begin to be alike as well.
# (Try `lab.toy.train_dpo(rlhf_exercises, sft, beta=0.5)`: nearer, and nearly as good.) distinct-2, the share
# of different pairs of neighbours, is by far the lowest where the KL is free. Words of the list are gone
# everywhere: they are full of double letters, and nobody is paid for them.
#
# The same table for other seeds, in a terminal: `python -m rlhf_lab toy --seeds 0 1 2`, with your code:
# `--code rlhf_exercises`.
#
# And in words:
#
# | | PPO | DPO |
# |:--|:--|:--|
# | needs a reward for new texts | yes, in every step | no, only pairs (here a rule makes them) |
# | samples while it trains | always | not in its plain form (here yes) |
# | networks | four: policy, critic, reference, reward | two: policy, reference |
# | what can go wrong | many parts, many settings | few parts; it can drift away from the pairs |
# | in theory | as good as the reward is | optimal where the Bradley-Terry model holds |

# %% [markdown]
# ## Three questions
#
# **Question 1.** In the experiment above, $k_1$ in the loss had an expected gradient of 0. Yet a single batch
# gives a gradient that is not 0. A colleague adds `kl_coef * (new_logprobs - ref_logprobs).mean()` to the
# policy loss and reports that it "works a little". What does this term really do, and how would you charge
# the KL?

# %% [markdown] answer="k1_without_a_pull" points=2
# For samples of the policy itself its gradient is the mean of the gradients of log-probabilities, whose
# expectation is the gradient of the sum of all probabilities, and that is 0. So in the first epoch it only
# adds noise, the more the larger the coefficient. (In later epochs of a step it lowers the log-probability of
# the sampled tokens a bit, all of them alike, which has nothing to do with the reference: the reference is a
# constant in that term, its gradient is 0.) To charge the KL, put it into the token rewards, where the policy
# gradient multiplies it with the gradient of the log-probability, or use in the loss an estimator whose
# gradient is that of the KL, for instance half the squared log-ratio.

# %% [markdown]
# **Question 2.** The run with a free KL has a higher or about the same reward as the others. You are its only
# reviewer and see only the reward curve. Which three other things would you ask for before you let this model
# out, and what would each of them have shown here?

# %% [markdown] answer="what_to_look_at" points=2
# The KL to the reference: it climbs on and on, far above that of the other run. The variety of the samples
# (distinct-2, or the share of different responses): it collapses to almost one text. The samples themselves:
# the same made-up ending behind every letter, no words. A judge that the policy is not trained on (here: the
# share of real words) would have shown it as well: that the rule is pleased says nothing about what the rule
# was made for.

# %% [markdown]
# **Question 3.** Why does `generate` treat a PAD that was drawn as a token, and why do masks come from the
# first EOS and not from `ids != PAD`? What would the sum over all 85 responses have been otherwise?

# %% [markdown] answer="why_not_pad" points=2
# PAD has a probability in the softmax like every token, so it is an action of the policy, and its
# log-probability belongs to the response. A mask from `ids != PAD` would leave that factor out of some
# responses: their scored probabilities would be too large and the sum over all responses greater than 1, so
# sampled and scored distribution would differ and ratios and KL would be wrong. If PAD ended a response
# without being counted as an end, responses would also be cut in the middle.

# %% [markdown]
# ## Where you stand

# %%
lab.status()

# %% [markdown]
# ## Where to go next
#
# [08 Trainer](08_trainer.ipynb): the same KL estimators as functions, a controller that finds the price of
# the KL by itself, and a trainer with the interface that older tutorials use. Or go back to [04 End to
# end](04_end_to_end.ipynb), whose clinic has runs like the one without a KL.
#
# {navigation}
