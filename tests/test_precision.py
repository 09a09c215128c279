"""bfloat16: which numbers are float32, and how far the others are from it. This CPU's autocast stands for a GPU's."""

import copy

import pytest
import torch

from rlhf_lab import backbones
from rlhf_lab.devices import choose_compute, reads_in_float32
from rlhf_lab.taught_code import load_code
from rlhf_lab.watch import StageWatch

BF16 = choose_compute("cpu", "bfloat16")
PROMPTS = ["there", "the weather is", "the soup was warm and", "kindness"]
EXACT = 1e-5  # nats: what float32 leaves of a log-probability of float64


@pytest.fixture
def code():
    return load_code("solutions")


@pytest.fixture
def policy(code, model_folder):
    policy = reads_in_float32(code.ppo.PolicyWithValueHead(str(model_folder)))
    with torch.no_grad():  # a value head that says something
        policy.value_head[-1].weight.normal_()
    return policy


@pytest.fixture
def batch(code, policy, padded_tokenizer):
    with BF16.autocast():
        return code.ppo.rollout(
            policy, copy.deepcopy(policy), lambda ids, mask: mask.sum(-1) / 10, padded_tokenizer, PROMPTS, 6
        )


def test_a_rollout_holds_float32_and_its_logprobs_are_exact_for_their_logits(code, policy, batch):
    for name in ("old_logprobs", "ref_logprobs", "old_values", "rm_score"):
        assert getattr(batch, name).dtype == torch.float32, name
    window = batch.response_mask.shape[1] + 1
    with BF16.autocast(), torch.no_grad():
        logits, _ = policy(batch.full_ids, batch.full_mask, logits_to_keep=window)
    exact = code.ppo.gather_logprobs(logits.double(), batch.full_ids[:, -window:])
    torch.testing.assert_close(batch.old_logprobs.double(), exact, atol=EXACT, rtol=0)


def test_the_ratio_is_1_to_a_thousandth_before_the_first_update(code, policy, batch):
    with BF16.autocast():
        logprobs, _ = code.ppo.response_logprobs_and_values(
            policy, batch.full_ids, batch.full_mask, batch.response_mask.shape[1]
        )
    ratio = (logprobs - batch.old_logprobs).exp()
    assert (ratio - 1).abs().max() < 1e-3


def test_ppo_losses_and_whitening_are_those_of_float64_up_to_float32(code, policy, batch):
    """From the same log-probabilities and values, computed again in float64 without autocast."""
    ppo = code.ppo

    moved = torch.linspace(-0.4, 0.3, batch.old_logprobs.numel()).view_as(batch.old_logprobs)

    def losses(double):
        cast = torch.Tensor.double if double else torch.Tensor.clone
        rewards = ppo.shape_token_rewards(
            cast(batch.rm_score), cast(batch.old_logprobs), cast(batch.ref_logprobs), batch.response_mask
        )
        advantages, returns = ppo.compute_gae(rewards, cast(batch.old_values), batch.response_mask)
        white = ppo.masked_whiten(advantages, batch.response_mask)
        total, info = ppo.ppo_losses(
            cast(batch.old_logprobs) + moved, cast(batch.old_logprobs), white, cast(batch.old_values) + 0.3,
            cast(batch.old_values), returns, batch.response_mask,
        )  # fmt: skip
        return white, returns, total, info

    with BF16.autocast():
        white, returns, total, info = losses(double=False)
    exact_white, _, exact_total, exact_info = losses(double=True)
    assert {tensor.dtype for tensor in (white, returns, total)} == {torch.float32}
    torch.testing.assert_close(white.double(), exact_white, atol=1e-5, rtol=0)
    assert total.item() == pytest.approx(exact_total.item(), rel=1e-5)
    assert info == pytest.approx(exact_info, rel=1e-4, abs=1e-6)


