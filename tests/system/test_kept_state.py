"""What outlives a round, in memory or on disk, compressed or not: the same run, whole, resumed or killed."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import fedmuon
from tests.system.runs import assert_same_run, rows, weights

COMPRESSED = [
    "compression.up.method=topk", "compression.up.share=0.1", "compression.down.method=svd", "algorithm.alpha=0.5",
]  # fmt: skip
CASES = {
    "scaffold": ["algorithm=scaffold", "local.lr=0.05"],
    "muloco": ["algorithm=muloco"],
    "compressed": ["algorithm=fedmuon", *COMPRESSED],
    "quantized": ["algorithm=fedmuon", "compression=quantize", "compression.down.method=quantize"],
    "kept_and_compressed": ["algorithm=muloco", "compression=topk", "local.lr=0.05"],
}
ROUNDS = 4


@pytest.mark.parametrize("case", CASES)
def test_disk_is_memory_and_a_run_stopped_after_any_round_goes_on(tiny, case):
    overrides = [*tiny, *CASES[case]]
    whole = fedmuon.run([*overrides, f"federation.rounds={ROUNDS}", "run_dir=whole"]).path
    assert not (whole / "clients").exists()
    for store in ("memory", "disk"):
        run = fedmuon.run([*overrides, f"federation.store={store}", "federation.rounds=2", f"run_dir={store}"]).path
        if store == "disk":
            saved = torch.load(run / "checkpoints" / "last.ckpt", weights_only=False)["federation"]["clients"]
            trained = {row["client"] for row in rows(run, "clients.jsonl")}
            assert saved == {"round": 2} and {int(p.name) for p in (run / "clients").iterdir()} == trained
        fedmuon.run([f"resume={run}", f"federation.rounds={ROUNDS}"])
        assert_same_run(whole, run)


def test_killed_at_random_moments_with_the_store_on_disk(tiny):
    overrides = [*tiny, *CASES["compressed"], "federation.rounds=40", "engine.chunk=1", "checkpoint.every=3"]
    whole = fedmuon.run([*overrides, "run_dir=whole"]).path
    args, moments = [*overrides, "federation.store=disk", "run_dir=killed"], random.Random(1)
    for kill in range(3):
        process = subprocess.Popen([sys.executable, "-m", "fedmuon", *args], stdout=-3, stderr=-3)
        while process.poll() is None and not started(Path("killed"), rounds=5 * kill + 1):
            time.sleep(0.001)
        time.sleep(moments.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        args = ["resume=killed"]
    assert json.loads(Path("killed/summary.json").read_text())["status"] == "running"
    fedmuon.run(["resume=killed"])
    assert_same_run(whole, Path("killed"))
    files = [file.relative_to("killed/clients") for file in Path("killed/clients").rglob("*") if file.is_file()]
    assert len(files) == len({file.parent for file in files}) == 6, "one file a client once the run has ended"


def started(run: Path, rounds: int) -> bool:
    """Whether a run has done so many rounds; a kill cuts lines beyond the checkpoint back."""
    metrics = run / "metrics.jsonl"
    return metrics.exists() and metrics.read_bytes().count(b"\n") >= rounds


def test_a_client_that_missed_rounds_is_sent_the_changes_or_the_model(tiny):
    """topk down: a change is 4 of 40 numbers of 4 + 4 bytes and its biases; never more than x itself."""
    keys = [*tiny, "algorithm=fedavg", "federation.rounds=6", "compression.down.method=topk"]
    run = fedmuon.run([*keys, "compression.down.share=0.125", "run_dir=run"]).path
    shapes = [t.numel() for t in weights(run).values()]
    whole = 4 * sum(shapes)
    change = sum(min(4 * n, 8 * max(1, int(0.125 * n))) for n in shapes)
    last: dict[int, int] = {}
    members: dict[int, list[int]] = {}
    for row in rows(run, "clients.jsonl"):
        members.setdefault(row["round"], []).append(row["client"])
    missed = set()
    for row in rows(run):
        expected = 0
        for client in members[row["round"]]:
            ago = row["round"] - last.get(client, -100)
            missed.add(min(ago, 5))
            expected += min(ago * change, whole)
            last[client] = row["round"]
        assert row["comm/down_bytes"] == expected and row["comm/down_bytes_before"] == 3 * whole
        assert row["comm/up_bytes"] == 3 * whole
    assert {1, 2, 5} <= missed and 2 * change < whole


def test_bytes_before_and_after_are_in_the_summary_and_on_the_terminal(tiny, capsys):
    from fedmuon.report.terminal import show

    summary, path = fedmuon.run([*tiny, "algorithm=fedmuon_svd", "run_dir=run"])
    lines = rows(path)
    for key in ("up_bytes", "up_bytes_before", "down_bytes", "down_bytes_derivable"):
        assert summary[key] == sum(row[f"comm/{key}"] for row in lines), key
    assert summary["up_bytes"] < summary["up_bytes_before"] and "down_bytes_before" not in summary
    show([path])
    shown = capsys.readouterr().out
    assert " of " in next(line for line in shown.splitlines() if "finished" in line)


def test_what_of_g_can_be_derived(tiny):
    """By the clients of the last round, where x moved along the mean of equally long local trainings."""
    common = [*tiny, "algorithm=fedmuon", "federation.rounds=3"]
    run = fedmuon.run([*common, "run_dir=run"]).path
    g = 4 * sum(t.numel() for t in weights(run).values())
    members = [{row["client"] for row in rows(run, "clients.jsonl") if row["round"] == r} for r in (1, 2, 3)]
    both = [0, len(members[0] & members[1]), len(members[1] & members[2])]
    assert [row["comm/down_bytes_derivable"] for row in rows(run)] == [g * n for n in both] and sum(both) > 0
    for name in ("server=adam", "server=momentum", "compression.down.method=bf16"):
        other = fedmuon.run([*common, name, f"run_dir={name.partition('=')[2]}"]).path
        assert [row["comm/down_bytes_derivable"] for row in rows(other)] == [0, 0, 0], name
    late = ["stragglers.sigma=1", "stragglers.deadline=9", "stragglers.late=partial", "federation.cohort=6"]
    some = fedmuon.run([*common, *late, "local.steps=8", "run_dir=some"]).path
    steps = [{row["steps"] for row in rows(some, "clients.jsonl") if row["round"] == r} for r in (1, 2)]
    assert all(len(one) > 1 for one in steps) and [row["comm/down_bytes_derivable"] for row in rows(some)] == [0, 0, 0]
    plain = fedmuon.run([*common, "algorithm.align=false", "run_dir=plain"]).path
    assert "comm/down_bytes_derivable" not in rows(plain)[0]
