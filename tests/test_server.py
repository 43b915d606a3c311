"""Aggregation on two messages by hand."""

import math

import pytest
import torch

from fedmuon.algorithms import SGD, FedNova, Muon
from fedmuon.config import Aggregation, Compression, Link
from fedmuon.engines.engine import Message
from fedmuon.optim.routing import groups
from fedmuon.server import Rejected, Server


def parameters() -> dict[str, torch.Tensor]:
    return {
        "w": torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64)),
        "b": torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)),
    }


def server(
    algorithm=None, buffers=None, lr: float = 0.1, compression=None, buffers_policy="average", **policy
) -> Server:
    algorithm, tensors = algorithm or SGD(), parameters()
    routed = groups(algorithm, tensors, lr)
    made = Server(algorithm, routed, tensors, buffers or {}, Aggregation(buffers=buffers_policy, **policy), compression)
    made.start_round(1.0)
    return made


def message(client: int, w: float, b: float = 0.0, steps: int = 2, sent=None, buffers=None) -> Message:
    x = {"w": torch.full((2, 2), w, dtype=torch.float64), "b": torch.full((2,), b, dtype=torch.float64)}
    return Message(client, steps, x, sent or {}, {}, buffers or {}, {"loss": 1.0}, 0.0)


def test_the_pseudo_gradient_is_minus_the_weighted_mean_change():
    one = server()
    assert one.add(message(0, 2.0), 0.75) == pytest.approx(2.0)  # the norm of a change of 1 in four entries
    one.add(message(1, -1.0, b=4.0), 0.25)
    figures = one.finish(1.0)
    torch.testing.assert_close(
        one.parameters["w"].grad, torch.full((2, 2), -(0.75 * 1 + 0.25 * -2), dtype=torch.float64)
    )
    torch.testing.assert_close(one.parameters["b"].grad, torch.full((2,), -1.0, dtype=torch.float64))
    mean_square = 0.75 * 4 + 0.25 * (16 + 32)
    norm = math.sqrt(4 * 0.25**2 + 2 * 1.0)
    assert figures["update_norm"] == pytest.approx(norm) and figures["drift"] == pytest.approx(
        math.sqrt(mean_square - norm**2)
    )


def test_what_is_reported_is_of_the_changes_themselves_however_they_count():
    plain, weighed = server(), server(FedNova())
    for one in (plain, weighed):
        one.add(message(0, 2.0, steps=1), 0.75)
        one.add(message(1, -1.0, b=4.0, steps=5), 0.25)
    assert weighed.finish(1.0) == pytest.approx(plain.finish(1.0))
    assert weighed.states["update"]["w"][0, 0].item() == pytest.approx(0.75 * 1 + 0.25 * -2)
    assert weighed.parameters["w"].grad[0, 0].item() == pytest.approx(-(0.75 + 0.25 * 5) * (0.75 * 1 + 0.25 * -2 / 5))


def test_g_divides_by_steps_and_rate_of_each_rule():
    algorithm = Muon(alpha=0.5, lr_scale=2.0)
    one = server(algorithm, lr=0.1)
    momentum = {"momentum": {"w": torch.full((2, 2), 3.0, dtype=torch.float64)}}
    one.add(message(0, 2.0, b=1.0, steps=2, sent=momentum), 0.5)
    one.add(message(1, 1.0, b=1.0, steps=5, sent=momentum), 0.5)
    one.finish(1.0)
    assert one.states["delta_g"]["w"][0, 0].item() == pytest.approx(0.5 * -1 / (2 * 0.2))
    rate = algorithm.adamw.rate(0.1)
    assert one.states["delta_g"]["b"][0].item() == pytest.approx(0.5 * -1 / (2 * rate) + 0.5 * -1 / (5 * rate))
    assert one.states["momentum"]["w"][0, 0].item() == pytest.approx(3.0) and "b" not in one.states["momentum"]


def test_no_weight_leaves_no_gradient_and_all_state():
    one = server(Muon(alpha=0.5))
    one.states["delta_g"]["w"].fill_(5)
    assert one.finish(0.0) == {"skipped": 1.0}
    assert all(p.grad is None for p in one.parameters.values()) and one.states["delta_g"]["w"][0, 0] == 5


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("names", [[], ["mean"]])
def test_dropped_clients_leave_the_weights_of_the_others_at_one(value, names):
    buffers = {name: torch.zeros(1) for name in names}
    one = server(nonfinite="drop", buffers=buffers)
    sent = {name: b + 1 for name, b in buffers.items()}
    assert math.isnan(one.add(message(0, value, buffers=sent), 0.75)) and one.rejected == [0]
    one.add(message(1, 3.0, buffers=sent), 0.25)
    one.finish(1.0)
    torch.testing.assert_close(one.parameters["w"].grad, torch.full((2, 2), -2.0, dtype=torch.float64))
    assert all(b.item() == 1 for b in one.buffers.module.values())


def test_raise_names_client_and_ways_out():
    one = server()
    with pytest.raises(Rejected, match=r"client 3 sent NaN.*local\.lr.*nonfinite=drop\|clip"):
        one.add(message(3, math.nan), 1.0)


