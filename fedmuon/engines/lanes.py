"""Clients on several threads of a CPU, each thread in a copy of the task of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from copy import deepcopy

import torch
from lightning.pytorch.plugins.precision import DoublePrecision

from fedmuon.client import Client, watchers
from fedmuon.engines.engine import Assignment, Broadcast, Engine, Message, Tensors
from fedmuon.engines.generators import states


class Alone(RuntimeError):
    """Clients cannot train side by side; the message says why. Nothing of the client at hand has been sent."""


_Trained = tuple[Engine, "Future[list[Message]]"]  # what trains, or has trained, the next piece
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
        self._pool = ThreadPoolExecutor(self._others, initializer=torch.set_num_threads, initargs=(threads,))
        self._copies = [_copied(client) for _ in range(workers + _SPARE)]
        self._engines = [build(copy) for copy in self._copies]

    def train(self, work: Sequence[Assignment], broadcast: Broadcast) -> Iterator[Message]:
        """The messages in the order of `work`. Raises `Alone`, and what an engine raises, in a client's turn."""
        pieces = deque(work[start : start + self.rows] for start in range(0, len(work), self.rows))
        free, trained = deque(self._engines), deque[_Trained]()
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
                    if pieces and free and not trained[0][1].done():
                        engine = free.popleft()
                        trained.append((engine, _done(engine, pieces.popleft(), broadcast)))
                    else:
                        engine, future = trained.popleft()
                        messages = future.result()
                        if not engine.quiet and states(self.client.device) != untouched:
                            raise Alone("it draws from a random generator of the process, which threads would share")
                        yield from messages
                        free.append(engine)
                    self._hand_out(pieces, free, trained, broadcast)
            finally:
                for _, future in trained:
                    future.cancel()
                wait([future for _, future in trained])

    def _hand_out(
        self, pieces: deque[Sequence[Assignment]], free: deque[Engine], trained: deque[_Trained], broadcast: Broadcast
    ) -> None:
        """Give the threads pieces, so that each has one to go on with."""
        while pieces and free and sum(not future.done() for _, future in trained) < 2 * self._others:
            engine = free.popleft()
            trained.append((engine, self._pool.submit(_messages, engine, pieces.popleft(), broadcast)))


def _done(engine: Engine, piece: Sequence[Assignment], broadcast: Broadcast) -> Future[list[Message]]:
    """As if a thread had trained the piece."""
    future: Future[list[Message]] = Future()
    try:
        future.set_result(_messages(engine, piece, broadcast))
    except Exception as error:
        future.set_exception(error)
    return future


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
    copy.prepare(own.algorithm, own.groups, learned, dict(task.named_buffers()), own.clip)
    return copy
