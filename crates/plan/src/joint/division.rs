//! The candidates for a prompt in chunks of one length, and their simulated times.

use super::{
    Assignment, Assignments, BLOCKS, CandidateId, Kind, PERIOD, Prompt, PromptPlanner, assigned,
    searched, truncated,
};
use crate::graph::{Graph, Role, Task};
use crate::processors::ProcessorId;
use crate::schedule::parts::CutError;
use crate::simulate::{Begin, Takes, simulate_each};
use crate::tasks::{PrefillTask, PrefillTasks};
use crate::timeline::Timeline;

/// Busy seconds of processors.
type Busy = Vec<(ProcessorId, f64)>;

/// A prompt divided into chunks of one length.
pub(super) struct Division<'a> {
    joint: &'a PromptPlanner,
    prompt: &'a Prompt<'a>,
    /// The graph of the searched blocks. `fewer` has [`PERIOD`] fewer blocks, if not all of the model's are searched.
    graph: Graph,
    fewer: Option<Graph>,
    /// Processors that compute nothing.
    without: &'a [ProcessorId],
    /// Number of the model's blocks beyond those of `graph`, divided by [`PERIOD`].
    periods_left: f64,
}

impl<'a> Division<'a> {
    pub(super) fn new(
        joint: &'a PromptPlanner,
        prompt: &'a Prompt,
        chunk: usize,
        without: &'a [ProcessorId],
    ) -> Self {
        let all = prompt.description.blocks.len();
        let graph = |blocks| {
            // Each product of a feed-forward has its own way, so all feed-forwards are split.
            Graph::with_splits(
                &truncated(prompt.description, blocks),
                prompt.rows,
                chunk,
                |_| true,
            )
        };
        let fewer = (all > BLOCKS).then(|| graph(BLOCKS - PERIOD));
        let periods_left = all.saturating_sub(BLOCKS) as f64 / PERIOD as f64;
        Self {
            joint,
            prompt,
            graph: graph(all.min(BLOCKS)),
            fewer,
            without,
            periods_left,
        }
    }

    /// Returns ways given by a function of chunk and subgraph.
    fn uniform(&self, way: impl Fn(usize, usize) -> Assignment) -> Assignments {
        let of_chunk = |chunk| {
            (0..self.graph.subgraphs().len())
                .map(|subgraph| way(chunk, subgraph))
                .collect()
        };
        (0..self.graph.chunks().len()).map(of_chunk).collect()
    }

    pub(super) fn candidates(&self) -> Vec<(CandidateId, Assignments)> {
        let joint = self.joint;
        let Some(float) = self.floats().next() else {
            return Vec::new();
        };
        let of_product = |chunk: usize, subgraph: usize, ways: &[Assignment]| {
            let seconds = |way: &&Assignment| {
                self.product_seconds(chunk, subgraph, **way)
                    .map_or(f64::INFINITY, |(all, _)| all)
            };
            ways.iter()
                .min_by(|a, b| seconds(a).total_cmp(&seconds(b)))
                .copied()
        };
        let whole: Vec<_> = joint.processors().map(Assignment::On).collect();
        let all: Vec<_> = whole.iter().copied().chain([Assignment::Cut]).collect();
        let by_product = |ways: &[Assignment]| {
            self.uniform(|chunk, subgraph| {
                let is_product = self.graph.subgraphs()[subgraph].role.is_product();
                of_product(chunk, subgraph, ways)
                    .filter(|_| is_product)
                    .unwrap_or(Assignment::On(float))
            })
        };
        let mut found: Vec<_> = joint
            .processors()
            .filter(|processor| joint.floats.contains(processor))
            .map(|processor| {
                (
                    CandidateId::alone(processor),
                    self.uniform(|_, _| Assignment::On(processor)),
                )
            })
            .collect();
        found.push((Kind::Layer.into(), by_product(&whole)));
        found.push((Kind::Tensor.into(), by_product(&[Assignment::Cut])));
        found.push((Kind::Auto.into(), by_product(&all)));
        let turns: Vec<_> = joint
            .floats
            .iter()
            .copied()
            .filter(|one| whole.contains(&Assignment::On(*one)))
            .collect();
        if turns.len() > 1 && self.graph.chunks().len() > 1 {
            found.push((
                Kind::Chunks.into(),
                self.uniform(|chunk, _| Assignment::On(turns[chunk % turns.len()])),
            ));
        }
        found.push((Kind::Placed.into(), self.earliest(&whole, 0.0)));
        for weight in [0.0, 1.0] {
            found.push((Kind::Mixed.into(), self.earliest(&all, weight)));
        }
        if !self.without.is_empty() {
            found.retain(|(_, ways)| self.leaves_out(ways));
        }
        found
    }

