//! Search of candidates for a prompt, with their simulated times.

use std::sync::Arc;

use super::{
    Assignment, Assignments, BLOCKS, Best, Candidate, CandidateId, Found, JointPlan, Kind,
    MeasuredPrompt, PERIOD, Prompt, PromptPlanner, assigned, searched, truncated,
};
use crate::graph::{Graph, Role, Task};
use crate::processors::ProcessorId;
use crate::schedule::parts::CutError;
use crate::simulate::{Begin, Takes, simulate_each};
use crate::tasks::{PrefillTask, PrefillTasks};

/// Chunk lengths of candidates are multiples of this number of rows.
const ROWS: usize = 32;
/// Number of additional chunk counts to try, beyond the smallest possible one.
const MORE_CHUNKS: usize = 3;
/// Minimum speedup that an additional processor must bring to be used. The simulation omits most of the time for
/// waiting and for shared memory, and the measured prompts may have left the processor nearly idle.
const WORTH_IT: f64 = 1.05;

/// Busy seconds of processors.
type Busy = Vec<(ProcessorId, f64)>;

/// A prompt divided into chunks of one length.
struct Division<'a> {
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

pub(super) fn search(joint: &PromptPlanner, prompt: &Prompt) -> Result<JointPlan, CutError> {
    let mut without = Vec::new();
    let mut found = candidates(joint, prompt, &without)?;
    // Omit the slowest processor if the result is as good. With two processors, one alone is already a candidate.
    for _ in 2..joint.processors().count() {
        let Some(fastest) = several(&found) else {
            break;
        };
        let division = Division::new(joint, prompt, fastest.chunk, &without);
        let others = joint
            .processors()
            .filter(|processor| !without.contains(processor));
        let seconds = |processor: &ProcessorId| division.seconds_alone(*processor);
        let Some(slowest) = others.max_by(|a, b| seconds(a).total_cmp(&seconds(b))) else {
            break;
        };
        without.push(slowest);
        if Division::new(joint, prompt, fastest.chunk, &without).leaves_out(&fastest.ways) {
            continue;
        }
        let mut fewer = candidates(joint, prompt, &without)?;
        match several(&fewer) {
            Some(best) if best.seconds < WORTH_IT * fastest.seconds => {}
            _ => break,
        }
        // Omitted processors can still be candidates alone.
        fewer.extend(found.into_iter().filter(|(id, _)| id.is_alone()));
        found = fewer;
    }
    let candidate = |(id, best): (&CandidateId, &Best)| {
        let factor = MeasuredPrompt::factor(&joint.measured, id.kind, prompt.rows);
        Candidate {
            id: *id,
            seconds: best.seconds,
            factor,
        }
    };
    let mut candidates: Vec<_> = found.iter().map(candidate).collect();
    candidates.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let id = fastest(&candidates, |_| 1.0);
    let Best { chunk, seconds, .. } = found[&id];
    Ok(JointPlan {
        chunk,
        id,
        seconds,
        candidates,
        found: Arc::new(found),
    })
}

/// Returns the candidate with the least expected time. This is the simulated time, multiplied by the measured factor if
/// any candidate has one, and by `multiple`. Several processors must be faster than one by the minimum speedup. If some
/// candidates have measured factors, those without are not chosen.
///
/// # Panics
/// If there is no candidate.
pub fn fastest(candidates: &[Candidate], multiple: impl Fn(CandidateId) -> f64) -> CandidateId {
    let are_measured = candidates.iter().any(|one| one.factor.is_some());
    let expected = |one: &Candidate| {
        let seconds = if are_measured {
            one.measured_seconds().unwrap_or(f64::INFINITY)
        } else {
            one.seconds
        };
        let margin = if one.id.is_alone() { 1.0 } else { WORTH_IT };
        margin * multiple(one.id) * seconds
    };
    let least = candidates
        .iter()
        .min_by(|a, b| expected(a).total_cmp(&expected(b)));
    least.expect("there is a candidate").id
}

