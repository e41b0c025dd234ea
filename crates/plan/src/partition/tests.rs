//! Properties of every candidate and every choice, and the examples of the paper.

use std::collections::HashMap;
use std::convert::Infallible;

use proptest::prelude::*;
use proptest::strategy::Strategy as Values;
use triad_model::family::{SHAPES, shape as model};

use super::candidates::{all, shapes};
use super::costs::{Costs, Joins, MeasuredCosts, Measurement};
use super::profile::ProfileCosts;
use super::solve::{Restriction, Solver};
use super::{Strategy, *};
use crate::device::DeviceProfile;
use crate::graph::Graph;
use crate::prefill::FloatsOn;

const GPU: ProcessorId = ProcessorId::new(0);
const NPU: ProcessorId = ProcessorId::new(1);
const CPU: ProcessorId = ProcessorId::new(2);

fn shape(rows: usize, columns: usize, depth: usize) -> ProductShape {
    ProductShape::new(rows, columns, depth).unwrap()
}

fn dynamic(processor: ProcessorId) -> Participant {
    Participant {
        processor,
        shapes: Shapes::Dynamic,
    }
}

fn of_lengths(processor: ProcessorId, lengths: &[usize]) -> Participant {
    Participant {
        processor,
        shapes: Shapes::Static(StandardLengths::new(lengths.to_vec()).unwrap()),
    }
}

fn npu() -> Participant {
    Participant {
        processor: NPU,
        shapes: Shapes::Static(StandardLengths::default()),
    }
}

/// Generates one to three processors, each with static or dynamic shapes.
fn any_participants() -> impl Values<Value = Vec<Participant>> {
    let lengths = prop::sample::subsequence(vec![32, 64, 128, 256, 512, 1024], 1..=6);
    let kind = prop_oneof![1 => Just(None), 1 => lengths.prop_map(Some)];
    prop::collection::vec(kind, 1..=3).prop_map(|kinds| {
        let participant = |(index, lengths): (usize, Option<Vec<usize>>)| {
            let processor = ProcessorId::new(index);
            lengths.map_or_else(
                || dynamic(processor),
                |lengths| of_lengths(processor, &lengths),
            )
        };
        kinds.into_iter().enumerate().map(participant).collect()
    })
}

/// Generates a product in one of the phases, with any number of rows allowed there.
fn any_product() -> impl Values<Value = (Phase, ProductShape)> {
    let rows = prop_oneof![3 => 1usize..700, 1 => Just(1024usize), 1 => Just(64usize)];
    let columns = prop_oneof![1usize..1600, (1usize..7).prop_map(|tiles| 256 * tiles)];
    (any::<bool>(), rows, columns, 1usize..5000).prop_map(|(is_decode, rows, columns, depth)| {
        match is_decode {
            true => (
                Phase::Decode,
                shape(rows % MAX_DECODE_ROWS + 1, columns, depth),
            ),
            false => (Phase::Prefill, shape(rows, columns, depth)),
        }
    })
}

