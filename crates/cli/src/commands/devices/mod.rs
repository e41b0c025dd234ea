//! `triad devices`: shows the processors of this machine, and the fastest CPU kernels.

mod choose;

use anyhow::Result;
use serde::Serialize;

use triad_console::{output, progress, version};
use triad_frontend::kernels::{self, KernelChoices};
use triad_frontend::machine::{Kernels, Machine};

/// Show the processors of this machine: the CPU with its instruction sets, kernels and memory, the GPUs and the NPUs.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad devices
  triad devices --json
  triad devices --choose     time the CPU's kernels again, and keep the fastest

A GPU is used with --processors cpu,gpu; --gpu or the environment variable TRIAD_GPU chooses one by a part of its name.
An NPU is used with --processors cpu,npu --npu NAME.
TRIAD_GPU_VARIANTS names the shaders to try instead of the default ones, separated by commas.
Of the kernels that the CPU can run, Triad uses the fastest. They are timed once, and again with --choose.
The environment variable TRIAD_KERNELS (amx, avx512, avx2, sme, i8mm, dotprod, neon or reference) limits
matrix products to these instructions.")]
pub struct Arguments {
    /// Time the kernels that this CPU can run again, keep the fastest of each kind, and print them
    #[arg(long)]
    choose: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `devices --json`.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    machine: Machine,
    /// The fastest kernels; `None` where TRIAD_KERNELS chooses them.
    kernel_choices: Option<KernelChoices>,
    gpus: Vec<GpuReport>,
    npus: Vec<NpuReport>,
    /// Features for processors that this program was built without: no processor of these is in the lists.
    missing_features: Vec<&'static str>,
}

/// An NPU that `--npu` can name.
#[derive(Serialize)]
struct NpuReport {
    /// The name for `--npu`; for a library that can't be used, the library.
    npu: String,
    /// Whether it can be used.
    usable: bool,
    /// The program or library that was found, or the reason why not and what to install.
    found: String,
}

impl NpuReport {
    fn all() -> Vec<Self> {
        let reports: Vec<Self> = Vec::new();
        #[cfg(feature = "hexagon")]
        let reports = reports.into_iter().chain([Self::hexagon()]);
        #[cfg(feature = "npu")]
        let reports = reports.into_iter().chain(Self::onnx_runtime());
        reports.into_iter().collect()
    }

    #[cfg(any(feature = "hexagon", feature = "npu"))]
    fn new(npu: &str, found: Result<String, triad_processors::Error>) -> Self {
        let (usable, found) = (
            found.is_ok(),
            found.unwrap_or_else(|error| error.to_string()),
        );
        Self {
            npu: npu.to_owned(),
            usable,
            found,
        }
    }

    /// Starts Triad's own device program, and describes it and its transports.
    #[cfg(feature = "hexagon")]
    fn hexagon() -> Self {
        use triad_processors::hexagon::{
            Hexagon, HexagonOptions, program_from_environment, transports,
        };
        let found = program_from_environment().and_then(|program| {
            let options = HexagonOptions::new(program);
            let hexagon = Hexagon::open(&options)?;
            let (program, build) = (options.program.display(), hexagon.build());
            Ok(format!(
                "{program} (build {build:016x}), {}, threads: {}, unit: {}",
                hexagon.place(),
                hexagon.threads(),
                hexagon.unit_report()
            ))
        });
        let report = Self::new("hexagon", found);
        Self {
            found: format!("{} ({})", report.found, transports()),
            ..report
        }
    }

    /// Returns every provider of ONNX Runtime, with the reason if it can't be used.
    #[cfg(feature = "npu")]
    fn onnx_runtime() -> Vec<Self> {
        use triad_processors::npu::{Npu, NpuOptions, Provider, library_from_environment};
        let library = match library_from_environment() {
            Ok(library) => library,
            Err(error) => return vec![Self::new("ONNX Runtime", Err(error))],
        };
        let report = |provider: Provider| {
            let opened = Npu::new(NpuOptions::new(&library, provider));
            Self::new(
                provider.name(),
                opened.map(|_| format!("by ONNX Runtime, {}", library.display())),
            )
        };
        // Azure is only for tests.
        Provider::ALL
            .into_iter()
            .filter(|provider| *provider != Provider::Azure)
            .map(report)
            .collect()
    }

    /// Describes the NPU in a line.
    fn text(&self) -> String {
        let Self { npu, usable, found } = self;
        format!(
            "{npu}: {}{found}",
            if *usable { "" } else { "not usable: " }
        )
    }
}

/// A GPU that a driver lists.
#[derive(Serialize)]
struct GpuReport {
    /// Its name, kind, interface and driver.
    gpu: String,
    /// Whether weights are written to memory shared with the CPU; if false, they are copied to the GPU's own memory.
    /// `None` where the GPU can't be used.
    shares_memory: Option<bool>,
    /// The variant of the shaders that multiplies in INT8.
    variant: Option<&'static str>,
    /// Variants with wrong results, each with the reason; or the reason why the GPU can't be used at all.
    refused: Vec<String>,
    /// The variant of the shaders for whole models.
    model_variant: Option<&'static str>,
    model_refused: Vec<String>,
}

