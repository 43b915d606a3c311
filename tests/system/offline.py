"""What W&B's offline files hold."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def entries(file: Path) -> Iterator[bytes]:
    """The entries of a .wandb file, a LevelDB log: a header of 7 bytes, then in blocks of 32 KiB pieces of entries,
    each with checksum (4 bytes), length (2) and kind (1: whole, 2: first, 3: middle, 4: last). W&B's process may be
    writing the last one: a piece that is not all there ends the file."""
    content, at, entry = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        if kind == 0 or at + 7 + length > len(content):
            break
        entry += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield entry
            entry = b""


def records(run: Path, kind: str) -> list[Any]:
    """The records of a kind ("run", "history", "exit") in a run's offline files."""
    from wandb.proto import wandb_internal_pb2 as protocol

    found = []
    for file in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        for entry in entries(file):
            record = protocol.Record()
            record.ParseFromString(entry)
            if record.WhichOneof("record_type") == kind:
                found.append(getattr(record, kind))
    return found


def history(run: Path) -> list[dict[str, Any]]:
    """The rows that were logged. W&B's process may still be writing the end of a file when its run is over."""
    patience = time.monotonic() + 5
    while time.monotonic() < patience and not records(run, "exit"):
        time.sleep(0.05)
    return [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.item}
        for record in records(run, "history")
    ]
