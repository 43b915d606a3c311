"""What clients keep from round to round, such as SCAFFOLD's control variates and the error feedback of compression."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import load_file, save_file

from fedmuon import rundir
from fedmuon.engines.engine import State


class Store(Protocol):
    """Kept slots by client; only clients that have trained take room. Rounds are counted from 1."""

    def start(self, saved: dict[str, Any] | None) -> None:
        """Take up what a checkpoint says; None where a run begins."""

    def get(self, client: int) -> State:
        """The slots of a client; empty before its first round. Not to be changed in place."""

    def put(self, client: int, kept: State, round: int) -> None:
        """Copy what a client keeps after a round into the store; nothing to keep takes no room."""

    def checkpoint(self) -> dict[str, Any]:
        """What a checkpoint must hold."""

    def passed(self, round: int) -> None:
        """The checkpoint of a round is on disk: what only earlier ones needed can go."""


class MemoryStore:
    """In host memory, and in every checkpoint."""

    def __init__(self) -> None:
        self._states: dict[int, State] = {}

    def start(self, saved: dict[str, Any] | None) -> None:
        self._states = {int(client): state for client, state in (saved or {}).items()}

    def get(self, client: int) -> State:
        return self._states.get(client, {})

    def put(self, client: int, kept: State, round: int) -> None:
        if kept:
            self._states[client] = {
                slot: {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()}
                for slot, tensors in kept.items()
            }

    def checkpoint(self) -> dict[str, Any]:
        return {str(client): state for client, state in self._states.items()}

    def passed(self, round: int) -> None:
        pass


class DiskStore:
    """A safetensors file for each client and round, folder/CLIENT/ROUND.safetensors; `get` maps it into memory.

    Memory follows the clients of a chunk, and a checkpoint holds only the round. The truth of a checkpoint is each
    client's newest file up to its round: later ones are those of a run that was killed, earlier ones go once a
    checkpoint has passed them, so that a kill at any moment leaves what the last checkpoint needs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.round = folder, 0
        self._rounds: dict[int, list[int]] = {}  # the rounds of a client's files, oldest first

    def start(self, saved: dict[str, Any] | None) -> None:
        self.round, self._rounds = saved["round"] if saved else 0, {}
        for file in self.folder.glob("*/*") if self.folder.exists() else ():
            if file.suffix != ".safetensors" or file.name.startswith(".") or int(file.stem) > self.round:
                file.unlink()
            else:
                self._rounds.setdefault(int(file.parent.name), []).append(int(file.stem))
        for rounds in self._rounds.values():
            rounds.sort()

    def get(self, client: int) -> State:
        state: State = {}
        if client in self._rounds:
            for key, t in load_file(self._file(client, self._rounds[client][-1])).items():
                slot, _, name = key.partition(":")
                state.setdefault(slot, {})[name] = t
        return state

    def put(self, client: int, kept: State, round: int) -> None:
        tensors = {f"{slot}:{name}": t for slot, of_slot in kept.items() for name, t in of_slot.items()}
        if not tensors:
            return
        file = self._file(client, round)
        file.parent.mkdir(parents=True, exist_ok=True)
        with rundir.replacing(file) as beside:
            save_file({key: t.detach().cpu().contiguous() for key, t in tensors.items()}, beside)
        rounds = self._rounds.setdefault(client, [])
        self._rounds[client] = [*(one for one in rounds if one < round), round]
        self.round = round

    def checkpoint(self) -> dict[str, Any]:
        return {"round": self.round}

    def passed(self, round: int) -> None:
        for client, rounds in self._rounds.items():
            while len(rounds) > 1 and rounds[1] <= round:
                self._file(client, rounds.pop(0)).unlink(missing_ok=True)

    def _file(self, client: int, round: int) -> Path:
        return self.folder / str(client) / f"{round}.safetensors"
