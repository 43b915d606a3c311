"""Makes .venv and installs fedmuon into it, editable; does nothing, at once, when that has been done.

    python3 scripts/environment.py run      # what fedmuon needs
    python3 scripts/environment.py test     # and what its tests need

The Makefile calls it with whatever Python there is: it has to parse on old ones, to refuse them in one line.
It may be interrupted at any moment: a stamp is written last, and a half-installed package leads to a new environment.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
SUPPORTED = ((3, 10), (3, 13))
ADVICE = "name another, as in PYTHON=python3.12 make run"


def venv_version():
    """(major, minor) of the environment's interpreter; None without one, or when the one it links to has gone."""
    try:
        out = subprocess.run([str(PYTHON), "-c", "import sys; print(*sys.version_info[:2])"], stdout=subprocess.PIPE)
    except OSError:
        return None
    return tuple(int(part) for part in out.stdout.split()) or None


def foreign():
    """Whether .venv is a link to an environment that was not installed for this checkout: it is not ours to change."""
    places = {stamp.read_text().partition("\n")[0] for stamp in VENV.glob(".installed-*")}
    return VENV.is_symlink() and places != {str(ROOT)}


def mark():
    """What an installation depends on: the dependencies, and the place, which an editable install keeps as a path."""
    return f"{ROOT}\n{hashlib.sha256((ROOT / 'pyproject.toml').read_bytes()).hexdigest()}\n"


def installed(extra):
    """Whether a stamp says so; the tests' environment also runs fedmuon."""
    stamps = [VENV / f".installed-{name}" for name in ("test", extra)]
    return any(stamp.is_file() and stamp.read_text() == mark() for stamp in stamps)


def check_interpreter():
    """Exits with one line when this Python cannot make the environment."""
    low, high = SUPPORTED
    if not low <= sys.version_info[:2] <= high:
        have = "{}.{}".format(*sys.version_info)
        sys.exit(f"fedmuon needs Python 3.10 to 3.13 and {sys.executable} is {have}: {ADVICE}")
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        sys.exit(f"{sys.executable} has no venv module: install it (Debian, Ubuntu: python3-venv), or {ADVICE}")


def whole():
    """Whether pip works there and no package is half installed: pip writes INSTALLER after a package's own files."""
    pip = [str(PYTHON), "-m", "pip", "--version"]
    if subprocess.run(pip, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        return False
    return all((info / "INSTALLER").is_file() for info in VENV.glob("lib/python3*/site-packages/*.dist-info"))


def create():
    """An empty environment, by the interpreter below ours: ours may be the one in .venv."""
    check_interpreter()
    if VENV.exists():
        print("Making .venv anew: it is incomplete, or of another Python.", flush=True)
    subprocess.run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", "--clear", str(VENV)], check=True)


def main(extra, python_was_named):
    if foreign():
        sys.exit(f".venv: is a link to {os.readlink(str(VENV))}, which is another checkout's; remove it and call again")
    version = venv_version()
    other = python_was_named and version != tuple(sys.version_info[:2])
    if version and not other and installed(extra):
        return
    if other or version is None or not SUPPORTED[0] <= version <= SUPPORTED[1] or not whole():
        create()
    target = str(ROOT) + ("[test]" if extra == "test" else "")
    print("Installing fedmuon and what it needs into .venv: the first time this takes a few minutes.", flush=True)
    subprocess.run([str(PYTHON), "-m", "pip", "install", "-qq", "--editable", target], check=True)
    (VENV / f".installed-{extra}").write_text(mark())


def asked(words):
    """What to install, "run" or "test"; otherwise exits: with help where that is asked for, else with one line."""
    if "-h" in words or "--help" in words:
        print(__doc__)
        sys.exit()
    if words not in (["run"], ["test"]):
        print(
            f"environment.py {' '.join(words)}: must be called with one word, run or test; --help says more",
            file=sys.stderr,
        )
        sys.exit(2)
    return words[0]


if __name__ == "__main__":
    os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    try:
        main(asked(sys.argv[1:]), python_was_named=os.environ.get("PYTHON_WAS_NAMED") == "yes")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"not installed: '{' '.join(failed.cmd[1:])}' failed, see above; the next call takes it up again")
    except KeyboardInterrupt:
        sys.exit("interrupted; the next call takes it up again")
