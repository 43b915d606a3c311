"""conf/paper: what the two protocols set, against the figures of the published code; and that they never mix."""

import os
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmuon.build import cohorts, image_task, load_data
from fedmuon.cli import checked_jobs
from fedmuon.compose import CONF
from fedmuon.data.partitions import from_file
from fedmuon.schedule import factor

SHARED = Path(os.environ.get("FEDMUON_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "partitions"
LISTS = "partition.path=lists.npz"
METHODS = ("fedavg", "scaffold", "fedcm", "local_adamw", "local_muon_published", "fedmuon_published")


def job(*overrides: str) -> Any:
    (found,) = checked_jobs(overrides)
    return found


def published(algorithm: str, model: str = "resnet18") -> Any:
    return job("paper=published", f"algorithm={algorithm}", f"model={model}", LISTS)


# peak rate of matrices and of vectors, as applied to the method's own direction
PEAKS = {
    ("fedmuon_published", "resnet18"): (7.5e-3, 1.5e-2),
    ("fedmuon_published", "vit_tiny"): (1.5e-3, 1.5e-4),
    ("local_muon_published", "resnet18"): (1.5e-2, 3e-2),
    ("local_muon_published", "vit_tiny"): (3e-3, 3e-4),
    ("fedavg", "resnet18"): (0.1, 0.1),
    ("fedavg", "vit_tiny"): (0.1, 0.1),
    ("local_adamw", "resnet18"): (3e-4, 3e-4),
    ("local_adamw", "vit_tiny"): (3e-4, 3e-4),
}


@pytest.mark.parametrize("algorithm, model", PEAKS)
def test_effective_rates_decay_and_clip_are_the_published_ones(algorithm: str, model: str) -> None:
    config = published(algorithm, model).config
    rule, lr, own = config.algorithm, config.local.lr, 1 - config.algorithm.a
    matrices, vectors = (rule.rule_for("p", shape) for shape in ((4, 4), (4,)))
    assert (own * matrices.rate(lr), own * vectors.rate(lr)) == pytest.approx(PEAKS[algorithm, model])
    decay = {"fedavg": 1e-3}.get(algorithm, 0.01)  # of their code, whose rate has the factor 1 - alpha
    assert matrices.weight_decay == pytest.approx(own * decay) == vectors.weight_decay
    assert config.local.clip == 10


def test_the_muon_rules_are_the_published_ones() -> None:
    ours, local = (published(name).config.algorithm for name in ("fedmuon_published", "local_muon_published"))
    assert (ours.beta, local.beta) == (0.98, 0.95) and ours.a == 0.5 and local.a == 0 and not local.shared
    for rule in (ours, local):
        assert rule.ema and rule.nesterov and rule.shape_scale == "kernel"
        assert (rule.polar.method, rule.polar.steps, rule.polar.dtype) == ("newton_schulz", 5, "bfloat16")
        assert (rule.adamw.beta1, rule.adamw.beta2, rule.adamw.eps) == (0.9, 0.95, 1e-10)
        assert not rule.exclude  # stem, head, class token and position embedding go to Muon


@pytest.mark.parametrize("algorithm", METHODS)
@pytest.mark.parametrize("model", ["resnet18", "vit_tiny"])
def test_every_published_method_has_its_settings_for_both_models(algorithm: str, model: str) -> None:
    assert (CONF / "paper" / "rates" / f"published_{model}_{algorithm}.yaml").is_file()
    config = published(algorithm, model).config
    federation, local, data = config.federation, config.local, config.data
    assert (config.protocol, federation.rounds, federation.clients, federation.cohort) == ("published", 300, 100, 10)
    assert (local.steps, local.batch_size, config.aggregation.weights) == (50, 50, "uniform")
    assert (data.mean, data.std) == ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010])
    assert (data.augment.crop, data.augment.flip, data.test_crop, data.validation) == (4, True, 4, 0)
    assert config.aggregation.buffers == "average" and config.local.clip == (None if algorithm == "scaffold" else 10)


def test_the_rate_of_a_round_is_the_published_cosine() -> None:
    local = published("fedmuon_published").config.local
    assert (local.schedule, local.schedule_rounds, local.warmup) == ("cosine", 301, 0)
    for r in (0, 1, 150, 299):
        assert factor(local.schedule, r, rounds=local.schedule_rounds) == pytest.approx(0.5 * (1 + cos(pi * r / 301)))
    assert job("paper=published", LISTS, "federation.rounds=10").config.local.schedule_rounds == 11


def test_the_cohorts_are_the_published_ones_whatever_the_seed() -> None:
    config = job("paper=published", LISTS, "seed=3").config

    class Clients(list):
        sizes = np.full(100, 500)

    cohort = cohorts(config, Clients(range(100)))
    assert cohort(0).tolist() == [83, 53, 70, 45, 44, 39, 22, 80, 10, 0]
    assert cohort(1).tolist() == [79, 37, 65, 54, 15, 20, 99, 25, 56, 17]


@pytest.mark.parametrize(
    "model, parameters, vectors", [("resnet18", 11_220_132, 9_700), ("vit_tiny", 2_710_948, 15_652)]
)
def test_the_networks_have_the_published_sizes(model: str, parameters: int, vectors: int) -> None:
    tensors = list(image_task(published("fedavg", model).config, (3, 32, 32), 100).network.parameters())
    assert sum(p.numel() for p in tensors) == parameters
    assert sum(p.numel() for p in tensors if p.ndim < 2) == vectors


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published lists are not on this machine")
@pytest.mark.parametrize("concentration, different", [("0.1", 42_996), ("0.6", 47_505)])
def test_the_lists_have_the_published_figures(concentration: str, different: int) -> None:
    lists = from_file(50_000, 100, path=SHARED / f"cifar100-dirichlet{concentration}-100x500.npz")
    assert lists.sizes.tolist() == [500] * 100 and len(np.unique(lists.indices)) == different


def test_the_clean_protocol_has_none_of_it() -> None:
    config = job("paper=clean", "algorithm=fedmuon").config
    rule, data = config.algorithm, config.data
    assert config.protocol == "clean" and data.test_crop == 0 and data.validation > 0
    assert data.mean == [0.50707516, 0.48654887, 0.44091784] and config.local.schedule_rounds == 300
    assert not (rule.ema or rule.nesterov or rule.weight_decay or config.local.clip) and rule.shape_scale == "none"
    assert rule.polar.method == "polar_express" and rule.lr_scale == 1
    assert job("algorithm=fedmuon").config.protocol is None


def test_test_images_are_cropped_once_and_the_same_for_every_seed() -> None:
    plain, cropped, again = (
        load_data(job(f"data.test_crop={crop}", f"seed={seed}").config) for crop, seed in ((0, 0), (4, 0), (4, 1))
    )
    before, after = plain.test.columns[0], cropped.test.columns[0]
    assert before.shape == after.shape and (before == after).all(dim=(1, 2, 3)).float().mean() < 0.05
    assert (after == again.test.columns[0]).all()
    assert (plain.train.columns[0] == cropped.train.columns[0]).all()
    image, found = before[7, 0].numpy(), after[7, 0].numpy()
    padded = np.pad(image, 4)
    places = [(t, left) for t in range(9) for left in range(9) if (padded[t : t + 28, left : left + 28] == found).all()]
    assert len(places) == 1