def test_the_other_losses_are_those_of_float64_up_to_float32(code, model_folder, padded_tokenizer):
    reward_model = reads_in_float32(code.reward_model.RewardModel(str(model_folder)))
    language_model = reads_in_float32(backbones.load_causal_lm(model_folder))
    ids = torch.randint(1, 300, (4, 12))
    mask, labels = torch.ones_like(ids), ids.clone()
    labels[:, :4] = -100
    with BF16.autocast():
        scores = reward_model(ids, mask)
        rm_loss, _ = code.reward_model.rm_loss(*scores.chunk(2))
        logits = language_model(input_ids=ids, attention_mask=mask).logits
        sft_loss = code.sft.masked_ce_loss(logits, labels)
        logprobs = code.dpo.sequence_logprobs(language_model, ids, mask, labels)
        dpo_loss, *_ = code.dpo.dpo_loss(*logprobs, beta=0.1)
    assert {x.dtype for x in (scores, rm_loss, logits, sft_loss, logprobs, dpo_loss)} == {torch.float32}
    exact = {
        "rm": (rm_loss, code.reward_model.rm_loss(*scores.double().chunk(2))[0]),
        "sft": (sft_loss, code.sft.masked_ce_loss(logits.double(), labels)),
        "dpo": (dpo_loss, code.dpo.dpo_loss(*logprobs.double(), beta=0.1)[0]),
    }
    for name, (ours, in_float64) in exact.items():
        assert ours.item() == pytest.approx(in_float64.item(), rel=1e-5), name


def test_weights_gradients_and_moments_are_float32(code, policy, batch):
    optim = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    with BF16.autocast():
        code.ppo.ppo_step(policy, optim, batch, ppo_epochs=2)
    moments = [value for state in optim.state.values() for value in state.values()]
    tensors = [*policy.parameters(), *(parameter.grad for parameter in policy.parameters()), *moments]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


def test_the_heads_read_in_float32_and_the_rest_is_multiplied_in_bfloat16(code, policy, model_folder):
    ids = torch.randint(1, 300, (4, 12))
    mask = torch.ones_like(ids)
    hidden = []
    policy.value_head.register_forward_pre_hook(lambda _head, inputs: hidden.append(inputs[0].detach()))
    with torch.no_grad(), BF16.autocast():
        logits, values = policy(ids, mask)
    with torch.no_grad():
        plain_logits, _ = policy(ids, mask)
        torch.testing.assert_close(
            values, policy.value_head(hidden[0].float()).squeeze(-1), atol=1e-6, rtol=1e-6
        )
    assert (logits - plain_logits).abs().max() > 1e-3, "autocast was off"


def test_a_copy_reads_with_its_own_heads(code, policy):
    twin = copy.deepcopy(policy)
    with torch.no_grad():
        twin.value_head[-1].bias += 1
    ids = torch.randint(1, 300, (2, 8))
    with torch.no_grad(), BF16.autocast():
        values, twins = (model(ids, torch.ones_like(ids))[1] for model in (policy, twin))
    torch.testing.assert_close(twins, values + 1)


def test_without_autocast_nothing_changes(code, model_folder):
    ids = torch.randint(1, 300, (2, 8))
    mask = torch.ones_like(ids)
    policy = code.ppo.PolicyWithValueHead(str(model_folder))
    before = policy(ids, mask)
    for ours, theirs in zip(reads_in_float32(policy)(ids, mask), before, strict=True):
        assert torch.equal(ours, theirs)


def test_correct_code_that_calls_the_models_in_another_way_works_and_leaves_in_float32(code, model_folder):
    """The language model asked for a tuple, or its parts called apart; the head handed its input by name."""

    class Other(code.ppo.PolicyWithValueHead):
        def forward(self, input_ids, attention_mask, position_ids=None, logits_to_keep=0):
            hidden = self.lm.base_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            logits = self.lm(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]
            apart = self.lm.lm_head(hidden)
            assert torch.equal(apart, logits)
            return apart, self.value_head(input=hidden).squeeze(-1)

    policy = reads_in_float32(Other(str(model_folder)))
    ids = torch.randint(1, 300, (2, 8))
    with BF16.autocast(), StageWatch("ppo", 1, "nothing") as watch:
        watch.module(policy.lm, "logits")
        logits, values = copy.deepcopy(policy)(ids, torch.ones_like(ids))
    assert logits.dtype == values.dtype == torch.float32


def test_a_reward_head_that_is_called_by_name_works(code, model_folder):
    class Other(code.reward_model.RewardModel):
        def forward(self, input_ids, attention_mask):
            hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return self.v_head(input=hidden)[:, -1, 0]

    ids = torch.randint(1, 300, (2, 8))
    with BF16.autocast():
        assert reads_in_float32(Other(str(model_folder)))(ids, torch.ones_like(ids)).dtype == torch.float32
