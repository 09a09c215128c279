"""Where one GPU is not enough: PPO and GRPO over several processes, from the same taught functions.

    accelerate launch --multi_gpu --num_processes 2 -m rlhf_lab.scale_out --device cpu --steps 20
    python -m rlhf_lab.scale_out --steps 20              # one process, the same code

A process is called a rank. Every rank holds a whole copy of the models and works on its own rows of each batch; what
belongs to the whole batch (the mean and variance of the advantages, the number of tokens, the gradient) is put
together over all ranks, so that the result is the one that a single process would have had.

`ranks` holds the operations that join the ranks, `steps` the update of PPO and of GRPO, `training` the loop and
`__main__` the command. What it costs and what changes at larger size: docs/scale-out.md.
"""
