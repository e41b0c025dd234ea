use proptest::prelude::*;
use triad_model::family;

use super::*;
use crate::graph::Subgraph;
use crate::partition::costs::{Costs, Joins};
use crate::partition::energy::Objective;
use crate::partition::plans::{planned_lengths, products_of};
use crate::partition::solve::{Restriction, Solver};
use crate::partition::{
    Alignment, Participant, ProductShape, Shapes, StandardLengths, UnknownCost,
};
use crate::placement::Placement;
use crate::processors::Processor;
use crate::simulate::{Begin, Takes, simulate_each};
use crate::tasks::{Operation, PrefillTasks};

/// Seconds per element on each processor, and the slowdown next to others.
#[derive(Clone, Copy, Debug)]
struct Rates {
    alone: [f64; 3],
    contended: f64,
    /// Seconds per product, independent of its size.
    fixed: f64,
}

impl Costs for Rates {
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        Ok(self.fixed + self.alone[processor.index()] * shape.operations())
    }

    fn concurrent_seconds(
        &self,
        processor: ProcessorId,
        shape: ProductShape,
    ) -> Result<f64, UnknownCost> {
        Ok(self.fixed + self.contended * self.alone[processor.index()] * shape.operations())
    }
}

/// Several processors, the first of which is a CPU.
#[derive(Debug)]
struct Machine {
    processors: Processors,
    participants: Vec<Participant>,
    floats: Vec<ProcessorId>,
    rates: Rates,
    /// Seconds per token of each float subgraph.
    float_seconds: f64,
}

const CHUNK: usize = 128;

fn description(blocks: usize) -> ModelDescription {
    truncated(&family::shape("smollm2-135m").unwrap(), blocks)
}

fn machine(is_npu: &[bool], rates: Rates, float_seconds: f64) -> Machine {
    let list: Vec<_> = is_npu
        .iter()
        .enumerate()
        .map(|(index, is_npu)| match is_npu {
            true => Processor::npu(&format!("npu{index}"), None),
            false => Processor::cpu(&format!("cpu{index}")),
        })
        .collect();
    let id = ProcessorId::new;
    let floats = (0..is_npu.len())
        .filter(|index| !is_npu[*index])
        .map(id)
        .collect();
    let participant = |(index, is_npu): (usize, &bool)| {
        let lengths = Shapes::Static(StandardLengths::new(vec![32, 64, 128]).unwrap());
        Participant {
            processor: id(index),
            shapes: if *is_npu { lengths } else { Shapes::Dynamic },
        }
    };
    let participants = is_npu.iter().enumerate().map(participant).collect();
    Machine {
        processors: Processors::new(list).unwrap(),
        participants,
        floats,
        rates,
        float_seconds,
    }
}

impl Machine {
    fn joint(&self, description: &ModelDescription) -> PromptPlanner {
        let alignment = Alignment {
            columns: 64,
            margins: true,
            ..Alignment::default()
        };
        let products = products_of(description, CHUNK, |_, _| alignment).unwrap();
        let joins = || Joins::new(self.floats[0], 1e-6, 3e-6, 0.0).unwrap();
        let solve = |participants: Vec<Participant>, restriction| {
            let solver = Solver::new(participants, self.rates, joins()).unwrap();
            Plans::solve(&solver, &products, restriction, &planned_lengths(CHUNK)).unwrap()
        };
        let whole = self
            .participants
            .iter()
            .map(|one| (one.processor, solve(vec![one.clone()], Restriction::Layer)));
        let cut = solve(self.participants.clone(), Restriction::Tensor);
        PromptPlanner::new(
            description,
            whole.collect(),
            cut,
            self.floats.clone(),
            Gaps {
                own: 1e-6,
                other: 3e-6,
            },
        )
        .unwrap()
    }

    fn options(&self, description: &ModelDescription) -> TaskOptions {
        let graph = Graph::with_splits(description, CHUNK, CHUNK, |_| true);
        TaskOptions::whole(
            Placement::new(&graph, &self.processors, |_, _| 1.0).unwrap(),
            4,
        )
    }

    fn plan(&self, description: &ModelDescription, rows: usize) -> (PromptPlanner, JointPlan) {
        let joint = self.joint(description);
        let plan = self.plan_of(&joint, description, rows);
        (joint, plan)
    }