/// Returns the fastest candidate on several processors, by the simulation.
fn several(found: &Found) -> Option<&Best> {
    let several = found
        .iter()
        .filter(|(id, _)| !id.is_alone())
        .map(|(_, best)| best);
    several.min_by(|a, b| a.seconds.total_cmp(&b.seconds))
}

/// Returns the best candidate of each kind, with the processors of `without` omitted.
fn candidates(
    joint: &PromptPlanner,
    prompt: &Prompt,
    without: &[ProcessorId],
) -> Result<Found, CutError> {
    let mut found = Found::new();
    let fewest = prompt.rows.div_ceil(prompt.most_rows);
    let mut lengths = Vec::new();
    for chunks in fewest..=fewest + MORE_CHUNKS {
        let chunk = prompt
            .rows
            .div_ceil(chunks)
            .next_multiple_of(ROWS)
            .min(prompt.most_rows);
        if !lengths.contains(&chunk) {
            lengths.push(chunk);
        }
    }
    // The chunk length that is used without a plan.
    if !lengths.contains(&prompt.most_rows) {
        lengths.push(prompt.most_rows);
    }
    for chunk in lengths {
        let division = Division::new(joint, prompt, chunk, without);
        for (id, ways) in division.candidates() {
            let seconds = division.seconds(&ways)?;
            if found.get(&id).is_none_or(|best| seconds < best.seconds) {
                found.insert(
                    id,
                    Best {
                        ways,
                        chunk,
                        seconds,
                    },
                );
            }
        }
    }
    let Some(fastest) = found
        .values()
        .min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    else {
        return Ok(found);
    };
    let division = Division::new(joint, prompt, fastest.chunk, without);
    if let Some((ways, seconds)) = division.refined(&fastest.ways, fastest.seconds)? {
        let chunk = fastest.chunk;
        found.insert(
            Kind::Mixed.into(),
            Best {
                ways,
                chunk,
                seconds,
            },
        );
    }
    // An overlap that works in a few blocks may not work in all of them.
    for best in found.values_mut() {
        best.seconds =
            Division::new(joint, prompt, best.chunk, without).seconds_of_all(&best.ways)?;
    }
    Ok(found)
}

impl<'a> Division<'a> {
    fn new(
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

    fn candidates(&self) -> Vec<(CandidateId, Assignments)> {
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
    fn floats(&self) -> impl Iterator<Item = ProcessorId> {
        self.joint
            .floats
            .iter()
            .copied()
            .filter(|processor| !self.without.contains(processor))
    }

    /// Returns whether the omitted processors compute nothing.
    fn leaves_out(&self, ways: &Assignments) -> bool {
        self.graph.tasks().all(|task| {
            self.task_seconds(task, ways[task.chunk][task.subgraph])
                .is_some()
        })
    }

    /// Returns the seconds of the products of one chunk, all on one processor.
    fn seconds_alone(&self, processor: ProcessorId) -> f64 {
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
    fn seconds(&self, ways: &Assignments) -> Result<f64, CutError> {
        let searched = self.simulated(&self.graph, ways)?;
        let Some(fewer) = &self.fewer else {
            return Ok(searched);
        };
        Ok(searched + self.periods_left * (searched - self.simulated(fewer, ways)?))
    }

    /// Returns the simulated seconds of all blocks.
    fn seconds_of_all(&self, ways: &Assignments) -> Result<f64, CutError> {
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
        self.simulated(&graph, &ways.iter().map(of_chunk).collect())
    }

    fn simulated(&self, graph: &Graph, ways: &Assignments) -> Result<f64, CutError> {
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
        Ok(simulate_each(dag, policy, takes).seconds())
    }

    /// Improves a candidate by computing all products of a role, or all floats, in another way while that is faster.
    fn refined(
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
