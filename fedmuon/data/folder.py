"""The folder format of torchvision.datasets.ImageFolder: a folder a split, in it a folder a class, in it the images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedmuon.data.images import Encoded, Split
from fedmuon.errors import UsageError

_ENDINGS = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}  # torchvision's IMG_EXTENSIONS
_TEST = ("test", "val", "valid", "validation")


def split_folders(root: Path, train: str, test: str | None) -> list[Path]:
    """The folders of the splits: root/<train>, and root/<test> or one of root/test, val, valid, validation.

    Raises UsageError (data.root).
    """
    found = [root / train]
    if test is not None:
        found.append(next((root / n for n in (test, *_TEST) if n != train and (root / n).is_dir()), root / test))
    for folder in found:
        if not folder.is_dir():
            raise UsageError(
                f"data.root={root}: has no folder {folder.name!r} of the split beside it; expected "
                f"{train}/<class>/*.png and {test}/<class>/*.png; data.test_split=null goes without test images"
            )
    return found


def check_folder(root: Path, train: str, test: str | None) -> None:
    """Refuse what `read_folder` could not, but for the contents of images after each split's first. Raises UsageError."""
    from PIL import Image

    for split in read_folder(root, train, test):
        first = split.images.cells(0, 1)[0]
        try:
            Image.open(first).load()  # type: ignore[arg-type]
        except (OSError, ValueError, SyntaxError) as error:
            raise UsageError(
                f"{split.images.name(0)} cannot be decoded ({error}); download or write it again"
            ) from None


def read_folder(root: Path, train: str, test: str | None) -> list[Split]:
    """The splits, in the alphabetical order of classes and files. Raises UsageError for a split or class without images."""
    folders = split_folders(root, train, test)
    classes = _subfolders(folders[0])
    if not classes:
        raise UsageError(
            f"data.root={root}: {folders[0].name}/ holds no class folders; expected {train}/<class>/*.png"
        )
    return [_split(folder, classes, every=position == 0) for position, folder in enumerate(folders)]


def image_files(folder: Path) -> list[Path]:
    """All images under a folder, sorted."""
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in _ENDINGS)


def _split(folder: Path, classes: Sequence[str], every: bool) -> Split:
    files: list[str] = []
    labels: list[str] = []
    for name in _subfolders(folder):
        found = [str(file) for file in image_files(folder / name)]
        if not found and every:
            raise UsageError(
                f"data.root={folder / name}: the class has no images; allowed endings are {' '.join(sorted(_ENDINGS))}"
            )
        files += found
        labels += [name] * len(found)
    if not files:
        raise UsageError(f"data.root={folder}: the split has no images; expected {folder.name}/<class>/*.png")
    return Split(
        images=Encoded(len(files), lambda start, stop: files[start:stop], lambda row: f"data.root={files[row]}: the image"),
        labels=np.array(labels),
        name=f"data.root={folder}",
        classes=tuple(classes),
    )


def _subfolders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
