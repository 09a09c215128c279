"""Exercises 2.1 to 2.5: where the score is read, the comparison loss, and the training loop."""

import copy
import math

import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import AutoModel

from solutions import reward_model
from solutions.reward_model import (
    RatedPairs,
    RewardModel,
    RMDataset,
    last_token_index,
    position_ids_from_mask,
    rm_loss,
    rm_loss_on_shares,
    train_rm,
    train_rm_on_shares,
)
from solutions.sft import build_sft_example

PAIRS = [
    {"prompt": "the soup", "chosen": " was warm", "rejected": " was cold and grey"},
    {"prompt": "there is a garden", "chosen": " and the weather is lovely", "rejected": " and rain"},
    {"prompt": "今天的天气", "chosen": "很好", "rejected": "很很很"},
    {"prompt": "the room", "chosen": " is lovely", "rejected": " is cold"},
    {"prompt": "kindness", "chosen": " is there", "rejected": " is rare, rare, rare"},
]
MASK_DTYPES = [torch.int64, torch.int32, torch.bool, torch.float32]


# --- 2.1 last_token_index ---

RAGGED_MASK = [
    [1, 1, 1, 0, 0, 0],  # padded on the right
    [0, 0, 0, 1, 1, 1],  # on the left
    [0, 1, 1, 1, 0, 0],  # on both sides
    [1, 0, 1, 0, 1, 0],  # with holes
    [1, 1, 1, 1, 1, 1],
    [1, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 1],
]


@pytest.mark.parametrize("dtype", MASK_DTYPES)
def test_convention_b_last_token_is_the_last_one_of_the_mask_whichever_side_is_padded(dtype):
    index = last_token_index(torch.tensor(RAGGED_MASK).to(dtype))
    assert index.dtype == torch.long and index.tolist() == [2, 5, 3, 4, 5, 0, 5]


@pytest.mark.parametrize("row, index", [([1], 0), ([0, 1, 0], 1), ([1, 1, 0, 0], 1)])
def test_last_token_of_a_batch_of_one(row, index):
    assert last_token_index(torch.tensor([row])).tolist() == [index]


@pytest.mark.parametrize("dtype", MASK_DTYPES)
@pytest.mark.parametrize("rows", [[[0, 0, 0]], [[1, 1, 0], [0, 0, 0]]])
def test_a_row_without_a_valid_token_is_an_error(rows, dtype):
    with pytest.raises(ValueError):
        last_token_index(torch.tensor(rows).to(dtype))


def test_last_token_index_leaves_the_mask_alone():
    mask = torch.tensor(RAGGED_MASK)
    last_token_index(mask)
    assert mask.tolist() == RAGGED_MASK


def test_position_ids_count_the_real_tokens():
    positions = position_ids_from_mask(torch.tensor(RAGGED_MASK[:3]))
    assert positions.tolist() == [[0, 1, 2, 2, 2, 2], [0, 0, 0, 0, 1, 2], [0, 0, 1, 2, 2, 2]]


# --- 2.2 RewardModel ---


@pytest.fixture
def model(model_folder):
    model = RewardModel(model_folder).eval()
    torch.nn.init.normal_(model.v_head.weight)
    return model


def test_reward_model_is_a_backbone_and_a_linear_head_without_bias(model, model_folder):
    assert type(model.backbone) is type(AutoModel.from_pretrained(model_folder))
    assert not any("lm_head" in name for name, _ in model.named_modules())
    assert isinstance(model.v_head, torch.nn.Linear)
    assert (model.v_head.in_features, model.v_head.out_features, model.v_head.bias) == (32, 1, None)
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"backbone", "v_head"}


TEXTS = [  # id 0 is EOS and pad: at the end, in the middle, at the front, not there at all (truncated)
    [31, 45, 77, 0],
    [31, 0, 102, 45, 200],
    [0, 55, 31],
    [12],
    [31, 45, 77, 93, 18, 250, 0],
]


