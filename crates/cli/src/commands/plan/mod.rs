//! `triad plan`: shows the subgraphs and chunks of a prefill and their processors, or how its products are cut.

mod joint;
mod partition;

use anyhow::{Result, bail, ensure};
use serde::Serialize;
use triad_plan::graph::{Format, Graph, GraphMemory, Role, Subgraph};
use triad_plan::partition::energy::Objective;
use triad_plan::partition::solve::Restriction;
use triad_plan::placement::{Place, Placement, Reason};
use triad_plan::processors::{Processors, label};

use triad_console::device::{DeviceArguments, Npu};
use triad_console::partition::{self as partitions, Partitions};
use triad_console::{arguments, output};

/// The default chunk size, in tokens.
const CHUNK: usize = 256;

/// Show how a prefill is cut into subgraphs and chunks, and where they would run.
///
/// Blocks are cut where the number format changes, and the prompt is cut into chunks (llm.npu, chunk-sharing graphs).
/// Static subgraphs are built once for all chunks. Attention, whose shape depends on the earlier tokens, is built once
/// for each chunk. INT8 subgraphs go to the NPU, feed-forwards first, until its addressable memory is full. Float
/// subgraphs go to the CPU. The plan is computed from the model's description; nothing runs.
///
/// With --partition and --processors, show instead how each product of a layer is cut across these processors
/// (HeteroLLM, tensor partition), in prefill and for one token of decode, by the times that `triad profile` measured
/// for the package. `triad-lab plan` simulates the same for a phone.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad plan --shape qwen1.5-1.8b --prompt 1024 --prefill-chunk 256
  triad plan -m model.gguf --prompt 600 --npu-memory 0.5
  triad plan --shape llama-2-7b --json
  triad plan -m model.triad --prompt 600 --partition auto --processors cpu=0,cpu=1")]
pub struct Arguments {
    #[command(flatten)]
    model: arguments::DescriptionArguments,
    /// Tokens of the prompt [default: 1024, or the model's context if less]
    #[arg(long, value_name = "N", value_parser = arguments::tokens)]
    prompt: Option<usize>,
    /// Prefill chunk size, in tokens [default: 256]
    #[arg(long = "prefill-chunk", value_name = "N", value_parser = arguments::tokens)]
    chunk: Option<usize>,
    /// Memory that the NPU can address, in GiB
    #[arg(long = "npu-memory", value_name = "GIB", default_value = "4", value_parser = arguments::gibibytes)]
    window: usize,
    /// How products are cut across --processors: layer (not at all), tensor (all of them), or auto (where it is faster)
    #[arg(long, value_name = "HOW", value_parser = partitions::restriction, conflicts_with = "window")]
    partition: Option<Restriction>,
    /// Quantity that --partition minimizes: latency, energy, or balanced (their product)
    #[arg(
        long,
        value_name = "WHAT",
        value_parser = partitions::objective,
        default_value = "latency",
        requires = "partition"
    )]
    objective: Objective,
    /// Processors of this machine for --partition, on which `triad profile` measured the package: cpu=0,cpu=1
    #[arg(
        long,
        value_name = "LIST",
        requires = "partition",
        conflicts_with = "shape"
    )]
    processors: Option<triad_console::processors::Processors>,
    /// Kind of the NPU in --processors, as for `triad profile`
    #[arg(
        long,
        value_name = "WHAT",
        requires = "processors",
        default_value = "kernels"
    )]
    npu: Npu,
    /// Name of the GPU in --processors, as for `triad profile`
    #[arg(long, value_name = "NAME", requires = "processors")]
    gpu: Option<String>,
    /// Moved to triad-lab
    #[arg(long, value_name = "NAME|FILE", hide = true)]
    device: Option<String>,
    /// Moved to triad-lab
    #[arg(long, value_name = "NAME", hide = true)]
    floats: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `plan --partition --processors --json`.
