"""The judge: federated algorithms in float64 NumPy, written from the equations and from nothing in `fedmuon`.

Nothing here imports torch or the package, nothing works in place, and nothing is fast: a run is a fold of
pure functions over `dict[str, np.ndarray]` keyed by parameter name. Agreement with the product is evidence only
as long as neither side is written by looking at the other.

    models.py     losses with hand-derived gradients, and the quadratic for checks on paper
    polar.py      the polar factor P(M) and the shape factor
    clients.py    what a client does with its local steps, one function an algorithm
    servers.py    what the server makes of the clients' results
    traffic.py    what compression leaves of the messages
    federation.py `simulate`: rounds, weights, G, Mbar, records
"""

from .federation import ALGORITHMS, Record, simulate
from .models import conv, conv_parameters, mlp, mlp_parameters, quadratic
from .options import Options
from .polar import polar, shape_scale
from .traffic import Coding, Traffic

__all__ = [
    "ALGORITHMS",
    "Coding",
    "Options",
    "Record",
    "Traffic",
    "conv",
    "conv_parameters",
    "mlp",
    "mlp_parameters",
    "polar",
    "quadratic",
    "shape_scale",
    "simulate",
]
