"""What varies, groups over seeds, what "last", "best" and "to a target" mean, and when a difference is significant."""

import math

import pytest
from scipy import stats

from fedmuon.report.compare import deciding, groups, reference, significance, varying
from fedmuon.report.results import Metric, best, last, megabytes, metric_of, payload, reached
from fedmuon.report.rows import rows
from fedmuon.report.runs import read_run
from fedmuon.report.statistics import holm, paired, spread, two_sided
from tests.report.directories import write_run

ACCURACY = Metric("accuracy", True)


@pytest.fixture
def make(tmp_path):
    count = iter(range(1000))
    return lambda *args, **keys: read_run(write_run(tmp_path / f"run{next(count):03}", *args, **keys))


def test_varying_leaves_out_bookkeeping_and_seeds():
    a = {"seed": 0, "partition.seed": 0, "model.seed": 7, "run_dir": "x", "logger.wandb.name": 1, "local.lr": 1}
    b = {"seed": 1, "partition.seed": 1, "model.seed": 8, "run_dir": "y", "local.lr": 1.0, "data.size": [1, 2]}
    assert varying([a, b]) == ["data.size", "model.seed"]
    assert varying([a, a]) == []
    one_partition = [{**a, "seed": seed} for seed in (0, 1)]
    assert varying([*one_partition, {**a, "model.seed": 0}]) == ["model.seed"]
    moved = {"trainer.devices": 1, "trainer.accelerator": "gpu", "engine.workers": 2, "federation.store": "disk"}
    assert varying([a, {**a, **moved}, {**a, "trainer.precision": "64-true"}]) == ["trainer.precision"]


def test_a_callback_that_may_end_a_run_tells_it_apart(make):
    stop = {"callbacks__stop___target_": "lightning.pytorch.callbacks.EarlyStopping", "callbacks__stop__patience": 3}
    bar = {"callbacks__bar___target_": "lightning.pytorch.callbacks.RichProgressBar"}
    found = groups([make([0.1]), make([0.1], seed=1, **bar), make([0.1], **stop)])
    assert [(group.label, len(group.runs)) for group in found] == [
        ("fedmuon", 2),
        ("stop=lightning.pytorch.callbacks.EarlyStopping", 1),
    ]


def test_deciding_drops_what_follows_from_other_keys():
    own = [{"algorithm.name": n, "local.lr": r} for n, r in (("fedmuon", 0.01), ("fedavg", 0.3))]
    assert deciding(own) == ["algorithm.name"]
    assert deciding([*own, {"algorithm.name": "fedmuon", "local.lr": 0.1}]) == ["algorithm.name", "local.lr"]
    assert deciding([{"local.lr": 1, "federation.clients": 10}, {"local.lr": 2, "federation.clients": 20}]) == [
        "local.lr"
    ]


def test_groups_over_seeds_and_their_labels(make):
    runs = [make([0.1 * s], algorithm=a, seed=s, local__lr=lr) for a, lr in (("b", 1), ("a", 0.5)) for s in (2, 0, 1)]
    found = groups(runs)
    assert [group.label for group in found] == ["a", "b"]
    assert [run.seed for run in found[0].runs] == [0, 1, 2]
    runs = [make([0.1], local__lr=lr, server__lr=s, algorithm__align=False) for lr in (10.0, 9) for s in (1, 2)]
    assert [group.label for group in groups(runs)] == [
        "local.lr=9, server.lr=1",
        "local.lr=9, server.lr=2",
        "local.lr=10, server.lr=1",
        "local.lr=10, server.lr=2",
    ]
    assert groups(runs[:1])[0].label == "fedmuon"


def test_seeds_that_follow_and_a_seed_that_is_given_are_two_groups(make):
    runs = [make([0.1 * s], seed=s) for s in range(3)]
    runs += [make([0.2 * s], seed=s, partition__seed=7, data__seed=s, model__seed=s) for s in range(3)]
    assert [(group.label, len(group.runs)) for group in groups(runs)] == [("fedmuon", 3), ("partition.seed=7", 3)]
    assert [(group.label, len(group.runs)) for group in groups(runs[:4])] == [("fedmuon", 3), ("partition.seed=7", 1)]
    assert [(group.label, len(group.runs)) for group in groups(runs[3:])] == [("fedmuon", 3)]


