"""`fedmuon-evaluate RUN_DIR`: the final model of a run on its validation and test samples."""

from __future__ import annotations

from pathlib import Path

from fedmuon import VERSION
from fedmuon.command import Parser, command
from fedmuon.errors import UsageError


@command("fedmuon-evaluate", prints=True)
def main() -> None:
    """Entry point: prints one line a split. Exit code 2 for a folder that holds no final model."""
    parser = Parser(prog="fedmuon-evaluate", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN_DIR")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--data", type=Path, metavar="ROOT", help="where the run's data is now; default: its data.root")
    parser.add_argument("--version", action="version", version=VERSION)
    args = parser.parse_args()
    if args.batch_size < 1:
        raise UsageError(f"--batch-size {args.batch_size}: must be at least 1")
    for split, figures in evaluate(args.run, args.batch_size, args.data).items():
        print(f"{split}: " + "  ".join(f"{name} {value:.6f}" for name, value in figures.items()))


def evaluate(run: Path, batch_size: int = 1000, root: Path | None = None) -> dict[str, dict[str, float]]:
    """Loss and accuracy of RUN_DIR/model.safetensors, {"val": {...}, "test": {...}}, as in the run's last row.

    root: where the run's data is now, for data.root. Raises UsageError where there is no final model, or other data.
    """
    import torch
    from lightning.pytorch.plugins.precision import DoublePrecision, MixedPrecision, Precision

    from fedmuon.build import load_data
    from fedmuon.data.partition import check_indices, load_validation
    from fedmuon.data.samples import Batches
    from fedmuon.recorder import Recorder
    from fedmuon.resuming import stored
    from fedmuon.saved import load
    from fedmuon.tasks import ImageClassification
    from fedmuon.together import check_data
    from fedmuon.typed import checked

    network, config = load(run), stored(run)
    if root is not None:
        config.data.root = str(root)
    check_data(typed := checked(config, environment=False))
    data = load_data(typed)
    check_indices(run / "partition.npz", len(data.train), data.labels)
    double = next(network.parameters()).dtype == torch.float64  # trainer.precision=64-true
    precision = DoublePrecision() if double else Precision()
    if config.trainer.precision == "bf16-mixed":
        precision = MixedPrecision("bf16-mixed", "cpu")
    task = ImageClassification(network, len(data.classes)).eval()
    held_out = torch.from_numpy(load_validation(run / "partition.npz"))
    splits = {"val": data.train.take(held_out) if len(held_out) else None, "test": data.test}
    recorder, found = Recorder(task), {}
    for split, samples in splits.items():
        if samples is not None:
            with torch.inference_mode(), precision.val_step_context():
                for index, batch in enumerate(Batches(samples, batch_size)):
                    batch = precision.convert_input(batch)
                    task.validation_step(samples.transform(batch) if samples.transform else batch, index)
            found[split] = recorder.means()
            recorder.reset()
    return found


if __name__ == "__main__":
    main()
