//! `triad plan`: what a prefill consists of, and where its parts would run.

use anyhow::Result;
use serde::Serialize;
use triad_model::checkpoint::Checkpoint;
use triad_model::description::ModelDescription;
use triad_model::family;
use triad_plan::graph::{Format, Graph, GraphMemory, Role};
use triad_plan::placement::{Placement, Processor, Reason};

use crate::{arguments, output};

/// Show how a prefill is cut into subgraphs and chunks, and where they would run.
///
/// Blocks are cut where the number format changes, the prompt into chunks (llm.npu, chunk-sharing graphs). Static
/// subgraphs are built once for all chunks; attention, whose shape depends on what came before, once for each. INT8
/// subgraphs go to the NPU, feed-forwards first, as far as the memory that it can address reaches; floats to the CPU.
/// Counted from the model's description: nothing runs.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad plan --shape qwen1.5-1.8b --prompt 1024 --chunk 256
  triad plan -m model.gguf --prompt 600 --window 0.5
  triad plan --shape llama-2-7b --json")]
pub struct Arguments {
    #[command(flatten)]
    name: arguments::ModelArgument,
    /// The shape of this model
    #[arg(long, value_name = "NAME", conflicts_with = "model", value_parser = clap::builder::PossibleValuesParser::new(family::SHAPES))]
    shape: Option<String>,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value = "1024", value_parser = arguments::tokens)]
    prompt: usize,
    /// Tokens of a chunk
    #[arg(long, value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    chunk: usize,
    /// GiB of memory that the NPU can address
    #[arg(long, value_name = "GIB", default_value = "4", value_parser = gibibytes)]
    window: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `plan --json` prints.
#[derive(Serialize)]
struct Plan {
    model: String,
    prompt: usize,
    chunk: usize,
    chunks: usize,
    subgraphs: usize,
    /// Built once for all chunks.
    static_subgraphs: usize,
    /// To build, where blocks that differ in their weights alone share graphs, too.
    distinct_graphs: usize,
    tasks: usize,
    memory: GraphMemory,
    window_bytes: usize,
    window_used_bytes: usize,
    roles: Vec<OfRole>,
}

/// All subgraphs of one role.
#[derive(Serialize)]
struct OfRole {
    role: Role,
    format: Format,
    is_static: bool,
    /// How many there are, and of these on the NPU.
    count: usize,
    on_npu: usize,
    /// INT8 subgraphs that the window had no room for.
    window_full: usize,
    weight_bytes: usize,
    /// Multiplications and additions of the whole prompt.
    operations: u64,
}

/// Plans and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (name, description) = match &arguments.shape {
        Some(shape) => (shape.clone(), family::shape(shape)?),
        None => (arguments.name.model.clone(), describe(&arguments.name)?),
    };
    let graph = Graph::new(&description, arguments.prompt, arguments.chunk);
    let placement = Placement::new(&graph, arguments.window);
    let plan = Plan {
        model: name,
        prompt: arguments.prompt,
        chunk: arguments.chunk,
        chunks: graph.chunks().len(),
        subgraphs: graph.subgraphs().len(),
        static_subgraphs: graph.static_subgraphs(),
        distinct_graphs: graph.distinct_graphs(),
        tasks: graph.tasks().count(),
        memory: graph.memory(),
        window_bytes: arguments.window,
        window_used_bytes: placement.window_used(),
        roles: Role::ALL.iter().map(|role| of_role(*role, &graph, &placement)).collect(),
    };
    if arguments.json { output::json(&plan) } else { output::text(&plan.to_string()) }
}

fn describe(name: &arguments::ModelArgument) -> Result<ModelDescription> {
    let path = name.path()?;
    if triad_engine::package::Package::is_at(&path) {
        return Ok(triad_engine::package::Package::open(&path)?.description().clone());
    }
    Ok(Checkpoint::open(&path)?.description().clone())
}

fn of_role(role: Role, graph: &Graph, placement: &Placement) -> OfRole {
    let all = || graph.subgraphs().iter().zip(placement.places()).filter(|(subgraph, _)| subgraph.role == role);
    let tasks = graph.tasks().filter(|task| graph.subgraphs()[task.subgraph].role == role);
    OfRole {
        role,
        format: role.format(),
        is_static: role.is_static(),
        count: all().count(),
        on_npu: all().filter(|(_, place)| place.processor == Processor::Npu).count(),
        window_full: all().filter(|(_, place)| place.reason == Reason::WindowFull).count(),
        weight_bytes: all().map(|(subgraph, _)| subgraph.weight_bytes).sum(),
        operations: tasks.map(|task| graph.operations(task)).sum(),
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Self { model, prompt, chunk, chunks, subgraphs, static_subgraphs, distinct_graphs, tasks, memory, .. } =
            self;
        writeln!(f, "{model}, a prompt of {prompt} tokens in {chunks} chunks of {chunk}: {tasks} tasks")?;
        writeln!(
            f,
            "{subgraphs} subgraphs, {static_subgraphs} of them shared by all chunks; {distinct_graphs} graphs to build \
             where blocks share them, too"
        )?;
        let bytes = |bytes: usize| output::bytes(bytes as u64);
        writeln!(
            f,
            "graphs take {} shared and {} with one for each chunk: {:.0} % less",
            bytes(memory.shared),
            bytes(memory.separate),
            100.0 * memory.saved()
        )?;
        let (used, window) = (bytes(self.window_used_bytes), bytes(self.window_bytes));
        writeln!(f, "the NPU's window holds {used} of {window}\n")?;
        let names = ["subgraph", "format", "shape", "runs on", "because", "count", "weights", "Gop"];
        let rows: Vec<_> = self.roles.iter().flat_map(OfRole::rows).collect();
        write!(f, "{}", output::table(&names, 5, &rows))
    }
}

impl OfRole {
    /// One row for each place.
    fn rows(&self) -> Vec<Vec<String>> {
        let of = |place: &str, because: &str, count: usize| {
            let share = count as f64 / self.count.max(1) as f64;
            let format = if self.format == Format::Int8 { "INT8" } else { "float" };
            let shape = if self.is_static { "static" } else { "dynamic" };
            let labels = [self.role.name(), format, shape, place, because].map(str::to_owned);
            let numbers = [
                count.to_string(),
                output::bytes((self.weight_bytes as f64 * share) as u64),
                format!("{:.1}", self.operations as f64 * share / 1e9),
            ];
            labels.into_iter().chain(numbers).collect::<Vec<_>>()
        };
        let float = self.count - self.on_npu - self.window_full;
        [
            (float, of("CPU", "float", float)),
            (self.on_npu, of("NPU", "INT8", self.on_npu)),
            (self.window_full, of("CPU", "window full", self.window_full)),
        ]
        .into_iter()
        .filter_map(|(count, row)| (count > 0).then_some(row))
        .collect()
    }
}

/// Reads an amount of memory.
fn gibibytes(text: &str) -> Result<usize, String> {
    const MOST: f64 = 4096.0;
    let number = text.trim().parse::<f64>().ok().filter(|number| (0.0..=MOST).contains(number));
    let number = number.ok_or_else(|| format!("expected a number of GiB from 0 to {MOST}"))?;
    Ok((number * (1u64 << 30) as f64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_gibibytes() {
        assert_eq!(["4", "0.5", "0"].map(gibibytes), [Ok(4 << 30), Ok(1 << 29), Ok(0)]);
        for wrong in ["", "-1", "NaN", "inf", "4 GB"] {
            assert!(gibibytes(wrong).unwrap_err().contains("GiB"), "{wrong}");
        }
    }
}
