//! Partitions of a model's products for chunks of any length. The solver chooses a partition for each product and some
//! lengths ([`planned_lengths`]). Lengths in between use the next longer one without the missing rows. A prompt is a
//! sequence of such chunks.

use std::collections::BTreeMap;

use serde::Serialize;
use triad_model::description::ModelDescription;

use super::costs::Costs;
use super::solve::{Choice, Restriction, Solver};
use super::{Alignment, PartitionError, Phase, ProductShape, products};
use crate::graph::Role;
use crate::schedule::parts::Cut;

/// A product of some blocks of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ModelProduct {
    /// Role of the product.
    pub role: Role,
    /// Shape on a whole chunk.
    pub shape: ProductShape,
    /// Number of blocks with this product.
    pub blocks: usize,
    /// Positions at which it can be cut.
    pub alignment: Alignment,
}

/// Returns the products of a model on `rows` rows, each shape of a role once. `alignment` returns where a product can
/// be cut.
///
/// # Errors
/// If `rows` or a size of a block is zero or above 2²⁴.
pub fn products_of(
    description: &ModelDescription,
    rows: usize,
    alignment: impl Fn(Role, ProductShape) -> Alignment,
) -> Result<Vec<ModelProduct>, PartitionError> {
    let mut blocks: BTreeMap<(Role, ProductShape), usize> = BTreeMap::new();
    for block in &description.blocks {
        for product in products(block, description.hidden, rows)? {
            *blocks.entry(product).or_default() += 1;
        }
    }
    let product = |((role, shape), blocks)| {
        let alignment = alignment(role, shape);
        ModelProduct {
            role,
            shape,
            blocks,
            alignment,
        }
    };
    Ok(blocks.into_iter().map(product).collect())
}

/// Returns the planned number of rows for a chunk of `rows` rows: 32, the next multiple of 16 up to 512, and of 32
/// beyond. Each has its own static graphs.
pub fn planned_rows(rows: usize) -> usize {
    let step = if (33..=512).contains(&rows) { 16 } else { 32 };
    rows.next_multiple_of(step)
}

/// Returns all planned lengths of chunks of at most `chunk` rows, ascending.
pub fn planned_lengths(chunk: usize) -> Vec<usize> {
    let next = |rows: &usize| Some(planned_rows(rows + 1)).filter(|_| *rows < chunk);
    std::iter::successors(Some(0), next).skip(1).collect()
}

/// The choices for a product, and the cut that they result in.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductPlan {
    /// The product.
    pub product: ModelProduct,
    /// The choice for each length, ascending.
    pub choices: Vec<Choice>,
    cut: Cut,
}

/// Partitions of a model's products for all lengths of a chunk.
#[derive(Clone, Debug, PartialEq)]
pub struct Plans(Vec<ProductPlan>);

impl Plans {
    /// Chooses a partition of each product for each of these numbers of rows. A chunk with another number uses that of
    /// the next longer one. With [`Restriction::Tensor`], products that can't be cut are whole.
    ///
    /// # Errors
    /// See [`Solver::solve`].
    pub fn solve<C: Costs>(
        solver: &Solver<C>,
        products: &[ModelProduct],
        restriction: Restriction,
        rows: &[usize],
    ) -> Result<Self, PartitionError> {
        Self::solve_phase(solver, products, (Phase::Prefill, restriction), rows)
    }

    /// Chooses partitions for decode steps with these numbers of rows. A step with another number uses that of the next
    /// longer one. Only columns are cut, which are rows of the weights, so that each processor reads a part of the
    /// weights (§4.1.2).
    ///
    /// # Errors
    /// See [`Solver::solve`].
    pub fn solve_decode<C: Costs>(
        solver: &Solver<C>,
        products: &[ModelProduct],
        restriction: Restriction,
        rows: &[usize],
    ) -> Result<Self, PartitionError> {
        Self::solve_phase(solver, products, (Phase::Decode, restriction), rows)
    }