def test_clipped_entries_count_as_no_change_in_parameters_states_and_buffers():
    one = server(Muon(), buffers={"var": torch.ones(2), "count": torch.tensor(4)}, nonfinite="clip")
    one.states["momentum"]["w"].fill_(2.0)
    broken = message(0, 2.0, sent={"momentum": {"w": torch.full((2, 2), math.nan, dtype=torch.float64)}})
    broken.x["w"][0, 0] = math.nan
    broken.buffers = {"var": torch.tensor([math.nan, 3.0]), "count": torch.tensor(6)}
    one.add(broken, 1.0)
    one.finish(1.0)
    expected = torch.tensor([[0.0, -1], [-1, -1]], dtype=torch.float64)
    torch.testing.assert_close(one.parameters["w"].grad, expected)
    assert one.buffers.module["var"].tolist() == [1.0, 3.0] and one.buffers.module["count"].item() == 6


def test_a_clipped_message_goes_through_the_code_and_leaves_its_rest_with_the_client():
    one = server(nonfinite="clip", compression=Compression(up=Link("topk", share=0.25)))
    broken = message(0, 3.0)
    broken.x["w"] = torch.tensor([[math.nan, 4.0], [3.0, 1.0]], dtype=torch.float64)
    broken.errors = {"error/x": {"w": torch.tensor([[0.0, 0.0], [2.0, -1.0]], dtype=torch.float64)}}
    assert one.add(broken, 1.0) == pytest.approx(4.0)  # change [[0, 3], [2, 0]] and what was left: [[0, 3], [4, -1]]
    assert one.sums["x"]["w"].tolist() == [[0, 0], [4, 0]]
    assert broken.errors["error/x"]["w"].tolist() == [[0, 3], [0, -1]] and one.rejected == [0]


def test_integer_buffers_are_rounded_and_keep_dtype_and_shape():
    one = server(buffers={"count": torch.tensor(0), "flag": torch.tensor([True, False])})
    for client, (count, weight) in enumerate([(3, 0.5), (4, 0.5)]):
        one.add(
            message(client, 1.0, buffers={"count": torch.tensor(count + client), "flag": torch.tensor([True, False])}),
            weight,
        )
    one.finish(1.0)
    assert one.buffers.module["count"].item() == 4 and one.buffers.module["count"].shape == ()
    assert one.buffers.module["flag"].dtype == torch.bool and one.buffers.module["flag"].tolist() == [True, False]


@pytest.mark.parametrize("policy", ["average", "keep"])
def test_what_no_client_changes_stays_as_it_is_finite_or_not(policy):
    constant = {
        "mask": torch.tensor([[0.0, -math.inf], [math.nan, 0.1]]),
        "table": torch.tensor([0.1, 0.7]),
        "phase": torch.tensor([1 + 2j, math.inf + 0j]),
        "big": torch.tensor(2**60 + 1),
        "none": torch.zeros(0, 3),
    }
    one = server(buffers={name: b.clone() for name, b in constant.items()}, buffers_policy=policy)
    for client in range(3):
        one.add(message(client, 1.0, buffers=constant), 1 / 3)
    one.finish(1.0)
    for name, b in one.buffers.module.items():
        torch.testing.assert_close(b, constant[name], rtol=0, atol=0, equal_nan=True, msg=name)


def test_a_client_changes_some_numbers_of_a_buffer():
    one = server(buffers={"b": torch.tensor([-math.inf, 1.0, -math.inf])})
    one.add(message(0, 1.0, buffers={"b": torch.tensor([-math.inf, 3.0, -math.inf])}), 0.75)
    one.add(message(1, 1.0, buffers={"b": torch.tensor([-math.inf, 1.0, -math.inf])}), 0.25)
    one.finish(1.0)
    assert one.buffers.module["b"].tolist() == [-math.inf, 2.5, -math.inf]


@pytest.mark.parametrize("policy", ["average", "keep"])
def test_a_buffer_that_became_infinite_is_refused_where_it_is_averaged(policy):
    one = server(buffers={"var": torch.tensor([1.0, -math.inf])}, buffers_policy=policy)
    broken = message(0, 1.0, buffers={"var": torch.tensor([math.inf, -math.inf])})
    if policy == "average":
        with pytest.raises(Rejected):
            one.add(broken, 1.0)
    else:
        assert one.add(broken, 1.0) == 0
        one.finish(1.0)
        assert one.buffers.module["var"].tolist() == [1.0, -math.inf]


def test_a_checkpoint_restores_every_state():
    one, other = server(Muon()), server(Muon())
    for tensors in one.states.values():
        for number, t in enumerate(tensors.values()):
            t.fill_(number + 1.0)
    one.t = 17
    saved = torch.load(_through_a_file(one.checkpoint()), weights_only=True)
    other.restore(saved)
    assert other.t == 17
    assert all(torch.equal(t, other.states[k][n]) for k, tensors in one.states.items() for n, t in tensors.items())


def _through_a_file(content):
    import io

    buffer = io.BytesIO()
    torch.save(content, buffer)
    buffer.seek(0)
    return buffer
