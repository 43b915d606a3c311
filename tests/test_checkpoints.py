"""Checkpoint files: whole ones or none, and nothing of them anywhere else."""

import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from fedmuon import rundir
from fedmuon.callbacks.checkpoints import AtomicCheckpointIO

CONTENT = {"state_dict": {"w": torch.arange(3.0)}, "global_step": 2}


def test_a_checkpoint_needs_no_room_for_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    file = tmp_path / "new" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(CONTENT, str(file))
    found = AtomicCheckpointIO().load_checkpoint(str(file), weights_only=True)
    assert found["global_step"] == 2 and torch.equal(found["state_dict"]["w"], CONTENT["state_dict"]["w"])
    before = file.read_bytes()
    AtomicCheckpointIO().save_checkpoint(CONTENT, file)
    assert file.read_bytes() == before


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    file = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(CONTENT, file)
    with pytest.raises(AttributeError, match="lambda"):
        AtomicCheckpointIO().save_checkpoint({**CONTENT, "odd": lambda: None}, file)
    with pytest.raises(TypeError, match="storage_options"):
        AtomicCheckpointIO().save_checkpoint(CONTENT, file, storage_options={"a": 1})
    with monkeypatch.context() as full:
        full.setattr(rundir, "replacing", lambda path: nullcontext(Path("/dev/full")))
        with pytest.raises(OSError, match="No space left on device"):
            AtomicCheckpointIO().save_checkpoint(CONTENT, file)
    assert list(tmp_path.iterdir()) == [file]
    assert AtomicCheckpointIO().load_checkpoint(file, weights_only=True)["global_step"] == 2
