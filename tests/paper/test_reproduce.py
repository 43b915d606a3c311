"""scripts/reproduce.py as a process: plan, a kill in the middle, going on, a cell that fails, the three tables."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# One group, one method; the second rate overflows: that cell fails.
CELLS = ["--table", "cifar100", "--quick", "--protocol", "clean", "--cells", "resnet18/0.1", "--methods", "fedavg"]
SMALL = ["--rounds", "3", "--no-measure", "--", "local.lr=0.1,1e30", "local.steps=2", "federation.cohort=2"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def reproduce(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "reproduce.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300)


def summaries() -> list[dict]:
    files = sorted(Path("outputs/paper/cifar100-clean/resnet18-0.1").glob("*/summary.json"))
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.slow
def test_a_table_killed_in_the_middle_goes_on_and_shows_a_failed_cell_with_its_cause() -> None:
    plan = reproduce(*CELLS, "--dry-run", *SMALL)
    assert plan.returncode == 0, plan.stderr
    assert "2 of 2 runs are left" in plan.stdout and "FedAvg, lr 1e30, seed 0: round 0 of 3" in plan.stdout
    assert "fedmuon -m hydra.sweep.dir=outputs/paper/cifar100-clean/resnet18-0.1 paper=clean" in plan.stdout
    assert not Path("outputs").exists() and not Path("results").exists()

    command = [sys.executable, str(ROOT / "scripts" / "reproduce.py"), *CELLS, *SMALL]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment(), start_new_session=True)
    deadline = time.monotonic() + 120
    while not any(one["status"] == "finished" for one in summaries()) and time.monotonic() < deadline:
        time.sleep(0.05)  # waits for a file, not for a time
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    done = [one["id"] for one in summaries() if one["status"] == "finished"]
    assert len(done) == 1

    second = reproduce(*CELLS, *SMALL)
    assert second.returncode == 1, second.stderr
    assert "1 of 2 runs are left" in second.stdout
    assert "failed: " in second.stdout and "NaN or infinity" in second.stdout
    assert not Path("results").exists()  # a trial of three rounds
    record = json.loads(Path("outputs/paper/paper_cifar100_quick.json").read_text())
    good, bad = (cell["runs"][0] for cell in record["cells"])
    assert good["id"] == done[0] and good["status"] == "finished" and good["rounds"] == 3 and good["commit"]
    assert bad["status"] == "failed" and "client" in bad["cause"]
    assert record["configuration"]["protocol"] == "clean" and record["cells"][0]["settings"] == {"local.lr": 0.1}
    assert str(ROOT) not in json.dumps(record) and str(Path.cwd()) not in json.dumps(record)
    for suffix in ("md", "tex", "html"):
        assert "failed: " in Path(f"outputs/paper/cifar100_quick.{suffix}").read_text()
    assert all(one["protocol"] == "clean" for one in summaries())


@pytest.mark.parametrize("arguments, said", [
    (["--table", "cifar100", "--protocol", "published", "--dry-run"], "--lists: the published protocol needs"),
    (["--table", "heterogeneity", "--protocol", "published", "--quick"], "heterogeneity has cells for clean only"),
    (["--table", "ablation", "--protocol", "clean", "--quick", "--cells", "decay"], "has no cell of that kind"),
    (["--table", "cifar100", "--quick", "--cells", "resnet18/0.2"], "--cells resnet18/0.2: is not in this table"),
    (["--table", "schedule", "--quick", "--no-measure", "--dry-run", "--", "local.lrr=1"], "local.lrr=1: there is"),
])  # fmt: skip
def test_wrong_input_is_one_line(arguments: list[str], said: str) -> None:
    done = reproduce(*arguments)
    assert done.returncode == 2 and done.stderr.startswith("reproduce: ") and said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