/// Panics unless every output is in exactly one piece, and each processor can compute its pieces.
fn check(partition: &Partition, phase: Phase, shape: ProductShape, participants: &[Participant]) {
    let pieces = &partition.pieces;
    let computed: usize = pieces
        .iter()
        .map(|piece| piece.part.rows.len() * piece.part.columns.len())
        .sum();
    assert_eq!(computed, shape.rows * shape.columns, "{partition:?}");
    for (index, piece) in pieces.iter().enumerate() {
        let Part { rows, columns } = &piece.part;
        assert!(!rows.is_empty() && rows.end <= shape.rows, "{partition:?}");
        assert!(
            !columns.is_empty() && columns.end <= shape.columns,
            "{partition:?}"
        );
        let overlaps = |other: &Piece| {
            let apart = |a: &std::ops::Range<usize>, b: &std::ops::Range<usize>| {
                a.end <= b.start || b.end <= a.start
            };
            !apart(rows, &other.part.rows) && !apart(columns, &other.part.columns)
        };
        assert!(!pieces[..index].iter().any(overlaps), "{partition:?}");
        let is_cut_at = |range: &std::ops::Range<usize>, multiple: usize, size: usize| {
            range.start.is_multiple_of(multiple)
                && (range.end.is_multiple_of(multiple) || range.end == size)
        };
        assert!(is_cut_at(rows, ROW_MULTIPLE, shape.rows), "{partition:?}");
        assert!(
            is_cut_at(columns, COLUMN_MULTIPLE, shape.columns),
            "{partition:?}"
        );
        let participant = participants
            .iter()
            .find(|one| one.processor == piece.processor)
            .expect("one of the list");
        match (&participant.shapes, phase) {
            (Shapes::Static(lengths), Phase::Prefill) => {
                assert!(
                    lengths.lengths().contains(&piece.rows) && piece.rows >= rows.len(),
                    "{partition:?}"
                );
            }
            _ => assert_eq!(piece.rows, rows.len(), "{partition:?}"),
        }
    }
    let mut processors: Vec<_> = pieces.iter().map(|piece| piece.processor).collect();
    processors.dedup();
    let together = processors.len();
    processors.sort_unstable();
    processors.dedup();
    assert_eq!(
        processors.len(),
        together,
        "the pieces of a processor are consecutive: {partition:?}"
    );
    assert_eq!(
        partition.strategy.is_whole(),
        together == 1,
        "{partition:?}"
    );
    if phase == Phase::Decode {
        assert!(
            matches!(partition.strategy, Strategy::Alone | Strategy::RowCutting),
            "{partition:?}"
        );
    }
}

/// Costs of whole, scattered seconds, few enough that many candidates have equal times.
struct Unordered(u64);

impl Costs for Unordered {
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        let sizes = [processor.index(), shape.rows, shape.columns, shape.depth];
        let mix = |hash: u64, size: usize| {
            (hash ^ size as u64)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23)
        };
        Ok((sizes.into_iter().fold(self.0, mix) % 24 + 1) as f64)
    }
}

/// Seconds per row on each processor, for any weights.
struct OfRows(&'static [f64]);

impl Costs for OfRows {
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        Ok(shape.rows as f64 * self.0[processor.index()])
    }
}

/// Returns joins with floats on the GPU: 1 second of synchronization if it computes longest, 3 if another one does, and
/// 2 for each copy.
fn joins() -> Joins {
    Joins::new(GPU, 1.0, 3.0, 2.0).unwrap()
}

fn total(partition: &Partition, costs: &impl Costs, depth: usize) -> f64 {
    let mut busy: HashMap<ProcessorId, f64> = HashMap::new();
    for piece in &partition.pieces {
        *busy.entry(piece.processor).or_default() +=
            costs.seconds(piece.processor, piece.shape(depth)).unwrap();
    }
    let longest = busy.values().copied().fold(0.0, f64::max);
    let copies = 2.0 * busy.keys().filter(|processor| **processor != GPU).count() as f64;
    let first = partition
        .pieces
        .iter()
        .find(|piece| busy[&piece.processor] == longest)
        .unwrap()
        .processor;
    match (copies > 0.0, first == GPU) {
        (false, _) => longest,
        (true, is_float) => longest + copies + if is_float { 1.0 } else { 3.0 },
    }
}