#[derive(Serialize)]
struct Measured {
    /// The plan of the whole prompt, by the joint search of [`Restriction::Auto`].
    #[serde(rename = "prompt_plan", skip_serializing_if = "Option::is_none")]
    joint: Option<joint::Joint>,
    #[serde(flatten)]
    products: Partitions,
}

/// The output of `plan --json`.
#[derive(Serialize)]
struct Plan {
    model: String,
    prompt: usize,
    chunk: usize,
    chunks: usize,
    subgraphs: usize,
    /// Subgraphs that are built once for all chunks.
    static_subgraphs: usize,
    /// Graphs to build if blocks that differ only in their weights share graphs too.
    distinct_graphs: usize,
    tasks: usize,
    memory: GraphMemory,
    window_bytes: usize,
    window_used_bytes: usize,
    places: Vec<OfRole>,
}

/// All subgraphs of one role in one place.
#[derive(Serialize)]
struct OfRole {
    role: Role,
    format: Format,
    is_static: bool,
    /// Name of the processor.
    processor: String,
    reason: Reason,
    count: usize,
    weight_bytes: usize,
    /// Multiplications and additions of the linear layers and of attention's products, for the whole prompt.
    operations: f64,
}

/// Runs `triad plan`.
pub fn run(arguments: &Arguments) -> Result<()> {
    let is_simulated = arguments.device.is_some() || arguments.floats.is_some();
    ensure!(
        !is_simulated && arguments.partition.is_some() == arguments.processors.is_some(),
        "cuts on a phone are simulated by `triad-lab plan`; for this machine give --partition and --processors"
    );
    let (name, description) = arguments.model.describe()?;
    if let Some(part) = description.only_for_one_cpu() {
        bail!("{name} {part}, which only one CPU runs: there is nothing to plan");
    }
    let prompt = arguments::prompt_tokens(arguments.prompt, &description)?;
    let chunk = arguments.chunk.unwrap_or(CHUNK);
    if let (Some(restriction), Some(processors)) = (arguments.partition, &arguments.processors) {
        let devices = DeviceArguments {
            npu: arguments.npu,
            gpu: arguments.gpu.clone(),
            objective: arguments.objective,
            ..DeviceArguments::default()
        };
        let package = arguments.model.package()?;
        let key = processors.list_key(&devices);
        let costs = partitions::product_costs(Some(&package), &key, &processors.to_string())?;
        let costs = costs.with_objective(arguments.objective)?;
        let names = processors.names(&devices);
        let joint = match restriction {
            Restriction::Auto if !processors.has_multiplier() => Some(joint::plan(
                &arguments.model,
                processors,
                &devices,
                (prompt, chunk),
            )?),
            Restriction::Layer | Restriction::Tensor | Restriction::Auto => None,
        };
        let chunk = joint.as_ref().map_or(chunk, joint::Joint::chunk);
        let products = partition::measured(
            name,
            &description,
            (prompt, chunk),
            (&costs, names.clone()),
            restriction,
        )?;
        return if arguments.json {
            output::json(&Measured { joint, products })
        } else {
            let joint = joint.map_or_else(String::new, |joint| format!("{}\n", joint.text(&names)));
            output::text(&format!("{joint}{products}"))
        };
    }
    arguments::check_chunks(prompt, chunk, arguments::MAX_CHUNKS)?;
    let graph = Graph::new(&description, prompt, chunk);
    let processors = Processors::cpu_and_npu(Some(arguments.window));
    // Each format has one preferred processor, so no load is balanced by times.
    let placement = Placement::new(&graph, &processors, |_, _| 1.0)?;
    let npu = processors.id("npu").expect("it is in the list");
    let plan = Plan {
        model: name,
        prompt,
        chunk,
        chunks: graph.chunks().len(),
        subgraphs: graph.subgraphs().len(),
        static_subgraphs: graph.static_subgraphs(),
        distinct_graphs: graph.distinct_graphs(),
        tasks: graph.chunks().len() * graph.subgraphs().len(),
        memory: graph.memory(),
        window_bytes: arguments.window,
        window_used_bytes: placement.window_used(npu),
        places: Role::ALL
            .iter()
            .flat_map(|role| of_role(*role, &graph, &processors, &placement))
            .collect(),
    };
    if arguments.json {
        output::json(&plan)
    } else {
        output::text(&plan.to_string())
    }
}

