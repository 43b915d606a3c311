"""Schemas of the configuration. Values stand in the YAML files of `conf/`; types and ranges stand here.

Nothing here imports torch, timm or lightning, so that every wrong key, type or value is reported within a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedmuon.constraints import Bound, bounded, choice
from fedmuon.data.schemas import PARTITIONS_AND_SAMPLERS

_PACKAGE = Path(__file__).parent
CONF = _PACKAGE / "conf" if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent / "conf"  # in a wheel, in a checkout

OmegaConf.register_new_resolver("plus", lambda a, b: a + b, replace=True)  # ${plus:1,2} in a YAML is 3


@dataclass(frozen=True)
class Rounds:
    """`federation`: population and rounds. `cohort`: clients a round, a number or a fraction of the population.

    store  where what clients keep from round to round is: memory, or disk: files in the run directory. Same result.
    """

    rounds: int = bounded(30, low=1, high=2**31 - 1, hint="federation.rounds=30 trains for 30 communication rounds")
    clients: int = bounded(100, low=1)
    cohort: int | float = bounded(10, low=0, open=True, hint="a number of clients, or a fraction such as 0.1")
    store: str = choice("memory", "memory", "disk")


@dataclass(frozen=True)
class Local:
    """`local`: what a client does in a round.

    steps       local steps, batches of shuffled epochs that run on into the next epoch
    epochs      instead of steps where it is given: passes over the client's samples; fractions count batches
    lr          base rate; schedule, warmup, step_every (both in rounds) and step_factor make it a function of the round
    schedule_rounds  length of the cosine
    clip        largest norm of a client's gradient, over all its parameters
    """

    steps: int | None = bounded(10, low=1, high=10**6)
    epochs: float | None = bounded(None, low=0, open=True, high=10**4)
    batch_size: int = bounded(32, low=1)
    drop_last: bool = False
    lr: float = bounded(0.1, low=0)
    schedule: str = choice("constant", "constant", "cosine", "step")
    schedule_rounds: int = bounded(30, low=1)
    warmup: int = bounded(0, low=0)
    step_every: int = bounded(10, low=1)
    step_factor: float = bounded(0.5, low=0)
    clip: float | None = bounded(None, low=0, open=True)


@dataclass(frozen=True)
class Stragglers:
    """`stragglers`: clients that are slow or do not answer; the defaults are none.

    failure         probability that a client of the cohort does not answer
    sigma           of the log-normal time of a client's local step, whose median is 1
    deadline        time after which the server waits no longer, in the same unit
    late            what happens to late clients: drop, or partial: they send what they have done by then
    over_selection  so many times the cohort is asked, and the first answers count
    """

    failure: float = bounded(0.0, low=0, high=1)
    sigma: float = bounded(0.0, low=0)
    deadline: float | None = bounded(None, low=0, open=True)
    late: str = choice("drop", "drop", "partial")
    over_selection: float = bounded(1.0, low=1)


@dataclass(frozen=True)
class Aggregation:
    """`aggregation`: how messages become one.

    weights    samples: p_i = n_i / sum n over the cohort; uniform: the same for every client that trained
    buffers    average: floating buffers like parameters, integer ones rounded; keep: the server's never change
    nonfinite  a client that sends NaN or infinity: raise ends the run; drop leaves it out; clip takes such entries as
               no change
    """

    weights: str = choice("samples", "samples", "uniform")
    buffers: str = choice("average", "average", "keep")
    nonfinite: str = choice("raise", "raise", "drop", "clip")


@dataclass(frozen=True)
class Link:
    """`compression.up`, `compression.down`: how one direction's messages are compressed, see `fedmuon.compression`.

    method          svd: rank floor(ratio m n / (m + n + 1)), at least 1; topk: that share of the entries;
                    quantize: 8 bits, stochastic; bf16. A tensor travels as it is where that is no larger; so do buffers
    error_feedback  what a message leaves out is added to the next one
    states          names of what is compressed, such as x and momentum; None: all but second moments
    """

    method: str = choice("none", "none", "svd", "topk", "quantize", "bf16")
    ratio: float = bounded(0.05, low=0, open=True, high=1)
    share: float = bounded(0.01, low=0, open=True, high=1)
    error_feedback: bool = True
    states: list[str] | None = None


@dataclass(frozen=True)
class Compression:
    """`compression`: of messages, not of an algorithm. Up, x travels as the change x_i - x; see `fedmuon.server`."""

    up: Link = field(default_factory=Link)
    down: Link = field(default_factory=Link)


@dataclass(frozen=True)
class Evaluation:
    """`evaluation`: `metric` of the validation split selects, `mode` says which way is better.

    mode           where it is not given, the metric's name tells (`fedmuon.selection`); here it is known
    targets        values of the test metric whose first round is reported in summary.json
    clients_every  rounds between evaluations of the global model, before and after local training, on what each client
                   of the cohort holds out (data.client_validation); 0: never
    """

    metric: str = "accuracy"
    mode: str = choice("max", "max", "min")
    batch_size: int = bounded(1000, low=1)
    targets: list[float] = field(default_factory=lambda: [0.5, 0.6, 0.7, 0.8, 0.9])
    clients_every: int = bounded(0, low=0)


@dataclass(frozen=True)
class Augment:
    """`data.augment`: of training batches only, see fedmuon.data.augment. crop: padding, cutout: side, in pixels."""

    crop: int = bounded(0, low=0)
    flip: bool = False
    cutout: int = bounded(0, low=0)


SPLITS = ("seed", "validation", "client_validation")  # keys of `data` on what is held out, however it is read


@dataclass(frozen=True)
class Data:
    """`data`: `_target_` loads the set; `validation` is the share of the training data held out to select with.

    root, path, config, revision, train_split, test_split, image, label, channels, size   see data.sources.Source
    mean, std   normalisation by channel; None measures it on the training images
    test_crop   crops test images at random, as published code of FedMuon does by mistake; see data.dataset.image_data
    """

    _target_: str = "fedmuon.data.image_data"
    name: str = ""
    root: str | None = None
    path: str | None = field(default=None, metadata={"may_be_empty": True})  # data=hub says what to give
    config: str | None = None
    revision: str | None = None
    train_split: str = "train"
    test_split: str | None = "test"
    image: str = "image"
    label: str = "label"
    channels: int | None = bounded(None, low=1, high=3)
    size: int | None = bounded(None, low=1, high=4096)
    mean: list[float] | None = None
    std: list[float] | None = None
    augment: Augment | None = field(default_factory=Augment)
    test_crop: int = bounded(0, low=0)
    validation: float = bounded(0.1, low=0, high=1, open_high=True)
    client_validation: float = bounded(0.0, low=0, high=1, open_high=True)
    seed: int = bounded(0, low=0, high=2**63 - 1)


@dataclass(frozen=True)
class Engine:
    """`engine`: how clients are executed. Choices that are made on the way are saved with the run and kept on resume.

    name       auto chooses by device and model, and says why; measure=true lets it time a few steps of both instead
    chunk      clients a training batch; None: the whole cohort, side by side as many as memory, or a CPU's cache, holds
    workers    threads that train clients at the same time on a CPU, one client each; None: as many as torch has
               threads, divided by `threads`. Results do not depend on it, with one exception: what a module counts in a
               Python attribute (no buffer) is counted in each thread's own copy of it
    threads    cores that one client's operators use on a CPU; sums may come out differently with another number
    precision  of local training; None follows trainer.precision
    compile    of local steps: none runs Python in every step; trace records the operators of a step once and repeats
               them, with the same bits; fuse also lets gradients of the stacked engine that are matrix products add
               themselves to the weights, which rounds otherwise and takes a fifth less time; inductor has the record
               compiled (a C++ compiler, and some time at the start).
               None: for rules of this package, and for its image classification by its own networks, timm's and
               torchvision's, fuse by the stacked engine and trace by the sequential one; what others compute may depend
               on Python (`.numpy()` of a batch, say), which a record would not repeat: trace then gives what came of
               the batch that was recorded, with any number of workers
    channels_last  whether the sequential engine gives convolutions their images channels last, which makes pooling and
               norms faster on a CPU; a network that uses `view` after a convolution cannot take it. None: on a CPU,
               for the same networks
    """

    name: str = choice("sequential", "sequential", "stacked", "graph", "auto")
    chunk: int | None = bounded(None, low=1)
    workers: int | None = bounded(None, low=1, high=1024)
    threads: int = bounded(1, low=1, high=1024)
    precision: str | None = choice(None, None, "fp32", "bf16")
    compile: str | None = choice(None, None, "none", "trace", "fuse", "inductor")
    channels_last: bool | None = None
    measure: bool = False


@dataclass(frozen=True)
class ServerSGD:
    """`server=sgd`: torch.optim.SGD on the pseudo-gradient; rate 1 without momentum is FedAvg's average."""

    _target_: str = "torch.optim.SGD"
    lr: float = bounded(1.0, low=0, open=True)
    momentum: float = bounded(0.0, low=0, high=1, open_high=True)
    nesterov: bool = False
    weight_decay: float = bounded(0.0, low=0)


