//! An ONNX Runtime session that runs one subgraph.

use std::time::Instant;

use ort::session::Session;
use ort::value::{Shape, TensorRef};
use triad_kernels::OutputMut;
use triad_kernels::int8::{QuantizedRows, QuantizedView};

use super::graph::{INPUT, ZERO, output};
use crate::device::{Program, ProgramShapes};
use crate::error::{Error, Result};
use crate::window::Reservation;

/// Exclusive-or mask that converts the input's bytes to the graph's zero point.
const FLIP: u8 = QuantizedRows::ZERO ^ ZERO;

pub(super) struct NpuProgram {
    pub processor: String,
    pub shapes: ProgramShapes,
    pub session: Session,
    /// Names of the graph's outputs.
    outputs: Vec<String>,
    /// Shape of the graph's input, `[rows.., in_features]`: the fastest one that was tried.
    shape: Shape,
    /// Buffer `[rows, in_features]` for inputs whose layout is not the graph's.
    input: Vec<u8>,
    _window: Reservation,
}

impl NpuProgram {
    pub fn new(
        processor: &str,
        shapes: ProgramShapes,
        session: Session,
        window: Reservation,
    ) -> Self {
        Self {
            processor: processor.to_owned(),
            outputs: (0..shapes.outputs.len()).map(output).collect(),
            input: vec![ZERO; shapes.rows * shapes.in_features],
            shape: input_shape(&session),
            shapes,
            session,
            _window: window,
        }
    }
}

/// Returns the shape of the input of a session's graph.
fn input_shape(session: &Session) -> Shape {
    let input = session.inputs().iter().find(|input| input.name() == INPUT);
    input
        .and_then(|input| input.dtype().tensor_shape())
        .cloned()
        .unwrap_or_default()
}

/// Returns the seconds of a run of `session` on zeros: the minimum of several, after a warm-up run.
pub(super) fn seconds(session: &mut Session) -> ort::Result<f64> {
    const RUNS: usize = 5;
    let shape = input_shape(session);
    let zeros = vec![ZERO; shape.num_elements()];
    let mut run = || {
        let x = TensorRef::from_array_view((shape.clone(), &zeros[..]))?;
        let start = Instant::now();
        session.run(ort::inputs![INPUT => x])?;
        Ok::<_, ort::Error>(start.elapsed().as_secs_f64())
    };
    run()?;
    (0..RUNS).try_fold(f64::INFINITY, |least, _| Ok(least.min(run()?)))
}

impl Program for NpuProgram {
    fn run(&mut self, input: QuantizedView, outputs: &mut [OutputMut]) -> Result<()> {
        self.shapes.check(input, outputs)?;
        let Self {
            processor,
            shapes,
            session,
            outputs: names,
            shape,
            input: padded,
            ..
        } = self;
        let failed = |error: ort::Error| Error::Run {
            processor: processor.clone(),
            reason: error.to_string(),
        };
        let (rows, in_features) = (input.rows(), shapes.in_features);
        let is_in_place = FLIP == 0 && input.stride() == in_features && rows == shapes.rows;
        let bytes = if is_in_place {
            &input.bytes()[..rows * in_features]
        } else {
            let lines = input.bytes().chunks_exact(input.stride());
            for (padded, line) in padded.chunks_exact_mut(in_features).zip(lines) {
                padded
                    .iter_mut()
                    .zip(line)
                    .for_each(|(padded, byte)| *padded = byte ^ FLIP);
            }
            padded[rows * in_features..].fill(ZERO);
            &padded[..]
        };
        let x = TensorRef::from_array_view((shape.clone(), bytes)).map_err(failed)?;
        let values = session.run(ort::inputs![INPUT => x]).map_err(failed)?;
        for (name, out) in names.iter().zip(&mut *outputs) {
            let (_, value) = values[name.as_str()]
                .try_extract_tensor::<f32>()
                .map_err(failed)?;
            let (length, features) = (rows * out.columns(), out.columns());
            let value = value.get(..length).ok_or_else(|| Error::Run {
                processor: processor.clone(),
                reason: format!(
                    "output {name} has {} numbers, expected {length} at least",
                    value.len()
                ),
            })?;
            out.copy_from_rows(value, features);
        }
        for (row, scale) in input
            .scales()
            .iter()
            .enumerate()
            .filter(|(_, scale)| scale.is_nan())
        {
            outputs
                .iter_mut()
                .for_each(|out| out.row_mut(row).fill(*scale));
        }
        Ok(())
    }
}
