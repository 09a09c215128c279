"""The one script for a GPU: its rehearsal on the CPU, and what is left of it when something goes wrong."""

import json

import pytest
import torch

from authoring import gpu_run as module
from authoring.gpu_run import Command, Part, figures, gpu_run, grading, page, plan
from rlhf_lab.bench import PHASES
from rlhf_lab.errors import LabError

ENTRY = {"command": "python -m x", "seconds": 1.0, "state": "finished", "finished": True}


def section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}")[2].partition("\n## ")[0]


def test_the_rehearsal_has_every_section_and_no_figure_is_missing(tmp_path):
    assert gpu_run(tmp_path, rehearse=True) == 0
    text = (tmp_path / "gpu-run.md").read_text()
    assert page.MISSING not in text and "Not yet run." not in text
    for title, prefix, _ in page.SECTIONS:
        assert f"{prefix.rstrip('-')}" in section(text, title).split("\n")[3], title
    assert str(tmp_path) not in text

    for name in ("demo.png", "curves.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert f"({name})" in text
    commands = json.loads((tmp_path / "results.json").read_text())["commands"]
    assert [*commands] == ["demo", "curves-0", "grading", "bench-tiny"]
    assert commands["demo"]["figures"]["steps"] == commands["curves-0"]["figures"]["steps"] == 2
    rows = commands["grading"]["figures"]["rows"]
    assert [row["score"] == row["max"] for row in rows] == [True, False, False]
    for phase in (*PHASES, "total"):
        assert f"| tiny | {phase} |" in section(text, "Speed beside the floor")


def test_a_command_that_fails_or_takes_too_long_costs_its_own_figures_only(tmp_path, monkeypatch):
    def command(name, *arguments):
        return Command(name, arguments, lambda out: figures.of_file(out / f"{name}.txt"))

    parts = [
        Part("fails", 20.0, (command("no-module", "no_such_module"),)),
        Part("sleeps", 1.0, (command("late", "timeit", "-n", "1", "import time; time.sleep(60)"),)),
        Part("speaks", 20.0, (command("spoken", "sysconfig"),)),
    ]
    monkeypatch.setattr(module, "plan", lambda *_: parts)
    monkeypatch.setattr(module, "larger_backbone", lambda: "tiny")
    pages = []
    monkeypatch.setattr(module, "write_page", lambda out, results: pages.append(len(results["commands"])))
    assert gpu_run(tmp_path, rehearse=True) == 1
    entries = json.loads((tmp_path / "results.json").read_text())["commands"]
    assert entries["no-module"]["state"].startswith("failed with status 1: ")
    assert "No module named no_such_module" in entries["no-module"]["state"]
    assert entries["late"]["state"] == "cut off, for its time was over (1 s)"
    assert [entry["finished"] for entry in entries.values()] == [False, False, True]
    assert pages == [1, 2, 3], "the page is written after each command"


def test_a_run_that_was_cut_off_leaves_the_steps_that_it_made(tmp_path):
    step = {"mean_reward": 0.5, "seconds": 1.5, "approx_kl": 0.01, "kl_to_ref": 0.2, "judge": 0.6}
    folder = tmp_path / "curves-1" / "ppo"
    folder.mkdir(parents=True)
    (folder / "history.json").write_text(json.dumps([{"step": i, **step} for i in range(3)]))
    found = figures.of_run(tmp_path / "curves-1")
    assert (found["steps"], found["seconds"], found["reward_last"]) == (3, 4.5, 0.5)

    entries = {"curves-0": {**ENTRY, "figures": figures.of_run(tmp_path / "nothing")}}
    entries["curves-1"] = {**ENTRY, "figures": found}
    page.write_page(tmp_path, {"machine": {"card": "a card"}, "commands": entries})
    text = (tmp_path / "gpu-run.md").read_text()
    assert "| curves-1 | 3 | 4.5 | 1.5 | 0.5 | 0.5 | missing | missing | 0.01 | 0.2 |" in text
    assert "| curves-0 | missing |" in text
    assert "Not yet run." in section(text, "Demo on tiny")
    assert (tmp_path / "curves.png").exists()


def test_the_parts_take_ten_minutes_together_at_most(tmp_path):
    parts = plan(tmp_path, "smollm2", rehearse=False)
    assert sum(part.seconds for part in parts) <= 600
    names = [command.name for part in parts for command in part.commands]
    assert names == ["demo", "curves-0", "curves-1", "curves-2", "grading", "bench-tiny", "bench-smollm2"]
    curves = parts[1].commands[2].arguments
    for words in (
        "--backbone smollm2",
        "--data toy-en",
        "--reward vader",
        "--seed 2",
        "--batch 64",
        "--steps 50",
    ):
        assert words in " ".join(curves)


def test_a_rehearsal_never_asks_for_a_gpu(tmp_path):
    for part in plan(tmp_path, "smollm2", rehearse=True):
        for command in part.commands:
            assert "--rehearse" in command.arguments or "--device cpu" in " ".join(command.arguments)


def test_six_wrong_loops_are_chosen_from_the_bank():
    chosen = grading.chosen()
    assert len({entry.says for entry in chosen}) == 6
    assert {(entry.exercise, entry.correct) for entry in chosen} == {("train_ppo", False)}


def test_a_folder_with_an_old_run_is_refused(tmp_path):
    (tmp_path / "results.json").touch()
    with pytest.raises(LabError, match="is not empty, .*: choose another --out"):
        gpu_run(tmp_path, rehearse=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_how_to_rehearse(tmp_path):
    with pytest.raises(LabError, match="torch sees no GPU here: add --rehearse"):
        gpu_run(tmp_path)
    assert list(tmp_path.iterdir()) == []
