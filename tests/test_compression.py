"""Codes: sizes worked out by hand, contraction and unbiasedness as theory says, and what the edges of shapes do."""

import math

import pytest
import torch

from fedmuon.comm import Channel, memory
from fedmuon.compression import BFloat16, Quantize, TopK, TruncatedSVD
from fedmuon.config import Link
from fedmuon.traffic import Attendance

DRAWS = torch.Generator()


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def channel(link: Link, **state: torch.Tensor) -> Channel:
    return Channel("up", link, {name: {"w": t} for name, t in state.items()}, {})


@pytest.mark.parametrize(
    "code, shape, itemsize, size",
    [
        (TruncatedSVD(0.05), (120, 400), 4, 4 * (4 * 521)),  # floor(.05 * 48000 / 521) = 4
        (TruncatedSVD(0.05), (16, 6, 5, 5), 4, 1 * 4 * (16 + 150 + 1)),  # as 16 x 150
        (TruncatedSVD(0.05), (10, 84), 4, 4 * 95),  # floor(.44) = 0: at least 1
        (TruncatedSVD(0.05), (1, 65, 192), 4, 2 * 4 * (65 + 192 + 1)),  # a stack of one
        (TruncatedSVD(0.05), (3, 64, 64), 8, 3 * 1 * 8 * 129),  # each of the three its own
        (TruncatedSVD(0.05), (120,), 4, 480),  # no matrix
        (TopK(0.01), (120, 400), 4, 480 * 8),
        (TopK(0.01), (10,), 4, 8),  # at least one
        (TopK(1.0), (10,), 8, 120),
        (Quantize(), (120, 400), 4, 48004),
        (Quantize(), (), 4, 5),
        (BFloat16(), (120, 400), 4, 96000),
    ],
)
def test_sizes_by_hand(code, shape, itemsize, size):
    assert code.size(shape, itemsize) == size


def test_what_is_no_smaller_travels_as_it_is():
    one = tensor(1, 7)  # q = 1 takes 1 + 7 + 1 numbers
    assert not channel(Link("svd"), x=one).compresses and channel(Link("svd"), x=one).bytes == 7 * 8
    assert channel(Link("svd"), x=one).carry("x", {"w": one}, {}, DRAWS)["w"] is one
    assert not channel(Link("topk", share=0.9), x=tensor(10)).compresses  # 9 * 12 bytes against 80
    assert not channel(Link("quantize"), x=tensor()).compresses  # 1 + 8 bytes against 8
    assert not channel(Link("bf16"), x=tensor(4).bfloat16()).compresses
    assert channel(Link("quantize"), x=tensor(2)).compresses


def test_svd_is_the_best_approximation_of_its_rank_and_a_contraction():
    t, code = tensor(12, 3, 5, 2), TruncatedSVD(0.5)
    q, singular = code.rank(12, 30), torch.linalg.svdvals(t.reshape(12, 30))
    assert q == 4
    left = t - code.decoded(t, DRAWS)
    assert left.square().sum() == pytest.approx(float(singular[q:].square().sum()))
    assert left.square().sum() <= (1 - q / 12) * t.square().sum()
    assert torch.linalg.matrix_rank(code.decoded(t, DRAWS).reshape(12, 30)) == q
    stack = tensor(3, 8, 6)
    for matrix, found in zip(stack, code.decoded(stack, DRAWS), strict=True):
        torch.testing.assert_close(found, code.decoded(matrix, DRAWS))
    assert code.decoded(torch.zeros(4, 5), DRAWS).abs().max() == 0
    assert code.decoded(tensor(4, 5).bfloat16(), DRAWS).dtype == torch.bfloat16