fn solve(costs: impl Costs, participants: Vec<Participant>, product: ProductShape) -> Partition {
    let free = Joins::new(GPU, 0.0, 0.0, 0.0).unwrap();
    let solver = Solver::new(participants, costs, free).unwrap();
    solver
        .solve(product, Phase::Prefill, Restriction::Auto)
        .unwrap()
        .best
        .partition
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_output_of_every_candidate_is_computed_once(
        participants in any_participants(),
        (phase, product) in any_product(),
    ) {
        for partition in all(product, phase, &participants) {
            check(&partition, phase, product, &participants);
        }
    }

    #[test]
    fn the_choice_is_the_least_of_all_candidates_with_the_fewest_pieces(
        participants in any_participants(),
        (phase, product) in any_product(),
        seed in any::<u64>(),
    ) {
        let solver = Solver::new(participants.clone(), Unordered(seed), joins()).unwrap();
        let candidates = all(product, phase, &participants);
        for restriction in Restriction::ALL {
            let fits = |partition: &&Partition| match restriction {
                Restriction::Layer => partition.strategy.is_whole(),
                Restriction::Tensor => !partition.strategy.is_whole(),
                Restriction::Auto => true,
            };
            let totals = candidates.iter().filter(fits).map(|one| (total(one, &Unordered(seed), product.depth), one.pieces.len()));
            let least = totals.min_by(|a, b| a.partial_cmp(b).unwrap());
            match solver.solve(product, phase, restriction) {
                Ok(choice) => {
                    check(&choice.best.partition, phase, product, &participants);
                    prop_assert_eq!(Some((choice.best.seconds, choice.best.partition.pieces.len())), least);
                    prop_assert_eq!(choice.considered, candidates.iter().filter(fits).count());
                    let longest = choice.best.busy.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
                    for (processor, seconds) in &choice.best.busy {
                        let pieces = choice.best.partition.pieces.iter().filter(|piece| piece.processor == *processor);
                        let of_pieces = pieces.map(|piece| choice.seconds_of_part(&piece.part, *processor).unwrap());
                        prop_assert!((of_pieces.sum::<f64>() / seconds - 1.0).abs() < 1e-9);
                    }
                    prop_assert_eq!(longest + choice.best.join_seconds, choice.best.seconds);
                }
                Err(error) => prop_assert!(least.is_none() && matches!(error, PartitionError::NoCut { .. }), "{}", error),
            }
        }
    }

    #[test]
    fn the_choice_is_never_slower_than_any_processor_alone(
        participants in any_participants(),
        (phase, product) in any_product(),
        seed in any::<u64>(),
    ) {
        let solver = Solver::new(participants.clone(), Unordered(seed), joins()).unwrap();
        for restriction in [Restriction::Auto, Restriction::Layer] {
            let choice = solver.solve(product, phase, restriction).unwrap();
            prop_assert_eq!(choice.alone.len(), participants.len());
            for (alone, participant) in choice.alone.iter().zip(&participants) {
                check(&alone.partition, phase, product, std::slice::from_ref(participant));
                prop_assert!(choice.best.seconds <= alone.seconds);
            }
            prop_assert!(choice.best.seconds <= choice.best_alone().seconds);
        }
    }

    #[test]
    fn a_prompt_of_any_length_is_chunks_of_1024_tokens_and_a_rest_that_is_no_margin(rows in 1usize..20_000) {
        let participants = vec![dynamic(GPU), npu()];
        let solver = Solver::new(participants.clone(), OfRows(&[1.0, 0.1]), joins()).unwrap();
        let plan = solver.plan_prompt(shape(rows, 256, 64), Restriction::Auto).unwrap();
        prop_assert_eq!(plan.choices().map(|(count, choice)| count * choice.shape.rows()).sum::<usize>(), rows);
        prop_assert!(plan.last.shape.rows() >= rows.min(1024));
        for (_, choice) in plan.choices() {
            check(&choice.best.partition, Phase::Prefill, choice.shape, &participants);
        }
        let seconds: f64 = plan.choices().map(|(count, choice)| count as f64 * choice.best.seconds).sum();
        prop_assert_eq!(plan.seconds(), seconds);
    }
}

/// Returns the rows of the pieces, with their processors.
fn rows(partition: &Partition) -> Vec<(ProcessorId, usize)> {
    partition
        .pieces
        .iter()
        .map(|piece| (piece.processor, piece.rows))
        .collect()
}

