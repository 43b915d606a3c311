"""The plain PyTorch loops that the engines are measured against: one resident model, one client after the other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.turns import Turn
from benchmarks.workload import Workload
from fedmuon.engines import memory


def plain_loop(workload: Workload, rounds: int, threads: int, keep: bool, turn: Turn) -> None:
    """FedAvg or Muon rounds until no turn comes. `keep`: gradient buffers stay, and the allocator keeps its memory.

    Otherwise gradients are set to None before every step, as torch does unless told not to.
    """
    torch.set_num_threads(threads)
    if keep:
        memory.keep()
    model = workload.network().train()
    parameters = list(model.parameters())
    images, labels = (t.to(workload.device) for t in workload.data())
    step = _muon(model, workload.lr) if workload.muon else _sgd(model, workload.lr)
    partition, numbers = workload.partition(), count()
    while turn.begin():
        for _ in range(rounds):
            number = next(numbers)
            before = [p.detach().clone() for p in parameters]
            change = [torch.zeros_like(p) for p in parameters]
            losses = 0.0
            for client in workload.cohort_of(number):
                with torch.no_grad():
                    for p, x in zip(parameters, before, strict=True):
                        p.copy_(x)
                order = partition[client][np.random.default_rng([1, number, client]).permutation(workload.samples)]
                for k in range(workload.steps):
                    at = np.arange(k * workload.batch, (k + 1) * workload.batch) % workload.samples
                    index = torch.from_numpy(order[at]).to(workload.device)
                    model.zero_grad(set_to_none=not keep)
                    loss = cross_entropy(model(images[index]), labels[index])
                    losses += loss.item()
                    loss.backward()
                    step(k)
                with torch.no_grad():
                    for d, p, x in zip(change, parameters, before, strict=True):
                        d.add_(p - x, alpha=1 / workload.cohort)
            with torch.no_grad():
                for p, x, d in zip(parameters, before, change, strict=True):
                    p.copy_(x + d)
        turn.end()


def _sgd(model: nn.Module, lr: float) -> Callable[[int], object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return lambda k: optimizer.step()


def _muon(model: nn.Module, lr: float) -> Callable[[int], object]:
    """FedMuon's local step written parameter by parameter, as published code is: momentum, five quintic iterations."""
    parameters = list(model.parameters())
    momenta = [torch.zeros_like(p) for p in parameters]
    squares = [torch.zeros_like(p) for p in parameters]
    towards = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(k: int) -> None:
        for p, m, v, G in zip(parameters, momenta, squares, towards, strict=True):
            g = p.grad
            assert g is not None
            if k == 0:
                m.zero_(), v.zero_()
            if p.ndim >= 2:
                m.mul_(0.95).add_(g)
                d = _newton_schulz(m.reshape(len(m), -1)).view_as(p)
            else:
                m.lerp_(g, 0.1), v.lerp_(g * g, 0.001)
                d = m / (1 - 0.9 ** (k + 1)) / ((v / (1 - 0.999 ** (k + 1))).sqrt() + 1e-8)
            p.add_(d, alpha=-lr * 0.5).add_(G, alpha=-lr * 0.5)

    return step


def _newton_schulz(M: Tensor) -> Tensor:
    X = M.bfloat16() if M.is_cuda else M
    X = X.mT if M.shape[0] > M.shape[1] else X
    X = X / (X.norm() + 1e-7)
    for _ in range(5):
        A = X @ X.mT
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return (X.mT if M.shape[0] > M.shape[1] else X).to(M.dtype)
