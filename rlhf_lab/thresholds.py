"""What a run has to reach: the figures of the course's specification, for the score card and the pictures."""

from dataclasses import dataclass
from math import inf

SFT_LOSS = 2.0  # nats per held-out response token, within SFT_EPOCHS
SFT_EPOCHS = 3
EOS_SHARE = 0.9  # of the sampled responses end by themselves
RM_ACCURACY = 0.85  # on held-out pairs
LENGTH_ONLY = (0.45, 0.55)  # what guessing by length may reach on them
PARAMETER_RATIO = 1.5  # policy with value head : language model
GAE_ERROR = 1e-4
RATIO_ERROR = {"float32": 1e-4, "bfloat16": 1e-3}  # of PPO's own ratio before its first update
UNPADDED_ERROR = 1e-4  # of the ratio to a pass without padding, in float32 whatever the run trains in
ALONE_ERROR = {
    "float32": 1e-3,
    "bfloat16": 0.5,
}  # nats, of any token of a run that is read alone in its own precision
APPROX_KL = 0.05  # nats per token
KL_TO_REF = 15.0  # nats per response
JUDGE = 0.75  # mean probability of being positive
DISTINCT_2 = 0.5  # of the samples before PPO
TOY_GAIN = 2.0  # by which PPO and DPO raise the rule reward of the toy model over SFT


@dataclass(frozen=True)
class Asked:
    """What is asked of a run, as far as it depends on the data.

    Attributes:
        sft_loss: held-out loss after SFT in nats, at most; `inf` where it only has to fall.
        rm_accuracy: of the reward model on held-out pairs (where their margins are known: on the clear ones).
        judge: mean probability of being positive after PPO; None where it has to rise by `judge_gain`.
        distinct_2: of the samples after PPO, as a multiple of those before.
    """

    sft_loss: float
    rm_accuracy: float
    judge: float | None
    judge_gain: float
    distinct_2: float

    def judge_goal(self, before: float) -> float:
        """What the judge shall say after PPO, of a model of which it said `before`."""
        return before + self.judge_gain if self.judge is None else self.judge


def asked_of(data: str) -> Asked:
    """What is asked of a run on the data of this name."""
    if data == "ratings":  # the gain is 0.3 on VADER's own scale, -1 to 1
        return Asked(sft_loss=inf, rm_accuracy=0.75, judge=None, judge_gain=0.15, distinct_2=0.8)
    return Asked(SFT_LOSS, RM_ACCURACY, JUDGE, judge_gain=0.0, distinct_2=DISTINCT_2)
