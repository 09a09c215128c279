# %% [markdown]
# {navigation}
#
# # 4 End to end
#
# Everything runs together now: a language model learns to answer (SFT), a reward model learns to score, and
# fifty PPO steps raise the score. Then comes the part that nobody tells you about: reading a run that went
# wrong.
#
# **What you will have at the end:** the outer loop of PPO, a model that you trained from start to end with
# your own code, its score card, and a clinic of broken runs that you can diagnose.
#
# **Time:** about 2 hours of your own. The cells together run in about two minutes on two CPU cores; the PPO
# run itself takes half a minute to a minute. **It starts from** the course's own checkpoints. Where your own
# SFT or reward model has been trained in this notebook, it takes their place.

# %%
# %load_ext autoreload
# %autoreload 2
import copy
from collections import Counter

import torch

import rlhf_lab.notebook as lab
from rlhf_exercises import ppo, reward_model, sft

lab.begin("04_end_to_end", "rlhf_exercises")

# %%
tokenizer = lab.load_tokenizer(lab.TINY)
data = lab.load_data("toy")
prompts, heldout_prompts = list(data.prompts_train["prompt"]), list(data.prompts_heldout["prompt"])
judge = lab.ToyJudge()  # reads texts; nothing is ever trained on it

sft_model = lab.load_causal_lm(lab.SFT)  # the course's own, until yours is trained
reward_fn = lab.ShippedReward()  # the course's own, until yours is trained
trained = None  # your model after PPO
card = []  # the score card, a row for each figure


def put_on_card(point: str, figure: str, asked: str, passed: bool) -> None:
    """Add a row to the score card; a stage that is run again writes its rows again."""
    card[:] = [row for row in card if row["point"] != point]
    card.append({"point": point, "yours": figure, "asked": asked, "verdict": "pass" if passed else "not yet"})


def after_ppo():
    """Your model after PPO."""
    if trained is None:
        raise lab.LabError("not done yet: this cell looks at what PPO has changed, so run stage 3 first")
    return trained


def stacked(dataset) -> dict:
    """All rows of a small data set as one batch."""
    rows = [dataset[i] for i in range(len(dataset))]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


# %% [markdown] exercise="train_ppo"
# You have a step. The run is a loop around it: draw prompts, roll out, update; `n_steps` times.
#
# - In: policy, frozen reference, reward function, tokenizer, a list of prompts, an optimiser, and the
#   settings. Out: a list with the `info` of each step.
# - Prompts are drawn **with replacement**, by torch's global random generator. So `torch.manual_seed` makes a
#   run repeatable.
# - The optimiser is **handed in** and never made again: Adam's memory of past gradients belongs to the run. A
#   run can then be continued.
# - The reference is a copy of the policy as it was before the first step. The loop only reads it.
# - After each step, `on_step(info, rollout)` is called where it is given. Curves, checkpoints and the judge
#   hang on it.

# %% [markdown]
# **Slow, then fast.** Slow: three runs of one step, one after the other. Fast: one run of three steps. With
# the same seed and the same optimiser they are the same run.
#
# **Before you run the next cell:** what has to be in the first row of the column `kl_to_ref`, and why? Write
# it down, then look.


# %%
def short_run(runs_of: list[int], lr: float = 1e-4) -> list[dict]:
    """Several runs one after the other, with one policy and one optimiser, as one history."""
    torch.manual_seed(0)
    policy = ppo.PolicyWithValueHead(str(lab.SFT))
    reference = copy.deepcopy(policy).requires_grad_(False)
    optim = torch.optim.AdamW(policy.parameters(), lr=lr)
    history = []
    for n_steps in runs_of:
        history += ppo.train_ppo(
            policy, reference, reward_fn, tokenizer, prompts, optim, n_steps=n_steps, batch_size=8
        )
    return history


with lab.todo("train_ppo"):
    lab.table(
        [{"step": i, **info} for i, info in enumerate(short_run([1, 1, 1]))], "slow: three runs of one step"
    )
    lab.table([{"step": i, **info} for i, info in enumerate(short_run([3]))], "fast: one run of three steps")

# %% [markdown]
# **What you should see.** Two tables that are the same but for rounding. `kl_to_ref` is 0 in the first row: the first
# rollout comes from the reference itself. (After that it is an estimate from eight responses: a little below
# 0 is possible.) With eight responses a step the reward jumps up and down; the real
# run below uses 32.
#
# **Known answers.** No steps: no history. Learning rate 0: nothing is learned, so every `approx_kl` is 0 and
# the policy stays the reference.

