"""Exercises 5.1 to 5.3: log-probabilities of whole responses, the DPO loss, and the training loop."""

import copy
import math

import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

from solutions.dpo import PreferenceDataset, dpo_loss, sequence_logprobs, train_dpo
from solutions.reward_model import RMDataset
from solutions.sft import IGNORE, build_sft_example, masked_ce_loss

PAIRS = [
    {"prompt": "the soup", "chosen": " was warm", "rejected": " was cold and grey"},
    {"prompt": "there is a garden", "chosen": " and the weather is lovely", "rejected": " and rain"},
    {"prompt": "今天的天气", "chosen": "很好", "rejected": "很很很"},
    {"prompt": "the room", "chosen": " is lovely", "rejected": " is cold"},
    {"prompt": "kindness", "chosen": " is there", "rejected": " is rare, rare, rare"},
]


# --- the data set ---


def test_pairs_are_laid_out_like_demonstrations(tokenizer):
    data = PreferenceDataset(PAIRS, tokenizer, 32)
    eos_id = tokenizer.eos_token_id
    assert len(data) == len(PAIRS) and data.dropped == 0 and tokenizer.pad_token == tokenizer.eos_token
    for item, row in zip((data[i] for i in range(len(data))), PAIRS, strict=True):
        for side in ("chosen", "rejected"):
            prompt_ids, response_ids = (
                tokenizer(row[column], add_special_tokens=False).input_ids for column in ("prompt", side)
            )
            expected = build_sft_example(prompt_ids, response_ids, eos_id, eos_id, 32)
            assert item[f"{side}_ids"].tolist() == expected["input_ids"]
            assert item[f"{side}_mask"].tolist() == expected["attention_mask"]
            assert item[f"{side}_labels"].tolist() == expected["labels"]
        assert all(column.dtype == torch.long and column.shape == (32,) for column in item.values())


@pytest.mark.parametrize("max_len", [2, 3, 4, 6, 9, 24])
def test_it_drops_the_pairs_that_the_reward_model_drops(tokenizer, max_len):
    """Identical after the cut, or no room for a response at all: no error, and counted."""
    for_reward, data = RMDataset(PAIRS, tokenizer, max_len), PreferenceDataset(PAIRS, tokenizer, max_len)
    assert (data.dropped, len(data)) == (for_reward.dropped, len(for_reward))
    for ours, theirs in zip((data[i] for i in range(len(data))), (for_reward[i] for i in range(len(data)))):
        assert all(torch.equal(ours[name], column) for name, column in theirs.items())


def test_it_reads_a_datasets_dataset_and_fits_a_dataloader(tokenizer):
    loader = DataLoader(PreferenceDataset(Dataset.from_list(PAIRS), tokenizer, 30), batch_size=2)
    assert [tuple(batch["rejected_labels"].shape) for batch in loader] == [(2, 30), (2, 30), (1, 30)]


# --- 5.1 sequence_logprobs ---


@pytest.fixture
def model(model_folder):
    return AutoModelForCausalLM.from_pretrained(model_folder).eval()


TEXTS = [  # (ids, number of prompt tokens); id 0 is EOS and pad: at the end, in the prompt, not there at all (cut)
    ([31, 45, 77, 0], 2),
    ([31, 0, 102, 45, 200], 3),
    ([0, 55, 31], 1),
    ([31, 45, 77, 93, 18, 250, 0], 3),
]


