"""Loggers in a sweep: every job is a run of its own, in one group, named by what varies; failed ones say so."""

import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.system.offline import history, records
from tests.system.runs import rows, sweep_here


def test_wandb_and_tensorboard(tiny):
    loggers = [one for one in tiny if one != "logger=none"] + ["logger=[wandb,tensorboard]"]
    lr = "local.lr=0.01,1e30"
    assert sweep_here("-m", *loggers, "algorithm=fedavg", lr, "seed=0,1", "hydra.sweep.dir=out") == 1
    runs = sorted(path.parent for path in Path("out").glob("*/summary.json"))
    ids, names = set(), set()
    for run in runs:
        deadline = time.monotonic() + 20  # W&B's own process writes the file, a moment after the run has ended
        while not records(run, "exit") and time.monotonic() < deadline:
            time.sleep(0.1)
        (about,), (left,) = records(run, "run"), records(run, "exit")
        ids.add(about.run_id)
        names.add(about.display_name)
        assert about.run_group == "out" and list(about.tags) == ["fedavg", "fashion_mnist_mini", "dirichlet"]
        failed = "1e+30" in about.display_name
        assert left.exit_code == int(failed)
        logged, measured = history(run), [] if failed else rows(run)
        assert len(logged) == len(measured) == (0 if failed else 3)
        for row, expected in zip(logged, measured, strict=True):
            assert {key: row[key] for key in expected} == expected
        events = EventAccumulator(str(run / "tensorboard")).Reload()
        losses = (
            {e.step: e.value for e in events.Scalars("train/loss")} if "train/loss" in events.Tags()["scalars"] else {}
        )
        assert [*losses] == [row["round"] for row in measured]
    assert len(ids) == 4 and names == {f"local.lr={rate},seed={seed}" for rate in ("0.01", "1e+30") for seed in (0, 1)}