#[test]
fn the_papers_examples_are_candidates() {
    let participants = [dynamic(GPU), npu()];
    let has = |tokens: usize, strategy: Strategy, on_npu: &[usize], on_gpu: &[usize]| {
        let expected: Vec<_> = on_npu
            .iter()
            .map(|rows| (NPU, *rows))
            .chain(on_gpu.iter().map(|rows| (GPU, *rows)))
            .collect();
        let all = all(shape(tokens, 2048, 2048), Phase::Prefill, &participants);
        assert!(
            all.iter()
                .any(|partition| partition.strategy == strategy && rows(partition) == expected),
            "{tokens} tokens: {strategy:?} {expected:?}"
        );
    };
    // §4.1.1.
    has(300, Strategy::Padding, &[512], &[]);
    has(300, Strategy::SequenceLengthCutting, &[256], &[44]);
    has(600, Strategy::MultiSequenceLengthCutting, &[512, 32], &[56]);
    has(300, Strategy::HybridCutting, &[512], &[300]);
    has(256, Strategy::RowCutting, &[256], &[256]);
    // §5.2.2.
    has(135, Strategy::Padding, &[256], &[]);
    has(135, Strategy::Pipe, &[128, 32], &[]);
    has(135, Strategy::SequenceLengthCutting, &[128], &[7]);
    has(525, Strategy::Padding, &[1024], &[]);
    has(525, Strategy::Pipe, &[512, 32], &[]);
    has(525, Strategy::SequenceLengthCutting, &[512], &[13]);
    has(525, Strategy::HybridCutting, &[512, 32], &[525]);
    has(1000, Strategy::Padding, &[1024], &[]);
    has(1000, Strategy::Pipe, &[512, 256, 128, 64, 32, 32], &[]);
    has(
        1000,
        Strategy::MultiSequenceLengthCutting,
        &[512, 256, 128, 64, 32],
        &[8],
    );
}

#[test]
fn the_papers_cuts_are_chosen_where_the_margin_takes_the_gpu_as_long_as_the_rest_the_npu() {
    // With one tile of columns, only rows can be cut.
    let cut = |tokens, costs| {
        solve(
            OfRows(costs),
            vec![dynamic(GPU), npu()],
            shape(tokens, 256, 2048),
        )
    };
    let of_300 = cut(300, &[1.0, 1.0 / 6.0]);
    assert_eq!(
        (of_300.strategy, rows(&of_300)),
        (Strategy::SequenceLengthCutting, vec![(NPU, 256), (GPU, 44)])
    );
    let of_600 = cut(600, &[1.0, 0.1]);
    let expected = vec![(NPU, 512), (NPU, 32), (GPU, 56)];
    assert_eq!(
        (of_600.strategy, rows(&of_600)),
        (Strategy::MultiSequenceLengthCutting, expected)
    );
}

#[test]
fn three_processors_cut_columns_three_ways_or_leave_the_margin_to_one() {
    let participants = vec![dynamic(GPU), npu(), dynamic(CPU)];
    let strategies = |rows: usize, columns: usize| -> Vec<_> {
        let all = all(shape(rows, columns, 64), Phase::Prefill, &participants);
        let of_all = all.iter().filter(|one| {
            [GPU, NPU, CPU]
                .iter()
                .all(|id| one.pieces.iter().any(|piece| piece.processor == *id))
        });
        let mut strategies: Vec<_> = of_all.map(|one| one.strategy).collect();
        strategies.sort_unstable();
        strategies.dedup();
        strategies
    };
    assert_eq!(
        strategies(64, 768),
        [Strategy::RowCutting, Strategy::MarginAndRowCutting]
    );
    assert_eq!(
        strategies(70, 768),
        [Strategy::HybridCutting, Strategy::MarginAndRowCutting]
    );
    assert_eq!(strategies(70, 512), [Strategy::MarginAndRowCutting]);
    assert!(strategies(32, 512).is_empty());
    // The NPU computes the standard length and shares its columns with the GPU. The CPU computes the margin.
    let margin = |partition: &Partition| {
        partition.strategy == Strategy::MarginAndRowCutting
            && rows(partition) == [(NPU, 64), (GPU, 64), (CPU, 6)]
            && partition.pieces[1].part
                == Part {
                    rows: 0..64,
                    columns: 256..512,
                }
    };
    assert!(
        all(shape(70, 512, 64), Phase::Prefill, &participants)
            .iter()
            .any(margin)
    );
}

