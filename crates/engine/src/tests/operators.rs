//! Tests of the counted operators: for a small model, the expected numbers are computed by hand.

use std::time::Instant;

use super::*;
use crate::quantization::{
    DecodeWeights, InputQuantization, OutputWeights, Quantization, WeightScales,
};
use crate::testing::models::{FAMILIES, float, int8};
use crate::{Bytes, LinearInput, Operator, Statistics, testing};

/// Bytes of an f32, and of an f16.
const F32: u64 = 4;
const F16: u64 = 2;
/// Rows of a prompt, in one chunk.
const ROWS: u64 = 5;
/// The shape of the model `llama`.
const BLOCKS: u64 = 3;
const HIDDEN: u64 = 32;
const QUERY: u64 = 64;
const KEY_VALUE: u64 = 32;
const WIDTH: u64 = 48;
const VOCAB: u64 = 128;

/// Returns a model in INT8. `has_shadow` returns which inputs of which blocks have shadows; all others clip at a
/// magnitude that no input reaches.
fn quantized(family: &str, has_shadow: impl Fn(usize, LinearInput) -> bool) -> Arc<Model> {
    let model = float(family);
    let input = |block, input| {
        let shadow = has_shadow(block, input);
        InputQuantization::Static {
            clip: if shadow { 0.01 } else { 100.0 },
            shadow,
            smoothing: None,
        }
    };
    let blocks = (0..model.description().blocks.len())
        .map(|block| LinearInput::ALL.map(|one| input(block, one)));
    Arc::new(model.quantize(&Quantization {
        weight_scales: WeightScales::Channel,
        decode_weights: DecodeWeights::Int8,
        output_weights: OutputWeights::Int8,
        blocks: blocks.collect(),
    }))
}

/// Returns what a session counts during `work`.
fn counted(session: &mut Session, work: impl FnOnce(&mut Session)) -> Statistics {
    session.engine().count(true);
    let before = session.engine().statistics();
    work(session);
    session.engine().statistics() - before
}

fn prefill(session: &mut Session, rows: u64) {
    let prompt = prompt(session.model(), rows as usize);
    session.prefill(&prompt, &Cancel::new(), |_| {}).unwrap();
}

fn assert_bytes(statistics: &Statistics, expected: &[(Operator, u64, Bytes)]) {
    for (operator, runs, bytes) in expected {
        let counted = statistics.operator(*operator);
        assert_eq!(
            (counted.runs, counted.bytes),
            (*runs, *bytes),
            "{}",
            operator.name()
        );
    }
    for operator in Operator::ALL
        .into_iter()
        .filter(|one| !expected.iter().any(|(of, ..)| of == one))
    {
        assert_eq!(statistics.operator(operator).runs, 0, "{}", operator.name());
    }
}

/// Returns the bytes of a weight in INT8: numbers, and a scale and a sum per output.
fn weight_bytes(out_features: u64, in_features: u64) -> u64 {
    out_features * (in_features + 2 * F32)
}

/// Returns the bytes of all operators, for `rows` rows that attend to `positions` positions, in a prompt or in decode.
fn by_hand(rows: u64, positions: u64, is_prompt: bool) -> Vec<(Operator, u64, Bytes)> {
    let bytes = |read, written, weights| Bytes {
        read,
        written,
        weights,
    };
    let floats = |width| rows * width * F32;
    // With a scale per row.
    let quantized = |channels| rows * (channels + F32);
    let features = QUERY + 2 * KEY_VALUE;
    let cached = |positions| positions * 2 * KEY_VALUE * F16;
    // In a prompt it is one operator, whose floats are never in memory.
    let gated = bytes(
        quantized(HIDDEN),
        quantized(WIDTH),
        weight_bytes(2 * WIDTH, HIDDEN),
    );
    let gate_up = bytes(
        quantized(HIDDEN),
        floats(2 * WIDTH),
        weight_bytes(2 * WIDTH, HIDDEN),
    );
    let activation = bytes(2 * floats(WIDTH), quantized(WIDTH), 0);
    let inner = match is_prompt {
        true => vec![(Operator::Gated, 1, gated)],
        false => vec![
            (Operator::GateUp, 1, gate_up),
            (Operator::Activation, 1, activation),
        ],
    };
    let block = [
        // Each reads two sums and writes one, in addition to the numbers that it quantizes.
        (
            Operator::Norm,
            2,
            bytes(
                4 * floats(HIDDEN),
                2 * floats(HIDDEN) + 2 * quantized(HIDDEN),
                2 * HIDDEN * F32,
            ),
        ),
        (
            Operator::Quantize,
            1,
            bytes(floats(QUERY), quantized(QUERY), 0),
        ),
        (
            Operator::QueryKeyValue,
            1,
            bytes(
                quantized(HIDDEN),
                floats(features),
                weight_bytes(features, HIDDEN),
            ),
        ),
        (
            Operator::Rope,
            1,
            bytes(floats(QUERY + KEY_VALUE), floats(QUERY + KEY_VALUE), 0),
        ),
        (
            Operator::CacheWrite,
            1,
            bytes(floats(2 * KEY_VALUE), cached(rows), 0),
        ),
        (
            Operator::Attention,
            1,
            bytes(floats(QUERY) + cached(positions), floats(QUERY), 0),
        ),
        (
            Operator::AttentionOutput,
            1,
            bytes(
                quantized(QUERY),
                floats(HIDDEN),
                weight_bytes(HIDDEN, QUERY),
            ),
        ),
        (
            Operator::Down,
            1,
            bytes(
                quantized(WIDTH),
                floats(HIDDEN),
                weight_bytes(HIDDEN, WIDTH),
            ),
        ),
    ];
    let of_blocks = block.into_iter().chain(inner).map(
        |(
            operator,
            runs,
            Bytes {
                read,
                written,
                weights,
            },
        )| {
            (
                operator,
                BLOCKS * runs,
                bytes(BLOCKS * read, BLOCKS * written, BLOCKS * weights),
            )
        },
    );
    // The very first norm has no sum before it, and after the last block there is a sum without a norm.
    let first_norm = |(operator, runs, all): (Operator, u64, Bytes)| {
        let (read, written) = if operator == Operator::Norm {
            (floats(HIDDEN), floats(HIDDEN))
        } else {
            (0, 0)
        };
        (
            operator,
            runs,
            bytes(all.read - read, all.written - written, all.weights),
        )
    };
    let residual = (
        Operator::Residual,
        1,
        bytes(2 * floats(HIDDEN), floats(HIDDEN), 0),
    );
    // The logits of the last row; its embedding is in f32, the output matrix in INT8 with a scale per row.
    let (row, logits) = (HIDDEN * F32, VOCAB * F32);
    let output = bytes(2 * row, row + logits, VOCAB * (HIDDEN + F32) + row);
    let ends = [
        residual,
        (Operator::Embedding, 1, bytes(0, floats(HIDDEN), rows * row)),
        (Operator::Output, 1, output),
    ];
    of_blocks.map(first_norm).chain(ends).collect()
}

