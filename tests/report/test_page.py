"""The page in a headless Chromium: no error, no request, curves drawn, everything that can be pressed works."""

import json
import re
import shutil
from contextlib import contextmanager
from threading import Thread

import numpy as np
import pytest

from fedmuon.data.partition import Partition
from fedmuon.report.runs import stamp
from fedmuon.report.watch import Watch
from fedmuon.report.write import described, write_page
from tests.report.directories import write_run

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
browsers = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
ODD = "a<b>&\"quoted\" 'name' ${x}</script><img src=x onerror=alert(1)>"


def write_sweep(folder):
    """Three methods, one with an odd name, at two concentrations and two rates, three seeds each; one run failed."""
    for a, algorithm in enumerate(("fedmuon", "fedavg", ODD)):
        for concentration in (0.1, 1.0):
            for lr in (0.01, 0.1):
                for seed in range(3):
                    top = 0.8 - 0.1 * a + 0.05 * concentration + lr + 0.01 * ((7 * seed + a) % 3)
                    path = write_run(
                        folder / f"{a}-{concentration}-{lr}-{seed}",
                        [round(top * (1 - 0.7**r), 4) for r in range(1, 16)],
                        algorithm=algorithm,
                        seed=seed,
                        local__lr=lr,
                        partition__concentration=concentration,
                    )
                    with (path / "metrics.jsonl").open("a") as file:
                        file.write('{"round": 16, "clients/before/accuracy_mean": 0.5, "test/acc')
                    lists = [[0, 1, 2, 3], [4, 5], [6, 7]]
                    Partition.from_lists(lists).save(
                        path / "partition.npz", labels=np.arange(8) % 3, classes=["x", ODD, "z"]
                    )
    failed = write_run(
        folder / "failed", [0.1, None], algorithm="fedavg", seed=7, status="failed", federation__rounds=15
    )
    (failed / "summary.json").write_text(json.dumps({"status": "failed", "cause": "RoundError: <nan>"}))
    rows = [{"round": 1, "client": c, "before/accuracy": c / 20, "after/accuracy": 0.9} for c in range(20)]
    (failed.parent / "0-0.1-0.01-0" / "clients.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = '{"round": 16, "clients/before/accuracy_mean": 0.5, "test/accuracy": 0.8, "val/accuracy": 0.8}\n'
    metrics = failed.parent / "0-0.1-0.01-0" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]) + line)
    return folder


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return write_page([write_sweep(folder / "sweep")], folder / "report.html", targets=[0.5, 0.7])


