# %% [markdown]
# # 3 PPO

# %%
# %load_ext autoreload
# %autoreload 2
import torch

import rlhf_lab.notebook as lab
from rlhf_exercises import ppo

lab.begin("03_ppo", "rlhf_exercises")

# %% [markdown] exercise="compute_gae"
# How much better was this token than the critic expected?

# %%
with lab.todo("compute_gae"):
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    rewards, values = torch.zeros(2, 6), torch.ones(2, 6)
    advantages, returns = ppo.compute_gae(rewards, values, mask, gamma=0.9, lam=0.7)
    lab.show(lab.token_table(mask=mask, reward=rewards, value=values, advantage=advantages, **{"return": returns}))

# %% check="compute_gae"

# %% todo="by_hand"
with lab.todo("compute_gae"):
    ### BEGIN SOLUTION
    x = ppo.compute_gae(rewards, values, mask)
    ### END SOLUTION
    print(x[0].shape)

# %% [markdown]
# **Question.** Why?

# %% [markdown] answer="why" points=2
# Because.
