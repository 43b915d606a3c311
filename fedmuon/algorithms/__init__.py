"""Algorithms, one short file each. An own one needs no change here: a YAML names it, `_target_: my_package.MyRule`."""

from fedmuon.algorithms.adamw import AdamW
from fedmuon.algorithms.algorithm import Algorithm, Rule, Step, Sums
from fedmuon.algorithms.fedadamw import FedAdamW
from fedmuon.algorithms.feddyn import FedDyn
from fedmuon.algorithms.fedlada import FedLADA
from fedmuon.algorithms.fedmuon_lmo import FedMuonLMO
from fedmuon.algorithms.fednova import FedNova
from fedmuon.algorithms.fedprox import FedProx
from fedmuon.algorithms.local_adamw import LocalAdamW
from fedmuon.algorithms.mimelite import MimeLite
from fedmuon.algorithms.muon import Muon, Polar
from fedmuon.algorithms.scaffold import Scaffold
from fedmuon.algorithms.sgd import SGD

__all__ = [
    "SGD",
    "AdamW",
    "Algorithm",
    "FedAdamW",
    "FedDyn",
    "FedLADA",
    "FedMuonLMO",
    "FedNova",
    "FedProx",
    "LocalAdamW",
    "MimeLite",
    "Muon",
    "Polar",
    "Rule",
    "Scaffold",
    "Step",
    "Sums",
]
