//! Prepares the programs of subgraphs and of their parts on devices.

use triad_engine::Model;
use triad_engine::linear::{columns_of, layers};
use triad_kernels::int8::Int8Weight;
use triad_plan::graph::{Graph, Role, Subgraph, Task};
use triad_plan::joint::PromptPlanner;
use triad_plan::processors::Processors;
use triad_plan::schedule::parts::{Cut, Part, Piece};
use triad_plan::tasks::{PrefillTask, TaskOptions};
use triad_processors::Device;

use crate::error::{Error, Result};
use crate::fixed_point::FixedBlocks;
use crate::preparing::has_no_room;
use crate::programs::{ProgramSpec, Programs};

/// The devices of an engine, by processor.
pub(super) type Devices<'a> = [Option<&'a dyn Device>];

/// Prepares a subgraph on the devices that run it. If a device has no room for it, places it on another processor.
pub(super) fn prepare_one(
    (model, fixed): (&Model, Option<&FixedBlocks>),
    processors: &Processors,
    devices: &Devices,
    graph: &Graph,
    (options, joint): (&mut TaskOptions, Option<&PromptPlanner>),
    subgraph: usize,
    programs: &mut [Option<Programs>],
) -> Result<()> {
    let Subgraph {
        block,
        role,
        output_columns,
        ..
    } = graph.subgraphs()[subgraph];
    let chunk = graph.chunk_length();
    let whole = whole(graph, subgraph).part;
    let pieces = match (joint.filter(|_| role.is_product()), options.cut(subgraph)) {
        (Some(joint), _) => joint.pieces(block, role, chunk)?,
        (None, Some(cut)) => cut.pieces(chunk, output_columns)?,
        (None, None) => {
            let processor = options.placement.places()[subgraph].processor;
            vec![Piece {
                processor,
                part: whole,
                rows: chunk,
            }]
        }
    };
    for Piece { part, .. } in &pieces {
        check_columns(model, block, role, part)?;
    }
    for Piece {
        processor: home,
        part,
        rows,
    } in distinct(pieces, devices)
    {
        let (Some(device), Some(programs)) = (devices[home.index()], &mut programs[home.index()])
        else {
            continue;
        };
        if !role.is_product() && role != Role::FeedForward {
            continue;
        }
        let fixed_point = fixed.is_some_and(|fixed| fixed.has(block));
        match programs.prepare(
            model,
            device,
            &ProgramSpec {
                block,
                role,
                part: &part,
                rows,
                fixed_point,
            },
        ) {
            Err(Error::Subgraph { source, .. })
                if joint.is_none() && options.cut(subgraph).is_none() && has_no_room(&source) =>
            {
                options.placement.move_off(graph, processors, subgraph)?;
            }
            prepared => prepared?,
        }
    }
    Ok(())
}

/// Prepares a cut subgraph on the devices that run its parts.
///
/// # Errors
/// If a part begins within a block of packed weights, or a device refuses it.
pub(super) fn prepare_cut(
    model: &Model,
    devices: &Devices,
    graph: &Graph,
    subgraph: usize,
    cut: &Cut,
    programs: &mut [Option<Programs>],
) -> Result<()> {
    let Subgraph {
        block,
        role,
        output_columns,
        ..
    } = graph.subgraphs()[subgraph];
    let pieces = cut.pieces(graph.chunk_length(), output_columns)?;
    for Piece { part, .. } in &pieces {
        check_columns(model, block, role, part)?;
    }
    for Piece {
        processor: home,
        part,
        rows,
    } in distinct(pieces, devices)
    {
        if let (Some(device), Some(programs)) = (devices[home.index()], &mut programs[home.index()])
        {
            programs.prepare(
                model,
                device,
                &ProgramSpec {
                    block,
                    role,
                    part: &part,
                    rows,
                    fixed_point: false,
                },
            )?;
        }
    }
    Ok(())
}

/// Returns the pieces that need a separate program, for each range of columns: with static shapes, one for each number
/// of rows; with dynamic shapes, the one with the most rows.
pub(super) fn distinct(pieces: Vec<Piece>, devices: &Devices) -> Vec<Piece> {
    let mut distinct: Vec<Piece> = Vec::new();
    for piece in pieces {
        let is_static = devices[piece.processor.index()]
            .is_some_and(|device| device.capabilities().static_shapes);
        let known = distinct.iter_mut().find(|known| {
            known.processor == piece.processor
                && known.part.columns == piece.part.columns
                && (!is_static || known.rows == piece.rows)
        });
        match known {
            Some(known) => known.rows = known.rows.max(piece.rows),
            None => distinct.push(piece),
        }
    }
    distinct
}

/// Checks that INT8 weights can be cut where a part begins.
fn check_columns(model: &Model, block: usize, role: Role, part: &Part) -> Result<()> {
    const MULTIPLE: usize = Int8Weight::COLUMNS;
    if !model.weights().is_int8() || !role.is_product() {
        return Ok(());
    }
    let description = model.description();
    let layers = layers(&description.blocks[block], description.hidden, role);
    let columns = columns_of(&layers, &part.columns);
    match columns
        .iter()
        .find(|(_, columns)| !columns.start.is_multiple_of(MULTIPLE))
    {
        None => Ok(()),
        Some((linear, columns)) => Err(Error::PartStart {
            role: role.name(),
            linear: *linear,
            start: columns.start,
            multiple: MULTIPLE,
        }),
    }
}

/// Returns a subgraph on a whole chunk, as a task.
pub(super) fn whole(graph: &Graph, subgraph: usize) -> PrefillTask {
    PrefillTask::whole(
        graph,
        Task {
            chunk: 0,
            subgraph,
            part: 0,
        },
    )
}
