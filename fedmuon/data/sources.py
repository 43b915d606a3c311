"""Where an image data set comes from. Nothing here imports torch or `datasets`: it is checked before they load."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from os.path import expanduser
from pathlib import Path
from typing import Any

from fedmuon.data import EMBEDDED
from fedmuon.data.folder import check_folder, image_files, read_folder, split_folders
from fedmuon.data.images import Split
from fedmuon.data.npz import check_npz, read_npz
from fedmuon.data.parquet import check_parquet, find_split, listed, read_parquet
from fedmuon.errors import UsageError, where
from fedmuon.listing import visible
from fedmuon.rundir import check_name

_TAIL = 65_536  # bytes: the footer of a Parquet file and the directory of a zip, with sizes and checksums


@dataclass(frozen=True)
class Source:
    """`root`, a local folder or .npz, else `path` on the Hugging Face hub, else the embedded images.

    config, revision        of the hub: the data set's configuration and version (None: the newest at first use)
    train_split, test_split names of the splits; test_split None goes without test images
    image, label            columns of Parquet files and of the hub
    channels, size          images are converted to 1 (grey) or 3 (RGB) channels, and to `size` pixels square
    """

    root: str | None = None
    path: str | None = None
    config: str | None = None
    revision: str | None = None
    train_split: str = "train"
    test_split: str | None = "test"
    image: str = "image"
    label: str = "label"
    channels: int | None = None
    size: int | None = None

    @classmethod
    def of(cls, node: Any) -> Source:
        """From any object with these attributes, such as the node `data`."""
        return cls(**{field.name: getattr(node, field.name) for field in fields(cls)})

    @cached_property
    def kind(self) -> str:
        """ "parquet", "folder", "npz" or "hub". Raises UsageError where `root` is none of the first three."""
        if self.root is None and self.path is not None:
            return "hub"
        if self.place.is_file():
            if self.place.suffix == ".npz":
                return "npz"
            raise UsageError(f"data.root={self.root}: is a file, but no .npz; name an .npz or the folder of the data")
        if not self.place.is_dir():
            missing = f"data.root={self.root}: there is no such folder{where(str(self.root))}"
            raise UsageError(f"{missing}; name the one that holds the data")
        if listed(self.place, self.train_split):
            return "parquet"
        if (self.place / self.train_split).is_dir():
            return "folder"
        if len(self._archives) == 1:
            return "npz"
        there = sorted(entry.name for entry in self.place.iterdir())[:8]
        raise UsageError(
            f"data.root={self.root}: holds neither {self.train_split}*.parquet nor {self.train_split}/<class>/*.png "
            f"nor one .npz; it holds {', '.join(there) or 'nothing'}"
        )

    @cached_property
    def place(self) -> Path:
        """The local folder or file."""
        return EMBEDDED if self.root is None else Path(expanduser(self.root)).absolute()

    def splits(self) -> dict[str, str]:
        """The splits to read, by the key that names them."""
        named = {"data.train_split": self.train_split, "data.test_split": self.test_split}
        return {key: split for key, split in named.items() if split is not None}

    def check(self) -> None:
        """Refuse, quickly, what could not be read: missing or broken files, columns, splits. Raises UsageError."""
        if self.channels not in (None, 1, 3):
            raise UsageError(f"data.channels={self.channels}: must be 1 (grey), 3 (RGB) or null (as the images are)")
        if self.train_split == self.test_split:
            raise UsageError(f"data.test_split={self.test_split}: is the training split too; name another, or null")
        if self.kind == "hub":
            if not self.path:
                raise UsageError(
                    "data.path: names no data set; give one of the Hugging Face hub, as in data.path=uoft-cs/cifar100, "
                    "or a local folder with data.root=FOLDER"
                )
            if Path(expanduser(self.path)).exists():
                raise UsageError(f"data.path={self.path}: is a local folder; use data.root={self.path}")
            return
        if self.root is not None:  # Parquet files are opened by their absolute paths
            check_name("data.root", self.place if self.kind == "parquet" else Path(self.root))
        if self.kind == "parquet":
            check_parquet(self.place, self.image, self.label, list(self.splits().values()))
        elif self.kind == "folder":
            check_folder(self.place, self.train_split, self.test_split)
        else:
            check_npz(self._npz, self.test_split is not None)

    def read(self) -> list[Split]:
        """The training split and the test split, where there is one, images still encoded. Raises UsageError."""
        if self.kind == "hub":
            from fedmuon.data.hub import read_hub

            return read_hub(self)
        if self.kind == "parquet":
            names = self.splits().values()
            return [read_parquet(find_split(self.place, name), self.image, self.label) for name in names]
        if self.kind == "folder":
            return read_folder(self.place, self.train_split, self.test_split)
        return read_npz(self._npz, self.test_split is not None)

    def identity(self) -> dict[str, Any]:
        """What the decoded images are a function of: the parameters, and names, sizes and times of local files.

        A data set of the hub is taken once: a newer one is used when `revision` names it or the cache is cleared.
        """
        same = asdict(self) if self.kind == "hub" else {**asdict(self), "path": None, "config": None, "revision": None}
        return {**same, "root": None, "kind": self.kind, "files": _described(self._files())}

    def _files(self) -> Sequence[str | Path]:
        if self.kind == "parquet":
            return [file for name in self.splits().values() for file in find_split(self.place, name)]
        if self.kind == "folder":
            folders = split_folders(self.place, self.train_split, self.test_split)
            return [file for folder in folders for file in image_files(folder)]
        return [self._npz] if self.kind == "npz" else []

    @property
    def _npz(self) -> Path:
        return self.place if self.place.is_file() else self._archives[0]

    @property
    def _archives(self) -> list[Path]:
        return [file for file in self.place.glob("*.npz") if visible(file.name)]


def _described(files: Sequence[str | Path]) -> list[list[Any]]:
    """Absolute path, size and time of each file; of archives, whose time some tools reset, the end as well."""
    found: list[list[Any]] = []
    for file in files:
        path = os.path.abspath(file)
        stat = os.stat(path)
        tail = 0
        if isinstance(file, Path):  # images of a folder, many and small, come as texts
            with open(file, "rb") as opened:
                opened.seek(max(0, stat.st_size - _TAIL))
                tail = zlib.crc32(opened.read())
        found.append([path, stat.st_size, stat.st_mtime_ns, tail])
    return found
