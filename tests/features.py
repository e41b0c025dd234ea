"""The rule that a crate of a third party is compiled with the same features for every package of the workspace."""

import subprocess
from collections import defaultdict

# Packages that are built alone: what a user installs, the bindings, a phone's program, and the tests for other processors.
ALONE = (
    ("--package", "triad-cli", "--edges", "normal,build"),
    ("--package", "triad-cli", "--features", "full", "--edges", "normal,build"),
    ("--package", "triad-cli", "--features", "hexagon,server", "--edges", "normal,build"),
    ("--package", "triad-c", "--edges", "normal,build"),
    ("--package", "triad-python", "--edges", "normal,build"),
    ("--package", "triad-node", "--edges", "normal,build"),
    ("--package", "triad-uniffi", "--edges", "normal,build,dev"),
    ("--package", "triad-kernels", "--edges", "normal,build,dev"),
)
# Crates that only GPUs need and that compile fast.
FEW = {"hashbrown v0.16.1"}


def features(root, *arguments):
    """Returns the sets of features of each crate, by name and version: a build script may have another set."""
    command = ("cargo", "tree", "--locked", "--prefix", "none", "--format", "|{p}|{f}|", *arguments)
    printed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    found = defaultdict(set)
    for line in printed.splitlines():
        if line and f"({root}" not in line:
            _, package, names, _ = line.split("|")
            found[package.replace(" (proc-macro)", "")].add(names)
    return found


def differing(root):
    """Returns a sentence for each crate that a package builds with other features than the workspace does."""
    of_workspace = features(root, "--workspace", "--all-features", "--edges", "normal,build,dev")
    messages = []
    for alone in ALONE:
        for package, sets in features(root, *alone).items():
            lacking = sets - of_workspace[package]
            if lacking and package not in FEW:
                messages.append(
                    f"crates/unify/Cargo.toml: {package} has the features {' / '.join(sorted(lacking))} in `{' '.join(alone)}`, "
                    f"and {' / '.join(sorted(of_workspace[package]))} in the workspace: add the missing ones"
                )
    return messages
