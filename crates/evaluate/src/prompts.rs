//! Scores texts as prompts of an engine on several processors.

use std::ops::Range;

use serde::Serialize;
use triad_engine::{Branch, Cancel, Score, Session, ranges_to_run};
use triad_hetero::{Execution, HeteroEngine};
use triad_plan::graph::Format;
use triad_plan::processors::label;
use triad_plan::tasks::Operation;

use crate::error::{Error, Result};

/// Most bytes of logits that one prompt returns.
const LOGITS_BYTES: usize = 256 << 20;

/// The linear layers that a processor has computed in an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessorWork {
    /// Name of the processor.
    pub processor: String,
    /// Number of its tasks that multiplied: subgraphs with linear layers, or parts of them.
    pub products: usize,
    /// Its share of the multiplications and additions of all of these tasks, of all processors.
    pub share: f64,
}

/// Multiplications and additions of a processor, and tasks.
#[derive(Clone, Default)]
struct Work {
    products: usize,
    operations: f64,
}

/// Scores each branch as prompts of `engine`. What a branch shares with the branch before it is not run again. `progress`
/// is called with the number of finished tokens.
///
/// # Errors
/// As [`Session::score`]; if a processor fails, since others would have computed its work.
pub(super) fn score(
    engine: &HeteroEngine,
    branches: &[Branch],
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize),
) -> Result<(Vec<Score>, Vec<ProcessorWork>)> {
    let mut session = engine.session();
    let mut work = vec![Work::default(); engine.processors().len()];
    let mut scores = Vec::with_capacity(branches.len());
    let mut done = 0;
    let ranges = ranges_to_run(engine.model().description(), branches);
    for branch in branches {
        branch.check()?;
        session.check_vocabulary(branch.tokens)?;
    }
    for (branch, range) in branches.iter().zip(ranges) {
        let mut score = Score::new();
        session.truncate(range.start);
        for prompt in prompts(branch, &range, &session) {
            let (tokens, first) = (&branch.tokens[prompt.clone()], prompt.start + 1);
            if prompt.end < branch.scored_from {
                session.prefill(tokens, cancel, |_| {})?;
            } else {
                let logits = session.prefill_all_logits(tokens, cancel)?;
                let rows = logits.chunks_exact(logits.len() / tokens.len());
                let targets = rows.zip(&branch.tokens[first..]).enumerate();
                for (index, (logits, token)) in targets {
                    if first + index >= branch.scored_from {
                        score.add(logits, *token)?;
                    }
                }
            }
            add_work(&session, &mut work)?;
            done += prompt.len();
            progress(done);
        }
        scores.push(score);
    }
    let all: f64 = work.iter().map(|work| work.operations).sum();
    let processors = engine.processors().iter().zip(work);
    let processors = processors.map(|((_, processor), work)| ProcessorWork {
        processor: label(&processor.name),
        products: work.products,
        share: work.operations / all.max(1.0),
    });
    // A device that runs the model whole reports no tasks.
    Ok((scores, processors.filter(|_| all > 0.0).collect()))
}

/// Returns the prompts that run a range of the tokens of a branch: whole chunks without a scored token, and pieces whose
/// logits fit in [`LOGITS_BYTES`].
fn prompts(branch: &Branch, range: &Range<usize>, session: &Session) -> Vec<Range<usize>> {
    let (chunk, vocab) = (session.chunk(), session.model().description().vocab);
    let unscored = (branch.scored_from - 1 - range.start) / chunk * chunk;
    let most = (LOGITS_BYTES / (vocab * size_of::<f32>()) / chunk).max(1) * chunk;
    let mut prompts = Vec::new();
    if unscored > 0 {
        prompts.push(range.start..range.start + unscored);
    }
    let mut start = range.start + unscored;
    while start < range.end {
        let end = range.end.min(start + most);
        prompts.push(start..end);
        start = end;
    }
    prompts
}

