//! `triad devices`: what this machine can run models on.

use anyhow::Result;
use serde::Serialize;

use crate::output;
use triad_frontend::machine::{Kernels, Machine};

/// Show the processors of this machine: instruction sets, kernels and memory of the CPU, and its GPUs.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad devices
  triad devices --json

A GPU is used with --processors cpu,gpu; --gpu or the environment variable TRIAD_GPU chooses one by a part of its name.
The environment variable TRIAD_KERNELS (avx512, avx2, i8mm, dotprod, neon or reference) keeps matrix products from
using better instructions than that.")]
pub struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `devices --json` prints.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    machine: Machine,
    gpus: Vec<GpuReport>,
}

/// A GPU that a driver lists.
#[derive(Serialize)]
struct GpuReport {
    /// Its name, kind, interface and driver.
    gpu: String,
    /// The variant of the shaders that is used.
    variant: Option<&'static str>,
    /// Variants that compute wrongly on it, with the reason, or why the GPU can't be used at all.
    refused: Vec<String>,
}

impl GpuReport {
    #[cfg(feature = "gpu")]
    fn all() -> Vec<Self> {
        use triad_processors::gpu::{Adapter, Gpu, VariantState};

        let report = |(adapter, opened): (Adapter, triad_processors::Result<Gpu>)| {
            let (mut variant, mut refused) = (None, Vec::new());
            match opened {
                Ok(gpu) => {
                    for (tried, state) in gpu.variants() {
                        match state {
                            VariantState::Used => variant = Some(tried.name),
                            VariantState::Refused(reason) => refused.push(format!("{}: {reason}", tried.name)),
                            VariantState::Untried => {}
                        }
                    }
                }
                Err(error) => refused.push(error.to_string()),
            }
            Self { gpu: adapter.to_string(), variant, refused }
        };
        Gpu::open_each().into_iter().map(report).collect()
    }

    #[cfg(not(feature = "gpu"))]
    fn all() -> Vec<Self> {
        Vec::new()
    }

    /// In a line.
    fn text(&self) -> String {
        let Self { gpu, variant, refused } = self;
        let variant = variant.map_or("not usable".to_owned(), |variant| format!("shaders {variant}"));
        let refused = refused.iter().map(|reason| format!("; refused: {reason}"));
        format!("{gpu}: {variant}{}", refused.collect::<String>())
    }
}

/// Prints what the system reports.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (machine, gpus) = (Machine::detect(), GpuReport::all());
    if arguments.json {
        return output::json(&Report { machine, gpus });
    }
    let unknown = || "unknown".to_owned();
    let cores = machine.cores.map_or_else(unknown, |cores| cores.to_string());
    let groups: Vec<_> =
        machine.core_groups.iter().map(|group| format!("{} × {} MHz", group.threads, group.megahertz)).collect();
    let caches: Vec<_> = machine
        .caches
        .iter()
        .map(|cache| format!("L{} {} × {}", cache.level, cache.count, output::bytes(cache.bytes)))
        .collect();
    let or_unknown = |list: Vec<String>| if list.is_empty() { unknown() } else { list.join(", ") };
    let Kernels { int8, bf16, f32 } = machine.kernels;
    let mut fields = vec![
        ("processor", machine.processor.unwrap_or_else(unknown)),
        ("architecture", machine.architecture.into()),
        ("instruction sets", or_unknown(machine.instruction_sets.iter().map(ToString::to_string).collect())),
        ("kernels", format!("INT8 {}, bf16 {}, f32 {}", int8, bf16.unwrap_or("none"), f32)),
        ("cores", format!("{cores}; {} threads at once", machine.threads)),
        ("clock", or_unknown(groups)),
        ("caches", or_unknown(caches)),
        ("memory", output::known_bytes(machine.memory_bytes)),
        ("memory available", output::known_bytes(machine.memory_available_bytes)),
    ];
    if gpus.is_empty() {
        fields.push(("GPU", "none found".to_owned()));
    }
    fields.extend(gpus.iter().map(|gpu| ("GPU", gpu.text())));
    output::fields(&fields)
}
