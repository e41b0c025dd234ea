//! Tells the program which commit it is built from, where that is known: `TRIAD_COMMIT`, else the repository that this
//! package is in, else what `git archive` wrote into `packaging/commit`.
//!
//! Without git, in a source package or a fork's tree of another layout, it builds as well and names no commit. Builds for
//! debugging name none either, unless `TRIAD_COMMIT` does: they would compile anew for each commit.

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

/// Seven or more hexadecimal digits, and `+` where files were changed since.
fn is_commit(text: &str) -> bool {
    let digits = text.strip_suffix('+').unwrap_or(text);
    (7..=64).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The commit that is checked out, if the repository is this workspace's and none that the workspace lies in.
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
        // As seen from the package, where git runs.
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

/// The commit of a source package.
fn of_archive(package: &Path) -> Option<String> {
    let file = package.parent()?.parent()?.join("packaging/commit");
    println!("cargo::rerun-if-changed={}", file.display());
    let text = std::fs::read_to_string(file).ok()?;
    let commit = text.lines().next()?.get(..12)?;
    is_commit(commit).then(|| commit.to_owned())
}
