"""The built wheel, in an environment of its own and from another folder: it carries its configuration."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.system.runs import rows
from tests.system.test_extension import CONFIG, MINE, OWN

ROOT = Path(__file__).resolve().parents[2]


def run(*args: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([str(a) for a in args], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    isolation = ["--no-build-isolation"] if find_spec("hatchling") else []
    how = ["-m", "pip", "wheel", "--no-deps", "--quiet", *isolation, "--wheel-dir"]
    done = run(sys.executable, *how, folder, ROOT, cwd=folder)
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("fedmuon-*.whl")
    return file


@pytest.fixture(scope="module")
def binaries(wheel, tmp_path_factory) -> Path:
    """bin/ of an environment that has the wheel, and everything else from the tests' own."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place, with_pip=False)
    site = next(place.glob("lib/python3*/site-packages"))
    done = run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel, cwd=place
    )
    assert done.returncode == 0, done.stderr
    (site / "zz_others.pth").write_text(
        f"{sysconfig.get_paths()['purelib']}\n"
    )  # behind the wheel's own package; its .pth files are not read
    for name, target in (("fedmuon", "fedmuon.cli"), ("fedmuon-evaluate", "fedmuon.evaluate")):
        script = place / "bin" / name
        script.write_text(f"#!{place / 'bin' / 'python'}\nfrom {target} import main\nmain()\n")
        script.chmod(0o755)
    return place / "bin"


def test_the_wheel_holds_what_it_needs_and_no_more(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for file in (ROOT / "conf").rglob("*.yaml"):
        assert f"fedmuon/conf/{file.relative_to(ROOT / 'conf')}" in names
    assert "fedmuon/data/embedded/fashion_mnist_mini/train.parquet" in names
    assert "fedmuon/data/embedded/fashion_mnist_mini/LICENSE" in names
    assert {name.split("/")[0] for name in names} == {
        "fedmuon",
        next(n for n in names if "dist-info" in n).split("/")[0],
    }
    entry = zipfile.ZipFile(wheel).read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    assert "fedmuon = fedmuon.entry:fedmuon" in entry and "fedmuon-evaluate = fedmuon.entry:evaluate" in entry
    assert "fedmuon-report = fedmuon.entry:report" in entry and "fedmuon/report/assets/page.html" in names


def test_the_installed_command_works_from_any_folder(binaries, tmp_path):
    where = run(binaries / "python", "-c", "import fedmuon; print(fedmuon.__file__)", cwd=tmp_path / "work")
    assert Path(where.stdout.strip()).is_relative_to(binaries.parent), where.stdout + where.stderr
    done = run(binaries / "fedmuon", "--help", cwd=tmp_path / "work")
    assert done.returncode == 0 and "fedmuon_published" in done.stdout, done.stderr
    args = [
        "model=mlp",
        "model.hidden=[8]",
        "local.steps=1",
        "logger=none",
        "federation.rounds=2",
        "trainer.accelerator=cpu",
        "run_dir=run",
    ]
    done = run(binaries / "fedmuon", *args, cwd=tmp_path / "work")
    assert done.returncode == 0, done.stderr
    assert [row["round"] for row in rows(tmp_path / "work" / "run")] == [1, 2]
    done = run(binaries / "fedmuon-evaluate", "run", cwd=tmp_path / "work")
    assert done.returncode == 0 and "test: " in done.stdout, done.stderr


def test_the_installed_command_takes_extensions(binaries, tmp_path):
    work = tmp_path / "work"
    (work / "fm_own.py").write_text(OWN)
    for group, text in CONFIG.items():
        (work / "conf" / group).mkdir(parents=True)
        (work / "conf" / group / "mine.yaml").write_text(text)
    done = run(binaries / "fedmuon", "--config-dir", "conf", *MINE, "trainer.accelerator=cpu", "run_dir=run", cwd=work)
    assert done.returncode == 0, done.stderr
    assert len(rows(work / "run")) == 2
