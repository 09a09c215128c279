"""Exercises 3.1 to 4: policy with value head, the pieces of PPO, rollout, update, and the run as a whole."""

import copy
import inspect
import itertools
import math

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig

from solutions import ppo
from solutions.ppo import (
    PolicyWithValueHead,
    compute_gae,
    gather_logprobs,
    masked_mean,
    masked_whiten,
    ppo_losses,
    ppo_step,
    response_mask,
    rollout,
    shape_token_rewards,
    train_ppo,
)
from solutions.reward_model import RewardModel

MASK_DTYPES = [torch.int64, torch.bool, torch.float32]
GARBAGE = [1e3, -1e6]

# responses of every kind: full, short, empty, one token, all but one
RAGGED_MASK = torch.tensor(
    [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0],
    ]
)
# the same beside a prompt of one to three tokens, as in a mask over all predicted tokens; square on purpose
PROMPT_MASK = torch.tensor(
    [
        [0, 0, 1, 1, 1],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]
)


def randn(*shape, mean=0.0, std=1.0):
    return mean + std * torch.randn(*shape, dtype=torch.float64)


def poisoned(tensor, mask, garbage):
    """The tensor with garbage, of both signs and growing, wherever the mask is 0."""
    noise = garbage * (1 + torch.arange(tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape) % 3)
    noise[..., ::2] *= -1
    return torch.where(mask.bool(), tensor, noise)


# --- 3.1 PolicyWithValueHead ---


def randomise_value_head(policy):
    """The head starts at zero, where it would hide every mistake about values."""
    nn.init.normal_(policy.value_head[-1].weight, std=0.5)
    nn.init.normal_(policy.value_head[-1].bias)


@pytest.fixture
def policy(model_folder):
    policy = PolicyWithValueHead(model_folder).eval()
    randomise_value_head(policy)
    return policy


@pytest.fixture
def gpt2_policy(gpt2_folder):
    policy = PolicyWithValueHead(gpt2_folder).eval()
    randomise_value_head(policy)
    return policy


def other_policy(policy, std=0.02):
    """A copy of the policy with other weights."""
    other = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(std * torch.randn_like(parameter))
    return other


def read_row(policy, ids):
    """Logits and values of one text alone, unpadded: the body's last state, and each head on top of it."""
    hidden = policy.lm.base_model(torch.tensor([ids]), use_cache=False).last_hidden_state
    return policy.lm.get_output_embeddings()(hidden)[0], policy.value_head(hidden)[0, :, 0]


TEXTS = [[31, 45, 77, 0], [31, 0, 102, 45, 200, 17], [0], [12, 250]]


def padded_batch(texts, side, extra=2):
    width = max(map(len, texts)) + extra
    ids, mask = torch.randint(320, (len(texts), width)), torch.zeros(len(texts), width, dtype=torch.long)
    for row, text in enumerate(texts):
        start = {"right": 0, "left": width - len(text), "both": (width - len(text)) // 2}[side]
        ids[row, start : start + len(text)] = torch.tensor(text)
        mask[row, start : start + len(text)] = 1
    return ids, mask


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_convention_h_padding_does_not_change_logits_and_values(policy, side):
    ids, mask = padded_batch(TEXTS, side)
    with torch.no_grad():
        logits, values = policy(ids, mask)
        assert logits.shape == (*ids.shape, 320) and values.shape == ids.shape
        for row, text in enumerate(TEXTS):
            expected_logits, expected_values = read_row(policy, text)
            real = mask[row].bool()
            torch.testing.assert_close(logits[row, real], expected_logits, rtol=0, atol=1e-4)
            torch.testing.assert_close(values[row, real], expected_values, rtol=0, atol=1e-5)


def test_policy_of_one_token(policy):
    logits, values = policy(torch.tensor([[7]]), torch.tensor([[1]]))
    assert logits.shape == (1, 1, 320) and values.shape == (1, 1)


def test_position_ids_are_used_as_given(gpt2_policy):
    ids, mask = torch.tensor([[31, 45, 77]]), torch.ones(1, 3, dtype=torch.long)
    with torch.no_grad():
        logits, values = gpt2_policy(ids, mask, torch.tensor([[4, 5, 9]]))
        expected = gpt2_policy.lm(input_ids=ids, position_ids=torch.tensor([[4, 5, 9]])).logits
        torch.testing.assert_close(logits, expected)
        assert (logits - gpt2_policy(ids, mask)[0]).abs().max() > 0.1
        assert (values - gpt2_policy(ids, mask)[1]).abs().max() > 0.01


def test_a_fresh_critic_expects_nothing(model_folder):
    policy = PolicyWithValueHead(model_folder)
    assert [type(layer) for layer in policy.value_head] == [nn.Linear, nn.GELU, nn.Linear]
    assert policy.value_head[0].weight.abs().sum() > 0
    assert policy.value_head[-1].weight.abs().sum() == 0 == policy.value_head[-1].bias.abs().sum()
    _, values = policy(*padded_batch(TEXTS, "left"))
    assert (values == 0).all()


def test_actor_and_critic_share_one_backbone_and_one_pass(policy):
    passes = []
    policy.lm.base_model.register_forward_hook(lambda *_: passes.append(1))
    _, values = policy(*padded_batch(TEXTS, "left"))
    assert len(passes) == 1
    values.sum().backward()  # the critic trains the backbone too
    assert policy.lm.get_input_embeddings().weight.grad.abs().sum() > 0
    names = {name.split(".")[0] for name, _ in policy.named_parameters()}
    assert names == {"lm", "value_head"}


@pytest.mark.parametrize("kept", [1, 3, 8])
def test_logits_to_keep_equals_slicing_the_full_logits(policy, kept):
    ids, mask = padded_batch(TEXTS, "left")
    with torch.no_grad():
        full_logits, full_values = policy(ids, mask)
        logits, values = policy(ids, mask, logits_to_keep=kept)
    assert ids.shape[1] == 8
    torch.testing.assert_close(logits, full_logits[:, -kept:])
    torch.testing.assert_close(values, full_values)


def test_load_from_sft_takes_the_language_model_and_leaves_the_value_head(policy, model_folder):
    sft_model = AutoModelForCausalLM.from_pretrained(model_folder)
    with torch.no_grad():
        for parameter in sft_model.parameters():
            parameter.add_(0.1)
    head = copy.deepcopy(policy.value_head.state_dict())
    policy.load_from_sft(sft_model.state_dict())
    loaded = policy.lm.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in sft_model.state_dict().items())
    assert all(torch.equal(head[name], tensor) for name, tensor in policy.value_head.state_dict().items())


def test_load_from_sft_refuses_weights_of_another_model(policy):
    with pytest.raises(RuntimeError):
        policy.load_from_sft({"some.weight": torch.zeros(1)})


# --- 3.2 gather_logprobs ---