def padded_batch(texts, side, extra, filler):
    """Rows of one width; the padding holds `filler`, an id or "random" ids."""
    width = max(map(len, texts)) + extra
    ids = (
        torch.randint(320, (len(texts), width))
        if filler == "random"
        else torch.full((len(texts), width), filler)
    )
    mask = torch.zeros(len(texts), width, dtype=torch.long)
    for row, text in enumerate(texts):
        start = {"right": 0, "left": width - len(text), "both": (width - len(text)) // 2}[side]
        ids[row, start : start + len(text)] = torch.tensor(text)
        mask[row, start : start + len(text)] = 1
    return ids, mask


def unpadded_scores(model, texts):
    """Each text alone: the head on the last hidden state of its last token."""
    with torch.no_grad():
        hidden = [model.backbone(torch.tensor([text])).last_hidden_state[0, -1] for text in texts]
        return torch.stack([model.v_head.weight[0] @ h for h in hidden])


@pytest.mark.parametrize("filler", [0, "random"])
@pytest.mark.parametrize("extra", [0, 1, 5])
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_score_depends_neither_on_padding_nor_on_batch_mates(model, side, extra, filler):
    expected = unpadded_scores(model, TEXTS)
    assert expected.std() > 0.5
    with torch.no_grad():
        scores = model(*padded_batch(TEXTS, side, extra, filler))
        alone = torch.cat([model(*padded_batch([text], side, extra, filler)) for text in TEXTS])
    assert scores.shape == (len(TEXTS),)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(alone, expected, rtol=0, atol=1e-5)


def test_convention_h_a_left_padded_text_is_read_from_position_zero(gpt2_folder):
    """GPT-2's learnt positions: the same text, shifted to the right by padding, has the same score."""
    model = RewardModel(gpt2_folder).eval()
    seen = []
    model.backbone.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["position_ids"]), with_kwargs=True
    )
    model(*padded_batch([[31, 45, 77], [12]], "left", 2, 0))
    assert seen[0].tolist() == [[0, 0, 0, 1, 2], [0, 0, 0, 0, 0]]


@pytest.mark.parametrize("dtype", MASK_DTYPES)
def test_score_for_every_type_of_mask(model, dtype):
    ids, mask = padded_batch(TEXTS, "left", 2, "random")
    with torch.no_grad():
        torch.testing.assert_close(
            model(ids, mask.to(dtype)), unpadded_scores(model, TEXTS), rtol=0, atol=1e-5
        )


def test_a_masked_token_inside_a_text_is_not_read(model):
    """The mask itself must reach the backbone: padding can be told from the position ids alone."""
    mask = torch.tensor([[1, 1, 0, 1, 1]])
    with torch.no_grad():
        scores = [model(torch.tensor([[31, 45, hidden, 93, 18]]), mask) for hidden in (77, 250)]
    torch.testing.assert_close(scores[0], scores[1], rtol=0, atol=1e-5)


def test_a_row_of_padding_has_no_score(model):
    with pytest.raises(ValueError):
        model(torch.tensor([[5, 6], [7, 8]]), torch.tensor([[1, 1], [0, 0]]))


def test_gradient_of_the_score_reaches_head_and_backbone(model):
    model(*padded_batch(TEXTS, "right", 0, 0)).sum().backward()
    assert model.v_head.weight.grad.abs().sum() > 0
    assert model.backbone.get_input_embeddings().weight.grad.abs().sum() > 0


# --- 2.3 RMDataset ---


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


def test_pairs_are_laid_out_like_demonstrations(tokenizer):
    data = RMDataset(PAIRS, tokenizer, 32)
    assert len(data) == len(PAIRS) and data.dropped == 0
    assert tokenizer.pad_token == tokenizer.eos_token
    eos_id = tokenizer.eos_token_id
    for item, row in zip((data[i] for i in range(len(data))), PAIRS, strict=True):
        assert set(item) == {"chosen_ids", "chosen_mask", "rejected_ids", "rejected_mask"}
        assert all(tensor.dtype == torch.long and tensor.shape == (32,) for tensor in item.values())
        for column in ("chosen", "rejected"):
            expected = build_sft_example(
                ids_of(tokenizer, row["prompt"]), ids_of(tokenizer, row[column]), eos_id, eos_id, 32
            )
            assert item[f"{column}_ids"].tolist() == expected["input_ids"]
            assert item[f"{column}_mask"].tolist() == expected["attention_mask"]


def test_convention_a_mask_of_a_pair_counts_its_eos(tokenizer):
    """Pad is EOS, and an EOS stands in the prompt: the mask is one run of ones, as long as text and EOS."""
    row = {"prompt": "the <|endoftext|> soup", "chosen": " was warm", "rejected": " was"}
    item = RMDataset([row], tokenizer, 24)[0]
    n_tokens = len(ids_of(tokenizer, row["prompt"])) + len(ids_of(tokenizer, row["chosen"])) + 1
    assert item["chosen_mask"].tolist() == [1] * n_tokens + [0] * (24 - n_tokens)
    assert item["chosen_ids"][last_token_index(item["chosen_mask"][None])] == tokenizer.eos_token_id


