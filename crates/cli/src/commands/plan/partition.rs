//! `triad plan --partition`: how the products of a block would be cut across the processors of a phone.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;
use triad_engine::execute::ProductCosts;
use triad_model::description::ModelDescription;
use triad_plan::device::DeviceProfile;
use triad_plan::graph::Role;
use triad_plan::partition::plans::ModelProduct;
use triad_plan::partition::profile::ProfileCosts;
use triad_plan::partition::solve::{Choice, Restriction, Solver, Timed};
use triad_plan::partition::{Participant, Phase, Piece, ProductShape, products};
use triad_plan::prefill::FloatsOn;
use triad_plan::processors::{ProcessorId, label};

use crate::{arguments, output};

/// What `plan --partition --json` prints.
#[derive(Serialize)]
pub struct Partitions {
    simulated: bool,
    model: String,
    /// The profile of a device, or the processors of this machine.
    device: String,
    restriction: Restriction,
    prompt: usize,
    /// By id, their names.
    processors: Vec<String>,
    /// The one that computes floats.
    float: ProcessorId,
    products: Vec<Product>,
    /// The output matrix in a step of decode, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Choice>,
}

/// A product on some rows, and what was chosen for it.
#[derive(Serialize)]
struct Product {
    role: Role,
    /// Blocks that have it.
    blocks: usize,
    /// Chunks of a prompt with so many rows.
    chunks: usize,
    #[serde(flatten)]
    choice: Choice,
    because: String,
}

