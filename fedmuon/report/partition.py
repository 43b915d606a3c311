"""`fedmuon-partition [overrides]`: one HTML page that shows who has what, for the same overrides as `fedmuon`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmuon import VERSION
from fedmuon.cli import checked_jobs
from fedmuon.command import Parser, command
from fedmuon.errors import UsageError


@command("fedmuon-partition", prints=True)
def main() -> None:
    """Entry point: writes the page and prints the figures. Exit code 2 for wrong input, one line on standard error."""
    parser = Parser(prog="fedmuon-partition", description=__doc__)
    parser.add_argument("overrides", nargs="*", help="key=value and group=option, as for fedmuon")
    parser.add_argument("-o", "--output", type=Path, default=Path("partition.html"), help="default: %(default)s")
    parser.add_argument("-cd", "--config-dir", help="a folder with groups of your own, as for fedmuon")
    parser.add_argument("-m", "--multirun", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=VERSION)
    args = parser.parse_intermixed_args()
    if args.multirun:
        raise UsageError("-m: a page shows one partition; leave it away, and call the command once for each")
    write(args.overrides, args.output, args.config_dir)


def write(overrides: Sequence[str], output: Path, config_dir: str | None = None) -> None:
    """Write the page of the partition that `fedmuon OVERRIDES...` would train on. Raises UsageError for wrong input."""
    from fedmuon.report.write import place, replace, told

    (job,) = checked_jobs(overrides, config_dir=config_dir)
    place(output)
    from omegaconf import OmegaConf

    from fedmuon.build import divided, load_data
    from fedmuon.data.heterogeneity import client_figures, heterogeneity
    from fedmuon.report.partition_page import page

    data = load_data(job.config)
    partition, train, validation = divided(job.config, data)
    if data.labels is None:
        raise UsageError(f"data={job.saved.data.name}: has no labels, and the page counts labels by client")
    each = client_figures(partition, data.labels, train)
    whole = heterogeneity(partition, data.labels, train, each)
    settings: Any = OmegaConf.to_container(OmegaConf.masked_copy(job.saved, ["seed", "data", "partition"]))
    text = page(partition, data.labels, data.classes, each, whole, len(validation), settings)

    replace(output, text)
    print(
        f"{whole.clients:,} clients of {whole.size_min:,} to {whole.size_max:,} samples, Gini {whole.size_gini:.2f}; "
        f"means {whole.mean_classes:.1f} of {len(data.classes)} classes, largest share {whole.mean_largest_share:.2f}, "
        f"distance {whole.mean_distance:.2f}; {whole.repeated:,} repeated and {whole.missing:,} missing samples",
        file=told(output),
    )
    print(output, file=told(output))


if __name__ == "__main__":
    main()
