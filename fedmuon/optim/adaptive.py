"""The server optimizers FedAdam, FedYogi and FedAdagrad of arXiv 2003.00295, as one torch Optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedmuon.config import ServerAdaptive
from fedmuon.constraints import check_fields


class Adaptive(Optimizer):
    """One step a round on the pseudo-gradient -D, where D is the cohort's mean change.

        m <- beta1 m + (1 - beta1) D
        v <- beta2 v + (1 - beta2) D^2               adam
             v - (1 - beta2) D^2 sign(v - D^2)       yogi
             v + D^2                                 adagrad
        x <- x + lr m / (sqrt(v) + tau)

    m starts at 0 and v at `v0` (None: tau^2). `p.grad` holds -D, which changes the sign of m and nothing else.
    As in the paper there is no bias correction. With `bias_correction=True` m is divided by 1 - beta1^t and, for adam
    and yogi, v by 1 - beta2^t: adam with v0 = 0 is then torch.optim.Adam with eps = tau. adagrad with beta1 = 0 is
    torch.optim.Adagrad with initial_accumulator_value = v0, eps = tau.

    Raises UsageError, naming the key under `server`, for what `fedmuon.config.ServerAdaptive` does not allow.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        kind: str = "adam",
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        v0: float | None = None,
        bias_correction: bool = False,
    ) -> None:
        defaults = {
            "lr": lr, "kind": kind, "beta1": beta1, "beta2": beta2, "tau": tau,
            "v0": v0, "bias_correction": bias_correction,
        }  # fmt: skip
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        group = {**self.defaults, **param_group}
        check_fields(ServerAdaptive, "server.", **{key: group[key] for key in self.defaults})
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Move every parameter that has a gradient; returns what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._move(p, p.grad, group)
        return loss

    def _move(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            v0 = group["tau"] ** 2 if group["v0"] is None else group["v0"]
            state.update(step=0, m=torch.zeros_like(p), v=torch.full_like(p, v0))
        state["step"] += 1
        m, v, beta1, beta2 = state["m"], state["v"], group["beta1"], group["beta2"]

        m.mul_(beta1).add_(g, alpha=1 - beta1)
        square = g * g
        if group["kind"] == "adam":
            v.mul_(beta2).add_(square, alpha=1 - beta2)
        elif group["kind"] == "yogi":
            v.sub_(square * (v - square).sign(), alpha=1 - beta2)
        else:
            v.add_(square)

        rate, root = group["lr"], v.sqrt()
        if group["bias_correction"]:
            rate = rate / (1 - beta1 ** state["step"])
            if group["kind"] != "adagrad":  # its v is a sum, not a mean
                root.div_(math.sqrt(1 - beta2 ** state["step"]))
        p.addcdiv_(m, root.add_(group["tau"]), value=-rate)
