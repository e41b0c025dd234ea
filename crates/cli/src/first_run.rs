//! The first run of a model: it answers from its file as it is, and a process of low priority prepares the package for the
//! next run.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use triad_engine::Model;
use triad_engine::package::Package;
use triad_engine::quantization::LinearFormat;
use triad_frontend::first_run::{self, Missing, Preparation};
use triad_frontend::machine;
use triad_model::environment;
use triad_model::output::open_own;

use triad_console::arguments::ThreadArguments;
use triad_console::{output, preparing, progress};

/// The variable that says when a model without a package is prepared.
const WHEN: &str = "TRIAD_PREPARE";

/// The command whose next run uses the package, for `triad run`.
pub const RUN: &str = "run";

/// When a command prepares the package of its model: the values of `TRIAD_PREPARE`, and `--no-quantize`.
#[derive(Clone, Copy)]
pub enum PreparationMode {
    /// Never; the model runs from its file even if there is a package.
    AsStored,
    /// Before the model runs.
    First,
    /// After the model has run from its file, for the next run.
    Later,
    /// Never; the model runs from its package if there is one, else from its file.
    Never,
}

/// The files that a model runs from.
pub struct Ready {
    pub path: PathBuf,
    /// The preparation of its package, if it runs without one now and is to have one later.
    pub later: Option<Later>,
}

/// The preparation of a package for the next run.
pub struct Later {
    name: String,
    model: PathBuf,
    missing: Missing,
    threads: ThreadArguments,
    /// Whether a process would end with this one.
    is_alone: bool,
}

impl PreparationMode {
    /// Returns the mode of a command that runs a model `as_it_is` (`--no-quantize`), or that `needs_package`; `otherwise`
    /// if the variable is not set.
    pub fn from(as_it_is: bool, needs_package: bool, otherwise: Self) -> Result<Self> {
        if as_it_is {
            return Ok(Self::AsStored);
        }
        let when = environment::text(WHEN)?.unwrap_or_default();
        Ok(match when.as_str() {
            "" | "later" | "first" | "never" if needs_package => Self::First,
            "" => otherwise,
            "later" => Self::Later,
            "first" => Self::First,
            "never" => Self::Never,
            _ => bail!("{WHEN} is {when:?}: expected `later`, `first` or `never`"),
        })
    }
}

impl Ready {
    /// Finds the files that the model at `path`, which the user calls `name`, runs from. Prints a note if it runs without
    /// a package. `next` is what will use the package.
    pub fn find(
        path: PathBuf,
        name: &str,
        threads: &ThreadArguments,
        mode: PreparationMode,
        next: &str,
    ) -> Result<Self> {
        let now = |path| Self { path, later: None };
        if matches!(mode, PreparationMode::AsStored) {
            return Ok(now(path));
        }
        if matches!(mode, PreparationMode::Later | PreparationMode::Never) {
            let found = first_run::find(&path, &mut progress::reading(&path));
            match found.map_err(|error| triad_console::failure::run_error(error, name))? {
                first_run::Ready::TooLarge => {}
                first_run::Ready::Found(found) => {
                    preparing::note_stored(&found, name);
                    return Ok(now(found.path));
                }
                first_run::Ready::Stored(_) if matches!(mode, PreparationMode::Never) => {
                    output::note(&format!("{name} answers from the file as it is"));
                    return Ok(now(path));
                }
                first_run::Ready::Stored(missing) => {
                    let is_alone = next == RUN && is_alone();
                    output::note(&sentence(name, &missing.preparation, next, is_alone));
                    let later = Later {
                        name: name.to_owned(),
                        model: std::path::absolute(&path).unwrap_or_else(|_| path.clone()),
                        missing,
                        threads: threads.clone(),
                        is_alone,
                    };
                    return Ok(Self {
                        path,
                        later: Some(later),
                    });
                }
            }
        }
        preparing::package_of(&path, name, threads.chosen()).map(now)
    }
}

/// Returns whether other processes end with this one, as in a container.
fn is_alone() -> bool {
    std::process::id() == 1
}

/// Returns what a user reads of a model without a package.
fn sentence(name: &str, preparation: &Preparation, next: &str, is_alone: bool) -> String {
    let package = match preparation {
        _ if is_alone => format!("triad prepare {name} makes its package, which is faster"),
        Preparation::Due => {
            format!("its package is prepared in the background for the next {next}")
        }
        Preparation::Running => format!("its package is being prepared for the next {next}"),
        Preparation::Failed(error) => {
            format!("preparing its package failed: {error} (triad prepare {name} tries again)")
        }
    };
    format!("{name} answers from the file as it is; {package}")
}

impl Later {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether there is a package now.
    pub fn is_done(&self) -> bool {
        Package::is_at(&self.missing.package)
    }