    fn solve_phase<C: Costs>(
        solver: &Solver<C>,
        products: &[ModelProduct],
        (phase, restriction): (Phase, Restriction),
        rows: &[usize],
    ) -> Result<Self, PartitionError> {
        let plan = |product: &ModelProduct| {
            let ModelProduct {
                shape, alignment, ..
            } = *product;
            let choose = |rows: &usize| {
                let shape = shape.with_rows(*rows)?;
                match solver.solve_aligned(shape, phase, restriction, alignment) {
                    Err(PartitionError::NoCut { .. }) => {
                        solver.solve_aligned(shape, phase, Restriction::Layer, alignment)
                    }
                    choice => choice,
                }
            };
            let choices: Vec<_> = rows.iter().map(choose).collect::<Result<_, _>>()?;
            let pieces = choices
                .iter()
                .map(|choice| (choice.shape.rows(), choice.best.partition.pieces.clone()));
            let cut = Cut::planned(shape.columns(), pieces.collect())?;
            Ok(ProductPlan {
                product: *product,
                choices,
                cut,
            })
        };
        products
            .iter()
            .map(plan)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Returns the plan of each product.
    pub fn products(&self) -> &[ProductPlan] {
        &self.0
    }

    /// Returns the plan of a role's product with these numbers of output columns and input features; `None` if there is
    /// none.
    pub fn product(&self, role: Role, columns: usize, depth: usize) -> Option<&ProductPlan> {
        let is_it = |plan: &&ProductPlan| {
            let ModelProduct {
                role: other, shape, ..
            } = plan.product;
            other == role && shape.columns() == columns && shape.depth() == depth
        };
        self.0.iter().find(is_it)
    }
}

impl ProductPlan {
    /// Returns the cut that the choices result in.
    pub fn cut(&self) -> &Cut {
        &self.cut
    }

