"""A batch in several passes: the same numbers and the same gradients, one pass's activations at a time."""

import copy

import pytest
import torch

from rlhf_lab import backbones
from rlhf_lab.passes import in_passes
from rlhf_lab.profiles import Profile
from rlhf_lab.taught_code import load_code

PROFILES = {
    "passes": Profile("passes", card=8, batch=5, rows=2, checkpointing=False),
    "layers": Profile("layers", card=8, batch=5, rows=5, checkpointing=True),
    "both": Profile("both", card=8, batch=5, rows=2, checkpointing=True),
}
ROWS, LENGTH = 5, 12  # the last pass is shorter than the others


@pytest.fixture
def code():
    return load_code("solutions")


@pytest.fixture
def batch():
    mask = torch.ones(ROWS, LENGTH, dtype=torch.long)
    mask[1, :3] = mask[3, :5] = 0
    return torch.randint(1, 300, (ROWS, LENGTH)), mask


def gradients_of(model, read):
    """What `read(model)` returns, and the gradient of a number that depends on all of it."""
    model.zero_grad()
    outputs = read(model)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum(output.square().mean() for output in outputs).backward()
    return [output.detach() for output in outputs], {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def assert_same(model, read, profile):
    plain, plain_gradients = gradients_of(model, read)
    with in_passes(profile, model):
        split, split_gradients = gradients_of(model, read)
    for ours, theirs in zip(split, plain, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    assert plain_gradients.keys() == split_gradients.keys() and len(plain_gradients) > 10
    for name, gradient in plain_gradients.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(
            split_gradients[name], gradient, atol=1e-6 * max(scale, 1), rtol=1e-5, msg=name
        )


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_a_policy_says_the_same_in_passes_and_learns_the_same(code, model_folder, batch, profile):
    policy = code.ppo.PolicyWithValueHead(str(model_folder))
    with torch.no_grad():  # a value head that says something
        policy.value_head[-1].weight.normal_()
    assert_same(policy, lambda model: model(*batch, logits_to_keep=6), profile)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_sft_and_the_reward_model_say_the_same_in_passes_too(code, model_folder, batch, profile):
    """With a call by name and a cache, as `train_sft` does; in eval mode, since dropout would draw other masks."""
    ids, mask = batch
    language_model = backbones.load_causal_lm(model_folder)
    assert_same(language_model, lambda model: model(input_ids=ids, attention_mask=mask).logits, profile)
    assert_same(code.reward_model.RewardModel(str(model_folder)).eval(), lambda m: m(*batch), profile)


def test_a_layer_that_is_computed_again_drops_out_the_same_numbers(gpt2_folder, batch):
    """In training mode the gradient belongs to the masks that the forward pass drew."""
    ids, mask = batch
    model = backbones.load_causal_lm(gpt2_folder).train()

    def read(model):
        torch.manual_seed(3)
        return model(input_ids=ids, attention_mask=mask).logits

    assert_same(model, read, PROFILES["layers"])


def test_a_ppo_step_in_passes_leaves_the_same_weights(code, gpt2_folder, padded_tokenizer):
    prompts = ["there", "the weather is", "the soup was warm and", "kindness", "the garden"]
    policy = code.ppo.PolicyWithValueHead(str(gpt2_folder))
    reference = copy.deepcopy(policy)
    batch = code.ppo.rollout(
        policy, reference, lambda ids, mask: mask.sum(-1) / 10, padded_tokenizer, prompts, 6
    )
    weights = []
    for profile in (None, PROFILES["both"]):
        own = copy.deepcopy(policy)
        with in_passes(profile, own):
            info = code.ppo.ppo_step(own, torch.optim.SGD(own.parameters(), lr=0.05), batch, ppo_epochs=3)
        assert info["approx_kl"] > 1e-5, "without a real step the comparison would be empty"
        weights.append(list(own.parameters()))
    for ours, theirs in zip(*weights, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_each_pass_has_at_most_the_profiles_rows_and_generation_has_the_whole_batch(
    code, gpt2_folder, padded_tokenizer
):
    policy = code.ppo.PolicyWithValueHead(str(gpt2_folder))
    seen = []
    policy.lm.register_forward_pre_hook(
        lambda _lm, _args, named: seen.append((len(named["input_ids"]), named["use_cache"])), with_kwargs=True
    )
    with in_passes(PROFILES["both"], policy):
        code.ppo.rollout(policy, policy, lambda ids, mask: mask.sum(-1), padded_tokenizer, ["there"] * 5, 3)
    assert {rows for rows, cached in seen if cached} == {5}
    assert [rows for rows, cached in seen if not cached] == [2, 2, 1] * 2


def test_without_a_profile_and_after_it_nothing_is_changed(code, gpt2_folder):
    policy = code.ppo.PolicyWithValueHead(str(gpt2_folder))
    with in_passes(None, policy):
        assert not any("forward" in vars(module) for module in policy.modules())
    with in_passes(PROFILES["both"], policy):
        assert "forward" in vars(policy)
    assert not any("forward" in vars(module) for module in policy.modules())


def test_transformers_own_loss_is_not_put_together_from_unequal_passes(gpt2_folder, batch):
    ids, mask = batch
    labels = ids.masked_fill(mask == 0, -100)
    model = backbones.load_causal_lm(gpt2_folder)
    whole = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    with in_passes(PROFILES["passes"], model):
        assert model(input_ids=ids, attention_mask=mask, labels=labels).loss == whole