# %%
with lab.todo("train_ppo"):
    print("no steps:", short_run([0]), "(known: [])")
    standing = short_run([2], lr=0.0)
    print("learning rate 0: approx_kl", [info["approx_kl"] for info in standing], "(known: 0)")
    print("learning rate 0: kl_to_ref", [info["kl_to_ref"] for info in standing], "(known: 0)")

# %% check="train_ppo"

# %% [markdown]
# ## The pipeline, from your own code
#
# Three cells, one for each stage. In each you put the stage together out of your functions. The settings are
# those of the command line, but that a row has 32 tokens instead of 40: no text here has more than 28, so it
# only saves padding. A stage that you leave out is taken from the course's checkpoints, so you can do them in
# any order.
#
# ### Stage 1: SFT
#
# Make an `SFTDataset` of `data.sft_train` with `max_len=32`, and train
# `model` on it for 3 epochs with learning rate 5e-4. `lab.shuffled(dataset, 16, seed=0)` gives batches of 16.
# Keep the losses in `losses`.
#
# **Before you run it:** the loss is in nats per token, and the model has already read a lot of text. Where
# will the held-out loss start, and where will it end? The score card asks for less than 2. Write it down,
# then look.

# %% todo="stage_sft"
with lab.todo("SFTDataset", "train_sft"):
    model = lab.load_causal_lm(lab.TINY)
    heldout = stacked(sft.SFTDataset(data.sft_heldout, tokenizer, max_len=32))

    @torch.no_grad()
    def heldout_loss() -> float:
        logits = model(input_ids=heldout["input_ids"], attention_mask=heldout["attention_mask"]).logits
        return sft.masked_ce_loss(logits, heldout["labels"]).item()

    before = heldout_loss()
    torch.manual_seed(0)
    ### BEGIN SOLUTION
    dataset = sft.SFTDataset(data.sft_train, tokenizer, max_len=32)
    losses = sft.train_sft(model, lab.shuffled(dataset, 16, seed=0), n_epochs=3, lr=5e-4)
    ### END SOLUTION
    sft_model, after = model, heldout_loss()
    lab.show(lab.sft_figure(losses, [(len(losses), after)]))
    eos_share = lab.sample(sft_model, tokenizer, heldout_prompts, 24, seed=0).eos_share
    limit, eos_limit = lab.thresholds.SFT_LOSS, lab.thresholds.EOS_SHARE
    put_on_card("1 SFT: held-out loss", f"{before:.2f} -> {after:.2f}", f"< {limit}", after < limit)
    put_on_card("1 SFT: responses that end", f"{eos_share:.0%}", f"> {eos_limit:.0%}", eos_share > eos_limit)

# %% [markdown]
# **What you should see.** The loss starts at about 3.2 and not at ln 2304 = 7.7: the model already knows the
# language. In the end the held-out loss is about 1.1, and most of the way was done in the first thirty steps:
# the model learns quickly what a response looks like and that it ends.
#
# ### Stage 2: the reward model
#
# Make an `RMDataset` of `data.pairs_train` with `max_len=32`, and train `model` on it for 2 epochs with
# learning rate 5e-4, in batches of 32. Keep the history in `history`.
#
# **Before you run it:** what is the loss of the first step? (You know it without running anything.) Write it
# down, then look.

# %% todo="stage_reward_model"
with lab.todo("RMDataset", "train_rm"):
    torch.manual_seed(0)
    model = reward_model.RewardModel(str(lab.TINY))
    ### BEGIN SOLUTION
    dataset = reward_model.RMDataset(data.pairs_train, tokenizer, max_len=32)
    history = reward_model.train_rm(model, lab.shuffled(dataset, 32, seed=0), n_epochs=2, lr=5e-4)
    ### END SOLUTION
    model.eval()

    @torch.no_grad()
    def scores(pairs) -> tuple[torch.Tensor, torch.Tensor]:
        rows = stacked(reward_model.RMDataset(pairs, tokenizer, max_len=32))
        chosen = model(rows["chosen_ids"], rows["chosen_mask"])
        return chosen, model(rows["rejected_ids"], rows["rejected_mask"])

    chosen, rejected = scores(data.pairs_heldout)
    accuracy = (chosen > rejected).float().mean().item()
    length_only = lab.length_only_accuracy(data.pairs_heldout)
    limit, (low, high) = lab.thresholds.RM_ACCURACY, lab.thresholds.LENGTH_ONLY
    sides = chosen.tolist(), rejected.tolist()
    lab.show(lab.reward_model_figure(history, accuracy, length_only, limit, *sides))
    put_on_card("2 reward model: accuracy", f"{accuracy:.3f}", f"> {limit}", accuracy > limit)
    put_on_card("2 by length alone", f"{length_only:.3f}", f"{low} to {high}", low <= length_only <= high)

    # a comparison fixes no zero and no unit: put the scores on a known scale, mean 0 and deviation 1
    training_scores = torch.cat(scores(data.pairs_train))
    reward_fn = lab.ModelReward(model, training_scores.mean().item(), training_scores.std().item())

