//! The fastest kernels on this machine, timed once and kept in `kernels.json` in the cache.
//!
//! Choices are valid for one processor, its microcode, the number of threads, this version of Triad and the kernels
//! that may be used. The file of another machine is ignored. Where the file can't be written, kernels are timed every
//! time.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use triad_kernels::isa::{self, Isa};
use triad_kernels::{
    Choice, ProductKind, TimedKernel, choose_kernels, refused_kernels, use_kernels,
};
use triad_model::{fetch, files};

use crate::{cache_file, machine};

/// Message for the user while kernels are timed.
pub const TIMING: &str = "timing kernels, once on this machine";

/// The chosen kernels, and the machine for which they were chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelChoices {
    /// The machine and program for which the choices are valid.
    pub machine: Timed,
    /// A choice for each kind of product.
    pub products: Vec<ProductChoice>,
}

/// The conditions under which times are valid: all fields must be the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// The processor's name, as the system reports it.
    pub processor: Option<String>,
    /// Its microcode, if the system reports it.
    pub microcode: Option<String>,
    /// Threads that run concurrently.
    pub threads: usize,
    /// Triad's version.
    pub version: String,
    /// Instruction sets that kernels exist for and the processor has.
    pub instructions: Vec<String>,
    /// Kernels that compute wrongly on this processor.
    pub refused: Vec<String>,
}

/// The kernel of a kind of product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProductChoice {
    /// Name of the kind of product.
    pub product: String,
    /// The kernel that is used.
    pub chosen: String,
    /// The kernel for the processor's best instructions.
    pub by_instructions: String,
    /// The speed of the chosen kernel relative to that one.
    pub gain: f64,
    /// All timed kernels, from the best instructions down.
    pub timed: Vec<KernelRates>,
}

/// The speed of a kernel, in whole numbers, so that a file has them exactly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelRates {
    /// Its name.
    pub kernel: String,
    /// The geometric mean of its rates, in operations per second (a multiplication and an addition are two operations).
    pub operations_per_second: f64,
    /// Its rate in each setting.
    pub rates: Vec<KernelRate>,
}

/// A rate in one setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelRate {
    /// Threads that run concurrently.
    pub threads: usize,
    /// Whether weights are read from memory; otherwise from a cache.
    pub from_memory: bool,
    /// Operations per second.
    pub operations_per_second: f64,
}

impl Timed {
    fn here() -> Self {
        Self {
            processor: machine::processor(),
            microcode: machine::microcode(),
            threads: machine::threads(),
            version: env!("CARGO_PKG_VERSION").into(),
            instructions: Isa::supported().map(|isa| isa.name().into()).collect(),
            refused: refused_kernels()
                .iter()
                .map(|refused| refused.kernel.into())
                .collect(),
        }
    }
}

impl ProductChoice {
    /// Describes the chosen kernel and its speed relative to the others.
    pub fn sentence(&self) -> String {
        let mean = |kernel: &KernelRates| kernel.operations_per_second;
        let chosen = self
            .timed
            .iter()
            .find(|kernel| kernel.kernel == self.chosen)
            .map_or(0.0, mean);
        let others = self
            .timed
            .iter()
            .filter(|kernel| kernel.kernel != self.chosen);
        let others = others.map(|other| {
            format!(
                ", {:.2} × as fast as {}",
                chosen / mean(other),
                other.kernel
            )
        });
        format!("{}{}", self.chosen, others.collect::<String>())
    }
}

impl From<&Choice> for ProductChoice {
    fn from(choice: &Choice) -> Self {
        let rates = |timed: &TimedKernel| {
            let rates = timed.rates.iter().map(|rate| KernelRate {
                threads: rate.threads,
                from_memory: rate.from_memory,
                operations_per_second: rate.operations_per_second.round(),
            });
            KernelRates {
                kernel: timed.kernel.into(),
                operations_per_second: timed.mean().round(),
                rates: rates.collect(),
            }
        };
        Self {
            product: choice.kind.name().into(),
            chosen: choice.chosen.into(),
            by_instructions: choice.by_isa().into(),
            gain: (choice.gain() * 1e4).round() / 1e4,
            timed: choice.timed.iter().map(rates).collect(),
        }
    }
}

