"""Wrong input: one line with key, value and what is allowed; nothing heavy is imported, nothing is left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedmuon
from fedmuon import attached
from fedmuon.cli import checked_jobs
from fedmuon.errors import UsageError
from tests.system.runs import command, write_images

# overrides -> what the line says, in this order; all of it can be told without torch
CASES = {
    "sed=1": ["sed=1", "did you mean 'seed'"],
    "federation.round=3": ["federation.round=3", "did you mean 'federation.rounds'", "rounds, clients, cohort"],
    "algorithm.polar.step=3": ["algorithm.polar.step=3", "did you mean 'algorithm.polar.steps'"],
    "algorithm=fedavg algorithm.beta=0.9": ["algorithm.beta=0.9", "weight_decay"],
    "local.momentum=0.9": ["local.momentum=0.9", "batch_size"],
    "logger=wandb logger.wandb.projet=x": ["logger.wandb.projet=x", "project"],
    "+foo=3": ["foo=3", "allowed"],
    "+trainer.foo=3": ["trainer.foo=3", "no such key"],
    "algorithm=fedmoun": ["algorithm=fedmoun", "did you mean 'fedmuon'", "fedavg"],
    "model=lenet": ["model=lenet", "did you mean 'lenet5'", "mlp"],
    "model=nosuchmodel": ["model=nosuchmodel", "allowed", "lenet5"],
    "partition=dirichelet": ["partition=dirichelet", "did you mean 'dirichlet'"],
    "server=adamw": ["server=adamw", "did you mean 'adam'"],
    "logger=wandb2": ["logger=wandb2", "did you mean 'wandb'", "none"],
    "experiment=mian": ["experiment=mian", "did you mean 'main'"],
    "seed=abc": ["seed=abc", "whole number"],
    "seed=1.5": ["seed=1.5", "whole number"],
    "seed=true": ["seed=", "whole number"],
    "seed=null": ["seed=", "whole number"],
    "seed=-1": ["seed=-1", "at least 0"],
    "seed=99999999999999999999999": ["seed=99999999999999999999999", "at most"],
    "partition.seed=abc": ["partition.seed=abc", "whole number"],
    "model.seed=-1": ["model.seed=-1", "at least 0"],
    "federation.rounds=ten": ["federation.rounds=ten", "whole number"],
    "federation.rounds=0": ["federation.rounds=0", "at least 1"],
    "federation.rounds=-5": ["federation.rounds=-5", "at least 1"],
    "federation.rounds=1.5": ["federation.rounds=1.5", "whole number"],
    "federation.clients=0": ["federation.clients=0", "at least 1"],
    "federation.cohort=101": ["federation.cohort=101", "1 to 100"],
    "federation.cohort=0": ["federation.cohort=0", "above 0"],
    "federation.cohort=1.5": ["federation.cohort=1.5", "fraction"],
    "federation.cohort=all": ["federation.cohort=all", "number"],
    "local.lr=nan": ["local.lr=nan", "finite"],
    "local.lr=inf": ["local.lr=inf", "finite"],
    "local.lr=-0.1": ["local.lr=-0.1", "at least 0"],
    "local.lr=fast": ["local.lr=fast", "a number"],
    "local.lr=0,1": ["local.lr=0,1", "-m"],
    "local.lr={a:1}": ["local.lr=", "a number"],
    "local.lr=${nope}": ["local.lr", "nope"],
    "local.batch_size=0": ["local.batch_size=0", "at least 1"],
    "local.batch_size=-8": ["local.batch_size=-8", "at least 1"],
    "local.steps=0": ["local.steps=0", "at least 1"],
    "local.steps=3 local.epochs=1": ["local.steps", "local.epochs", "both"],
    "local.epochs=0": ["local.epochs=0", "above 0"],
    "local={steps:3,epochs:1}": ["local.steps and local.epochs: both are given"],
    "local.clip=none": ["local.clip=none", "null"],
    "local.clip=0": ["local.clip=0", "above 0"],
    "local.schedule=cosin": ["local.schedule=cosin", "constant, cosine, step", "'cosine'"],
    "partition.concentration=0": ["partition.concentration=0", "above 0"],
    "partition.concentration=-1": ["partition.concentration=-1", "above 0"],
    "partition.concentration=nan": ["partition.concentration=nan", "finite"],
    "partition=iid partition.concentration=0.1": ["partition.concentration=0.1", "no key"],
    "algorithm.alpha=2": ["algorithm.alpha=2", "at most 1"],
    "algorithm.beta=1": ["algorithm.beta=1", "below 1"],
    "algorithm.align=maybe": ["algorithm.align=maybe", "true or false"],
    "algorithm.polar.method=newton": ["algorithm.polar.method=newton", "polar_express, newton_schulz, svd"],
    "algorithm.polar.steps=0": ["algorithm.polar.steps=0", "at least 1"],
    "algorithm.mix_order=polar": ["algorithm.mix_order=polar", "mix_then_polar"],
    "algorithm.polar=svd": ["algorithm.polar=svd", "method"],
    "compression.up=3": ["compression.up=3: is a group of keys", "compression.up.method"],
    "data.augment=3": ["data.augment=3: is a group of keys", "data.augment.crop", "or null"],
    "stragglers=null": ["stragglers=null: is a group of keys", "stragglers.failure"],
    "server.lr=0": ["server.lr=0", "above 0"],
    "server.nesterov=true": ["server.nesterov=", "momentum"],
    "aggregation.weights=sample": ["aggregation.weights=sample", "samples, uniform"],
    "aggregation.nonfinite=skip": ["aggregation.nonfinite=skip", "raise, drop, clip"],
    "compression=svdd": ["compression=svdd", "did you mean 'svd'", "bf16, none, quantize, svd, topk"],
    "compression.up.method=top": ["compression.up.method=top", "none, svd, topk, quantize, bf16"],
    "compression=svd compression.up.ratio=0": ["compression.up.ratio=0", "above 0 and at most 1"],
    "compression=svd compression.ratio=0.1": ["compression.ratio=0.1", "up, down"],
    "compression.down.share=2": ["compression.down.share=2", "at most 1"],
    "compression=svd compression.up.states=[momenta]": ["compression.up.states: momenta", "did you mean 'momentum'"],
    "compression=svd compression.up.states=x": ["compression.up.states=x", "list"],
    "algorithm=fedavg compression=bf16 compression.up.states=[delta_g]": ["delta_g is not sent", "among x"],
    "algorithm=fedlada compression=topk compression.up.states=[vh]": ["vh is a second moment", "up.method=bf16"],
    "federation.store=file": ["federation.store=file", "memory, disk"],
    "evaluation.mode=maximum": ["evaluation.mode=maximum", "max, min"],
    "evaluation.targets=[a]": ["evaluation.targets", "a number"],
    "model=mlp model.hidden=64": ["model.hidden=64", "list"],
    "model=mlp model.hidden=[a]": ["model.hidden", "whole number"],
    "data.root=/no/such/folder": ["data.root=/no/such/folder", "no such folder;"],
    "data.root=d": ["data.root=d: there is no such folder in /", "/work; name"],
    "partition=file partition.path=l.npz": ["partition.path=l.npz: there is no such file in /", "/work; name"],
    "resume=r": ["resume=r: there is no such folder in /", "/work; name"],
    "data.root=.": ["data.root=.", "train"],
    "data.label=lable": ["data.label=lable", "did you mean 'label'", "image, label"],
    "data.image=img": ["data.image=img", "image, label"],
    "data.image=label": ["data.image=label", "PNG"],
    "data.validation=1": ["data.validation=1", "below 1"],
    "engine.chunk=0": ["engine.chunk=0", "at least 1"],
    "engine=grahp": ["engine=grahp", "sequential"],
    "trainer.max_epochs=3": ["trainer.max_epochs", "federation.rounds"],
    "+trainer.max_steps=3": ["trainer.max_steps", "federation.rounds"],
    "trainer.gradient_clip_val=1": ["trainer.gradient_clip_val", "local.clip"],
    "trainer.accumulate_grad_batches=2": ["trainer.accumulate_grad_batches", "local.batch_size"],
    "trainer.precision=16-mixed": ["trainer.precision=16-mixed", "bf16-mixed"],
    "trainer.accelerator=tpu": ["trainer.accelerator=tpu", "cpu"],
    "trainer.devices=2": ["trainer.devices", "fedmuon -m", "one device"],
    "trainer.num_nodes=2": ["trainer.num_nodes", "fedmuon -m", "one process"],
    "trainer.check_val_every_n_epoch=0": ["trainer.check_val_every_n_epoch=0", "at least 1"],
    "trainer.limit_val_batches=abc": ["trainer.limit_val_batches=abc", "number"],
    "trainer.max_time=abc": ["trainer.max_time=abc"],
    "trainer.deterministic=abc": ["trainer.deterministic=abc", "true"],
    "checkpoint.every=0": ["checkpoint.every=0", "at least 1"],
    "checkpoint=none": ["checkpoint=none", "every"],
    "compression=quantize compression.up.share=0.1": ["compression.up.share: ", "compression.up.method=topk"],
    "compression.down.ratio=0.1": ["compression.down.ratio: ", "compression.down.method=svd"],
    "stragglers.late=partial": ["stragglers.late: ", "stragglers.deadline"],
    "stragglers.sigma=1": ["stragglers.sigma: ", "stragglers.deadline"],
    "local.step_every=5": ["local.step_every: ", "local.schedule=step"],
    "local.schedule_rounds=5": ["local.schedule_rounds: ", "local.schedule=cosine"],
    "engine.measure=true": ["engine.measure: ", "engine=auto"],
    "engine=stacked engine.channels_last=true": ["engine.channels_last: ", "engine=sequential, or engine=auto"],
    "algorithm=local_muon algorithm.alpha=0.3": ["algorithm.alpha: ", "algorithm.align=true"],
    "model=resnet18 model.groups=4": ["model.groups: ", "model.norm=gn"],
    "algorithm.polar.method=svd algorithm.polar.steps=3": ["algorithm.polar.steps: ", "iterated"],
    "trainer.check_val_every_n_epoch=31": ["trainer.check_val_every_n_epoch=31", "at most 30"],
    "data.client_validation=0.2 evaluation.clients_every=31": ["evaluation.clients_every=31", "at most 30"],
    "federation=3": ["federation"],
    "hydra.run.dir=mine": ["hydra.run.dir=mine", "run_dir="],
    "hydra.job.chdir=true": ["hydra.job.chdir=true", "current folder"],
    "+logger.wandb.entitty=me": ["logger.wandb.entitty=me", "did you mean 'entity'", "project"],
    "logger.wandb.tags=3": ["logger.wandb.tags=3", "list"],
    "logger=csv +logger.csv.project=me": ["logger.csv.project=me", "no such key"],
    "+callbacks.mine.patience=3": ["callbacks.mine=", "_target_", "~callbacks.mine"],
    "+callbacks.mine=3": ["callbacks.mine=3", "_target_", "~callbacks.mine"],
    "+logger.mine._target_=nopackage.Own": ["logger.mine._target_=nopackage.Own", "PYTHONPATH"],
    "logger=null": ["logger=null", "none"],
    "model=null": ["model=null", "lenet5"],
    "algorithm=null": ["algorithm=null", "fedmuon"],
    "~model": ["model", "option"],
    "resume='~no-such-user/run'": ["resume=~no-such-user/run", "home", "whole path"],
    "data.root='~no-such-user/x'": ["data.root=~no-such-user/x", "home", "whole path"],
    "partition=file partition.path='~no-such-user/x'": ["partition.path=~no-such-user/x", "home", "whole path"],
    "resume=/no/such/run": ["resume=/no/such/run", "no such folder", "name the folder"],
    "seed==3": ["seed==3", "key=value"],
    "=3": ["=3", "key=value"],
    "fedmuon": ["fedmuon", "key=value"],
    "seed|3": ["seed 3", "key=value"],
    "--sed": ["--sed", "key=value"],
    "logger=[wandb,foo]": ["logger=[wandb,foo]", "no such option 'foo'", "csv, none, tensorboard, wandb"],
    "logger=[none,csv]": ["logger=[none,csv]", "write logger=csv, or logger=none"],
    "logger=[csv,none,wandb]": ["logger=[csv,none,wandb]", "write logger=[csv,wandb], or logger=none"],
    "logger=['none','csv']": ["logger=['none','csv']", "write logger=csv"],
    "run_dir=/dev/null": ["run_dir=/dev/null: /dev/null is no folder"],
    "run_dir=/dev/null/run": ["run_dir=/dev/null/run: /dev/null is no folder"],
    "hydra.mode=MULTIRUN": ["hydra.mode=MULTIRUN", "fedmuon -m"],
    "callbacks=[foo]": ["callbacks=[foo]", "no such option", "early_stopping"],
    "seed=${oc.env:NOPE}": ["seed=${oc.env:NOPE}", "NOPE is not set", "${oc.env:NOPE,VALUE}"],
    "seed=${nope:3}": ["seed=${nope:3}", "no resolver 'nope'"],
    "local={lrr:|0.2}": ["local={lrr: 0.2}", "no key 'local.lrr'", "did you mean 'local.lr'"],
    "local=[1]": ["local=[1]", "one option", "allowed: default"],
    "=1": ["=1", "key=value"],
    "seed=???": ["seed: must be given", "seed=VALUE"],
    "run_dir=${hydra:runtime.cwd}/x": ["run_dir=${hydra:runtime.cwd}/x", "current folder already"],
    "~local.clip": ["~local.clip: is null already"],
    "~local.klip": ["~local.klip: there is no key", "did you mean 'local.clip'"],
    "algorithm=fedavg ~algorithm.betaa": ["~algorithm.betaa: there is no key", "algorithm has _target_, alpha, align"],
    "data.name=cifar100": ["data.name=cifar100: there is no key"],
    "resume=~no-such-user/run": ["resume=~no-such-user/run: ", "; name the"],
    "~local local={steps:2}": ["~local: takes away what local={steps:2} sets"],
    "seed=1 local.lr=interval(0.1,0.3)": ["local.lr=interval(0.1,0.3): is a sweep"],
    "+experiment=main": ["+experiment=main: ", "write experiment=main"],
    "+seed=3": ["+seed=3: seed has its place already; write seed=3"],
    "+trainer=default": ["+trainer=default: ", "write trainer=default"],
    "++model=mlp": ["++model=mlp: ", "groups", "write model=mlp"],
    "~model=mlp": ["~model=mlp: mlp is not chosen", "model=OPTION"],
    "~seed=3": ["~seed=3: seed is not 3", "seed=VALUE"],
    "evaluation=[1]": ["evaluation=[1]: is a group of keys", "evaluation.KEY=VALUE"],
    "evaluation.targets={a:1}": ["evaluation.targets={a:1}: is a list", "evaluation.targets=[a,b]"],
    "+hydra.sweep.dir=x": ["+hydra.sweep.dir=x: ", "write hydra.sweep.dir=x"],
    "~hydra.sweep.dir": ["~hydra.sweep.dir: cannot be taken away"],
    "hydra.sweep=3": ["hydra.sweep=3: is a group of keys"],
    "seed=${seed}": ["seed=${seed}: takes its value from itself"],
    "experiment=[main,methods]": ["experiment=[main,methods]: takes one option", "main, methods"],
    "server=[sgd,adam]": ["server=[sgd,adam]: takes one option", "adam"],
    "~seed": ["~seed", "cannot be taken away"],
    "partition=file": ["partition.path=null", "needs one", "partition.path=FILE.npz"],
    "sampler=fixed": ["sampler.path=null", "needs one", "sampler.path=FILE.npz"],
    "federation.cohort=true": ["federation.cohort=true", "must be a number"],
    "evaluation.targets=[nan]": ["evaluation.targets=[nan]", "finite"],
    "data.mean=[nan]": ["data.mean=[nan]", "finite"],
    "data.root=''": ["data.root=", "is empty", "null"],
    "run_dir=''": ["run_dir=", "is empty", "null"],
    "resume=''": ["resume=", "names no folder"],
    "model=timm model.pretrained=3": ["model.pretrained=3", "true or false"],
    "algorithm.polar.normalize=2": ["algorithm.polar.normalize", "no key"],
    "data.augment.flip=2": ["data.augment.flip=2", "true or false"],
}


# words of Python's, Hydra's and OmegaConf's own errors
INNER = ("<class '", "full_key", "DictConfig", "ListConfig", "defaults list", "Could not", "not supported", "Override(")


def split(case: str) -> list[str]:
    return [case.replace("|", " ")] if "|" in case else case.split(" ")


@pytest.mark.parametrize("case", CASES)
def test_one_line_with_key_value_and_what_is_allowed(case, tmp_path):
    with pytest.raises(UsageError) as caught:
        checked_jobs(split(case))
    line = str(caught.value)
    position = 0
    for part in CASES[case]:
        assert part in line[position:], f"{part!r} is missing: {line}"
        position = line.index(part, position)
    assert "\n" not in line and len(line) < 600 and not any(word in line for word in INNER)
    assert not any(Path().iterdir())


# what the environment or the data's contents tell: checked by `fedmuon.run`, before any directory is made
LATER = {
    "trainer.accelerator=gpu": ["trainer.accelerator=gpu", "cpu"],
    "partition.min_size=1000": ["partition.min_size=1000", "0 to 36"],
    "federation.clients=20000": ["federation.clients=20000", "216"],
    "model.hidden=[-3]": ["model.hidden", "-3"],
    "model.hidden=[0]": ["model.hidden", "0"],
    "data.mean=[0.5,0.5,0.5]": ["data.mean", "1"],
    "data.std=[0]": ["data.std", "above 0"],
    "evaluation.metric=acuracy": ["evaluation.metric=acuracy", "accuracy"],
    "callbacks=early_stopping data.validation=0": ["val/accuracy"],
    "callbacks=early_stopping +callbacks.early_stopping.patiance=3": ["callbacks.early_stopping: ", "patiance", "mode"],
    "+callbacks.mine._target_=lightning.pytorch.callbacks.Earlier": ["callbacks.mine._target_=", "Earlier"],
}


@pytest.mark.parametrize("case", LATER)
def test_what_only_the_environment_tells(case, tiny):
    if "accelerator=gpu" in case and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(UsageError) as caught:
        fedmuon.run([*tiny, *split(case)])
    line = str(caught.value)
    assert all(part in line for part in LATER[case]) and "\n" not in line, line
    assert not any(Path().iterdir())


def test_a_run_directory_that_holds_something_is_not_touched(tiny, tmp_path):
    kept = tmp_path / "mine" / "thesis.tex"
    kept.parent.mkdir()
    kept.write_text("all of it")
    for path, told in ((kept.parent, "exists and is not empty"), (kept, "is a file; name a folder")):
        with pytest.raises(UsageError, match=rf"^run_dir=.*{told}"):
            fedmuon.run([*tiny, f"run_dir={path}"])
    assert kept.read_text() == "all of it" and list(kept.parent.iterdir()) == [kept]


def test_a_run_directory_that_is_no_folder_is_told_and_left(tiny, tmp_path):
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "gone")
    os.mkfifo(pipe)
    for path, what in ((link, "is a link to what is not there"), (pipe, "is no folder")):
        with pytest.raises(UsageError, match=rf"^run_dir={path}: {path} {what}; name a folder$"):
            checked_jobs([*tiny, f"run_dir={path}"])
        with pytest.raises(UsageError, match=rf"^resume={path}: "):
            checked_jobs([*tiny, f"resume={path}"])
    assert link.is_symlink() and not link.exists() and pipe.is_fifo()
    inside = tmp_path / "inside"
    inside.mkdir()
    link.unlink()
    link.symlink_to(inside)  # to an empty folder it is as good as one
    assert checked_jobs([*tiny, f"run_dir={link}"])


def test_a_data_folder_that_lacks_a_column_or_a_split(tiny, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write_images(folder / "train.parquet", 8, seed=0)
    with pytest.raises(UsageError, match=r"^data\.root=.*'test'"):
        checked_jobs([*tiny, f"data.root={folder}"])
    write_images(folder / "test.parquet", 8, seed=0)
    with pytest.raises(UsageError, match=r"^data\.label=fine_label: .*image, label"):
        checked_jobs([*tiny, f"data.root={folder}", "data.label=fine_label"])


def test_a_logger_whose_package_is_not_installed(monkeypatch):
    monkeypatch.setattr(attached, "_there", lambda package: "tensorboard" not in package)
    with pytest.raises(UsageError, match=r"^logger=tensorboard: .*pip install 'fedmuon\[tensorboard\]'"):
        checked_jobs(["logger=[csv,tensorboard]"])


def test_a_config_dir_that_is_missing():
    with pytest.raises(UsageError, match=r"^--config-dir nowhere: "):
        checked_jobs([], config_dir="nowhere")


def test_nothing_like_it_is_no_advice():
    with pytest.raises(UsageError, match=r"^foo=1: there is no key 'foo'; at the top"):
        checked_jobs(["foo=1"])


PROGRAM = """
import sys
sys.argv = ["fedmuon", *sys.argv[1:]]
from fedmuon.cli import main
try:
    main()
