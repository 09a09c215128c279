"""Run by the launcher in tests/test_scale_out.py: three steps of PPO, with a broken reward on rank 1 if asked for.

    three_steps.py FOLDER [nan-reward]

Each rank writes what it has in the end into FOLDER.
"""

import dataclasses
import json
import sys
from pathlib import Path

import torch

from rlhf_lab.lab import open_lab
from rlhf_lab.scale_out import ranks, training
from rlhf_lab.settings import Settings

folder, trouble = Path(sys.argv[1]), sys.argv[2:]
accelerator = ranks.start_accelerator("cpu")
rank = accelerator.process_index
lab = open_lab(Settings(steps=3, batch=4, new_tokens=8, ppo_epochs=2), folder)
start = training.load_start(lab, from_run=False)

if trouble == ["nan-reward"] and rank == 1:
    start.reward_fn.reward_fn = lambda full_ids, full_mask: torch.full((len(full_ids),), float("nan"))
history, sampled = [], []
start = dataclasses.replace(start, prompts=start.prompts[:50])
step = training.steps.ppo_step


def watched(ppo, accelerator, policy, optim, rollout, **settings):
    sampled.append(rollout.texts)
    return step(ppo, accelerator, policy, optim, rollout, **settings)


training.steps.ppo_step = watched
learner = training.train(lab, accelerator, start, None, history.append)
weights = {name: weight.double().sum().item().hex() for name, weight in learner.state_dict().items()}
mine = {"weights": weights, "history": history, "sampled": sampled}
(folder / f"rank{rank}.json").write_text(json.dumps(mine), encoding="utf-8")
accelerator.end_training()
