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


class Lanes:
    """Pieces of `rows` clients, trained at the same time by engines that `build` makes around copies of the client.

    There is one more lane than threads: while a piece's messages are read in its lane, all threads go on. Pieces are
    the same for any number of threads, and each is computed with `threads` cores, so results do not depend on how many
    `workers` there are. torch's own generator is one for all threads: where a client is seen to draw from it, `train`
    raises `Alone` instead of giving that client's message.
    """

    quiet = False

    def __init__(self, client: Client, build: Callable[[Client], Engine], workers: int, threads: int) -> None:
        self.client, self.rows = client, 1
        self._pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads,))
        self._copies = [_copied(client) for _ in range(workers + 1)]
        self._engines = [build(copy) for copy in self._copies]

    def train(self, work: Sequence[Assignment], broadcast: Broadcast) -> Iterator[Message]:
        """The messages in the order of `work`. Raises `Alone`, and what an engine raises, in a client's turn."""
        pieces = (work[start : start + self.rows] for start in range(0, len(work), self.rows))
        running: deque[tuple[Engine, Future[list[Message]]]] = deque()
        for copy in self._copies:
            copy.follow(self.client)
        untouched = states(self.client.device)
        precision = self.client.trainer.precision_plugin
        # 64-true sets torch's default type, which is one for all threads: it stays set while any of them computes
        held = precision.train_step_context() if isinstance(precision, DoublePrecision) else nullcontext()
        with held:
            try:
                for engine, piece in zip(self._engines, pieces, strict=False):
                    running.append((engine, self._pool.submit(_messages, engine, piece, broadcast)))
                self.client.meanwhile()
                while running:
                    engine, future = running.popleft()
                    messages = future.result()
                    if not engine.quiet and states(self.client.device) != untouched:
                        raise Alone("it draws from a random generator of the process, which threads would share")
                    yield from messages
                    if following := next(pieces, ()):
                        running.append((engine, self._pool.submit(_messages, engine, following, broadcast)))
            finally:
                for _, future in running:
                    future.cancel()
                wait([future for _, future in running])


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
