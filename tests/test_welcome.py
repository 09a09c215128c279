"""What notebook 00 shows: the practice, the picture of the course, the machine, and a sampled rollout."""

from xml.etree import ElementTree

import pytest
import torch

from rlhf_lab import practice
from rlhf_lab.backbones import load_causal_lm, load_tokenizer
from rlhf_lab.checkpoints import SFT
from rlhf_lab.examples import sampled_responses
from rlhf_lab.machine import machine_rows
from rlhf_lab.overview import overview


@pytest.fixture
def practice_file(tmp_path, monkeypatch):
    file = tmp_path / "practice" / "practice.py"
    monkeypatch.setattr(practice, "_file", lambda: file)
    practice.begin()
    return file


def shown_by(capsys, show) -> str:
    capsys.readouterr()
    show()
    return capsys.readouterr().out


def test_practice_names_its_mistake_and_passes_when_repaired(practice_file, capsys):
    failing = shown_by(capsys, practice.check)
    assert "FAIL" in failing and practice.KNOWN.mistakes[0].name in failing and "1 of 3" in failing
    assert "3 of 3. Done." in shown_by(capsys, practice.repaired)
    assert "FAIL" in shown_by(capsys, practice.check)  # the file itself is as it was

    practice_file.write_text(practice_file.read_text().replace(practice.MISTAKE, practice.REPAIR))
    assert "3 of 3. Done." in shown_by(capsys, practice.check)


def test_practice_names_the_line_that_does_not_parse(practice_file, capsys):
    practice_file.write_text(practice.TEXT.replace("dim=0)", "dim=0"))
    assert "line 9" in shown_by(capsys, practice.check)


def test_overview_is_a_whole_picture():
    svg = overview().data.partition("</style>")[2].removesuffix("</div>")
    names = {node.text for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("text")}
    assert {"policy", "reference", "reward model", "demonstrations", "comparisons"} <= names


def test_machine_has_tiny():
    assert "tiny" in {row["what"]: row["here"] for row in machine_rows()}["backbones"]


def test_sampled_responses_are_read_as_unpadded_rows_are():
    tokenizer, lm = load_tokenizer(SFT), load_causal_lm(SFT).eval()
    prompts = ["This phone", "关于这家餐厅：", "Review of the camera:"]
    sampled = sampled_responses(lm, tokenizer, prompts, max_new_tokens=10, seed=1)
    width = sampled.response_mask.shape[1]
    for row in range(len(prompts)):
        ids = sampled.full_ids[row][sampled.full_mask[row].bool()]
        length = int(sampled.response_mask[row].sum())
        assert tokenizer.decode(ids[:-length]) == prompts[row]
        assert tokenizer.eos_token_id not in ids[-length:-1]
        assert ids[-1] == tokenizer.eos_token_id or length == width == 10
        with torch.no_grad():
            logits = lm(input_ids=ids[None]).logits[0, -length - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, ids[-length:, None]).squeeze(-1)
        torch.testing.assert_close(sampled.old_logprobs[row, :length], expected, atol=1e-4, rtol=1e-4)
