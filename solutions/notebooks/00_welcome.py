# %% [markdown]
# # 0 Welcome
#
# {navigation}
#
# In this course you write RLHF, reinforcement learning from human feedback, from scratch: every loss, every
# mask, every update. The model is small, so everything runs on a laptop in seconds to minutes. The code that
# you write is the same as for a large one.
#
# **In this notebook** you check your machine, see the whole course in one picture, meet the picture of
# indices that everything later stands on, and practise how you will work: edit, save, check. **Time** about
# 20 minutes. Nothing here is graded.
#
# Run each cell with Shift + Enter, from top to bottom.

# %%
# %load_ext autoreload
# %autoreload 2
import rlhf_lab.notebook as lab

lab.begin("00_welcome", "rlhf_exercises")

# %% [markdown]
# ## Your machine

# %%
lab.table(lab.machine_rows())

# %% [markdown]
# **What you should see.** Python 3.11 or newer, two cores or more, about 1 GiB of memory free, and `tiny`
# among the backbones. That is all you need. `tiny` is the language model of the course: the architecture of
# GPT-2 with one million parameters, trained on short reviews in English and Chinese. It comes with the
# course. There is no download and no GPU to rent.
#
# ## The whole course in one picture
#
# **Before you run the next cell:** in the third stage, four models work together. Which of them should learn,
# and which must not change? Write it down, then look.

# %%
lab.overview()

# %% [markdown]
# **What you should see.**
#
# 1. **SFT** ([01](01_sft.ipynb)): a language model reads demonstrations and learns the form of an answer: one
#    response, then stop.
# 2. **Reward model** ([02](02_reward_model.ipynb)): a copy of the backbone reads comparisons and learns to
#    score a text.
# 3. **PPO** ([03](03_ppo.ipynb), [04](04_end_to_end.ipynb)): the model from stage 1 writes, the model from
#    stage 2 scores, and what scored well becomes more likely.
#
# These four notebooks are the core of the course. Then come other ways to the same end:
#
# - **DPO** ([05](05_dpo.ipynb)) learns from the comparisons themselves, without a reward model.
# - **GRPO** ([06](06_grpo.ipynb)) compares each answer with the others to the same prompt, without a critic.
# - **Toy RLHF** ([07](07_toy_rlhf.ipynb)) is all of it on a model of letters, small enough to count out.
# - **The trainer** ([08](08_trainer.ipynb)) puts PPO behind the interface that older tutorials use.
# - **The drill** ([09](09_cloze.ipynb)) takes pieces out of the code, for you to fill in from memory.
#
# In stage 3 the policy and its value head learn. The *reference* is a frozen copy of the policy as it was at
# the start: the further the policy moves away from it (that is the KL), the more it pays. Without this price,
# the policy would find strange texts that the reward model happens to like. The reward model is frozen too: a
# judge who can be talked into changing the rules is no judge.
#
# All four start from the same backbone. The formulas are short. What makes RLHF hard is what flows between
# these boxes, and at which index.

# %% [markdown]
# ## The picture of indices
#
# Below, the course's own fine-tuned model answers three prompts. It is real output: sampled now, on your
# machine.

# %%
tokenizer = lab.load_tokenizer(lab.SFT)
lm = lab.load_causal_lm(lab.SFT).eval()
prompts = ["This phone", "关于这家餐厅：", "Review of the camera:"]

rollout = lab.examples.sampled_responses(lm, tokenizer, prompts, max_new_tokens=10, seed=1)
lab.index_picture(rollout, tokenizer)

# %% [markdown]
# **How to read it.** Every row is one prompt with its response, and each box is one token.
#
# - Prompts have different lengths. They are padded on the **left**, so that all responses begin in the same
#   column, `P`.
# - A response ends with **EOS**, a token like any other: it is written by the model and it is learned. After
#   it there is padding on the **right**. The last response reached its limit of 10 tokens first: it is cut,
#   and has no EOS.
# - Padding and EOS have the *same id* in GPT-2 models. So nobody can tell them apart by looking at ids. Masks
#   are made from lengths.
# - A causal model says at position `t` what it expects at position `t + 1`. So the log-probability of the
#   response token in column `P` is read in column `P - 1`: the first arrow. Off by one, and every number
#   belongs to its neighbour. Nothing crashes then; it just does not learn.
#
# (The values are 0 because there is no critic here yet. It is born in notebook 03 and starts with 0.)
#
# You will come back to this picture. Here are the numbers of the first response. **Before you run the next
# cell:** which token was the model most sure of?

