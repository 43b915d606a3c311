"""Image classification data sets of the Hugging Face hub, through `datasets`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from fedmuon.data.images import Split
from fedmuon.data.parquet import check_columns, table_split
from fedmuon.errors import UsageError, nearest

if TYPE_CHECKING:
    from fedmuon.data.sources import Source

_TIMEOUT = 10.0  # seconds for the first answer


def read_hub(source: Source) -> list[Split]:
    """The training and test splits of `source.path`, downloaded where `datasets` does not have them yet.

    Raises UsageError for a data set, configuration, split or column that does not exist, and, within seconds, where
    neither the hub nor an earlier download can be reached.
    """
    assert source.path is not None
    import datasets  # type: ignore[import-untyped]

    revision, unreachable = _revision(source)
    try:
        if unreachable is None:
            loaded = datasets.load_dataset(source.path, source.config, revision=revision)
        else:
            with _offline():
                loaded = datasets.load_dataset(source.path, source.config, revision=source.revision)
    except ConnectionError as error:
        raise _no_network(source, unreachable or error) from None
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        if unreachable is not None:
            raise _no_network(source, unreachable) from None
        raise UsageError(f"data.path={source.path}, data.config={source.config}: {_short(error)}") from None
    return [_split(source, loaded, key, split) for key, split in source.splits().items()]


def _split(source: Source, loaded: Any, key: str, split: str) -> Split:
    if split not in loaded:
        raise UsageError(
            f"{key}={split}: data.path={source.path} has no such split{nearest(split, loaded)}; "
            f"it has {', '.join(loaded)}"
        )
    rows = loaded[split]
    if not len(rows):
        raise UsageError(f"{key}={split}: the split of data.path={source.path} has no rows; it needs at least one")
    check_columns(rows.features.arrow_schema, source.image, source.label, f"the split {split!r} of {source.path}")
    table = rows.select_columns([source.image, source.label]).with_format("arrow")[:]
    return table_split(table.replace_schema_metadata(rows.features.arrow_schema.metadata), source.image, source.label)


def _revision(source: Source) -> tuple[str | None, Exception | None]:
    """The commit that `data.revision` names, asked for once: without a network `datasets` tries for half a minute.

    Without an answer: None, and why. Raises UsageError where the hub has no such data set or revision.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return HfApi().dataset_info(str(source.path), revision=source.revision, timeout=_TIMEOUT).sha, None
    except RepositoryNotFoundError:
        raise UsageError(
            f"data.path={source.path}: the hub has no such data set, or it needs a login (hf auth login); "
            "the name is owner/name, as in uoft-cs/cifar100"
        ) from None
    except RevisionNotFoundError:
        raise UsageError(f"data.revision={source.revision}: data.path={source.path} has no such revision") from None
    except HFValidationError as error:
        raise UsageError(f"data.path={source.path}: is no name of a data set on the hub ({_short(error)})") from None
    except Exception as error:  # whatever the HTTP client of this version raises
        return None, error


@contextmanager
def _offline() -> Iterator[None]:
    """`datasets` looks only into its own folders, as under HF_HUB_OFFLINE=1, which is read at import."""
    import datasets
    from huggingface_hub import constants

    places = [
        (module, "HF_HUB_OFFLINE") for module in (constants, datasets.config) if hasattr(module, "HF_HUB_OFFLINE")
    ]
    before = [getattr(module, name) for module, name in places]
    try:
        for module, name in places:
            setattr(module, name, True)
        yield
    finally:
        for (module, name), value in zip(places, before, strict=True):
            setattr(module, name, value)


def _no_network(source: Source, error: Exception) -> UsageError:
    return UsageError(
        f"data.path={source.path}: the Hugging Face hub cannot be reached ({_short(error)}) and there is no earlier "
        f"download; where there is a network run `hf download --repo-type dataset {source.path} --local-dir FOLDER`, "
        "then set data.root=FOLDER; any folder with Parquet files, class folders or an .npz will do"
    )


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    with suppress(ValueError):
        text = text[: text.index(" For more information")]
    return text[:200] or type(error).__name__
