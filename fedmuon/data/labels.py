"""Class numbers from whatever stands in a label column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmuon.data.images import Split
from fedmuon.errors import UsageError

_MOST = 1_000_000  # above it a number is an identifier rather than a class


def class_numbers(splits: Sequence[Split]) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """The labels of every split, int64 [n] from 0, and the class names; the first split is the one to train on.

    Names are those that the source declares, else the texts in the training labels in alphabetical order, else
    "0", "1", ... up to the largest training label.
    Raises UsageError for labels that are negative, beyond the names, or unknown to the training split.
    """
    train = splits[0]
    names = train.classes
    if train.labels.dtype.kind not in "iu":
        names = names or tuple(str(text) for text in np.unique(train.labels))
        number = {name: index for index, name in enumerate(names)}
        return [_looked_up(split, number) for split in splits], names
    if names is None:
        largest = int(train.labels.max())
        if largest >= _MOST:
            raise UsageError(f"{train.name} has the label {largest}; number the classes from 0 without large gaps")
        names = tuple(str(index) for index in range(largest + 1))
    return [_in_range(split, len(names), declared=train.classes is not None) for split in splits], names


def _in_range(split: Split, classes: int, declared: bool) -> np.ndarray:
    if split.labels.dtype.kind not in "iu":
        raise UsageError(f"{split.name} holds texts, the training labels are numbers; encode both alike")
    wrong = np.flatnonzero((split.labels < 0) | (split.labels >= classes))
    if len(wrong):
        source = "the classes that the file declares" if declared else "the classes of the training labels"
        raise UsageError(
            f"{split.name}: row {wrong[0]} has the label {split.labels[wrong[0]]}; allowed is 0 to {classes - 1}, "
            f"{source}; {len(wrong)} of {len(split.labels)} rows are wrong: remove or renumber them "
            "(-1 usually means unlabelled)"
        )
    return split.labels.astype(np.int64)


def _looked_up(split: Split, number: dict[str, int]) -> np.ndarray:
    texts, place = np.unique(split.labels, return_inverse=True)
    unknown = [str(text) for text in texts if str(text) not in number]
    if unknown:
        raise UsageError(
            f"{split.name}: {unknown[0]!r} is none of the {len(number)} classes of the training data; "
            f"{len(unknown)} such classes: remove or rename them"
        )
    return np.array([number[str(text)] for text in texts], np.int64)[place]
