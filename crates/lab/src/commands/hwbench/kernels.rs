//! Measures every kernel on the shapes of a model.

use std::collections::BTreeSet;

use half::f16;
use serde::Serialize;
use triad_kernels::activation::{Activation, activate_and_multiply, add};
use triad_kernels::attention::{Precision, Row, Shape};
use triad_kernels::int8::{QuantizedRows, matmul_int8};
use triad_kernels::norm::rms_norm;
use triad_kernels::timing::{self, seconds_of, turns};
use triad_kernels::{
    BlockArithmetic, Blocks, Matrix, OutputMut, Phase, int4, kernel_names, matmul,
};
use triad_model::description::{BlockDescription, ModelDescription};

use super::data::{PackedInt8, block_formats, blocks, bytes, halves, numbers, paged, slab};
use super::peaks::Peaks;

/// Arithmetic of block matmuls, unless exact results are requested.
const ROUNDED: BlockArithmetic = BlockArithmetic::Rounded;
/// Minimum duration and minimum number of runs per kernel.
const SECONDS: f64 = 0.15;
const RUNS: usize = 5;
/// Bytes of weights and caches that decode kernels use in turns: more than caches hold.
const DECODE_BYTES: usize = 192 << 20;
/// Positions that the attention of one row reads.
const DECODE_CONTEXT: usize = 1024;

/// One kernel on one shape.
#[derive(Serialize)]
pub struct Measured {
    operator: String,
    kernel: &'static str,
    /// `rows × in × out` for a linear layer; `rows × heads × head dim, positions` for attention; `rows × width`
    /// otherwise.
    shape: String,
    threads: usize,
    /// Median seconds.
    seconds: f64,
    bound_by: String,
    /// Minimum time that the bound permits, divided by the median; `None` if the bound is unknown.
    share_of_limit: Option<f64>,
}

impl Measured {
    /// Returns a row of the table.
    pub fn cells(&self) -> Vec<String> {
        let share = self
            .share_of_limit
            .map_or("-".into(), |share| format!("{:.0} %", 100.0 * share));
        let microseconds = format!("{:.1} µs", self.seconds * 1e6);
        let Self {
            operator,
            kernel,
            shape,
            threads,
            bound_by,
            ..
        } = self;
        let labels = [operator, *kernel, shape].map(str::to_owned);
        labels
            .into_iter()
            .chain([threads.to_string(), microseconds, bound_by.clone(), share])
            .collect()
    }
}

/// The limit of a kernel: the minimum time that it permits.
struct Bound {
    by: String,
    seconds: Option<f64>,
}

/// Measures on the installed thread pool.
pub struct Bench<'a> {
    pub description: &'a ModelDescription,
    pub peaks: &'a Peaks,
    pub measured: &'a mut Vec<Measured>,
}

