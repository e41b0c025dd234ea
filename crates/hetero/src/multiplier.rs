//! A device that multiplies for one that runs the whole model: Hetero-layer and Hetero-tensor of HeteroLLM (§4.1).

use std::time::Duration;

use triad_engine::Model;
use triad_engine::linear::{Layers, layers};
use triad_plan::graph::Role;
use triad_plan::partition::plans::Plans;
use triad_plan::partition::{Part, Piece, ROW_MULTIPLE};
use triad_plan::processors::ProcessorId;
use triad_plan::schedule::parts::Cut;
use triad_processors::{
    ColumnsProgram, Device, Division, LayerFormat, Multiplier, ProductPart, ProductPrograms,
    ProductWait,
};

use crate::error::{Error, Result, SubgraphError};
use crate::preparing::{Preparing, has_no_room, refused};
use crate::programs_of_parts::distinct;
use crate::wait::Wait;

/// The device that runs the model, in cuts.
pub(crate) const DEVICE: ProcessorId = ProcessorId::new(0);
/// The device that multiplies for it.
pub(crate) const MULTIPLIER: ProcessorId = ProcessorId::new(1);

/// The products of a block, in the order in which the device computes them.
pub(crate) const PRODUCTS: [Role; 4] = [
    Role::QueryKeyValue,
    Role::AttentionOutput,
    Role::GateUp,
    Role::Down,
];

/// How products are divided between the two devices.
#[derive(Clone, Copy)]
pub(crate) struct Divisions<'a> {
    pub cuts: &'a [(Role, Cut)],
    pub plans: Option<&'a Plans>,
}

/// Has `device` prepare the products of prompts of up to `rows` rows, for another device that runs the model: all their
/// outputs, or the parts of a cut whose second processor it is. Returns them with the number of products that it has no
/// room for. `progress` is called with the number of prepared products and the number of all.
///
/// # Errors
/// If a layer does not read INT8 with a static scale, there is no plan for a product, a part begins within a block of
/// packed weights, or the device refuses a product.
pub(crate) fn prepare(
    model: &Model,
    device: &dyn Device,
    (rows, divisions): (usize, Divisions),
    (wait, time_out): (Wait, Duration),
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(Multiplier, usize)> {
    let description = model.description();
    let (mut products, mut without_room) = (Vec::new(), 0);
    let all = description.blocks.len() * PRODUCTS.len();
    let mut done = 0;
    for block in 0..description.blocks.len() {
        for role in PRODUCTS {
            let preparing = Preparing::text_block(model, block);
            let layers = ordered_layers(model, block, role);
            let columns: usize = layers.iter().map(|(_, features)| features).sum();
            let cut = divisions.cut(model, (block, role), columns)?;
            let pieces = match &cut {
                Some(cut) => cut.pieces(rows, columns)?,
                None => vec![whole(rows, columns)],
            };
            let pieces = pieces
                .into_iter()
                .filter(|piece| piece.processor == MULTIPLIER);
            let pieces = distinct(pieces.collect(), &[None, Some(device)]);
            let prepare = |piece: &Piece| -> Result<_, SubgraphError> {
                if preparing.reads_floats() {
                    let (_, linear) = preparing.floats(&layers, &(0..columns));
                    let format = linear.formats().next().unwrap_or(LayerFormat::Float);
                    return Err(device.capabilities().refuse(device.name(), format).into());
                }
                let Piece {
                    part: Part { columns, .. },
                    rows,
                    ..
                } = piece;
                let (_, subgraph) = preparing.columns_of(&layers, columns)?;
                let program = device.prepare(&subgraph, *rows)?;
                Ok(ColumnsProgram {
                    columns: columns.clone(),
                    rows: *rows,
                    program,
                })
            };
            let programs: Result<Vec<_>, _> = pieces.iter().map(prepare).collect();
            match programs {
                Err(error) if has_no_room(&error) => without_room += 1,
                Err(error) => return Err(refused(device.name(), block, role, error)),
                Ok(programs) => products.push(ProductPrograms {
                    block,
                    layers: layers.iter().map(|(linear, _)| *linear).collect(),
                    division: division(cut, columns, rows, &programs),
                    programs,
                }),
            }
            done += 1;
            progress(done, all);
        }
    }
    let multiplier = Multiplier {
        name: device.name().to_owned(),
        time_out,
        wait: match wait {
            Wait::Blocking => ProductWait::Blocking,
            Wait::Predicted => ProductWait::Flag,
        },
        products,
    };
    Ok((multiplier, without_room))
}

/// Returns the layers of a role in the order in which a device that runs the model concatenates them.
pub(crate) fn ordered_layers(model: &Model, block: usize, role: Role) -> Layers {
    let description = model.description();
    let mut layers = layers(&description.blocks[block], description.hidden, role);
    if role == Role::GateUp {
        layers.reverse();
    }
    layers
}

fn whole(rows: usize, columns: usize) -> Piece {
    let part = Part {
        rows: 0..rows,
        columns: 0..columns,
    };
    Piece {
        processor: MULTIPLIER,
        part,
        rows,
    }
}

/// Returns the parts of up to `most_rows` rows by a cut. Parts and rows that nothing was prepared for are left to the
/// device: a small share of the longest chunk may be none, and one tile of a shorter chunk.
fn division(
    cut: Option<Cut>,
    columns: usize,
    most_rows: usize,
    programs: &[ColumnsProgram],
) -> Division {
    let prepared: Vec<_> = programs
        .iter()
        .map(|program| (program.columns.clone(), program.rows))
        .collect();
    Box::new(move |rows| {
        let part = |(processor, Part { rows, columns }): (ProcessorId, Part)| {
            let mut prepared = prepared.iter();
            let is_prepared = prepared.any(|(of, most)| *of == columns && rows.len() <= *most);
            ProductPart {
                by_other: processor == MULTIPLIER && is_prepared,
                rows,
                columns,
            }
        };
        let all = |by_other| {
            vec![ProductPart {
                rows: 0..rows,
                columns: 0..columns,
                by_other,
            }]
        };
        let parts = match &cut {
            _ if rows > most_rows => return all(false),
            None => return all(true),
            Some(cut) => cut.parts(rows, columns),
        };
        parts.map_or_else(
            |_| all(false),
            |parts| parts.into_iter().map(part).collect(),
        )
    })
}

impl Divisions<'_> {
    /// Returns the cut of a product, if it has one.
    ///
    /// # Errors
    /// If there are plans, but none for it.
    fn cut(
        &self,
        model: &Model,
        (block, role): (usize, Role),
        columns: usize,
    ) -> Result<Option<Cut>> {
        let Some(plans) = self.plans else {
            let cut = self.cuts.iter().find(|(other, _)| *other == role);
            // The GPU's buffers begin at multiples of rows.
            return Ok(cut.map(|(_, cut)| cut.with_row_multiple(ROW_MULTIPLE)));
        };
        let depth = depth(model, block, role);
        match plans.product(role, columns, depth) {
            Some(plan) => Ok(Some(plan.cut().clone())),
            None => Err(Error::Unplanned {
                role: role.name(),
                columns,
                depth,
            }),
        }
    }
}

/// Returns the input features of a product.
fn depth(model: &Model, block: usize, role: Role) -> usize {
    let description = model.description();
    let block = &description.blocks[block];
    let shapes = block.linears(description.hidden);
    let mut of_role = shapes.iter().filter(|shape| role.has(shape.linear));
    of_role.next().map_or(0, |shape| shape.in_features)
}
