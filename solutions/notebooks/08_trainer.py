# %% [markdown]
# {navigation}
#
# # 8 The trainer
#
# Many tutorials from 2022 to 2024 do RLHF in a loop of three lines: let the model **respond** to some queries, **score** the
# responses by whatever means, and hand all of it to `PPOTrainer.step`. The library that they import has
# removed this class. Here you write it again, on top of your own PPO.
#
# ```
#                        generate                    your reward: a pipeline, a rule, a person
#  queries ─────────────────────────► responses ─────────────────────────► scores
#     │                                   │                                   │
#     └──────────────► PPOTrainer.step(queries, responses, scores) ◄──────────┘
#                          │                                   │
#                 a slightly better policy           stats ──► TensorBoard
# ```
#
# **What you will have at the end:** three estimates of a KL divergence, with their errors measured; a price of the KL that
# adapts itself; and a trainer with mini-batches, gradient accumulation, early stopping and logs, which runs
# old programs.
#
# **Time:** about 2 hours of your own; the cells together run in about a minute on two CPU cores.
# **It starts from** the course's own SFT checkpoint and reward model. It calls functions of your
# `rlhf_exercises/ppo.py` (notebook 03).

# %%
# %load_ext autoreload
# %autoreload 2
import math
import time
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import rlhf_lab.notebook as lab
from rlhf_exercises import trainer

lab.begin("08_trainer", "rlhf_exercises")

# %%
tokenizer = lab.load_tokenizer(lab.SFT)
reward_fn = lab.ShippedReward()  # the course's own reward model: it scores a whole text
judge = lab.ToyJudge()  # reads texts; nothing is ever trained on it
prompts = list(lab.load_data("toy").prompts_train["prompt"])

# %% [markdown]
# ## How far apart? Three estimates
#
# The KL divergence of the policy π to the reference is a mean over everything that the policy could say:
#
# $$\mathrm{KL}(\pi \,\|\, \mathrm{ref}) = \mathbb{E}_{x \sim \pi}\left[\log \frac{\pi(x)}{\mathrm{ref}(x)}\right]$$
#
# Nobody can sum over all texts. But we have samples of the policy, and both log-probabilities of each token. An
# **estimator** makes one number out of one sample. It is good when its mean over many samples is the KL (no
# **bias**), and when the single numbers do not jump around (little **variance**).

# %% [markdown] exercise="kl_k1"
# The obvious one: leave out the mean. $k_1 = \log \pi(x) - \log \mathrm{ref}(x)$.
#
# - In: `logprobs` and `ref_logprobs`, tensors of one shape, in nats. Out: one number for each token, same shape.
# - The tokens are **samples of the policy**. That is why nothing is weighted with a probability.
# - Gradient passes through to both arguments, and both stay as they are.

# %% [markdown]
# **Slow, then fast.** Slow: one token at a time, from the probabilities.
#
# **Before you run the next cell:** for which of the four tokens is the estimate negative, and what does that say? Write it
# down, then look.

# %%
policy_says = torch.tensor([0.50, 0.10, 0.30, 0.02])  # probabilities of four tokens that the policy has sampled
reference_says = torch.tensor([0.25, 0.20, 0.30, 0.04])


def compared(slow: list[float], fast) -> None:
    """A table of the four tokens."""
    lab.table(
        [
            {"policy": p, "reference": r, "slow": s, "yours": f}
            for p, r, s, f in zip(
                policy_says.tolist(), reference_says.tolist(), slow, fast.tolist(), strict=True
            )
        ]
    )


with lab.todo("kl_k1"):
    slow = [math.log(p / r) for p, r in zip(policy_says.tolist(), reference_says.tolist())]
    compared(slow, trainer.kl_k1(policy_says.log(), reference_says.log()))

# %% [markdown]
# **What you should see.** Twice as likely is 0.69 = ln 2, half as likely is -0.69, in the second row as in
# the last: the estimate looks at the ratio and not at how likely a token is. A KL is never negative. A single
# $k_1$ is, whenever the policy has sampled a token that the reference likes more.

# %% check="kl_k1"

# %% [markdown] exercise="kl_k2"
# Both directions are a distance, so square it: $k_2 = \tfrac{1}{2}\,(\log \pi(x) - \log \mathrm{ref}(x))^2$.
#
# - In and out as before: one number for each token.
# - Never negative, and 0 only where both agree.
# - Its mean is **not** the KL. It is close where the two models are close.