@dataclass(frozen=True)
class ServerAdaptive:
    """`server=adam|yogi|adagrad`: the adaptive optimizers of arXiv 2003.00295."""

    _target_: str = "fedmuon.optim.adaptive.Adaptive"
    kind: str = choice("adam", "adam", "yogi", "adagrad")
    lr: float = bounded(0.01, low=0, open=True)
    beta1: float = bounded(0.9, low=0, high=1, open_high=True)
    beta2: float = bounded(0.99, low=0, high=1, open_high=True)
    tau: float = bounded(1e-3, low=0, open=True)
    v0: float | None = bounded(None, low=0, hint="null is tau^2")
    bias_correction: bool = False


@dataclass(frozen=True)
class Model:
    """`model`: `_target_` builds the network, called with input_shape=(channels, height, width) and classes."""

    _target_: str
    seed: int = bounded(0, low=0, high=2**63 - 1)


@dataclass(frozen=True)
class LeNet5(Model):
    pool: str = choice("max", "max", "avg")


@dataclass(frozen=True)
class MLP(Model):
    hidden: list[int] = field(default_factory=lambda: [200, 200], metadata={"bound": Bound(1)})


@dataclass(frozen=True)
class CNN(Model):
    width: int = bounded(32, low=1)
    groups: int = bounded(8, low=1)