    fn plan_of(
        &self,
        joint: &PromptPlanner,
        description: &ModelDescription,
        rows: usize,
    ) -> JointPlan {
        let float = self.float_seconds;
        let seconds = |graph: &Graph, task: &PrefillTask, _| {
            float * graph.chunks()[task.task.chunk].len() as f64
        };
        let (processors, options) = (&self.processors, &self.options(description));
        let prompt = Prompt {
            description,
            processors,
            options,
            rows,
            most_rows: CHUNK,
            policy: Policy::CriticalPath,
            seconds: &seconds,
        };
        joint.plan(&prompt).unwrap()
    }
}

fn seconds_of(plan: &JointPlan, kind: Kind) -> Option<f64> {
    plan.candidates
        .iter()
        .find(|one| one.id.kind == kind)
        .map(|one| one.seconds)
}

prop_compose! {
    fn machines()(
        is_npu in prop::sample::select(vec![vec![false, false], vec![false, true], vec![false, true, false]]),
        alone in [0.5e-11f64..8e-11, 0.5e-11f64..8e-11, 0.5e-11f64..8e-11],
        contended in 1.0f64..2.0,
        fixed in 0.0f64..1e-4,
        float_seconds in 0.0f64..2e-5,
    ) -> Machine {
        machine(&is_npu, Rates { alone, contended, fixed }, float_seconds)
    }
}

