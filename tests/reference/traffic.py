"""What compression leaves of the messages of FedAvg, FedMuon and FedPAC, from the equations: codes, error feedback."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .clients import State
from .options import Params

Draw = Callable[[tuple[int, ...]], np.ndarray]  # uniform numbers of a shape


@dataclass(frozen=True)
class Coding:
    """One direction: a code, its constant, the states it is for (by the judge's names), with error feedback or not."""

    method: str = "none"
    ratio: float = 0.05
    share: float = 0.01
    feedback: bool = True
    states: tuple[str, ...] = ("x", "G", "Mbar", "M", "m", "v")


def decoded(coding: Coding, t: np.ndarray, draw: Draw) -> np.ndarray:
    """What arrives of one float64 tensor, itself where its code takes no fewer bytes."""
    n = t.size
    if coding.method == "svd" and t.ndim >= 2:
        view = t.reshape(len(t), -1) if t.ndim != 3 else t
        rows, cols = view.shape[-2:]
        q = max(1, math.floor(coding.ratio * rows * cols / (rows + cols + 1)))
        if q * (rows + cols + 1) >= rows * cols:
            return t
        parts = [_rank(matrix, q) for matrix in view.reshape(-1, rows, cols)]
        return np.reshape(parts, t.shape)
    if coding.method == "topk":
        k = max(1, math.floor(coding.share * n))
        if k * (8 + 4) >= 8 * n:
            return t
        smallest = np.sort(np.abs(t).ravel())[n - k]
        return np.where(np.abs(t) >= smallest, t, 0.0)
    if coding.method == "quantize":
        if n + 8 >= 8 * n:
            return t
        step = np.abs(t).max() / 127
        if step == 0:
            return t
        below = np.floor(np.abs(t) / step)
        return np.sign(t) * step * (below + (draw(t.shape) < np.abs(t) / step - below))
    if coding.method == "bf16":
        bits = t.astype(np.float32).view(np.uint32).astype(np.uint64)
        even = (bits >> np.uint64(16)) & np.uint64(1)
        rounded = (bits + np.uint64(0x7FFF) + even) & np.uint64(0xFFFF0000)  # to nearest, ties to even
        return rounded.astype(np.uint32).view(np.float32).astype(np.float64)
    return t


def _rank(matrix: np.ndarray, q: int) -> np.ndarray:
    U, s, Vt = np.linalg.svd(matrix, full_matrices=False)
    return U[:, :q] @ np.diag(s[:q]) @ Vt[:q]


@dataclass
class Traffic:
    """Both directions over a run; `draws(direction, round, client)` gives the random numbers of a message."""

    up: Coding = Coding()
    down: Coding = Coding()
    draws: Callable[[str, int, int], Draw] = lambda direction, round, client: np.zeros
    memory: dict[tuple, Params] = field(default_factory=dict)
    held: Params | None = None

    def to_clients(self, r: int, state: State) -> tuple[State, State]:
        """(what clients receive, the server's state after sending it)."""
        draw = self.draws("down", r, 0)
        if self.down.method in ("svd", "topk") and "x" in self.down.states:
            if self.held is None:
                self.held = state["x"]
            else:
                change = {n: state["x"][n] - self.held[n] for n in self.held}
                self.held = {n: self.held[n] + decoded(self.down, d, draw) for n, d in change.items()}
            x = self.held
            if not self.down.feedback:
                state = state | {"x": x}
        else:
            x = self._sent(self.down, "down", "x", state["x"], draw)
        others = {key: self._sent(self.down, "down", key, state[key], draw) for key in ("G", "Mbar", "m", "v")}
        return state | others | {"x": x}, state

    def to_server(self, r: int, client: int, start: Params, x: Params, other: State, server_x: Params) -> tuple:
        """A client's result as the server takes it: its change added to the server's own x."""
        draw = self.draws("up", r, client)
        change = self._sent(self.up, client, "x", {n: x[n] - start[n] for n in x}, draw)
        sent = {key: self._sent(self.up, client, key, other[key], draw) for key in ("M", "m", "v") if key in other}
        return {n: server_x[n] + change[n] for n in x}, other | sent

    def _sent(self, coding: Coding, who: object, key: str, meant: Params, draw: Draw) -> Params:
        if key not in coding.states:
            return meant
        left = self.memory.get((who, key), {n: np.zeros_like(t) for n, t in meant.items()})
        feedback = coding.feedback and key != "v"  # which may not fall below zero
        wanted = {n: t + left[n] for n, t in meant.items()} if feedback else meant
        arrived = {n: decoded(coding, t, draw) for n, t in wanted.items()}
        self.memory[who, key] = {n: wanted[n] - arrived[n] for n in meant}
        return arrived