# %%
with lab.todo("kl_k2"):
    slow = [0.5 * math.log(p / r) ** 2 for p, r in zip(policy_says.tolist(), reference_says.tolist())]
    compared(slow, trainer.kl_k2(policy_says.log(), reference_says.log()))

# %% [markdown]
# **What you should see.** Twice as likely and half as likely are the same distance now.

# %% check="kl_k2"

# %% [markdown] exercise="kl_k3"
# Can an estimate have the right mean **and** never be negative? Take $k_1$ and add something whose mean is 0 and
# which moves against it. With $r = \mathrm{ref}(x) / \pi(x)$, the mean of $r - 1$ over samples of the policy is 0.
# Since $-\log r$ is $k_1$,
#
# $$k_3 = (r - 1) - \log r$$
#
# has the mean of $k_1$. And $\log r \le r - 1$ everywhere, so it is never negative. (John Schulman, "Approximating KL
# divergence", 2020.)
#
# - In and out as before. Mind which probability stands on top in $r$: **the reference's**.
# - GRPO (stage 6) has this one in its loss, and `approx_kl` of PPO has the same form.

# %% [markdown]
# **Before you run the next cell:** at a log-ratio of 0 all three are 0. Which of them grows fastest where the policy likes
# a token *less* than the reference (to the left)? Write it down, then look.

# %%
with lab.todo("kl_k1", "kl_k2", "kl_k3"):
    slow = [r / p - 1 - math.log(r / p) for p, r in zip(policy_says.tolist(), reference_says.tolist())]
    compared(slow, trainer.kl_k3(policy_says.log(), reference_says.log()))

    log_ratio = torch.linspace(-2, 2, 81)
    lines = {
        name: (log_ratio.tolist(), estimate(log_ratio, torch.zeros(81)).tolist())
        for name, estimate in (("k1", trainer.kl_k1), ("k2", trainer.kl_k2), ("k3", trainer.kl_k3))
    }
    lab.show(lab.curves(lab.Panel("One token", "log policy - log reference", "estimate (nats)", lines)))

# %% [markdown]
# **What you should see.** $k_2$ and $k_3$ touch 0 in the middle and are nearly the same there. To the left, where the reference
# likes the token more, $k_3$ grows fastest; to the right it is the flattest of the three at first, and in the end runs beside
# $k_1$, one nat below. With $r$ upside down the curve is mirrored, and its mean over samples of the policy is no KL.

# %% check="kl_k3"

# %% [markdown]
# ### Bias and variance, measured
#
# For two normal distributions of the same width the KL is known: with a distance of $d$ standard deviations
# it is $d^2/2$. So let us measure. The policy is at 0, the reference at $d$; 200,000 samples of the policy.
#
# **Before you run the next cell:** which column will be wrong for $k_2$, and for which distance? Which estimator has the
# largest spread for its size where the two are *near*? Write it down, then look.

# %%
with lab.todo("kl_k1", "kl_k2", "kl_k3"):
    torch.manual_seed(0)
    samples = torch.randn(200_000, dtype=torch.float64)
    rows = []
    for distance in (0.1, 1.0, 2.0):
        logprobs = -0.5 * samples**2  # the constant is the same for both
        ref_logprobs = -0.5 * (samples - distance) ** 2
        true_kl = distance**2 / 2
        for name, estimate in (("k1", trainer.kl_k1), ("k2", trainer.kl_k2), ("k3", trainer.kl_k3)):
            numbers = estimate(logprobs, ref_logprobs)
            rows.append(
                {
                    "distance": distance,
                    "true KL": true_kl,
                    "estimator": name,
                    "mean": numbers.mean().item(),
                    "bias / true": (numbers.mean().item() - true_kl) / true_kl,
                    "deviation / true": numbers.std().item() / true_kl,
                    "negative": f"{(numbers < 0).double().mean():.0%}",
                }
            )
    lab.table(rows)

# %% [markdown]
# **What you should see.**
#
# - **Near** (0.1): all three means are close to the true KL. $k_1$ jumps by 20 times what it measures, and
#   nearly half of its numbers are negative. $k_2$ and $k_3$ jump by about 1.4 times.
# - **Far** (1.0): $k_2$ is 25 % too high. $k_1$ and $k_3$ are right.
# - **Very far** (2.0): $k_2$ is twice the KL. And the advantage of $k_3$ is gone: now and then $r$ is huge, and
#   its spread is larger than that of $k_1$.
#
# PPO charges $k_1$ token by token. That is no carelessness: the advantages average over many tokens, and what matters
# there is that the mean is right.