# %% [markdown]
# **What you should see.** The first loss is close to ln 2 = 0.69: a reward model that knows nothing tosses a
# coin. In the end more than 85 % of the held-out pairs are in the right order, while guessing by length gets
# about half.
#
# The last two lines matter for PPO. Only differences of scores are trained, so the raw numbers have no zero
# and no unit, and `kl_coef` would mean something else for every reward model. So they are put on one scale.
#
# ### Stage 3: PPO
#
# Four models take part. `reward_fn` is ready. You set up the other three: `policy`, your
# `PolicyWithValueHead` of `str(lab.TINY)` with the weights of `sft_model` (the critic is part of it);
# `reference`, a frozen copy; and `optim`, AdamW over the policy's parameters with learning rate 1e-4.
#
# While it runs, the curves are drawn again every few seconds, with the **judge** beside the reward: the
# course's own reading of the texts, which nothing is trained on. And the workbench **watches invariants**,
# things that hold in every correct run. If your code breaks one, a line says which, at which step, and where
# to look.
#
# **Before you run it,** write down:
#
# 1. What will happen to the mean score, to the KL to the reference, and to distinct-2 (the share of different
#    word pairs in the samples)? Which go up, which go down?
# 2. The policy is paid for whatever the reward model likes. How could it get a high score **without** writing
#    better reviews? Find two ways.

# %% todo="stage_ppo"
with lab.todo("PolicyWithValueHead", "train_ppo"):
    torch.manual_seed(0)
    ### BEGIN SOLUTION
    policy = ppo.PolicyWithValueHead(str(lab.TINY))
    policy.load_from_sft(sft_model.state_dict())
    reference = copy.deepcopy(policy).requires_grad_(False)
    optim = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    ### END SOLUTION
    history, picture = [], lab.live(lab.ppo_figure, every=4)
    with lab.watch_invariants(
        ppo, policy, reference, reward_fn, tokenizer, kl_coef=0.05, max_new_tokens=24
    ) as watch:

        def on_step(info, batch):
            watch.on_step(info, batch)
            history.append(info | lab.look_at(batch, judge, tokenizer))
            picture(history)

        ppo.train_ppo(
            policy,
            reference,
            reward_fn,
            tokenizer,
            prompts,
            optim,
            n_steps=50,
            batch_size=32,
            max_new_tokens=24,
            kl_coef=0.05,
            on_step=on_step,
        )
    picture(history, last=True)
    trained = policy.lm
    highest, furthest = (max(info[name] for info in history) for name in ("approx_kl", "kl_to_ref"))
    limit, kl_limit = lab.thresholds.APPROX_KL, lab.thresholds.KL_TO_REF
    put_on_card("6 approx_kl, highest", f"{highest:.4f}", f"< {limit}", highest < limit)
    put_on_card(
        "6 KL to the reference, highest", f"{furthest:.1f} nats", f"< {kl_limit:g}", furthest < kl_limit
    )

# %% [markdown]
# **What you should see.** The mean score climbs from between 0 and 0.3 to about 1.5 and flattens out; the
# judge follows from about 0.55 to about 0.9, **although nothing was trained on it**: the reward model has
# understood something of what the judge reads. The KL to the reference rises to 3 to 5 nats for a response
# and stays there, held back by its price (a single step may stand out). `approx_kl` stays below its limit of
# 0.05. The value loss rises while the score runs ahead of the critic, and falls once the critic has caught
# up. distinct-2 goes down a little: less variety. Every invariant held.
#
# ### Before and after
#
# Fresh responses to held-out prompts, from the model before PPO and after it, with the same seed.

# %%
with lab.todo("train_ppo"):
    after = lab.sample(after_ppo(), tokenizer, heldout_prompts, 24, seed=0)
    before = lab.sample(sft_model, tokenizer, heldout_prompts, 24, seed=0)
    judged_before, judged_after = judge(before.texts), judge(after.texts)
    rows = []
    for i in range(0, len(heldout_prompts), 17):
        row = {"prompt": heldout_prompts[i], "before": before.responses[i], "judge": judged_before[i]}
        rows.append(row | {"after": after.responses[i], "judge ": judged_after[i]})
    lab.table(rows)
    at_first, in_the_end = (sum(judged) / len(judged) for judged in (judged_before, judged_after))
    variety = lab.distinct_2(after.token_ids) / lab.distinct_2(before.token_ids)
    limit, variety_limit = lab.thresholds.JUDGE, lab.thresholds.DISTINCT_2
    put_on_card("7 judge", f"{at_first:.2f} -> {in_the_end:.2f}", f"> {limit}", in_the_end > limit)
    put_on_card(
        "7 distinct-2, after : before", f"{variety:.2f}", f"> {variety_limit}", variety > variety_limit
    )

