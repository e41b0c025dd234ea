//! An ONNX Runtime session that runs one subgraph.

use std::sync::Arc;
use std::time::Instant;

use ort::session::Session;
use ort::value::{Shape, TensorElementType, TensorRef, ValueRef};
use triad_kernels::OutputMut;
use triad_kernels::int8::{QuantizedRows, QuantizedView};

use super::graph::{INPUT, ZERO, output};
use super::sums::{Epilogue, MIDDLE};
use crate::device::{Program, ProgramShapes};
use crate::error::{Error, Result};
use crate::window::Reservation;

/// Exclusive-or mask that converts the input's bytes to the graph's zero point.
const FLIP: u8 = QuantizedRows::ZERO ^ ZERO;

pub(super) struct NpuProgram {
    pub processor: String,
    pub shapes: ProgramShapes,
    pub session: Session,
    /// Keeps the context of the session's graph, if it shares one. Fields are dropped in their order: the session first.
    _context: Option<Arc<Session>>,
    /// Name of the graph's input.
    input_name: String,
    /// Names of the graph's outputs.
    outputs: Vec<String>,
    /// The last step of each output, if the graph's outputs are rounded sums.
    epilogues: Option<Vec<Epilogue>>,
    /// Shape of the graph's input, `[rows.., in_features]`: the fastest one that was tried.
    shape: Shape,
    /// Buffer `[rows, in_features]` for inputs whose layout or type is not the graph's.
    input: Input,
    _window: Reservation,
}

impl NpuProgram {
    pub fn new(
        processor: &str,
        shapes: ProgramShapes,
        epilogues: Option<Vec<Epilogue>>,
        session: Graph,
        window: Reservation,
    ) -> Self {
        let Graph {
            session,
            context,
            prefix,
        } = session;
        let output = |index| prefix.clone() + &output(index);
        Self {
            epilogues,
            processor: processor.to_owned(),
            _context: context,
            input_name: prefix.clone() + INPUT,
            outputs: (0..shapes.outputs.len()).map(output).collect(),
            input: Input::zeros(&session, shapes.rows * shapes.in_features),
            shape: input_shape(&session),
            shapes,
            session,
            _window: window,
        }
    }
}

/// The session of a graph.
pub(super) struct Graph {
    pub session: Session,
    /// Keeps the context of the graph, if the session shares one. It must outlive the session.
    pub context: Option<Arc<Session>>,
    /// The beginning of the names of the input and outputs.
    pub prefix: String,
}

impl From<Session> for Graph {
    /// Returns the graph of a session with a context of its own.
    fn from(session: Session) -> Self {
        Self {
            session,
            context: None,
            prefix: String::new(),
        }
    }
}

/// A program of a graph that was compiled ahead of time for another machine.
pub(super) struct CompiledAhead {
    pub processor: String,
    pub _window: Reservation,
}

impl Program for CompiledAhead {
    fn run(&mut self, _: QuantizedView, _: &mut [OutputMut]) -> Result<()> {
        Err(Error::Run {
            processor: self.processor.clone(),
            reason: "its graphs are compiled ahead of time, and not run".to_owned(),
        })
    }
}

/// Numbers in the type of a graph's input.
enum Input {
    Bytes(Vec<u8>),
    /// Numbers in 16 bits, of which the lower 8 are zero.
    Words(Vec<u16>),
}

impl Input {
    /// Returns zeros for the input of a session's graph.
    fn zeros(session: &Session, length: usize) -> Self {
        match session
            .inputs()
            .first()
            .and_then(|input| input.dtype().tensor_type())
        {
            Some(TensorElementType::Uint16) => Self::Words(vec![MIDDLE; length]),
            _ => Self::Bytes(vec![ZERO; length]),
        }
    }

    /// Replaces the numbers by those of `input`, followed by zeros.
    fn fill(&mut self, input: QuantizedView, in_features: usize) {
        fn fill<T: Copy>(
            padded: &mut [T],
            (input, in_features): (QuantizedView, usize),
            zero: T,
            number: impl Fn(u8) -> T,
        ) {
            let lines = input.bytes().chunks_exact(input.stride());
            for (padded, line) in padded.chunks_exact_mut(in_features).zip(lines) {
                let numbers = padded.iter_mut().zip(line);
                numbers.for_each(|(padded, byte)| *padded = number(*byte));
            }
            padded[input.rows() * in_features..].fill(zero);
        }
        let input = (input, in_features);
        match self {
            Self::Bytes(bytes) => fill(bytes, input, ZERO, |byte| byte ^ FLIP),
            Self::Words(words) => {
                fill(words, input, MIDDLE, |byte| u16::from(byte ^ FLIP) << 8);
            }
        }
    }

    fn tensor(&self, shape: &Shape) -> ort::Result<ValueRef<'_>> {
        let shape = shape.clone();
        match self {
            Self::Bytes(bytes) => {
                TensorRef::from_array_view((shape, &bytes[..])).map(TensorRef::into_dyn)
            }
            Self::Words(words) => {
                TensorRef::from_array_view((shape, &words[..])).map(TensorRef::into_dyn)
            }
        }
    }
}

/// Returns the shape of the input of a session's graph.
fn input_shape(session: &Session) -> Shape {
    let input = session.inputs().first();
    input
        .and_then(|input| input.dtype().tensor_shape())
        .cloned()
        .unwrap_or_default()
}

/// Returns the seconds of a run of `session` on zeros: the minimum of several, after a warm-up run.
pub(super) fn seconds(session: &mut Session) -> ort::Result<f64> {
    const RUNS: usize = 5;
    let shape = input_shape(session);
    let zeros = Input::zeros(session, shape.num_elements());
    let mut run = || {
        let x = zeros.tensor(&shape)?;
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
            input_name,
            outputs: names,
            epilogues,
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
        let x = match padded {
            Input::Bytes(_) if is_in_place => {
                let bytes = &input.bytes()[..rows * in_features];
                TensorRef::from_array_view((shape.clone(), bytes)).map(TensorRef::into_dyn)
            }
            padded => {
                padded.fill(input, in_features);
                padded.tensor(shape)
            }
        };
        let x = x.map_err(failed)?;
        let values = session
            .run(ort::inputs![input_name.as_str() => x])
            .map_err(failed)?;
        for (index, (name, out)) in names.iter().zip(&mut *outputs).enumerate() {
            let value = &values[name.as_str()];
            let (length, features) = (rows * out.columns(), out.columns());
            let short = |found: usize| Error::Run {
                processor: processor.clone(),
                reason: format!("output {name} has {found} numbers, expected {length} at least"),
            };
            if let Some(epilogues) = epilogues {
                let (_, sums) = value.try_extract_tensor::<u16>().map_err(failed)?;
                let sums = sums.get(..length).ok_or_else(|| short(sums.len()))?;
                for (row, sums) in sums.chunks_exact(features).enumerate() {
                    epilogues[index].apply(sums, out.row_mut(row));
                }
            } else {
                let (_, floats) = value.try_extract_tensor::<f32>().map_err(failed)?;
                let floats = floats.get(..length).ok_or_else(|| short(floats.len()))?;
                out.copy_from_rows(floats, features);
            }
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