    /// Returns the path that the package will have.
    #[cfg(feature = "server")]
    pub fn package(&self) -> &Path {
        &self.missing.package
    }

    /// Returns the error of a preparation in the background, if it failed.
    #[cfg(feature = "server")]
    pub fn failure(&self) -> Option<String> {
        match self.missing.preparation_now() {
            Preparation::Failed(error) => Some(error),
            Preparation::Due | Preparation::Running => None,
        }
    }

    /// Starts the preparation in a process of low priority, which goes on when this one ends. Prints a note if it cannot
    /// start. Returns nothing if none is due.
    pub fn start(&self) -> Option<Child> {
        if self.missing.preparation != Preparation::Due
            || self.is_alone
            || self.is_done()
            || self.missing.preparation_now() != Preparation::Due
        {
            return None;
        }
        match self.spawn() {
            Ok(child) => Some(child),
            Err(error) => {
                let name = &self.name;
                output::note(&format!(
                    "note: the package of {name} is not prepared: {error:#}"
                ));
                None
            }
        }
    }

    fn spawn(&self) -> Result<Child> {
        let Missing { bytes, .. } = self.missing;
        if let Some(available) = machine::available_memory() {
            ensure!(
                bytes <= available,
                "this takes about {} of memory, but {} are available now",
                output::bytes(bytes),
                output::bytes(available)
            );
        }
        let log = self.missing.log();
        if let Some(folder) = log.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let file = open_own(&log).and_then(|file| file.set_len(0).map(|()| file));
        let log = file.with_context(|| format!("cannot write {}", log.display()))?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command
            .arg("prepare")
            .args(self.threads.given().into_iter().flatten());
        keep_apart(&mut command);
        command
            .arg("--")
            .arg(&self.model)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        command.spawn().context("cannot start its process")
    }
}

/// Gives a process the lowest priority, and keeps Ctrl-C in this terminal from it.
#[cfg(unix)]
fn keep_apart(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command
        .args(["--nice", &triad_console::priority::LOWEST.to_string()])
        .process_group(0);
}

#[cfg(windows)]
fn keep_apart(command: &mut Command) {
    use std::os::windows::process::CommandExt;
    const IDLE_PRIORITY_CLASS: u32 = 0x40;
    const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;
    const CREATE_NO_WINDOW: u32 = 0x0800_0000;
    command.creation_flags(IDLE_PRIORITY_CLASS | CREATE_NEW_PROCESS_GROUP | CREATE_NO_WINDOW);
}

#[cfg(not(any(unix, windows)))]
fn keep_apart(_: &mut Command) {}

/// Returns the name of the arithmetic that a model computes with.
pub fn arithmetic(model: &Model) -> &'static str {
    match model.package_format() {
        Some(LinearFormat::W8a8) => "w8a8",
        Some(LinearFormat::W4a16) => "w4a16",
        None => AS_STORED,
    }
}

/// The name of the arithmetic of a model without a package.
pub const AS_STORED: &str = "as stored";

/// Describes how the model file at `path` runs next, without reading all of it: the name of the arithmetic, the package,
/// and both for people.
pub fn next_run(path: &Path) -> Result<(&'static str, Option<PathBuf>, String)> {
    use first_run::Ready;
    let stored = |text: String| (AS_STORED, None, text);
    Ok(match first_run::find_known(path)? {
        None => stored("as it is stored at first, unless it was prepared before".into()),
        Some(Ready::TooLarge) => ("w8a8", None, "in INT8, prepared at the first run".into()),
        Some(Ready::Found(found)) => match found.stored {
            Some(part) => stored(format!("as it is stored: it {part}")),
            None => {
                let text = format!("in INT8, from {}", found.path.display());
                ("w8a8", Some(found.path), text)
            }
        },
        Some(Ready::Stored(missing)) => stored(match missing.preparation {
            Preparation::Due => "as it is stored, until its package is prepared".into(),
            Preparation::Running => "as it is stored; its package is being prepared".into(),
            Preparation::Failed(error) => {
                format!("as it is stored; preparing its package failed: {error}")
            }
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_how_a_model_answers_and_how_its_package_gets_made() {
        let sentence = |preparation, is_alone| sentence("m.gguf", &preparation, "run", is_alone);
        let start = "m.gguf answers from the file as it is; ";
        let failed = Preparation::Failed("the disk is full".into());
        for (found, rest) in [
            (
                sentence(Preparation::Due, false),
                "its package is prepared in the background for the next run",
            ),
            (
                sentence(Preparation::Running, false),
                "its package is being prepared for the next run",
            ),
            (
                sentence(failed, false),
                "preparing its package failed: the disk is full (triad prepare m.gguf tries again)",
            ),
            (
                sentence(Preparation::Due, true),
                "triad prepare m.gguf makes its package, which is faster",
            ),
        ] {
            assert_eq!(found, format!("{start}{rest}"));
        }
    }
}
