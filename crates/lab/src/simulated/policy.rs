//! Measures how far each policy is from the optimum.
//!
//! The cases vary models, prompts, relative speeds of the processors, and deviations of costs from expectations.
//! Wake-up time is omitted, since no bound includes it. Prompts of two chunks are solved exactly with the real task
//! times. For longer ones there is only a bound, so that the gap overestimates the distance.

use serde::Serialize;
use triad_model::description::ModelDescription;

use super::forms::{self, Form};
use super::systems::{Order, System};
use crate::optimum::{Optimum, optimum};
use triad_plan::bound::lower_bound;
use triad_plan::device::DeviceProfile;
use triad_plan::planner::Plan;
use triad_plan::prefill::{Options, Prefill};
use triad_plan::processors::ProcessorId;
use triad_plan::random::Random;
use triad_plan::schedule::{Dag, Node, Policy};
use triad_plan::simulate::simulate;

/// The parameters that vary.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Names and descriptions.
    pub models: Vec<(String, ModelDescription)>,
    /// Tokens of the prompt.
    pub prompts: Vec<usize>,
    /// Ratios of the NPU's work to the CPU's.
    pub ratios: Vec<f64>,
    /// Standard deviations of the logarithm of a task's real time relative to its expected time.
    pub noises: Vec<f64>,
    /// Seed of the noise; each case has its own draw.
    pub seed: u64,
}

impl Grid {
    /// Returns the grid of docs/measurements/policies.md.
    pub fn usual(models: Vec<(String, ModelDescription)>) -> Self {
        Self {
            models,
            prompts: vec![256, 512, 1024, 2048],
            ratios: vec![0.5, 1.0, 2.0, 4.0],
            noises: vec![0.0, 0.1, 0.3],
            seed: 7,
        }
    }
}

/// One case of the grid.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Case {
    /// Name of the model.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Ratio of the NPU's work to the CPU's.
    pub ratio: f64,
    /// Standard deviation of the logarithm of the costs.
    pub noise: f64,
    /// Chunks of the prompt.
    pub chunks: usize,
    /// Lower bound for the length of any schedule.
    pub bound_seconds: f64,
    /// Length of the shortest schedule, if it was found: for one and two chunks.
    pub optimum_seconds: Option<f64>,
    /// Seconds of each policy, in the order of [`names`].
    pub seconds: Vec<f64>,
}

/// Maximum number of partial schedules to examine for a prompt of two chunks.
const MAX_PARTIALS: usize = 5_000_000;

impl Case {
    /// Returns the excess of each policy over the bound, in the order of [`names`].
    pub fn gaps(&self) -> impl Iterator<Item = f64> {
        self.seconds
            .iter()
            .map(|seconds| seconds / self.bound_seconds - 1.0)
    }
}

/// Returns the names of everything that is compared: the policies, the forms of C except the one that is a policy, and
/// the schedules of other systems.
pub fn names() -> Vec<&'static str> {
    let forms = Form::ALL[1..].iter().map(|form| form.name());
    Policy::ALL
        .map(Policy::name)
        .into_iter()
        .chain(forms)
        .chain(System::ALL.map(System::name))
        .collect()
}

/// Returns all cases of a grid. `plan` makes the plan of each dag without noise.
pub fn cases(device: &DeviceProfile, grid: &Grid, plan: &mut dyn FnMut(&Dag) -> Plan) -> Vec<Case> {
    let mut cases = Vec::new();
    for (model, description) in &grid.models {
        for prompt in grid
            .prompts
            .iter()
            .filter(|prompt| **prompt <= description.context)
        {
            // The whole model is on the NPU: memory windows are not part of this study.
            let options = Options {
                window: Some(usize::MAX),
                ..Options::paper(Policy::Paper)
            };
            let Prefill { tasks, npu, .. } = Prefill::new(device, description, *prompt, &options);
            let orders = System::ALL.map(|system| system.order(&tasks));
            for ratio in &grid.ratios {
                let dag = with_ratio(&tasks.dag, npu, *ratio);
                let order = plan(&dag).order;
                let dag = dag.with_plan(&order, 0.0);
                for noise in &grid.noises {
                    let mut random = Random::of_case(grid.seed, cases.len() as u64);
                    let takes = with_noise(&dag, *noise, &mut random);
                    let real = rebuilt(&dag, |task| takes[task]);
                    let chunks = prompt.div_ceil(options.chunk);
                    let solved = (chunks <= 2).then(|| optimum(&real, MAX_PARTIALS));
                    cases.push(Case {
                        model: model.clone(),
                        prompt: *prompt,
                        ratio: *ratio,
                        noise: *noise,
                        chunks,
                        bound_seconds: solved
                            .map_or_else(|| lower_bound(&real), |solved| solved.bound),
                        optimum_seconds: solved
                            .filter(Optimum::is_proven)
                            .map(|solved| solved.seconds),
                        seconds: all_policies(&dag, &orders, &takes),
                    });
                }
            }
        }
    }
    cases
}

