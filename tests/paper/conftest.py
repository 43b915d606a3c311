from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, but for lists of two samples for each of 100 clients, and an empty cache."""
    folder = tmp_path / "work"
    folder.mkdir()
    np.savez(folder / "lists.npz", indices=np.arange(200, dtype=np.int32).reshape(100, 2))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FEDMUON_CACHE", str(tmp_path / "cache"))
    return folder