#[test]
fn one_of_two_processors_has_the_margin_and_some_columns_only_where_that_is_allowed() {
    let found = |margins, rows, participants: &[Participant]| {
        let alignment = Alignment {
            margins,
            ..Alignment::default()
        };
        let mut found = Vec::new();
        let visit = |strategy, pieces: &[Piece]| {
            let partition = Partition {
                strategy,
                pieces: pieces.to_vec(),
            };
            check(
                &partition,
                Phase::Prefill,
                shape(rows, 768, 64),
                participants,
            );
            found.extend((strategy == Strategy::MarginAndRowCutting).then_some(partition));
            Ok::<_, Infallible>(())
        };
        let Ok(()) = candidates::cuts(
            shape(rows, 768, 64),
            Phase::Prefill,
            participants,
            alignment,
            visit,
        );
        found
    };
    let pair = [dynamic(GPU), npu()];
    let margins = found(true, 110, &pair);
    assert_eq!(margins.len(), 2, "one for each place of a column");
    for partition in &margins {
        assert_eq!(
            rows(partition),
            [(NPU, 64), (NPU, 32), (GPU, 96), (GPU, 14)]
        );
        let of_npu = partition.pieces[0].part.columns.end;
        assert_eq!(
            partition.pieces[2].part,
            Part {
                rows: 0..96,
                columns: of_npu..768
            }
        );
        assert_eq!(
            partition.pieces[3].part,
            Part {
                rows: 96..110,
                columns: 0..768
            }
        );
    }
    assert_eq!(found(false, 110, &pair), [], "the paper has none");
    assert_eq!(found(true, 96, &pair), [], "without a margin");
    assert_eq!(found(true, 20, &pair), [], "all is margin");
    assert_eq!(
        found(true, 110, &[dynamic(GPU), dynamic(CPU)]),
        [],
        "both compute any shape"
    );
}

#[test]
fn columns_are_cut_at_every_multiple_of_256_and_rows_at_every_multiple_of_32() {
    let pair = [dynamic(GPU), dynamic(CPU)];
    let places = |product: ProductShape, of: fn(&Part) -> usize, strategy: Strategy| -> Vec<_> {
        let all = all(product, Phase::Prefill, &pair);
        all.iter()
            .filter(|one| one.strategy == strategy)
            .map(|one| of(&one.pieces[1].part))
            .collect()
    };
    let columns = |columns: usize| {
        places(
            shape(8, columns, 64),
            |part| part.columns.start,
            Strategy::RowCutting,
        )
    };
    assert!(columns(256).is_empty());
    assert_eq!(columns(257), [256]);
    assert_eq!(columns(1024), [256, 512, 768]);
    let rows = |rows: usize| {
        places(
            shape(rows, 8, 64),
            |part| part.rows.start,
            Strategy::SequenceLengthCutting,
        )
    };
    assert!(rows(32).is_empty());
    assert_eq!(rows(33), [32]);
    assert_eq!(rows(128), [32, 64, 96]);
}

#[test]
fn in_decode_columns_alone_are_cut_and_no_row_is_padded() {
    let participants = [npu(), dynamic(GPU)];
    for tokens in 1..=MAX_DECODE_ROWS {
        let all = all(shape(tokens, 1024, 64), Phase::Decode, &participants);
        assert_eq!(all.len(), 2 + 3);
        assert!(
            all.iter()
                .flat_map(|one| &one.pieces)
                .all(|piece| piece.rows == tokens && piece.part.rows == (0..tokens))
        );
    }
    let solver = Solver::new(participants.to_vec(), Unordered(0), joins()).unwrap();
    let solve = |rows, phase| solver.solve(shape(rows, 1024, 64), phase, Restriction::Auto);
    assert!(
        solve(17, Phase::Decode)
            .unwrap_err()
            .to_string()
            .contains("in decode: expected at most 16 rows")
    );
    assert!(solve(2047, Phase::Prefill).is_ok());
    assert!(
        solve(2048, Phase::Prefill)
            .unwrap_err()
            .to_string()
            .contains("at most 2047 rows")
    );
}

#[test]
fn a_cut_that_saves_less_than_its_join_is_not_made() {
    let participants = vec![dynamic(GPU), dynamic(CPU)];
    let strategy = |copy: f64| {
        let joins = Joins::new(GPU, 0.0, 0.0, copy).unwrap();
        let solver = Solver::new(participants.clone(), OfRows(&[1.0; 3]), joins).unwrap();
        let choice = solver
            .solve(shape(64, 256, 64), Phase::Prefill, Restriction::Auto)
            .unwrap();
        (choice.best.partition.strategy, choice.best.seconds)
    };
    assert_eq!(
        strategy(31.0),
        (Strategy::SequenceLengthCutting, 32.0 + 31.0)
    );
    assert_eq!(strategy(32.0), (Strategy::Alone, 64.0));
}

