"""What a client of the paper's networks sends and receives in a round, counted by hand; ranks of the truncated SVD."""

from functools import cache

import pytest
from torch import nn

from fedmuon.build import image_task
from fedmuon.cli import checked_jobs
from fedmuon.compression import TruncatedSVD
from fedmuon.optim.routing import groups
from fedmuon.server import Server

# BatchNorm of the blocks: 19 layers with 4,736 features, a mean and a variance each in 4 bytes, counters in 8.
BUFFERS = 4_736 * 2 * 4 + 19 * 8
X = {"resnet18": 4 * 11_220_132, "vit_tiny": 4 * 2_710_948}
MATRICES = {"resnet18": 4 * (11_220_132 - 9_700), "vit_tiny": 4 * (2_710_948 - 15_652)}
# rank by floor(0.05 m n / (m + n + 1)), at least 1; how often the matrix is there
VIT = {
    (192, 48): (1, 1), (65, 192): (2, 1), (576, 192): (7, 6), (192, 192): (4, 6), (768, 192): (7, 6),
    (192, 768): (7, 6), (100, 192): (3, 1),
}  # fmt: skip
RESNET = {
    (64, 27): (1, 1), (64, 576): (2, 4), (128, 576): (5, 1), (128, 1152): (5, 3), (128, 64): (2, 1),
    (256, 1152): (10, 1), (256, 2304): (11, 3), (256, 128): (4, 1), (512, 2304): (20, 1), (512, 4608): (23, 3),
    (512, 256): (8, 1), (100, 512): (4, 1),
}  # fmt: skip


@cache
def network(model: str) -> nn.Module:
    (job,) = checked_jobs(["paper=published", f"model={model}", "algorithm=fedavg", "partition.path=lists.npz"])
    return image_task(job.config, (3, 32, 32), 100).network


def payload(model: str, algorithm: str) -> tuple[int, int]:
    """(up, down) of one client."""
    (job,) = checked_jobs(["paper=published", f"model={model}", f"algorithm={algorithm}", "partition.path=lists.npz"])
    config, net = job.config, network(model)
    parameters, buffers = dict(net.named_parameters()), dict(net.named_buffers())
    routed = groups(config.algorithm, parameters, config.local.lr)
    server = Server(config.algorithm, routed, parameters, buffers, config.aggregation, config.compression)
    return server.up.bytes, server.down.bytes


@pytest.mark.parametrize("model, buffers", [("resnet18", BUFFERS), ("vit_tiny", 0)])
def test_payload_of_the_papers_networks(model: str, buffers: int) -> None:
    x, m = X[model], MATRICES[model]
    for algorithm, up, down in (
        ("fedavg", x, x),
        ("local_adamw", x, x),
        ("local_muon_published", x, x),
        ("fedcm", x, 2 * x),  # x, G
        ("scaffold", 2 * x, 2 * x),
        ("fedmuon_published", x + m, 2 * x + m),  # x, M; x, G, M
    ):
        assert payload(model, algorithm) == (up + buffers, down + buffers), algorithm


@pytest.mark.parametrize("model, shapes, buffers, whole", [("resnet18", RESNET, BUFFERS, 0), ("vit_tiny", VIT, 0, 192)])
def test_ranks_and_payload_of_the_truncated_svd(model: str, shapes: dict, buffers: int, whole: int) -> None:
    """A class token, 1 x 192, has rank 1 in 194 numbers: it goes whole in 192."""
    code = TruncatedSVD(0.05)
    views = [tuple(p.shape) if p.ndim == 2 else (p.shape[-2], p.shape[-1]) if p.ndim == 3 else (len(p), p[0].numel())
             for p in network(model).parameters() if p.ndim >= 2]  # fmt: skip
    assert {s: views.count(s) for s in views if s != (1, 192)} == {s: many for s, (_, many) in shapes.items()}
    assert {s: code.rank(*s) for s in shapes} == {s: rank for s, (rank, _) in shapes.items()}
    numbers = whole + sum(many * rank * (rows + cols + 1) for (rows, cols), (rank, many) in shapes.items())
    up, down = payload(model, "fedmuon_svd")
    assert up == X[model] + 4 * numbers + buffers and down == 2 * X[model] + MATRICES[model] + buffers
    assert numbers < 0.06 * MATRICES[model] / 4
