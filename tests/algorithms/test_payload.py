"""The generated table of docs/algorithms.md: what LeNet-5 sends and receives with every method, counted by hand."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.algorithms.runs import federated

X = 156 + 2416 + 48120 + 10164 + 850  # two convolutions and three dense layers, with their biases
MATRICES = 150 + 2400 + 48000 + 10080 + 840
TENSORS = 10
# rank floor(0.05 m n / (m + n + 1)), at least 1: 6 x 25, 16 x 150, 10 x 84 have 1, 84 x 120 has 2, 120 x 400 has 4
SVD = (6 + 25 + 1) + (16 + 150 + 1) + 4 * (120 + 400 + 1) + 2 * (84 + 120 + 1) + (10 + 84 + 1)
NUMBERS = {
    **dict.fromkeys(["fedavg", "fedavgm", "fedprox", "fednova", "feddyn", "fedadam", "fedyogi", "fedadagrad"], (X, X)),
    **dict.fromkeys(["local_adamw", "local_muon", "local_muon_published", "muloco"], (X, X)),
    **dict.fromkeys(["scaffold", "mimelite", "fedmuon_lmo"], (2 * X, 2 * X)),
    **dict.fromkeys(["fedmuon", "fedmuon_published", "fedpac_muon"], (X + MATRICES, 2 * X + MATRICES)),
    "fedcm": (X, 2 * X),
    "fedadamw": (X + TENSORS, 2 * X + TENSORS),
    "fedlada": (2 * X, 3 * X),
    "fedpac": (3 * X, 4 * X),
    "fedmuon_svd": (X + SVD, 2 * X + MATRICES),
}


def test_the_table_says_what_a_hand_count_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
    rows = [re.split(r" (?<!\\)\| ", line) for line in page.splitlines() if line.startswith("| `")]
    found = {}
    for cells in rows:
        up, down = (re.search(r": ([\d.]+) x, ([\d,]+) B$", cell) for cell in cells[2:4])
        assert up is not None and down is not None, cells
        name, sizes = cells[0].strip("| `"), [int(one[2].replace(",", "")) for one in (up, down)]
        found[name] = tuple(size / 4 for size in sizes)
        assert [float(one[1]) for one in (up, down)] == [float(f"{size / 4 / X:.3g}") for size in sizes]
    assert {name: found[name] for name in NUMBERS} == NUMBERS and X == 61706


def test_g_is_the_last_change_of_x_where_all_took_equally_many_steps(tmp_path: Any) -> None:
    """Which is why `comm/down_bytes_derivable` says that clients of the last round could do without it."""
    keys = {"local.steps": 3, "local.epochs": None, "local.lr": 0.05, "algorithm.adamw.lr": 0.02}
    one, _, _ = federated(tmp_path / "one", "mlp", "fedmuon", **keys, rounds=2)
    two, states, _ = federated(tmp_path / "two", "mlp", "fedmuon", **keys, rounds=3)
    for name, g in states["delta_g"].items():
        rate = 0.05 if g.ndim == 2 else 0.02
        np.testing.assert_allclose((one[name] - two[name]) / (3 * rate), g, rtol=0, atol=1e-12)