def test_topk_keeps_the_largest_and_is_a_contraction():
    t = torch.tensor([[3.0, -5.0], [0.5, 4.0]])
    assert TopK(0.5).decoded(t, DRAWS).tolist() == [[0, -5], [0, 4]]
    t, code = tensor(40, 25), TopK(0.07)
    assert int((code.decoded(t, DRAWS) != 0).sum()) == 70
    assert (t - code.decoded(t, DRAWS)).square().sum() <= (1 - 0.07) * t.square().sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantize_is_unbiased_with_the_variance_of_its_step(dtype):
    t, code, draws = tensor(3, 4, dtype=dtype), Quantize(), torch.Generator().manual_seed(0)
    many = torch.stack([code.decoded(t, draws) for _ in range(4000)])
    step = float(t.abs().max()) / 127
    assert (many - t).abs().max() < step * (1 + 1e-5)
    assert (many.mean(0) - t).abs().max() < 5 * step / 2 / math.sqrt(4000)
    assert many.var(0).max() <= step**2 / 4 * 1.01 and many.var(0).max() > step**2 / 8
    levels = (many / step).round()
    assert (many / step - levels).abs().max() < 1e-3 and levels.abs().max() == 127
    assert code.decoded(torch.zeros(5, dtype=dtype), draws).tolist() == [0] * 5


def test_quantize_is_keyed_by_seed_round_client_and_direction():
    t = tensor(50)

    def sent(direction: str = "up", seed: int = 0, round: int = 0, client: int = 0) -> torch.Tensor:
        one = Channel(direction, Link("quantize", error_feedback=False), {"x": {"w": t}}, {}, seed=seed)
        return one.carry("x", {"w": t}, {}, one.draws(round, t.device, client))["w"]

    assert torch.equal(sent(), sent())
    others = [sent("down"), sent(seed=1), sent(round=1), sent(client=1)]
    assert all(not torch.equal(sent(), other) for other in others)


def test_bfloat16_is_off_by_at_most_its_last_bit():
    t = tensor(1000)
    assert ((t - BFloat16().decoded(t, DRAWS)).abs() / t.abs()).max() <= 2**-8


@pytest.mark.parametrize("method", ["svd", "topk", "quantize", "bf16"])
def test_what_was_sent_and_what_is_left_are_what_was_meant(method):
    one, errors = channel(Link(method, share=0.1, ratio=0.2), x=tensor(12, 10)), {}
    meant, sent = torch.zeros(12, 10, dtype=torch.float64), torch.zeros(12, 10, dtype=torch.float64)
    for round in range(20):
        t = tensor(12, 10, seed=round)
        arrived = one.carry("x", {"w": t}, errors, one.draws(round, t.device))["w"]
        assert not torch.equal(arrived, t)
        meant, sent = meant + t, sent + arrived
        torch.testing.assert_close(sent + errors[memory("x")]["w"], meant, rtol=0, atol=1e-11)
    assert errors[memory("x")]["w"].norm() < meant.norm() * 5  # it stays bounded: a contraction
    rest = one.carry("x", {"w": 0 * t}, {}, DRAWS)["w"]
    assert rest.abs().max() == 0


def test_only_named_states_and_never_second_moments():
    state = {name: {"w": tensor(20, 30)} for name in ("x", "momentum", "v")}
    plain = 600 * 8
    named = Channel("up", Link("svd", states=["momentum"]), state, {})
    assert named.bytes == 2 * plain + 51 * 8 * named.code.rank(20, 30) and named.bytes_before == 3 * plain
    every = Channel("up", Link("quantize"), state, {"count": torch.zeros(3, dtype=torch.int64)}, positive=("v",))
    assert every.bytes == 2 * 608 + plain + 24
    assert every.carry("v", state["v"], {}, DRAWS) is state["v"]
    half, errors = Channel("up", Link("bf16"), state, {}, positive=("v",)), {}
    assert half.bytes == 3 * 1200
    for value in (1.005, 1e-5):  # the error of the first is larger than the second
        v = torch.full((20, 30), value, dtype=torch.float64)
        torch.testing.assert_close(half.carry("v", {"w": v}, errors, DRAWS)["w"], v, rtol=2**-8, atol=0)
    half.carry("x", state["x"], errors, DRAWS)
    assert set(errors) == {memory("x")}


def test_rounds_since_a_client_was_last_asked():
    cohorts = {0: [1, 2], 1: [2, 3], 2: [3, 4], 3: [1, 4]}
    attendance = Attendance(lambda r: cohorts[r], horizon=2)
    assert [attendance.ago(client, 3) for client in (4, 3, 2, 1, 9)] == [1, 1, 2, math.inf, math.inf]
    assert attendance.ago(1, 0) == math.inf and attendance.ago(2, 1) == 1