#[test]
fn a_join_depends_on_who_computes_longest_and_the_float_processor_alone_has_none() {
    let of = |busy: &[(ProcessorId, f64)]| joins().seconds(busy.iter().copied());
    assert_eq!(of(&[(GPU, 5.0)]), 0.0);
    assert_eq!(of(&[(NPU, 5.0)]), 3.0 + 2.0);
    assert_eq!(of(&[(NPU, 4.0), (GPU, 5.0)]), 1.0 + 2.0);
    assert_eq!(of(&[(NPU, 5.0), (GPU, 4.0), (CPU, 1.0)]), 3.0 + 2.0 * 2.0);
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(
            Joins::new(GPU, 0.0, bad, 0.0)
                .unwrap_err()
                .to_string()
                .contains(&bad.to_string())
        );
    }
}

#[test]
fn a_shape_that_was_not_measured_is_an_error_that_names_it() {
    let participants = [dynamic(GPU), npu(), dynamic(CPU)];
    let product = shape(70, 600, 64);
    let measurements: Vec<_> = shapes(product, Phase::Prefill, &participants)
        .into_iter()
        .map(|(processor, shape)| Measurement {
            processor,
            shape,
            seconds: 1e-9,
        })
        .collect();
    // The join of a single processor takes so much longer that every candidate could be the best.
    let joins = Joins::new(ProcessorId::new(9), 1.0, 1.0, 0.0).unwrap();
    let solve = |measurements: &[Measurement]| {
        let costs = MeasuredCosts::new(measurements).unwrap();
        Solver::new(participants.to_vec(), costs, joins)
            .unwrap()
            .solve(product, Phase::Prefill, Restriction::Auto)
    };
    assert!(
        solve(&measurements).is_ok(),
        "all that has to be known is known"
    );
    for missing in 0..measurements.len() {
        let Measurement {
            processor, shape, ..
        } = measurements[missing];
        let others = [&measurements[..missing], &measurements[missing + 1..]].concat();
        let error = solve(&others).unwrap_err();
        assert_eq!(
            error,
            PartitionError::Unknown(UnknownCost { processor, shape })
        );
        assert!(
            error
                .to_string()
                .contains(&format!("{shape} on processor {}", processor.index())),
            "{error}"
        );
    }
}

#[test]
fn a_table_of_times_that_are_none_or_of_a_shape_twice_is_refused() {
    let one = Measurement {
        processor: GPU,
        shape: shape(1, 2, 3),
        seconds: 1.0,
    };
    let refused =
        |measurements: &[Measurement]| MeasuredCosts::new(measurements).unwrap_err().to_string();
    assert!(
        refused(&[one, one])
            .contains("1 rows × 2 columns × depth 3 on processor 0 is measured twice")
    );
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(
            refused(&[Measurement { seconds, ..one }]).contains(&format!("took {seconds} seconds"))
        );
    }
}

#[test]
fn sizes_lengths_and_lists_that_make_no_sense_are_refused() {
    for (rows, columns, depth) in [
        (0, 1, 1),
        (1, 0, 1),
        (1, 1, 0),
        (usize::MAX, 1, 1),
        (1, (1 << 24) + 1, 1),
    ] {
        let error = ProductShape::new(rows, columns, depth).unwrap_err();
        assert_eq!(
            error,
            PartitionError::Size {
                rows,
                columns,
                depth
            }
        );
        assert!(error.to_string().contains("from 1 to 16777216"), "{error}");
    }
    for length in [0, 1, 16, 48, 2048] {
        assert_eq!(
            StandardLengths::new(vec![64, length]),
            Err(PartitionError::StandardLength { length })
        );
    }
    assert_eq!(
        StandardLengths::new(vec![]),
        Err(PartitionError::NoStandardLength)
    );
    assert_eq!(
        StandardLengths::new(vec![256, 32, 256]).unwrap().lengths(),
        [32, 256]
    );
    let solver = |participants: Vec<Participant>| {
        Solver::new(participants, Unordered(0), joins()).map(|_| ())
    };
    assert_eq!(solver(vec![]), Err(PartitionError::NoProcessor));
    assert_eq!(
        solver(vec![npu(), dynamic(NPU)]),
        Err(PartitionError::Duplicate { processor: NPU })
    );
    let none = Solver::new(vec![npu()], Unordered(0), joins()).unwrap();
    let error = none
        .solve(shape(64, 512, 8), Phase::Prefill, Restriction::Tensor)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("64 rows × 512 columns × depth 8 can't be cut"),
        "{error}"
    );
}

