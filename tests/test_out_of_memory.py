"""A full GPU in `bench` and `methods`; that of a run is tested with the pipeline."""

import pytest
import torch

from rlhf_lab import bench, methods
from rlhf_lab.cli import main
from rlhf_lab.errors import LabError


def full(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_full_gpu_in_bench_is_one_sentence_with_a_smaller_batch(monkeypatch, capsys):
    monkeypatch.setattr(bench, "taught_step", full)
    assert main(["bench", "--batch", "8", "--device", "cpu"]) == 1
    said = capsys.readouterr().err
    assert "error: the memory of the device was full in bench: it is the CPU's; " in said
    assert "give a batch of 4 (--batch 4), or --device cpu" in said and "Traceback" not in said


def test_a_full_gpu_in_methods_is_one_sentence(monkeypatch):
    monkeypatch.setattr(methods, "_dpo", full)
    with pytest.raises(LabError, match="the memory of the device was full in dpo: .*give the same command"):
        methods.run_method("solutions", "dpo", seed=0)
