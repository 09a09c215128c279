"""Exercises 1.1 to 1.4: the layout of a demonstration, its loss, and the training loop."""

import copy
import math

import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

from solutions import sft
from solutions.sft import SFTDataset, build_sft_example, masked_ce_loss, train_sft

EOS, PAD = 0, 9

DEMONSTRATIONS = [
    {"prompt": "the soup", "response": " was warm"},
    {"prompt": "there is a garden and the weather", "response": " is lovely"},
    {"prompt": "今天的天气", "response": "很好"},
    {"prompt": "the room", "response": " was cold and grey and the cook was rare"},
    {"prompt": "kindness", "response": " is there"},
]


# --- 1.1 build_sft_example ---


def test_example_is_prompt_response_eos_padding():
    example = build_sft_example([5, 6], [7, 8, 5], EOS, PAD, max_len=9)
    assert example == {
        "input_ids": [5, 6, 7, 8, 5, EOS, PAD, PAD, PAD],
        "labels": [-100, -100, 7, 8, 5, EOS, -100, -100, -100],
        "attention_mask": [1, 1, 1, 1, 1, 1, 0, 0, 0],
    }


def test_convention_a_masks_come_from_lengths_and_the_eos_counts():
    """With pad == eos, and EOS inside the prompt and the response, only the lengths tell what is padding."""
    example = build_sft_example([5, EOS, 6], [EOS, 7], EOS, EOS, max_len=9)
    assert example == {
        "input_ids": [5, EOS, 6, EOS, 7, EOS, EOS, EOS, EOS],
        "labels": [-100, -100, -100, EOS, 7, EOS, -100, -100, -100],
        "attention_mask": [1, 1, 1, 1, 1, 1, 0, 0, 0],
    }