def padded_batch(texts, side, extra, filler):
    """Ids, mask and labels; the padding holds `filler`, an id or "random" ids."""
    width = max(len(ids) for ids, _ in texts) + extra
    ids = (
        torch.randint(320, (len(texts), width))
        if filler == "random"
        else torch.full((len(texts), width), filler)
    )
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORE)
    for row, (text, n_prompt) in enumerate(texts):
        start = {"right": 0, "left": width - len(text), "both": (width - len(text)) // 2}[side]
        end = start + len(text)
        ids[row, start:end], mask[row, start:end] = torch.tensor(text), 1
        labels[row, start + n_prompt : end] = torch.tensor(text[n_prompt:])
    return ids, mask, labels


def token_by_token(model, ids, n_prompt):
    """The product of the probabilities of the response's tokens, each asked for on its own; its logarithm."""
    total = 0.0
    for t in range(n_prompt, len(ids)):
        probabilities = model(input_ids=torch.tensor([ids[:t]])).logits[0, -1].double().softmax(-1)
        total += math.log(probabilities[ids[t]])
    return total


@pytest.mark.parametrize("filler", [0, "random"])
@pytest.mark.parametrize("extra", [0, 4])
@pytest.mark.parametrize("side", ["left", "right", "both"])
@torch.no_grad()
def test_sum_of_the_response_whatever_the_padding(model, side, extra, filler):
    expected = torch.tensor([token_by_token(model, *text) for text in TEXTS])
    batch = padded_batch(TEXTS, side, extra, filler)
    torch.testing.assert_close(sequence_logprobs(model, *batch), expected, rtol=0, atol=1e-4)
    alone = torch.cat(
        [sequence_logprobs(model, *padded_batch([text], side, extra, filler)) for text in TEXTS]
    )
    torch.testing.assert_close(alone, expected, rtol=0, atol=1e-4)


@torch.no_grad()
def test_all_continuations_of_one_length_have_probability_one(model):
    """A known value: the probabilities of all responses of one token add up to 1."""
    vocabulary = model.config.vocab_size
    ids = torch.cat(
        [torch.tensor([[31, 45]]).expand(vocabulary, 2), torch.arange(vocabulary)[:, None]], dim=1
    )
    labels = ids.clone()
    labels[:, :2] = IGNORE
    logprobs = sequence_logprobs(model, ids, torch.ones_like(ids), labels)
    assert logprobs.exp().sum().item() == pytest.approx(1, abs=1e-4)


def test_it_is_the_sft_loss_times_the_number_of_tokens(model):
    ids, mask, labels = padded_batch(TEXTS, "right", 1, 0)
    logits = model(input_ids=ids, attention_mask=mask).logits
    total = masked_ce_loss(logits, labels) * (labels != IGNORE).sum()
    torch.testing.assert_close(
        -sequence_logprobs(model, ids, mask, labels).sum(), total, rtol=1e-5, atol=1e-4
    )


def test_labels_in_two_places_add_up(model):
    ids = torch.tensor([[31, 45, 77, 93, 18, 250, 12]])
    single = []
    for places in ([2], [5], [2, 5]):
        labels = torch.full_like(ids, IGNORE)
        labels[0, places] = ids[0, places]
        single.append(sequence_logprobs(model, ids, torch.ones_like(ids), labels).item())
    assert single[2] == pytest.approx(single[0] + single[1], abs=1e-4)


def test_a_row_without_a_label_has_zero_and_the_first_token_does_not_count(model):
    ids, mask, labels = padded_batch(TEXTS, "right", 0, 0)
    expected = sequence_logprobs(model, ids, mask, labels)
    labels[:, 0] = ids[:, 0]
    assert torch.equal(sequence_logprobs(model, ids, mask, labels), expected)
    labels[1] = IGNORE
    assert sequence_logprobs(model, ids, mask, labels)[1].item() == 0


def test_the_arguments_stay_and_the_gradient_reaches_the_model(model):
    batch = padded_batch(TEXTS, "left", 1, "random")
    before = [column.clone() for column in batch]
    sequence_logprobs(model, *batch).sum().backward()
    assert all(torch.equal(column, old) for column, old in zip(batch, before, strict=True))
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0


# --- 5.2 dpo_loss ---


def four(n, dtype=torch.float64):
    return [(-12 + 3 * torch.randn(n, dtype=dtype)) for _ in range(4)]


@pytest.mark.parametrize("beta", [0.1, 0.7])
@pytest.mark.parametrize("n", [1, 6])
def test_the_loss_is_that_of_the_paper(n, beta):
    policy_chosen, policy_rejected, ref_chosen, ref_rejected = numbers = four(n)
    losses = []
    for pc, pr, rc, rr in zip(*(x.tolist() for x in numbers)):
        ratio_of_ratios = math.exp(pc) / math.exp(rc) / (math.exp(pr) / math.exp(rr))
        losses.append(-math.log(ratio_of_ratios**beta / (ratio_of_ratios**beta + 1)))
    loss, chosen, rejected = dpo_loss(*numbers, beta)
    assert loss.shape == () and loss.item() == pytest.approx(sum(losses) / n)
    assert chosen.tolist() == pytest.approx((beta * (policy_chosen - ref_chosen)).tolist())
    assert rejected.tolist() == pytest.approx((beta * (policy_rejected - ref_rejected)).tolist())


def test_it_is_ln_2_where_policy_and_reference_agree():
    chosen, rejected, *_ = four(5)
    loss, chosen_reward, rejected_reward = dpo_loss(chosen, rejected, chosen, rejected)
    assert loss.item() == pytest.approx(math.log(2))
    assert not chosen_reward.any() and not rejected_reward.any()


def test_the_gradient_weighs_each_pair_by_how_wrong_it_is():
    """The paper's section 4: beta * sigmoid(reward of the rejected - reward of the chosen), up and down, nowhere else."""
    numbers = [x.requires_grad_() for x in four(4)]
    loss, chosen, rejected = dpo_loss(*numbers, 0.3)
    assert not chosen.requires_grad and not rejected.requires_grad
    loss.backward()
    weights = 0.3 * torch.sigmoid(rejected - chosen) / 4
    torch.testing.assert_close(numbers[0].grad, -weights)
    torch.testing.assert_close(numbers[1].grad, weights)
    assert numbers[2].grad is None and numbers[3].grad is None


@pytest.mark.parametrize("difference, expected", [(1e4, 0.0), (-1e4, 1e4), (200.0, 0.0), (-200.0, 200.0)])
def test_loss_and_gradient_are_finite_for_extreme_differences(difference, expected):
    policy = torch.tensor([difference], requires_grad=True)
    loss, _, _ = dpo_loss(policy, *[torch.zeros(1)] * 3, beta=1.0)
    loss.backward()
    assert loss.item() == pytest.approx(expected) and policy.grad.isfinite().all()


def test_the_reference_is_tilted_to_the_best_policy():
    """What DPO rests on: the implicit reward of the policy `ref * exp(reward / beta) / Z` is the reward, up to a constant."""
    beta, reward = 0.5, torch.tensor([1.0, -0.5, 2.0])
    ref = torch.tensor([0.5, 0.3, 0.2]).log()
    best = torch.log_softmax(ref + reward / beta, dim=0)
    _, first, other = dpo_loss(best[:1], best[2:], ref[:1], ref[2:], beta)
    assert (first - other).item() == pytest.approx((reward[0] - reward[2]).item(), abs=1e-5)


# --- 5.3 train_dpo ---


@pytest.fixture
def models(model_folder):
    """A policy, with the dropout of its family, and the frozen copy that is its reference."""
    policy = AutoModelForCausalLM.from_pretrained(model_folder)
    return policy, copy.deepcopy(policy).requires_grad_(False)


@pytest.fixture
def loader(tokenizer):
    return DataLoader(PreferenceDataset(PAIRS, tokenizer, 24), batch_size=2)


def plain_loop(policy, ref_policy, loader, n_epochs, lr, beta):
    """The loop in its plainest form, with the loss spelt out."""
    optim = torch.optim.AdamW(policy.parameters(), lr=lr)
    history, norms = [], []
    for batch in [batch for _ in range(n_epochs) for batch in loader]:
        columns = [
            [batch[f"{side}_{kind}"] for kind in ("ids", "mask", "labels")] for side in ("chosen", "rejected")
        ]
        chosen, rejected = (sequence_logprobs(policy, *column) for column in columns)
        ref_chosen, ref_rejected = (sequence_logprobs(ref_policy, *column) for column in columns)
        margins = beta * (chosen - ref_chosen - rejected + ref_rejected)
        loss = torch.log1p(torch.exp(-margins)).mean()
        policy.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0).item())
        optim.step()
        entry = [loss, (margins > 0).float().mean(), margins.mean(), chosen.mean(), rejected.mean()]
        history.append([x.item() for x in entry])
    return history, norms