# %% [markdown]
# **Which words did the reward buy?** The tokens that have gained and lost most:

# %%
with lab.todo("train_ppo"):

    def token_counts(lm) -> Counter:
        drawn = lab.sample(lm, tokenizer, heldout_prompts, 24, seed=0)
        return Counter(token for ids in drawn.token_ids for token in ids)

    after, before = token_counts(after_ppo()), token_counts(sft_model)
    by_growth = sorted(before | after, key=lambda token: (after[token] + 1) / (before[token] + 1))
    rows = []
    for less, more in zip(by_growth[:10], by_growth[::-1][:10], strict=True):
        shown_less, shown_more = lab.token_texts(tokenizer, [less, more])
        row = {"more": shown_more, "before": before[more], "after": after[more]}
        rows.append(row | {"less": shown_less, "before ": before[less], "after ": after[less]})
    lab.table(rows, f"how often a token stands in {len(heldout_prompts)} responses")

# %% [markdown]
# **What you should see.** Strong praise has gained; denied and lukewarm words (`·not`, `还行`) have lost. That
# *is* the task here, and it is also how reward hacking begins: the policy does not know the difference. What
# tells the two apart is a judge that nobody trains on, the KL to the reference, and your own eyes on the
# samples.
#
# <details><summary>Exploits that were seen in runs of this course (open this after you have written down yours)</summary>
#
# - **Few words for everything.** In a healthy run a handful of strong words (`wonderful`, `outstanding`,
#   `excellent`) takes over, whatever the review is about. The judge does not mind; a reader would. distinct-2
#   falls a little.
# - **Opinions instead of facts.** "weighs half a kilo" earns nothing, so it gives way to praise.
# - **Praise after praise, no sentence.** One run of ours with `kl_coef=0` ended with "About our train ride:
#   breathtaking, excellent, amazing, remarkable." The reward was a little higher than in a healthy run, and
#   **the judge was fooled too**: it gave about 0.9. Only the KL to the reference gave it away, which was about
#   ten times as high as in a healthy run, and one look at the samples.
# - **Whatever the reward has overlooked.** A reward that counts good words gets good words, in two languages
#   at once and without a sentence around them.
#
# </details>

# %% [markdown]
# ### Your score card
#
# The seven points of the course. Points 1, 2, 6 and 7 are read off the run. Points 3, 4 and 5 (value head,
# GAE, losses) are about the code alone: your checks of `PolicyWithValueHead`, `compute_gae` and `ppo_losses`
# are these points.

# %%
if card:
    lab.table(sorted(card, key=lambda row: row["point"]))
else:
    print("not done yet: each stage above writes its rows, so run them first")

# %% [markdown]
# The command line does the same with your code, keeps everything in a run folder, goes on where it was
# interrupted, and writes a report with all seven points:
#
# ```
# python -m rlhf_lab run --code rlhf_exercises
# ```
#
# **Question.** The reward is what PPO is trained on, and the judge stands beside it. Describe what the curves
# of reward, judge, KL to the reference and distinct-2 would look like in a run in which the policy exploits
# the reward. What would you change, and in which order? (3 points, graded by a person)

# %% [markdown] answer="reward_hacking" points=3
# The reward goes on rising, often faster than in a healthy run. The judge rises at first and then falls or
# stays flat: the two come apart. The KL to the reference keeps growing instead of levelling off, because the
# exploit lies far from the language of SFT; distinct-2 drops, since the same few phrases win everywhere.
# First look at samples, to see what is being exploited. Then raise `kl_coef` (or take a smaller learning
# rate, a narrower clip or fewer epochs) and stop early, at the step where the judge was best. The lasting
# cure is a better reward: add pairs that show the exploit as rejected, and train the reward model again.
# Training on the judge is no cure: then there is no judge any more. (A judge may be fooled as well, so people
# have to read samples in any case.)

# %% [markdown]
# **Question.** Why does the mean over samples of `old_logprobs - ref_logprobs` estimate a KL divergence, why
# can it be negative for a single response, and what would be wrong if the mean over many responses were
# clearly below 0? (2 points, graded by a person)