def test_a_response_token_that_equals_the_pad_id_is_learnt():
    example = build_sft_example([PAD, 6], [7, PAD], EOS, PAD, max_len=7)
    assert example["labels"] == [-100, -100, 7, PAD, EOS, -100, -100]
    assert example["attention_mask"] == [1, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("max_len", range(4, 14))
@pytest.mark.parametrize("n_response", range(7))
def test_example_of_every_length(max_len, n_response):
    prompt_ids, response_ids = [11, 12, 13], list(range(20, 20 + n_response))
    example = build_sft_example(prompt_ids, response_ids, EOS, PAD, max_len)
    for position in range(max_len):
        in_prompt = position < 3
        in_response = 3 <= position < 3 + n_response
        is_eos = position == 3 + n_response
        token = (
            prompt_ids[position]
            if in_prompt
            else response_ids[position - 3]
            if in_response
            else EOS
            if is_eos
            else PAD
        )
        assert example["input_ids"][position] == token
        assert example["labels"][position] == (token if in_response or is_eos else -100)
        assert example["attention_mask"][position] == int(in_prompt or in_response or is_eos)
    assert all(len(column) == max_len for column in example.values())


def test_a_cut_response_gets_no_eos():
    example = build_sft_example([5, 6], [7, 8, 4], EOS, PAD, max_len=5)
    assert example["input_ids"] == [5, 6, 7, 8, 4]
    assert example["labels"] == [-100, -100, 7, 8, 4]
    assert example["attention_mask"] == [1] * 5


@pytest.mark.parametrize("n_prompt", [13, 14, 17])
def test_a_prompt_that_leaves_no_room_is_an_error_that_names_both_lengths(n_prompt):
    with pytest.raises(ValueError) as error:
        build_sft_example([5] * n_prompt, [7, 8], EOS, PAD, max_len=13)
    assert str(n_prompt) in str(error.value) and "13" in str(error.value)


def test_one_response_token_is_enough():
    assert build_sft_example([5] * 12, [7, 8], EOS, PAD, max_len=13)["labels"] == [-100] * 12 + [7]


def test_build_sft_example_leaves_its_arguments_alone():
    prompt_ids, response_ids = [5, 6], [7, 8]
    example = build_sft_example(prompt_ids, response_ids, EOS, PAD, max_len=8)
    example["labels"][0] = example["attention_mask"][0] = 77
    assert (prompt_ids, response_ids) == ([5, 6], [7, 8])
    assert example["input_ids"] == [5, 6, 7, 8, EOS, PAD, PAD, PAD]


# --- 1.2 SFTDataset ---


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


@pytest.mark.parametrize("max_len", [14, 40])
def test_items_are_built_examples_as_long_tensors(tokenizer, max_len):
    data = SFTDataset(DEMONSTRATIONS, tokenizer, max_len)
    assert len(data) == len(DEMONSTRATIONS)
    for item, row in zip((data[i] for i in range(len(data))), DEMONSTRATIONS, strict=True):
        expected = build_sft_example(
            ids_of(tokenizer, row["prompt"]),
            ids_of(tokenizer, row["response"]),
            tokenizer.eos_token_id,
            tokenizer.eos_token_id,
            max_len,
        )
        assert {name: tensor.tolist() for name, tensor in item.items()} == expected
        assert all(tensor.dtype == torch.long and tensor.shape == (max_len,) for tensor in item.values())


def test_dataset_gives_the_tokenizer_a_pad_token(tokenizer):
    assert tokenizer.pad_token is None
    SFTDataset(DEMONSTRATIONS, tokenizer, 40)
    assert tokenizer.pad_token == tokenizer.eos_token


def test_dataset_keeps_the_pad_token_that_is_there(tokenizer):
    tokenizer.pad_token = "!"
    item = SFTDataset(DEMONSTRATIONS, tokenizer, 40)[0]
    assert tokenizer.pad_token == "!"
    assert item["input_ids"][-1] == tokenizer.pad_token_id != tokenizer.eos_token_id


def test_prompt_and_response_are_tokenised_apart(tokenizer):
    apart = ids_of(tokenizer, "the") + ids_of(tokenizer, "re is")
    assert apart != ids_of(tokenizer, "there is")  # or this test could not fail
    item = SFTDataset([{"prompt": "the", "response": "re is"}], tokenizer, 12)[0]
    assert item["input_ids"][: len(apart)].tolist() == apart
    assert item["labels"].tolist()[:2] == [-100, apart[1]]


def test_dataset_adds_no_special_tokens(bos_tokenizer):
    assert bos_tokenizer("soup").input_ids[0] == bos_tokenizer.eos_token_id  # it would, unless told not to
    item = SFTDataset([{"prompt": "soup", "response": " was"}], bos_tokenizer, 12)[0]
    real = item["input_ids"][item["attention_mask"].bool()].tolist()
    assert real == ids_of(bos_tokenizer, "soup") + ids_of(bos_tokenizer, " was") + [
        bos_tokenizer.eos_token_id
    ]


def test_dataset_pads_on_the_right_whatever_the_tokenizer_does(tokenizer):
    tokenizer.padding_side = "left"
    item = SFTDataset(DEMONSTRATIONS, tokenizer, 40)[0]
    assert item["attention_mask"].diff().max() <= 0  # ones, then zeros


def test_dataset_reads_a_datasets_dataset_and_fits_a_dataloader(tokenizer):
    loader = DataLoader(SFTDataset(Dataset.from_list(DEMONSTRATIONS), tokenizer, 30), batch_size=2)
    batches = list(loader)
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(2, 30), (2, 30), (1, 30)]
    assert set(batches[0]) == {"input_ids", "labels", "attention_mask"}


def test_dataset_refuses_a_prompt_that_fills_the_row(tokenizer):
    with pytest.raises(ValueError):
        SFTDataset(DEMONSTRATIONS, tokenizer, len(ids_of(tokenizer, DEMONSTRATIONS[1]["prompt"])))


# --- 1.3 masked_ce_loss ---


def ragged_labels(batch=4, seq=7, vocab=11):
    """Prompt and padding of a different length in each row; a row without any label; labels at position 0."""
    labels = torch.randint(vocab, (batch, seq))
    labels[0, :2] = labels[0, 6:] = -100
    labels[1, :4] = -100
    labels[2, :] = -100
    return labels


