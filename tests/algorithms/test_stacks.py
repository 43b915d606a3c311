"""Every rule on a stack of three clients gives what three stacks of one give, unequal numbers of steps included."""

from typing import Any

import numpy as np
import pytest
import torch

from fedmuon.compose import Composer
from fedmuon.engines.engine import Assignment, Broadcast
from fedmuon.engines.stack import Stack
from fedmuon.engines.trace import Traced
from fedmuon.job import checked_job
from fedmuon.optim.routing import groups
from tests.algorithms.test_compositions import ALGORITHMS

SHAPES = {"conv": (3, 2, 3, 3), "weight": (4, 3), "bias": (4,), "scale": ()}
STEPS = (4, 3, 1)  # of the three clients; a stack has those with most steps first


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_stack_of_three_is_three_stacks_of_one(name: str) -> None:
    algorithm = checked_job(Composer().compose([f"algorithm={name}"])).config.algorithm
    random = np.random.default_rng(0)

    def tensors(positive: bool = False) -> dict[str, torch.Tensor]:
        drawn = {n: torch.from_numpy(np.asarray(random.standard_normal(shape))) for n, shape in SHAPES.items()}
        return {n: t.square() for n, t in drawn.items()} if positive else drawn

    x, of_rules = tensors(), groups(algorithm, {n: torch.empty(shape) for n, shape in SHAPES.items()}, 0.1)
    slots = {slot for group in of_rules for slot in group.rule.slots}
    down = {state: tensors(positive=state in ("v", "vh", "v_mean")) for state in algorithm.broadcast()} | {"x": x}
    if "v_mean" in down:
        down["v_mean"] = {n: t.mean() for n, t in down["v_mean"].items()}
    kept = [{slot: tensors() for slot in algorithm.kept} for _ in STEPS]
    gradients = [[tensors() for _ in range(k)] for k in STEPS]
    filled = [tensors() for _ in STEPS]  # MimeLite's full gradients, which an engine would write

    def trained(clients: list[int]) -> list[Any]:
        zeros = {n: torch.zeros(len(clients), *shape, dtype=torch.float64) for n, shape in SHAPES.items()}
        stack = Stack(algorithm, of_rules, zeros, clip=1.5)
        work = [Assignment(c, [], np.empty(0), 0, kept[c]) for c in clients]
        stack.start(Broadcast(down, {}, 1.0, t=5), work)
        if algorithm.full_gradient:
            for n, slot in stack.state["gradient"].items():
                slot.copy_(torch.stack([filled[c][n] for c in clients]))
        for k in range(1, max(STEPS[c] for c in clients) + 1):
            here = [c for c in clients if STEPS[c] >= k]
            stack.first(len(here)).step({n: torch.stack([gradients[c][k - 1][n] for c in here]) for n in SHAPES}, k)
        stack.end([STEPS[c] for c in clients])
        rows = range(len(clients))
        return [({n: t[row] for n, t in stack.x.items()}, stack.of_client(sorted(slots), row)) for row in rows]

    together = trained([0, 1, 2])
    for client in range(3):
        ((alone_x, alone_state),) = trained([client])
        joint_x, joint_state = together[client]
        for n in SHAPES:
            assert not torch.equal(alone_x[n], x[n])
            torch.testing.assert_close(joint_x[n], alone_x[n], rtol=0, atol=1e-12)
        for slot, of_slot in alone_state.items():
            for n, value in of_slot.items():
                torch.testing.assert_close(joint_state[slot][n], value, rtol=0, atol=1e-12, msg=f"{slot} {n}")


def test_a_round_of_rate_zero_leaves_scaffolds_control_variate() -> None:
    algorithm = checked_job(Composer().compose(["algorithm=scaffold"])).config.algorithm
    x = {"x": torch.zeros(2, 3, dtype=torch.float64)}
    stack = Stack(algorithm, groups(algorithm, {"x": x["x"][0]}, 0.1), x, None)
    own = [{"own_control": {"x": torch.full((3,), float(c), dtype=torch.float64)}} for c in (1, 2)]
    down = {"x": {"x": torch.ones(3, dtype=torch.float64)}, "control": {"x": torch.ones(3, dtype=torch.float64)}}
    stack.start(Broadcast(down, {}, 0.0, t=0), [Assignment(c, [], np.empty(0), 0, kept) for c, kept in enumerate(own)])
    stack.step({"x": torch.ones(2, 3, dtype=torch.float64)}, 1)
    stack.end([1, 1])
    assert torch.equal(x["x"], torch.ones(2, 3, dtype=torch.float64))
    assert torch.equal(stack.state["own_control"]["x"], torch.tensor([[1.0] * 3, [2.0] * 3], dtype=torch.float64))
    assert not stack.state["control_change"]["x"].any()


def test_without_recording_a_rule_is_told_numbers_not_tensors() -> None:
    """A tensor of the CPU, of one number for each client, would not go with those of a device."""
    algorithm = checked_job(Composer().compose(["algorithm=local_adamw"])).config.algorithm
    x = {"x": torch.empty(2, 3, device="meta")}
    stack = Stack(algorithm, groups(algorithm, {"x": x["x"][0]}, 0.1), x, None)
    stack.start(Broadcast({"x": {"x": x["x"][0]}}, {}, 1.0, t=5), [Assignment(c, [], np.empty(0), 0) for c in range(2)])
    stack.step({"x": torch.empty(2, 3, device="meta")}, 1, Traced("none"))
