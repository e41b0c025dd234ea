"""Installs a client into an environment of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from table import CRATES, DAY, NPM, PYTHON

HERE = Path(__file__).resolve().parent
# Installs many environments quickly, and shares their files.
UV = "uv==0.13.9"
# Variables that a trial gets of this process; others may have keys, or change what a client does.
KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE")


def environment():
    return {name: os.environ[name] for name in KEPT if name in os.environ}


def run(*command, cwd=None):
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(str(word) for word in command[:4])}: {(done.stderr or done.stdout).strip()[-400:]}")


def install(client, folder):
    """Installs a client, unless its environment has what the table says. Returns why it cannot."""
    own = folder / client.name
    stamp = own / "installed"
    wanted = "\n".join([DAY, *client.packages])
    if stamp.exists() and stamp.read_text() == wanted:
        return prepare(client, own)
    shutil.rmtree(own, ignore_errors=True)
    try:
        {PYTHON: python, NPM: npm, CRATES: crate}[client.registry](client, own, folder)
    except OSError as error:
        return str(error)
    stamp.write_text(wanted)
    return prepare(client, own)


def prepare(client, own):
    """Node looks for packages next to the program."""
    if client.registry == NPM:
        for file in HERE.glob("*.mjs"):
            shutil.copy(file, own)


def python(client, own, folder):
    uv = folder / "uv/bin/uv"
    if not uv.exists():
        run(sys.executable, "-m", "venv", folder / "uv")
        run(folder / "uv/bin/pip", "install", "--quiet", "--disable-pip-version-check", UV)
    run(uv, "venv", "--quiet", "--python", sys.executable, own)
    run(uv, "pip", "install", "--quiet", "--python", own / "bin/python", "--exclude-newer", DAY, *client.packages)


def crate(client, own, _):
    """Builds the program of tests/clients that uses a crate, with the dependencies of its own lock file."""
    manifest = HERE.parent / client.name / "Cargo.toml"
    run("cargo", "build", "--locked", "--quiet", "--manifest-path", manifest, "--target-dir", own / "target")


def npm(client, own, _):
    own.mkdir(parents=True)
    run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", own, f"--before={DAY}", *client.packages)