def ce_oracle(logits, labels):
    """Token by token: position t is judged by the label at t + 1."""
    losses = []
    for row in range(labels.shape[0]):
        for t in range(labels.shape[1] - 1):
            target = labels[row, t + 1].item()
            if target != -100:
                losses.append(torch.logsumexp(logits[row, t], dim=0) - logits[row, t, target])
    return torch.stack(losses).mean()


@pytest.mark.parametrize("batch", [1, 4])
def test_loss_is_the_token_mean_of_the_next_token_cross_entropy(batch):
    labels = ragged_labels(max(batch, 3))[:batch]
    logits = (3 * torch.randn(batch, 7, 11, dtype=torch.float64)).requires_grad_()
    loss = masked_ce_loss(logits, labels)
    expected = ce_oracle(logits, labels)
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(*(torch.autograd.grad(x, logits)[0] for x in (loss, expected)))


def test_convention_j_the_handwritten_loss_equals_the_librarys(model_folder):
    model = AutoModelForCausalLM.from_pretrained(model_folder).eval()
    input_ids = torch.randint(model.config.vocab_size, (4, 7))
    labels = torch.where(ragged_labels() == -100, -100, input_ids)
    attention_mask = torch.ones_like(input_ids)
    attention_mask[0, 6:] = 0
    with torch.no_grad():
        output = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
    assert output.loss > 1
    torch.testing.assert_close(masked_ce_loss(output.logits, labels), output.loss, rtol=0, atol=1e-6)


@pytest.mark.parametrize("garbage", [1e3, -1e6])
def test_what_stands_at_ignored_positions_changes_nothing(garbage):
    labels, logits = ragged_labels(), torch.randn(4, 7, 11)
    predicts_nothing = torch.cat([labels[:, 1:] == -100, torch.ones(4, 1, dtype=torch.bool)], dim=1)
    poisoned = logits.clone()
    poisoned[..., ::2][predicts_nothing] = garbage
    poisoned.requires_grad_()
    loss = masked_ce_loss(poisoned, labels)
    torch.testing.assert_close(loss, masked_ce_loss(logits, labels))
    loss.backward()
    assert (poisoned.grad[predicts_nothing] == 0).all()
    assert (poisoned.grad[~predicts_nothing] != 0).all()


def test_a_batch_without_labels_has_loss_zero():
    logits = torch.randn(2, 5, 11, requires_grad=True)
    loss = masked_ce_loss(logits, torch.full((2, 5), -100))
    loss.backward()
    assert loss.item() == 0 and (logits.grad == 0).all()


def test_loss_is_finite_for_extreme_logits():
    logits = torch.zeros(1, 3, 4)
    logits[0, :, 0] = 1e4
    assert masked_ce_loss(logits, torch.tensor([[1, 1, 1]])).item() == pytest.approx(1e4)


def test_masked_ce_loss_leaves_its_arguments_alone():
    labels, logits = ragged_labels(), torch.randn(4, 7, 11)
    before = labels.clone(), logits.clone()
    masked_ce_loss(logits, labels)
    assert torch.equal(labels, before[0]) and torch.equal(logits, before[1])


# --- 1.4 train_sft ---


