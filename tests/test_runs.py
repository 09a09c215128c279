"""Run folders: whole files or none, finished stages kept, foreign or changed ones refused in one sentence."""

import errno
import json
import os
import subprocess
import sys

import pytest
import torch

from rlhf_lab.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from rlhf_lab.errors import LabError
from rlhf_lab.runs import (
    Run,
    read_json,
    read_tensors,
    replace_folder,
    set_aside,
    write_bytes,
    write_json,
    write_tensors,
)

SETTINGS = {"backbone": "tiny", "seed": 0}


@pytest.fixture
def disk_full(monkeypatch):
    def fail(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)


def test_a_file_is_replaced_whole_or_stays_as_it_was_when_the_disk_is_full(tmp_path, disk_full):
    path = tmp_path / "history.json"
    path.write_text("old")
    with pytest.raises(LabError, match=r"the disk is full: .*history\.json could not be written"):
        write_bytes(path, b"new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["history.json"]


def test_a_real_full_disk_is_named_too(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full on this system")
    (tmp_path / f".x.json.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(LabError, match="the disk is full"):
        write_bytes(tmp_path / "x.json", b"content")


def test_a_folder_appears_only_when_all_of_it_is_written(tmp_path):
    with pytest.raises(RuntimeError), replace_folder(tmp_path / "model") as folder:
        (folder / "half").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with replace_folder(tmp_path / "model") as folder:
        (folder / "whole").write_text("whole")
    assert (tmp_path / "model" / "whole").read_text() == "whole"


def test_what_a_killed_process_left_half_written_is_not_trusted(tmp_path):
    run = Run(tmp_path / "run", SETTINGS)
    stage = run.stage("sft", {"sft.py": "1"})
    assert stage.begin()
    (stage.folder / ".model.tmp").mkdir()
    (stage.folder / ".model.tmp" / "model.safetensors").write_bytes(b"half")
    (stage.folder / ".history.json.tmp").write_bytes(b"[1, 2")
    assert stage.begin(), "a stage without its manifest is not finished"
    run.close()


def test_a_finished_stage_is_kept_and_a_damaged_one_is_trained_again(tmp_path, capsys):
    run = Run(tmp_path / "run", SETTINGS)
    stage = run.stage("sft", {"sft.py": "1"})
    assert stage.begin()
    write_json(stage.folder / "history.json", [1, 2, 3])
    stage.finish()
    (stage.folder / ".DS_Store").write_text("not the run's own")
    assert not run.stage("sft", {"sft.py": "1"}).begin()

    (stage.folder / "history.json").write_text("[1]")
    assert run.stage("sft", {"sft.py": "1"}).begin()
    assert "history.json is damaged" in capsys.readouterr().out
    assert (tmp_path / "run" / "sft.old-1" / "history.json").read_text() == "[1]", "nothing is deleted"
    run.close()


@pytest.mark.parametrize("finished", [True, False])
def test_a_stage_made_by_other_code_is_refused_by_name(tmp_path, finished):
    run = Run(tmp_path / "run", SETTINGS)
    stage = run.stage("sft", {"sft.py": "1"})
    stage.begin()
    if finished:
        stage.finish()
    else:
        (stage.folder / "step-00010").mkdir()
    with pytest.raises(LabError, match=r"sft was made with another sft\.py: add --fresh sft"):
        run.stage("sft", {"sft.py": "2"}).begin()
    run.close()


def test_a_stage_in_which_nothing_was_trained_yet_takes_other_code(tmp_path):
    run = Run(tmp_path / "run", SETTINGS)
    assert run.stage("sft", {"sft.py": "1"}).begin() and run.stage("sft", {"sft.py": "2"}).begin()
    run.close()


def test_checkpoints_go_when_the_stage_is_finished_and_not_before(tmp_path):
    run = Run(tmp_path / "run", SETTINGS)
    stage = run.stage("ppo", {})
    stage.begin()
    (stage.folder / "step-00010").mkdir()
    write_bytes(stage.folder / "step-00010" / "policy.safetensors", b"x")
    stage.finish()
    assert not list(stage.folder.glob("step-*")) and not run.stage("ppo", {}).begin()
    run.close()


def test_a_run_of_another_version_or_with_other_settings_is_refused(tmp_path):
    folder = tmp_path / "run"
    Run(folder, SETTINGS).close()
    with pytest.raises(LabError, match="begun with seed = 0, and now it is 1"):
        Run(folder, {**SETTINGS, "seed": 1})
    header = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**header, "format": 99}))
    with pytest.raises(LabError, match="another version of the course .run format 99, this is 1."):
        Run(folder, SETTINGS)
    (folder / "run.json").write_text("{")
    with pytest.raises(LabError, match="not valid JSON"):
        Run(folder, SETTINGS)