impl GpuReport {
    #[cfg(feature = "gpu")]
    fn all() -> Vec<Self> {
        use triad_processors::gpu::{Adapter, Gpu, VariantState};

        /// Returns the variant that is used, and the refused ones.
        fn outcome<'a>(
            states: impl Iterator<Item = (&'static str, &'a VariantState)>,
        ) -> (Option<&'static str>, Vec<String>) {
            let (mut used, mut refused) = (None, Vec::new());
            for (name, state) in states {
                match state {
                    VariantState::Used => used = Some(name),
                    VariantState::Refused(reason) => refused.push(format!("{name}: {reason}")),
                    VariantState::Untried => {}
                }
            }
            (used, refused)
        }
        let report = |(adapter, opened): (Adapter, triad_processors::Result<Gpu>)| {
            let gpu = adapter.to_string();
            match opened {
                Ok(opened) => {
                    let (variant, refused) = outcome(
                        opened
                            .variants()
                            .iter()
                            .map(|(tried, state)| (tried.name, state)),
                    );
                    let (model_variant, model_refused) = match opened.check_models() {
                        Ok(states) => {
                            outcome(states.iter().map(|(tried, state)| (tried.name, state)))
                        }
                        Err(error) => (None, vec![error.to_string()]),
                    };
                    let shares_memory = Some(opened.shares_memory());
                    Self {
                        gpu,
                        shares_memory,
                        variant,
                        refused,
                        model_variant,
                        model_refused,
                    }
                }
                Err(error) => Self {
                    gpu,
                    shares_memory: None,
                    variant: None,
                    refused: vec![error.to_string()],
                    model_variant: None,
                    model_refused: Vec::new(),
                },
            }
        };
        Gpu::open_each(&triad_console::device::gpu_options(None, 0.0))
            .into_iter()
            .map(report)
            .collect()
    }

    #[cfg(not(feature = "gpu"))]
    fn all() -> Vec<Self> {
        Vec::new()
    }

    /// Describes the GPU in a line.
    fn text(&self) -> String {
        let Self {
            gpu,
            shares_memory,
            variant,
            refused,
            model_variant,
            model_refused,
        } = self;
        let text = |variant: &Option<&str>, refused: &[String]| {
            let variant = variant.map_or("not usable".to_owned(), |variant| {
                format!("shaders {variant}")
            });
            let refused = refused.iter().map(|reason| format!(", refused: {reason}"));
            format!("{variant}{}", refused.collect::<String>())
        };
        if variant.is_none() {
            return format!("{gpu}: {}", text(variant, refused));
        }
        let memory = match shares_memory {
            Some(true) => "written to memory shared with the CPU",
            _ => "copied to its own memory",
        };
        let (subgraphs, models) = (text(variant, refused), text(model_variant, model_refused));
        format!("{gpu}: subgraphs {subgraphs}; whole models {models}; weights are {memory}")
    }
}

/// Prints the processors of this machine.
pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.choose {
        return choose::run(arguments.json);
    }
    let kernel_choices = kernels::use_fastest(|| progress::spinner(kernels::TIMING));
    let (machine, gpus, npus) = (Machine::detect(), GpuReport::all(), NpuReport::all());
    if arguments.json {
        return output::json(&Report {
            machine,
            kernel_choices,
            gpus,
            npus,
            missing_features: version::missing_features(),
        });
    }
    let unknown = || "unknown".to_owned();
    let cores = machine
        .cores
        .map_or_else(unknown, |cores| cores.to_string());
    let groups: Vec<_> = machine
        .core_groups
        .iter()
        .map(|group| format!("{} × {} MHz", group.threads, group.megahertz))
        .collect();
    let caches: Vec<_> = machine
        .caches
        .iter()
        .map(|cache| {
            format!(
                "L{} {} × {}",
                cache.level,
                cache.count,
                output::bytes(cache.bytes)
            )
        })
        .collect();
    let or_unknown = |list: Vec<String>| {
        if list.is_empty() {
            unknown()
        } else {
            list.join(", ")
        }
    };
    let Kernels {
        int8,
        f32,
        rounded,
        rounded_to,
        refused,
    } = machine.kernels;
    let mut fields = vec![
        ("processor", machine.processor.unwrap_or_else(unknown)),
        ("architecture", machine.architecture.into()),
        (
            "instruction sets",
            or_unknown(
                machine
                    .instruction_sets
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
            ),
        ),
        (
            "kernels",
            format!("INT8 {int8}, f32 {f32}, rounded to {rounded_to} {rounded}"),
        ),
        (
            "cores",
            format!("{cores}; {} concurrent threads", machine.threads),
        ),
        ("clock", or_unknown(groups)),
        ("caches", or_unknown(caches)),
        ("memory", output::known_bytes(machine.memory_bytes)),
        (
            "memory available",
            output::known_bytes(machine.memory_available_bytes),
        ),
    ];
    let products = kernel_choices.iter().flat_map(|choices| &choices.products);
    fields.extend(products.map(|choice| {
        (
            "kernel chosen",
            format!("{}: {}", choice.product, choice.sentence()),
        )
    }));
    fields.extend(refused.into_iter().map(|refused| {
        (
            "kernel refused",
            format!("{}: {}", refused.kernel, refused.reason),
        )
    }));
    if gpus.is_empty() && cfg!(feature = "gpu") {
        fields.push(("GPU", "none found".to_owned()));
    }
    fields.extend(gpus.iter().map(|gpu| ("GPU", gpu.text())));
    fields.extend(npus.iter().map(|npu| ("NPU", npu.text())));
    let missing = version::missing_features();
    if !missing.is_empty() {
        fields.push(("not looked for", version::without(&missing.join(", "))));
    }
    output::fields(&fields)
}
