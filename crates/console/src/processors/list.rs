//! The list of processors that `--processors` names.

use std::str::FromStr;

use triad_engine::{Cores, Threads};
use triad_plan::processors::{ProcessorKind, label};

use crate::device::DeviceArguments;

/// The processors of a run.
#[derive(Clone, Debug)]
pub struct Processors {
    pub(super) list: Vec<ListedProcessor>,
    /// The argument as the user wrote it.
    pub(super) text: String,
}

/// A processor in the list.
#[derive(Clone, Debug)]
pub(super) struct ListedProcessor {
    /// Name: `cpu`, `cpu2`, `gpu`, `npu`.
    pub(super) name: String,
    pub(super) kind: ProcessorKind,
    pub(super) threads: Threads,
    /// For a GPU that runs whole models: the threads of the NPU that multiplies for it, if there is one.
    pub(super) multiplier: Option<Threads>,
}

impl ListedProcessor {
    pub(super) fn is_cpu(&self) -> bool {
        self.kind == ProcessorKind::Cpu
    }

    /// Returns the name for messages, with that of the NPU that multiplies for it.
    pub(super) fn device_name(&self, devices: &DeviceArguments) -> String {
        let name = devices.name(self.kind, label(&self.name));
        match &self.multiplier {
            Some(_) => {
                let npu = devices.name(ProcessorKind::Npu, label("npu"));
                format!("{name} with {npu}")
            }
            None => name,
        }
    }
}

/// One thread that is not pinned.
const ONE: Threads = Threads::Count(1);

impl FromStr for Processors {
    type Err = String;

    /// Parses `cpu=0-2,4,npu=3`: names, each of which may be repeated and may have cores.
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            "expected cpu, cpu with gpu, npu or both, gpu alone, or gpu,npu, each with or without its cores: \
             cpu=0-2,npu=3"
                .to_owned()
        };
        let mut named: Vec<(&str, Vec<&str>)> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (name, cores) = part
                .split_once('=')
                .map_or((part, None), |(name, cores)| (name, Some(cores)));
            match (
                part.starts_with(|letter: char| letter.is_ascii_alphabetic()),
                named.last_mut(),
            ) {
                (true, _) => named.push((name, cores.into_iter().collect())),
                // Another core of the same processor.
                (false, Some((_, cores))) if !cores.is_empty() => cores.push(part),
                (false, _) => return Err(expected()),
            }
        }
        let mut list: Vec<ListedProcessor> = Vec::new();
        for (text, cores) in named {
            let kind = match text {
                "cpu" => ProcessorKind::Cpu,
                "gpu" => ProcessorKind::Gpu,
                "npu" => ProcessorKind::Npu,
                _ => return Err(expected()),
            };
            let threads = if cores.is_empty() {
                ONE
            } else {
                Threads::On(Cores::parse(&cores.join(","))?)
            };
            let name = match list.iter().filter(|other| other.kind == kind).count() {
                0 => text.to_owned(),
                others => format!("{text}{}", others + 1),
            };
            list.push(ListedProcessor {
                name,
                kind,
                threads,
                multiplier: None,
            });
        }
        // The GPU runs the model, and the NPU multiplies for it.
        let gpu = list.iter().position(|one| one.kind == ProcessorKind::Gpu);
        let npu = list.iter().position(|one| one.kind == ProcessorKind::Npu);
        if let (2, Some(gpu), Some(npu)) = (list.len(), gpu, npu) {
            list[gpu].multiplier = Some(list[npu].threads.clone());
            list.remove(npu);
        }
        let is_gpu_alone = matches!(&list[..], [only] if only.kind == ProcessorKind::Gpu);
        if !list.iter().any(ListedProcessor::is_cpu) && !is_gpu_alone {
            return Err(expected());
        }
        let mut taken = Vec::new();
        let threads = list
            .iter()
            .flat_map(|processor| [Some(&processor.threads), processor.multiplier.as_ref()]);
        for cores in threads.flatten().filter_map(|threads| {
            if let Threads::On(cores) = threads {
                Some(cores)
            } else {
                None
            }
        }) {
            if let Some(core) = cores.iter().find(|core| taken.contains(core)) {
                return Err(format!(
                    "core {core} belongs to two processors: expected different cores for each"
                ));
            }
            taken.extend(cores.iter());
        }
        Ok(Self {
            list,
            text: text.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_names_and_cores() {
        let count = |text: &str| {
            text.parse::<Processors>()
                .map(|processors| processors.threads())
        };
        assert_eq!(
            [
                "cpu",
                "cpu,npu",
                "npu=1,cpu=0",
                "cpu=0-2,5,npu=3,4",
                "cpu,cpu=1",
                "cpu,gpu,npu",
                "gpu=1",
                "npu=0-1,gpu"
            ]
            .map(count),
            [Ok(1), Ok(2), Ok(2), Ok(6), Ok(2), Ok(3), Ok(1), Ok(3)]
        );
        for wrong in [
            "",
            "gpu,gpu",
            "gpu,npu,npu",
            "npu",
            "cpu=,npu",
            "cpu=x",
            "0",
            "cpu,0",
            "cpu=0,npu=1,tpu=2",
        ] {
            assert!(count(wrong).unwrap_err().starts_with("expected"), "{wrong}");
        }
        for twice in ["cpu=0-2,npu=2", "gpu=2,npu=1-2"] {
            assert!(
                count(twice)
                    .unwrap_err()
                    .contains("core 2 belongs to two processors")
            );
        }
    }
}
