//! `triad devices`: what this machine can run models on.

use anyhow::Result;

use crate::output;
use triad_frontend::machine::{Kernels, Machine};

/// Show the processors of this machine, their instruction sets and memory.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad devices
  triad devices --json

The environment variable TRIAD_KERNELS (avx512, avx2, i8mm, dotprod, neon or reference) keeps matrix products from
using better instructions than that.")]
pub struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints what the system reports.
pub fn run(arguments: &Arguments) -> Result<()> {
    let machine = Machine::detect();
    if arguments.json {
        return output::json(&machine);
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
    output::fields(&[
        ("processor", machine.processor.unwrap_or_else(unknown)),
        ("architecture", machine.architecture.into()),
        ("instruction sets", or_unknown(machine.instruction_sets.iter().map(ToString::to_string).collect())),
        ("kernels", format!("INT8 {}, bf16 {}, f32 {}", int8, bf16.unwrap_or("none"), f32)),
        ("cores", format!("{cores}; {} threads at once", machine.threads)),
        ("clock", or_unknown(groups)),
        ("caches", or_unknown(caches)),
        ("memory", output::known_bytes(machine.memory_bytes)),
        ("memory available", output::known_bytes(machine.memory_available_bytes)),
    ])
}