@pytest.mark.parametrize("batch, seq, vocab", [(3, 5, 7), (1, 4, 6), (4, 4, 4), (2, 2, 3)])
def test_logprobs_are_those_of_the_tokens_that_came(batch, seq, vocab):
    logits = randn(batch, seq, vocab, std=2).requires_grad_()
    ids = torch.randint(vocab, (batch, seq))
    before = logits.clone(), ids.clone()
    logprobs = gather_logprobs(logits, ids)
    expected = torch.stack(
        [
            torch.stack(
                [logits[b, t, ids[b, t + 1]] - logits[b, t].exp().sum().log() for t in range(seq - 1)]
            )
            for b in range(batch)
        ]
    )
    assert logprobs.shape == (batch, seq - 1)
    torch.testing.assert_close(logprobs, expected)
    weights = randn(batch, seq - 1)
    gradients = (torch.autograd.grad((weights * x).sum(), logits)[0] for x in (logprobs, expected))
    torch.testing.assert_close(*gradients)
    assert torch.equal(logits, before[0]) and torch.equal(ids, before[1])


def test_logprobs_are_finite_for_extreme_logits():
    logits = torch.tensor([[[1e4, 0.0, -1e4], [0.0, 0.0, 0.0]]])
    assert gather_logprobs(logits, torch.tensor([[0, 0]])).item() == 0
    assert gather_logprobs(logits, torch.tensor([[0, 2]])).item() == -2e4


def test_nothing_predicts_the_first_token():
    assert gather_logprobs(torch.randn(2, 1, 5), torch.zeros(2, 1, dtype=torch.long)).shape == (2, 0)


# --- 3.3 shape_token_rewards ---


def shaped_oracle(rm_score, old_logprobs, ref_logprobs, mask, kl_coef):
    rewards = torch.zeros_like(old_logprobs)
    for row in range(mask.shape[0]):
        valid = [t for t in range(mask.shape[1]) if mask[row, t]]
        for t in valid:
            rewards[row, t] = -kl_coef * (old_logprobs[row, t] - ref_logprobs[row, t])
        if valid:
            rewards[row, valid[-1]] += rm_score[row]
    return rewards


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("dtype", MASK_DTYPES)
@pytest.mark.parametrize("mask", [RAGGED_MASK, PROMPT_MASK, RAGGED_MASK[1:2], RAGGED_MASK[2:3]])
def test_token_rewards_follow_the_plain_loop(mask, dtype, garbage):
    rm_score = randn(len(mask), mean=3)
    old, ref = (poisoned(randn(*mask.shape, mean=-2), mask, garbage * k) for k in (1, 2))
    typed_mask = mask.to(dtype)
    before = [x.clone() for x in (rm_score, old, ref, typed_mask)]
    rewards = shape_token_rewards(rm_score, old, ref, typed_mask, kl_coef=0.3)
    torch.testing.assert_close(rewards, shaped_oracle(rm_score, old, ref, mask, 0.3))
    assert (rewards[mask == 0] == 0).all()
    assert all(torch.equal(x, y) for x, y in zip((rm_score, old, ref, typed_mask), before, strict=True))


@pytest.mark.parametrize("mask", [RAGGED_MASK, PROMPT_MASK])
def test_convention_c_score_lands_on_last_response_token(mask):
    """Without a KL term, the one reward of a row is at its last valid token; an empty row gets nothing."""
    rm_score = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0])
    same = torch.zeros(mask.shape)
    rewards = shape_token_rewards(rm_score, same, same, mask, kl_coef=0.3)
    for row in range(5):
        valid = [t for t in range(mask.shape[1]) if mask[row, t]]
        expected = {valid[-1]: rm_score[row].item()} if valid else {}
        assert {t: r for t, r in enumerate(rewards[row].tolist()) if r} == expected


def test_unlikely_tokens_under_the_reference_are_charged():
    """The sign, and the default coefficient: log-ratios of +-0.5 cost 0.025 or earn it."""
    old, ref = torch.tensor([[-1.0, -1.5, -2.0]]), torch.tensor([[-1.5, -1.0, -2.0]])
    rewards = shape_token_rewards(torch.tensor([1.0]), old, ref, torch.ones(1, 3))
    torch.testing.assert_close(rewards, torch.tensor([[-0.025, 0.025, 1.0]]))


# --- 3.3 compute_gae ---


def gae_oracle(rewards, values, mask, gamma, lam):
    """The definition, a sum over later TD errors, on the valid tokens of each row alone."""
    advantages, returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
    for row in range(mask.shape[0]):
        valid = [t for t in range(mask.shape[1]) if mask[row, t]]
        v = [values[row, t].item() for t in valid] + [0.0]
        delta = [rewards[row, t].item() + gamma * v[i + 1] - v[i] for i, t in enumerate(valid)]
        for i, t in enumerate(valid):
            advantages[row, t] = sum((gamma * lam) ** (k - i) * delta[k] for k in range(i, len(valid)))
            returns[row, t] = advantages[row, t] + v[i]
    return advantages, returns