#[test]
fn the_bytes_of_every_operator_are_those_of_the_arrays_of_its_shape() {
    let model = quantized("llama", |_, _| false);
    let mut session = session(&model, CHUNK);
    let prompt = counted(&mut session, |session| prefill(session, ROWS));
    assert_bytes(&prompt, &by_hand(ROWS, ROWS, true));
    let inputs = BLOCKS * ROWS * (HIDDEN + QUERY + HIDDEN + WIDTH);
    assert_eq!((prompt.values, prompt.outliers), (inputs, 0));
    for position in ROWS..ROWS + 3 {
        let token = counted(&mut session, |session| {
            drop(session.decode(7, &Cancel::new()).unwrap().to_vec());
        });
        assert_bytes(&token, &by_hand(1, position + 1, false));
    }
}

#[test]
fn two_chunks_count_as_much_as_they_read_and_write() {
    let model = quantized("llama", |_, _| false);
    let statistics = counted(&mut session(&model, CHUNK), |session| prefill(session, 12));
    let bytes = |operator| statistics.operator(operator).bytes;
    assert_eq!(statistics.operator(Operator::Down).runs, 2 * BLOCKS);
    assert_eq!(
        bytes(Operator::Down).weights,
        2 * BLOCKS * weight_bytes(HIDDEN, WIDTH),
        "weights are read for each chunk"
    );
    assert_eq!(
        bytes(Operator::CacheWrite).written,
        BLOCKS * 12 * 2 * KEY_VALUE * F16
    );
    let queries = BLOCKS * 12 * QUERY * F32;
    assert_eq!(
        bytes(Operator::Attention).read,
        queries + BLOCKS * (8 + 12) * 2 * KEY_VALUE * F16
    );
}

#[test]
fn attention_reads_no_further_back_than_its_window() {
    // Six of seven blocks attend to eight positions.
    let model = quantized("gemma3", |_, _| false);
    let mut session = session(&model, CHUNK);
    let read = |statistics: &Statistics, rows: u64| {
        (statistics.operator(Operator::Attention).bytes.read - 7 * rows * QUERY * F32)
            / (2 * KEY_VALUE * F16)
    };
    let prompt = counted(&mut session, |session| prefill(session, 12));
    // The rows of the first chunk attend to 0 to 7. Those of the second, 8 to 11, attend to 1 to 11, or to all.
    assert_eq!(read(&prompt, 12), 7 * 8 + 6 * 11 + 12);
    let token = counted(&mut session, |session| {
        drop(session.decode(7, &Cancel::new()).unwrap().to_vec());
    });
    assert_eq!(read(&token, 1), 6 * 8 + 13);
    // Norms of query and key heads, and after attention and the feed-forward.
    assert_eq!(
        token.operator(Operator::Rope).bytes.weights,
        7 * 2 * 16 * F32
    );
    let (row, quantized) = (HIDDEN * F32, HIDDEN + F32);
    let residual = Bytes {
        read: 3 * row,
        written: 2 * row,
        weights: row,
    };
    assert_eq!(token.operator(Operator::Residual).bytes, residual);
    let sums = 2 * 7 - 1;
    let norms = Bytes {
        read: row + sums * residual.read,
        written: 2 * 7 * quantized + sums * residual.written,
        weights: 2 * 7 * row + sums * residual.weights,
    };
    assert_eq!(token.operator(Operator::Norm).bytes, norms);
}

