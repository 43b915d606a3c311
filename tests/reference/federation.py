"""`simulate`: the rounds of any algorithm of the table, and what is recorded of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import clients as client
from . import servers as server
from .clients import Job, State, zeros
from .models import mlp
from .options import Options, Params
from .traffic import Traffic

ALGORITHMS: dict[str, tuple[Callable, Callable]] = {
    "fedavg": (client.fedavg, server.fedavg),
    "fedprox": (client.fedprox, server.fedavg),
    "scaffold": (client.scaffold, server.scaffold),
    "fedcm": (client.fedcm, server.fedavg),
    "feddyn": (client.feddyn, server.feddyn),
    "fednova": (client.fedavg, server.fednova),
    "mimelite": (client.mimelite, server.mimelite),
    "fedavgm": (client.fedavg, server.fedavg),
    "fedadam": (client.fedavg, server.fedavg),
    "fedyogi": (client.fedavg, server.fedavg),
    "fedadagrad": (client.fedavg, server.fedavg),
    "local_adamw": (client.local_adamw, server.fedavg),
    "fedlada": (client.fedlada, server.fedlada),
    "fedadamw": (client.fedadamw, server.fedadamw),
    "local_muon": (client.local_muon, server.fedavg),
    "fedmuon": (client.fedmuon, server.fedavg),
    "fedmuon_lmo": (client.fedmuon_lmo, server.fedmuon_lmo),
    "muloco": (client.muloco, server.fedavg),
}

# What makes a composition of an algorithm; options passed to `simulate` come after these.
COMPOSITIONS: dict[str, dict[str, Any]] = {
    "fedavgm": {"server_momentum": 0.9},
    "fedadam": {"server": "adam"},
    "fedyogi": {"server": "yogi"},
    "fedadagrad": {"server": "adagrad"},
    "muloco": {"server_lr": 0.9, "server_momentum": 0.8, "server_nesterov": True},
}

TWO_RATES = ("local_muon", "fedmuon", "fedmuon_lmo", "muloco")


@dataclass(frozen=True)
class Record:
    """After a round: x, G, Mbar (matrices only), the round's D = sum p_i (x_i - x0), everything the server holds
    (`server["c"]`, "h", "m", "v", "vh", "C", "buf", "server_m", "server_v", ...) and what each client keeps."""

    x: Params
    G: Params
    Mbar: Params
    D: Params
    server: State
    kept: tuple[State, ...]


def simulate(
    algorithm: str,
    x0: Params,
    clients: Sequence[tuple[np.ndarray, np.ndarray]],
    rounds: int,
    *,
    batches: Sequence[Sequence[Sequence[np.ndarray]]],
    cohort: Sequence[Sequence[int]],
    eta: Sequence[float],
    eta_vec: Sequence[float] | None = None,
    weights: str = "samples",
    model: Callable[[Params, np.ndarray, np.ndarray], tuple[float, Params]] = mlp,
    traffic: Traffic | None = None,
    **options: Any,
) -> list[Record]:
    """Run `rounds` rounds and return one record a round; record r is the state after round r.

    `clients[i]` is (X, y); `batches[r][i]` the index arrays of client i's local steps in round r (their number is
    K_i, none means weight zero); `cohort[r]` client ids; `eta[r]` the rate of round r, `eta_vec[r]` that of the
    parameters beside Muon (TWO_RATES only, default `eta`). `model` gives (loss, gradient). `options`: see Options.
    `traffic` compresses what travels; it knows the states of fedavg, fedmuon and fedpac.
    """
    step, aggregate = ALGORITHMS[algorithm]
    opt = Options(**(COMPOSITIONS.get(algorithm, {}) | options))
    state, kept = server.initial({n: v.astype(np.float64) for n, v in x0.items()}, opt), [State() for _ in clients]
    records = []
    for r in range(rounds):
        rates = _rates(state["x"], algorithm, eta[r], eta[r] if eta_vec is None else eta_vec[r], opt)
        active = [i for i in cohort[r] if len(clients[i][1]) and len(batches[r][i])]
        D = zeros(state["x"])
        received, state = traffic.to_clients(r, state) if traffic else (state, state)
        if active:
            jobs = {i: _job(received["x"], clients[i], batches[r][i], rates, model, opt) for i in active}
            done = {i: step(jobs[i], received, kept[i]) for i in active}
            if traffic:
                done = {i: traffic.to_server(r, i, received["x"], *done[i], state["x"]) for i in active}
            result = _round(active, clients, batches[r], done, weights, opt)
            D = result.mean(result.change(state["x"]))
            G, Mbar = _mean_change_per_step(result, state, rates), _mean_momentum(result, state)
            state = aggregate(result, state) | {"G": G, "Mbar": Mbar}
            for i in active:
                kept[i] = {key: result.other[i][key] for key in server.KEPT.get(algorithm, ())}
        records.append(Record(state["x"], state["G"], state["Mbar"], D, state, tuple(kept)))
    return records


def _rates(x: Params, algorithm: str, eta: float, eta_vec: float, opt: Options) -> dict[str, float]:
    """The rate of each parameter's group; Muon's is multiplied."""
    if algorithm not in TWO_RATES:
        return dict.fromkeys(x, eta)
    return {n: opt.muon_multiplier * eta if opt.is_matrix(n, value) else eta_vec for n, value in x.items()}


def _job(x: Params, data: tuple, batches: Sequence, rates: dict[str, float], model: Callable, opt: Options) -> Job:
    X, y = data
    return Job(x, batches, rates, lambda x, batch: model(x, X[batch], y[batch])[1], lambda x: model(x, X, y)[1], opt)


def _round(
    active: list[int], clients: Sequence, batches: Sequence, done: dict, weights: str, opt: Options
) -> server.Round:
    """p sums to one over the clients that took part, q over all clients that have samples."""
    if weights not in ("samples", "uniform"):
        raise ValueError(f"weights {weights!r}: samples or uniform")
    # A client without samples has weight zero under both weightings, so it does not count in N either.
    size = [len(y) if weights == "samples" else int(len(y) > 0) for _, y in clients]
    p = {i: size[i] / sum(size[j] for j in active) for i in active}
    q = {i: size[i] / sum(size) for i in active}
    K = {i: len(batches[i]) for i in active}
    x, other = {i: done[i][0] for i in active}, {i: done[i][1] for i in active}
    return server.Round(p, q, K, x, other, opt)


def _mean_change_per_step(result: server.Round, state: State, rates: dict[str, float]) -> Params:
    """G = sum p_i (x0 - x_i)/(K_i eta_i); a parameter whose rate was zero keeps the G it had."""
    x0 = state["x"]

    def per_step(n: str) -> Any:
        return sum(p * (x0[n] - result.x[i][n]) / (result.K[i] * rates[n]) for i, p in result.p.items())

    return {n: per_step(n) if rates[n] else state["G"][n] for n in x0}


def _mean_momentum(result: server.Round, state: State) -> Params:
    """Mbar = sum p_i M_i on the matrices, for every algorithm whose clients have an M; used by fedmuon alone."""
    if not all("M" in other for other in result.other.values()):
        return state["Mbar"]
    mean = result.mean(result.returned("M"))
    return {n: mean[n] for n in state["Mbar"]}
