"""Workloads of `scripts/benchmark.py`, a small file each."""