def test_pairs_identical_after_truncation_are_dropped_and_counted(tokenizer):
    n_prompt = len(ids_of(tokenizer, "the soup"))
    rows = [
        {"prompt": "the soup", "chosen": " was warm", "rejected": " was warm"},  # identical
        {"prompt": "the soup", "chosen": " was warm", "rejected": " was the warm"},
        {
            "prompt": "the soup",
            "chosen": " was the garden",
            "rejected": " was the cook",
        },  # once cut to 2 tokens
        {
            "prompt": "there is a garden and the weather there",
            "chosen": " a",
            "rejected": " is",
        },  # no room at all
        {
            "prompt": "the soup",
            "chosen": " was",
            "rejected": " was<|endoftext|>",
        },  # once EOS is added and cut
        {"prompt": "the soup", "chosen": " was", "rejected": " was the"},  # EOS against " the": different
    ]
    assert len(ids_of(tokenizer, " was the")) == 2
    data = RMDataset(rows, tokenizer, n_prompt + 2)
    assert data.dropped == 4 and len(data) == 2
    assert data[0]["rejected_ids"][-1] == ids_of(tokenizer, " the")[0]
    assert data[1]["chosen_ids"][-1] == tokenizer.eos_token_id


def test_pairs_that_differ_in_their_mask_alone_are_kept(tokenizer):
    """With pad == eos, texts that end in one EOS and in two have the same padded ids."""
    row = {"prompt": "the soup", "chosen": " was", "rejected": " was<|endoftext|>"}
    data = RMDataset([row], tokenizer, 16)
    assert data.dropped == 0
    assert torch.equal(data[0]["chosen_ids"], data[0]["rejected_ids"])
    assert data[0]["chosen_mask"].sum() + 1 == data[0]["rejected_mask"].sum()


def test_pairs_are_tokenised_apart_and_without_special_tokens(bos_tokenizer):
    item = RMDataset([{"prompt": "the", "chosen": "re is", "rejected": " soup"}], bos_tokenizer, 16)[0]
    eos = [bos_tokenizer.eos_token_id]
    real = {
        name: item[f"{name}_ids"][item[f"{name}_mask"].bool()].tolist() for name in ("chosen", "rejected")
    }
    assert real == {
        "chosen": ids_of(bos_tokenizer, "the") + ids_of(bos_tokenizer, "re is") + eos,
        "rejected": ids_of(bos_tokenizer, "the") + ids_of(bos_tokenizer, " soup") + eos,
    }


def test_dataset_keeps_the_pad_token_that_is_there(tokenizer):
    tokenizer.pad_token = "!"
    item = RMDataset(PAIRS, tokenizer, 40)[0]
    assert (
        item["chosen_ids"][-1] == item["rejected_ids"][-1] == tokenizer.pad_token_id != tokenizer.eos_token_id
    )


def test_dataset_reads_a_datasets_dataset_and_fits_a_dataloader(tokenizer):
    loader = DataLoader(RMDataset(Dataset.from_list(PAIRS), tokenizer, 30), batch_size=2)
    assert [tuple(batch["rejected_mask"].shape) for batch in loader] == [(2, 30), (2, 30), (1, 30)]


# --- 2.4 rm_loss ---


@pytest.mark.parametrize("batch", [1, 6])
def test_loss_is_the_mean_of_minus_log_sigmoid_of_the_difference(batch):
    r_chosen = (1 + 2 * torch.randn(batch, dtype=torch.float64)).requires_grad_()
    r_rejected = (2 * torch.randn(batch, dtype=torch.float64)).requires_grad_()
    differences = (r_chosen - r_rejected).tolist()
    loss, accuracy = rm_loss(r_chosen, r_rejected)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(sum(math.log1p(math.exp(-d)) for d in differences) / batch)
    assert float(accuracy) == pytest.approx(sum(d > 0 for d in differences) / batch)
    loss.backward()
    slopes = [1 / (1 + math.exp(d)) / batch for d in differences]
    assert r_chosen.grad.tolist() == pytest.approx([-s for s in slopes])
    assert r_rejected.grad.tolist() == pytest.approx(slopes)


@pytest.mark.parametrize("difference, expected", [(1e4, 0.0), (-1e4, 1e4), (200.0, 0.0), (-200.0, 200.0)])
def test_loss_and_gradient_are_finite_for_extreme_differences(difference, expected):
    r_chosen = torch.tensor([difference], requires_grad=True)
    loss, _ = rm_loss(r_chosen, torch.zeros(1))
    loss.backward()
    assert loss.item() == pytest.approx(expected)
    assert r_chosen.grad.item() == pytest.approx(-float(difference < 0))


