"""Make the embedded data set: a class-balanced subset of Fashion-MNIST that is small enough for the repository.

    python scripts/make_fashion_mnist_mini.py SOURCE_DIR [--out FOLDER]

SOURCE_DIR holds the full set as on the Hugging Face hub (train-*.parquet and test-*.parquet, columns `image`, `label`).
The PNG bytes are copied as they are. The same source gives the same bytes every time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedmuon.data.parquet import check_parquet, find_split
from fedmuon.errors import UsageError
from fedmuon.randomness import stream

OUT = Path(__file__).resolve().parents[1] / "fedmuon" / "data" / "embedded" / "fashion_mnist_mini"
SEED = 2017
PER_CLASS = {"train": 1000, "test": 200}
LICENSE = """\
The MIT License (MIT)

Copyright (c) 2017 Zalando SE, https://tech.zalando.com

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
"""


def subset(labels: np.ndarray, per_class: int, split: str) -> np.ndarray:
    """`per_class` rows of every class in a fixed shuffled order, int64 [classes * per_class]."""
    rng = stream(SEED, f"fashion_mnist_mini/{split}")
    chosen = []
    for name in np.unique(labels):
        rows = np.flatnonzero(labels == name)
        if len(rows) < per_class:
            raise UsageError(f"SOURCE_DIR: class {name} of {split} has {len(rows)} rows; {per_class} are needed")
        chosen.append(rng.choice(rows, per_class, replace=False))
    return rng.permutation(np.concatenate(chosen))


def make(source: Path, out: Path) -> None:
    """Write train.parquet, test.parquet and LICENSE into `out`."""
    check_parquet(source, "image", "label")
    out.mkdir(parents=True, exist_ok=True)
    for split, per_class in PER_CLASS.items():
        table = pa.concat_tables(pq.read_table(file) for file in find_split(source, split))
        table = table.select(["image", "label"])  # the schema keeps its `datasets` features: Image and ClassLabel
        table = table.take(subset(table["label"].to_numpy(), per_class, split))
        pq.write_table(
            table,
            out / f"{split}.parquet",
            compression="zstd",
            compression_level=19,
            use_dictionary=["label"],
            write_statistics=False,  # the least and greatest PNG help nobody
        )
    (out / "LICENSE").write_text(LICENSE, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE_DIR", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    try:
        make(arguments.source, arguments.out)
    except UsageError as error:
        parser.exit(2, f"{error}\n")
    size = sum(file.stat().st_size for file in arguments.out.iterdir())
    print(f"{arguments.out}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
