"""What can be wrong with a run: a name, a line for the list, and the explanation that a right answer gets."""

from dataclasses import dataclass

from ..course import exercises


@dataclass(frozen=True)
class Diagnosis:
    """One possible defect.

    Attributes:
        line: what is wrong, for the list.
        place: the exercise that the defect is in, or words for what is no exercise.
        seen, why, cure: what the three views show, what leads to it, and what to do. Only the defects that a case has
            are explained.
    """

    line: str
    place: str
    seen: str = ""
    why: str = ""
    cure: str = ""

    @property
    def where(self) -> str:
        exercise = exercises().get(self.place)
        return f"{self.place}, exercise {exercise.number}" if exercise else self.place

    @property
    def explanation(self) -> str:
        return f"Seen: {self.seen}\nWhy: {self.why}\nWhat to do: {self.cure} ({self.where})"


DIAGNOSES = {
    "EOS not learned": Diagnosis(
        "In the SFT data the label of the EOS is -100, as if it were padding.",
        "build_sft_example",
        "From the first step on hardly a response ends with EOS and nearly all reach the limit of tokens; before PPO "
        "has done anything the samples run on, sentence after sentence.",
        "Where pad and EOS are the same number, a mask made from the ids hides the real EOS too. No demonstration "
        "then teaches the model to stop, and PPO starts from a model that cannot.",
        "make labels and masks from the lengths, and check that the last label of each row is the EOS",
    ),
    "score lost": Diagnosis(
        "The score of the reward model is put one place after the last token, and the mask sets it to 0.",
        "shape_token_rewards",
        "Reward and judge stay where they were, and the KL to the reference stays near 0. In the token table the "
        "caption has a score, but the last token's reward is a small KL penalty and nothing more.",
        "The place of the last token is one less than the length. What is added after it is multiplied by a 0 of the "
        "mask, so that the KL penalty is all that the policy is paid: the best it can do is to stay the reference.",
        "put the score on the last 1 of the mask, and check that each row's rewards add up to score minus KL penalty",
    ),
    "KL sign flipped": Diagnosis(
        "The KL penalty has the wrong sign: the policy is paid for leaving the reference.",
        "shape_token_rewards",
        "The KL to the reference climbs without end while the samples fall apart. In the token table the reward is "
        "positive just where logprob is above ref_logprob.",
        "The penalty is a cost, -kl_coef * (logprob - ref_logprob). With a plus, tokens that only the policy likes "
        "are worth more the less the reference likes them, and nothing limits that.",
        "write the minus, and check one row by hand: a token that the policy likes more than the reference costs",
    ),
    "reference moves": Diagnosis(
        "The reference is updated together with the policy.",
        "train_ppo",
        "The KL to the reference is exactly 0 at every step, and in the token table logprob and ref_logprob are the "
        "same number in every line, although the samples have changed. With time distinct-2 falls and languages mix.",
        "A reference that follows the policy is no reference: the penalty is 0 however far the policy has gone, and "
        "nothing holds the language together any more.",
        "copy the policy once before the first step, freeze the copy, and only read it",
    ),
    "dropout on": Diagnosis(
        "The update runs in training mode, with dropout, and the rollout does not.",
        "ppo_step",
        "Before the first update the ratio is not 1: it lies anywhere between the two numbers of the table. Clip "
        "fraction and approx_kl are high from the first step on, and the policy loss has peaks. The reward rises all "
        "the same.",
        "Dropout makes the new policy another function than the one that sampled, before it has learned anything: the "
        "clip then cuts noise, and a part of the gradient is noise too.",
        "call policy.eval() before the update; eval mode turns dropout off, gradients flow all the same",
    ),
    "padding leak": Diagnosis(
        "What stands after the end of a response flows back into its advantages.",
        "compute_gae",
        "The curves look healthy. In the token table look at the last token of the mask: nothing comes after it, so its "
        "return has to be its reward. That is so for the longest response, and not for the one with padding behind it.",
        "The recursion looks at t + 1. At the last real token t + 1 is padding: its value and its advantage must "
        "count as 0, or the critic learns to predict its own guesses about padding.",
        "mask inside the recursion, and check that garbage in the padding changes nothing",
    ),
    "no whitening": Diagnosis(
        "The advantages go into the loss as compute_gae left them.",
        "ppo_step",
        "Before the first update the standard deviation of the advantages is not 1. The policy loss goes far below 0 "
        "and comes back only when the critic has caught up. In the token table value + advantage is the return.",
        "Raw advantages have the scale and the offset of the rewards. While the critic is still behind, most of them "
        "are positive, and then nearly all tokens of a batch are pushed up, good ones and bad ones. (Here the gradient "
        "clip and AdamW hide much of it; with rewards of another size the run would change.)",
        "whiten the advantages over the mask, after the returns are computed",
    ),
    "returns whitened": Diagnosis(
        "The returns are computed from the whitened advantages.",
        "ppo_step",
        "The value loss is 0.5 at every step and does not fall, while all other curves look healthy. In the token table "
        "the last return is not the reward of its token, and the values stay around 0, far below the scores.",
        "Returns are what the critic has to predict. Made of whitened advantages they are value plus noise of size 1, "
        "so the target moves with the critic, and the error keeps the variance of the noise: 0.5 * 1.",
        "compute the returns first and whiten afterwards",
    ),
    "critic not trained": Diagnosis(
        "The value loss has no part in the total loss.",
        "ppo_losses",
        "The value is the same for every token, the 0 that the head starts with, and the value loss rises with the "
        "scores instead of falling.",
        "A critic that nobody trains expects nothing. The advantages are then plain returns: the policy still learns, "
        "since whitening takes their mean away, but from noisier numbers.",
        "add vf_coef * value_loss to the total, and check that the values move",
    ),
    "top-p sampling": Diagnosis(
        "Rollouts are sampled with top_p below 1, and scored with the full softmax.",
        "rollout",
        "Already at the first step, from the same model, the sampled tokens are far more likely than the healthy "
        "ones: look at the mean and the lowest log-probability, and at distinct-2.",
        "Top-p cuts the tail off. The samples come from another distribution than the one whose ratio PPO takes. PPO "
        "never hears of the tail, so nothing keeps it small: the samples of the table, which are drawn without top-p, "
        "hold odd tokens after the run.",
        "sample the policy itself: temperature 1, top_k=0, top_p=1.0",
    ),
    "learning rate too high": Diagnosis(
        "The steps of the optimiser are too large.",
        "the settings of the run",
        "The first ratio is 1, as it should be, but then approx_kl is far above its limit and half of the tokens are "
        "clipped. The KL to the reference jumps up and down, distinct-2 falls, and the samples end as one sentence, "
        "whatever the prompt.",
        "The clip only takes the gradient away once a ratio is outside its range. One step of the optimiser that is "
        "too large carries the policy far beyond, and the next rollout comes from a damaged model.",
        "divide the learning rate by ten until approx_kl stays under 0.05",
    ),
    "reward hacking": Diagnosis(
        "The code is right; the reward pays for something else than what is wanted.",
        "the reward, not your code",
        "The reward rises all the time, far above the healthy run, while the judge stops after a good start and goes "
        "down again. The samples are piles of praise up to the limit of tokens, and hardly a sentence is left. The "
        "scores in the token table are whole numbers.",
        "This reward counts words of praise. PPO found out that a pile of them pays best; the judge, which PPO never "
        "sees, reads sentences.",
        "look at samples and at an independent judge, improve the reward, raise kl_coef or stop earlier",
    ),
    # and some that no case has
    "no KL penalty": Diagnosis("kl_coef is 0: no token costs anything.", "the settings of the run"),
    "EOS outside the mask": Diagnosis(
        "The mask of the response ends one token too early, before the EOS.", "response_mask"
    ),
    "old log-probabilities renewed": Diagnosis(
        "The old log-probabilities are computed again in each epoch, so that the ratio is always 1.",
        "ppo_step",
    ),
    "policy loss sign flipped": Diagnosis("The policy loss has the wrong sign.", "ppo_losses"),
    "reward scaled down": Diagnosis("All scores are multiplied by 0.01.", "the reward, not your code"),
}
