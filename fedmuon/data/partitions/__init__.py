"""Ways to divide the training samples among the clients.

Each is a pure function (labels, clients, seed, *, min_size, among, ...) -> Partition: disjoint and complete, every
client with at least `min_size` samples by construction. labels: int64 [n], or n where a data set has none; among:
distribute only these indices (what validation left). Nothing here needs torch.
"""

from fedmuon.data.partitions.by_group import natural
from fedmuon.data.partitions.even import feature_shift, iid, quantity
from fedmuon.data.partitions.label_sets import label_disjoint, shards
from fedmuon.data.partitions.label_skew import dirichlet, dirichlet_classes
from fedmuon.data.partitions.stored import from_file

__all__ = [
    "dirichlet",
    "dirichlet_classes",
    "feature_shift",
    "from_file",
    "iid",
    "label_disjoint",
    "natural",
    "quantity",
    "shards",
]