@pytest.mark.parametrize("gamma, lam", [(0.9, 0.7), (0.7, 0.9), (1.0, 0.95), (0.9, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("dtype", MASK_DTYPES)
@pytest.mark.parametrize(
    "mask", [RAGGED_MASK, PROMPT_MASK, RAGGED_MASK[:1], RAGGED_MASK[1:2], RAGGED_MASK[3:4, :1]]
)
def test_gae_follows_its_definition(mask, dtype, gamma, lam):
    rewards, values = (poisoned(randn(*mask.shape, mean=m), mask, 1e3) for m in (1, 2))
    before = rewards.clone(), values.clone()
    advantages, returns = compute_gae(rewards, values, mask.to(dtype), gamma=gamma, lam=lam)
    expected_advantages, expected_returns = gae_oracle(rewards, values, mask, gamma, lam)
    torch.testing.assert_close(advantages, expected_advantages)
    torch.testing.assert_close(returns, expected_returns)
    assert (advantages[mask == 0] == 0).all() and (returns[mask == 0] == 0).all()
    assert torch.equal(rewards, before[0]) and torch.equal(values, before[1])


@pytest.mark.parametrize("garbage", [*GARBAGE, 1e30])
def test_convention_d_padding_does_not_leak_into_the_advantages(garbage):
    """In rewards and in values, one at a time and together; and one more column of it."""
    mask = RAGGED_MASK
    clean = [torch.where(mask.bool(), randn(*mask.shape, mean=1), 0.0) for _ in range(2)]
    expected = compute_gae(*clean, mask, gamma=0.9, lam=0.7)
    for dirty in ([True, False], [False, True], [True, True]):
        arguments = [poisoned(x, mask, garbage) if d else x for x, d in zip(clean, dirty, strict=True)]
        for got, want in zip(compute_gae(*arguments, mask, gamma=0.9, lam=0.7), expected, strict=True):
            assert torch.equal(got, want)
    column = torch.full((len(mask), 1), garbage, dtype=torch.float64)
    wider = [torch.cat([x, column], dim=1) for x in clean]
    wider_mask = torch.cat([mask, torch.zeros_like(mask[:, :1])], dim=1)
    for got, want in zip(compute_gae(*wider, wider_mask, gamma=0.9, lam=0.7), expected, strict=True):
        assert torch.equal(got[:, :-1], want) and (got[:, -1] == 0).all()


def test_defaults_of_gae_are_those_of_the_course():
    rewards, values = randn(5, 6), randn(5, 6)
    for got, want in zip(
        compute_gae(rewards, values, RAGGED_MASK),
        gae_oracle(rewards, values, RAGGED_MASK, 1, 0.95),
        strict=True,
    ):
        torch.testing.assert_close(got, want)


def test_advantages_and_returns_carry_no_gradient():
    rewards, values = randn(5, 6).requires_grad_(), randn(5, 6).requires_grad_()
    assert not any(x.requires_grad for x in compute_gae(rewards, values, RAGGED_MASK))


# --- 3.3 masked_mean and masked_whiten ---


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("dtype", MASK_DTYPES)
def test_masked_mean_is_the_mean_over_the_mask(dtype, garbage):
    x = poisoned(randn(5, 6, mean=3), RAGGED_MASK, garbage)
    torch.testing.assert_close(masked_mean(x, RAGGED_MASK.to(dtype)), x[RAGGED_MASK.bool()].mean())
    assert masked_mean(x, torch.zeros(5, 6)).item() == 0


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("dtype", MASK_DTYPES)
@pytest.mark.parametrize("mask", [RAGGED_MASK, PROMPT_MASK, RAGGED_MASK[1:2]])
def test_whitening_gives_mean_0_and_variance_1_over_the_mask(mask, dtype, garbage):
    x = poisoned(randn(*mask.shape, mean=3, std=2), mask, garbage)
    before = x.clone()
    whitened = masked_whiten(x, mask.to(dtype))
    valid = x[mask.bool()].tolist()
    mean = sum(valid) / len(valid)
    std = math.sqrt(sum((value - mean) ** 2 for value in valid) / len(valid))
    assert whitened[mask.bool()].tolist() == pytest.approx(
        [(value - mean) / std for value in valid], rel=1e-6
    )
    assert whitened.shape == x.shape and (whitened[mask == 0] == 0).all()
    assert torch.equal(x, before)


@pytest.mark.parametrize("x", [torch.full((2, 3), 4.0), torch.zeros(2, 3)])
def test_whitening_a_constant_gives_zeros(x):
    assert (masked_whiten(x, torch.ones(2, 3)) == 0).all()


def test_whitening_is_finite_with_a_single_valid_token():
    mask = torch.tensor([[0, 0], [1, 0]])
    assert (masked_whiten(torch.tensor([[1e3, 2.0], [3.0, 1e6]]), mask) == 0).all()


def test_eps_of_whitening_stands_beside_the_variance():
    x = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    assert masked_whiten(x, torch.ones(1, 2), eps=3.0)[0].tolist() == pytest.approx([-0.5, 0.5])


# --- 3.4 ppo_losses ---

ARGUMENTS = ("new_logprobs", "old_logprobs", "advantages", "new_values", "old_values", "returns")
COEFFICIENTS = {"clip_range": 0.1, "clip_range_value": 0.3, "vf_coef": 0.7}


def ppo_inputs(mask, garbage=1e3):
    """Off-policy, log-ratios of +-0.5 and +-0.04, advantages of mean 3: every branch of both losses."""
    batch, length = mask.shape
    old_logprobs = randn(batch, length, mean=-2)
    log_ratio = torch.tensor([0.5, -0.5, 0.04, -0.5, 0.5, -0.04], dtype=torch.float64).repeat(batch * length)
    old_values, value_step = randn(batch, length, mean=1), randn(batch, length, std=0.6)
    inputs = {
        "new_logprobs": old_logprobs + log_ratio[: batch * length].reshape(batch, length),
        "old_logprobs": old_logprobs,
        "advantages": randn(batch, length, mean=3, std=3),
        "new_values": old_values + value_step,
        "old_values": old_values,
        "returns": old_values + randn(batch, length, mean=0.3),
    }
    # a different garbage for each, so that differences of two do not cancel it; log-probabilities stay apart
    return {
        name: poisoned(x, mask, garbage * (k + 1)).requires_grad_()
        for k, (name, x) in enumerate(inputs.items())
    }


def ppo_oracle(inputs, mask, clip_range, clip_range_value, vf_coef):
    """Token by token, with the branches written out as `if`s."""
    policy_terms, value_terms, kl_terms, clip_terms = [], [], [], []
    for row, t in itertools.product(*map(range, mask.shape)):
        if not mask[row, t]:
            continue
        new, old, advantage, value, old_value, target = (inputs[name][row, t] for name in ARGUMENTS)
        ratio = torch.exp(new - old.detach())
        too_high = ratio > 1 + clip_range and advantage > 0
        too_low = ratio < 1 - clip_range and advantage < 0
        bounded = (1 + clip_range) if too_high else (1 - clip_range) if too_low else ratio
        policy_terms.append(-advantage.detach() * bounded)
        step = value - old_value.detach()
        clipped = old_value.detach() + (
            step if abs(step.item()) <= clip_range_value else math.copysign(clip_range_value, step.item())
        )
        errors = (value - target.detach()) ** 2, (clipped - target.detach()) ** 2
        value_terms.append(0.5 * (max(errors[0], errors[1])))
        kl_terms.append(ratio.item() - 1 - (new - old).item())
        clip_terms.append(float(abs(ratio.item() - 1) > clip_range))
    n = len(policy_terms)
    policy_loss, value_loss = sum(policy_terms) / n, sum(value_terms) / n
    info = {
        "policy_loss": policy_loss.item(),
        "value_loss": value_loss.item(),
        "approx_kl": sum(kl_terms) / n,
        "clipfrac": sum(clip_terms) / n,
    }
    return policy_loss + vf_coef * value_loss, info


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("dtype", MASK_DTYPES)
@pytest.mark.parametrize("mask", [RAGGED_MASK, PROMPT_MASK, RAGGED_MASK[1:2], torch.ones(6, 7)])
def test_ppo_losses_and_their_gradients_follow_the_plain_loop(mask, dtype, garbage):
    inputs = ppo_inputs(mask, garbage)
    before = {name: x.detach().clone() for name, x in inputs.items()}
    total, info = ppo_losses(**inputs, mask=mask.to(dtype), **COEFFICIENTS)
    expected_total, expected_info = ppo_oracle(inputs, mask, **COEFFICIENTS)
    assert total.shape == ()
    assert info == pytest.approx(expected_info, rel=1e-6)
    assert total.item() == pytest.approx(info["policy_loss"] + 0.7 * info["value_loss"])
    assert all(type(value) is float for value in info.values())

    trained = [inputs["new_logprobs"], inputs["new_values"]]
    expected_gradients = torch.autograd.grad(expected_total, trained)
    total.backward()
    for argument, expected in zip(trained, expected_gradients, strict=True):
        torch.testing.assert_close(argument.grad, expected)
        assert (argument.grad[mask == 0] == 0).all()
    for name in ("old_logprobs", "advantages", "old_values", "returns"):
        assert inputs[name].grad is None, f"gradient reaches {name}"
    assert all(torch.equal(x, before[name]) for name, x in inputs.items())


def test_the_inputs_reach_every_branch():
    """Of the test above: each side of each clip, binding and not."""
    mask = torch.ones(6, 7)
    x = {name: tensor.detach() for name, tensor in ppo_inputs(mask).items()}
    ratio, step = (x["new_logprobs"] - x["old_logprobs"]).exp(), x["new_values"] - x["old_values"]
    for above, positive in itertools.product([True, False], repeat=2):
        outside = (ratio > 1.1) if above else (ratio < 0.9)
        assert (outside & ((x["advantages"] > 0) == positive)).any()
        target_above = x["returns"] > x["new_values"]
        assert (((step > 0.3) if above else (step < -0.3)) & (target_above == positive)).any()
    assert ((ratio - 1).abs() < 0.1).any() and (step.abs() < 0.3).any()


@pytest.mark.parametrize("log_ratio, advantage, loss, slope", [
    (0.5, 2.0, -2.4, 0.0),  # already much likelier: no more to gain
    (0.5, -2.0, 2 * math.exp(0.5), 2 * math.exp(0.5)),  # likelier and bad: pushed back
    (-0.5, 2.0, -2 * math.exp(-0.5), -2 * math.exp(-0.5)),  # rarer and good: pulled back
    (-0.5, -2.0, 1.6, 0.0),  # already much rarer
])  # fmt: skip
def test_clipping_removes_the_incentive_not_the_correction(log_ratio, advantage, loss, slope):
    new_logprobs = torch.tensor([[log_ratio - 1]], requires_grad=True)
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    total, info = ppo_losses(new_logprobs, zero - 1, advantage * one, zero, zero, zero, one)
    total.backward()
    assert info["policy_loss"] == pytest.approx(loss) == total.item()
    assert new_logprobs.grad.item() == pytest.approx(slope)
    assert info["clipfrac"] == 1


@pytest.mark.parametrize("new, target, loss, slope", [
    (0.5, 1.0, 0.32, 0.0),  # moved towards the target and past the clip: stop there
    (0.5, -1.0, 1.125, 1.5),  # moved away: full error
    (-0.5, -1.0, 0.32, 0.0),
    (0.1, 1.0, 0.405, -0.9),
])  # fmt: skip
def test_value_clipping_is_pessimistic(new, target, loss, slope):
    new_values = torch.tensor([[new]], requires_grad=True)
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    total, info = ppo_losses(
        zero, zero, zero, new_values, zero, target * one, one, vf_coef=2.0, clip_range=0.01
    )
    total.backward()
    assert info["value_loss"] == pytest.approx(loss) and total.item() == pytest.approx(2 * loss)
    assert new_values.grad.item() == pytest.approx(2 * slope)


def test_convention_g_approx_kl_is_never_negative_and_estimates_the_kl():
    """In expectation over the old policy, on an enumerated vocabulary, it is KL(old policy, new policy)."""
    old, new = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.4, 0.25, 0.35])
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    expectation = 0.0
    for p, q in zip(old, new, strict=True):
        _, info = ppo_losses(q.log().reshape(1, 1), p.log().reshape(1, 1), one, zero, zero, zero, one)
        assert info["approx_kl"] > 0
        expectation += p.item() * info["approx_kl"]
    assert expectation == pytest.approx((old * (old / new).log()).sum().item(), rel=1e-5)


def test_on_policy_nothing_is_clipped_and_the_advantages_are_used_as_given():
    inputs = ppo_inputs(RAGGED_MASK)
    inputs["old_logprobs"] = inputs["new_logprobs"].detach().clone()
    _, info = ppo_losses(**inputs, mask=RAGGED_MASK)
    assert info["approx_kl"] == info["clipfrac"] == 0
    assert info["policy_loss"] == pytest.approx(-inputs["advantages"][RAGGED_MASK.bool()].mean().item())


def test_defaults_of_the_losses_are_those_of_the_course():
    inputs = ppo_inputs(RAGGED_MASK)
    total, info = ppo_losses(**inputs, mask=RAGGED_MASK)
    expected = ppo_losses(**inputs, mask=RAGGED_MASK, clip_range=0.2, clip_range_value=0.2, vf_coef=0.5)
    assert (total, info) == expected


# --- 3.5 response_mask ---


def test_convention_a_the_first_eos_is_part_of_the_response():
    rows = {
        (5, 6, 0, 0, 0): [1, 1, 1, 0, 0],  # then pads, which are EOS too
        (5, 6, 0, 7, 0): [1, 1, 1, 0, 0],
        (0, 5, 6, 7, 8): [1, 0, 0, 0, 0],
        (5, 6, 7, 8, 0): [1, 1, 1, 1, 1],
        (5, 6, 7, 8, 9): [1, 1, 1, 1, 1],  # cut at its limit
        (0, 0, 0, 0, 0): [1, 0, 0, 0, 0],
    }
    ids = torch.tensor(list(rows))
    assert response_mask(ids, eos_id=0).tolist() == list(rows.values())
    assert ids.tolist() == [list(row) for row in rows]
    for row, mask in rows.items():
        assert response_mask(torch.tensor([row]), eos_id=0).tolist() == [mask]


def test_response_mask_knows_eos_and_nothing_else():
    mask = response_mask(torch.tensor([[0, 9, 3, 0], [0, 0, 0, 0]]), eos_id=3)
    assert mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]] and mask.dtype == torch.long


