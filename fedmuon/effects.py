"""Given keys that change nothing, since another one is not what they belong to. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedmuon.config import Config, Data

Needs = dict[str, tuple[bool, str]]  # key -> (whether it changes something, what it needs for that)


def without_effect(config: Config, given: Collection[str]) -> dict[str, str]:
    """The line for each of the given keys that changes nothing.

    What asks for nothing, such as sampler.repeat=false without a trace, is left in peace.
    """
    needs = _of_clients(config) | _of_messages(config) | _of_algorithm(config) | _of_server(config) | _of_data(config)
    return {
        key: f"{key}: has no effect without {needed}; give that as well, or leave {key} away"
        for key, (has, needed) in needs.items()
        if key in given and not has
    }


def _of_clients(config: Config) -> Needs:
    local, late, engine, sampler = config.local, config.stragglers, config.engine, _values(config.sampler)
    return {
        "local.step_every": (local.schedule == "step", "local.schedule=step"),
        "local.step_factor": (local.schedule == "step", "local.schedule=step"),
        "local.schedule_rounds": (local.schedule == "cosine", "local.schedule=cosine"),
        "stragglers.late": (late.late == "drop" or late.deadline is not None, "stragglers.deadline"),
        "stragglers.sigma": (
            late.sigma == 0 or late.deadline is not None or late.over_selection > 1,
            "stragglers.deadline or stragglers.over_selection",
        ),
        "sampler.repeat": (not sampler.get("repeat") or sampler.get("path") is not None, "sampler.path"),
        "sampler.probability": (sampler.get("path") is None, "sampler.path=null"),
        "engine.measure": (not engine.measure or engine.name == "auto", "engine=auto"),
        "engine.channels_last": (
            engine.channels_last is None or engine.name in ("sequential", "auto"),
            "engine=sequential, or engine=auto",
        ),
    }


def _of_messages(config: Config) -> Needs:
    needs: Needs = {}
    for way, link in (("up", config.compression.up), ("down", config.compression.down)):
        key = f"compression.{way}"
        needs[f"{key}.share"] = (link.method == "topk", f"{key}.method=topk")
        needs[f"{key}.ratio"] = (link.method == "svd", f"{key}.method=svd")
        needs[f"{key}.error_feedback"] = (link.method != "none", f"a {key}.method")
        needs[f"{key}.states"] = (link.method != "none" or link.states is None, f"a {key}.method")
    return needs


def _of_algorithm(config: Config) -> Needs:
    algorithm = _values(config.algorithm)
    polar, align, alpha = _values(algorithm.get("polar", {})), algorithm.get("align", True), algorithm.get("alpha", 1)
    needs: Needs = {
        "algorithm.alpha": (align, "algorithm.align=true"),
        "algorithm.align": (not align or alpha > 0, "an algorithm.alpha above 0"),
        "algorithm.mix_order": (align and alpha > 0, "algorithm.align=true and an algorithm.alpha above 0"),
        "algorithm.qkv": (algorithm.get("split_qkv", True), "algorithm.split_qkv=true"),
    }
    for name in ("steps", "dtype"):
        iterated = polar.get("method") != "svd" or polar.get(name) is None
        needs[f"algorithm.polar.{name}"] = (iterated, "an algorithm.polar.method that is iterated")
    if not algorithm.get("orthogonalize", True):
        for name, value in polar.items():
            needs[f"algorithm.polar.{name}"] = (value is None, "algorithm.orthogonalize=true")
    return needs


def _of_server(config: Config) -> Needs:
    server = _values(config.server)
    adagrad = server.get("kind") == "adagrad"  # whose second moment is a sum
    return {
        "server.beta2": (not adagrad, "server=adam or server=yogi"),
        "server.bias_correction": (
            not adagrad or not server.get("bias_correction") or server.get("beta1", 0) > 0,
            "server=adam or server=yogi, or a server.beta1 above 0",
        ),
    }


def _of_data(config: Config) -> Needs:
    data, partition, model = config.data, _values(config.partition), _values(config.model)
    read = partition.get("_target_") in ("fedmuon.data.partitions.from_file", "fedmuon.federate")
    needs: Needs = {
        "partition.seed": (not read and partition.get("merge", True), "a partition that is drawn"),
        "model.groups": (model.get("norm", "gn") == "gn", "model.norm=gn"),
    }
    if isinstance(data, Data):
        from fedmuon.data.sources import Source

        kind, tested = Source.of(data).kind, data.test_split is not None
        needs |= {
            "data.path": (data.path is None or data.root is None, "data.root=null"),
            "data.config": (data.config is None or kind == "hub", "a data set of the hub"),
            "data.revision": (data.revision is None or kind == "hub", "a data set of the hub"),
            "data.train_split": (kind != "npz", "a folder or a data set of the hub"),
            "data.image": (kind in ("hub", "parquet"), "Parquet files or a data set of the hub"),
            "data.label": (kind in ("hub", "parquet"), "Parquet files or a data set of the hub"),
            "data.test_crop": (tested or not data.test_crop, "a data.test_split"),
            "evaluation.targets": (tested or not config.evaluation.targets, "a data.test_split"),
        }
    return needs


def _values(node: Any) -> Mapping[str, Any]:
    return node if isinstance(node, Mapping) else vars(node)