/// Returns the subgraphs of a role, for each place that has some.
fn of_role(
    role: Role,
    graph: &Graph,
    processors: &Processors,
    placement: &Placement,
) -> Vec<OfRole> {
    let all = || {
        graph
            .subgraphs()
            .iter()
            .zip(placement.places())
            .filter(|(subgraph, _)| subgraph.role == role)
    };
    let mut places: Vec<_> = all().map(|(_, place)| *place).collect();
    places.sort_unstable_by_key(|place| place.reason as usize);
    places.dedup();
    let operations = |subgraph: &Subgraph| {
        let of_chunk = |tokens: &std::ops::Range<usize>| {
            subgraph.operations(tokens.len(), tokens.start) as f64
        };
        graph.chunks().iter().map(of_chunk).sum::<f64>()
    };
    let of_place = |place: Place| {
        let here: Vec<_> = all()
            .filter(|(_, other)| **other == place)
            .map(|(subgraph, _)| subgraph)
            .collect();
        OfRole {
            role,
            format: role.format(),
            is_static: role.is_static(),
            processor: processors[place.processor].name.clone(),
            reason: place.reason,
            count: here.len(),
            weight_bytes: here.iter().map(|subgraph| subgraph.weight_bytes).sum(),
            operations: here.iter().map(|subgraph| operations(subgraph)).sum(),
        }
    };
    places.into_iter().map(of_place).collect()
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Self {
            model,
            prompt,
            chunk,
            chunks,
            subgraphs,
            static_subgraphs,
            distinct_graphs,
            tasks,
            memory,
            ..
        } = self;
        writeln!(
            f,
            "{model}, a prompt of {prompt} tokens in {chunks} chunks of {chunk}: {tasks} tasks"
        )?;
        writeln!(
            f,
            "{subgraphs} subgraphs, {static_subgraphs} of them shared by all chunks; {distinct_graphs} graphs to build \
             if blocks share graphs too"
        )?;
        let bytes = |bytes: usize| output::bytes(bytes as u64);
        writeln!(
            f,
            "graphs take {} shared and {} with one graph per chunk: {:.0} % less",
            bytes(memory.shared_bytes),
            bytes(memory.separate_bytes),
            100.0 * memory.saved()
        )?;
        let (used, window) = (bytes(self.window_used_bytes), bytes(self.window_bytes));
        writeln!(f, "the NPU's window holds {used} of {window}\n")?;
        let names = [
            "subgraph", "format", "shape", "runs on", "because", "count", "weights", "Gop",
        ];
        let rows: Vec<_> = self.places.iter().map(OfRole::cells).collect();
        write!(f, "{}", output::table(&names, 5, &rows))
    }
}

impl OfRole {
    /// Returns a row of the table.
    fn cells(&self) -> Vec<String> {
        let format = if self.format == Format::Int8 {
            "INT8"
        } else {
            "float"
        };
        let shape = if self.is_static { "static" } else { "dynamic" };
        let processor = label(&self.processor);
        let because = match self.reason {
            Reason::Float => "float",
            Reason::Int8 => "INT8",
            Reason::WindowFull => "window full",
        };
        let operations = match self.operations {
            0.0 => "-".into(),
            some => format!("{:.1}", some / 1e9),
        };
        let labels = [self.role.name(), format, shape, &processor, because].map(str::to_owned);
        let numbers = [
            self.count.to_string(),
            output::bytes(self.weight_bytes as u64),
            operations,
        ];
        labels.into_iter().chain(numbers).collect()
    }
}