# --- 3.5 rollout ---

PROMPTS = [
    "there is a garden and the weather",
    "soup",
    "the <|endoftext|> room",  # EOS is no end here
    "今天的天气",
    "kindness is",
    "!",
] * 2
MAX_NEW_TOKENS = 6


def score_by_tokens(full_ids, full_mask):
    """A reward that depends on every real token, and on its place."""
    places = torch.arange(full_ids.shape[1], 0, -1)
    return (full_ids % 7 * full_mask * places).float().mean(dim=1) / 5


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


@pytest.fixture
def ref_policy(policy):
    return other_policy(policy)


@pytest.fixture
def sampled(policy, ref_policy, padded_tokenizer):
    return rollout(policy, ref_policy, score_by_tokens, padded_tokenizer, PROMPTS, MAX_NEW_TOKENS)


@pytest.fixture
def gpt2_sampled(gpt2_policy, padded_tokenizer):
    """Six tokens at most, with responses that end before and responses that are cut."""
    batch = rollout(
        gpt2_policy, other_policy(gpt2_policy), score_by_tokens, padded_tokenizer, PROMPTS, MAX_NEW_TOKENS
    )
    lengths = batch.response_mask.sum(dim=1)
    assert lengths.max() == MAX_NEW_TOKENS and len(set(lengths.tolist())) >= 3
    return batch


