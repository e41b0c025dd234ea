//! `triad plan --partition`: how the products of a layer are cut across processors of this machine.

use anyhow::Result;
use triad_console::partition::{CutProduct, Partitions, because};
use triad_hetero::ProductCosts;
use triad_model::description::ModelDescription;
use triad_plan::partition::plans::ModelProduct;
use triad_plan::partition::solve::Restriction;

/// Returns the partitions of a prompt's products, as the engine runs it on processors with these `names`: in chunks of
/// `chunk` tokens and a rest, by measured costs. Also returns those of a decode step, if it was measured.
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
            Some(CutProduct {
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
            Some(CutProduct {
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
