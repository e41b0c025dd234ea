//! Runs the built `triad` and `triad-lab` in temporary folders, with tiny models that the tests write.

pub mod checkpoint;
pub mod gguf;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// A folder in which commands run; deleted when dropped.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// Creates a folder with a cache that has the fastest kernels of this machine. Without it, each command would take
    /// more than a second to time them.
    pub fn new() -> Self {
        static KERNELS: OnceLock<Option<Vec<u8>>> = OnceLock::new();
        const FILE: &str = "cache/kernels.json";
        let place = Self::on_a_new_machine();
        let kernels = KERNELS.get_or_init(|| {
            place.triad(&["devices", "--choose"]);
            // There is no file where TRIAD_KERNELS chooses the kernels.
            std::fs::read(place.path(FILE)).ok()
        });
        if let Some(kernels) = kernels {
            place.write(FILE, kernels);
        }
        place
    }

    /// Creates an empty folder, without a cache.
    pub fn on_a_new_machine() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Returns the path of a file or folder in this place.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file. Creates its folder if necessary.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Runs `triad`, or `triad-lab` if that is the first of the `arguments`, in this folder, with a separate cache and
    /// without network or pip.
    pub fn triad(&self, arguments: &[&str]) -> Output {
        self.triad_with_input(arguments, b"")
    }

    /// Runs a command as [`Place::triad`] does, with `input` on standard input.
    pub fn triad_with_input(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that needs no input may end before the input is written.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    /// Returns the command, not yet started. If the first argument is `triad-lab`, it is a command of the laboratory.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let (name, arguments) = match arguments {
            ["triad-lab", arguments @ ..] => ("triad-lab", arguments),
            arguments => ("triad", arguments),
        };
        let mut command = Command::new(program(name));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("TRIAD_CACHE", self.path("cache"))
            // Nothing listens on port 9 of this machine.
            .env("HF_ENDPOINT", "http://127.0.0.1:9")
            .env("PATH", self.path("no-programs"))
            .env("NO_PROXY", "*")
            // No process goes on after a command, except where a test is about it.
            .env("TRIAD_PREPARE", "first")
            .env_remove("HF_TOKEN")
            .env_remove("RUST_LOG");
        command
    }
}

/// Returns the path of `triad` or `triad-lab`. Cargo names the program of the package under test. The other one is next to
/// it, since both are built before any test of the workspace runs.
fn program(name: &str) -> PathBuf {
    let tested = option_env!("CARGO_BIN_EXE_triad").or(option_env!("CARGO_BIN_EXE_triad-lab"));
    let path = Path::new(tested.expect("cargo names it"))
        .with_file_name(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.exists(),
        "{} is missing: run `cargo build --bin {name}`",
        path.display()
    );
    path
}

/// Returns the command's standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the command's standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