# %% [markdown]
# **Question.** In the log of a healthy run you read `ppo/kl -0.19` for one batch of four short responses. A KL cannot be
# negative. How can this number be, what would you look at before you look for a mistake, and what would make you
# suspicious? (2 points, graded by a person)

# %% [markdown] answer="why_negative_kl" points=2
# `ppo/kl` is an estimate by k1: the mean over the responses of the summed log-ratio to the reference. Its expectation is the KL,
# but the single numbers are negative whenever the policy happens to sample what the reference likes more, and near the
# reference their spread is many times the KL itself. With four responses a value a little below 0 is chance. First I would
# look at the number of responses, at the batches before and after it, and at k3 on the same tokens. Suspicious
# is a value that is clearly below 0 over many batches: then the samples do not come from the policy whose log-probabilities
# are used (another temperature or top-p, the reference wrote them, dropout), or the difference is taken the wrong way round.

# %% [markdown] exercise="AdaptiveKLController"
# What should a nat of KL cost? Too little, and the policy runs away; too much, and it learns nothing. The controller starts
# with a guess and then **holds the KL near a target**: when the KL is above it, the price goes up, else down (Ziegler et
# al. 2019, section 2.2).
#
# $$e = \mathrm{clip}\left(\frac{\mathrm{KL}}{\mathrm{target}} - 1,\; -0.2,\; 0.2\right) \qquad
# \mathrm{price} \leftarrow \mathrm{price} \cdot \left(1 + e \cdot \frac{n_{\mathrm{steps}}}{\mathrm{horizon}}\right)$$
#
# - `AdaptiveKLController(init_kl_coef, target, horizon)` has an attribute `value`, the price now.
# - `update(current_kl, n_steps)` changes it. `n_steps` counts samples: the responses of the batch.
# - `current_kl` is the KL of a **whole response**: summed over its tokens, averaged over the batch. (Some other libraries pass
#   the mean over tokens. The target has to be on the same scale.)
# - The error is limited, so that one strange batch cannot throw the price around.

# %% [markdown]
# **Slow, then fast.** Slow: five updates in a loop, by hand.
#
# **Before you run the next cell:** the KLs are 6.6, 12, 600, 6 and 0, and the target is 6. Which two batches move the
# price by the same factor? Write it down, then look.

# %%
with lab.todo("AdaptiveKLController"):
    price, controller, rows = 0.2, trainer.AdaptiveKLController(0.2, target=6.0, horizon=1000), []
    for current_kl in (6.6, 12.0, 600.0, 6.0, 0.0):
        error = current_kl / 6.0 - 1
        error = 0.2 if error > 0.2 else -0.2 if error < -0.2 else error
        price = price + price * error * 64 / 1000
        controller.update(current_kl, 64)
        rows.append({"KL": current_kl, "error": error, "slow": price, "yours": controller.value})
    lab.table(rows, "64 responses a batch, horizon 1000")

# %% [markdown]
# **What you should see.** 12 and 600 move the price by the same factor: the error is limited to 0.2. On
# target nothing happens.
#
# Now in a closed loop. A made-up policy: its KL drifts to where a nat earns as much as it costs, so a low
# price lets it drift further. In the middle the reward becomes twice as tempting.

# %%
with lab.todo("AdaptiveKLController"):
    controllers = {
        "adaptive": trainer.AdaptiveKLController(0.2, target=6.0, horizon=2000),
        "fixed": None,
    }
    panels = {"KL": {}, "price": {}}
    for name, controller in controllers.items():
        kl, kls, prices = 0.0, [], []
        for batch in range(400):
            price = 0.2 if controller is None else controller.value
            temptation = 0.6 if batch < 200 else 1.2
            kl = kl + 0.1 * (temptation / price - kl)
            if controller is not None:
                controller.update(kl, 64)
            kls.append(kl)
            prices.append(price)
        panels["KL"][name] = (range(400), kls)
        panels["price"][name] = (range(400), prices)
    lab.show(
        lab.curves(
            lab.Panel("A made-up KL", "batch", "nats per response", panels["KL"], {"target": 6.0}),
            lab.Panel("Its price", "batch", "reward per nat", panels["price"]),
        )
    )

