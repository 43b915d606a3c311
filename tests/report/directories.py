"""Run directories written by hand, for tests of what reads them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedmuon.data.partition import Partition


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *above, leaf = key.split(".")
        node = tree
        for name in above:
            node = node.setdefault(name, {})
        node[leaf] = value
    return tree


def write_run(
    path: Path,
    accuracy: list[float | None],
    *,
    algorithm: str = "fedmuon",
    seed: int = 0,
    status: str = "finished",
    summary: Mapping[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A run of this test accuracy in round 1, 2, ...; validation is 0.01 below it, a round sends 3 MB and takes 2 s."""
    path.mkdir(parents=True)
    settings = {
        "seed": seed,
        "partition.seed": seed,
        "model.seed": seed,
        "data.seed": seed,
        "run_dir": None,
        "algorithm.name": algorithm,
        "data.name": "pictures",
        "partition.name": "dirichlet",
        "partition.concentration": 0.1,
        "model.name": "mlp",
        "federation.rounds": len(accuracy),
        "local.lr": 0.1,
        "evaluation.metric": "accuracy",
        "evaluation.mode": "max",
        "evaluation.targets": [0.5, 0.9],
        **{key.replace("__", "."): value for key, value in config.items()},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(nested(settings)))
    rows = [
        {
            "round": i + 1,
            "train/loss": 1 / (i + 1),
            "val/accuracy": None if value is None else value - 0.01,
            "test/accuracy": value,
            "test/loss": 2 / (i + 1),
            "comm/up_bytes": 1_000_000,
            "comm/down_bytes": 2_000_000,
            "time/round": 2.0,
            "time/total": 2.0 * (i + 1),
        }
        for i, value in enumerate(accuracy)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = {"status": status, "name": f"{algorithm}-seed{seed}", "parameters": 1000, **(summary or {})}
    (path / "summary.json").write_text(json.dumps(content))
    (path / "clients.jsonl").write_text('{"round": 1, "client": 0}\n')
    if status != "running":
        (path / "clients.parquet").write_bytes(b"PAR1 in between PAR1")
        Partition.from_lists([[0, 1], [2]]).save(path / "partition.npz")
    return path
