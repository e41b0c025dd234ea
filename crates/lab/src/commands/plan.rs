//! `triad-lab plan`: shows how the matmuls of a layer are partitioned across a phone's processors.

use std::collections::BTreeMap;

use anyhow::Result;
use triad_console::arguments::{self, DescriptionArguments};
use triad_console::device_profile;
use triad_console::output;
use triad_console::partition::{self, CutProduct, Partitions, because};
use triad_model::description::ModelDescription;
use triad_plan::device::DeviceProfile;
use triad_plan::graph::Role;
use triad_plan::partition::profile::ProfileCosts;
use triad_plan::partition::solve::{Choice, Restriction, Solver};
use triad_plan::partition::{Participant, Phase, ProductShape, products};
use triad_plan::prefill::FloatsOn;

/// Show how the matmuls of a layer would be partitioned across a phone's processors.
///
/// Shows prefill and one token of decode (HeteroLLM, tensor partition), simulated from the phone's profile. `triad plan
/// --partition --processors` shows the same for this machine, from the measurements of `triad profile`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab plan --shape llama-2-7b --prompt 600 --floats gpu
  triad-lab plan -m model.gguf --partition tensor --device phone.toml --json")]
pub struct Arguments {
    #[command(flatten)]
    model: DescriptionArguments,
    /// Tokens of the prompt [default: 1024, or the model's context length if that is less]
    #[arg(long, value_name = "N", value_parser = arguments::tokens)]
    prompt: Option<usize>,
    /// How matmuls are partitioned: layer (never), tensor (always), or auto (where it is faster)
    #[arg(long, value_name = "HOW", value_parser = partition::restriction, default_value = "auto")]
    partition: Restriction,
    /// A device: snapdragon-8gen3, snapdragon-8gen2, or a TOML file
    #[arg(long, value_name = "NAME|FILE", default_value = "snapdragon-8gen3")]
    device: String,
    /// Processor of float operators, which outputs are joined for: cpu or gpu
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = device_profile::floats_on)]
    floats: FloatsOn,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Plans and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (name, description) = arguments.model.describe()?;
    let prompt = arguments::prompt_tokens(arguments.prompt, &description)?;
    let device = device_profile::device(&arguments.device)?;
    let plan = plan(
        name,
        &description,
        prompt,
        &device,
        arguments.floats,
        arguments.partition,
    )?;
    if arguments.json {
        output::json(&plan)
    } else {
        output::text(&plan.to_string())
    }
}

/// Returns the partitions of the matmuls of a prompt and of one token of decode.
///
/// # Errors
/// If floats should be on a GPU that the device does not have, or matmuls must be partitioned that can't be.
fn plan(
    model: String,
    description: &ModelDescription,
    prompt: usize,
    device: &DeviceProfile,
    floats_on: FloatsOn,
    restriction: Restriction,
) -> Result<Partitions> {
    device_profile::check_floats(floats_on, device)?;
    let costs = ProfileCosts::new(device);
    let joins = costs.joins(floats_on)?;
    let participants = Participant::from_processors(costs.processors());
    let processors: Vec<_> = costs
        .processors()
        .iter()
        .map(|(_, processor)| processor.name.clone())
        .collect();
    let solver = Solver::new(participants, costs, joins)?;
    let mut shapes: BTreeMap<(Role, ProductShape), usize> = BTreeMap::new();
    for block in &description.blocks {
        for product in products(block, description.hidden, prompt)? {
            *shapes.entry(product).or_default() += 1;
        }
    }
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for ((role, shape), blocks) in shapes {
        let product = |chunks: usize, choice: Choice| {
            let because = because(&choice, restriction, &processors);
            CutProduct {
                role,
                blocks,
                chunks,
                choice,
                because,
            }
        };
        let of_prompt = solver.plan_prompt(shape, restriction)?;
        prefill.extend(
            of_prompt
                .choices()
                .map(|(chunks, choice)| product(chunks, choice.clone())),
        );
        decode.push(product(
            1,
            solver.solve(shape.with_rows(1)?, Phase::Decode, restriction)?,
        ));
    }
    prefill.append(&mut decode);
    let device = device.name.clone();
    Ok(Partitions {
        simulated: true,
        model,
        device,
        restriction,
        prompt,
        processors,
        float: joins.float(),
        products: prefill,
        output: None,
    })
}
