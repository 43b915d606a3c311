"""What the tests of whole runs share: tiny images, the command, and what a run has left."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from fedmuon.cli import main

CLASSES = ["left", "right", "top", "bottom"]


def write_images(file: Path, count: int, seed: int) -> None:
    """Grey images of 8 x 8 pixels as the hub stores them; each class has another half lit, over noise."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 128, (count, 8, 8), dtype=np.uint8)
    labels = np.arange(count) % 4
    halves = (np.s_[:, :4], np.s_[:, 4:], np.s_[:4], np.s_[4:])
    for image, label in zip(pixels, labels, strict=True):
        image[halves[label]] += 100
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)})
    cells = {"image": [{"bytes": _png(image), "path": None} for image in pixels], "label": labels.tolist()}
    datasets.Dataset.from_dict(cells, features).to_parquet(str(file))


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def command(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`fedmuon ARGS` in the current folder, as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "fedmuon", *args], capture_output=True, text=True, env={**os.environ, **env}, timeout=300
    )


def sweep_here(*args: str) -> int:
    """`fedmuon ARGS` in this process, which has torch already; its exit code."""
    given, here = sys.argv, dict(os.environ)
    sys.argv = ["fedmuon", *args]
    try:
        main()
    except SystemExit as left:
        return int(left.code or 0)
    finally:
        sys.argv = given
        for name in set(os.environ) - set(here):
            del os.environ[name]
    return 0


def rows(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The lines of a run's file without what a clock measured."""
    lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("time/") and k != "seconds"} for line in lines]


def weights(run: Path) -> dict[str, torch.Tensor]:
    """The final model."""
    return load_file(run / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def assert_same_run(a: Path, b: Path) -> None:
    """Parameters, metrics and client figures of two runs agree bit for bit."""
    assert rows(a) == rows(b)
    assert rows(a, "clients.jsonl") == rows(b, "clients.jsonl")
    assert same(weights(a), weights(b))