def test_means_are_over_complete_runs(make):
    runs = [make([0.2, 0.4]), make([0.2, 0.6], seed=1), make([0.1], seed=2, status="stopped", federation__rounds=2)]
    for run in runs:
        run.config["federation.rounds"] = 2
    (group,) = groups(runs)
    assert group.last(ACCURACY) == pytest.approx((0.5, math.sqrt(0.02), 2)) and not group.so_far
    (going,) = groups(runs[2:])
    assert going.so_far and going.last(ACCURACY)[::2] == (0.1, 1)


def test_of_two_runs_of_a_seed_the_furthest_counts(make):
    (group,) = groups([make([0.2], status="failed", federation__rounds=2), make([0.3, 0.4])])
    assert len(group.runs) == len(group.repeated) == 1 and group.last(ACCURACY).mean == 0.4
    failed = make([0.2, 0.3, 0.1], status="failed", federation__rounds=4)
    (group,) = groups([failed, make([0.3], status="running", federation__rounds=4)])
    assert group.repeated == (failed,) and group.last(ACCURACY).mean == 0.3


def test_last_best_and_targets(make):
    run = make([0.3, 0.6, 0.55, None, 0.5])
    run.columns["val/accuracy"][:] = [0.1, math.inf, 0.9, 0.9, math.nan]
    assert last(run, ACCURACY) == 0.5
    assert best(run, ACCURACY) == 0.55
    assert reached(run, ACCURACY, 0.55) == (2, 6.0, 4.0)
    assert reached(make([0.5, 0.699999988079071]), ACCURACY, 0.7).round == 2  # as float32 has it
    assert math.isnan(reached(run, ACCURACY, 0.7).round)
    assert reached(run, Metric("loss", False), 0.5).round == 4
    assert payload(run) == (1.0, 2.0) and megabytes(run)[-1] == 15


def test_what_was_not_counted_is_no_zero(make):
    run = make([0.3])
    for key in ("comm/up_bytes", "time/round", "time/total"):
        del run.columns[key]
    found = reached(run, ACCURACY, 0.1)
    assert found.round == 1 and math.isnan(found.megabytes) and math.isnan(found.seconds)


def test_a_diverged_run_shows_and_does_not_count(make):
    runs = [make([0.3, None]), make([0.3, 0.5], seed=1)]
    assert last(runs[0], ACCURACY) == math.inf
    assert groups(runs)[0].last(ACCURACY).seeds == 1


def test_the_summary_stands_in_for_lost_metrics(make, tmp_path):
    path = write_run(tmp_path / "lost", [0.1], summary={"last": {"test/accuracy": 0.7}, "best": None, "rounds": 9})
    (path / "metrics.jsonl").unlink()
    run = read_run(path)
    assert last(run, ACCURACY) == 0.7 and math.isnan(best(run, ACCURACY)) and run.rounds == 9


def test_the_metric_is_what_runs_select_by(make):
    runs = [make([0.1]), make([0.1], evaluation__metric="loss", evaluation__mode="min", seed=1), make([0.1], seed=2)]
    assert metric_of(runs) == ("accuracy", True, "test")
    assert metric_of(runs, "loss") == metric_of([], "loss") == metric_of(runs, "test/loss") == ("loss", False, "test")


def test_validation_stands_in_where_nothing_was_tested(make):
    run = make([0.3, 0.4])
    del run.columns["test/accuracy"]
    metric = metric_of([run])
    assert metric == ("accuracy", True, "val") and metric.title == "validation accuracy"
    assert last(run, metric) == pytest.approx(0.39) and reached(run, metric, 0.35).round == 2


@pytest.mark.parametrize("freedom", [*range(1, 12), 30, 99, 100, 1000, 9999])
@pytest.mark.parametrize("t", [0.0, 0.01, 0.3, -2.0, 4.3, 25.0])
def test_students_distribution(freedom, t):
    assert two_sided(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=1e-12)


