"""Algorithms, one short file each. An own one needs no change here: a YAML names it, `_target_: my_package.MyRule`."""

from fedmuon.algorithms.adamw import AdamW
from fedmuon.algorithms.algorithm import Algorithm, Rule, Step
from fedmuon.algorithms.muon import Muon, Polar
from fedmuon.algorithms.sgd import SGD

__all__ = ["SGD", "AdamW", "Algorithm", "Muon", "Polar", "Rule", "Step"]
