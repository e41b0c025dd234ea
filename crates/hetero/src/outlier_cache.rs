//! Weights with devices that have memory of their own: which rows the CPU keeps for shadows, and what it releases.

use std::sync::Arc;

use triad_model::description::Linear;
use triad_processors::Device;

use super::programs::Programs;
use triad_engine::LinearInput;
use triad_engine::Model;
use triad_engine::outlier_cache::{ChannelRows, Hot, OutlierCacheOptions, OutlierWeightCache};
use triad_engine::package::Package;
use triad_engine::weights::{Int8Matrix, Weight};

/// Releases the pages of mapped weights that devices with memory of their own have copied, and starts the rows that
/// shadows read instead. `None` if there is no such device or shadow, or weights are read in place.
pub(super) fn start(
    model: &Model,
    options: Option<&OutlierCacheOptions>,
    devices: &[Option<&dyn Device>],
    programs: &[Option<Programs>],
) -> Option<OutlierWeightCache> {
    let apart = devices
        .iter()
        .zip(programs)
        .filter_map(|(device, programs)| {
            let programs = programs.as_ref()?;
            device
                .is_some_and(|device| device.capabilities().own_memory)
                .then_some(programs)
        });
    let apart: Vec<_> = apart.collect();
    let blocks = model.weights().blocks.iter().enumerate();
    let copied = blocks.map(|(index, block)| {
        let linears = apart.iter().flat_map(|programs| programs.linears(index));
        let matrix = |linear| match &block.linears.get(&linear)?.weight {
            Weight::Int8(matrix) => Some((linear, matrix)),
            Weight::Float(_) => None,
        };
        linears.filter_map(matrix).collect::<Vec<_>>()
    });
    let copied: Vec<_> = copied.collect();
    let rows = options.and_then(|options| rows(model, options, &copied));
    // Last, since making the rows reads weights, too.
    copied
        .iter()
        .flatten()
        .for_each(|(_, matrix)| matrix.release());
    rows
}

/// Starts the rows of the shadows whose weights devices have `copied`, by block, if there are any.
fn rows(
    model: &Model,
    options: &OutlierCacheOptions,
    copied: &[Vec<(Linear, &Int8Matrix)>],
) -> Option<OutlierWeightCache> {
    let weights = model.weights();
    let is_apart = |block: usize, input: LinearInput| {
        copied[block]
            .iter()
            .any(|(linear, _)| LinearInput::read_by(*linear) == input)
    };
    let has_shadow = |block: usize, input: LinearInput| {
        weights.blocks[block]
            .inputs
            .as_ref()
            .is_some_and(|inputs| inputs[input.index()].has_shadow())
    };
    let reads_rows =
        |block: usize, input: LinearInput| is_apart(block, input) && has_shadow(block, input);
    let OutlierCacheOptions { hot, file } = options;
    let file = file
        .clone()
        .or_else(|| model.package().map(Package::shadow_rows))?;
    if !(0..copied.len()).any(|block| {
        LinearInput::DENSE
            .into_iter()
            .any(|input| reads_rows(block, input))
    }) {
        return None;
    }
    let hot = |block: usize, input: LinearInput| {
        let listed = match hot {
            Hot::Calibrated => model.hot_channels(),
            Hot::None => None,
            Hot::Listed(listed) => Some(listed),
        };
        let listed = listed
            .and_then(|listed| listed.get(block))
            .map(|of_block| of_block[input.index()].clone());
        reads_rows(block, input).then(|| listed.unwrap_or_default())
    };
    let started = model.install(|| {
        let open = || {
            ChannelRows::open(
                &file,
                (model.description(), weights),
                &model.weights_name(),
                &has_shadow,
            )
        };
        let start = |rows| OutlierWeightCache::start(Arc::new(rows), copied.len(), &hot);
        // A damaged file is made again, once.
        open().and_then(start).or_else(|_| {
            let _ = std::fs::remove_file(&file);
            open().and_then(start)
        })
    });
    Some(
        started.unwrap_or_else(|error| {
            OutlierWeightCache::failed(format!("{}: {error}", file.display()))
        }),
    )
}