impl Bench<'_> {
    /// Measures the kernels of a prefill of `rows` tokens.
    pub fn prefill(&mut self, rows: usize) {
        for (in_features, out_features) in self.linear_shapes() {
            let shape = format!("{rows} × {in_features} × {out_features}");
            let operations = 2.0 * (rows * in_features * out_features) as f64;
            let x = numbers(rows * in_features);
            let mut out = vec![0.0; rows * out_features];
            let weight = PackedInt8::random(in_features, out_features);
            let mut quantized = QuantizedRows::default();
            quantized.quantize_static(&x, in_features, 1.0 / 127.0, None, false);
            let seconds = median(|| {
                matmul_int8(
                    quantized.view(),
                    weight.view(),
                    None,
                    OutputMut::new(&mut out, out_features),
                );
            });
            let bound = bound_of(
                "INT8",
                operations,
                self.peaks.arithmetic.int8_operations_per_second,
            );
            self.push(
                "INT8 matmul",
                kernel_names().int8,
                shape.clone(),
                seconds,
                bound,
            );

            let (values, scales) = (bytes(in_features * out_features), vec![0.01; out_features]);
            let weight = Matrix::Int8 {
                values: &values,
                scales: &scales,
            };
            let seconds = median(|| {
                matmul(
                    &x,
                    weight,
                    None,
                    Phase::Prefill,
                    OutputMut::new(&mut out, out_features),
                );
            });
            let (kernel, by, peak) = self.rounded();
            self.push(
                "matmul of INT8 weights",
                kernel,
                shape.clone(),
                seconds,
                bound_of(by, operations, peak),
            );

            for format in block_formats(in_features) {
                let bytes = blocks(out_features * format.bytes_for(in_features));
                let weight = Matrix::Blocks(Blocks {
                    format,
                    bytes: &bytes,
                    arithmetic: ROUNDED,
                });
                let seconds = median(|| {
                    matmul(
                        &x,
                        weight,
                        None,
                        Phase::Prefill,
                        OutputMut::new(&mut out, out_features),
                    );
                });
                let operator = format!("matmul of {format} weights");
                self.push(
                    operator,
                    kernel,
                    shape.clone(),
                    seconds,
                    bound_of(by, operations, peak),
                );
            }

            let weight = numbers(in_features * out_features);
            let matrix = Matrix::F32(&weight);
            let seconds = median(|| {
                matmul(
                    &x,
                    matrix,
                    None,
                    Phase::Prefill,
                    OutputMut::new(&mut out, out_features),
                );
            });
            let bound = bound_of(
                "f32",
                operations,
                Some(self.peaks.arithmetic.f32_operations_per_second),
            );
            self.push("f32 matmul", kernel_names().f32, shape, seconds, bound);
        }
        self.attention_of_rows(rows);
        if self.peaks.arithmetic.threads == 1 {
            self.elementwise(rows);
        }
    }

    /// Measures the kernels of decode steps of `rows` sequences each, on weights that no cache holds; attention of one
    /// row.
    pub fn decode(&mut self, rows: &[usize]) {
        for (in_features, out_features) in self.linear_shapes() {
            self.decode_int8(rows, in_features, out_features);
            self.decode_weights(rows, in_features, out_features);
        }
        self.attention_of_one_row();
    }

    fn decode_int8(&mut self, rows: &[usize], in_features: usize, out_features: usize) {
        let weights = in_features * out_features;
        let packed =
            vec![PackedInt8::random(in_features, out_features); DECODE_BYTES.div_ceil(weights)];
        let mut copies = packed.iter().cycle();
        for rows in rows.iter().copied() {
            let mut out = vec![0.0; rows * out_features];
            let mut quantized = QuantizedRows::default();
            quantized.quantize_static(
                &numbers(rows * in_features),
                in_features,
                1.0 / 127.0,
                None,
                false,
            );
            let seconds = median(|| {
                let weight = copies.next().expect("endless").view();
                matmul_int8(
                    quantized.view(),
                    weight,
                    None,
                    OutputMut::new(&mut out, out_features),
                );
            });
            let shape = format!("{rows} × {in_features} × {out_features}");
            self.push(
                "INT8 matvec",
                kernel_names().int8,
                shape,
                seconds,
                self.reading(weights),
            );
        }
    }

    fn decode_weights(&mut self, rows: &[usize], in_features: usize, out_features: usize) {
        let weights = in_features * out_features;
        let scales = vec![0.01; out_features];
        let values = vec![bytes(weights); DECODE_BYTES.div_ceil(weights)];
        let matrices = values.iter().map(|values| Matrix::Int8 {
            values,
            scales: &scales,
        });
        let shape = (in_features, out_features);
        self.decode_matrices(
            "matvec of INT8 weights",
            kernel_names().int16,
            rows,
            shape,
            weights,
            matrices,
        );
        drop(values);
        if in_features.is_multiple_of(int4::GROUP) {
            let scales = vec![f16::from_f32(0.01); weights / int4::GROUP];
            let size = weights / 2 + scales.len() * 2;
            let values: Vec<u8> = bytes(weights / 2).iter().map(|byte| *byte as u8).collect();
            let copies = vec![(values, scales); DECODE_BYTES.div_ceil(size)];
            let matrices = copies
                .iter()
                .map(|(values, scales)| Matrix::Int4 { values, scales });
            self.decode_matrices(
                "matvec of INT4 weights",
                kernel_names().int16,
                rows,
                shape,
                size,
                matrices,
            );
        }
        for format in block_formats(in_features) {
            let size = out_features * format.bytes_for(in_features);
            let copies = vec![blocks(size); DECODE_BYTES.div_ceil(size)];
            let matrices = copies.iter().map(|bytes| {
                Matrix::Blocks(Blocks {
                    format,
                    bytes,
                    arithmetic: ROUNDED,
                })
            });
            let operator = format!("matvec of {format} weights");
            self.decode_matrices(operator, kernel_names().int16, rows, shape, size, matrices);
        }
    }

    /// Uses `matrices` in turns, each with the same number of bytes.
    fn decode_matrices<'m>(
        &mut self,
        operator: impl Into<String>,
        kernel: &'static str,
        rows: &[usize],
        (in_features, out_features): (usize, usize),
        bytes: usize,
        matrices: impl Iterator<Item = Matrix<'m>> + Clone,
    ) {
        let mut copies = matrices.cycle();
        let operator = operator.into();
        for rows in rows.iter().copied() {
            let (x, mut out) = (numbers(rows * in_features), vec![0.0; rows * out_features]);
            let seconds = median(|| {
                let weight = copies.next().expect("endless");
                matmul(
                    &x,
                    weight,
                    None,
                    Phase::Decode,
                    OutputMut::new(&mut out, out_features),
                );
            });
            let shape = format!("{rows} × {in_features} × {out_features}");
            self.push(&*operator, kernel, shape, seconds, self.reading(bytes));
        }
    }

    /// Returns the kernel for matmuls that may be rounded, the number format that it multiplies, and the peak of that
    /// format.
    fn rounded(&self) -> (&'static str, &'static str, Option<f64>) {
        let (names, peaks) = (kernel_names(), &self.peaks.arithmetic);
        let peak = match names.rounded_to {
            "INT16" => peaks.int16_operations_per_second,
            "bf16" => peaks.bf16_operations_per_second,
            _ => Some(peaks.f32_operations_per_second),
        };
        (names.rounded, names.rounded_to, peak)
    }

    fn attention_of_rows(&mut self, rows: usize) {
        for before in [0, 3 * rows] {
            let (attention, shape) = self.attention_shape(Precision::Fast);
            let context = before + rows;
            let cache: Vec<f16> = halves(paged(context, &attention));
            let queries = numbers(rows * attention.heads * attention.head_dim);
            let mut out = vec![0.0; queries.len()];
            let cache = slab(&cache, &cache, &attention);
            let seconds =
                median(|| triad_kernels::attention(&queries, before, &cache, &attention, &mut out));
            let seen = (before + 1..=context).sum::<usize>();
            let operations = 4.0 * (attention.heads * attention.head_dim * seen) as f64;
            let (kernel, by, peak) = self.rounded();
            let shape = format!("{rows} × {shape}, {context}");
            self.push(
                "attention",
                kernel,
                shape,
                seconds,
                bound_of(by, operations, peak),
            );
        }
    }

    fn attention_of_one_row(&mut self) {
        let (attention, shape) = self.attention_shape(Precision::Fast);
        let length = paged(DECODE_CONTEXT, &attention);
        let size = 2 * length * size_of::<f16>();
        let caches = vec![(halves(length), halves(length)); DECODE_BYTES.div_ceil(size)];
        let queries = numbers(attention.heads * attention.head_dim);
        let mut out = vec![0.0; queries.len()];
        let mut copies = caches.iter().cycle();
        let seconds = median(|| {
            let (keys, values) = copies.next().expect("endless");
            let row = Row {
                cache: &slab(keys, values, &attention),
                position: DECODE_CONTEXT - 1,
            };
            triad_kernels::attention_of_rows(&queries, &[row], &attention, &mut out);
        });
        let shape = format!("1 × {shape}, {DECODE_CONTEXT}");
        self.push("attention", "f32 × f16", shape, seconds, self.reading(size));
    }

    /// Measures the operators between matmuls on one thread. In the engine, threads share their rows.
    fn elementwise(&mut self, rows: usize) {
        let hidden = self.description.hidden;
        let width = self
            .description
            .blocks
            .iter()
            .map(|block| block.feed_forward.width)
            .max()
            .unwrap_or(hidden);
        let one = size_of::<f32>();
        let (x, weight) = (numbers(rows * hidden), numbers(hidden));
        let mut out = vec![0.0; rows * hidden];
        let seconds = median(|| rms_norm(&x, &weight, 1e-5, &mut out));
        self.push_elementwise("RMS norm", rows, hidden, seconds, 2 * rows * hidden * one);
        let seconds = median(|| add(&mut out, &x));
        self.push_elementwise("add", rows, hidden, seconds, 3 * rows * hidden * one);
        let mut quantized = QuantizedRows::default();
        let seconds = median(|| quantized.quantize_static(&x, hidden, 1.0 / 127.0, None, true));
        self.push_elementwise("quantize", rows, hidden, seconds, rows * hidden * (one + 1));
        let (mut gate, up) = (numbers(rows * width), numbers(rows * width));
        let seconds = median_of(|| {
            // The output overwrites the input: on repeated runs the numbers would approach zero.
            gate.copy_from_slice(&up);
            seconds_of(|| activate_and_multiply(&mut gate, &up, Activation::Silu))
        });
        self.push_elementwise("SiLU × up", rows, width, seconds, 3 * rows * width * one);
    }

    fn push_elementwise(
        &mut self,
        operator: &'static str,
        rows: usize,
        width: usize,
        seconds: f64,
        bytes: usize,
    ) {
        let level = self.peaks.level_of(bytes);
        let bound = Bound {
            by: level.name.clone(),
            seconds: Some(bytes as f64 / level.bytes_read_per_second),
        };
        self.push(
            operator,
            "vectorized",
            format!("{rows} × {width}"),
            seconds,
            bound,
        );
    }

    fn push(
        &mut self,
        operator: impl Into<String>,
        kernel: &'static str,
        shape: String,
        seconds: f64,
        bound: Bound,
    ) {
        self.measured.push(Measured {
            operator: operator.into(),
            kernel,
            shape,
            threads: self.peaks.arithmetic.threads,
            seconds,
            bound_by: bound.by,
            share_of_limit: bound.seconds.map(|least| least / seconds),
        });
    }

    /// Returns the bound of reading `bytes` from memory.
    fn reading(&self, bytes: usize) -> Bound {
        let memory = self.peaks.memory();
        Bound {
            by: memory.name.clone(),
            seconds: Some(bytes as f64 / memory.bytes_read_per_second),
        }
    }

    /// Returns the input and output features of the distinct linear layers.
    fn linear_shapes(&self) -> BTreeSet<(usize, usize)> {
        let of_block = |block: &BlockDescription| block.linears(self.description.hidden);
        let linears = self.description.blocks.iter().flat_map(of_block);
        linears
            .map(|linear| (linear.in_features, linear.out_features))
            .collect()
    }

    /// Returns the attention shape of the first layer with attention, and its description.
    fn attention_shape(&self, precision: Precision) -> (Shape<'static>, String) {
        let mut blocks = self.description.blocks.iter();
        let attention = blocks.find_map(BlockDescription::attention);
        let (heads, kv_heads, head_dim) = attention.map_or((1, 1, 1), |attention| {
            (attention.heads, attention.kv_heads, attention.head_dim)
        });
        let shape = Shape {
            heads,
            kv_heads,
            head_dim,
            scale: 0.1,
            window: None,
            soft_cap: None,
            sinks: None,
            precision,
        };
        (shape, format!("{heads} × {head_dim}"))
    }
}

/// Returns the bound of `operations` at a peak, if the peak is known.
fn bound_of(by: &str, operations: f64, peak: Option<f64>) -> Bound {
    Bound {
        by: by.into(),
        seconds: peak.map(|peak| operations / peak),
    }
}

/// Returns the median seconds of several runs, after a warm-up run.
fn median(mut run: impl FnMut()) -> f64 {
    median_of(|| seconds_of(&mut run))
}

/// Returns the median result of several runs, after a warm-up run.
fn median_of(mut run: impl FnMut() -> f64) -> f64 {
    let [times] = turns(RUNS, SECONDS, || [run()]);
    timing::median(&times)
}
