//! Sets the commit that the program is built from, if it is known: `TRIAD_COMMIT`, else the commit of the repository
//! that contains this package, else the commit that `git archive` wrote to `packaging/commit`.
//!
//! A build without git, from a source package or in a fork with another layout, has no commit. Debug builds have none
//! either, unless `TRIAD_COMMIT` is set, because they would be recompiled for each commit.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TRIAD_COMMIT");
    let package = PathBuf::from(
        std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the package's folder"),
    );
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let found = || {
        is_release
            .then(|| of_repository(&package).or_else(|| of_archive(&package)))
            .flatten()
    };
    let commit = std::env::var("TRIAD_COMMIT")
        .ok()
        .filter(|commit| is_commit(commit))
        .or_else(found);
    if let Some(commit) = commit {
        println!("cargo::rustc-env=TRIAD_BUILT_FROM={commit}");
    }
}

/// Returns whether `text` is seven or more hexadecimal digits, optionally followed by `+` for changed files.
fn is_commit(text: &str) -> bool {
    let digits = text.strip_suffix('+').unwrap_or(text);
    (7..=64).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the commit that is checked out, if the repository is this workspace's own and not one that contains the
/// workspace.
fn of_repository(package: &Path) -> Option<String> {
    let workspace = package.parent()?.parent()?.canonicalize().ok()?;
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(package)
            .args(arguments)
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout)
            .ok()
            .filter(|_| output.status.success())?;
        Some(text.trim().to_owned())
    };
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != workspace {
        return None;
    }
    for file in ["HEAD", "logs/HEAD"] {
        // The path is relative to the package, where git runs.
        let path = package.join(git(&["rev-parse", "--git-path", file])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let is_changed = git(&["status", "--porcelain", "--untracked-files=no"])
        .is_none_or(|status| !status.is_empty());
    Some(if is_changed {
        format!("{commit}+")
    } else {
        commit
    })
    .filter(|commit| is_commit(commit))
}

/// Returns the commit of a source package.
fn of_archive(package: &Path) -> Option<String> {
    let file = package.parent()?.parent()?.join("packaging/commit");
    println!("cargo::rerun-if-changed={}", file.display());
    let text = std::fs::read_to_string(file).ok()?;
    let commit = text.lines().next()?.get(..12)?;
    is_commit(commit).then(|| commit.to_owned())
}