fn all_policies(dag: &Dag, orders: &[Order], takes: &[f64]) -> Vec<f64> {
    let of_policy = |policy| simulate(dag, policy, |task| takes[task]).seconds();
    let of_form = |form: &Form| forms::seconds(dag, *form, |task| takes[task]);
    let of_order = |order: &Order| {
        let ordered = order.dag(dag, |task| takes[task]);
        simulate(&ordered, Policy::InOrder, |place| ordered.seconds(place)).seconds()
    };
    let forms = Form::ALL[1..].iter().map(of_form);
    Policy::ALL
        .map(of_policy)
        .into_iter()
        .chain(forms)
        .chain(orders.iter().map(of_order))
        .collect()
}

/// Returns the same tasks with other seconds.
fn rebuilt(dag: &Dag, seconds: impl Fn(usize) -> f64) -> Dag {
    let node = |task: usize| Node {
        home: dag.home(task),
        seconds: vec![Some(seconds(task)); dag.processors()],
        predecessors: dag.predecessors(task).to_vec(),
        kind: dag.kind(task),
    };
    Dag::from_nodes(dag.processors(), (0..dag.len()).map(node)).with_bottleneck(dag.bottleneck())
}

/// Scales the work of the other processors so that the NPU has `ratio` times the work; the NPU's stays the same.
/// Policies treat the NPU as the bottleneck at every ratio, as in the printed equation 5.
fn with_ratio(dag: &Dag, npu: ProcessorId, ratio: f64) -> Dag {
    let work = |on_npu: bool| -> f64 {
        (0..dag.len())
            .filter(|task| (dag.home(*task) == npu) == on_npu)
            .map(|task| dag.seconds(task))
            .sum()
    };
    let factor = work(true) / work(false) / ratio;
    let scaled = rebuilt(dag, |task| {
        dag.seconds(task) * if dag.home(task) == npu { 1.0 } else { factor }
    });
    scaled.with_bottleneck(npu)
}

fn with_noise(dag: &Dag, noise: f64, random: &mut Random) -> Vec<f64> {
    (0..dag.len())
        .map(|task| dag.seconds(task) * random.log_normal(noise))
        .collect()
}

/// A small instance that was solved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Solved {
    /// Name of the model whose costs it has.
    pub model: String,
    /// Layers of the model.
    pub blocks: usize,
    /// Chunks of the prompt.
    pub chunks: usize,
    /// Ratio of the NPU's work to the CPU's.
    pub ratio: f64,
    /// The tasks, for other solvers.
    pub tasks: Vec<SolvedTask>,
    /// Partial schedules that were examined.
    pub partials: usize,
    /// Whether the search was complete, so that the schedule is optimal.
    pub is_proven: bool,
    /// Length of the best schedule found.
    pub optimum_seconds: f64,
    /// Lower bound, as computed for large instances.
    pub bound_seconds: f64,
    /// Seconds of each policy, in the order of [`names`].
    pub seconds: Vec<f64>,
}

/// A task of a small instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SolvedTask {
    /// The processor that runs it.
    pub processor: ProcessorId,
    /// Its duration.
    pub seconds: f64,
    /// Indices of the tasks that it waits for.
    pub predecessors: Vec<usize>,
}

