"""Local SGD with fewer passes through memory: a gradient that is a product adds itself to the weights."""

from __future__ import annotations

from operator import getitem

import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten


def fuse(graph: GraphModule) -> None:
    """Make of x <- x - eta (A @ B) one call where it is two, of stacks [C, ...] with rates eta [C, 1, 1].

    The product is not written and read again, which for small batches is most of a step's time; rounding differs.
    Left as they are: products that something else uses too, and factors that may be a tensor which steps change.
    """
    for node in list(graph.graph.nodes):
        if node.target is not _aten.addcmul_.default or node.kwargs.get("value") != -1:
            continue
        x, product, rate = node.args
        if product.target is not _aten.bmm.default or len(product.users) > 1 or _shape(product) != _shape(x):
            continue
        a, b = product.args
        if _shape(rate)[-2:] != (1, 1) or any(_memory(factor).op == "placeholder" for factor in (a, b)):
            continue
        with graph.graph.inserting_before(node):
            call = graph.graph.call_function
            scaled = call(_aten.mul.Tensor, (a, call(_aten.neg.default, (rate,))))
            node.replace_all_uses_with(call(_aten.baddbmm_.default, (x, scaled, b)))
        graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _memory(node: Node) -> Node:
    """What a view, or one of several, is a view of."""
    while node.target is getitem or _is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.returns[0].alias_info is not None
