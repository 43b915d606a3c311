"""One thread a process: pytest-xdist's workers fill the cores, and sums come out the same on machines of any size."""

import os

# Before torch and NumPy are first imported, and inherited by the commands that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
