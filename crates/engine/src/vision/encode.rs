//! The forward pass of a vision encoder: from pixels to the residual stream, through the [blocks](super::block), to rows.

use triad_kernels::activation::add;
use triad_kernels::rope::Angles;
use triad_kernels::{OutputMut, Phase, matmul};
use triad_model::vision::{Positions, VisionPairs};

use super::activation::activate_all;
use super::block::BlockPass;
use super::cells::Cells;
use super::weights::{Dense, Standard};
use super::{Pixels, VisionModel};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::linear::{Backend, CpuBackend, Observer};

impl VisionModel {
    /// Computes the rows of a view on the installed threads: `[rows, width · (1 + deepstack)]`, each row followed by those
    /// that are added after the first blocks of the text model. Rows are in reading order.
    ///
    /// # Errors
    /// If the encoder cannot read views of this size, the number of pixels is another, or one is not finite; if `cancel` is
    /// set.
    pub fn encode(&self, pixels: Pixels, cancel: &Cancel) -> Result<Vec<f32>> {
        self.encode_with(&mut CpuBackend(&self.weights.blocks), pixels, cancel)
    }

    /// Computes the rows of a view as [`VisionModel::encode`] does, with the linear layers of its blocks on `backend`.
    ///
    /// # Errors
    /// As [`VisionModel::encode`]; if the backend fails.
    pub fn encode_with(
        &self,
        backend: &mut dyn Backend,
        pixels: Pixels,
        cancel: &Cancel,
    ) -> Result<Vec<f32>> {
        self.run(backend, pixels, cancel, None)
    }

    /// Computes the rows of a view as [`VisionModel::encode`] does, and calls `observe` with the inputs of the linear layers
    /// of each block.
    ///
    /// # Errors
    /// As [`VisionModel::encode`].
    pub fn observe(&self, pixels: Pixels, cancel: &Cancel, observe: Observer) -> Result<Vec<f32>> {
        let backend = &mut CpuBackend(&self.weights.blocks);
        self.run(backend, pixels, cancel, Some(observe))
    }

    fn run(
        &self,
        backend: &mut dyn Backend,
        pixels: Pixels,
        cancel: &Cancel,
        observer: Option<Observer>,
    ) -> Result<Vec<f32>> {
        let description = &self.description;
        let [high, wide] = description.cells(pixels.height, pixels.width)?;
        let expected = 3 * pixels.height * pixels.width;
        if pixels.planes.len() != expected {
            return Err(Error::Picture(format!(
                "a view of {} × {} pixels has {} numbers, expected {expected}",
                pixels.width,
                pixels.height,
                pixels.planes.len()
            )));
        }
        if pixels.planes.iter().any(|value| !value.is_finite()) {
            return Err(Error::Picture(
                "a view has pixels that are not finite".into(),
            ));
        }
        let cells = Cells::new(description, [high, wide]);
        let mut x = self.embed(pixels, &cells);
        let patches = cells.count() * description.hidden;
        let stages = 1 + description.deepstack.len();
        let mut rows = vec![0.0; high * wide * stages * description.width];
        let angles = self.angles(&cells);
        let mut pass = BlockPass::new(self, &angles, backend, (observer, cancel));
        let whole = 0..x.len() / description.hidden;
        let windows = cells.windows_of_patches();
        for index in 0..description.blocks {
            cancel.check()?;
            let is_whole = description
                .windows
                .as_ref()
                .is_none_or(|windows| windows.whole[index]);
            let reach = if is_whole {
                std::slice::from_ref(&whole)
            } else {
                &windows[..]
            };
            pass.block(index, reach, &mut x)?;
            let stage = description.deepstack.iter().position(|it| *it == index);
            if let Some(stage) = stage {
                self.project(stage + 1, &x[..patches], &cells, wide, &mut rows);
            }
        }
        if let Some(norm) = &self.weights.output_norm {
            let given = std::mem::take(&mut x);
            x.resize(given.len(), 0.0);
            norm.normalize(&given, &mut x);
        }
        self.project(0, &x[..patches], &cells, wide, &mut rows);
        match rows.iter().all(|value| value.is_finite()) {
            true => Ok(rows),
            false => Err(Error::NotFinite),
        }
    }

