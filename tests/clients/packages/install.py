"""Installs a client into an environment of its own, and bounds what all of them take of the disk."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from table import CRATES, DAY, NPM, PYTHON, TORCH

HERE = Path(__file__).resolve().parent
# Installs many environments quickly, and shares their files.
UV = "uv==0.13.9"
# Variables that a trial gets of this process; others may have keys, or change what a client does.
KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE")
# Files that several packages of a registry need are fetched once. The folder is emptied when it has more.
CACHE = "cache"
MAX_CACHE_BYTES = 3 << 29
# What the largest package takes, with the cache.
MIN_FREE_BYTES = 4 << 30


def environment():
    return {name: os.environ[name] for name in KEPT if name in os.environ}


def size(folder):
    """The bytes of a folder on disk. A file with several names counts once."""
    seen, total = set(), 0
    for place, _, names in os.walk(folder):
        for name in names:
            found = os.lstat(os.path.join(place, name))
            if (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                total += found.st_blocks * 512
    return total


def trim(folder):
    """Empties the cache if it is too large."""
    if size(folder / CACHE) > MAX_CACHE_BYTES:
        shutil.rmtree(folder / CACHE)


def run(*command, folder, cwd=None):
    """Runs a package manager, whose cache is in `folder`."""
    caches = {"UV_CACHE_DIR": str(folder / CACHE / "uv"), "npm_config_cache": str(folder / CACHE / "npm"), "PIP_NO_CACHE_DIR": "1"}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=os.environ | caches, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(str(word) for word in command[:4])}: {(done.stderr or done.stdout).strip()[-400:]}")


def install(client, folder, given):
    """Installs a client, unless its environment has what the table says. Returns why it cannot. `given` is the folder that the
    client needs from elsewhere, if any."""
    own = folder / client.name
    stamp = own / "installed"
    wanted = "\n".join([DAY, *client.packages])
    if not (stamp.exists() and stamp.read_text() == wanted):
        shutil.rmtree(own, ignore_errors=True)
        try:
            {PYTHON: python, NPM: npm, CRATES: crate}[client.registry](client, own, folder, given)
        except OSError as error:
            return str(error)
        stamp.write_text(wanted)
    if client.registry == NPM:
        # Node looks for packages next to the program.
        for file in HERE.glob("*.mjs"):
            shutil.copy(file, own)
    return None


def python(client, own, folder, given):
    uv = folder / "uv/bin/uv"
    if not uv.exists():
        run(sys.executable, "-m", "venv", folder / "uv", folder=folder)
        run(folder / "uv/bin/pip", "install", "--quiet", "--disable-pip-version-check", UV, folder=folder)
    run(uv, "venv", "--quiet", "--python", sys.executable, own, folder=folder)
    words = []
    if client.needs == TORCH:
        overrides = own / "overrides"
        overrides.write_text(f"{TORCH}; sys_platform == 'never'\n")
        words = ["--overrides", overrides]
        [packages] = own.glob("lib/python*/site-packages")
        # Found after the client's own packages.
        (packages / "given.pth").write_text(f"{given}\n")
    run(uv, "pip", "install", "--quiet", "--python", own / "bin/python", "--exclude-newer", DAY, *words, *client.packages, folder=folder)


def crate(client, own, folder, _):
    """Builds the program of tests/clients that uses a crate, with the dependencies of its own lock file."""
    manifest = HERE.parent / client.name / "Cargo.toml"
    run("cargo", "build", "--locked", "--quiet", "--manifest-path", manifest, "--target-dir", own / "target", folder=folder)


def npm(client, own, folder, _):
    own.mkdir(parents=True)
    run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", own, f"--before={DAY}", *client.packages, folder=folder)