    /// Returns the processors that compute in float and are not omitted.
    pub(super) fn floats(&self) -> impl Iterator<Item = ProcessorId> {
        self.joint
            .floats
            .iter()
            .copied()
            .filter(|processor| !self.without.contains(processor))
    }

    /// Returns whether the omitted processors compute nothing.
    pub(super) fn leaves_out(&self, ways: &Assignments) -> bool {
        self.graph.tasks().all(|task| {
            self.task_seconds(task, ways[task.chunk][task.subgraph])
                .is_some()
        })
    }

    /// Returns the seconds of the products of one chunk, all on one processor.
    pub(super) fn seconds_alone(&self, processor: ProcessorId) -> f64 {
        let products = (0..self.graph.subgraphs().len())
            .filter(|at| self.graph.subgraphs()[*at].role.is_product());
        let seconds = |at| {
            self.product_seconds(0, at, Assignment::On(processor))
                .map_or(f64::INFINITY, |(all, _)| all)
        };
        products.map(seconds).sum()
    }

    /// Returns the seconds of each processor that computes a subgraph of a chunk in a way; `None` if there is no plan
    /// for it, or an omitted processor has a part.
    fn task_seconds(&self, task: Task, way: Assignment) -> Option<Busy> {
        match way {
            Assignment::On(processor)
                if !self.graph.subgraphs()[task.subgraph].role.is_product() =>
            {
                let seconds = || {
                    (self.prompt.seconds)(
                        &self.graph,
                        &PrefillTask::whole(&self.graph, task),
                        processor,
                    )
                };
                (!self.without.contains(&processor)).then(|| vec![(processor, seconds())])
            }
            _ => self
                .product_seconds(task.chunk, task.subgraph, way)
                .map(|(_, busy)| busy),
        }
    }