    /// Returns the first value of the residual stream `[rows, hidden]`; that of the class token is the last row.
    fn embed(&self, pixels: Pixels, cells: &Cells) -> Vec<f32> {
        let (description, weights) = (&self.description, &self.weights);
        let (side, hidden) = (description.patch, description.hidden);
        let (count, of_patch) = (cells.count(), 3 * side * side);
        let mut cut = vec![0.0; count * of_patch];
        let plane = pixels.height * pixels.width;
        for ([y, x], patch) in cells.patches().zip(cut.chunks_exact_mut(of_patch)) {
            for (row, out) in patch.chunks_exact_mut(side).enumerate() {
                let (channel, row) = (row / side, row % side);
                let first = channel * plane + (y * side + row) * pixels.width + x * side;
                out.copy_from_slice(&pixels.planes[first..first + side]);
            }
        }
        if description.centered {
            cut.iter_mut().for_each(|pixel| *pixel = 2.0 * *pixel - 1.0);
        }
        let mut x = vec![0.0; count * hidden];
        multiply(&weights.patch, &cut, &mut x);
        drop(cut);
        self.add_positions(cells, pixels, &mut x);
        if let Some(class) = &weights.class {
            x.extend_from_slice(class);
        }
        match &weights.input_norm {
            None => x,
            Some(norm) => {
                let mut normed = vec![0.0; x.len()];
                norm.normalize(&x, &mut normed);
                normed
            }
        }
    }

    fn add_positions(&self, cells: &Cells, pixels: Pixels, x: &mut [f32]) {
        let (table, hidden) = (&self.weights.positions[..], self.description.hidden);
        let row = |y: usize, x: usize, side: usize| &table[(y * side + x) * hidden..][..hidden];
        let grid = [pixels.height, pixels.width].map(|size| size / self.description.patch);
        let rows = cells.patches().zip(x.chunks_exact_mut(hidden));
        match self.description.positions {
            Positions::None => {}
            Positions::Fixed { side } => rows.for_each(|([y, x], out)| add(out, row(y, x, side))),
            Positions::Nearest { side } => {
                let [down, across] = grid.map(|size| nearest(size, side));
                rows.for_each(|([y, x], out)| add(out, row(down[y], across[x], side)));
            }
            Positions::Axes { side } => rows.for_each(|([y, x], out)| {
                add(out, row(0, x, side));
                add(out, row(1, y, side));
            }),
            Positions::Bilinear { side } | Positions::Resized { side } => {
                let is_resized = matches!(self.description.positions, Positions::Resized { .. });
                let [down, across] = grid.map(|size| {
                    if is_resized {
                        resized(size, side)
                    } else {
                        between(size, side)
                    }
                });
                rows.for_each(|([y, x], out)| {
                    for (y, of_y) in &down[y] {
                        for (x, of_x) in &across[x] {
                            let row = row(*y, *x, side).iter();
                            let factor = of_y * of_x;
                            out.iter_mut()
                                .zip(row)
                                .for_each(|(out, x)| *out += factor * x);
                        }
                    }
                });
            }
        }
    }

    /// Returns the angles of all rows, if the encoder has RoPE.
    fn angles(&self, cells: &Cells) -> Option<Angles> {
        let base = f64::from(self.description.rope_base?);
        let quarter = self.description.head_dim() / 4;
        let frequency = |pair: usize| base.powf(-(pair as f64) / quarter as f64) as f32;
        let frequencies: Vec<f32> = (0..2 * quarter).map(|it| frequency(it % quarter)).collect();
        let axes: Vec<u8> = (0..2 * quarter)
            .map(|pair| u8::from(pair >= quarter))
            .collect();
        let mut angles = Angles::default();
        let pairs = self.description.rope_pairs;
        let positions = cells.patches().map(|[y, x]| match pairs {
            VisionPairs::RowThenColumn => [y, x, 0],
            VisionPairs::ColumnHalfThenRowHalf => [x, y, 0],
        });
        angles.fill_by_axis(positions, &frequencies, &axes, 1.0);
        Some(angles)
    }