/// Adds what the processors computed of the latest prompt of `session`.
///
/// # Errors
/// If one of them failed.
fn add_work(session: &Session, work: &mut [Work]) -> Result<()> {
    for execution in session.reports::<Execution>() {
        if let Some(failure) = execution.failures.first() {
            return Err(Error::Processor(failure.took_over()));
        }
        for event in execution.timeline.events() {
            let task = &execution.tasks.tasks[event.task];
            let role = execution.graph.subgraphs()[task.task.subgraph].role;
            if task.operation == Operation::Compute && role.format() == Format::Int8 {
                let work = &mut work[event.processor.index()];
                let operations = execution.graph.operations(task.task) as f64;
                work.products += 1;
                work.operations += operations * task.share(&execution.graph);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use triad_engine::testing::models;
    use triad_engine::{EngineOptions, Model, SessionOptions, Threads};
    use triad_hetero::{Device, HeteroOptions, ProcessorOptions};
    use triad_kernels::OutputMut;
    use triad_kernels::int8::QuantizedView;
    use triad_kernels::pool::Pool;
    use triad_plan::processors::Processor;
    use triad_processors::cpu::Cpu;
    use triad_processors::{Capabilities, DeviceSubgraph, Error as DeviceError, Program};

    use super::*;

    /// Triad's kernels as an NPU that ends after a number of runs.
    struct Npu {
        cpu: Cpu,
        left: Arc<AtomicUsize>,
    }

    struct NpuProgram(Box<dyn Program>, Arc<AtomicUsize>);

    impl Device for Npu {
        fn name(&self) -> &str {
            "npu:test"
        }

        fn capabilities(&self) -> &Capabilities {
            self.cpu.capabilities()
        }

        fn prepare(
            &self,
            subgraph: &DeviceSubgraph,
            rows: usize,
        ) -> triad_processors::Result<Box<dyn Program>> {
            let program = self.cpu.prepare(subgraph, rows)?;
            Ok(Box::new(NpuProgram(program, Arc::clone(&self.left))))
        }
    }

    impl Program for NpuProgram {
        fn run(
            &mut self,
            input: QuantizedView,
            outputs: &mut [OutputMut],
        ) -> triad_processors::Result<()> {
            let less = |left: usize| left.checked_sub(1);
            let left = self
                .1
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            left.map_err(|_| DeviceError::Run {
                processor: "npu:test".to_owned(),
                reason: "it has ended".to_owned(),
            })?;
            self.0.run(input, outputs)
        }
    }

    const SESSION: SessionOptions = SessionOptions {
        context: 64,
        chunk: 8,
        kv_format: triad_engine::KvFormat::F16,
    };

    fn engine(model: &Arc<Model>, runs: usize) -> HeteroEngine {
        let processor = |description, device| ProcessorOptions {
            description,
            threads: Threads::Count(1),
            device,
            multiplier: None,
        };
        let npu = Npu {
            cpu: Cpu::new(Arc::new(Pool::new(1).unwrap())),
            left: Arc::new(AtomicUsize::new(runs)),
        };
        let options = HeteroOptions {
            engine: EngineOptions {
                session: SESSION,
                ..EngineOptions::default()
            },
            processors: vec![
                processor(Processor::cpu("cpu"), None),
                processor(
                    Processor::npu("npu", None),
                    Some(Arc::new(npu) as Arc<dyn Device>),
                ),
            ],
            ..HeteroOptions::default()
        };
        HeteroEngine::new(model, options, &mut |_, _| {}).unwrap()
    }

    #[test]
    fn texts_have_the_bits_of_one_processor_and_every_product_is_on_the_npu() {
        let model = models::int8("llama");
        let tokens = models::prompt(&model, 40);
        let branch = |tokens, scored_from| Branch {
            tokens,
            scored_from,
        };
        let other = [&tokens[..20], &tokens[3..9]].concat();
        let branches = [
            branch(&tokens[..], 1),
            branch(&tokens[..30], 29),
            branch(&other[..], 20),
            branch(&tokens[5..7], 1),
        ];
        let expected = Session::new(&model, &SESSION)
            .unwrap()
            .score(&branches, &Cancel::new(), |_| {})
            .unwrap();
        let engine = engine(&model, usize::MAX);
        let mut last = 0;
        let (scores, work) =
            score(&engine, &branches, &Cancel::new(), &mut |done| last = done).unwrap();
        assert_eq!(scores, expected);
        assert_eq!(
            last,
            triad_engine::tokens_to_run(model.description(), &branches)
        );
        let [cpu, npu] = &work[..] else { panic!() };
        assert_eq!((cpu.products, cpu.share), (0, 0.0));
        assert_eq!(npu.share, 1.0);
        // Tokens 0 to 39 in five chunks, the last one of 30 again, a token after 20 and five more, and one.
        let graph = engine.graph();
        let subgraphs = graph.subgraphs().iter();
        let products = subgraphs.filter(|subgraph| subgraph.role.format() == Format::Int8);
        assert_eq!(npu.products, 8 * products.count());
        assert_eq!([&*cpu.processor, &*npu.processor], ["CPU", "NPU"]);
    }

    #[test]
    fn a_processor_that_fails_is_an_error_and_no_other_one_scores_for_it() {
        let model = models::int8("llama");
        let tokens = models::prompt(&model, 20);
        let branches = [Branch {
            tokens: &tokens,
            scored_from: 1,
        }];
        let engine = engine(&model, 3);
        let error = score(&engine, &branches, &Cancel::new(), &mut |_| {}).unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("the NPU failed, and its work went to another processor: "),
            "{error}"
        );
        assert!(error.contains("it has ended"), "{error}");
    }
}
