"""Clients on several threads of a CPU, each thread in a copy of the task of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from lightning.pytorch.plugins.precision import DoublePrecision
from torch._subclasses.fake_tensor import FakeTensorMode

from fedmuon.client import Client, watchers
from fedmuon.engines.engine import Assignment, Broadcast, Engine, Message, Tensors
from fedmuon.engines.generators import states


class Alone(RuntimeError):
    """Clients cannot train side by side; the message says why. Nothing of the client at hand has been sent."""


_SPARE = 3  # engines beside one a thread: what they hold is read while the threads go on


class Lanes:
    """Pieces of `rows` clients, trained at the same time by engines that `build` makes around copies of the client.

    The caller is one of the `workers`: where the others have enough to do, it trains a piece itself instead of waiting.
    Pieces are the same for any number of threads, and each is computed with `threads` cores, so results do not depend
    on how many there are. Random generators are one for all threads: where a client is seen to draw from one, `train`
    raises `Alone` instead of giving that client's message.
    """

    quiet = False

    def __init__(self, client: Client, build: Callable[[Client], Engine], workers: int, threads: int) -> None:
        self.client, self.rows = client, 1
        self._others = workers - 1
        with FakeTensorMode():  # recording enters one: torch 2.11 goes on using what the first leaves in its thread,
            pass  # which must not be one of these, whose end would make that a dangling pointer
        self._pool = ThreadPoolExecutor(self._others, initializer=torch.set_num_threads, initargs=(threads,))
        self._copies = [_copied(client) for _ in range(workers + _SPARE)]
        self._engines = [build(copy) for copy in self._copies]

    def train(self, work: Sequence[Assignment], broadcast: Broadcast) -> Iterator[Message]:
        """The messages in the order of `work`. Raises `Alone`, and what an engine raises, in a client's turn."""
        pieces = deque(work[start : start + self.rows] for start in range(0, len(work), self.rows))
        free, trained = deque(self._engines), deque[_Piece]()
        for copy in self._copies:
            copy.follow(self.client)
        untouched = states(self.client.device)
        precision = self.client.trainer.precision_plugin
        # 64-true sets torch's default type, which is one for all threads: it stays set while any of them computes
        held = precision.train_step_context() if isinstance(precision, DoublePrecision) else nullcontext()
        with held:
            try:
                self._hand_out(pieces, free, trained, broadcast)
                self.client.meanwhile()
                while trained:
                    if trained[0].future.done() or not self._took_one(trained, last=not pieces):
                        done = trained.popleft()
                        messages = done.future.result()
                        if not done.engine.quiet and states(self.client.device) != untouched:
                            raise Alone("it draws from a random generator of the process, which threads would share")
                        yield from messages
                        free.append(done.engine)
                    self._hand_out(pieces, free, trained, broadcast)
            finally:
                for one in trained:
                    one.future.cancel()
                wait([one.future for one in trained])

    def _hand_out(
        self, pieces: deque[Sequence[Assignment]], free: deque[Engine], trained: deque[_Piece], broadcast: Broadcast
    ) -> None:
        while pieces and free:
            run = partial(_messages, free[0], pieces.popleft(), broadcast)
            trained.append(_Piece(free.popleft(), run, self._pool.submit(run)))

    def _took_one(self, trained: Sequence[_Piece], last: bool) -> bool:
        """Train a piece here that waits for a thread, if that leaves one for each; of the last ones, any."""
        waiting = [one for one in trained if not (one.future.running() or one.future.done())]
        if (last or len(waiting) > self._others) and waiting and waiting[-1].future.cancel():
            waiting[-1].train()
            return True
        return False


@dataclass
class _Piece:
    """A piece that an engine trains, or has trained."""

    engine: Engine
    run: Callable[[], list[Message]]
    future: Future[list[Message]]

    def train(self) -> None:
        """As if a thread had done it."""
        done: Future[list[Message]] = Future()
        try:
            done.set_result(self.run())
        except Exception as error:
            done.set_exception(error)
        self.future = done


def _messages(engine: Engine, piece: Sequence[Assignment], broadcast: Broadcast) -> list[Message]:
    return list(engine.train(piece, broadcast))


def _copied(client: Client) -> Client:
    """The client around a copy of its task. Raises `Alone` where that cannot be, or where callbacks watch its steps."""
    if watching := watchers(client.trainer):
        raise Alone(f"{watching[0]} watches every local step")
    try:
        task = deepcopy(client.task)
    except Exception as error:
        raise Alone(f"{type(client.task).__name__} cannot be copied ({type(error).__name__}: {error})") from error
    copy = Client(task, client.data)
    copy.alone, copy.trainer = False, client.trainer
    copy.precision, copy.channels_last, copy.repeats = client.precision, client.channels_last, client.repeats
    parameters, own = dict(task.named_parameters()), client.stack
    learned: Tensors = {name: parameters[name] for name in client.learned}
    copy.prepare(own.algorithm, own.groups, learned, dict(task.named_buffers()), own.clip, client.batch_size)
    return copy