    /// Writes the rows of one projector for the patches `x[patches, hidden]` to their columns of `out`.
    fn project(&self, stage: usize, x: &[f32], cells: &Cells, wide: usize, out: &mut [f32]) {
        let (description, projector) =
            (&self.description.projector, &self.weights.projectors[stage]);
        let (hidden, width) = (self.description.hidden, self.description.width);
        let described = self.description.projector_norm(stage);
        let after_merge = described.is_some_and(|norm| norm.after_merge);
        let of_cell = description.merge * description.merge;
        let normed = |x: &[f32]| match &projector.norm {
            None => x.to_vec(),
            Some(norm) => {
                let mut normed = vec![0.0; x.len()];
                norm.normalize(x, &mut normed);
                normed
            }
        };
        let mut merged = if after_merge { x.to_vec() } else { normed(x) };
        if description.mean {
            let factor = description.factor.unwrap_or(1.0) / of_cell as f32;
            let mut means = vec![0.0; merged.len() / of_cell];
            let cells = merged.chunks_exact(of_cell * hidden);
            for (mean, cell) in means.chunks_exact_mut(hidden).zip(cells) {
                cell.chunks_exact(hidden).for_each(|patch| add(mean, patch));
                mean.iter_mut().for_each(|value| *value *= factor);
                if let Some(Standard { offset, factor }) = &projector.standard {
                    for ((value, offset), factor) in mean.iter_mut().zip(offset).zip(factor) {
                        *value = (*value - offset) * factor;
                    }
                }
            }
            merged = means;
        }
        // The patches of a cell are next to each other: joined, they are a row.
        if after_merge {
            merged = normed(&merged);
        }
        if let Some(first) = &projector.first {
            let mut inner = vec![0.0; cells.cells.len() * first.weight.out_features()];
            multiply(first, &merged, &mut inner);
            activate_all(&mut inner, description.activation);
            merged = inner;
        }
        let mut rows = vec![0.0; cells.cells.len() * width];
        multiply(&projector.last, &merged, &mut rows);
        let stages = self.weights.projectors.len();
        for ([y, x], row) in cells.cells.iter().zip(rows.chunks_exact(width)) {
            let first = ((y * wide + x) * stages + stage) * width;
            out[first..first + width].copy_from_slice(row);
        }
    }
}

fn multiply(layer: &Dense, x: &[f32], out: &mut [f32]) {
    let out = OutputMut::new(out, layer.weight.out_features());
    let bias = layer.bias.as_deref();
    matmul(x, layer.weight.view(), bias, Phase::Prefill, out);
}

/// Returns for each of `size` patches the row of a table with `side`, as `transformers` computes it in f32: the number of
/// boundaries at multiples of 1 / side that are not above the patch's relative place.
fn nearest(size: usize, side: usize) -> Vec<usize> {
    let step = 1.0 / side as f64;
    let boundaries = ((1.0 - step) / step).ceil() as usize;
    let boundaries: Vec<f32> = (0..boundaries)
        .map(|index| (step + index as f64 * step) as f32)
        .collect();
    let place = |patch: usize| (patch as f32 * (1.0 / size as f32)).min((1.0 - 1e-6) as f32);
    let below = |place: f32| boundaries.partition_point(|boundary| *boundary <= place);
    (0..size)
        .map(|patch| below(place(patch)).min(side - 1))
        .collect()
}

/// Returns for each of `size` patches the two rows of a table with `side` that it is between, and their factors. The first
/// and the last patch are at the first and the last row.
fn between(size: usize, side: usize) -> Vec<Vec<(usize, f32)>> {
    (0..size)
        .map(|patch| {
            let place = patch as f32 * (side - 1) as f32 / size.saturating_sub(1).max(1) as f32;
            let low = (place as usize).min(side - 1);
            let factor = place - low as f32;
            let high = (low + 1).min(side - 1);
            vec![(low, 1.0 - factor), (high, factor)]
        })
        .collect()
}

/// Returns for each of `size` patches the rows of a table with `side` that it is made of when the table is resized, and
/// their factors: a triangle around the patch's place, as wide as two rows or, if the table has more, two patches.
fn resized(size: usize, side: usize) -> Vec<Vec<(usize, f32)>> {
    let scale = side as f64 / size as f64;
    let support = scale.max(1.0);
    (0..size)
        .map(|patch| {
            let center = scale * (patch as f64 + 0.5);
            let first = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(side);
            let factor = |row: usize| {
                let distance = (row as f64 - center + 0.5).abs() / support;
                (1.0 - distance).max(0.0)
            };
            let total: f64 = (first..end).map(factor).sum();
            (first..end)
                .map(|row| (row, (factor(row) / total) as f32))
                .collect()
        })
        .collect()
}
