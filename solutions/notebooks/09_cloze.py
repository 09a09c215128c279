# %% [markdown]
# # 9 Drill: fill in the blanks
#
# {navigation}
#
# You have written the four functions and two classes that this course stands on. Next week, will you still know
# them? Here they are again, with holes in them.
#
# **In this notebook** you fill in random blanks from memory, find out what "the same" means for a piece of
# code, and see your score over time. **Time** 5 to 10 minutes, again and again. Nothing here is graded.
#
# **Why fill in blanks?** Because recalling something is a better way to keep it than reading it once more. In a
# well-known experiment, students read a text, and then either read it again or wrote down what they remembered.
# After five minutes the readers knew more. After a week those who had recalled it knew clearly more (Roediger
# and Karpicke 2006, "Test-enhanced learning"). So do a short round today, one tomorrow and one next week, rather
# than ten in a row.

# %%
# %load_ext autoreload
# %autoreload 2
import rlhf_lab.notebook as lab

lab.begin("09_cloze", "rlhf_exercises")

# %% [markdown]
# ## One example by hand
#
# The six snippets are `RewardModel`, `rm_loss`, `PolicyWithValueHead`, `gather_logprobs`, `shape_token_rewards`
# and `ppo_losses`. They are taken from the course's solutions, so your own version may have other names. Here is
# a line of one of them, with a blank:
#
# ```python
# logprobs = F.log_softmax(logits[:, :-1], ____1____)
# ```
#
# **Before you read on:** what is missing, and in how many ways can you write it?
#
# The course writes `dim=-1`. But `-1` alone is right too, and so is `dim=2`: the logits are
# `[batch, seq, vocab]`, so axis 2 is the last one. `dim=1` is wrong. It runs, and it even gives the right shape.
# But its numbers are normalised over the positions of a text and not over the vocabulary. Try it on logits of
# your own:

# %%
import torch
import torch.nn.functional as F

logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))  # 2 texts, 3 tokens, 5 words
for axis in (-1, 2, 1):
    sums = F.log_softmax(logits, axis).exp().sum(-1)  # over the vocabulary: 1 for a distribution
    print(f"dim={axis:2}: the probabilities of a token sum to {sums.min():.3f} to {sums.max():.3f}")

# %% [markdown]
# **What you should see.** 1.000 for the first two. The third one is no distribution over words any more.
#
# So the letters do not decide. **An answer is right when the code does the same with it.** Each answer is put
# into its place, and the function runs beside the course's own, on inputs that show mistakes: ragged masks,
# padding on either side, ties, ratios on both sides of the clip, a batch of one. The variables, the result and
# the gradients must agree. `x.sum(-1)` and `x.sum(dim=-1)` are both right; `old_logprobs` for
# `old_logprobs.detach()` is not, although every value agrees: the gradient tells them apart. Each blank is
# judged alone, with the others as in the course.
#
# ## Play
#
# - **Tab** goes from field to field. **Enter** checks the field you are in. **?** and Enter (or the button) gives
#   a hint.
# - There are three hints: what kind of thing is missing, what it is made of, and the answer itself.
# - A blank brings 3 points. Each hint and each wrong answer takes one away. The third hint leaves nothing. What is
#   no Python is a slip, and costs nothing.
# - *hidden, %* is how much of the code is hidden. Begin with 15. At 40 you have to know most of a function.
# - *New draw* draws other blanks. The line above the code says how to get the same ones again.
#
# The first answer takes some seconds: the process that judges has to start.

# %%
lab.cloze()

# %% [markdown]
# The same in a terminal, where one blank is asked for after the other:
#
# ```bash
# python -m rlhf_lab cloze
# python -m rlhf_lab cloze --snippet ppo_losses --share 0.3 --seed 17
# python -m rlhf_lab cloze --scores
# ```
#
# ## Your score over time
#
# Each finished round is kept, from here and from the terminal. Run this cell again after a few rounds:

# %%
lab.cloze_scores()

# %% [markdown]
# The share of the code that was hidden stands beside the points, because 90 % of the points with little hidden is
# not the same as 90 % with much. When all points are yours at 15 %, hide more.
#
# ## Where to go next
#
# - Where one snippet resists, go back to its section: `rm_loss` and `RewardModel` are in
#   [02 Reward model](02_reward_model.ipynb), the other four in [03 PPO](03_ppo.ipynb).
# - Know a snippet at 40 %? Then close everything and write it on paper, from the first line to the last.
#   `lab.reset("rm_loss")` puts the empty stub back (your text is kept beside the file), and `lab.check("rm_loss")`
#   says whether you can.
#
# {navigation}
