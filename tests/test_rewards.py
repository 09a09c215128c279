"""Rewards and their door."""

import pytest
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from rlhf_lab.errors import LabError
from rlhf_lab.rewards import (
    CheckedReward,
    CheckedScorer,
    ClassifierScorer,
    ModelReward,
    TextReward,
    VaderScorer,
)

IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
MASK = torch.tensor([[0, 1, 1], [1, 1, 0]])


def test_vader_knows_good_from_bad_and_neutral():
    good, bad, neutral = VaderScorer()(
        ["The film was wonderful.", "The film was awful.", "The film has two parts."]
    )
    assert good > 0.5 and bad < -0.4 and neutral == 0


def test_a_text_reward_reads_the_valid_tokens_only(padded_tokenizer):
    eos = padded_tokenizer.eos_token_id
    word = padded_tokenizer("garden").input_ids
    row = [eos] + word + [eos, eos]
    mask = [0] + [1] * len(word) + [1, 0]
    seen = []

    def scorer(texts):
        seen.extend(texts)
        return [0.25] * len(texts)

    reward = TextReward(scorer, padded_tokenizer)(torch.tensor([row]), torch.tensor([mask]))
    assert seen == ["garden"] and reward.tolist() == [0.25] and reward.dtype == torch.float32


def test_a_model_reward_has_mean_0_and_spread_1_on_its_own_texts_and_is_frozen():
    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, ids, mask):
            return self.scale * (ids * mask).sum(-1).float()

    model = Sum()
    scores = model(IDS, MASK)
    reward = ModelReward(model, scores.mean().item(), scores.std().item())
    normalised = reward(IDS, MASK)
    assert torch.allclose(normalised.mean(), torch.tensor(0.0), atol=1e-6)
    assert torch.allclose(normalised.std(), torch.tensor(1.0))
    assert not normalised.requires_grad and not model.scale.requires_grad and not model.training


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (torch.zeros(2, 1), r"the reward mine returned shape \[2, 1\], not \[2\]"),
        (torch.tensor(0.0), r"the reward mine returned shape \[\], not \[2\]"),
        ([0.0, 1.0], r"the reward mine returned a list, not a tensor \[2\]"),
        (torch.tensor([0.0, float("nan")]), "the reward mine returned nan for row 1 of the batch"),
        (torch.tensor([float("inf"), 0.0]), "the reward mine returned inf for row 0 of the batch"),
    ],
)
def test_the_door_names_what_a_reward_returned(returned, sentence):
    with pytest.raises(LabError, match=sentence):
        CheckedReward("mine", lambda ids, mask: returned)(IDS, MASK)


def test_the_door_of_text_scorers_names_the_text():
    with pytest.raises(LabError, match="mine returned nan for the text 'bad'"):
        CheckedScorer("mine", lambda texts: [0.5, float("nan")])(["good", "bad"])
    with pytest.raises(LabError, match="mine returned 1 scores for 2 texts"):
        CheckedScorer("mine", lambda texts: [0.5])(["good", "bad"])


def test_a_language_model_is_not_taken_for_a_classifier(gpt2_folder):
    with pytest.raises(LabError, match="lack score.weight"):
        ClassifierScorer(gpt2_folder, torch.device("cpu"))


def test_the_door_lets_right_rewards_through():
    reward = CheckedReward("mine", lambda ids, mask: torch.tensor([1, 2]))(IDS, MASK)
    assert reward.tolist() == [1, 2] and reward.dtype == torch.float32


@pytest.fixture
def classifier_folder(tmp_path, padded_tokenizer):
    """A random classifier in the shape of the SST-2 one, with a bias that makes the class POSITIVE likely."""

    def make(id2label):
        model = DistilBertForSequenceClassification(
            DistilBertConfig(
                vocab_size=len(padded_tokenizer),
                dim=16,
                hidden_dim=32,
                n_layers=1,
                n_heads=2,
                id2label=id2label,
                label2id={label: index for index, label in id2label.items()},
                max_position_embeddings=32,
            )
        )
        torch.nn.init.zeros_(model.classifier.weight)
        model.classifier.bias.data = torch.tensor([0.0, 2.0, 0.0][: len(id2label)])
        model.save_pretrained(tmp_path)
        padded_tokenizer.save_pretrained(tmp_path)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("id2label", "expected"),
    [
        ({0: "NEGATIVE", 1: "POSITIVE"}, 0.8808),
        ({0: "positive", 1: "negative"}, 0.1192),  # by its label, not by its place
        ({0: "LABEL_0", 1: "LABEL_1"}, 0.8808),
    ],
)
def test_the_classifier_gives_the_probability_of_its_positive_class(classifier_folder, id2label, expected):
    scorer = ClassifierScorer(classifier_folder(id2label), torch.device("cpu"))
    scores = scorer(
        ["there is a garden", "", "the soup " * 100]
    )  # empty and longer than the classifier reads
    assert scores == pytest.approx([expected] * 3, abs=1e-3)


def test_a_classifier_without_a_positive_class_is_refused(classifier_folder):
    folder = classifier_folder({0: "a", 1: "b", 2: "c"})
    with pytest.raises(LabError, match=r"has the labels \['a', 'b', 'c'\]: none is POSITIVE"):
        ClassifierScorer(folder, torch.device("cpu"))


def test_a_folder_without_a_classifier_is_named(tmp_path):
    with pytest.raises(LabError, match="no tokenizer can be loaded from"):
        ClassifierScorer(tmp_path, torch.device("cpu"))
