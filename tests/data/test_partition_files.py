"""Lists from a file: what is read, counted and refused; the published ones."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fedmuon.data.heterogeneity import heterogeneity
from fedmuon.data.partition import Partition
from fedmuon.data.partitions import feature_shift, from_file, iid
from fedmuon.errors import UsageError

SHARED = Path(os.environ.get("FEDMUON_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "partitions"
LISTS = [[4, 0], [2], [], [2, 5]]


def rows(partition: Partition) -> list[list[int]]:
    return [row.tolist() for row in partition]


@pytest.fixture
def file(tmp_path):
    def write(content, name="lists.json"):
        path = tmp_path / name
        if name.endswith(".json"):
            path.write_text(json.dumps(content))
        else:
            np.savez(path, **content)
        return path

    return write


def test_lists_keep_their_order_in_every_format(file):
    whole = Partition.from_lists(LISTS)
    packed = {"indices": whole.indices, "offsets": whole.offsets}
    for path in (
        file(LISTS),
        file({"indices": LISTS}),
        file({key: value.tolist() for key, value in packed.items()}),
        file(packed, "lists.npz"),
        file({"indices": np.array([[4, 0], [2, -1], [-1, -1], [2, 5]], np.int32)}, "table.npz"),
        file({"anything": np.array([[4, 0], [2, -1], [-1, -1], [2, 5]])}, "other.npz"),
    ):
        assert rows(from_file(6, 4, path=path)) == LISTS
    run = file({}, "run.npz")
    iid(6, 3, 0).save(run, validation=np.empty(0))
    assert rows(from_file(6, 3, path=run)) == rows(iid(6, 3, 0))


def test_features_of_a_run_come_with_its_lists(file):
    whole = feature_shift(6, 3, 0, noise=0.2, rotation=30)
    run = file({}, "run.npz")
    whole.save(run)
    assert np.array_equal(from_file(6, 3, path=run).features, whole.features)
    assert from_file(6, 4, path=file(LISTS)).features is None
    for features in (np.zeros((6, 5)), np.full((4, 2), np.nan), np.array([["a", "b"]] * 4)):
        packed = {"indices": np.array([[0], [1], [2], [3]]), "features": features}
        with pytest.raises(UsageError, match=r"^partition\.path=.*features must be .* \[4, 2\]"):
            from_file(6, 4, path=file(packed, "other.npz"))


def test_repeats_held_out_and_missing_samples_are_counted_said_and_stored(file, tmp_path):
    partition = from_file(6, 4, path=file(LISTS), among=np.array([0, 1, 2, 3, 5]))
    assert rows(partition) == [[0], [2], [], [2, 5]]
    (note,) = partition.notes
    assert note.endswith(
        "4 different samples in 5 entries, 1 are repeats; 1 entries are held out for validation and were taken out; "
        "2 of 5 training samples are in no list"
    )
    partition.save(tmp_path / "saved.npz")
    assert Partition.load(tmp_path / "saved.npz").notes == (note,)
    assert from_file(4, 2, path=file([[0, 1], [2, 3]])).notes == ()


def test_lists_that_leave_nobody_a_sample_are_refused(file):
    with pytest.raises(UsageError, match=r"^partition\.path=.*: gives none of 2 clients .* lists are empty; name"):
        from_file(6, 2, path=file([[], []]))
    with pytest.raises(UsageError, match=r"^partition\.path=.* is held out by data\.validation; .*lower data\.val"):
        from_file(6, 2, path=file([[0], [1]]), among=np.arange(2, 6))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([[0, 6]] * 4, r"index 6 is out of range; the training set has 6 samples"),
        ([[0], [-1], [1], [2]], r"index -1 is out of range"),
        ([[0], [1]], r"^federation\.clients=4: .* has 2 lists; set federation\.clients=2"),
        ([[0.5], [1], [2], [3]], r"must hold one row of whole numbers .* float64"),
        ([[True], [False], [True], [True]], r"whole numbers .* bool"),
        ([0, 1, 2, 3], r"must hold one row of whole numbers"),
        ({"a": [[0]], "b": [[1]]}, r"has no array 'indices'; it has 'a', 'b'"),
        ({"indices": [0, 1], "offsets": [0, 1, 1, 1, 3]}, r"offsets must rise"),
        ({"indices": [0, 1]}, r"must hold one row of whole numbers"),
        ("words", r"must hold one row of whole numbers"),
    ],
)
def test_wrong_content_is_refused(file, content, message):
    with pytest.raises(UsageError, match=message):
        from_file(6, 4, path=file(content))


def test_wrong_files_are_refused(file, tmp_path):
    with pytest.raises(UsageError, match=r"^partition\.path=null"):
        from_file(6, 4)
    with pytest.raises(UsageError, match=r"^partition\.path=.*absent\.npz: there is no such file"):
        from_file(6, 4, path=tmp_path / "absent.npz")
    for name in ("broken.npz", "broken.json"):
        for content in (b"PK\x03\x04 half", b"0 1 2\n3 4 5\n"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(
                UsageError, match=r"^partition\.path=.*broken.*: cannot be read .*an \.npz .*\.json"
            ) as told:
                from_file(6, 4, path=tmp_path / name)
            assert "pickle" not in str(told.value)
    objects = tmp_path / "objects.npz"
    np.savez(objects, indices=np.array([[0], [1, 2]], object))
    with pytest.raises(UsageError, match=r"\(it holds Python objects\).* without Python objects"):
        from_file(6, 2, path=objects)
    with pytest.raises(UsageError, match=r"is not a partition written by fedmuon \(no \.npz archive\)"):
        Partition.load(tmp_path / "broken.json")
    with pytest.raises(UsageError, match=r"^partition\.min_size=1: 1 lists .* smallest 0"):
        from_file(6, 4, path=file(LISTS), min_size=1)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published lists are not on this machine")
@pytest.mark.parametrize(("concentration", "different"), [("0.1", 42_996), ("0.6", 47_505)])
def test_the_published_lists_have_the_published_figures(concentration, different):
    partition = from_file(50_000, 100, path=SHARED / f"cifar100-dirichlet{concentration}-100x500.npz")
    figures = heterogeneity(partition, np.zeros(50_000, int))
    assert (figures.different, figures.repeated, figures.missing) == (different, 50_000 - different, 50_000 - different)
    assert set(partition.sizes) == {500}
    assert f"{different:,} different samples in 50,000 entries" in partition.notes[0]