#[test]
fn the_products_of_a_block_have_its_columns_and_operations() {
    for name in SHAPES {
        let description = model(name).unwrap();
        let graph = Graph::with_splits(&description, 7, 7, |_| true);
        let block = &description.blocks[0];
        let products = products(block, description.hidden, 7).unwrap();
        assert_eq!(products.len(), 4);
        for (role, product) in products {
            let subgraph = graph
                .subgraphs()
                .iter()
                .find(|one| one.block == 0 && one.role == role)
                .unwrap();
            assert_eq!(
                product.columns(),
                subgraph.output_columns,
                "{name} {role:?}"
            );
            assert_eq!(
                product.operations(),
                subgraph.operations(7, 0) as f64,
                "{name} {role:?}"
            );
        }
    }
}

#[test]
fn on_a_phone_the_products_of_a_long_prompt_are_cut_and_one_row_stays_where_floats_are() {
    let device = DeviceProfile::builtin("snapdragon-8gen3").unwrap();
    let costs = ProfileCosts::new(&device);
    let joins = costs.joins(FloatsOn::Gpu).unwrap();
    let participants = Participant::from_processors(costs.processors());
    let solver = Solver::new(participants, costs, joins).unwrap();
    let description = model("llama-2-7b").unwrap();
    for (role, product) in products(&description.blocks[0], description.hidden, 1000).unwrap() {
        let choice = solver
            .solve(product, Phase::Prefill, Restriction::Auto)
            .unwrap();
        assert!(
            !choice.best.partition.strategy.is_whole(),
            "{role:?}: {choice:?}"
        );
        let one = solver
            .solve(
                product.with_rows(1).unwrap(),
                Phase::Decode,
                Restriction::Auto,
            )
            .unwrap();
        assert_eq!(
            one.best.partition.strategy,
            Strategy::Alone,
            "{role:?}: {one:?}"
        );
        assert_eq!(one.best.partition.pieces[0].processor, joins.float());
    }
    let without = DeviceProfile {
        gpu: None,
        ..device.clone()
    };
    assert!(ProfileCosts::new(&without).joins(FloatsOn::Gpu).is_err());
}

/// Seconds per row, which differ alone and concurrent with others.
struct Company {
    alone: [f64; 3],
    contended: [f64; 3],
}

impl Costs for Company {
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        Ok(shape.rows() as f64 * self.alone[processor.index()])
    }

    fn concurrent_seconds(
        &self,
        processor: ProcessorId,
        shape: ProductShape,
    ) -> Result<f64, UnknownCost> {
        Ok(shape.rows() as f64 * self.contended[processor.index()])
    }
}

#[test]
fn whole_products_take_what_they_take_alone_and_parts_what_they_take_with_others() {
    let joins = Joins::new(GPU, 0.0, 0.0, 0.0).unwrap();
    let choose = |alone: f64, contended: f64| {
        let costs = Company {
            alone: [alone; 3],
            contended: [contended; 3],
        };
        let solver = Solver::new(vec![dynamic(GPU), dynamic(CPU)], costs, joins).unwrap();
        solver
            .solve(shape(64, 256, 64), Phase::Prefill, Restriction::Auto)
            .unwrap()
    };
    // Only rows can be cut, in halves. A cut pays off until both take twice as long next to each other.
    let cut = choose(1.0, 1.9);
    assert_eq!(
        (cut.best.partition.strategy, cut.best.seconds),
        (Strategy::SequenceLengthCutting, 32.0 * 1.9)
    );
    assert!(cut.alone.iter().all(|alone| alone.seconds == 64.0));
    let whole = choose(1.0, 2.1);
    assert_eq!(
        (whole.best.partition.strategy, whole.best.seconds),
        (Strategy::Alone, 64.0)
    );
    // A whole product never uses the concurrent times, even if they are shorter.
    assert_eq!(choose(1.0, 0.25).alone[0].seconds, 64.0);
}