/// Uses the fastest kernels on this machine, and returns them. They are the choices in the cache, or are timed now;
/// `timing` is called before that. Returns `None` if `TRIAD_KERNELS` chooses the kernels. Must be called before
/// anything is computed.
pub fn use_fastest<T>(timing: impl FnOnce() -> T) -> Option<KernelChoices> {
    if !matches!(isa::requested(), Ok(None)) {
        return None;
    }
    let record = record();
    let here = Timed::here();
    let known = record
        .as_deref()
        .and_then(|path| read(path, &here))
        .filter(|known| known.apply().is_ok());
    Some(known.unwrap_or_else(|| {
        let _shown = timing();
        let choices = time(here);
        // This can't fail: the timed kernels are this processor's.
        let _ = choices.apply();
        choices
    }))
}

/// Times the kernels, and keeps the fastest for later runs. This process continues with its current kernels.
pub fn time_again() -> KernelChoices {
    time(Timed::here())
}

fn time(here: Timed) -> KernelChoices {
    let products = choose_kernels(here.threads)
        .iter()
        .map(ProductChoice::from)
        .collect();
    let choices = KernelChoices {
        machine: here,
        products,
    };
    if let (Some(record), Ok(content)) = (record(), serde_json::to_vec_pretty(&choices)) {
        cache_file::write(&record, &content);
    }
    choices
}

fn record() -> Option<PathBuf> {
    fetch::kernels_file().ok()
}

/// Reads the choices in the file, if they are valid here. A damaged file, or one of another version, is ignored.
fn read(path: &Path, here: &Timed) -> Option<KernelChoices> {
    let choices: KernelChoices =
        serde_json::from_slice(&files::read(path, cache_file::MAX_BYTES).ok()?).ok()?;
    let has_all = ProductKind::ALL
        .iter()
        .all(|kind| choices.get(*kind).is_some());
    (choices.machine == *here && has_all).then_some(choices)
}

impl KernelChoices {
    /// Makes operators use these kernels.
    fn apply(&self) -> Result<(), String> {
        use_kernels(|kind| self.get(kind).map(|choice| choice.chosen.as_str()))
    }

    fn get(&self, kind: ProductKind) -> Option<&ProductChoice> {
        self.products
            .iter()
            .find(|choice| choice.product == kind.name())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn choices_of_this_machine_are_read_again_and_those_of_another_one_or_damaged_ones_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache").join("kernels.json");
        let here = Timed::here();
        assert_eq!(read(&path, &here), None);
        let products = choose_kernels(1).iter().map(ProductChoice::from).collect();
        let choices = KernelChoices {
            machine: here.clone(),
            products,
        };
        cache_file::write(&path, &serde_json::to_vec_pretty(&choices).unwrap());
        assert_eq!(read(&path, &here), Some(choices.clone()));
        let others = [
            Timed {
                processor: Some("another one".into()),
                ..here.clone()
            },
            Timed {
                microcode: Some("0".into()),
                ..here.clone()
            },
            Timed {
                threads: here.threads + 1,
                ..here.clone()
            },
            Timed {
                version: "0.0.0".into(),
                ..here.clone()
            },
            Timed {
                instructions: vec!["sse9".into()],
                ..here.clone()
            },
            Timed {
                refused: vec!["sse9".into()],
                ..here.clone()
            },
        ];
        for other in others {
            assert_eq!(read(&path, &other), None, "{other:?}");
        }
        let mut without_a_kind = choices;
        without_a_kind.products.pop();
        fs::write(&path, serde_json::to_vec(&without_a_kind).unwrap()).unwrap();
        assert_eq!(read(&path, &here), None);
        fs::write(&path, "{").unwrap();
        assert_eq!(read(&path, &here), None);
        #[cfg(unix)]
        {
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
            assert_eq!(read(&path, &here), None, "a link to what never ends");
        }
    }

    #[test]
    fn every_kind_of_product_is_among_the_choices_by_its_name() {
        let products: Vec<_> = choose_kernels(1).iter().map(ProductChoice::from).collect();
        let names: Vec<_> = products
            .iter()
            .map(|choice| choice.product.as_str())
            .collect();
        assert_eq!(names, ProductKind::ALL.map(ProductKind::name));
        for choice in products {
            let mean = |name: &str| {
                choice
                    .timed
                    .iter()
                    .find(|timed| timed.kernel == name)
                    .unwrap()
                    .operations_per_second
            };
            let ratio = mean(&choice.chosen) / mean(&choice.by_instructions);
            assert!((choice.gain / ratio - 1.0).abs() < 1e-3, "{choice:?}");
        }
    }
}