/// The partitions of the products of a prompt and of one token of decode.
///
/// # Errors
/// If floats should be on a GPU that the device does not have, or products have to be cut that can't be.
pub fn plan(
    model: String,
    description: &ModelDescription,
    prompt: usize,
    device: &DeviceProfile,
    floats_on: FloatsOn,
    restriction: Restriction,
) -> Result<Partitions> {
    arguments::check_floats(floats_on, device)?;
    let costs = ProfileCosts::new(device);
    let joins = costs.joins(floats_on)?;
    let participants = Participant::of(costs.processors());
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
            Product {
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

/// The partitions of the products of a prompt, as the engine runs it on processors with these `names`: in chunks of
/// `chunk` tokens and a rest, by costs that were measured; and of a step of decode, if that was measured, too.
///
/// # Errors
/// If the costs are of shorter chunks or of another model.
pub fn measured(
    model: String,
    description: &ModelDescription,
    (prompt, chunk): (usize, usize),
    (costs, names): (&ProductCosts, Vec<String>),
    restriction: Restriction,
) -> Result<Partitions> {
    let chunk = chunk.min(prompt);
    let plans = costs.plans(description, chunk, restriction)?;
    let processors: Vec<_> = costs
        .processors
        .iter()
        .map(|processor| processor.name.clone())
        .collect();
    let lengths = [
        (prompt / chunk, chunk),
        (usize::from(prompt % chunk > 0), prompt % chunk),
    ];
    let products = plans.products().iter().flat_map(|plan| {
        let of_length = |(chunks, rows): (usize, usize)| {
            let choice = plan.choice(rows).filter(|_| chunks > 0)?.clone();
            let because = because(&choice, restriction, &processors);
            let ModelProduct { role, blocks, .. } = plan.product;
            Some(Product {
                role,
                blocks,
                chunks,
                choice,
                because,
            })
        };
        lengths
            .into_iter()
            .filter_map(of_length)
            .collect::<Vec<_>>()
    });
    let mut products: Vec<_> = products.collect();
    let decode = costs.decode_plans(description, restriction)?;
    let steps = decode
        .iter()
        .flat_map(|plans| plans.products.products())
        .filter_map(|plan| {
            let choice = plan.choice(1)?.clone();
            let because = because(&choice, restriction, &processors);
            let ModelProduct { role, blocks, .. } = plan.product;
            Some(Product {
                role,
                blocks,
                chunks: 1,
                choice,
                because,
            })
        });
    products.extend(steps);
    let output = decode.as_ref().and_then(|plans| plans.output(1)).cloned();
    let (device, float, simulated) = (names.join(", "), costs.joins.float, false);
    Ok(Partitions {
        simulated,
        model,
        device,
        restriction,
        prompt,
        processors,
        float,
        products,
        output,
    })
}

/// Why a partition was chosen, in a few words.
fn because(choice: &Choice, restriction: Restriction, processors: &[String]) -> String {
    let (best, alone) = (&choice.best, choice.best_alone());
    let of_alone = 100.0 * (best.seconds / alone.seconds - 1.0);
    let on = label(&processors[alone.busy[0].0.index()]);
    if best.partition.strategy.is_whole() {
        match restriction {
            Restriction::Auto if choice.phase == Phase::Decode => {
                let rate = choice.shape.weights() / alone.busy[0].1 / 1e9;
                format!("no cut is faster: the {on} alone reads {rate:.1} GB of weights a second")
            }
            Restriction::Auto => "no cut is faster".into(),
            Restriction::Layer | Restriction::Tensor => "fastest processor".into(),
        }
    } else if of_alone <= 0.0 {
        format!("{:.0} % less than the {on} alone", -of_alone)
    } else {
        format!("cut as asked: {of_alone:.0} % more than the {on} alone")
    }
}

/// Milliseconds with two digits behind the point.
fn milliseconds(seconds: f64) -> String {
    format!("{:.2}", 1e3 * seconds)
}

impl Partitions {
    /// What each processor computes and how long: `NPU 512+32 × 3840 in 3.90 | GPU 600 × 256 in 4.10`.
    fn parts(&self, timed: &Timed) -> String {
        let of_processor = |(processor, seconds): &(ProcessorId, f64)| {
            let here: Vec<_> = timed
                .partition
                .pieces
                .iter()
                .filter(|piece| piece.processor == *processor)
                .collect();
            let lengths: Vec<_> = here.iter().map(|piece| piece.rows.to_string()).collect();
            let columns = here
                .first()
                .map_or(0, |piece: &&Piece| piece.part.columns.len());
            let name = label(&self.processors[processor.index()]);
            format!(
                "{name} {} × {columns} in {}",
                lengths.join("+"),
                milliseconds(*seconds)
            )
        };
        timed
            .busy
            .iter()
            .map(of_processor)
            .collect::<Vec<_>>()
            .join(" | ")
    }

    /// A row of the table.
    fn cells(&self, name: &str, chunks: usize, choice: &Choice, because: &str) -> Vec<String> {
        let strategy = choice.best.partition.strategy.name();
        let rows = match chunks {
            1 => choice.shape.rows().to_string(),
            _ => format!("{chunks} × {}", choice.shape.rows()),
        };
        let labels = [name, &rows, strategy, &self.parts(&choice.best), because].map(str::to_owned);
        let alone = choice.alone.iter().map(|alone| milliseconds(alone.seconds));
        let numbers = [choice.best.join_seconds, choice.best.seconds].map(milliseconds);
        labels.into_iter().chain(numbers).chain(alone).collect()
    }
}

impl std::fmt::Display for Partitions {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Self {
            simulated,
            model,
            device,
            restriction,
            prompt,
            processors,
            float,
            products,
            output,
        } = self;
        let how = if *simulated { "simulated" } else { "measured" };
        let has_decode = products
            .iter()
            .any(|product| product.choice.phase == Phase::Decode);
        let decode = if has_decode { " and one of decode" } else { "" };
        writeln!(
            f,
            "{how}: products of {model} on {device}, {prompt} tokens of prefill{decode}, cut by {}; floats on the {}",
            restriction.name(),
            label(&processors[float.index()])
        )?;
        for (phase, name) in [(Phase::Prefill, "prefill"), (Phase::Decode, "decode")] {
            if !products.iter().any(|product| product.choice.phase == phase) {
                continue;
            }
            let here = || {
                products
                    .iter()
                    .filter(|product| product.choice.phase == phase)
            };
            let sum = |seconds: fn(&Choice) -> f64| {
                let all = here().map(|product| {
                    (product.blocks * product.chunks) as f64 * seconds(&product.choice)
                });
                let output = output
                    .as_ref()
                    .filter(|output| output.phase == phase)
                    .map(seconds);
                milliseconds(all.chain(output).sum())
            };
            let has_output = output.as_ref().is_some_and(|output| output.phase == phase);
            let matrix = if has_output {
                " and the output matrix"
            } else {
                ""
            };
            let (chosen, alone) = (
                sum(|choice| choice.best.seconds),
                sum(|choice| choice.best_alone().seconds),
            );
            writeln!(
                f,
                "{name}: products of all blocks{matrix} take {chosen} ms, each on its fastest processor {alone} ms"
            )?;
        }
        let labels =
            ["product", "rows", "cut", "rows × columns in ms", "because"].map(str::to_owned);
        let alone = processors
            .iter()
            .map(|name| format!("{} alone", label(name)));
        let names: Vec<_> = labels
            .into_iter()
            .chain(["join ms", "ms"].map(str::to_owned))
            .chain(alone)
            .collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let of_product =
            |Product {
                 role,
                 chunks,
                 choice,
                 because,
                 ..
             }: &Product| self.cells(role.name(), *chunks, choice, because);
        let of_output = |choice: &Choice| {
            self.cells(
                "output matrix",
                1,
                choice,
                &because(choice, *restriction, processors),
            )
        };
        let rows: Vec<_> = products
            .iter()
            .map(of_product)
            .chain(output.as_ref().map(of_output))
            .collect();
        write!(f, "\n{}", output::table(&names, 5, &rows))
    }
}