#[test]
fn a_prompt_is_planned_as_the_candidate_that_is_asked_for_or_that_is_fastest_by_what_prompts_took()
{
    let machine = machine(
        &[false, false],
        Rates {
            alone: [1e-11; 3],
            contended: 1.0,
            fixed: 0.0,
        },
        1e-6,
    );
    let (description, rows) = (description(4), 100);
    let (joint, plan) = machine.plan(&description, rows);
    assert_ne!(plan.id.kind, Kind::Alone, "two are faster than one");
    let seconds = |kind| seconds_of(&plan, kind).unwrap();
    for Candidate { id, seconds, .. } in &plan.candidates {
        let one = plan.by(*id).unwrap();
        assert_eq!((one.id, one.seconds), (*id, *seconds));
        let only = one
            .ways()
            .iter()
            .flatten()
            .all(|way| id.alone.is_some_and(|alone| *way == Assignment::On(alone)));
        assert_eq!(
            (id.is_alone(), one.alone().is_some()),
            (only, only),
            "{one:?}"
        );
    }
    let alone: Vec<_> = plan
        .candidates
        .iter()
        .filter_map(|one| one.id.alone)
        .collect();
    assert!(
        [0, 1]
            .iter()
            .all(|id| alone.contains(&ProcessorId::new(*id)))
            && alone.len() == 2,
        "{alone:?}"
    );
    assert_eq!(plan.by(CandidateId::alone(ProcessorId::new(2))), None);
    let chosen = |factors: &[(Kind, f64)]| {
        let measured = vec![MeasuredPrompt {
            rows,
            factors: factors.iter().copied().collect(),
        }];
        machine
            .plan_of(&joint.clone().with_measured(measured), &description, rows)
            .id
            .kind
    };
    // Several processors must be 5 % faster than one.
    let most = seconds(Kind::Alone) / seconds(Kind::Tensor) / 1.05;
    assert_eq!(
        chosen(&[(Kind::Alone, 1.0), (Kind::Tensor, 1.01 * most)]),
        Kind::Alone
    );
    assert_eq!(
        chosen(&[(Kind::Alone, 1.0), (Kind::Tensor, 0.99 * most)]),
        Kind::Tensor
    );
    // Among several processors, the fastest kind is chosen, by any margin.
    let most = seconds(Kind::Tensor) / seconds(Kind::Placed);
    let of_several = |placed| {
        chosen(&[
            (Kind::Alone, 9.0),
            (Kind::Tensor, 1.0),
            (Kind::Placed, placed),
        ])
    };
    assert_eq!(
        [1.01 * most, 0.99 * most].map(of_several),
        [Kind::Tensor, Kind::Placed]
    );
    // A kind may run later than expected.
    let measured = [(Kind::Alone, 2.0), (Kind::Tensor, 1.0), (Kind::Layer, 1.5)];
    let all = measured.map(|(kind, factor)| Candidate {
        id: kind.into(),
        seconds: 1.0,
        factor: Some(factor),
        joules: None,
        objective: Objective::Latency,
    });
    let late =
        |late: f64| fastest(&all, |id| if id.kind == Kind::Tensor { late } else { 1.0 }).kind;
    assert_eq!([1.49, 1.51].map(late), [Kind::Tensor, Kind::Layer]);
    // Energy, and the product of both.
    let by = |objective| {
        let with_joules = all.iter().map(|one| Candidate {
            joules: Some(if one.id.kind == Kind::Tensor {
                3.2
            } else {
                1.0
            }),
            objective,
            ..*one
        });
        fastest(&with_joules.collect::<Vec<_>>(), |_| 1.0).kind
    };
    let chosen = Objective::ALL.map(by);
    assert_eq!(chosen, [Kind::Tensor, Kind::Layer, Kind::Layer]);
    // A kind that was not measured is chosen only on request.
    let measured = vec![MeasuredPrompt {
        rows,
        factors: [(Kind::Layer, 1.0)].into(),
    }];
    let joint = joint.clone().with_measured(measured);
    let plan = machine.plan_of(&joint, &description, rows);
    assert_eq!(
        (plan.id.kind, plan.by(Kind::Tensor.into()).unwrap().id.kind),
        (Kind::Layer, Kind::Tensor)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_plan_is_not_slower_than_layers_tensors_or_a_processor_alone_by_the_same_costs(
        machine in machines(),
        rows in 1usize..500,
    ) {
        let (_, plan) = machine.plan(&description(10), rows);
        for kind in [Kind::Alone, Kind::Layer, Kind::Tensor, Kind::Auto, Kind::Placed, Kind::Mixed] {
            let Some(seconds) = seconds_of(&plan, kind) else {
                // There are only NPUs, or a processor with a part of each cut is omitted.
                prop_assert!(kind == Kind::Alone || machine.processors.len() > 2);
                continue;
            };
            // One processor alone is chosen unless several are at least 5 % faster.
            let most = if plan.id.is_alone() { 1.05 * seconds } else { seconds };
            prop_assert!(plan.seconds <= most, "{:?}", plan);
        }
        prop_assert!(plan.candidates.is_sorted_by(|a, b| a.seconds <= b.seconds));
    }

    #[test]
    fn every_output_is_computed_once_where_the_plan_has_it(machine in machines(), rows in 1usize..500) {
        let description = description(14);
        let (joint, plan) = machine.plan(&description, rows);
        let graph = Graph::with_splits(&description, rows, plan.chunk, |_| true);
        let options = machine.options(&description);
        let assignment = joint.assignment(&plan, &graph);
        let tasks = PrefillTasks::assigned(&graph, &machine.processors, &options, &assignment, |_, _| 1.0).unwrap();
        let mut computed = vec![0.0; graph.chunks().len() * graph.subgraphs().len()];
        for (number, task) in tasks.tasks.iter().enumerate() {
            prop_assert_eq!(task.operation, Operation::Compute);
            let Task { chunk, subgraph, .. } = task.task;
            computed[chunk * graph.subgraphs().len() + subgraph] += task.share(&graph);
            let Subgraph { role, block, .. } = graph.subgraphs()[subgraph];
            let home = tasks.dag.home(number);
            prop_assert!(role.is_product() || machine.floats.contains(&home), "{} of block {}", role.name(), block);
            // A processor with static shapes has a program for the piece.
            if role.is_product() {
                let pieces = joint.pieces(block, role, CHUNK).unwrap();
                let is_there = |piece: &Piece| {
                    let enough = piece.rows >= task.part.rows.len();
                    piece.processor == home && piece.part.columns == task.part.columns && enough
                };
                prop_assert!(pieces.iter().any(is_there), "{:?} on {:?}", task, home);
            }
        }
        prop_assert!(computed.iter().all(|share| (share - 1.0).abs() < 1e-9), "{:?}", computed);
    }
}

#[test]
fn two_equal_processors_take_turns_where_floats_are_long_and_cut_where_there_is_nothing_else_to_do()
{
    let equal = Rates {
        alone: [3e-12; 3],
        contended: 1.0,
        fixed: 0.0,
    };
    let (_, plan) = machine(&[false, false], equal, 1e-5).plan(&description(30), 256);
    let alone = seconds_of(&plan, Kind::Alone).unwrap();
    assert!(
        plan.seconds < 0.62 * alone
            && plan.seconds < 0.9 * seconds_of(&plan, Kind::Tensor).unwrap(),
        "{plan:?}"
    );
    // One chunk of 32 rows has nothing to overlap.
    let (_, plan) = machine(&[false, false], equal, 1e-9).plan(&description(30), 32);
    assert!(
        plan.seconds < 0.7 * seconds_of(&plan, Kind::Alone).unwrap(),
        "{plan:?}"
    );
    assert!(
        seconds_of(&plan, Kind::Placed).unwrap() > 0.99 * seconds_of(&plan, Kind::Alone).unwrap(),
        "{plan:?}"
    );
}

#[test]
fn a_processor_that_is_no_help_is_left_alone() {
    let rates = Rates {
        alone: [3e-12, 1e-9, 1e-9],
        contended: 1.5,
        fixed: 1e-5,
    };
    let (_, plan) = machine(&[false, true], rates, 1e-6).plan(&description(30), 300);
    assert_eq!(plan.id.kind, Kind::Alone, "{plan:?}");
    let ways: Vec<_> = plan.ways().iter().flatten().collect();
    assert!(
        ways.iter()
            .all(|way| **way == Assignment::On(ProcessorId::new(0))),
        "{ways:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_seconds_of_a_plan_are_those_of_all_blocks(machine in machines(), rows in 1usize..500, blocks in 1usize..20) {
        let description = description(blocks);
        let (joint, plan) = machine.plan(&description, rows);
        let graph = Graph::with_splits(&description, rows, plan.chunk, |_| true);
        let options = machine.options(&description);
        let of_product = joint.seconds(&plan, &graph);
        let seconds = |task: &PrefillTask, processor: ProcessorId| {
            let float = || machine.float_seconds * graph.chunks()[task.task.chunk].len() as f64;
            of_product(task, processor).unwrap_or_else(float)
        };
        let assignment = joint.assignment(&plan, &graph);
        let tasks = PrefillTasks::assigned(&graph, &machine.processors, &options, &assignment, seconds).unwrap();
        let dag = &tasks.dag;
        let takes = |begin: Begin| {
            let is_own = |before: &usize| dag.home(*before) == dag.home(begin.task);
            let before = match dag.predecessors(begin.task).iter().all(is_own) {
                true => joint.gaps.own,
                false => joint.gaps.other,
            };
            Takes { before, ..dag.seconds(begin.task).into() }
        };
        let simulated = simulate_each(dag, Policy::CriticalPath, takes).seconds();
        prop_assert!((plan.seconds / simulated - 1.0).abs() < 1e-9, "{} of {simulated}", plan.seconds);
    }
}

#[test]
fn of_three_processors_one_that_makes_a_prompt_less_than_a_twentieth_faster_is_left_out() {
    let third = ProcessorId::new(2);
    for (slower, takes_part) in [(1.2, true), (4.0, false)] {
        // Cuts are never faster.
        let rates = Rates {
            alone: [3e-12, 3e-12, slower * 3e-12],
            contended: 50.0,
            fixed: 1e-6,
        };
        let (_, plan) = machine(&[false, true, true], rates, 1e-6).plan(&description(30), 1000);
        let has_it = plan
            .ways()
            .iter()
            .flatten()
            .any(|way| *way == Assignment::On(third));
        let (_, of_two) = machine(&[false, true], rates, 1e-6).plan(&description(30), 1000);
        let times = of_two.seconds / plan.seconds;
        assert_eq!(
            (has_it, times > 1.05),
            (takes_part, takes_part),
            "{slower}: {times} times as fast as two"
        );
    }
}

#[test]
fn blocks_after_those_that_are_searched_repeat_them() {
    let rates = Rates {
        alone: [3e-12, 4e-12, 5e-12],
        contended: 1.2,
        fixed: 1e-5,
    };
    let (_, plan) = machine(&[false, false], rates, 1e-6).plan(&description(30), 300);
    let of_block = plan.ways()[0].len() / BLOCKS;
    for block in 0..30 {
        let like = if block < BLOCKS { block } else { 4 + block % 4 };
        for (chunk, place) in
            (0..plan.ways().len()).flat_map(|chunk| (0..of_block).map(move |place| (chunk, place)))
        {
            let expected = plan.ways()[chunk][like * of_block + place];
            assert_eq!(
                plan.way(block, chunk, place, of_block),
                expected,
                "block {block}"
            );
        }
    }
}

#[test]
fn plans_of_other_products_and_of_no_processor_are_refused() {
    let rates = Rates {
        alone: [1e-11; 3],
        contended: 1.0,
        fixed: 0.0,
    };
    let machine = machine(&[false, true], rates, 0.0);
    let ours = description(2);
    let joint = machine.joint(&ours);
    let again = |description: &ModelDescription, whole: Vec<_>, floats: Vec<ProcessorId>| {
        PromptPlanner::new(description, whole, joint.cut.clone(), floats, joint.gaps).unwrap_err()
    };
    let floats = || machine.floats.clone();
    let other = family::shape("phi-2").unwrap();
    assert_eq!(
        again(&other, joint.whole.clone(), floats()),
        JointError::Products
    );
    assert_eq!(again(&ours, Vec::new(), floats()), JointError::NoProcessor);
    assert_eq!(
        again(&ours, joint.whole.clone(), Vec::new()),
        JointError::NoProcessor
    );
}
