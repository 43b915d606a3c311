"""A partition as the lines of a picture: one for each client, or several clients a line where there are many."""

from __future__ import annotations

import numpy as np

from fedmuon.data.heterogeneity import ClientFigures


def binned(each: ClientFigures, labels: np.ndarray, classes: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """(shares [lines, classes], sizes [lines]): of each class in a line's samples, and the mean size of its clients.

    labels: of all entries, client by client, int [entries], 0 ... classes - 1. Where there are more clients than
    `most`, that many lines hold them in the order of their most frequent class, its share and their size, those
    without samples last.
    """
    clients = len(each.sizes)
    lines, order = min(clients, most), np.arange(clients)
    if clients > most:
        filled = each.sizes > 0
        order = np.lexsort((-each.sizes, -np.nan_to_num(each.largest), np.where(filled, each.dominant, classes)))
    line = np.empty(clients, np.int64)
    line[order] = np.arange(clients) * lines // clients
    cells = np.repeat(line, each.sizes) * classes + labels
    counts = np.bincount(cells, minlength=lines * classes).reshape(lines, classes)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares, counts.sum(1) / np.bincount(line, minlength=lines)