finally:
    print("IMPORTED", sorted({"torch", "timm", "lightning", "datasets", "wandb", "torchvision"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--help"], 0),
        (["local.lr=nan"], 2),
        (["modle=mlp"], 2),
        (["-m", "algorithm=fedavg,fedmoun"], 2),
        (["data.root=/nowhere"], 2),
        (["--cfg", "job"], 0),
        (["--cfg", "job", "model=null"], 2),
        (["--info", "defaults", "local.lrr=1"], 2),
        (["-m", "--cfg", "job", "local.lr=1,2"], 2),
        (["-m", "--run", "local.lr=1,2"], 2),
        (["--resolve"], 2),
        (["--config-path", "conf", "-m", "seed=0,1"], 2),
    ],
)
def test_the_command_answers_without_heavy_imports(args, code):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *args], capture_output=True, text=True, env={**os.environ}, timeout=300
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1] == "IMPORTED []"
    if code:
        assert done.stderr.count("\n") == 1 and done.stderr.startswith("fedmuon: ") and "Traceback" not in done.stderr
    assert not any(Path().iterdir())


def test_help_names_groups_options_and_five_commands():
    text = command("--help").stdout
    groups = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and not line.startswith(" "))
    assert {"fedavg", "fedmuon", "fedadam", "local_muon", "fedmuon_published"} <= set(groups["algorithm"].split(", "))
    for group, option in [
        ("model", "lenet5"),
        ("partition", "iid"),
        ("server", "adam"),
        ("logger", "wandb"),
        ("data", "fashion_mnist_mini"),
    ]:
        assert option in groups[group].split(", ")
    examples = [line.split()[1:] for line in text.splitlines() if line.startswith("  fedmuon ") and "=" in line]
    assert len(examples) == 5
    for words in examples:  # every example is right as it stands
        if not any(word.startswith("resume=") for word in words):
            checked_jobs([word for word in words if word != "-m"], multirun="-m" in words)
