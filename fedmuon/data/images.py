"""From images as files hold them to one array of pixels."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

from fedmuon import devices
from fedmuon.errors import UsageError

_CHUNK = 500  # images a task decodes
_PATIENCE = 1.0  # seconds before a progress bar is worth its lines
_GREY = ("1", "L")
_BROKEN = (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError)  # Pillow's, for what is no image

Cell = bytes | str | np.ndarray | None


@dataclass(frozen=True)
class Encoded:
    """The images of a split. `cells(start, stop)` gives each as encoded bytes, a path, or pixels [h, w] or [h, w, 3];
    `name(row)` is what errors call one of them."""

    count: int
    cells: Callable[[int, int], Sequence[Cell]]
    name: Callable[[int], str]


@dataclass(frozen=True)
class Split:
    """One split as it was read. labels: whole numbers or texts [n], `name` names them in errors.

    classes: the class names that the source declares; None where it has none.
    """

    images: Encoded
    labels: np.ndarray
    name: str
    classes: tuple[str, ...] | None = None


def decode(encoded: Encoded, channels: int | None = None, size: int | None = None, title: str = "images") -> np.ndarray:
    """All images, uint8 [n, channels, height, width], decoded by a thread for every core.

    channels: 1 (grey) or 3 (RGB) converts; None takes what the first image has. size: height and width in pixels,
    reached by scaling the shorter side and cutting the middle out; None wants images that agree.
    Raises UsageError for images that are missing, broken, of more than 8 bits a channel, or that differ in size, and
    for colour after a grey first image.
    """
    first = _open(encoded, 0, encoded.cells(0, 1)[0])
    mode = {1: "L", 3: "RGB", None: "L" if first.mode in _GREY else "RGB"}[channels]
    strict = channels is None and mode == "L"
    shape = _pixels(encoded, 0, first, mode, size, strict).shape
    out = np.empty((encoded.count, *shape), np.uint8)

    def fill(start: int) -> int:
        stop = min(start + _CHUNK, encoded.count)
        for row, cell in enumerate(encoded.cells(start, stop), start):
            pixels = _pixels(encoded, row, _open(encoded, row, cell), mode, size, strict)
            if pixels.shape != shape:
                raise UsageError(
                    f"{encoded.name(row)} is {pixels.shape[2]} x {pixels.shape[1]} pixels, the first is "
                    f"{shape[2]} x {shape[1]}; all images must have one size: set data.size, as in data.size={shape[1]}"
                )
            out[row] = pixels
        return stop

    with ThreadPoolExecutor(devices.cores()) as pool, _progress(title, encoded.count) as advance:
        try:
            for stop in pool.map(fill, range(0, encoded.count, _CHUNK)):  # in order: the first broken row is named
                advance(stop)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return out


def _open(encoded: Encoded, row: int, cell: Cell) -> Image.Image:
    if cell is None:
        raise UsageError(f"{encoded.name(row)} has no image; remove the row")
    try:
        if isinstance(cell, np.ndarray):
            return Image.fromarray(cell)
        image = Image.open(io.BytesIO(cell) if isinstance(cell, bytes) else cell)
        image.load()
    except _BROKEN as error:
        raise UsageError(f"{encoded.name(row)} cannot be decoded ({error}); download or write it again") from None
    return image


def _pixels(encoded: Encoded, row: int, image: Image.Image, mode: str, size: int | None, strict: bool) -> np.ndarray:
    """uint8 [channels, height, width]. `strict` refuses colour where grey was only inferred from the first image."""
    if image.mode[0] in "IF":
        raise UsageError(
            f"{encoded.name(row)} has the pixel type {image.mode}; allowed are 8 bits a channel; convert first"
        )
    if strict and image.mode not in (*_GREY, "LA"):
        raise UsageError(f"{encoded.name(row)} is in colour, the first image is grey; set data.channels to 1 or 3")
    if image.mode != mode:
        image = image.convert(mode)
    if size is not None and image.size != (size, size):
        image = ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
    pixels = np.asarray(image)
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal once the work has taken a second; its function takes how many images are done."""
    from rich.markup import escape
    from rich.progress import Progress

    from fedmuon.console import console

    screen = console(stderr=True)
    started = time.monotonic()
    bar = Progress(console=screen, transient=True)
    task = bar.add_task(f"decoding {escape(title)}", total=total)

    def advance(done: int) -> None:
        if screen.is_terminal and not bar.live.is_started and time.monotonic() - started > _PATIENCE:
            bar.start()
        bar.update(task, completed=done)

    try:
        yield advance
    finally:
        bar.stop()
