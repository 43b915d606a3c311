"""Write docs/algorithms.md from the files of conf/algorithm and the rules they name.

    python scripts/algorithms_table.py [--check]

--check writes nothing and exits with 1 if the page is not what the code says.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fedmuon.algorithms import Algorithm
from fedmuon.comm import Channel
from fedmuon.compose import CONF, Composer
from fedmuon.config import Config, ServerAdaptive, ServerSGD
from fedmuon.job import checked_job
from fedmuon.models import LeNet5
from fedmuon.optim.routing import groups
from fedmuon.report.markdown import table
from fedmuon.server import Server

X_BYTES = 4 * 61706  # of LeNet-5
PAGE = Path(__file__).parents[1] / "docs" / "algorithms.md"
HEAD = """# Algorithms

One line for every file of `conf/algorithm`, written by `python scripts/algorithms_table.py` from those files and the
docstrings of the rules they name. `fedmuon algorithm=NAME server=SERVER` combines one with another server optimizer.

Notation: x0 the global model of the round, x_i what client i makes of it in K_i local steps, g its minibatch gradient,
p_i its weight in the cohort, q_i in the population (n_i / sum n, or 1/N with aggregation.weights=uniform; N counts the
clients that have samples), D = sum p_i (x_i - x0), G = sum p_i (x0 - x_i) / (K_i eta), the mean step of the last round.
Shapes, traps and constants are in the rules' docstrings. "kept" stays with its client from round to round. "up" and
"down" are what one client sends and receives in a round, in units of x and in bytes for LeNet-5 (61,706 numbers, 61,470
of them in matrices); both follow from the declarations of the rules. [Compression](compression.md) applies to any line.

`a` (`algorithm.alpha`) always weights G. FedCM's and FedLADA's papers weight the other term: theirs is 1 - a.
Three papers are called FedMuon: 2510.27403 is `fedmuon` here, 2509.26337 is `fedmuon_lmo`, and 2510.03866 is not here.
`local_soap` is not here: torch has no SOAP, and the packages that have it step one model's parameters, not a stack of
clients. The clients of the last round could derive G: FedMuon's line less one x, see `comm/down_bytes_derivable`.

"""


def row(name: str) -> list[str]:
    """The cells of one file of conf/algorithm."""
    config = checked_job(Composer().compose([f"algorithm={name}"])).config
    rule = config.algorithm
    server = _lenet(config)
    sources = re.findall(r"\d{4}\.\d{5}", _comment(name))
    return [
        f"`{name}`",
        f"{type(rule).__name__}{_settings(config)}: {_equation(rule)}",
        _payload(server.up, config.compression.up.method),
        _payload(server.down, config.compression.down.method),
        ", ".join(rule.kept) or "-",
        "; keeps ".join([_server(config.server), *rule.secret]),
        f"[{sources[0]}](https://arxiv.org/abs/{sources[0]})" if sources else "-",
    ]


def _lenet(config: Config) -> Server:
    """The server of LeNet-5 on 28 x 28 grey images in ten classes, which knows what travels."""
    network = LeNet5((1, 28, 28), 10)
    parameters = dict(network.named_parameters())
    routed = groups(config.algorithm, parameters, config.local.lr)
    return Server(config.algorithm, routed, parameters, {}, config.aggregation, config.compression)


def _payload(channel: Channel, method: str) -> str:
    """What travels, how it is coded, and the size of the whole."""
    names = [("G" if s == "delta_g" else s) + (f" ({method})" if channel.coded.get(s) else "") for s in channel.sizes]
    return f"{', '.join(names)}: {channel.bytes / X_BYTES:.3g} x, {channel.bytes:,} B"


def _comment(name: str) -> str:
    """The comment lines at the head of the file."""
    return "".join(line for line in (CONF / "algorithm" / f"{name}.yaml").open() if line.startswith("# "))


def _equation(rule: Algorithm) -> str:
    """The first line of a rule's docstring, without shapes and sources, as far as the file's switches leave it."""
    line = (rule.__doc__ or "").strip().splitlines()[0]
    if not rule.a:
        line = re.sub(r"\[\(1 - a\) (.+) \+ a G\]", r"\1", line)
    if "momentum" not in rule.shared:
        line = line.replace("from M = Mbar", "from the client's own M" if "momentum" in rule.kept else "from M = 0")
    line = re.sub(r"\s*\(arXiv[^)]*\)|^FedMuon of arXiv [\d.]+: ", "", line).split("; shapes")[0].split(", shapes")[0]
    return line.strip().rstrip(".;,")


def _settings(config: Config) -> str:
    """The weight of G, where there is one."""
    return f" (a = {config.algorithm.a:g})" if config.algorithm.a else ""


def _server(server: ServerSGD | ServerAdaptive) -> str:
    if isinstance(server, ServerAdaptive):
        return f"{server.kind}, lr {server.lr:g}"
    momentum = f", {'Nesterov' if server.nesterov else 'momentum'} {server.momentum:g}" if server.momentum else ""
    return f"SGD, lr {server.lr:g}{momentum}"


def main() -> int:
    names = [file.stem for file in sorted((CONF / "algorithm").glob("*.yaml"))]
    heads = ["algorithm", "client step", "up", "down", "kept", "server", "source"]
    page = f"{HEAD}{table(heads, map(row, names))}\n"
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
    elif not PAGE.exists() or PAGE.read_text() != page:
        print(f"{PAGE}: is not what the code says; run python scripts/algorithms_table.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
