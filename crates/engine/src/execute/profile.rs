//! What subgraphs take on the processors of a machine: measured once, kept in the package, so that the first prompt of a
//! process is scheduled as well as its later ones.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use triad_plan::schedule::Policy;

use super::{Costs, Engine, Execution, Session};
use crate::cancel::Cancel;
use crate::error::{Error, Result};

/// The file in a package.
const FILE: &str = "costs.json";
/// Bytes of a file of measurements, at most.
const MOST_BYTES: u64 = 64 << 20;

/// The costs of several sets of processors, by name; in a package they are `costs.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CostTable(BTreeMap<String, Costs>);

impl CostTable {
    /// The path of the table of a package.
    pub fn path(package: &Path) -> PathBuf {
        package.join(FILE)
    }

    /// The table of a package; an empty one where nothing was measured.
    ///
    /// # Errors
    /// If it can't be read, or is none.
    pub fn open(package: &Path) -> Result<Self> {
        read(Self::path(package))
    }

    /// Those of a set of processors, if they were measured.
    pub fn of(&self, processors: &str) -> Option<&Costs> {
        self.0.get(processors)
    }

    /// Those of a set of processors from now on.
    pub fn set(&mut self, processors: &str, costs: Costs) {
        self.0.insert(processors.to_owned(), costs);
    }

    /// Writes the table beside that of the package, and renames it.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn save(&self, package: &Path) -> Result<()> {
        write(self, package, Self::path(package))
    }
}

/// What a file of measurements holds; the default where there is none.
///
/// # Errors
/// If it can't be read, is larger than any that was written, or holds something else.
pub(super) fn read<T: DeserializeOwned + Default>(path: PathBuf) -> Result<T> {
    let bytes = || {
        let mut bytes = Vec::new();
        fs::File::open(&path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let wrong = |source| {
        let problem = "not what `triad profile` writes: delete the file and measure again";
        Err(Error::File { path: path.clone(), problem, source })
    };
    match bytes() {
        Ok(bytes) if bytes.len() as u64 > MOST_BYTES => wrong(format!("expected at most {MOST_BYTES} bytes").into()),
        Ok(bytes) => serde_json::from_slice(&bytes).or_else(|error| wrong(error.into())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(Error::File { path, problem: "cannot read the file", source: error.into() }),
    }
}

/// Writes measurements beside those of the package, and renames the file.
///
/// # Errors
/// If it can't be written.
pub(super) fn write(measurements: &impl Serialize, package: &Path, path: PathBuf) -> Result<()> {
    let write = || {
        let mut file = NamedTempFile::new_in(package)?;
        serde_json::to_writer_pretty(&mut file, measurements)?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        file.persist(&path)?;
        Ok::<_, std::io::Error>(())
    };
    let written = write();
    written.map_err(|error| Error::File { path, problem: "cannot write the file", source: error.into() })
}

/// Has each engine run a prompt that fills its context, `repeat` times in order and, on several processors, as often out of
/// order, after one that does not count, and returns what subgraphs took [in these runs](Costs::of_runs). What the first
/// has not run, such as INT8 on the CPU, is taken from those behind it. `progress` is called with the number of prompts that
/// are done, of [`profiled_prompts`].
///
/// # Errors
/// If `cancel` is set, or a processor fails on the way.
pub fn profile(engines: &[Engine], repeat: usize, cancel: &Cancel, mut progress: impl FnMut(usize)) -> Result<Costs> {
    let (mut costs, mut done) = (Costs::default(), 0);
    for engine in engines {
        let mut session = engine.session();
        let prompt = super::any_tokens(session.context(), engine.model().description().vocab);
        let mut run = |policy| {
            engine.set_policy(policy);
            let execution = run_prompt(&mut session, &prompt, cancel)?.clone();
            done += 1;
            progress(done);
            Ok::<_, Error>(execution)
        };
        run(Policy::InOrder)?;
        let (mut in_order, mut out_of_order) = (Vec::new(), Vec::new());
        for _ in 0..repeat {
            in_order.push(run(Policy::InOrder)?);
            if engine.processors().len() > 1 {
                out_of_order.push(run(BESIDE)?);
            }
        }
        costs.fill(&Costs::of_runs(engine.processors(), in_order, out_of_order));
    }
    Ok(costs)
}

/// Runs a prompt in a session that is emptied for it, and returns how it went.
///
/// # Errors
/// If `cancel` is set, or a processor fails, though others went on.
pub(super) fn run_prompt<'a>(session: &'a mut Session, prompt: &[u32], cancel: &Cancel) -> Result<&'a Execution> {
    session.truncate(0);
    session.prefill(prompt, cancel, |_| {})?;
    let execution = session.execution().expect("a prompt ran");
    match execution.failures.first() {
        Some(failure) => Err(Error::Processor(Box::new(failure.clone()))),
        None => Ok(execution),
    }
}

/// How many prompts [`profile`] runs.
pub fn profiled_prompts(engines: &[Engine], repeat: usize) -> usize {
    engines.iter().map(|engine| 1 + repeat * engine.processors().len().min(2)).sum()
}

/// The policy of runs that show what tasks take beside others: it expects nothing, so that it can expect nothing wrong.
pub const BESIDE: Policy = Policy::Fifo;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_it_was_written_and_a_damaged_one_refused() {
        let package = tempfile::tempdir().unwrap();
        assert_eq!(CostTable::open(package.path()).unwrap(), CostTable::default());
        let mut table = CostTable::default();
        table.set("cpu,npu", Costs::default());
        table.save(package.path()).unwrap();
        assert_eq!(CostTable::open(package.path()).unwrap(), table);
        assert_eq!((table.of("cpu,npu"), table.of("cpu")), (Some(&Costs::default()), None));
        fs::write(CostTable::path(package.path()), "{\"cpu\": 1}").unwrap();
        let refused = CostTable::open(package.path()).unwrap_err().to_string();
        assert!(refused.contains("costs.json") && refused.contains("triad profile"), "{refused}");
    }
}