/// Solves the first `blocks` layers of each model with prompts of few chunks, exactly as far as `most` partial
/// schedules suffice.
pub fn solved(
    device: &DeviceProfile,
    grid: &Grid,
    sizes: &[(usize, usize)],
    most: usize,
    plan: &mut dyn FnMut(&Dag) -> Plan,
) -> Vec<Solved> {
    let mut all = Vec::new();
    for (model, description) in &grid.models {
        for (blocks, chunks) in sizes {
            let mut small = description.clone();
            small.blocks.truncate(*blocks);
            let options = Options {
                window: Some(usize::MAX),
                ..Options::paper(Policy::Paper)
            };
            let Prefill { tasks, npu, .. } =
                Prefill::new(device, &small, chunks * options.chunk, &options);
            let orders = System::ALL.map(|system| system.order(&tasks));
            for ratio in &grid.ratios {
                let dag = with_ratio(&tasks.dag, npu, *ratio);
                let takes: Vec<_> = (0..dag.len()).map(|task| dag.seconds(task)).collect();
                let found = optimum(&dag, most);
                let task = |task| SolvedTask {
                    processor: dag.home(task),
                    seconds: dag.seconds(task),
                    predecessors: dag.predecessors(task).to_vec(),
                };
                let tasks = (0..dag.len()).map(task).collect();
                let order = plan(&dag).order;
                let dag = dag.with_plan(&order, 0.0);
                all.push(Solved {
                    model: model.clone(),
                    blocks: *blocks,
                    chunks: *chunks,
                    ratio: *ratio,
                    tasks,
                    partials: found.partials,
                    is_proven: found.is_proven(),
                    optimum_seconds: found.seconds,
                    bound_seconds: lower_bound(&dag),
                    seconds: all_policies(&dag, &orders, &takes),
                });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use triad_model::family::shape;
    use triad_plan::planner::Effort;

    fn grid() -> Grid {
        let models = vec![("smollm2-135m".to_owned(), shape("smollm2-135m").unwrap())];
        Grid {
            prompts: vec![512],
            ..Grid::usual(models)
        }
    }

    fn planned(dag: &Dag) -> Plan {
        triad_plan::planner::plan(dag, 0.0, Effort::default(), &mut || true)
    }

    #[test]
    fn no_policy_of_the_grid_is_below_its_bound_and_work_has_the_ratio_asked_for() {
        let device = DeviceProfile::builtin("snapdragon-8gen3").unwrap();
        let cases = cases(&device, &grid(), &mut planned);
        assert_eq!(cases.len(), 12);
        for case in &cases {
            assert_eq!(case.seconds.len(), names().len());
            assert!(case.gaps().all(|gap| gap > -1e-9), "{case:?}");
        }
        assert_eq!(
            cases,
            super::cases(&device, &grid(), &mut planned),
            "the same in every run"
        );
    }

    #[test]
    fn each_case_with_noise_has_a_draw_of_its_own_that_the_seed_changes() {
        let device = DeviceProfile::builtin("snapdragon-8gen3").unwrap();
        let of_seed = |seed| {
            // The same work twice, so that only the noise differs.
            let grid = Grid {
                ratios: vec![1.0, 1.0],
                noises: vec![0.0, 0.3],
                seed,
                ..grid()
            };
            let cases = cases(&device, &grid, &mut planned);
            cases
                .into_iter()
                .map(|case| case.seconds)
                .collect::<Vec<_>>()
        };
        let [first, second] = [of_seed(7), of_seed(8)];
        assert_eq!(first[0], first[2], "without noise");
        assert_ne!(first[1], first[3]);
        assert_eq!(first[0], second[0], "without noise");
        assert_ne!(first[1], second[1]);
    }

    #[test]
    fn an_optimum_is_between_bound_and_every_policy() {
        let device = DeviceProfile::builtin("snapdragon-8gen3").unwrap();
        for solved in solved(&device, &grid(), &[(1, 2), (1, 3)], 100_000, &mut planned) {
            assert!(
                solved.is_proven && solved.bound_seconds <= solved.optimum_seconds + 1e-12,
                "{solved:?}"
            );
            assert!(
                solved
                    .seconds
                    .iter()
                    .all(|seconds| *seconds >= solved.optimum_seconds - 1e-9),
                "{solved:?}"
            );
        }
    }

    #[test]
    fn noise_has_mean_one() {
        let mut random = Random::new(1);
        let mean = (0..20_000).map(|_| random.log_normal(0.3)).sum::<f64>() / 20_000.0;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert_eq!(random.log_normal(0.0), 1.0);
    }
}