def test_a_folder_with_something_else_in_it_is_not_taken_over(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(LabError, match="not a run folder .it holds thesis.txt."):
        Run(tmp_path, SETTINGS)


def test_one_process_at_a_time(tmp_path):
    hold = "import sys, pathlib, time; from rlhf_lab.runs import Run; "
    hold += "run = Run(pathlib.Path(sys.argv[1]), {}); print('held', flush=True); time.sleep(60)"
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(LabError, match="another process is working in"):
            Run(tmp_path / "run", {})
    finally:
        other.kill()
        other.wait()
    Run(tmp_path / "run", {}).close()  # a killed process leaves no lock behind


def test_set_aside_never_overwrites(tmp_path):
    for number in (1, 2):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "n").write_text(str(number))
        set_aside(tmp_path / "run")
    assert [(tmp_path / f"run.old-{n}" / "n").read_text() for n in (1, 2)] == ["1", "2"]


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "a.json").write_text("[")
    (tmp_path / "a.safetensors").write_bytes(b"nonsense")
    for read, name in ((read_json, "a.json"), (read_tensors, "a.safetensors")):
        with pytest.raises(LabError, match=f"{name} is not (a )?valid"):
            read(tmp_path / name)
        with pytest.raises(LabError, match="missing"):
            read(tmp_path / f"b{name}")


def test_tied_tensors_are_written(tmp_path):
    shared = torch.arange(6.0)
    write_tensors(tmp_path / "t.safetensors", {"a": shared, "b": shared})
    assert all(torch.equal(t, shared) for t in read_tensors(tmp_path / "t.safetensors").values())


def test_a_checkpoint_restores_weights_moments_and_random_numbers(tmp_path):
    def train(policy, optim, n_steps):
        for _ in range(n_steps):
            loss = policy(torch.randn(3, 4)).square().mean()
            optim.zero_grad()
            loss.backward()
            optim.step()

    policy = torch.nn.Linear(4, 2)
    optim = torch.optim.AdamW(policy.parameters(), lr=0.1)
    train(policy, optim, 3)
    save_checkpoint(tmp_path, [{"step": 0}] * 3, policy, optim)
    path = save_checkpoint(tmp_path, [{"step": 0}] * 13, policy, optim)
    assert latest_checkpoint(tmp_path) == path and len(list(tmp_path.iterdir())) == 1
    train(policy, optim, 3)

    torch.manual_seed(99)
    resumed = torch.nn.Linear(4, 2)
    resumed_optim = torch.optim.AdamW(resumed.parameters(), lr=0.1)
    assert load_checkpoint(path, resumed, resumed_optim) == [{"step": 0}] * 13
    train(resumed, resumed_optim, 3)
    assert torch.equal(resumed.weight, policy.weight)


def test_a_damaged_checkpoint_is_not_gone_on_from(tmp_path):
    policy = torch.nn.Linear(4, 2)
    optim = torch.optim.AdamW(policy.parameters())
    path = save_checkpoint(tmp_path, [{}] * 10, policy, optim)
    content = bytearray((path / "policy.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "policy.safetensors").write_bytes(content)
    with pytest.raises(LabError, match="step-00010/policy.safetensors is damaged: add --fresh ppo"):
        load_checkpoint(path, policy, optim)