# %% [markdown]
# **What you should see.** With a fixed price the KL ends wherever reward and price balance: here at 3, then
# at 6. The controller finds KL too low in the first half and makes it cheaper, until the KL is at its target; when the
# reward becomes more tempting, the KL shoots up, and the price follows slowly and brings it back. The horizon says how
# slowly.

# %% check="AdaptiveKLController"

# %% [markdown]
# ## The trainer

# %% [markdown] exercise="PPOTrainer"
# Your `ppo_step` takes a rollout of your own. The trainer takes **whatever the caller brings**: queries, responses and
# scores. And it does what a library adds. You write two methods, `generate` and `step`; the rest of the class is given.
#
# `generate(query_tensor, return_prompt=True, **generation_kwargs)`
#
# - One query `[query]` gives a row `[1, seq]`; a list gives a list of `[seq]`, without padding.
# - The caller's settings are handed on as they are; only the tokenizer's EOS and pad ids are filled in.
# - **Every token of a query is real**, an EOS too, so the attention mask is 1 everywhere.
#
# `step(queries, responses, scores)`
#
# 1. **Fixed for the step**: old log-probabilities and values, the reference's log-probabilities, token rewards at the
#    controller's price of now, advantages, returns, white advantages. Once, over the whole batch.
# 2. `ppo_epochs` **passes** over the batch, each in a new order. A pass is cut into **updates** of
#    `mini_batch_size * gradient_accumulation_steps` responses, and an update into **mini-batches**.
# 3. Each mini-batch goes forward and backward by itself, so that only `mini_batch_size` responses are in memory. Their
#    gradients add up, and then the optimiser moves once, on the gradient **that the whole update has**.
# 4. `target_kl`: where a pass has led too far from the policy that sampled, there is no further pass.
# 5. The controller hears the KL to the reference, once.
#
# `_batch` (it checks the lists and pads them), `_stats` and `_log` are given. Read them first.

# %% [markdown]
# ### What a mini-batch weighs
#
# The loss is a mean over **tokens**. Take one update with two mini-batches of one response each: five tokens and one
# token. Slow: all six at once. Which way of adding up gives the same?
#
# **Before you run the next cell:** how much does the single token of the second response weigh if both mini-batches weigh the
# same? Write it down, then look.

# %%
token_losses = [torch.tensor([2.0, 2.0, 2.0, 2.0, 2.0]), torch.tensor([8.0])]
whole = torch.cat(token_losses).mean()
the_same = sum(losses.mean() / 2 for losses in token_losses)
by_tokens = sum(losses.mean() * len(losses) / 6 for losses in token_losses)
print(
    f"all six tokens at once {whole:.1f}; mini-batches weigh the same {the_same:.1f}; by their tokens {by_tokens:.1f}"
)

# %% [markdown]
# **What you should see.** With equal weights the lonely token counts as much as the five others together. What
# holds for the loss holds for its gradient.
#
# **Question.** Suppose that a trainer gives each mini-batch of one response the same weight. Which responses then have more
# say than in the mean over tokens, and what could a policy learn from that over many steps? (2 points, graded by a person)

# %% [markdown] answer="why_weights" points=2
# A token of a short response then weighs more than one of a long response: with equal weights, each response has one vote,
# however many tokens it has, so a token of a response of one token has the vote that twenty tokens share
# elsewhere. Short responses steer the update. Where short responses have good scores by chance, their tokens, the early
# EOS among them, are pushed up harder, and the long responses, good or bad, are corrected only weakly: the
# policy can drift to a length for no reason of the reward. It also means that the result depends on how
# the batch was cut into mini-batches, which should be a question of memory alone.

# %% [markdown]
# ### Ask it to respond
#
# **Before you run the next cell:** the two queries have different lengths. Is there padding anywhere in what comes
# back? Write it down, then look.


# %%
def make_trainer(optimizer=None, **settings):
    """Your trainer with a fresh policy; the reference is a copy of it."""
    torch.manual_seed(0)  # the value head starts with random numbers: the same ones each time
    policy = trainer.AutoModelForCausalLMWithValueHead.from_pretrained(str(lab.SFT))
    if optimizer is not None:
        optimizer = optimizer(policy.parameters())
    return trainer.PPOTrainer(
        trainer.PPOConfig(**settings), policy, tokenizer=tokenizer, optimizer=optimizer
    )


def as_query(prompt: str) -> torch.Tensor:
    return tokenizer.encode(prompt, return_tensors="pt")[0]


