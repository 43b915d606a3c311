import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """An empty cache folder for every test, never the user's."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDMUON_CACHE", str(folder))
    return folder