@pytest.fixture
def sft_model(gpt2_folder):
    """GPT-2 without dropout, so that a loss can be computed twice."""
    return AutoModelForCausalLM.from_pretrained(gpt2_folder, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


@pytest.fixture
def loader(tokenizer):
    return DataLoader(SFTDataset(DEMONSTRATIONS, tokenizer, 30), batch_size=2)


def reference_training(model, loader, n_epochs, lr):
    """The loop in its plainest form, with the library's loss."""
    optim = torch.optim.AdamW(model.parameters(), lr=lr)
    losses, norms = [], []
    for batch in [batch for _ in range(n_epochs) for batch in loader]:
        model.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optim.step()
        losses.append(loss.item())
    return losses, norms


def test_training_follows_the_plain_loop(sft_model, loader):
    """One optimiser for all epochs, gradients of one batch at a time, clipped to 1, the given rate."""
    expected, norms = reference_training(copy.deepcopy(sft_model), loader, n_epochs=3, lr=3e-3)
    assert min(norms) > 1  # or clipping could not be seen
    losses = train_sft(sft_model, loader, n_epochs=3, lr=3e-3)
    assert losses == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("n_epochs", [0, 1, 3])
def test_training_returns_one_float_per_step(sft_model, loader, n_epochs):
    losses = train_sft(sft_model, loader, n_epochs=n_epochs, lr=1e-4)
    assert len(losses) == n_epochs * len(loader) and all(type(loss) is float for loss in losses)


def test_no_epoch_changes_nothing(sft_model, loader):
    before = copy.deepcopy(sft_model.state_dict())
    train_sft(sft_model, loader, n_epochs=0, lr=1e-2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in sft_model.state_dict().items())


def test_losses_fall_and_all_of_the_model_moves(model_folder, loader):
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    before = copy.deepcopy(model.state_dict())
    losses = train_sft(model, loader, n_epochs=8, lr=1e-2)
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])
    assert all(not torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def record_optimizers(monkeypatch):
    """Every AdamW made from here on notes the gradient norm that each of its steps sees."""
    made = []

    class RecordingAdamW(torch.optim.AdamW):
        def __init__(self, parameters, **options):
            super().__init__(parameters, **options)
            self.norms = []
            made.append(self)

        def step(self, closure=None):
            gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            self.norms.append(torch.stack([g.norm() for g in gradients]).norm().item())
            return super().step(closure)

    monkeypatch.setattr(torch.optim, "AdamW", RecordingAdamW)
    return made


def test_gradient_norm_is_clipped_to_one(sft_model, loader, monkeypatch):
    made = record_optimizers(monkeypatch)
    train_sft(sft_model, loader, n_epochs=2, lr=7e-4)
    (optim,) = made
    assert optim.defaults["lr"] == 7e-4
    assert optim.norms == pytest.approx([1.0] * 2 * len(loader), abs=1e-3)


def test_the_model_trains_in_training_mode_on_the_loss_of_exercise_1_3(sft_model, loader, monkeypatch):
    calls, modes = [], []

    def spy(logits, labels):
        calls.append(labels)
        return masked_ce_loss(logits, labels)

    monkeypatch.setattr(sft, "masked_ce_loss", spy)
    sft_model.eval()
    sft_model.register_forward_pre_hook(lambda module, args: modes.append(module.training))
    train_sft(sft_model, loader, n_epochs=1, lr=1e-4)
    assert all(modes) and len(modes) == len(loader)
    assert all(torch.equal(labels, batch["labels"]) for labels, batch in zip(calls, loader, strict=True))


def test_the_attention_mask_reaches_the_model(llama_folder, loader):
    """Right padding hides a missing mask; a hole in the mask does not."""
    model = AutoModelForCausalLM.from_pretrained(llama_folder)
    batches = list(loader)
    for batch in batches:
        batch["attention_mask"][:, 0] = 0
    expected, _ = reference_training(copy.deepcopy(model), batches, n_epochs=1, lr=1e-3)
    assert train_sft(model, batches, n_epochs=1, lr=1e-3) == pytest.approx(expected, abs=1e-3)


def test_a_seed_gives_the_same_curve_twice(gpt2_folder, loader):
    """With dropout 0.1 on, the curve depends on the seed, and on nothing else."""
    curves = []
    for seed in (3, 3, 4):
        model = AutoModelForCausalLM.from_pretrained(gpt2_folder)
        torch.manual_seed(seed)
        curves.append(train_sft(model, loader, n_epochs=2, lr=1e-3))
    assert curves[0] == curves[1] != curves[2]
    assert all(math.isfinite(loss) for loss in curves[0])
