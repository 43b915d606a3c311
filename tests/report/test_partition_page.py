"""`fedmuon-partition`: one self-contained page with the right figures, whatever the number of clients."""

import base64
import io
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from fedmuon.data.heterogeneity import client_figures, heterogeneity
from fedmuon.data.partition import Partition
from fedmuon.data.partitions import dirichlet_classes, feature_shift, iid
from fedmuon.report import partition as command
from fedmuon.report.partition_page import MOST_ROWS, page


def html(partition, labels, classes):
    each = client_figures(partition, labels)
    settings = {"seed": 0, "data": {"name": "d"}, "partition": {"name": "p<", "_target_": "t", "merge": True}}
    return page(partition, labels, classes, each, heterogeneity(partition, labels, each=each), 0, settings)


class Balanced(HTMLParser):
    """Raises for a closing tag that closes nothing, or something else."""

    VOID = frozenset({"meta", "img", "br", "path"})

    def __init__(self):
        super().__init__()
        self.open, self.cells = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in self.VOID

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def parsed(text):
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    return parser


def picture(text):
    data = re.search(r'src="data:image/png;base64,([^"]+)"', text)[1]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_the_heat_map_shows_each_clients_shares():
    labels = np.array([0, 0, 0, 1, 1, 1])
    text = html(Partition.from_lists([[0, 1], [2, 3, 4, 5], []]), labels, ("<cat>", "dog"))
    assert picture(text)[..., 3].tolist() == [[255, 0], [128, 221], [0, 0]]  # roots of 1, 1/4, 3/4
    assert "<cat>" not in text and "&lt;cat&gt;" in text and "partition=p&lt;" in text
    assert "partition.merge=true" in text
    clients = [
        "0",
        "2",
        "1",
        "<cat>",
        "1.00",
        "0.50",
        "1",
        "4",
        "2",
        "dog",
        "0.75",
        "0.25",
        "2",
        "0",
        "0",
        "–",
        "–",
        "–",
    ]
    assert parsed(text).cells[-18:] == clients


@pytest.mark.parametrize(
    ("clients", "samples"), [(1, 1), (10, 2000), (MOST_ROWS, 2000), (MOST_ROWS + 1, 2000), (10_000, 50_000)]
)
def test_any_number_of_clients_gives_a_small_page(clients, samples):
    labels = np.arange(samples) % 100
    text = html(dirichlet_classes(labels, clients, 0, concentration=0.05), labels, [str(k) for k in range(100)])
    parsed(text)
    assert picture(text).shape == (min(clients, MOST_ROWS), 100, 4)
    assert len(text) < 400_000
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)


def test_many_clients_are_ordered_by_their_most_frequent_class():
    labels = np.arange(5000) % 10
    text = html(
        Partition.from_lists([row[labels[row] == i % 10] for i, row in enumerate(iid(labels, 500, 0))]),
        labels,
        "0123456789",
    )
    filled = picture(text)[..., 3] > 0
    assert np.all(np.diff(filled[filled.any(1)].argmax(1)) >= 0)


def test_features_and_notes_are_shown():
    labels = np.zeros(10, int)
    assert "20.0°" in html(feature_shift(10, 3, 0, rotation=20), labels, ["a"])
    noted = Partition(np.arange(10), np.array([0, 10]), notes=("7 < 8",))
    assert "7 &lt; 8" in html(noted, labels, ["a"])


def test_the_command_writes_the_page_and_prints_the_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["fedmuon-partition", "partition=shards", "-o", "page.html", "federation.clients=12"]
    )
    command.main()
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    parsed(text)
    assert "<h1>shards: 12 clients</h1>" in text and "T-shirt/top" in text and "1,000 held out" in text
    assert re.search(r"12 clients of 750 to 750 samples, Gini 0\.00; .*\npage\.html\n$", capsys.readouterr().out, re.S)
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["page.html"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["partition=shard"], r"fedmuon-partition: partition=shard: no such option \(did you mean 'shards'\?\)"),
        (["-m", "partition=shards"], "-m: a page shows one partition; "),
        (["partition=file"], r"fedmuon-partition: partition\.path=null: "),
        (["partition=shards", "partition.classes_per_client=0"], r"partition\.classes_per_client=0: must be"),
        (["partition=natural"], r"DataSet\.groups"),
        (["-o", "nowhere/page.html"], r"--output nowhere/page\.html: there is no folder nowhere"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedmuon-partition", *arguments])
    with pytest.raises(SystemExit) as left:
        command.main()
    error = capsys.readouterr().err
    assert left.value.code == 2 and re.search(message, error) and error.count("\n") == 1
    assert not list(tmp_path.glob("*.html"))
