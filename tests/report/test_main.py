"""`fedmuon-report`: pages, tables, figures, and pages that refresh; wrong input is one line and code 2."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from xml.etree import ElementTree

import pytest

from fedmuon.report.main import main
from fedmuon.report.runs import stamp
from fedmuon.report.watch import Watch
from fedmuon.report.write import told
from tests.report.directories import write_run


@pytest.fixture
def sweep(tmp_path):
    for algorithm in ("fedmuon", "fed$avg_"):
        for lr in (0.1, 0.2):
            for seed in range(2):
                path = tmp_path / "sweep" / f"{algorithm}{lr}{seed}"
                write_run(path, [0.2, 0.5 + lr + 0.01 * seed], algorithm=algorithm, seed=seed, local__lr=lr)
    return tmp_path / "sweep"


def test_the_page_is_written_whole(sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main([str(sweep)])
    assert capsys.readouterr().out == "report.html\n"
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    found = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert [group["label"] for group in found["groups"]] == [
        "fed$avg_, lr=0.1", "fed$avg_, lr=0.2", "fedmuon, lr=0.1", "fedmuon, lr=0.2",
    ]  # fmt: skip
    assert found["title"] == "sweep" and sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "sweep"]


def test_tables_go_to_the_screen_or_a_file(sweep, tmp_path, capsys):
    main([str(sweep), "--format", "md", "--target", "0.6", "--baseline", "fed$avg_"])
    printed = capsys.readouterr().out
    assert "| fedmuon, lr=0.1 | 60.5 ± 0.7 | 60.5 ± 0.7 | 2 | 6 | 4 | 1 × |" in printed
    main([str(sweep), "--format", "csv", "-o", str(tmp_path / "table.csv")])
    assert (tmp_path / "table.csv").read_text().count("\n") == 5 and capsys.readouterr().out == ""


def test_the_page_goes_to_standard_output_pipes_and_through_links(sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main([str(sweep), "-o", "-"])
    page, said = capsys.readouterr()
    assert page.rstrip().endswith("</html>") and said == "-\n"
    main([str(sweep), "--format", "csv", "-o", "-"])
    assert capsys.readouterr().out.count("\n") == 5 and told(Path("/dev/stdout")) is sys.stderr
    os.mkfifo("fifo")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(lambda: Path("fifo").read_text(encoding="utf-8"))
        main([str(sweep), "-o", "fifo"])
        assert read.result(30).rstrip().endswith("</html>")
    Path("latest.html").symlink_to("page.html")
    main([str(sweep), "-o", "latest.html"])
    assert Path("fifo").is_fifo() and Path("latest.html").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "latest.html", "page.html", "sweep"]
    assert Path("page.html").read_text(encoding="utf-8").rstrip().endswith("</html>")


def test_figures_are_vectors(sweep, tmp_path, capsys):
    main([str(sweep), "--figures", str(tmp_path / "figures"), "--format", "tex", "-o", str(tmp_path / "table.tex")])
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    wanted = {f"{key}-{axis}" for key in ("test_accuracy", "test_loss", "train_loss") for axis in ("round", "mb", "s")}
    assert names == {f"{name}.{kind}" for name in wanted | {"results"} for kind in ("svg", "pdf")}
    drawn = ElementTree.parse(tmp_path / "figures" / "test_accuracy-round.svg").getroot()
    groups = [node.get("id", "") for node in drawn.iter("{http://www.w3.org/2000/svg}g")]
    assert sum(name.startswith("line2d") for name in groups) > 4 and drawn.find(".//{*}image") is None
    assert (tmp_path / "figures" / "results.pdf").read_bytes().startswith(b"%PDF")


def test_figures_of_more_groups_than_colours(tmp_path):
    for number in range(33):
        write_run(tmp_path / "s" / f"{number:02}", [0.1, 0.2], local__lr=number)
    main([str(tmp_path / "s"), "--figures", str(tmp_path / "f"), "--format", "md"])
    assert (tmp_path / "f" / "test_accuracy-round.pdf").exists()


def test_a_metric_that_no_run_has_yet_is_taken_as_it_is(tmp_path, capsys):
    write_run(tmp_path / "r", [], status="running", federation__rounds=9)
    main([str(tmp_path / "r"), "--metric", "f1", "--format", "md"])
    assert "f1 (%), last round" in capsys.readouterr().out


def test_the_baseline_of_a_sweep_that_goes_on_may_come_later(tmp_path, capsys):
    write_run(tmp_path / "r", [0.5], status="running", federation__rounds=9)
    main([str(tmp_path / "r"), "--baseline", "fedprox", "--format", "md"])
    assert "| fedmuon | 50.0 |" in capsys.readouterr().out


def test_a_heat_map_of_two_numbers(tmp_path, capsys):
    for lr in (0.1, 0.2):
        for c in (0.5, 1.0):
            write_run(tmp_path / "s" / f"{lr}{c}", [lr * c], local__lr=lr, partition__concentration=c)
    main([str(tmp_path / "s"), "--figures", str(tmp_path / "f"), "--format", "md"])
    assert (tmp_path / "f" / "heat_map.svg").exists() and "22 figures" in capsys.readouterr().err


def test_damaged_runs_are_told_and_do_not_end_it(sweep, capsys):
    (next(sweep.iterdir()) / "summary.json").write_text("{")
    (sweep / "other").mkdir()
    (sweep / "other" / "summary.json").write_text("{}")
    main([str(sweep), "--format", "md"])
    error = capsys.readouterr().err
    assert "summary.json: is damaged" in error and "other: is no run directory of fedmuon" in error


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere"], r"^fedmuon-report: nowhere: there is no such directory"),
        (["empty"], r"^fedmuon-report: empty: no run in it; name a run directory"),
        (["sweep", "-o", "no/where.html"], r"--output no/where\.html: there is no folder no"),
        (["sweep", "-o", "empty"], r"--output empty: is a folder"),
        (["sweep", "-o", f"{'x' * 250}.html"], r"--output x+\.html: cannot be written \(File name too long\)"),
        (["sweep", "--figures", "file"], r"--figures file: cannot be written \(File exists\); name another folder"),
        (["sweep", "--metric", "acuracy"], r"--metric acuracy: no run has it \(did you mean 'accuracy'\?\); "),
        (["sweep", "--format", "md", "--metric", "f1"], r"--metric f1: no run has it; allowed: accuracy, loss"),
        (["sweep", "--baseline", "fedmoun"], r"--baseline fedmoun: no run has this algorithm \(did you mean 'fedmuon'"),
        (["sweep", "--target", "nan"], r"--target nan: must be a finite number"),
        (["sweep", "--watch", "--format", "csv"], r"--format csv: is nothing that --watch does"),
        (["sweep", "--watch", "-o", "a.html"], r"--output a\.html: is nothing that --watch does"),
        (["sweep", "--watch", "--figures", "f"], r"--figures f: is nothing that --watch does"),
        (["sweep", "--port", "8000"], r"--port 8000: is of --watch alone"),
        (["sweep", "--open", "--format", "md"], r"--open: shows the page, and --format md makes none"),
        (["sweep", "--watch", "--port", "99999"], r"--port 99999: cannot be used"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(sweep, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as left:
        main(arguments)
    error = capsys.readouterr().err
    assert left.value.code == 2 and re.search(message, error) and error.count("\n") == 1
    assert not list(tmp_path.glob("*.html"))


def get(address, host=None):
    request = urllib.request.Request(address, headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.status, answer.read().decode()


def test_watching_serves_what_runs_have_written_since(sweep):
    from fedmuon.report.write import described

    server = Watch(lambda: described(sweep), lambda: stamp([sweep]))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        version = server.latest["version"]
        assert '"watch":true' in get(server.address)[1]
        assert get(f"{server.address}data.json?version={version}") == (204, "")
        write_run(sweep / "new", [0.9], algorithm="new", local__lr=0.1)
        status, text = get(f"{server.address}data.json?version={version}")
        found = json.loads(text)
        assert status == 200 and "new, lr=0.1" in [group["label"] for group in found["groups"]]
        assert get(f"{server.address}data.json?version={found['version']}")[0] == 204
        for address, host in ((f"{server.address}data.json", "evil.example:80"), (f"{server.address}etc", None)):
            with pytest.raises(urllib.error.HTTPError):
                get(address, host)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_ctrl_c_ends_watching_quietly(sweep):
    command = [sys.executable, "-m", "fedmuon.report.main", str(sweep), "--watch"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    line = process.stdout.readline()
    address = re.match(r"(http://127\.0\.0\.1:\d+/) ", line)[1]
    assert "<title>sweep: fedmuon</title>" in get(address)[1]
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 0 and error == ""
