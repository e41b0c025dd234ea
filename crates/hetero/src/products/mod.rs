//! Measured times of a model's products on each processor of a list, alone and while the others work, and the times to
//! join their parts. They are measured once and kept in the package. The partition solver chooses by them (HeteroLLM,
//! §4.3).

pub(crate) mod decode;
mod times;

use serde::{Deserialize, Serialize};
use triad_model::description::ModelDescription;
use triad_plan::joint::{Gaps, MeasuredPrompt, PromptPlanner};
use triad_plan::partition::costs::Joins;
use triad_plan::partition::energy::{Objective, Powers};
use triad_plan::partition::interpolate::InterpolatedCosts;
use triad_plan::partition::judge::{Judged, Measured, judge};
use triad_plan::partition::plans::{ModelProduct, Plans, planned_lengths, products_of};
use triad_plan::partition::solve::{Restriction, Solver};
use triad_plan::partition::{Participant, ProductShape, Shapes, StandardLengths};
use triad_plan::processors::ProcessorId;

use super::table::{Measurements, Table};
use super::work::alignment;
use crate::error::{Error, Result};

pub use decode::{DecodeCosts, DecodePlans};
use times::{MAX_TIMES, costs_of, measurements};
pub use times::{MeasuredJoins, ProductTime};

/// Maximum processors of a list.
const MAX_PROCESSORS: usize = 64;
/// The times of a model's products on a list of processors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct ProductCosts {
    /// The longest measured chunk, in rows.
    pub chunk: usize,
    /// The processors, in the order of their ids.
    pub processors: Vec<MeasuredProcessor>,
    /// The times to join parts.
    pub joins: MeasuredJoins,
    /// The times of products.
    pub products: Vec<ProductTime>,
    /// The same for decode steps, of a model whose steps multiply in INT8; `None` if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<DecodeCosts>,
    /// The times of whole prompts, by plans of the joint search; empty if they were not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<MeasuredPrompt>,
    /// The powers of the machine and its processors; `None` if they were not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub powers: Option<Powers>,
    /// The quantity that plans minimize.
    #[serde(skip)]
    pub objective: Objective,
}

/// A processor of the list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredProcessor {
    /// Its name.
    pub name: String,
    /// The numbers of rows that it has static graphs for; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lengths: Option<Vec<usize>>,
}

/// The costs as they are read, unchecked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    chunk: usize,
    processors: Vec<MeasuredProcessor>,
    joins: MeasuredJoins,
    products: Vec<ProductTime>,
    #[serde(default)]
    decode: Option<DecodeCosts>,
    #[serde(default)]
    prompts: Vec<MeasuredPrompt>,
    #[serde(default)]
    powers: Option<Powers>,
}

impl TryFrom<Unchecked> for ProductCosts {
    type Error = String;

    fn try_from(unchecked: Unchecked) -> Result<Self, String> {
        let Unchecked {
            chunk,
            processors,
            joins,
            products,
            decode,
            prompts,
            powers,
        } = unchecked;
        let expect = |holds: bool, what: &str| {
            if holds {
                Ok(())
            } else {
                Err(format!("expected {what}"))
            }
        };
        expect(
            (1..=MAX_PROCESSORS).contains(&processors.len()),
            "1 to 64 processors",
        )?;
        expect(products.len() <= MAX_TIMES, "at most 65536 times")?;
        expect(
            ProductShape::new(chunk, 1, 1).is_ok(),
            "a chunk of 1 to 16777216 rows",
        )?;
        expect(
            joins.float.index() < processors.len(),
            "a processor of the list that computes floats",
        )?;
        let is_listed = |time: &ProductTime| time.processor.index() < processors.len();
        expect(
            products.iter().all(is_listed),
            "times of processors of the list",
        )?;
        decode
            .iter()
            .try_for_each(|decode| decode.check(processors.len()))?;
        expect(
            prompts.iter().all(MeasuredPrompt::is_plausible),
            "prompts that took 0.01 to 100 times what was expected",
        )?;
        if let Some(powers) = &powers {
            let checked = powers.check(processors.len());
            checked.map_err(|error| error.to_string())?;
        }
        let costs = Self {
            chunk,
            processors,
            joins,
            products,
            decode,
            prompts,
            powers,
            objective: Objective::Latency,
        };
        costs.participants().map_err(|error| error.to_string())?;
        costs.joins().map_err(|error| error.to_string())?;
        costs.costs()?;
        Ok(costs)
    }
}

impl ProductCosts {
    /// Returns the processors that products can be given to.
    pub(crate) fn participants(&self) -> Result<Vec<Participant>> {
        let participant =
            |(index, MeasuredProcessor { lengths, .. }): (usize, &MeasuredProcessor)| {
                let shapes = match lengths {
                    Some(lengths) => Shapes::Static(StandardLengths::new(lengths.clone())?),
                    None => Shapes::Dynamic,
                };
                Ok(Participant {
                    processor: ProcessorId::new(index),
                    shapes,
                })
            };
        self.processors
            .iter()
            .enumerate()
            .map(participant)
            .collect()
    }