# %%
R = rollout.response_mask.shape[1]
lab.token_table(
    tokens=lab.token_texts(tokenizer, rollout.full_ids[0, -R:].tolist()),
    mask=rollout.response_mask[0],
    logprob=rollout.old_logprobs[0],
    probability=rollout.old_logprobs[0].exp(),
)

# %% [markdown]
# ## How you will work
#
# The exercises are Python files in the folder `rlhf_exercises/`, one for each stage (`ppo.py` for 3 and 4).
# Each function in them has a docstring that says exactly what it must do, and a body that only says "not done
# yet". The notebooks explain, call your functions, and check them.
#
# 1. **Read** the section in the notebook, then the docstring (click the link in the box of the exercise).
# 2. **Write** the body in the file. **Save** (Ctrl + S).
# 3. **Run** the cell below the exercise again. You need not restart anything: the two `autoreload` lines at
#    the top of each notebook fetch what you saved.
# 4. **Check.** The check looks at the file as it is saved, runs small experiments on your function, and names
#    the mistake where it can.
#
# A cell whose function is not written yet says so in one line, and the notebook goes on:

# %%
from rlhf_exercises import reward_model

with lab.todo("last_token_index"):
    reward_model.last_token_index(lab.examples.two_responses().mask)
    print("last_token_index is written")

# %% [markdown]
# ### Two minutes of practice
#
# Here is a function with a mistake in it. It is not an exercise, and it gives no points. The first cell
# writes its file; the second checks it.

# %%
lab.practice.begin()

# %%
lab.practice.check()

# %% [markdown]
# **How to read a report.** From top to bottom:
#
# - The heading says which file was looked at and **when it was saved**. If it says "saved 10 min ago" and you
#   have just made a change, you have forgotten to save.
# - `ok`: this experiment came out right.
# - `FAIL`: the first one that did not. You see what came out and what was expected, what was tried, and,
#   where the mistake is a known one, its name.
# - `--`: not looked at yet. One thing after the other.
#
# **Now you.** Open [`runs/practice/practice.py`](../runs/practice/practice.py) (right click, or Ctrl + click,
# to have it beside this notebook). Repair the one line, save the file, and run the cell with
# `lab.practice.check()` again. Then the report should look like this one, which was made from a repaired
# copy:

# %%
lab.practice.repaired()

# %% [markdown]
# Did yours also say `3 of 3`? Then try two more things, since they will happen to you anyway:
#
# - Leave out a bracket, save, and check. The report names the line that Python cannot read.
# - Change the function without saving, and check. Look at "saved ... ago".
#
# `lab.practice.begin()` puts the file back as it was.
#
# ### When you are stuck
#
# | call | what it does |
# |:--|:--|
# | `lab.check("rm_loss")` | checks one exercise by name or number (`"2.4"`); with no name all of this notebook |
# | `lab.hint("rm_loss")` | the next hint: a nudge, then a plan, then almost code. They are also folded under each check |
# | `lab.status()` | where you stand, all exercises with their points |
# | `lab.traceback()` | the whole of the last error, where one line was not enough |
# | `lab.reset("rm_loss")` | puts the empty stub back; what you had written is kept in a text file beside it |
# | `lab.solution("rm_loss")` | the solution beside your code, where the course came with solutions; it asks twice |
#
# A hint looks like this. (With `step=` it does not count as asked.)

# %%
lab.hint("build_sft_example", step=1)

# %% [markdown]
# If a notebook behaves strangely: menu *Kernel*, *Restart Kernel and Run All Cells*. Your files stay as they
# are, and a check never changes them.

# %%
lab.status()

# %% [markdown]
# All exercises, with their points and what the last check said. After a change of a file the checks run
# again, so it is up to date.
#
# ### What counts
#
# - **Your three files in `rlhf_exercises/`.** Each exercise has points. The checks that you see and the tests
#   of a grader look for the same contract, the one in the docstring, on other inputs. Any correct code
#   passes, whichever way it is written.
# - **The cells marked "Write the next cell yourself".** There you put your own functions together.
# - **The questions** at the end of a notebook. A person reads the answers; a few sentences are enough.
#
# How long your code is, how fast it is, and how often you ran a check or asked for a hint does not count.
# Every notebook starts from its own checkpoint. So if one stage resists, go on with the next one and come
# back.
#
# Next: [01 SFT](01_sft.ipynb).
#
# {navigation}
