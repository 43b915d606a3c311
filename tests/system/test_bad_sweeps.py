"""Wrong sweeps: one line, before the first job."""

from pathlib import Path

import pytest

from fedmuon.cli import checked_jobs
from fedmuon.errors import UsageError


def test_every_job_of_a_sweep_is_checked_before_the_first():
    with pytest.raises(UsageError, match=r"^local\.lr=-1"):
        checked_jobs(["local.lr=0.1,-1"], multirun=True)
    with pytest.raises(UsageError, match="did you mean 'fedmuon'"):
        checked_jobs(["algorithm=fedavg,fedmoun"], multirun=True)
    with pytest.raises(UsageError, match="run_dir"):
        checked_jobs(["seed=1,2", "run_dir=x"], multirun=True)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["seed=0,1", "compression.up.share=0.1"], r"^compression\.up\.share: has no effect"),
        (["seed=0,1", "hydra.sweep.subdir=a"], r"^hydra\.sweep\.subdir=a: .*hydra\.sweep\.dir="),
        (["seed=0,1", "hydra.sweep.dir='${hydra:job.name}'"], r"^hydra\.sweep\.dir='\$.*: has no value here"),
        (["seed=0,1", "hydra.sweep.dir='out/${nope.x}'"], r"^hydra\.sweep\.dir='out/\$.*: there is no key 'nope\.x'"),
        (["seed=0,1", "local.lr=interval(0.1,0.3)"], r"^local\.lr=interval\(0\.1,0\.3\): .*key=0\.1,0\.2$"),
        (["logger=none", "logger=none,csv"], r"^logger=none and logger=csv: are the same run twice"),
        (["seed=range(0,0)"], r"^seed=range\(0,0\): holds no value"),
        (["seed=0,0"], r"^seed=0 and seed=0: are the same run twice"),
        (["logger=none,csv"], r"^logger=none and logger=csv: are the same run twice"),
        (["seed=0,1", "hydra.sweep.dir=''"], r"^hydra\.sweep\.dir=: names no folder"),
        (["seed=0,1", f"hydra.sweep.dir={__file__}"], r"^hydra\.sweep\.dir=.*is a file; name a folder"),
        (["seed=0,1", f"hydra.sweep.dir={__file__}/x"], r"^hydra\.sweep\.dir=.*is a file; name a folder"),
        (["seed=0,1", "hydra.sweep.dir='~no-such-user/x'"], r"^hydra\.sweep\.dir=~no-such-user/x: begins with a home"),
        (["seed=0,1", "hydra/launcher=joblob"], r"^hydra/launcher=joblob: .*did you mean 'joblib'"),
        (["seed=0,1", "hydra/launcher=joblib", "hydra.launcher.n_jobs=x"], r"^hydra\.launcher\.n_jobs=x: "),
    ],
)
def test_a_sweep_that_is_none(overrides, line):
    with pytest.raises(UsageError, match=line):
        checked_jobs(overrides, multirun=True)


def test_a_sweep_below_a_link_that_leads_nowhere():
    Path("outputs").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"^hydra\.sweep\.dir=outputs/x: .*/outputs is a link to what is not there"):
        checked_jobs(["seed=0,1", "hydra.sweep.dir=outputs/x"], multirun=True)


def test_a_key_that_changes_some_jobs_of_a_sweep_is_right():
    assert len(checked_jobs(["local.schedule=constant,step", "local.step_every=5"], multirun=True)) == 2
    assert len(checked_jobs(["compression=none,topk", "compression.up.share=0.1"], multirun=True)) == 2