@pytest.fixture(scope="module")
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser, path, width=1300, scheme="light"):
    """The page, once it is drawn; at the end nothing may have been complained about or asked for."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(30_000)
    wrong = []
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
    local = ("file:", "data:", "blob:")
    page.on("request", lambda request: None if request.url.startswith(local) else wrong.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    yield page
    page.close()
    assert wrong == []


def lines(page, chart="chart-0"):
    """Number of curves that one sees in a chart; the bands have no line."""
    drawn = page.locator(f"#{chart} .scatterlayer .trace path.js-line")
    return sum(
        width != "0px" for width in drawn.evaluate_all("all => all.map(one => getComputedStyle(one).strokeWidth)")
    )


def column(page, number, table="results"):
    return page.locator(f"#{table} tbody tr td:nth-child({number})").all_inner_texts()


def test_the_file_is_small_and_names_no_address(html):
    text = html.read_text(encoding="utf-8")
    assert html.stat().st_size < 3_000_000
    scripts = text[: text.index('id="plotly"')] + text[text.rindex("<script>") :]
    addresses = set(re.findall(r"https?://[\w./]+", scripts))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "<img src=x" not in text and text.count("</script>") == 3
    named = re.findall(r'\b(?:src|href|action)="([^"]*)"', scripts)
    assert named and all(name.startswith(("data:", "#")) for name in named)


@browsers
@pytest.mark.parametrize("width, scheme", [(1300, "light"), (390, "dark")])
def test_everything_is_drawn_and_fits(html, chromium, width, scheme):
    with opened(chromium, html, width, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert [lines(page, f"chart-{i}") for i in range(3)] == [12, 12, 12]
        assert page.locator("#results tbody tr").count() == 12
        assert page.locator("#bars .bars .point").count() == 12
        assert page.locator("#map-0 .heatmaplayer image").count() == 1
        assert page.locator("#partition-chart .heatmaplayer image").count() == 1
        assert lines(page, "client-chart") >= 1
        assert (
            ODD in page.locator("#legend").inner_text() and "RoundError: <nan>" in page.locator("#runs").text_content()
        )
        assert "its last line is cut off" in page.locator("#problems").inner_text()
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == (scheme == "dark")


@browsers
def test_sorting_toggles_axes_and_smoothing(html, chromium):
    with opened(chromium, html) as page:
        values = [float(text.split(" ")[0]) for text in column(page, 2)]
        assert values == sorted(values, reverse=True)
        page.click("#sort-results-last")
        assert [float(text.split(" ")[0]) for text in column(page, 2)] == sorted(values)
        assert page.locator("#results th[aria-sort=ascending]").inner_text().startswith("last round")
        page.locator("#sort-results-rounds").press("Enter")  # with the keyboard
        rounds = [float(text.split(" ")[0]) for text in column(page, 4) if text != "–"]
        assert len(rounds) > 1 and rounds == sorted(rounds)
        assert page.evaluate("document.activeElement.id") == "sort-results-rounds"

        page.locator("#group-0").press("Space")
        assert lines(page) == 11 and page.evaluate("document.activeElement.id") == "group-0"
        page.click("#show-none")
        assert lines(page) == 0
        page.locator("#only-3").click()
        assert lines(page) == 1
        page.check("#seeds")
        assert lines(page) == 4  # the mean and its three seeds
        page.uncheck("#seeds")

        before = page.evaluate("document.getElementById('chart-0').data.at(-1).y[1]")
        page.locator("#smoothing").fill("0.9")
        assert page.evaluate("document.getElementById('chart-0').data.at(-1).y[1]") < before
        page.check("#log-y")
        page.click("#horizontal-axis-mb")
        axes = page.evaluate(
            "(({xaxis, yaxis}) => [yaxis.type, xaxis.title.text])(document.getElementById('chart-0').layout)"
        )
        assert axes[0] == "log" and axes[1].startswith("megabytes")
        assert page.evaluate("document.getElementById('chart-0').data.at(-1).x[1]") == 6


@browsers
def test_marks_targets_settings_and_configurations(html, chromium):
    with opened(chromium, html) as page:
        # FedMuon at its better rate beats FedAvg at its better rate, at both concentrations
        assert page.locator("#results .better").count() == 2
        page.select_option("#reference", index=5)
        assert page.locator("#results .better, #results .worse").count() > 4
        page.select_option("#target", "0.5")
        assert "rounds to 50 %" in page.locator("#results thead").inner_text()
        page.select_option("#map-x", "algorithm.name")
        assert page.evaluate("document.getElementById('map-0').layout.xaxis.title.text") == "algorithm"
        page.select_option("#measure", "rounds")
        assert page.locator("#bars .bars .point").count() > 0

        table = page.locator("#configuration-table")
        page.select_option("#run-a", "0")
        page.select_option("#run-b", "1")
        assert table.locator("tbody tr th").all_inner_texts() == [
            f"≠ {key}" for key in ("data.seed", "model.seed", "partition.seed", "seed")
        ]
        page.uncheck("#differing")
        page.fill("#find", "federation.rounds")
        assert table.locator("tbody tr").count() == 1 and "15" in table.inner_text()
        page.select_option("#theme", "dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 23)"


@browsers
def test_a_mean_over_some_of_the_runs_says_so_and_one_seed_has_no_error_bar(tmp_path, chromium):
    for seed, end in enumerate([0.5, 0.7, None]):
        write_run(tmp_path / f"{seed}", [0.1, end], seed=seed, summary={"machine": f"CPU {seed // 2}"})
    write_run(tmp_path / "one", [0.4], algorithm="fedavg")
    with opened(chromium, write_page([tmp_path], tmp_path / "page.html")) as page:
        assert column(page, 2) == ["60.0 ± 14.1 (2 of 3)", "40.0"] and column(page, 3) == ["43.3 ± 30.6", "40.0"]
        assert "60.0 ± 14.1 % (2 of 3)" in page.locator("#tiles").inner_text()
        assert "different machines: CPU 0; CPU 1." in page.locator("#table-notes").inner_text()
        assert page.locator("#bars .errorbar path").count() == 1


@browsers
def test_one_running_run_without_anything_else(tmp_path, chromium):
    run = write_run(tmp_path / "r", [0.3], status="running", evaluation__targets=[], federation__rounds=9)
    (run / "summary.json").unlink()
    with opened(chromium, write_page([run], tmp_path / "one.html")) as page:
        assert "so far" in page.locator("#results").inner_text() and lines(page) == 1
        assert page.locator("#tiles .card").count() == 0
        assert page.locator("#settings").is_hidden() and page.locator("#partition").is_hidden()


@browsers
@pytest.mark.parametrize("alike", [True, False])
def test_a_best_for_the_worst_clients_is_named_where_there_is_one_and_rows_of_runs_are_lines(tmp_path, chromium, alike):
    for number, algorithm in enumerate(("fedmuon", "fedavg")):
        run = write_run(
            tmp_path / "a_long_name_of_a_sweep" / f"{algorithm}-seed0-3f2a91c0d4e5", [0.5], algorithm=algorithm
        )
        (run / "metrics.jsonl").write_text('{"round": 1, "test/accuracy": 0.5, "clients/before/accuracy_mean": 0.5}\n')
        worst = 0.0 if alike else 0.1 * number
        (run / "clients.jsonl").write_text(f'{{"round": 1, "client": 0, "before/accuracy": {worst}}}\n')
    with opened(chromium, write_page([tmp_path], tmp_path / "page.html"), width=390) as page:
        cards = page.locator("#tiles").inner_text()
        assert ("best for the worst 10 % of the clients" in cards) == (not alike)
        heights = page.locator("#all-runs tbody tr").evaluate_all("all => all.map(row => row.offsetHeight)")
        assert len(heights) == 2 and max(heights) < 50


@browsers
def test_a_watched_page_takes_in_new_rounds_and_keeps_what_was_chosen(tmp_path, chromium):
    run = write_run(tmp_path / "r", [0.1, 0.2], status="running", federation__rounds=9)
    server = Watch(lambda: described(tmp_path), lambda: stamp([tmp_path]))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    page, wrong = chromium.new_page(), []
    try:
        page.on("console", lambda message: wrong.append(message.text))
        page.goto(server.address)
        page.locator("#log-y").check()
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"round": 3, "test/accuracy": 0.77, "val/accuracy": 0.7}\n')
        page.locator("#results", has_text="77.0").wait_for(timeout=30_000)
        assert page.locator("#log-y").is_checked() and wrong == []
        assert "rounds to 50 %" in page.locator("#results thead").inner_text()  # none was reached when the page opened
        assert "3" in column(page, 4)
    finally:
        page.close()
        server.shutdown()
        server.server_close()
        thread.join()
