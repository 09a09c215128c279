"""The taught code of the course: supervised fine-tuning, reward model and PPO.

Read it in the order of the course: `sft`, `reward_model`, `ppo`. The modules import torch, transformers and each
other, so that the folder can be lifted out and used elsewhere.
"""