    pub(crate) fn joins(&self) -> Result<Joins> {
        self.joins.joins()
    }

    fn costs(&self) -> Result<InterpolatedCosts, String> {
        costs_of(&self.products)
    }

    fn products(&self, description: &ModelDescription, chunk: usize) -> Result<Vec<ModelProduct>> {
        if chunk > self.chunk {
            return Err(Error::UnmeasuredChunk {
                chunk,
                measured: self.chunk,
            });
        }
        Ok(products_of(description, chunk, |role, shape| {
            alignment(description, role, shape)
        })?)
    }

    /// Returns a solver for these measurements.
    pub(crate) fn solver(&self) -> Result<Solver<InterpolatedCosts>> {
        let costs = self
            .costs()
            .map_err(|problem| Error::ProductCosts { problem })?;
        let solver = Solver::new(self.participants()?, costs, self.joins()?)?;
        Ok(match &self.powers {
            Some(powers) => solver.with_objective(self.objective, powers.clone()),
            None => solver,
        })
    }

    /// Returns the same costs, by which plans minimize another objective.
    ///
    /// # Errors
    /// If energy counts and no powers were measured.
    pub fn with_objective(self, objective: Objective) -> Result<Self> {
        if objective != Objective::Latency && self.powers.is_none() {
            return Err(Error::UnmeasuredPower);
        }
        Ok(Self { objective, ..self })
    }

    /// Returns how the products of a model are cut in chunks of at most `chunk` rows.
    ///
    /// # Errors
    /// If a chunk is longer than the measured ones, or the model has a product that was not measured.
    pub fn plans(
        &self,
        description: &ModelDescription,
        chunk: usize,
        restriction: Restriction,
    ) -> Result<Plans> {
        let products = self.products(description, chunk)?;
        Ok(Plans::solve(
            &self.solver()?,
            &products,
            restriction,
            &planned_lengths(chunk),
        )?)
    }

    /// Returns how one processor alone computes the products of a model in one chunk of `rows` rows. It has graphs of
    /// these standard lengths, or of `rows` rows without them.
    ///
    /// # Errors
    /// As [`ProductCosts::plans`].
    pub fn plans_alone(
        &self,
        description: &ModelDescription,
        rows: usize,
        processor: ProcessorId,
        lengths: Option<StandardLengths>,
    ) -> Result<Plans> {
        let shapes = lengths.map_or(Shapes::Dynamic, Shapes::Static);
        let costs = self
            .costs()
            .map_err(|problem| Error::ProductCosts { problem })?;
        let solver = Solver::new(
            vec![Participant { processor, shapes }],
            costs,
            self.joins()?,
        )?;
        Ok(Plans::solve(
            &solver,
            &self.products(description, rows)?,
            Restriction::Layer,
            &[rows],
        )?)
    }

    /// Returns the ways to compute the products of a model in chunks of at most `chunk` rows, for the joint search.
    /// `floats` are the processors that compute floats.
    ///
    /// # Errors
    /// As [`ProductCosts::plans`]; if there is no processor that computes floats.
    pub fn joint(
        &self,
        description: &ModelDescription,
        chunk: usize,
        floats: &[ProcessorId],
    ) -> Result<PromptPlanner> {
        let (products, lengths) = (self.products(description, chunk)?, planned_lengths(chunk));
        let costs = self
            .costs()
            .map_err(|problem| Error::ProductCosts { problem })?;
        let whole = |participant: Participant| {
            let processor = participant.processor;
            let solver = Solver::new(vec![participant], &costs, self.joins()?)?;
            Ok((
                processor,
                Plans::solve(&solver, &products, Restriction::Layer, &lengths)?,
            ))
        };
        let whole = self
            .participants()?
            .into_iter()
            .map(whole)
            .collect::<Result<_>>()?;
        let cut = Plans::solve(&self.solver()?, &products, Restriction::Tensor, &lengths)?;
        let MeasuredJoins {
            float,
            own_seconds: own,
            begin_seconds,
            end_seconds,
        } = self.joins;
        // The processor that joins were measured for comes first.
        let mut floats = floats.to_vec();
        floats.sort_by_key(|processor| *processor != float);
        let gaps = Gaps {
            own,
            other: begin_seconds.max(end_seconds),
        };
        let planner = PromptPlanner::new(description, whole, cut, floats, gaps)?;
        let planner = planner.with_measured(self.prompts.clone());
        Ok(match &self.powers {
            Some(powers) => planner.with_objective(self.objective, powers.clone()),
            None => planner,
        })
    }

    /// Returns how the products of decode steps are cut; `None` if they were not measured.
    ///
    /// # Errors
    /// If the model has a product that was not measured.
    pub fn decode_plans(
        &self,
        description: &ModelDescription,
        restriction: Restriction,
    ) -> Result<Option<DecodePlans>> {
        let plans =
            |decode: &DecodeCosts| decode.plans(description, self.participants()?, restriction);
        self.decode.as_ref().map(plans).transpose()
    }

