"""Jobs side by side: as many as there are devices, each process on one of its own."""

import subprocess
import sys

import pytest

from fedmuon import devices

TAKES = """
import os, sys
from pathlib import Path
from fedmuon import devices
devices.take_share(Path(sys.argv[1]), wait=sys.argv[2] == "wait")
devices.take_share(Path(sys.argv[1]), wait=False)  # a worker's next job
print(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ["OMP_NUM_THREADS"], flush=True)
sys.stdin.read()
"""


def start(folder, wait: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", TAKES, str(folder), wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_processes_spread_over_the_devices_and_the_next_takes_a_freed_one(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    monkeypatch.setenv(devices.AT_ONCE, "2")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    first, second = start(tmp_path, "no"), start(tmp_path, "no")
    said = [process.stdout.readline().split() for process in (first, second)]
    share = str(max(1, devices.cores() // 2))
    assert sorted(said) == [["3", share], ["GPU-5", share]]
    third = start(tmp_path, "wait")
    for process in (first, second):
        process.kill()  # a slot dies with its process
        process.communicate()
    assert third.stdout.readline().split()[0] in ("3", "GPU-5")
    third.communicate()


@pytest.mark.parametrize(
    ("visible", "accelerator", "jobs", "expected"),
    [("0,1,2", "auto", 12, 3), ("0,1,2", "gpu", 2, 2), ("0,1,2", "cpu", 99, None), ("", "auto", 99, None)],
)
def test_as_many_jobs_as_devices_or_cores(visible, accelerator, jobs, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.jobs_at_once(accelerator, jobs) == (expected or devices.cores())