# %% [markdown] answer="negative_kl" points=2
# KL(policy ‖ reference) is the expectation, under the policy's own samples, of log policy minus log
# reference; the mean over sampled responses estimates it. A single response may be one that the reference
# likes better than the policy does, so its term may be negative. The expectation cannot: a mean that stays
# clearly below 0, over many steps, says that the samples do not come from the policy whose log-probabilities
# are used (if the reference wrote them, for instance, the mean estimates minus a KL divergence), or that the
# difference is taken the wrong way round. The reverse does not hold: with top-p sampling the samples are not
# the policy's own either, and the mean need not go below 0.

# %% [markdown]
# ## The clinic
#
# Every run below has one defect, in real code, of a kind that people have really made. Nothing crashed. You
# see what one sees at work: curves, some samples, a token table. Find out what is wrong.
#
# **How to read a run, from the outside in:**
#
# 1. **Reward and judge.** Do both rise? Does the reward rise alone? Does nothing happen?
# 2. **KL to the reference.** 0 for ever: the policy does not learn, or the reference runs along. Without end:
#    nothing holds it. Clearly below 0, over many steps: the samples are not the policy's own, or the
#    difference is taken the wrong way round.
# 3. **`approx_kl` and clip fraction.** Large from the first step: old and new log-probabilities do not belong
#    together, or the steps are too big.
# 4. **Losses.** Policy loss near 0 is normal. Is the value loss falling, or of a strange size?
# 5. **EOS share, length, distinct-2.** Has the model forgotten how to stop? Does it say the same thing to
#    everybody?
# 6. **The first step.** The small table below the curves is from before any update: the ratio has to be 1,
#    the advantages have mean 0 and deviation 1, and the sampled tokens are as likely as in a healthy run.
# 7. **The samples.** Read them.
# 8. **The token table.** Where does the score stand? Are the values plausible? Does the sum come out right at
#    the last token of a response, next to the padding? Some defects leave every curve as it should be, and
#    show only here.
#
# First a run in which nothing is wrong.

# %%
lab.clinic.healthy()

# %% [markdown]
# These are the diagnoses to choose from. Some of them belong to no case.

# %%
lab.clinic.diagnoses()

# %% [markdown]
# The cases. The healthy curves stand behind each as thin grey lines. Take your time: write one sentence for
# each case, what you see and what it could come from, before you look for a name in the list.

# %%
lab.clinic.show("A")

# %%
lab.clinic.show("B")

# %%
lab.clinic.show("C")

# %%
lab.clinic.show("D")

# %%
lab.clinic.show("E")

# %%
lab.clinic.show("F")

# %%
lab.clinic.show("G")

# %%
lab.clinic.show("H")

# %%
lab.clinic.show("I")

# %%
lab.clinic.show("J")

# %%
lab.clinic.show("K")

# %%
lab.clinic.show("L")

# %% [markdown]
# **Your diagnoses.** Write them below, for instance `diagnoses["A"] = "dropout on"`. Names are those of the
# list. The check afterwards says which are right, and explains those. You may come back as often as you like.

# %% todo="diagnoses"
diagnoses = dict.fromkeys(lab.clinic.CASES)  # no case has a diagnosis yet
with lab.todo():
    ### BEGIN SOLUTION
    diagnoses["A"] = "score lost"
    diagnoses["B"] = "KL sign flipped"
    diagnoses["C"] = "EOS not learned"
    diagnoses["D"] = "dropout on"
    diagnoses["E"] = "learning rate too high"
    diagnoses["F"] = "padding leak"
    diagnoses["G"] = "reference moves"
    diagnoses["H"] = "reward hacking"
    diagnoses["I"] = "no whitening"
    diagnoses["J"] = "top-p sampling"
    diagnoses["K"] = "returns whitened"
    diagnoses["L"] = "critic not trained"
    ### END SOLUTION

# %% grade="clinic" points=5
lab.clinic.check(diagnoses)
### BEGIN HIDDEN TESTS
import grader_tests

grader_tests.grade_clinic(diagnoses)
### END HIDDEN TESTS

# %%
lab.status()

# %% [markdown]
# ## Where to go next
#
# - Change one setting and run stage 3 again: `kl_coef=0`, `kl_coef=0.5`, a learning rate of 1e-3,
#   `ppo_epochs=1`. Predict first.
# - Use another reward: `lab.TextReward(scorer, tokenizer)` makes a reward function out of anything that reads
#   texts. Try one that you can exploit, for instance `lambda texts: [float(len(text)) for text in texts]`.
# - `python -m rlhf_lab run --help` lists every setting, larger models among them.
#
# {navigation}