#[test]
fn shadows_count_their_outliers_and_the_weights_of_channels_that_have_any() {
    let model = quantized("llama", |block, input| {
        block == 1 && input == LinearInput::Down
    });
    let statistics = counted(&mut session(&model, CHUNK), |session| prefill(session, 1));
    // Each is in another channel of the single row.
    let outliers = statistics.outliers;
    assert!(0 < outliers && outliers <= WIDTH, "{outliers}");
    let row = HIDDEN * F32;
    let expected = Bytes {
        read: 8 * outliers + row,
        written: row,
        weights: HIDDEN * (outliers + F32),
    };
    let shadows = statistics.operator(Operator::Shadows);
    assert_eq!((shadows.runs, shadows.bytes), (1, expected));
    // A channel and a number per outlier, in addition to the numbers of the row.
    let inputs = HIDDEN + QUERY + HIDDEN + WIDTH;
    let written: u64 = [Operator::Norm, Operator::Quantize, Operator::Gated]
        .map(|operator| statistics.operator(operator).bytes.written)
        .iter()
        .sum();
    assert_eq!(
        written,
        (2 * BLOCKS - 1) * row + BLOCKS * (inputs + 4 * F32) + 8 * outliers
    );
}

#[test]
fn norms_before_experts_that_are_a_branch_are_counted() {
    let model = float("gemma4-moe");
    let blocks = &model.description().blocks;
    let experts = blocks.iter().filter_map(|it| it.feed_forward.experts);
    let branches = experts.filter(|experts| experts.branch).count() as u64;
    assert!(branches > 0);
    let mut session = session(&model, CHUNK);
    prefill(&mut session, 3);
    let token = counted(&mut session, |session| {
        drop(session.decode(7, &Cancel::new()).unwrap().to_vec());
    });
    // One before each half of a block; one for the router and one for the experts.
    let norms = 2 * blocks.len() as u64 + 2 * branches;
    assert_eq!(token.operator(Operator::Norm).runs, norms);
    let router = token.operator(Operator::Router);
    assert_eq!(router.runs, branches);
}

#[test]
fn operators_take_no_longer_than_the_whole_and_change_no_bit() {
    for family in FAMILIES {
        let model = int8(family);
        let mut plain = session(&model, CHUNK);
        prefill(&mut plain, 20);
        plain.decode(3, &Cancel::new()).unwrap();
        assert_eq!(
            plain.engine().statistics(),
            Statistics::default(),
            "counting is off"
        );
        let mut session = session(&model, CHUNK);
        let start = Instant::now();
        let statistics = counted(&mut session, |session| {
            prefill(session, 20);
            session.decode(3, &Cancel::new()).unwrap();
        });
        let whole = start.elapsed();
        assert!(
            statistics.time() <= whole,
            "{family}: {:?} of {whole:?}",
            statistics.time()
        );
        let is_idle = |operator: &Operator| {
            let used = statistics.operator(*operator);
            (used.runs == 0, used.time.is_zero()) == (true, true)
        };
        let idle: Vec<_> = Operator::ALL.into_iter().filter(is_idle).collect();
        let is_gated = model.description().blocks[0].feed_forward.gated;
        let has_states = model.description().states().next().is_some();
        let has_inputs = model.description().token_inputs.is_some();
        let expected = [
            (!has_states).then_some(Operator::Mixer),
            (!is_gated).then_some(Operator::Gated),
            Some(Operator::FeedForward),
            Some(Operator::Router),
            Some(Operator::Experts),
            (!has_inputs).then_some(Operator::TokenInput),
            Some(Operator::Adapters),
        ];
        let expected: Vec<_> = expected.into_iter().flatten().collect();
        assert_eq!(idle, expected, "{family}");
        assert!(session.logits() == plain.logits(), "{family}");
    }
}

#[test]
fn rows_without_a_float_reader_have_the_bits_of_those_that_an_observer_reads() {
    for family in FAMILIES {
        let dynamic = Arc::new(testing::quantize_dynamic(&float(family)));
        for model in [int8(family), dynamic, float(family)] {
            let tokens = prompt(&model, 20);
            let (mut plain, mut observed) = (session(&model, CHUNK), session(&model, CHUNK));
            plain.prefill(&tokens, &Cancel::new(), |_| {}).unwrap();
            let mut seen = 0;
            observed
                .observe(&tokens, &Cancel::new(), &mut |_, _, x: &[f32]| {
                    seen += x.len();
                })
                .unwrap();
            assert!(seen > 0);
            let [plain, observed] = [&mut plain, &mut observed]
                .map(|session| session.decode(3, &Cancel::new()).unwrap());
            assert!(plain == observed, "{family}");
        }
    }
}
