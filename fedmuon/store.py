"""What clients keep from round to round, such as SCAFFOLD's control variates."""

from __future__ import annotations

from typing import Any

from torch import Tensor

State = dict[str, dict[str, Tensor]]


class MemoryStore:
    """Kept slots by client, in host memory; only clients that have trained take room."""

    def __init__(self) -> None:
        self._states: dict[int, State] = {}

    def get(self, client: int) -> State:
        """The slots of a client; empty before its first round."""
        return self._states.get(client, {})

    def put(self, client: int, kept: State) -> None:
        """Copy a client's slots into the store."""
        if kept:
            self._states[client] = {
                slot: {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()}
                for slot, tensors in kept.items()
            }

    def checkpoint(self) -> dict[str, Any]:
        return {str(client): state for client, state in self._states.items()}

    def restore(self, saved: dict[str, Any]) -> None:
        self._states = {int(client): state for client, state in saved.items()}