NAMES = ["loss", "accuracy", "margin", "chosen_logprob", "rejected_logprob"]


def test_training_follows_the_plain_loop(models, loader):
    policy, ref_policy = models
    expected, norms = plain_loop(copy.deepcopy(policy).eval(), ref_policy.eval(), loader, 3, 2e-3, 0.4)
    assert max(norms) > 1
    history = train_dpo(policy, ref_policy, loader, n_epochs=3, lr=2e-3, beta=0.4)
    assert [list(step) for step in history] == [NAMES] * 9
    for step, entry in zip(history, expected, strict=True):
        assert list(step.values()) == pytest.approx(entry, abs=2e-2)


def test_the_first_step_sees_ln_2_ties_and_no_margin_with_dropout_in_the_model(models, loader):
    policy, ref_policy = models
    policy.train(), ref_policy.train()
    first, *_ = train_dpo(policy, ref_policy, loader, lr=1e-3)
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert first["margin"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("n_epochs", [0, 1, 3])
def test_one_entry_a_step_and_the_reference_stays(models, loader, n_epochs):
    policy, ref_policy = models
    before = copy.deepcopy(policy.state_dict())
    history = train_dpo(policy, ref_policy, loader, n_epochs=n_epochs, lr=1e-3)
    assert len(history) == n_epochs * len(loader)
    assert all(type(value) is float for step in history for value in step.values())
    assert all(torch.equal(tensor, before[name]) for name, tensor in ref_policy.state_dict().items())
    unchanged = all(torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())
    assert unchanged == (n_epochs == 0)


def test_the_pairs_are_learnt_by_heart(models, loader):
    history = train_dpo(*models, loader, n_epochs=8, lr=3e-3, beta=0.3)
    last = history[-len(loader) :]
    assert all(step["accuracy"] == 1 and step["margin"] > 1 for step in last)
    assert sum(step["loss"] for step in last) < 0.3 * sum(step["loss"] for step in history[: len(loader)])


def test_a_larger_beta_holds_the_policy_nearer_to_its_reference(models, loader):
    policy, ref_policy = models
    moved = []
    for beta in (0.1, 2.0):
        history = train_dpo(copy.deepcopy(policy), ref_policy, loader, n_epochs=4, lr=3e-3, beta=beta)
        moved.append(sum(step["margin"] for step in history[-3:]) / 3 / beta)  # in nats
    assert moved[0] > moved[1] > 0


def test_a_seed_gives_the_same_curve_twice(models, loader):
    policy, ref_policy = models
    curves = [train_dpo(copy.deepcopy(policy), ref_policy, loader, n_epochs=2, lr=1e-3) for _ in range(2)]
    assert curves[0] == curves[1]