def test_a_tie_is_not_correct():
    _, accuracy = rm_loss(torch.tensor([1.0, 2.0, 0.0, 5.0]), torch.tensor([1.0, 1.0, 3.0, 5.0]))
    assert float(accuracy) == 0.25


# --- 2.5 train_rm ---


@pytest.fixture
def plain_model(llama_folder):
    """A reward model without dropout, so that a loss can be computed twice."""
    return RewardModel(llama_folder)


@pytest.fixture
def loader(tokenizer):
    return DataLoader(RMDataset(PAIRS, tokenizer, 24), batch_size=2)


def reference_training(model, loader, n_epochs, lr):
    """The loop in its plainest form: one pass for each text of a pair, the loss spelt out."""
    optim = torch.optim.AdamW(model.parameters(), lr=lr)
    history, norms = [], []
    for batch in [batch for _ in range(n_epochs) for batch in loader]:
        model.zero_grad()
        difference = model(batch["chosen_ids"], batch["chosen_mask"]) - model(
            batch["rejected_ids"], batch["rejected_mask"]
        )
        loss = torch.log1p(torch.exp(-difference)).mean()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optim.step()
        history.append((loss.item(), (difference > 0).float().mean().item()))
    return history, norms


def test_training_follows_the_plain_loop(plain_model, loader):
    """One optimiser for all epochs, gradients of one batch at a time, clipped to 1, the given rate."""
    torch.nn.init.normal_(plain_model.v_head.weight)
    expected, norms = reference_training(copy.deepcopy(plain_model), loader, n_epochs=4, lr=3e-3)
    assert max(norms) > 1 and len({accuracy for _, accuracy in expected}) > 1
    history = train_rm(plain_model, loader, n_epochs=4, lr=3e-3)
    assert [step["loss"] for step in history] == pytest.approx([loss for loss, _ in expected], abs=1e-3)
    assert [step["accuracy"] for step in history] == [accuracy for _, accuracy in expected]


@pytest.mark.parametrize("n_epochs", [0, 1, 3])
def test_training_returns_loss_and_accuracy_of_each_step(plain_model, loader, n_epochs):
    before = copy.deepcopy(plain_model.state_dict())
    history = train_rm(plain_model, loader, n_epochs=n_epochs, lr=1e-3)
    assert len(history) == n_epochs * len(loader)
    assert all(set(step) == {"loss", "accuracy"} for step in history)
    assert all(type(value) is float for step in history for value in step.values())
    unchanged = all(torch.equal(tensor, before[name]) for name, tensor in plain_model.state_dict().items())
    assert unchanged == (n_epochs == 0)


