"""The folder format of torchvision.datasets.ImageFolder: a folder a split, in it a folder a class, in it the images.

Images may lie in folders below, also through links; what is hidden is none (`fedmuon.listing`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedmuon.data.images import Encoded, Split
from fedmuon.errors import UsageError
from fedmuon.listing import visible, walk

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
    """Refuse what `read_folder` could not, looking into the first image of a split only. Raises UsageError."""
    from PIL import Image

    folders = split_folders(root, train, test)
    classes = _classes(folders[0], train)
    for folder in folders:
        first = [next(_images(folder / name), None) for name in _subfolders(folder)]
        for name, image in zip(_subfolders(folder), first, strict=True):
            if image is None and folder == folders[0]:
                raise _empty_class(folder / name)
            if image is not None and name not in classes:
                raise UsageError(
                    f"data.root={folder}: the class {name!r} is none of the {len(classes)} in {folders[0].name}/"
                )
        image = next(filter(None, first), None)
        if image is None:
            raise _empty_split(folder)
        try:
            Image.open(image).load()
        except (OSError, ValueError, SyntaxError) as error:
            raise UsageError(
                f"data.root={image}: the image cannot be decoded ({error}); download or write it again"
            ) from None


def read_folder(root: Path, train: str, test: str | None) -> list[Split]:
    """The splits, ordered by class and file name. Raises UsageError for a split or training class without images."""
    folders = split_folders(root, train, test)
    classes = _classes(folders[0], train)
    return [_split(folder, classes, every=folder == folders[0]) for folder in folders]


def image_files(folder: Path) -> list[str]:
    """The paths of all images under a folder, sorted; of a folder that links lead to twice, once."""
    return sorted(_images(folder))


def _images(folder: Path) -> Iterator[str]:
    for where, _, names in walk(folder):
        yield from (os.path.join(where, name) for name in names if os.path.splitext(name)[1].lower() in _ENDINGS)


def _split(folder: Path, classes: Sequence[str], every: bool) -> Split:
    files: list[str] = []
    labels: list[str] = []
    for name in _subfolders(folder):
        found = image_files(folder / name)
        if not found and every:
            raise _empty_class(folder / name)
        files += found
        labels += [name] * len(found)
    if not files:
        raise _empty_split(folder)
    return Split(
        images=Encoded(
            len(files), lambda start, stop: files[start:stop], lambda row: f"data.root={files[row]}: the image"
        ),
        labels=np.array(labels),
        name=f"data.root={folder}",
        classes=tuple(classes),
    )


def _classes(folder: Path, train: str) -> list[str]:
    classes = _subfolders(folder)
    if not classes:
        raise UsageError(f"data.root={folder}: holds no class folders; expected {train}/<class>/*.png")
    return classes


def _subfolders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and visible(entry.name))


def _empty_class(folder: Path) -> UsageError:
    return UsageError(f"data.root={folder}: the class has no images; allowed endings are {' '.join(sorted(_ENDINGS))}")


def _empty_split(folder: Path) -> UsageError:
    return UsageError(f"data.root={folder}: the split has no images; expected {folder.name}/<class>/*.png")