SAMPLING = {"do_sample": True, "top_k": 0, "top_p": 1.0, "max_new_tokens": 24}  # the policy itself, nothing cut off

with lab.todo("PPOTrainer"):
    ppo_trainer = make_trainer(batch_size=2, mini_batch_size=2)
    two = [as_query("This phone"), as_query("Review of the new camera:")]
    for query, full in zip(two, ppo_trainer.generate(two, **SAMPLING), strict=True):
        tokens = [lab.token_texts(tokenizer, full.tolist())]
        is_response = (torch.arange(len(full)) >= len(query)).long()
        lab.show(lab.token_table(tokens=tokens, id=full[None], response=is_response[None]))

# %% [markdown]
# **What you should see.** Each row is a query and its response, and nothing else: it ends with the response's own EOS (or at
# 24 new tokens).
#
# ### One step, watched
#
# Four queries, four responses, four scores, all made up. First the gradient: once in one mini-batch of four, once in four mini-batches of
# one. An optimiser that does not move (learning rate 0) lets us look at the gradient.


# %%
def still(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


def gradient_of(**sizes) -> torch.Tensor:
    """The gradient of one update on the four responses, in one row."""
    ppo_trainer = make_trainer(still, batch_size=4, ppo_epochs=1, max_grad_norm=1e9, **sizes)
    ppo_trainer.step(queries, responses, scores)
    return torch.cat([weight.grad.flatten() for weight in ppo_trainer.model.parameters() if weight.grad is not None])


queries = [as_query(text) for text in ("This phone", "The soup", "My new keyboard", "关于这家餐厅：")]
responses = [as_query(text) for text in (" is superb.", " was cold, and the staff was rude.", " types.", "汤很好喝。")]
scores = [torch.tensor(score) for score in (1.0, -1.0, 0.5, 2.0)]
print("tokens of the responses:", [len(response) for response in responses])

with lab.todo("PPOTrainer"):
    whole = gradient_of(mini_batch_size=4)
    for mini, accumulated in ((2, 2), (1, 4)):
        difference = gradient_of(mini_batch_size=mini, gradient_accumulation_steps=accumulated) - whole
        print(
            f"{accumulated} mini-batches of {mini}: the gradient differs by {difference.norm() / whole.norm():.1e} of its length"
        )

# %% [markdown]
# **What you should see.** Both differ from the whole only by rounding, about 1e-6 or less.
#
# **When is the ratio 1?** In stage 3 every ratio was 1 in the first epoch. Now the optimiser moves several times within one
# pass. Below: 2 passes of 4 updates, and the `approx_kl` of each mini-batch.
#
# **Before you run the next cell:** in how many of the 8 mini-batches is `approx_kl` exactly 0? Write it down, then look.


# %%
class Watched(trainer.PPOTrainer):
    """Your trainer, which keeps what `ppo_losses` has said of each mini-batch."""

    def _stats(self, infos, *rest):
        self.infos = infos
        return super()._stats(infos, *rest)


with lab.todo("PPOTrainer"):
    watched = Watched(
        trainer.PPOConfig(batch_size=4, mini_batch_size=1, ppo_epochs=2, learning_rate=1e-5),
        trainer.AutoModelForCausalLMWithValueHead.from_pretrained(str(lab.SFT)),
        tokenizer=tokenizer,
    )
    watched.step(queries, responses, scores)
    kls = [info["approx_kl"] for info in watched.infos]
    panel = lab.Panel(
        "Away from the policy that sampled", "mini-batch", "approx_kl (nats)", {"approx_kl": (range(1, 9), kls)}
    )
    lab.show(lab.curves(panel))
    print("approx_kl:", *[f"{kl:.1e}" for kl in kls])

# %% [markdown]
# **What you should see.** In one only: the first. From then on the policy has moved, and the ratio tells how far: this is what
# the clipping is for. The KL of the second pass is larger, as a rule. `target_kl` looks at the mean over a
# pass.

# %% check="PPOTrainer"

# %% [markdown]
# ## The loop
#
# Now the three lines for real: query, response, score. 12 steps of 32 queries. The score comes from the course's reward model, and
# the judge looks on. Everything goes to TensorBoard files in `runs/08_trainer` as well; to watch it there, run
# `tensorboard --logdir runs/08_trainer` in the course folder.
#
# **Before you run it,** write down: will the price of the KL go up or down in the first steps, with a
# target of 2 nats? And in the end?


# %%
def score_of(full_ids: torch.Tensor) -> torch.Tensor:
    """What the reward model says of one text."""
    return reward_fn(full_ids[None], torch.ones_like(full_ids)[None])[0]


def loop_figure(history: list[dict]):
    """Score and judge, KL and its price, step by step."""
    steps = range(1, len(history) + 1)

    def line(name: str) -> tuple:
        return steps, [row[name] for row in history]

    return lab.curves(
        lab.Panel(
            "Score, and judge", "step", "mean", {"score": line("ppo/mean_scores"), "judge": line("judge")}
        ),
        lab.Panel("KL to the reference", "step", "nats per response", {"KL": line("ppo/kl")}, {"target": 2.0}),
        lab.Panel("Price of a nat", "step", "objective/kl_coef", {"price": line("objective/kl_coef")}),
    )


log_dir = Path("../runs/08_trainer") / time.strftime("%Y%m%d-%H%M%S")
history = []
with lab.todo("PPOTrainer"):
    ppo_trainer = make_trainer(
        learning_rate=3e-4,
        batch_size=32,
        mini_batch_size=8,
        gradient_accumulation_steps=2,
        ppo_epochs=2,
        init_kl_coef=0.05,
        target=2.0,
        horizon=200,
        target_kl=0.1,
        vf_coef=0.5,
        cliprange_value=1.0,
        log_with="tensorboard",
        log_dir=str(log_dir),
    )
    picture = lab.live(loop_figure, every=3)
    for step in range(12):
        asked = [prompts[i] for i in torch.randint(len(prompts), (32,)).tolist()]
        queries = [as_query(prompt) for prompt in asked]
        responses = ppo_trainer.generate(queries, **SAMPLING)
        scores = [score_of(full_ids) for full_ids in responses]
        stats = ppo_trainer.step(queries, responses, scores)
        texts = [tokenizer.decode(full_ids, skip_special_tokens=True) for full_ids in responses]
        history.append(stats | {"judge": sum(judge(texts)) / len(texts)})
        picture(history)
    picture(history, last=True)
    lab.table([{"text": text, "score": score.item()} for text, score in zip(texts[:6], scores[:6], strict=True)])

# %% [markdown]
# **What you should see.** The score climbs from about 0.1 to more than 1, the judge from a little more than 0.5 to about 0.8, and
# the KL from 0 to a few nats. While the KL is below 2 the price falls; once it is above, the price rises again. It moves by
# 3.2 % at most in a step: 0.2 times 32 responses over a horizon of 200. **Read the texts, too**: praise almost everywhere,
# and here and there a word that does not exist. The policy went fast, and a price that adapts this slowly could
# not hold it at 2 nats.
#
# ### Read the log back
#
# What TensorBoard shows is in a file. Here it is read again.

# %%
with lab.todo("PPOTrainer"):
    if not history:
        raise lab.LabError("not done yet: this cell reads what the run above has logged")
    events = EventAccumulator(str(log_dir)).Reload()
    written = {name: [event.value for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    lab.table(
        [{"name": name, "first": values[0], "last": values[-1]} for name, values in sorted(written.items())],
        f"{len(written)} curves of {len(next(iter(written.values())))} steps",
    )

# %% [markdown]
# **What the names mean.** They are those of the old library, so that old dashboards fit.
#
# | name | what it is | what to look for |
# |:--|:--|:--|
# | `objective/kl`, `ppo/kl` | KL to the reference, nats for a whole response, by $k_1$ | near the target; clearly negative over many steps is a mistake |
# | `objective/kl_coef` | the price that this step charged | never still where it adapts |
# | `objective/entropy` | minus the log-probability of a whole response | it grows with the length; near 0 the policy always says the same |
# | `ppo/mean_scores`, `ppo/std_scores` | your scores | the mean should rise; no spread, nothing to learn |
# | `ppo/mean_non_score_reward` | what a token is charged for its KL | small beside the scores |
# | `ppo/policy/approxkl`, `ppo/policy/clipfrac` | how far this step has moved the policy | below 0.05; below 0.3 |
# | `ppo/loss/policy`, `ppo/loss/value`, `ppo/loss/total` | means over all mini-batches | the policy loss does *not* have to fall |
# | `ppo/val/var_explained` | share of the returns' variance that the critic knew before | 0: it knows nothing; 1: all; below 0: worse than a constant |
# | `ppo/returns/...`, `ppo/val/...` | returns, and values before the update | the critic follows the returns |
# | `tokens/...` | mean lengths | responses that grow or shrink without end |

# %% [markdown]
# **Three estimates of one KL.** New responses of the trained policy, read by policy and reference: how much do the estimators
# differ on real text?
#
# **Before you run the next cell:** the policy has gone a few nats in a response. Which estimator will have the smallest
# deviation over the tokens? Look at the table with the normal distributions, write it down, then look.

# %%
with lab.todo("PPOTrainer", "kl_k1", "kl_k2", "kl_k3"):
    if not history:
        raise lab.LabError("not done yet: this cell looks at the policy that the run above has trained")
    asked = [as_query(prompt) for prompt in prompts[:64]]
    pairs = []
    for query, full_ids in zip(asked, ppo_trainer.generate(asked, **SAMPLING), strict=True):
        with torch.no_grad():
            models = ppo_trainer.model, ppo_trainer.ref_model
            says = [model.lm(full_ids[None]).logits[0, :-1].log_softmax(-1) for model in models]
        rows = [logprobs.gather(-1, full_ids[1:, None])[len(query) - 1 :, 0] for logprobs in says]
        pairs.append(torch.stack(rows))
    logprobs, ref_logprobs = torch.cat(pairs, dim=1)
    lab.table(
        [
            {
                "estimator": name,
                "mean (nats per token)": estimate(logprobs, ref_logprobs).mean().item(),
                "deviation": estimate(logprobs, ref_logprobs).std().item(),
                "negative": f"{(estimate(logprobs, ref_logprobs) < 0).float().mean():.0%}",
            }
            for name, estimate in (("k1", trainer.kl_k1), ("k2", trainer.kl_k2), ("k3", trainer.kl_k3))
        ],
        f"{logprobs.numel()} tokens of 64 responses",
    )

# %% [markdown]
# **What you should see.** The means of $k_1$ and $k_3$ are close, as far as 600 tokens can tell; that of $k_2$ is clearly larger.
# About half of the tokens have a negative $k_1$, or a little less. And $k_1$ has the smallest deviation here: some tokens are
# very far from the reference by now, as in the last rows of the table with the normal distributions.

# %% [markdown]
# **Question.** `PPOConfig` has two limits that sound alike: `target`, of the controller, and `target_kl`. Between which two
# policies is each KL measured, over what (a token or a response), and what happens when it is exceeded? Describe a run in
# which one of them is exceeded in every step and the other one never. (2 points, graded by a person)

# %% [markdown] answer="two_targets" points=2
# `target` is about the policy that sampled and the frozen reference: the log-ratios of a whole response, summed over its
# tokens and averaged over the batch. Above it, a nat becomes dearer from the next batch on; nothing is stopped.
# `target_kl` is about the policy as it is being updated and the policy that sampled this batch: `approx_kl`, a mean
# over tokens and over the mini-batches of a pass. When it is exceeded by half, the batch gets no further pass. A long run with
# small steps can go far from the reference and exceed `target` in every step, while no single
# step moves the policy by much, so that `target_kl` is never exceeded. The other way round: a learning rate that is too high moves
# the policy far within the very first batches, and `target_kl` cuts every update short, while the KL
# to the reference is still below its target.

# %% [markdown]
# ### Old programs
#
# A program that was written for the old library runs on your trainer once its import lines are changed:
#
# ```python
# from rlhf_exercises.trainer import AutoModelForCausalLMWithValueHead, PPOConfig, PPOTrainer
# ```
#
# `docs/old-tutorials.md` in the course's repository lists what else can stand in its way. One thing is not the
# trainer's and fails in silence: old programs ask a sentiment pipeline for `return_all_scores=True`. The
# current `transformers` takes no notice of it and returns the score of the **likeliest** label only, whichever
# that is. A text that is certainly negative then earns as much as one that is certainly positive. Ask for `top_k=None`.

# %%
lab.status()

# %% [markdown]
# ## Where to go next
#
# - Change one setting of the loop and predict first: `adap_kl_ctrl=False`; `target=0.5`; `learning_rate=2e-3`
#   with and without `target_kl`; `mini_batch_size=1`.
# - Score by something else: a rule on the text, or a `pipeline("sentiment-analysis", ...)` of your own.
# - [09 Drill](09_cloze.ipynb): the functions of PPO once more, with blanks.
#
# {navigation}
