"""What a user has in Python becomes samples, or is refused in one line that says what to give."""

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fedmuon.data.given import as_samples, labels_of
from fedmuon.errors import UsageError

X, Y = torch.arange(12.0).reshape(4, 3), torch.tensor([1, 0, 1, 1])


class Sequence:
    """Derived from nothing."""

    def __init__(self, *columns):
        self.columns = columns

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return tuple(column[index] for column in self.columns)


def of_lists():
    return datasets.Dataset.from_dict({"x": X.tolist(), "label": Y.tolist()})


PAIRS = [(X[i], int(Y[i])) for i in range(4)]
FLIPPED = np.ascontiguousarray(X.numpy()[::-1])


@pytest.mark.parametrize(
    "data",
    [
        (X.numpy(), Y.numpy()),
        [X.numpy(), Y.numpy()],
        (FLIPPED[::-1], np.frombuffer(Y.numpy().tobytes(), np.int64)),  # negative strides, read only
        {"x": X.numpy(), "y": Y},
        (X.numpy().astype(">f4"), Y.numpy().astype(">i8")),  # as files of other machines have them
        Sequence(X, Y),
        Sequence(X.numpy(), Y.tolist()),
        DataLoader(PAIRS),
        of_lists().with_format("torch"),
        of_lists().with_format("numpy"),
        DataLoader(of_lists().with_format("torch"), batch_size=2),
    ],
)
def test_all_of_these_are_the_same_samples(data):
    samples = as_samples(data, "train")
    columns = samples.columns.values() if isinstance(samples.columns, dict) else samples.columns
    x, y = sorted(columns, key=lambda column: -column.ndim)
    assert torch.equal(x, X) and torch.equal(y, Y) and labels_of(data, samples).tolist() == Y.tolist()


@pytest.mark.parametrize("array", [np.ma.masked_array(X.numpy(), mask=X.numpy() > 0), np.array([{}, {}])])
def test_an_array_that_is_none_of_numbers_is_named(array):
    with pytest.raises(UsageError, match=rf"^train=\w+: must be tensors.* here is \w+ of {array.dtype}$"):
        as_samples(array, "train")


def test_an_array_is_one_column():
    assert torch.equal(as_samples(X.numpy(), "train").columns, X)


class Broken(Dataset):
    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index == 1:
            raise self.error
        return torch.zeros(2)


def odd(samples):
    raise KeyError("image")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (Broken(KeyError("id")), r"Broken: sample 1 cannot be read \(KeyError: 'id'\); .* from 0 to 2$"),
        (Broken(OSError("gone")), r"Broken: sample 1 cannot be read \(OSError: gone\)"),
        ({"a": 1}, r"dict: must be tensors or arrays .* here is int$"),
        (DataLoader(PAIRS, collate_fn=odd), r"list: its samples do not make one batch \(KeyError: 'image'\); make"),
        (PAIRS, r"list: of 4 times tuple, which could be samples or columns; give samples as a DataLoader of"),
        ([(X[i : i + 1], Y[i : i + 1]) for i in range(4)], r"list: of 4 times tuple, which could be samples or col"),
        ([{"x": X, "y": Y}], r"list: of 1 times dict"),
        ((np.array(["a", "b"]), Y), r"tuple: must be tensors or arrays .* here is ndarray of"),
        (np.array(3.0), r"ndarray: must be tensors or arrays"),
        ("data/train", r"str: must be tensors or arrays .* here is str$"),
        (3, r"int: must be tensors or arrays .* here is int$"),
    ],
)
def test_what_is_refused_says_where_and_what_to_give(data, told):
    with pytest.raises(UsageError, match=f"^train={told}") as caught:
        as_samples(data, "train")
    assert "\n" not in str(caught.value)
    if isinstance(data, Broken):
        assert caught.value.__cause__ is data.error
