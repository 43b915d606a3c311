"""A run directory belongs to one living process."""

import errno
import os
import subprocess
import sys

import pytest

from fedmuon import lock
from fedmuon.errors import UsageError

HOLDS = """
import sys
from pathlib import Path
from fedmuon import lock
with lock.held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time_and_a_kill_frees_it(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None and other.stdout is not None and other.stdout.readline() == "held\n"
    with pytest.raises(lock.Taken, match="another process"), lock.held(tmp_path):
        pass
    waited = []
    with lock.held(tmp_path, waiting=lambda: (waited.append(1), other.kill())):
        assert waited == [1]
    other.wait()
    other.stdin.close()
    other.stdout.close()
    with lock.held(tmp_path):
        assert [file.name for file in tmp_path.iterdir()] == [lock.FILE]


def test_a_disk_without_locks_is_told(tmp_path, monkeypatch):
    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    with pytest.raises(UsageError, match=rf"^{tmp_path}: .*\(No locks available\)"), lock.held(tmp_path):
        pass
