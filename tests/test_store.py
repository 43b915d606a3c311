"""What clients keep: both stores give back what was put, and the disk's files are what a kill leaves of use."""

from pathlib import Path

import pytest
import torch

from fedmuon.store import DiskStore, MemoryStore, Store


def kept(value: float) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "momentum": {"a.weight": torch.full((2, 3), value, dtype=torch.float64)},
        "error/x": {"a.weight": torch.full((2, 3), -value).bfloat16(), "scale": torch.tensor(value)},
    }


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(
        a[slot].keys() == b[slot].keys() and all(torch.equal(t, b[slot][n]) for n, t in a[slot].items()) for slot in a
    )


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    made: Store = MemoryStore() if request.param == "memory" else DiskStore(tmp_path / "clients")
    made.start(None)
    return made


def test_what_was_put_last_is_what_is_got(store: Store):
    assert store.get(3) == {}
    rows = {"momentum": {"a.weight": torch.arange(12.0).view(2, 2, 3)[1]}}  # a row of a stack, and a view
    store.put(3, rows, round=1)
    rows["momentum"]["a.weight"].zero_()
    assert store.get(3)["momentum"]["a.weight"].tolist() == [[6, 7, 8], [9, 10, 11]]
    store.put(3, kept(2.0), round=4)
    store.put(5, kept(3.0), round=4)
    assert same(store.get(3), kept(2.0)) and same(store.get(5), kept(3.0)) and store.get(4) == {}
    store.put(7, {}, round=4)
    assert store.get(7) == {}


def test_a_checkpoint_gives_back_what_was_true_then(store: Store, tmp_path: Path):
    for client, round in ((1, 1), (2, 1), (1, 2)):
        store.put(client, kept(10 * client + round), round)
    saved = store.checkpoint()
    again: Store = MemoryStore() if isinstance(store, MemoryStore) else DiskStore(tmp_path / "clients")
    again.start(saved)
    assert same(again.get(1), kept(12)) and same(again.get(2), kept(21))
    again.start(None)
    assert again.get(1) == {} and again.get(2) == {}


def test_files_follow_the_checkpoints(tmp_path: Path):
    folder = tmp_path / "clients"
    store = DiskStore(folder)
    store.start(None)
    for client, round in ((1, 1), (2, 1), (1, 2), (1, 3)):
        store.put(client, kept(round), round)
    saved = store.checkpoint()
    assert saved == {"round": 3} and names(folder) == ["1/1", "1/2", "1/3", "2/1"]
    store.passed(2)
    assert names(folder) == ["1/2", "1/3", "2/1"]  # round 3's checkpoint is not known to be there
    store.put(2, kept(4), 4)
    (folder / "1" / ".5.safetensors.77").write_bytes(b"half of a file")
    resumed = DiskStore(folder)
    resumed.start({"round": 2})
    assert names(folder) == ["1/2", "2/1"] and same(resumed.get(1), kept(2)) and same(resumed.get(2), kept(1))
    resumed.put(1, kept(3), 3)
    assert resumed.checkpoint() == {"round": 3}
    resumed.passed(3)
    assert names(folder) == ["1/3", "2/1"]


def names(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)).removesuffix(".safetensors") for file in folder.glob("*/*"))