    /// Returns the choice for chunks of `rows` rows; `None` beyond the longest one.
    pub fn choice(&self, rows: usize) -> Option<&Choice> {
        self.choices
            .iter()
            .find(|choice| choice.shape.rows() >= rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::costs::Joins;
    use crate::partition::{Participant, Piece, Shapes, StandardLengths, UnknownCost};
    use crate::processors::ProcessorId;
    use proptest::prelude::*;

    /// Seconds per element on each processor.
    struct Rates([f64; 3]);

    impl Costs for Rates {
        fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
            Ok((shape.rows() * shape.columns()) as f64 * self.0[processor.index()])
        }
    }

    fn participants(is_static: [bool; 3]) -> Vec<Participant> {
        let participant = |(index, is_static): (usize, bool)| {
            let lengths = Shapes::Static(StandardLengths::new(vec![32, 64]).unwrap());
            Participant {
                processor: ProcessorId::new(index),
                shapes: if is_static { lengths } else { Shapes::Dynamic },
            }
        };
        is_static.into_iter().enumerate().map(participant).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn every_element_of_a_chunk_of_any_length_is_in_one_part(
            is_static in any::<[bool; 3]>(),
            rates in [0.5f64..2.0, 0.5f64..2.0, 0.5f64..2.0],
            restriction in prop::sample::select(Restriction::ALL.to_vec()),
            chunk in 1usize..200,
            step in 1usize..40,
            (tiles, rows, margins) in (1usize..5, 1usize..40, any::<bool>()),
        ) {
            let description = triad_model::family::shape("smollm2-135m").unwrap();
            let alignment = Alignment { columns: 16 * tiles, rows, margins };
            let products = products_of(&description, chunk, |_, _| alignment).unwrap();
            prop_assert_eq!(products.len(), 4);
            prop_assert!(products.iter().all(|product| product.blocks == description.blocks.len()));
            let joins = Joins::new(ProcessorId::new(0), 0.0, 0.0, 0.0).unwrap();
            let solver = Solver::new(participants(is_static), Rates(rates), joins).unwrap();
            let lengths: Vec<_> = (1..=chunk.div_ceil(step)).map(|number| number * step).collect();
            let plans = Plans::solve(&solver, &products, restriction, &lengths).unwrap();
            for ProductPlan { product, choices, .. } in plans.products() {
                let (columns, depth) = (product.shape.columns(), product.shape.depth());
                let cut = plans.product(product.role, columns, depth).unwrap().cut();
                let pieces = cut.pieces(chunk, columns).unwrap();
                for rows in 1..=chunk {
                    let mut computed = vec![0; rows * columns];
                    for (processor, part) in cut.parts(rows, columns).unwrap() {
                        part.rows.clone().for_each(|row| {
                            computed[row * columns..][part.columns.clone()].iter_mut().for_each(|times| *times += 1);
                        });
                        let is_prepared = |piece: &Piece| {
                            piece.processor == processor
                                && piece.part.columns == part.columns
                                && piece.rows >= part.rows.len()
                        };
                        prop_assert!(pieces.iter().any(is_prepared), "{:?} of {} rows", part, rows);
                    }
                    prop_assert!(computed.iter().all(|times| *times == 1), "{} rows of {:?}", rows, product);
                }
                prop_assert!(choices.iter().map(|choice| choice.shape.rows()).eq(lengths.iter().copied()));
                prop_assert!(cut.parts(lengths.last().unwrap() + 1, columns).is_err());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_step_of_decode_is_cut_by_columns_and_auto_never_takes_longer_than_the_best_processor_alone(
            is_static in any::<[bool; 3]>(),
            rates in [0.5f64..2.0, 0.5f64..2.0, 0.5f64..2.0],
            restriction in prop::sample::select(Restriction::ALL.to_vec()),
            join in 0f64..2000.0,
        ) {
            let description = triad_model::family::shape("smollm2-135m").unwrap();
            let products = products_of(&description, 16, |_, _| Alignment { columns: 64, ..Alignment::default() }).unwrap();
            let joins = Joins::new(ProcessorId::new(0), join, 2.0 * join, 0.0).unwrap();
            let solver = Solver::new(participants(is_static), Rates(rates), joins).unwrap();
            let plans = Plans::solve_decode(&solver, &products, restriction, &[1, 4, 16]).unwrap();
            for ProductPlan { product, choices, cut } in plans.products() {
                let columns = product.shape.columns();
                prop_assert_eq!(choices.iter().map(|choice| choice.shape.rows()).collect::<Vec<_>>(), [1, 4, 16]);
                for rows in 1..=16 {
                    let parts = cut.parts(rows, columns).unwrap();
                    prop_assert!(parts.iter().all(|(_, part)| part.rows == (0..rows)));
                    prop_assert_eq!(parts.iter().map(|(_, part)| part.columns.len()).sum::<usize>(), columns);
                }
                for choice in choices {
                    let is_whole = choice.best.partition.strategy.is_whole();
                    prop_assert_eq!(choice.phase, Phase::Decode);
                    match restriction {
                        Restriction::Auto => prop_assert!(choice.best.seconds <= choice.best_alone().seconds),
                        Restriction::Layer => prop_assert!(is_whole),
                        Restriction::Tensor => prop_assert!(!is_whole),
                    }
                }
                prop_assert!(cut.parts(17, columns).is_err());
            }
        }
    }

    #[test]
    fn a_chunk_is_planned_as_the_next_length_and_longer_ones_more_coarsely() {
        assert_eq!(
            [1, 32, 33, 135, 512, 513, 1000].map(planned_rows),
            [32, 32, 48, 144, 512, 544, 1024]
        );
        for chunk in [1, 32, 100, 300, 1024, 1500] {
            let lengths = planned_lengths(chunk);
            assert!(lengths.is_sorted_by(|one, next| one < next));
            assert!(lengths.iter().all(|rows| planned_rows(*rows) == *rows));
            assert!((1..=chunk).all(|rows| lengths.contains(&planned_rows(rows))));
            assert_eq!(lengths.last(), Some(&planned_rows(chunk)));
        }
        assert!(planned_lengths(0).is_empty());
    }

    #[test]
    fn an_unplanned_product_has_no_cut() {
        let description = triad_model::family::shape("smollm2-135m").unwrap();
        let products = products_of(&description, 64, |_, _| Alignment::default()).unwrap();
        let joins = Joins::new(ProcessorId::new(0), 0.0, 0.0, 0.0).unwrap();
        let solver = Solver::new(participants([false; 3]), Rates([1.0; 3]), joins).unwrap();
        let plans = Plans::solve(&solver, &products, Restriction::Layer, &[32, 64]).unwrap();
        assert!(plans.product(Role::Down, 576, 1536).is_some());
        assert_eq!(plans.product(Role::Down, 576, 1535), None);
        assert_eq!(plans.product(Role::Attention, 576, 1536), None);
        let refused = plans
            .product(Role::Down, 576, 1536)
            .unwrap()
            .cut()
            .parts(65, 576)
            .unwrap_err()
            .to_string();
        assert_eq!(
            refused,
            "there is no plan for 65 rows by 576 columns: expected at most 64 by 576"
        );
    }
}
