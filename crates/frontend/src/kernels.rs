//! The kernels that are fastest on this machine, timed once: `kernels.json` in the cache.
//!
//! What was chosen holds for the processor, its microcode, the number of threads, this version of Triad and the kernels that
//! may be used; a file of another machine counts as none. Where nothing can be written, kernels are timed every time.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use triad_kernels::tier::{self, Tier};
use triad_kernels::{
    Choice, ProductKind, TimedKernel, choose_kernels, refused_kernels, use_kernels,
};
use triad_model::{fetch, files};

use crate::{cache_file, machine};

/// What a user reads while kernels are timed.
pub const TIMING: &str = "timing kernels, once on this machine";

/// What was chosen, and on what machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelChoices {
    /// The machine and program that it holds for.
    pub machine: Timed,
    /// A choice for each kind of product.
    pub products: Vec<ProductChoice>,
}

/// What has to be the same for times to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// Name that the processor gives itself.
    pub processor: Option<String>,
    /// Its microcode, where the system reports it.
    pub microcode: Option<String>,
    /// Threads that run at once.
    pub threads: usize,
    /// Triad's version.
    pub version: String,
    /// Sets of instructions that kernels are written for and the processor has.
    pub instructions: Vec<String>,
    /// Kernels that compute wrongly on it.
    pub refused: Vec<String>,
}

/// The kernel of a kind of product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProductChoice {
    /// What is multiplied.
    pub product: String,
    /// The kernel that is used.
    pub chosen: String,
    /// The one of the best instructions that the processor has.
    pub by_instructions: String,
    /// How many times as fast the first one is as the second.
    pub gain: f64,
    /// All that were timed, of the best instructions first.
    pub timed: Vec<KernelRates>,
}

/// The speed of a kernel, in whole numbers, which a file has as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelRates {
    /// Its name.
    pub kernel: String,
    /// The geometric mean of its rates, in operations a second (a product and its addition count two).
    pub operations_per_second: f64,
    /// Each of its rates.
    pub rates: Vec<KernelRate>,
}

/// A rate in one setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelRate {
    /// Threads at once.
    pub threads: usize,
    /// Whether weights come from memory, or from a cache.
    pub from_memory: bool,
    /// What is done in a second.
    pub operations_per_second: f64,
}

impl Timed {
    fn here() -> Self {
        Self {
            processor: machine::processor(),
            microcode: machine::microcode(),
            threads: machine::threads(),
            version: env!("CARGO_PKG_VERSION").into(),
            instructions: Tier::supported().map(|tier| tier.name().into()).collect(),
            refused: refused_kernels()
                .iter()
                .map(|refused| refused.kernel.into())
                .collect(),
        }
    }
}

impl ProductChoice {
    /// The kernel that is used, and how it compares with each other one.
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
            by_instructions: choice.by_tier().into(),
            gain: (choice.gain() * 1e4).round() / 1e4,
            timed: choice.timed.iter().map(rates).collect(),
        }
    }
}

/// Uses the kernels that are fastest on this machine, and returns them: as they were chosen before, or timed now, of which
/// `timing` is told. `None` where `TRIAD_KERNELS` names others. To be called before anything is computed.
pub fn use_fastest<T>(timing: impl FnOnce() -> T) -> Option<KernelChoices> {
    if !matches!(tier::requested(), Ok(None)) {
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
        // What was timed are kernels of this processor.
        let _ = choices.apply();
        choices
    }))
}

/// Times the kernels, and keeps what is fastest for the next runs. Does not change what this process uses.
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

/// What the file has, if it holds here. What is damaged or of another version is as good as none.
fn read(path: &Path, here: &Timed) -> Option<KernelChoices> {
    let choices: KernelChoices =
        serde_json::from_slice(&files::read(path, cache_file::MOST_BYTES).ok()?).ok()?;
    let has_all = ProductKind::ALL
        .iter()
        .all(|kind| choices.of(*kind).is_some());
    (choices.machine == *here && has_all).then_some(choices)
}

impl KernelChoices {
    /// Makes operators use these kernels.
    fn apply(&self) -> Result<(), String> {
        use_kernels(|kind| self.of(kind).map(|choice| choice.chosen.as_str()))
    }

    fn of(&self, kind: ProductKind) -> Option<&ProductChoice> {
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