def test_losses_fall_and_head_and_backbone_move(model_folder, loader):
    model = RewardModel(model_folder)
    before = copy.deepcopy(model.state_dict())
    history = train_rm(model, loader, n_epochs=10, lr=3e-3)
    assert sum(step["loss"] for step in history[-3:]) < 0.3 * sum(step["loss"] for step in history[:3])
    assert all(step["accuracy"] == 1 for step in history[-3:])
    assert all(not torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_gradient_norm_is_clipped_to_one(plain_model, loader, monkeypatch):
    torch.nn.init.normal_(plain_model.v_head.weight)
    _, unclipped = reference_training(copy.deepcopy(plain_model), loader, n_epochs=1, lr=7e-6)
    assert max(unclipped) > 1.5
    norms, rates = [], []
    step = torch.optim.AdamW.step

    def recording_step(optim, closure=None):
        gradients = [p.grad for group in optim.param_groups for p in group["params"] if p.grad is not None]
        norms.append(torch.stack([g.norm() for g in gradients]).norm().item())
        rates.append(optim.defaults["lr"])
        return step(optim)

    monkeypatch.setattr(torch.optim.AdamW, "step", recording_step)
    train_rm(plain_model, loader, n_epochs=1, lr=7e-6)
    assert norms == pytest.approx([min(norm, 1.0) for norm in unclipped], abs=1e-3)
    assert rates == [7e-6] * len(loader)


def test_the_model_trains_in_training_mode_on_the_loss_of_exercise_2_4(plain_model, loader, monkeypatch):
    calls, modes = [], []

    def spy(r_chosen, r_rejected):
        calls.append((r_chosen, r_rejected))
        return rm_loss(r_chosen, r_rejected)

    monkeypatch.setattr(reward_model, "rm_loss", spy)
    plain_model.eval()
    plain_model.backbone.register_forward_pre_hook(lambda module, args: modes.append(module.training))
    train_rm(plain_model, loader, n_epochs=1, lr=1e-4)
    assert all(modes) and len(calls) == len(loader)
    assert all(
        scores.shape == (len(batch["chosen_ids"]),)
        for call, batch in zip(calls, loader, strict=True)
        for scores in call
    )


def test_a_trained_reward_model_scores_without_dropout(gpt2_folder, loader):
    """What comes out of training is used as a reward: one text has one score, alone or among others."""
    model = RewardModel(gpt2_folder)
    train_rm(model, loader, n_epochs=1, lr=1e-3)
    with torch.no_grad():
        scores = model(*padded_batch(TEXTS, "right", 0, 0))
    torch.testing.assert_close(scores, unpadded_scores(model, TEXTS), rtol=0, atol=1e-5)


def test_a_seed_gives_the_same_curve_twice(gpt2_folder, loader):
    """Head and dropout are random: the curve depends on the seed, and on nothing else."""
    curves = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        curves.append(train_rm(RewardModel(gpt2_folder), loader, n_epochs=2, lr=1e-3))
    assert curves[0] == curves[1] != curves[2]


# --- when people disagree --------------------------------------------------------------------------


def test_the_loss_on_shares_is_smallest_at_the_log_odds_of_the_share():
    share = torch.tensor([0.5, 0.8, 0.95])
    difference = torch.zeros(3, requires_grad=True)
    best = share.logit()
    at_best, _ = rm_loss_on_shares(best, torch.zeros(3), share)
    for step in (-0.1, 0.1):
        assert rm_loss_on_shares(best + step, torch.zeros(3), share)[0] > at_best
    rm_loss_on_shares(difference, torch.zeros(3), share)[0].backward()
    # by hand: (sigmoid(0) - share) / 3
    torch.testing.assert_close(difference.grad, (0.5 - share) / 3)


def test_where_all_raters_agree_the_loss_on_shares_is_the_loss():
    r_chosen, r_rejected = torch.tensor([0.3, -2.0, 1e4]), torch.tensor([1.0, -2.0, -1e4])
    loss, accuracy = rm_loss_on_shares(r_chosen, r_rejected, torch.ones(3))
    expected_loss, expected_accuracy = rm_loss(r_chosen, r_rejected)
    torch.testing.assert_close(loss, expected_loss)
    assert accuracy == expected_accuracy


def test_a_pair_that_is_dropped_takes_its_share_along(tokenizer):
    rows = [
        {"prompt": "The film", "chosen": " was good", "rejected": " was bad", "share": 0.9},
        {"prompt": "The film", "chosen": " was good", "rejected": " was good", "share": 0.5},
        {"prompt": "The room", "chosen": " was fine", "rejected": " was bad", "share": 0.7},
    ]
    pairs = RatedPairs(rows, tokenizer, 24)
    assert (len(pairs), pairs.dropped) == (2, 1)
    assert [pairs[i]["share"].item() for i in range(2)] == [pytest.approx(0.9), pytest.approx(0.7)]
    plain = RMDataset(rows, tokenizer, 24)
    assert torch.equal(pairs[1]["chosen_ids"], plain[1]["chosen_ids"])


def test_training_on_shares_keeps_apart_what_raters_disagree_about(tokenizer):
    """A model with one number for each of two texts: it ends near the log-odds, where plain training goes on."""

    class TwoScores(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = torch.nn.Parameter(torch.zeros(2))

        def forward(self, input_ids, attention_mask):
            return self.scores[input_ids[:, 0]]

    mask = torch.ones(1, 1, dtype=torch.long)
    batch = {"chosen_ids": mask, "chosen_mask": mask, "rejected_ids": 0 * mask, "rejected_mask": mask}
    rated, plain = TwoScores(), TwoScores()
    history = train_rm_on_shares(rated, [{**batch, "share": torch.tensor([0.75])}], n_epochs=300, lr=0.05)
    train_rm(plain, [batch], n_epochs=300, lr=0.05)
    gap, plain_gap = (model.scores[1] - model.scores[0] for model in (rated, plain))
    assert gap.item() == pytest.approx(torch.tensor(3.0).log().item(), abs=0.05)
    assert plain_gap > 3 * gap
    assert len(history) == 300 and history[-1]["accuracy"] == 1.0
