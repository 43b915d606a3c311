"""The tables of the FedMuon paper (arXiv 2510.27403) and of its reviewers' questions, as data and as Hydra sweeps.

tables.yaml    every table: groups of cells, each group one Hydra sweep
figures.yaml   every published figure, with its source
`scripts/reproduce.py` runs them. Nothing here imports torch, but for what runs inside a run (cost.py).
"""