    /// Judges predictions that are fitted to a part of the measurements, by the same ones measured `again`.
    ///
    /// # Errors
    /// If too few shapes were measured for that, different ones the second time, or not those of this model.
    pub fn judge(&self, description: &ModelDescription, again: &[ProductTime]) -> Result<Judged> {
        let of = |times| measurements(times).map_err(|problem| Error::ProductCosts { problem });
        let (first, second) = (of(&self.products)?, of(again)?);
        let [first, second] =
            [&first, &second].map(|[alone, contended]| Measured { alone, contended });
        let products = self.products(description, self.chunk)?;
        let judged = judge(
            first,
            second,
            &self.participants()?,
            self.joins()?,
            &products,
        );
        judged.map_err(|error| Error::Prediction(Box::new(error)))
    }
}

/// The product costs of several lists of processors, by name; in a package they are `products.json`.
pub type ProductTable = Table<ProductCosts>;

impl Measurements for ProductCosts {
    const FILE: &str = triad_engine::package::PRODUCTS;
}

#[cfg(test)]
mod tests {
    use triad_plan::joint::Kind;

    use super::*;

    fn costs() -> ProductCosts {
        let time = |processor, rows| ProductTime {
            processor: ProcessorId::new(processor),
            rows,
            columns: 64,
            depth: 64,
            alone: 1e-5,
            contended: 2e-5,
        };
        ProductCosts {
            chunk: 64,
            processors: vec![
                MeasuredProcessor {
                    name: "cpu".into(),
                    lengths: None,
                },
                MeasuredProcessor {
                    name: "npu".into(),
                    lengths: Some(vec![32, 64]),
                },
            ],
            joins: MeasuredJoins {
                float: ProcessorId::new(0),
                own_seconds: 1e-6,
                begin_seconds: 2e-6,
                end_seconds: 3e-6,
            },
            products: [0, 1]
                .into_iter()
                .flat_map(|processor| [32, 64].map(|rows| time(processor, rows)))
                .collect(),
            decode: None,
            prompts: vec![MeasuredPrompt {
                rows: 64,
                factors: [(Kind::Alone, 0.75), (Kind::Tensor, 1.25)].into(),
            }],
            powers: Some(Powers {
                base: 3.0,
                processors: vec![4.0, 1.5],
            }),
            objective: Objective::Latency,
        }
    }

    #[test]
    fn a_table_is_read_as_it_was_written_and_unmeasured_costs_are_refused() {
        let package = tempfile::tempdir().unwrap();
        assert_eq!(
            ProductTable::open(package.path()).unwrap(),
            ProductTable::default()
        );
        let mut table = ProductTable::default();
        table.set("cpu, npu", costs());
        table.save(package.path()).unwrap();
        assert_eq!(ProductTable::open(package.path()).unwrap(), table);
        assert_eq!(
            (table.get("cpu, npu"), table.get("cpu")),
            (Some(&costs()), None)
        );
        let written = std::fs::read_to_string(ProductTable::path(package.path())).unwrap();
        for (from, to) in [
            ("\"alone\": 0.00001", "\"alone\": -1e-5"),
            ("\"contended\": 0.00002", "\"contended\": 0.0"),
            ("\"alone\": 0.00001", "\"alone\": 1e999"),
            ("\"begin_seconds\": 2e-6", "\"begin_seconds\": -1.0"),
            ("\"float\": 0", "\"float\": 2"),
            ("\"processor\": 1", "\"processor\": 2"),
            ("\"rows\": 32", "\"rows\": 0"),
            ("\"rows\": 32", "\"rows\": 64"),
            ("\"depth\": 64", "\"depth\": 18446744073709551615"),
            ("\"chunk\": 64", "\"chunk\": 0"),
            ("\"tensor\": 1.25", "\"tensor\": 0.0"),
            ("\"tensor\": 1.25", "\"tensor\": -1.0"),
            ("\"tensor\": 1.25", "\"tensors\": 1.25"),
            ("\"name\": \"cpu\"", "\"name\": \"cpu\", \"cores\": 3"),
            ("32,\n          64", "48"),
        ] {
            assert!(written.contains(from), "{from} in {written}");
            std::fs::write(
                ProductTable::path(package.path()),
                written.replacen(from, to, 1),
            )
            .unwrap();
            let refused = ProductTable::open(package.path()).unwrap_err().to_string();
            assert!(
                refused.contains("products.json") && refused.contains("triad profile"),
                "{to}: {refused}"
            );
        }
    }

    #[test]
    fn what_was_not_measured_has_no_plan() {
        let description = triad_model::family::shape("smollm2-135m").unwrap();
        let unmeasured = costs()
            .plans(&description, 64, Restriction::Auto)
            .unwrap_err()
            .to_string();
        assert!(unmeasured.contains("is unknown"), "{unmeasured}");
        let longer = costs()
            .plans(&description, 65, Restriction::Auto)
            .unwrap_err()
            .to_string();
        assert!(
            longer.contains("65") && longer.contains("64") && longer.contains("triad profile"),
            "{longer}"
        );
    }
}