def test_convention_e_every_per_token_tensor_covers_the_response(sampled):
    batch, length = len(PROMPTS), sampled.response_mask.shape[1]
    assert length <= MAX_NEW_TOKENS
    for name in ("old_logprobs", "ref_logprobs", "old_values", "response_mask"):
        assert getattr(sampled, name).shape == (batch, length), name
    assert sampled.full_ids.shape == sampled.full_mask.shape and sampled.full_ids.shape[0] == batch
    assert sampled.rm_score.shape == (batch,) and len(sampled.texts) == batch
    tensors = [value for value in vars(sampled).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 7 and not any(tensor.requires_grad for tensor in tensors)


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_layout_is_left_pad_prompt_response_right_pad(gpt2_policy, padded_tokenizer, padding_side):
    """Whatever the tokenizer's own side, which stays as it is. The pad token here is not the EOS token."""
    padded_tokenizer.pad_token, padded_tokenizer.padding_side = "?", padding_side
    batch = rollout(gpt2_policy, gpt2_policy, score_by_tokens, padded_tokenizer, PROMPTS, MAX_NEW_TOKENS)
    assert padded_tokenizer.padding_side == padding_side
    pad_id, eos_id = padded_tokenizer.pad_token_id, padded_tokenizer.eos_token_id
    prompt_width = max(len(ids_of(padded_tokenizer, prompt)) for prompt in PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        prompt_ids = ids_of(padded_tokenizer, prompt)
        n_left = prompt_width - len(prompt_ids)
        response = batch.full_ids[row, prompt_width:].tolist()
        n_response = response.index(eos_id) + 1 if eos_id in response else len(response)
        n_right = len(response) - n_response
        ids = [pad_id] * n_left + prompt_ids + response[:n_response] + [pad_id] * n_right
        assert batch.full_ids[row].tolist() == ids
        assert (
            batch.full_mask[row].tolist()
            == [0] * n_left + [1] * (len(prompt_ids) + n_response) + [0] * n_right
        )
        assert batch.response_mask[row].tolist() == [1] * n_response + [0] * n_right
        assert batch.texts[row] == padded_tokenizer.decode(response[:n_response], skip_special_tokens=True)


def test_convention_a_masks_of_a_rollout_count_the_eos(gpt2_sampled, padded_tokenizer):
    """Pad is EOS: the first in a response is real, and one in the prompt neither ends it nor is padding."""
    length = gpt2_sampled.response_mask.shape[1]
    prompt_mask, response_ids = gpt2_sampled.full_mask[:, :-length], gpt2_sampled.full_ids[:, -length:]
    assert prompt_mask.sum(dim=1).tolist() == [len(ids_of(padded_tokenizer, prompt)) for prompt in PROMPTS]
    for ids, mask in zip(response_ids.tolist(), gpt2_sampled.response_mask.tolist(), strict=True):
        n_valid = ids.index(0) + 1 if 0 in ids else length
        assert mask == [1] * n_valid + [0] * (length - n_valid)
    assert torch.equal(gpt2_sampled.full_mask[:, -length:], gpt2_sampled.response_mask)


def unpadded_reading(policy, batch, tokenizer):
    """Log-probabilities and values of each response from a pass over its row alone, without any padding."""
    length = batch.response_mask.shape[1]
    logprobs, values = torch.zeros(len(PROMPTS), length), torch.zeros(len(PROMPTS), length)
    for row, prompt in enumerate(PROMPTS):
        prompt_ids = ids_of(tokenizer, prompt)
        n_valid = int(batch.response_mask[row].sum())
        response_ids = batch.full_ids[row, -length:][:n_valid].tolist()
        with torch.no_grad():
            logits, row_values = read_row(policy, prompt_ids + response_ids)
        for t, token in enumerate(response_ids):
            before = len(prompt_ids) + t - 1  # the last position that has not seen the token yet
            logprobs[row, t] = logits[before].log_softmax(dim=-1)[token]
            values[row, t] = row_values[before]
    return logprobs, values


def test_convention_h_a_rollout_reads_each_row_as_if_it_stood_alone(
    sampled, policy, ref_policy, padded_tokenizer
):
    valid = sampled.response_mask.bool()
    logprobs, values = unpadded_reading(policy, sampled, padded_tokenizer)
    ref_logprobs, _ = unpadded_reading(ref_policy, sampled, padded_tokenizer)
    assert (logprobs - ref_logprobs).abs().mean() > 0.05 and values[valid].std() > 0.1
    torch.testing.assert_close(sampled.old_logprobs[valid], logprobs[valid], rtol=0, atol=1e-4)
    torch.testing.assert_close(sampled.ref_logprobs[valid], ref_logprobs[valid], rtol=0, atol=1e-4)
    torch.testing.assert_close(sampled.old_values[valid], values[valid], rtol=0, atol=1e-4)


def test_reward_is_asked_once_for_the_whole_batch(policy, padded_tokenizer):
    calls = []

    def reward_fn(full_ids, full_mask):
        calls.append((full_ids.clone(), full_mask.clone()))
        return score_by_tokens(full_ids, full_mask)

    batch = rollout(policy, policy, reward_fn, padded_tokenizer, PROMPTS, MAX_NEW_TOKENS)
    ((full_ids, full_mask),) = calls
    assert torch.equal(full_ids, batch.full_ids) and torch.equal(full_mask, batch.full_mask)
    assert torch.equal(batch.rm_score, score_by_tokens(full_ids, full_mask))


def test_a_reward_model_is_a_reward_function(policy, model_folder, padded_tokenizer):
    """Its score of a left-padded rollout is that of the text alone."""
    reward_model = RewardModel(model_folder).eval()
    batch = rollout(policy, policy, reward_model, padded_tokenizer, PROMPTS, MAX_NEW_TOKENS)
    assert batch.rm_score.shape == (len(PROMPTS),) and not batch.rm_score.requires_grad
    for row in range(len(PROMPTS)):
        text = batch.full_ids[row][batch.full_mask[row].bool()][None]
        with torch.no_grad():
            alone = reward_model(text, torch.ones_like(text))
        torch.testing.assert_close(batch.rm_score[row : row + 1], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("max_new_tokens", [1, 4])
def test_a_batch_of_one(policy, padded_tokenizer, max_new_tokens):
    batch = rollout(policy, policy, score_by_tokens, padded_tokenizer, ["the soup"], max_new_tokens)
    assert batch.old_logprobs.shape == batch.old_values.shape == batch.response_mask.shape
    assert batch.old_logprobs.shape[0] == 1 and 1 <= batch.old_logprobs.shape[1] <= max_new_tokens
    assert batch.rm_score.shape == (1,)


def test_rollout_stops_when_all_responses_have_ended(gpt2_policy, padded_tokenizer):
    with torch.no_grad():  # EOS is all but certain
        eos = gpt2_policy.lm.get_input_embeddings().weight[padded_tokenizer.eos_token_id]
        gpt2_policy.lm.base_model.ln_f.bias += 40 * eos / eos.square().sum()
    batch = rollout(gpt2_policy, gpt2_policy, score_by_tokens, padded_tokenizer, PROMPTS, MAX_NEW_TOKENS)
    assert batch.response_mask.tolist() == [[1]] * len(PROMPTS)
    assert batch.texts == [""] * len(PROMPTS)


def test_prompts_get_no_special_tokens(gpt2_policy, bos_tokenizer):
    bos_tokenizer.pad_token = bos_tokenizer.eos_token
    batch = rollout(gpt2_policy, gpt2_policy, score_by_tokens, bos_tokenizer, ["the soup"], 3)
    prompt_ids = ids_of(bos_tokenizer, "the soup")
    assert batch.full_ids[0, : len(prompt_ids)].tolist() == prompt_ids
    assert batch.full_ids.shape[1] == len(prompt_ids) + batch.response_mask.shape[1]


def modes(module):
    return {name: submodule.training for name, submodule in module.named_modules()}


@pytest.mark.parametrize("set_mode", ["train", "eval", "as_loaded"])
def test_rollout_leaves_the_training_mode_as_it_was(gpt2_folder, padded_tokenizer, set_mode):
    policy = PolicyWithValueHead(gpt2_folder)
    if set_mode != "as_loaded":
        getattr(policy, set_mode)()
    before = modes(policy)
    rollout(policy, copy.deepcopy(policy), score_by_tokens, padded_tokenizer, PROMPTS[:2], 2)
    assert modes(policy) == before


def test_rollout_changes_no_weight_and_leaves_no_gradient(policy, ref_policy, padded_tokenizer):
    before = [copy.deepcopy(model.state_dict()) for model in (policy, ref_policy)]
    rollout(policy, ref_policy, score_by_tokens, padded_tokenizer, PROMPTS, MAX_NEW_TOKENS)
    for model, state in zip((policy, ref_policy), before, strict=True):
        assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())


def test_a_seed_gives_the_same_responses_twice(gpt2_policy, padded_tokenizer):
    texts = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        texts.append(rollout(gpt2_policy, gpt2_policy, score_by_tokens, padded_tokenizer, PROMPTS, 6).texts)
    assert texts[0] == texts[1] != texts[2]


# --- 3.5, convention i: the sampling distribution ---


def record_sampling(monkeypatch):
    """The probabilities that each token of a rollout is drawn from."""
    multinomial, drawn_from = torch.multinomial, []

    def recorder(probabilities, *args, **kwargs):
        drawn_from.append(probabilities.clone())
        return multinomial(probabilities, *args, **kwargs)

    monkeypatch.setattr(torch, "multinomial", recorder)
    return drawn_from


def assert_sampled_from(policy, batch, drawn_from, tokenizer):
    """Every token, of every row, was drawn from what the policy says of that row alone."""
    length = batch.response_mask.shape[1]
    assert len(drawn_from) == length
    for row, prompt in enumerate(PROMPTS):
        prompt_ids = ids_of(tokenizer, prompt)
        n_valid = int(batch.response_mask[row].sum())
        with torch.no_grad():
            logits, _ = read_row(policy, prompt_ids + batch.full_ids[row, -length:][:n_valid].tolist())
        expected = logits[len(prompt_ids) - 1 : -1].softmax(dim=-1)
        got = torch.stack([probabilities[row] for probabilities in drawn_from[:n_valid]])
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_convention_i_rollouts_sample_the_policy_itself(policy, padded_tokenizer, monkeypatch):
    """More than 50 tokens with a heavy tail: neither a temperature nor top-k nor top-p stays unseen."""
    drawn_from = record_sampling(monkeypatch)
    batch = rollout(policy, policy, score_by_tokens, padded_tokenizer, PROMPTS, MAX_NEW_TOKENS)
    assert_sampled_from(policy, batch, drawn_from, padded_tokenizer)
    assert all(p.sort(descending=True).values[:, 50:].sum(dim=1).max() > 0.15 for p in drawn_from)


HABITS = [
    {"top_k": 5},
    {"top_p": 0.5},
    {"temperature": 0.5},
    {"repetition_penalty": 1.3},
    {"top_k": 20, "top_p": 0.9, "temperature": 0.6, "repetition_penalty": 1.3},
    {"min_p": 0.05},
    {"no_repeat_ngram_size": 1},
    {"min_new_tokens": 3},
]


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: "+".join(habit))
def test_convention_i_what_a_checkpoint_recommends_for_sampling_is_not_the_policy(
    gpt2_folder, padded_tokenizer, tmp_path, monkeypatch, habit
):
    """A generation_config.json that comes with a checkpoint must not reach the rollout."""
    model = AutoModelForCausalLM.from_pretrained(gpt2_folder)
    model.generation_config = GenerationConfig(do_sample=True, **habit)
    model.save_pretrained(tmp_path)
    policy = PolicyWithValueHead(tmp_path).eval()
    drawn_from = record_sampling(monkeypatch)
    batch = rollout(policy, policy, score_by_tokens, padded_tokenizer, PROMPTS, MAX_NEW_TOKENS)
    assert_sampled_from(policy, batch, drawn_from, padded_tokenizer)


def test_convention_i_sampled_tokens_have_the_policys_distribution(gpt2_policy, padded_tokenizer):
    """What comes out, counted: total variation between the first tokens of many rollouts and the softmax."""
    n_samples, prompt = 3000, "the soup"
    with torch.no_grad():
        expected = read_row(gpt2_policy, ids_of(padded_tokenizer, prompt))[0][-1].softmax(dim=-1)
    uniform = torch.full_like(expected, 1 / len(expected))
    assert 0.5 * (expected - uniform).abs().sum() > 0.4
    batch = rollout(gpt2_policy, gpt2_policy, score_by_tokens, padded_tokenizer, [prompt] * n_samples, 1)
    shares = torch.bincount(batch.full_ids[:, -1], minlength=len(expected)) / n_samples
    assert 0.5 * (shares - expected).abs().sum() < 0.13


# --- 3.5 ppo_step ---


def sgd(policy, lr):
    return torch.optim.SGD(policy.parameters(), lr=lr)


def record_calls(monkeypatch, name):
    """Calls of a function of the module: a list of `(arguments by name, result)`."""
    function, calls = getattr(ppo, name), []
    signature = inspect.signature(function)

    def recorder(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        result = function(*args, **kwargs)
        calls.append((bound.arguments, result))
        return result

    monkeypatch.setattr(ppo, name, recorder)
    return calls


def test_convention_f_ratio_is_1_before_the_first_update(gpt2_folder, padded_tokenizer, monkeypatch):
    """Although the model has dropout 0.1 and the user has switched it on, before and in between."""
    policy = PolicyWithValueHead(gpt2_folder)
    assert any(isinstance(m, nn.Dropout) and m.p == 0.1 for m in policy.modules())
    ref_policy = copy.deepcopy(policy)
    policy.train()
    batch = rollout(policy, ref_policy, score_by_tokens, padded_tokenizer, PROMPTS, MAX_NEW_TOKENS)
    policy.train()
    calls = record_calls(monkeypatch, "ppo_losses")
    info = ppo_step(policy, sgd(policy, 0.0), batch, ppo_epochs=2)
    for arguments, _ in calls:
        log_ratio = arguments["new_logprobs"] - batch.old_logprobs
        assert log_ratio[batch.response_mask.bool()].exp().sub(1).abs().max() < 1e-5
    assert info["approx_kl"] < 1e-9 and info["clipfrac"] == 0
    assert info["kl_to_ref"] == pytest.approx(0, abs=1e-4)


def test_convention_f_dropout_is_off_in_the_reference_too(gpt2_policy, padded_tokenizer):
    ref_policy = copy.deepcopy(gpt2_policy).train()
    batch = rollout(gpt2_policy, ref_policy, score_by_tokens, padded_tokenizer, PROMPTS, MAX_NEW_TOKENS)
    valid = batch.response_mask.bool()
    torch.testing.assert_close(batch.ref_logprobs[valid], batch.old_logprobs[valid])


def test_a_learning_rate_of_zero_leaves_the_weights(policy, sampled):
    before = copy.deepcopy(policy.state_dict())
    ppo_step(policy, torch.optim.AdamW(policy.parameters(), lr=0.0), sampled)
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())


class RecordingSGD(torch.optim.SGD):
    """Notes the gradient that each of its steps sees."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr)
        self.gradients = []

    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.gradients.append(torch.cat([p.grad.flatten().clone() for p in parameters]))
        return super().step(closure)


@pytest.mark.parametrize("ppo_epochs", [1, 3])
def test_every_epoch_is_one_step_on_its_own_gradient(policy, sampled, ppo_epochs):
    """Weights that stand still give the same gradient each time, whatever the parameters held before."""
    for parameter in policy.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    optim = RecordingSGD(policy.parameters(), lr=0.0)
    ppo_step(policy, optim, sampled, ppo_epochs=ppo_epochs, max_grad_norm=1e9)
    assert len(optim.gradients) == ppo_epochs
    assert optim.gradients[0].norm() < 1e3
    for gradient in optim.gradients:
        torch.testing.assert_close(gradient, optim.gradients[0])


def test_gradient_norm_is_clipped(policy, sampled):
    norms = {}
    for limit in (1e9, 0.3, 0.01):
        optim = RecordingSGD(policy.parameters(), lr=0.0)
        ppo_step(policy, optim, sampled, ppo_epochs=1, max_grad_norm=limit)
        norms[limit] = optim.gradients[0].norm().item()
    assert norms[1e9] > 1.5
    assert norms[0.3] == pytest.approx(0.3, rel=1e-3) and norms[0.01] == pytest.approx(0.01, rel=1e-3)
    default = RecordingSGD(policy.parameters(), lr=0.0)
    ppo_step(policy, default, sampled, ppo_epochs=1)
    assert default.gradients[0].norm().item() == pytest.approx(1.0, rel=1e-3)


def test_advantages_are_computed_once_and_reused(policy, sampled, monkeypatch):
    calls = {
        name: record_calls(monkeypatch, name)
        for name in ("shape_token_rewards", "compute_gae", "masked_whiten", "ppo_losses")
    }
    ppo_step(policy, sgd(policy, 0.05), sampled, ppo_epochs=3)
    assert {name: len(made) for name, made in calls.items()} == {
        "shape_token_rewards": 1,
        "compute_gae": 1,
        "masked_whiten": 1,
        "ppo_losses": 3,
    }
    epochs = [arguments for arguments, _ in calls["ppo_losses"]]
    for name in ("advantages", "returns", "old_logprobs", "old_values", "mask"):
        assert all(torch.equal(epoch[name], epochs[0][name]) for epoch in epochs), name
    for name in ("new_logprobs", "new_values"):
        assert not torch.allclose(epochs[0][name], epochs[2][name]), name
    assert torch.equal(epochs[0]["old_logprobs"], sampled.old_logprobs)
    assert torch.equal(epochs[0]["old_values"], sampled.old_values)


def test_advantages_are_white_and_returns_are_not(policy, sampled, monkeypatch):
    calls = record_calls(monkeypatch, "ppo_losses")
    ppo_step(policy, sgd(policy, 0.0), sampled, ppo_epochs=1, kl_coef=0.4)
    ((arguments, _),) = calls
    mask = sampled.response_mask
    shaped = shaped_oracle(sampled.rm_score, sampled.old_logprobs, sampled.ref_logprobs, mask, 0.4)
    advantages, returns = gae_oracle(shaped, sampled.old_values, mask, 1.0, 0.95)
    valid = advantages[mask.bool()]
    white = (advantages - valid.mean()) / valid.std(correction=0)
    torch.testing.assert_close(arguments["advantages"][mask.bool()], white[mask.bool()], rtol=0, atol=1e-4)
    torch.testing.assert_close(arguments["returns"][mask.bool()], returns[mask.bool()], rtol=0, atol=1e-4)


def test_every_coefficient_reaches_its_place(policy, sampled, monkeypatch):
    losses, shaping = (
        record_calls(monkeypatch, "ppo_losses"),
        record_calls(monkeypatch, "shape_token_rewards"),
    )
    ppo_step(policy, sgd(policy, 0.0), sampled, 1, 0.11, 0.22, 0.33, 0.44, 0.55)
    assert shaping[0][0]["kl_coef"] == 0.33
    assert {name: losses[0][0][name] for name in COEFFICIENTS} == {
        "clip_range": 0.11,
        "clip_range_value": 0.22,
        "vf_coef": 0.44,
    }
    defaults = {name: p.default for name, p in inspect.signature(ppo_step).parameters.items()}
    assert [defaults[name] for name in list(defaults)[3:]] == [4, 0.2, 0.2, 0.05, 0.5, 1.0]


def test_convention_e_the_update_reads_through_the_same_window(
    policy, sampled, padded_tokenizer, monkeypatch
):
    """New log-probabilities and values, too, are those of each row alone."""
    calls = record_calls(monkeypatch, "ppo_losses")
    updated = other_policy(policy)
    ppo_step(updated, sgd(updated, 0.0), sampled, ppo_epochs=1)
    ((arguments, _),) = calls
    valid = sampled.response_mask.bool()
    logprobs, values = unpadded_reading(updated, sampled, padded_tokenizer)
    torch.testing.assert_close(arguments["new_logprobs"][valid], logprobs[valid], rtol=0, atol=1e-4)
    torch.testing.assert_close(arguments["new_values"][valid], values[valid], rtol=0, atol=1e-4)
    assert arguments["new_values"].shape == sampled.old_values.shape


def test_ppo_step_equals_the_same_update_written_out(gpt2_policy, gpt2_sampled, padded_tokenizer):
    """From shaping to the weights, off-policy from the start, against the plain loops of this file."""
    settings = {"clip_range": 0.1, "clip_range_value": 0.3, "vf_coef": 0.7}
    policy = other_policy(gpt2_policy)
    expected = copy.deepcopy(policy)
    start = copy.deepcopy(policy.state_dict())
    batch, mask, length = gpt2_sampled, gpt2_sampled.response_mask, gpt2_sampled.response_mask.shape[1]
    info = ppo_step(policy, sgd(policy, 0.1), batch, ppo_epochs=3, kl_coef=0.4, max_grad_norm=0.5, **settings)

    shaped = shaped_oracle(batch.rm_score, batch.old_logprobs, batch.ref_logprobs, mask, 0.4)
    advantages, returns = gae_oracle(shaped, batch.old_values, mask, 1.0, 0.95)
    valid = advantages[mask.bool()]
    optim = sgd(expected, 0.1)
    for _ in range(3):
        logits, values = expected(batch.full_ids, batch.full_mask)
        inputs = {
            "new_logprobs": gather_logprobs(logits, batch.full_ids)[:, -length:],
            "old_logprobs": batch.old_logprobs,
            "advantages": (advantages - valid.mean()) / valid.std(correction=0),
            "new_values": values[:, -length - 1 : -1],
            "old_values": batch.old_values,
            "returns": returns,
        }
        loss, expected_info = ppo_oracle(inputs, mask, **settings)
        optim.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.5)
        optim.step()

    assert {name: info[name] for name in expected_info} == pytest.approx(expected_info, rel=1e-3, abs=1e-5)
    moved = sum((tensor - start[name]).square().sum() for name, tensor in policy.state_dict().items()).sqrt()
    assert moved > 0.05
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(policy.state_dict()[name], tensor, rtol=0, atol=1e-5)


def test_info_reports_score_and_kl_of_the_rollout(policy, sampled):
    info = ppo_step(policy, sgd(policy, 0.01), sampled, ppo_epochs=2)
    assert set(info) == {"policy_loss", "value_loss", "approx_kl", "clipfrac", "mean_reward", "kl_to_ref"}
    assert all(type(value) is float for value in info.values())
    assert info["mean_reward"] == pytest.approx(sampled.rm_score.mean().item())
    sums = [
        sum(
            (sampled.old_logprobs[row, t] - sampled.ref_logprobs[row, t]).item()
            for t in range(sampled.response_mask.shape[1])
            if sampled.response_mask[row, t]
        )
        for row in range(len(PROMPTS))
    ]
    assert info["kl_to_ref"] == pytest.approx(sum(sums) / len(sums), abs=1e-4)


def test_padding_of_a_rollout_does_not_reach_the_update(gpt2_policy, gpt2_sampled):
    """Garbage after the end of a response, in ids, log-probabilities and values, changes nothing."""
    dirty = copy.deepcopy(gpt2_sampled)
    pads = dirty.response_mask == 0
    assert pads.any()
    for name, garbage in (("old_logprobs", -1e3), ("ref_logprobs", 1e3), ("old_values", 1e6)):
        getattr(dirty, name)[pads] = garbage
    dirty.full_ids[dirty.full_mask == 0] = 17
    policies = [copy.deepcopy(gpt2_policy) for _ in range(2)]
    infos = [
        ppo_step(p, sgd(p, 0.1), batch) for p, batch in zip(policies, (gpt2_sampled, dirty), strict=True)
    ]
    assert infos[0] == pytest.approx(infos[1], rel=1e-4, abs=1e-6)
    for one, other in zip(policies[0].parameters(), policies[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_ppo_step_leaves_the_rollout_alone(policy, sampled):
    before = copy.deepcopy(vars(sampled))
    ppo_step(policy, sgd(policy, 0.1), sampled)
    for name, value in vars(sampled).items():
        assert value == before[name] if name == "texts" else torch.equal(value, before[name]), name


# --- 4 train_ppo ---


def ends_in_time(full_ids, full_mask):
    """1 for a response that ended by itself: the last column is its EOS, or padding, which is EOS too."""
    return (full_ids[:, -1] == 0).float()


def short_run(policy, ref_policy, tokenizer, lr=1e-3, **settings):
    settings = {"n_steps": 3, "batch_size": 5, "max_new_tokens": 4} | settings
    optim = torch.optim.Adam(policy.parameters(), lr=lr)
    return train_ppo(policy, ref_policy, ends_in_time, tokenizer, PROMPTS[:3], optim, **settings)


def test_train_ppo_reports_every_step(policy, ref_policy, padded_tokenizer):
    seen = []
    history = short_run(
        policy, ref_policy, padded_tokenizer, on_step=lambda info, batch: seen.append((info, batch))
    )
    assert len(history) == 3 and [info for info, _ in seen] == history
    for info, batch in seen:
        assert set(info) >= {"policy_loss", "value_loss", "approx_kl", "clipfrac", "mean_reward", "kl_to_ref"}
        assert batch.rm_score.shape == (5,) and batch.response_mask.shape[1] <= 4
        assert info["mean_reward"] == pytest.approx(batch.rm_score.mean().item())


def test_the_frozen_reference_stays_as_it_was_and_the_policy_moves(policy, padded_tokenizer):
    ref_policy = copy.deepcopy(policy)
    before = copy.deepcopy(ref_policy.state_dict())
    history = short_run(policy, ref_policy, padded_tokenizer, lr=1e-2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in ref_policy.state_dict().items())
    assert all(not torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())
    assert history[0]["kl_to_ref"] == pytest.approx(0, abs=1e-4)
    assert abs(history[-1]["kl_to_ref"]) > 1e-3


def test_settings_of_a_run_reach_rollout_and_update(policy, ref_policy, padded_tokenizer, monkeypatch):
    rollouts, steps = record_calls(monkeypatch, "rollout"), record_calls(monkeypatch, "ppo_step")
    short_run(policy, ref_policy, padded_tokenizer, n_steps=2, ppo_epochs=2, kl_coef=0.33)
    for (arguments, batch), (step_arguments, _) in zip(rollouts, steps, strict=True):
        assert arguments["policy"] is step_arguments["policy"] is policy
        assert arguments["ref_policy"] is ref_policy
        assert (arguments["max_new_tokens"], len(arguments["prompts"])) == (4, 5)
        assert (step_arguments["ppo_epochs"], step_arguments["kl_coef"]) == (2, 0.33)
        assert step_arguments["rollout"] is batch


def test_prompts_are_drawn_anew_for_every_step(policy, padded_tokenizer, monkeypatch):
    rollouts = record_calls(monkeypatch, "rollout")
    short_run(policy, policy, padded_tokenizer, n_steps=6, ppo_epochs=1, max_new_tokens=1)
    drawn = [tuple(arguments["prompts"]) for arguments, _ in rollouts]
    assert len(set(drawn)) > 1 and {prompt for batch in drawn for prompt in batch} == set(PROMPTS[:3])


def test_a_seed_gives_the_same_run_twice(gpt2_folder, padded_tokenizer):
    histories = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        policy = PolicyWithValueHead(gpt2_folder)
        histories.append(short_run(policy, copy.deepcopy(policy), padded_tokenizer))
    assert histories[0] == histories[1] != histories[2]


def test_training_raises_the_reward(gpt2_folder, padded_tokenizer):
    policy = PolicyWithValueHead(gpt2_folder)
    history = short_run(
        policy, copy.deepcopy(policy), padded_tokenizer, n_steps=10, batch_size=32, max_new_tokens=3
    )
    rewards = [info["mean_reward"] for info in history]
    assert rewards[0] < 0.7 and sum(rewards[-3:]) / 3 > 0.9
