"""What a run has to reach: the figures of the course's specification, for the score card and the pictures."""

SFT_LOSS = 2.0  # nats per held-out response token, within SFT_EPOCHS
SFT_EPOCHS = 3
EOS_SHARE = 0.9  # of the sampled responses end by themselves
RM_ACCURACY = 0.85  # on held-out pairs
LENGTH_ONLY = (0.45, 0.55)  # what guessing by length may reach on them
PARAMETER_RATIO = 1.5  # policy with value head : language model
GAE_ERROR = 1e-4
RATIO_ERROR = {
    "float32": 1e-4,
    "bfloat16": 5e-2,
}  # of the first ratio, against an unpadded pass in that precision
APPROX_KL = 0.05  # nats per token
KL_TO_REF = 15.0  # nats per response
JUDGE = 0.75  # mean probability of being positive
DISTINCT_2 = 0.5  # of the samples before PPO
TOY_GAIN = 2.0  # by which PPO and DPO raise the rule reward of the toy model over SFT
