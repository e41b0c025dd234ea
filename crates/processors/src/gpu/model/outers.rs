//! All products of a model that another processor computes in part, and the state of that processor.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::context::Context;
use super::buffers::QUAD;
use super::divided::Divided;
use super::outer::Outer;
use super::outer_worker::{Programs, Worker};
use crate::error::{Error, Result};
use crate::model::JoinStatistics;
use crate::multiplier::{Multiplier, ProductPrograms, ProductWait};

/// The products, and the processor that computes them.
pub(super) struct Outers {
    pub list: Vec<Outer>,
    pub worker: Option<Worker>,
    /// Whether the other processor has failed. The GPU then computes all products, until the other one is tried again.
    is_lost: bool,
    /// Its failure, until it was reported.
    failure: Option<Error>,
    /// Multiplications and additions of its products so far.
    pub operations: u64,
    pub statistics: JoinStatistics,
    /// How the GPU is waited for, and the latest time of what precedes a product, by its index and rows.
    wait: ProductWait,
    preceding: HashMap<(usize, usize), Duration>,
    /// Divisions by number of rows, and the generation of the buffers for which they were made.
    pub divided: HashMap<usize, Arc<Vec<Divided>>>,
    pub generation: Option<(u64, u64)>,
}

impl std::fmt::Debug for Outers {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Outers")
            .field("products", &self.list.len())
            .field("is_lost", &self.is_lost)
            .finish_non_exhaustive()
    }
}

impl Outers {
    /// Starts the thread of the other processor.
    ///
    /// # Errors
    /// If the system refuses it.
    pub fn new(multiplier: Option<Multiplier>) -> Result<Self> {
        let Multiplier {
            name,
            time_out,
            wait,
            products,
        } = multiplier.unwrap_or_default();
        let (mut list, mut programs) = (Vec::new(), Vec::new());
        for ProductPrograms {
            block,
            layers,
            programs: of_product,
            division,
        } in products
        {
            let described = of_product
                .iter()
                .map(|program| (program.columns.clone(), program.rows));
            list.push(Outer {
                block,
                layers,
                programs: described.collect(),
                division,
                in_features: 0,
                widths: Vec::new(),
                product_steps: 0..0,
                join_steps: 0..0,
            });
            programs.push(
                of_product
                    .into_iter()
                    .map(|program| program.program)
                    .collect(),
            );
        }
        let worker = Self::start(&name, programs, (time_out, wait))?;
        Ok(Self {
            list,
            worker,
            is_lost: false,
            failure: None,
            operations: 0,
            statistics: JoinStatistics::default(),
            wait,
            preceding: HashMap::new(),
            divided: HashMap::new(),
            generation: None,
        })
    }

    fn start(
        name: &str,
        programs: Vec<Programs>,
        how: (Duration, ProductWait),
    ) -> Result<Option<Worker>> {
        if programs.is_empty() {
            return Ok(None);
        }
        let worker = Worker::start(name, programs, how);
        worker.map(Some).map_err(|error| Error::Run {
            processor: name.to_owned(),
            reason: format!("no thread drives it: {error}"),
        })
    }

    /// Checks that each product is one of the model, and that outputs of `rows` rows can be divided.
    ///
    /// # Errors
    /// If one is not.
    pub fn check(&mut self, context: &Context, rows: usize) -> Result<()> {
        if let Some(outer) = self.list.iter().find(|outer| outer.join_steps.is_empty()) {
            let reason = format!(
                "it has no product of {:?}, or two lists of programs for it",
                outer.layers
            );
            return Err(outer.refused(context, &reason));
        }
        self.list
            .iter()
            .try_for_each(|outer| outer.divide(context, rows).map(|_| ()))
    }

    /// Returns the expected time of what precedes a product of some rows on the GPU, if it is to be polled for.
    pub fn expected(&self, outer: usize, rows: usize) -> Option<Duration> {
        match self.wait {
            ProductWait::Flag => self.preceding.get(&(outer, rows)).copied(),
            ProductWait::Blocking => None,
        }
    }

    /// Records that time.
    pub fn expect(&mut self, outer: usize, rows: usize, time: Duration) {
        self.preceding.insert((outer, rows), time);
    }

    /// Returns whether the other processor multiplies.
    pub fn are_running(&self) -> bool {
        self.worker.is_some() && !self.is_lost
    }

    /// Records that the other processor has failed.
    pub fn lose(&mut self, error: Error) {
        self.is_lost = true;
        self.failure = Some(error);
    }

    /// Lets the other processor multiply again, unless it still hangs.
    pub fn retry(&mut self) {
        if self.is_lost {
            self.is_lost = !self.worker.as_mut().is_some_and(Worker::has_returned);
        }
    }

    /// Returns the failure, once.
    pub fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Returns the words of the largest buffers for `rows` rows: of rows that are read, with their scales, and of
    /// outputs that are written.
    pub fn words(&self, rows: usize) -> (usize, usize) {
        let most = |of: &dyn Fn(&Outer) -> usize| self.list.iter().map(of).max().unwrap_or(0);
        let read = most(&|outer| outer.in_features / QUAD + 1);
        let written = most(&|outer| outer.columns());
        (rows * read, rows * written)
    }
}
