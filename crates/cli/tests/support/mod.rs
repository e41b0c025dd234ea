//! Runs the built `triad` and `triad-lab` in a folder of their own, with tiny models made on the spot.

pub mod checkpoint;
pub mod gguf;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// A folder that commands run in; gone when dropped.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// A folder with a cache that holds which kernels are fastest here: timing them takes a command more than a second.
    pub fn new() -> Self {
        static KERNELS: OnceLock<Option<Vec<u8>>> = OnceLock::new();
        const FILE: &str = "cache/kernels.json";
        let place = Self::on_a_new_machine();
        let kernels = KERNELS.get_or_init(|| {
            place.triad(&["devices", "--choose"]);
            // There is none where TRIAD_KERNELS names the kernels.
            std::fs::read(place.path(FILE)).ok()
        });
        if let Some(kernels) = kernels {
            place.write(FILE, kernels);
        }
        place
    }

    /// An empty folder, without a cache.
    pub fn on_a_new_machine() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// A file or folder in this place.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file, in a folder that is made where needed.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Runs `triad`, or `triad-lab` if that is the first of the `arguments`, here, with a cache of its own and without network or pip.
    pub fn triad(&self, arguments: &[&str]) -> Output {
        self.triad_with_input(arguments, b"")
    }

    /// As [`Place::triad`], with something on standard input.
    pub fn triad_with_input(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that needs no input may end before it is written.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    /// The command, not yet started. `triad-lab` in front of its arguments makes it one of the laboratory.
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
            // Port 9 of this machine: nothing listens there.
            .env("HF_ENDPOINT", "http://127.0.0.1:9")
            .env("PATH", self.path("no-programs"))
            .env("NO_PROXY", "*")
            .env_remove("HF_TOKEN")
            .env_remove("RUST_LOG");
        command
    }
}

/// Returns the path of `triad` or `triad-lab`. Cargo names the one of the package under test; the other is next to it, since
/// both are built before any test of the workspace runs.
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

/// What a command wrote to standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a command wrote to standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
