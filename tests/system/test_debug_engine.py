"""`debug=engine` prints how far apart the engines are, and marks what moves by rounding alone."""

from pathlib import Path

import fedmuon


def test_every_parameter_is_compared(tiny, tmp_path: Path, capsys) -> None:
    overrides = [one for one in tiny if not one.startswith(("model", "federation.rounds"))]
    run = fedmuon.run(
        [
            *overrides, "model=vit_tiny", "model.width=6", "model.depth=1", "model.heads=1", "debug=engine",
            "trainer.precision=64-true", "algorithm=fedavg", f"run_dir={tmp_path / 'run'}",
        ]
    )  # fmt: skip
    assert run.summary["status"] == "finished" and run.summary["last"]["round"] == 1
    printed = capsys.readouterr().out
    assert "Largest difference from sequential after one round" in printed
    (row,) = [
        line.split() for line in printed.splitlines() if line.split()[:1] == ["network.head.weight"] and "e-" in line
    ]
    assert 0 <= float(row[1]) < 1e-10 and 0 <= float(row[2]) < 1e-10
    assert "loss on a batch of the first client: sequential" in printed