    /// Chooses for each subgraph of each chunk, in the order of its remaining path, the way in which it ends first.
    /// Each second of work beyond the minimum counts as `weight` seconds.
    fn earliest(&self, ways: &[Assignment], weight: f64) -> Assignments {
        let (graph, joint) = (&self.graph, self.joint);
        let subgraphs = graph.subgraphs().len();
        let index = |task: Task| task.chunk * subgraphs + task.subgraph;
        let tasks: Vec<_> = graph.tasks().collect();
        // Busy seconds of each task in each way.
        let options: Vec<Vec<(Assignment, Busy)>> = tasks
            .iter()
            .map(|task| {
                let of_way = |way: Assignment| Some((way, self.task_seconds(*task, way)?));
                match graph.subgraphs()[task.subgraph].role.is_product() {
                    true => ways.iter().copied().filter_map(of_way).collect(),
                    false => self
                        .floats()
                        .map(Assignment::On)
                        .filter_map(of_way)
                        .collect(),
                }
            })
            .collect();
        let longest = |busy: &[(ProcessorId, f64)]| {
            busy.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max)
        };
        let least = |task: usize| {
            options[task]
                .iter()
                .map(|(_, busy)| longest(busy))
                .fold(f64::INFINITY, f64::min)
        };
        let mut ranks: Vec<f64> = (0..tasks.len()).map(least).collect();
        let mut after = vec![0.0f64; tasks.len()];
        // The successors of a task have higher numbers.
        for task in tasks.iter().rev() {
            let place = index(*task);
            ranks[place] += after[place];
            for before in graph.dependencies(*task) {
                after[index(before)] = after[index(before)].max(ranks[place]);
            }
        }
        let mut order: Vec<_> = (0..tasks.len()).collect();
        order.sort_by(|a, b| ranks[*b].total_cmp(&ranks[*a]).then(a.cmp(b)));
        let mut free = vec![0.0f64; self.prompt.processors.len()];
        // End time and processors of each task.
        let mut ended: Vec<(f64, Vec<ProcessorId>)> = vec![(0.0, Vec::new()); tasks.len()];
        let mut chosen = vec![Assignment::On(joint.floats[0]); tasks.len()];
        for place in order {
            let begin = |processor: ProcessorId, free: f64| {
                let before = graph
                    .dependencies(tasks[place])
                    .map(|before| &ended[index(before)]);
                before.fold(free, |begin, (end, on)| {
                    begin.max(end + self.gap(processor, on))
                })
            };
            let work =
                |busy: &[(ProcessorId, f64)]| busy.iter().map(|(_, seconds)| seconds).sum::<f64>();
            let least = options[place]
                .iter()
                .map(|(_, busy)| work(busy))
                .fold(f64::INFINITY, f64::min);
            let end = |busy: &[(ProcessorId, f64)]| {
                let ends = busy
                    .iter()
                    .map(|(id, seconds)| begin(*id, free[id.index()]) + seconds);
                ends.fold(0.0, f64::max)
            };
            let score = |busy: &[(ProcessorId, f64)]| end(busy) + weight * (work(busy) - least);
            let best = options[place]
                .iter()
                .min_by(|a, b| score(&a.1).total_cmp(&score(&b.1)));
            let Some((way, busy)) = best else { continue };
            let ends: Vec<_> = busy
                .iter()
                .map(|(id, seconds)| (*id, begin(*id, free[id.index()]) + seconds))
                .collect();
            ended[place] = (end(busy), busy.iter().map(|(id, _)| *id).collect());
            chosen[place] = *way;
            ends.into_iter()
                .for_each(|(id, end)| free[id.index()] = end);
        }
        chosen.chunks(subgraphs).map(<[_]>::to_vec).collect()
    }

    /// Returns the gap between the end of a task on some processors and the start of the next one on `processor`.
    fn gap(&self, processor: ProcessorId, on: &[ProcessorId]) -> f64 {
        match on.iter().all(|other| *other == processor) {
            true => self.joint.gaps.own,
            false => self.joint.gaps.other,
        }
    }

    /// Returns the seconds until a product is complete in a way, and those of each processor; `None` if there is no
    /// plan for it, or an omitted processor has a part.
    fn product_seconds(
        &self,
        chunk: usize,
        subgraph: usize,
        way: Assignment,
    ) -> Option<(f64, Busy)> {
        let (rows, subgraph) = (
            self.graph.chunks()[chunk].len(),
            &self.graph.subgraphs()[subgraph],
        );
        let choice = self
            .joint
            .choice(way, subgraph.block, subgraph.role, rows)?;
        let is_left_out = choice
            .best
            .busy
            .iter()
            .any(|(processor, _)| self.without.contains(processor));
        (!is_left_out).then(|| (choice.best.seconds, choice.best.busy.clone()))
    }

    /// Returns the simulated seconds of the whole prompt. The searched blocks are simulated; the others are
    /// extrapolated from the time of one period.
    pub(super) fn seconds(&self, ways: &Assignments) -> Result<f64, CutError> {
        let searched = self.simulated(&self.graph, ways)?;
        let Some(fewer) = &self.fewer else {
            return Ok(searched);
        };
        Ok(searched + self.periods_left * (searched - self.simulated(fewer, ways)?))
    }

    /// Returns the simulated seconds of all blocks, and the joules if the powers of the processors are known.
    pub(super) fn of_all(&self, ways: &Assignments) -> Result<(f64, Option<f64>), CutError> {
        let description = self.prompt.description;
        let graph = Graph::with_splits(
            description,
            self.prompt.rows,
            self.graph.chunks()[0].len(),
            |_| true,
        );
        let of_block = self.graph.subgraphs().len() / description.blocks.len().min(BLOCKS);
        let of_chunk = |ways: &Vec<Assignment>| {
            let blocks = (0..description.blocks.len())
                .map(|block| searched(block, ways.len() / of_block) * of_block);
            blocks
                .flat_map(|first| ways[first..first + of_block].iter().copied())
                .collect()
        };
        let timeline = self.timeline(&graph, &ways.iter().map(of_chunk).collect())?;
        let seconds = timeline.seconds();
        let busy = timeline.events().iter();
        let busy = busy.map(|event| (event.processor, event.end - event.start));
        let energy = self.joint.energy.as_ref();
        Ok((
            seconds,
            energy.map(|(_, powers)| powers.joules(seconds, busy)),
        ))
    }

    fn simulated(&self, graph: &Graph, ways: &Assignments) -> Result<f64, CutError> {
        Ok(self.timeline(graph, ways)?.seconds())
    }

    fn timeline(&self, graph: &Graph, ways: &Assignments) -> Result<Timeline, CutError> {
        let Prompt {
            processors,
            options,
            policy,
            seconds: of_float,
            ..
        } = *self.prompt;
        let assignment =
            |task: Task| assigned(self.joint, graph, task, ways[task.chunk][task.subgraph]);
        let seconds = |task: &PrefillTask, id: ProcessorId| {
            let Task {
                chunk, subgraph, ..
            } = task.task;
            let product = self
                .joint
                .seconds_of_part(graph, ways[chunk][subgraph], task, id);
            product.unwrap_or_else(|| of_float(graph, task, id))
        };
        let tasks = PrefillTasks::assigned(graph, processors, options, &assignment, seconds)?;
        let dag = &tasks.dag;
        let gaps: Vec<_> = (0..dag.len())
            .map(|task| {
                let on: Vec<_> = dag
                    .predecessors(task)
                    .iter()
                    .map(|before| dag.home(*before))
                    .collect();
                self.gap(dag.home(task), &on)
            })
            .collect();
        let takes = |begin: Begin| Takes {
            before: gaps[begin.task],
            ..dag.seconds(begin.task).into()
        };
        Ok(simulate_each(dag, policy, takes))
    }

    /// Improves a candidate by computing all products of a role, or all floats, in another way while that is faster.
    pub(super) fn refined(
        &self,
        ways: &Assignments,
        seconds: f64,
    ) -> Result<Option<(Assignments, f64)>, CutError> {
        let groups = [
            None,
            Some(Role::QueryKeyValue),
            Some(Role::AttentionOutput),
            Some(Role::GateUp),
            Some(Role::Down),
        ];
        let on: Vec<_> = self.joint.processors().map(Assignment::On).collect();
        let of_products: Vec<_> = on.iter().copied().chain([Assignment::Cut]).collect();
        let of_floats: Vec<_> = self
            .joint
            .floats
            .iter()
            .copied()
            .map(Assignment::On)
            .collect();
        let mut best: Option<(Assignments, f64)> = None;
        for role in groups {
            for way in if role.is_some() {
                &of_products
            } else {
                &of_floats
            } {
                let (from, least) = best
                    .as_ref()
                    .map_or((ways, seconds), |(ways, seconds)| (ways, *seconds));
                let mut changed = from.clone();
                for chunk in &mut changed {
                    for (subgraph, old) in self.graph.subgraphs().iter().zip(chunk) {
                        let is_here =
                            role.map_or(!subgraph.role.is_product(), |role| subgraph.role == role);
                        *old = if is_here { *way } else { *old };
                    }
                }
                if changed == *from || !(self.without.is_empty() || self.leaves_out(&changed)) {
                    continue;
                }
                let seconds = self.seconds(&changed)?;
                if seconds < least {
                    best = Some((changed, seconds));
                }
            }
        }
        Ok(best)
    }
}