@dataclass(frozen=True)
class CNNPfl(Model):
    conv_dropout: float = bounded(0.25, low=0, high=1, open_high=True)
    dense_dropout: float = bounded(0.5, low=0, high=1, open_high=True)


@dataclass(frozen=True)
class ResNet18(Model):
    norm: str = choice("bn", "bn", "gn", "published")
    groups: int = bounded(2, low=1)


@dataclass(frozen=True)
class ViT(Model):
    patch: int = bounded(4, low=1)
    width: int = bounded(192, low=1)
    depth: int = bounded(6, low=1)
    heads: int = bounded(3, low=1)


@dataclass(frozen=True)
class Timm(Model):
    arch: str = "resnet18"
    pretrained: bool = False


@dataclass(frozen=True)
class Trainer:
    """`trainer`: arguments of lightning.Trainer by their own names. What another key owns is refused (`owners`)."""

    accelerator: str = choice("auto", "auto", "cpu", "gpu", "cuda", "mps")
    precision: str = choice("32-true", "32-true", "bf16-mixed", "64-true", "32", "64")
    check_val_every_n_epoch: int = bounded(1, low=1)
    limit_val_batches: int | float | None = bounded(None, low=0)
    deterministic: Any = choice(None, None, True, False, "warn")  # noqa: RUF009
    benchmark: bool | None = None
    inference_mode: bool = True
    profiler: str | None = choice(None, None, "simple", "advanced", "pytorch")
    detect_anomaly: bool = False
    max_time: str | None = None
    num_sanity_val_steps: int = bounded(0, low=-1)


@dataclass(frozen=True)
class Checkpoint:
    """`checkpoint`: `every` so many rounds `checkpoints/last.ckpt` is replaced; the last round is always kept."""

    every: int = bounded(1, low=1)


@dataclass(frozen=True)
class Config:
    """The whole configuration. Nodes typed Any are checked against the schema of their `_target_`."""

    seed: int = bounded(0, low=0, high=2**63 - 1)
    run_dir: str | None = None
    resume: str | None = None
    protocol: str | None = choice(None, None, "published", "clean")
    federation: Rounds = field(default_factory=Rounds)
    local: Local = field(default_factory=Local)
    stragglers: Stragglers = field(default_factory=Stragglers)
    aggregation: Aggregation = field(default_factory=Aggregation)
    compression: Compression = field(default_factory=Compression)
    evaluation: Evaluation = field(default_factory=Evaluation)
    data: Any = None
    partition: Any = None
    sampler: Any = None
    model: Any = None
    engine: Engine = field(default_factory=Engine)
    server: Any = None
    algorithm: Any = None
    trainer: Trainer = field(default_factory=Trainer)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    logger: dict[str, Any] = field(default_factory=dict)
    callbacks: dict[str, Any] = field(default_factory=dict)


# Schema of a node by its `_target_`, where the target itself is no dataclass and needs torch to be looked at.
SCHEMAS: dict[str, type] = {
    "fedmuon.data.image_data": Data,
    **PARTITIONS_AND_SAMPLERS,
    "fedmuon.models.CNN": CNN,
    "fedmuon.models.CNNPfl": CNNPfl,
    "fedmuon.models.LeNet5": LeNet5,
    "fedmuon.models.MLP": MLP,
    "fedmuon.models.ResNet18": ResNet18,
    "fedmuon.models.ViT": ViT,
    "fedmuon.models.from_timm": Timm,
    "fedmuon.optim.adaptive.Adaptive": ServerAdaptive,
    "torch.optim.SGD": ServerSGD,
}