def test_paired_test_over_common_seeds():
    ours, theirs = {0: 0.8, 1: 0.7, 2: 0.9, 3: math.nan, 4: 1.0}, {0: 0.7, 1: 0.65, 2: 0.6, 3: 0.1}
    expected = stats.ttest_rel([0.8, 0.7, 0.9], [0.7, 0.65, 0.6])
    assert paired(ours, theirs) == pytest.approx((0.15, expected.pvalue, 3))
    assert paired({0: 1, 1: 2}, {0: 0, 1: 0}) is None
    assert paired({0: 1, 1: 2, 2: 3}, {0: 1, 1: 2, 2: 3}).p == 1


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_spread():
    assert spread([1, 2, math.inf, math.nan]) == pytest.approx((1.5, math.sqrt(0.5), 2))
    assert math.isnan(spread([3]).deviation) and math.isnan(spread([]).mean)


def test_against_the_baseline_of_the_same_place(make):
    data = {("fedmuon", 0.1): (0.8, 0.81, 0.83), ("fedavg", 0.1): (0.7, 0.7, 0.74), ("fedavg", 1): (0.9, 0.9, 0.91)}
    runs = [
        make([value], algorithm=a, seed=seed, partition__concentration=c)
        for (a, c), values in data.items()
        for seed, value in enumerate(values)
    ]
    found = groups(runs)
    ours = next(group for group in found if group.label == "fedmuon, concentration=0.1")
    theirs = reference(found, ours, ACCURACY)
    assert theirs is not None and theirs.label == "fedavg, concentration=0.1"
    result = significance(found, theirs, ACCURACY)
    assert result[found.index(theirs)] is None
    test, adjusted = result[found.index(ours)]
    assert test.difference == pytest.approx(0.1) and test.p < 0.05 and adjusted >= test.p


def test_no_baseline_on_another_data_set_though_the_data_follows_from_the_algorithm(make):
    places = {"fedmuon": {"data__name": "cifar100", "model__name": "resnet18"}, "fedavg": {}}
    runs = [make([0.3 + 0.01 * s], algorithm=a, seed=s, **keys) for a, keys in places.items() for s in range(3)]
    ours = next(group for group in groups(runs) if group.label == "fedmuon")
    assert reference(groups(runs), ours, ACCURACY) is None


def test_a_root_of_its_own_is_no_other_place(make):
    def at(root, **keys):
        return [make([0.3 + 0.01 * s], seed=s, data__root=root, **keys) for s in range(3)]

    runs = [*at("a", data__path="o/n"), *at("b", data__path="o/n", algorithm="fedavg")]
    assert reference(groups(runs), groups(runs)[1], ACCURACY).label == "fedavg"
    runs = [*at("a"), *at("b", algorithm="fedavg")]  # of no name
    assert reference(groups(runs), groups(runs)[1], ACCURACY) is None


@pytest.mark.parametrize("going", ["fedmuon", "fedavg"])
def test_what_has_not_ended_is_not_tested(make, going):
    top = {"fedmuon": 0.8, "fedavg": 0.5}
    runs = [
        make(
            [v + 0.01 * s**2], algorithm=a, seed=s, federation__rounds=9, status="running" if a == going else "finished"
        )
        for a, v in top.items()
        for s in range(3)
    ]
    found = groups(runs)
    assert all(significance(found, against, ACCURACY) == [None, None] for against in found)
    assert [row.mark for row in rows(found, ACCURACY, [])] == ["", ""]


def test_a_complete_baseline_comes_before_one_that_is_going_on(make):
    keys = {"federation__rounds": 9}
    runs = [make([0.4], algorithm="fedavg", local__lr=0.1, **keys)]
    runs += [make([0.7], algorithm="fedavg", local__lr=0.2, status="running", **keys), make([0.8], **keys)]
    found = groups(runs)
    assert reference(found, found[-1], ACCURACY).label == "fedavg, lr=0.1"
