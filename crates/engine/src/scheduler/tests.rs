//! Tests of which rows the scheduler batches, with an executor that computes nothing.

use super::*;
use crate::adapter::Adapters;
use crate::batch::{LogitsMode, RequestStates};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::executor::ProcessorUse;
use crate::kv::{KvCache, KvFormat, KvMemory};
use crate::linear::Backend;
use crate::pictures::Layout;
use crate::testing::adapters::ADAPTERS;
use crate::testing::models::description;
use crate::vision::Pixels;

const LIMITS: Limits = Limits {
    prompt_rows: 8,
    picture_rows: 8,
    prompts: 1,
    overlap: false,
    separate_adapters: false,
};

struct Idle(Limits);

impl Executor for Idle {
    fn limits(&self) -> Limits {
        self.0
    }

    fn execute(&self, _batch: &Arc<Batch>, _between: &dyn Fn()) {}

    fn encode(&self, _pixels: Pixels, _cancel: &Cancel) -> Result<Vec<f32>> {
        unreachable!("nothing is computed")
    }

    fn backend(&self) -> Box<dyn Backend + '_> {
        unreachable!("nothing is computed")
    }

    fn processors(&self) -> Vec<ProcessorUse> {
        Vec::new()
    }
}

fn scheduler(limits: Limits, max_stall: Duration) -> Arc<Scheduler> {
    Scheduler::new(Box::new(Idle(limits)), Some(max_stall), 3)
}

fn request(sequence: u64, rows: usize, phase: Phase) -> Arc<Request> {
    with_adapters(sequence, rows, phase, &Adapters::default())
}

fn with_adapters(sequence: u64, rows: usize, phase: Phase, adapters: &Adapters) -> Arc<Request> {
    with_layout(sequence, rows, phase, (adapters, Layout::default()))
}

fn with_layout(
    sequence: u64,
    rows: usize,
    phase: Phase,
    (adapters, layout): (&Adapters, Layout),
) -> Arc<Request> {
    let memory = Arc::new(KvMemory::new(&description(), KvFormat::F16, 0));
    let cache = Arc::new(KvCache::new(&memory, adapters.clone()));
    let tokens = (vec![1; rows], 0, layout);
    let what = (phase, LogitsMode::Last);
    let logits = (5, Vec::new());
    Request::new(
        SequenceId(sequence),
        cache,
        tokens,
        what,
        logits,
        RequestStates::default(),
        &Cancel::new(),
    )
}

#[test]
fn heads_and_prompts_wait_for_each_other_and_steps_for_neither() {
    let scheduler = scheduler(LIMITS, Duration::ZERO);
    let held = scheduler.hold_prompts().unwrap();
    assert!(scheduler.hold_prompts().is_some(), "heads run together");
    let (prompt, row) = (request(1, 4, Phase::Prefill), request(2, 1, Phase::Decode));
    scheduler.submit(&[Arc::clone(&prompt), Arc::clone(&row)]);
    assert!(scheduler.hold_prompts().is_none(), "a prompt waits");
    let step = scheduler.next_batch(Phase::Prefill).unwrap();
    assert_eq!(step.phase(), Phase::Decode);
    scheduler.ended(&step);
    assert!(
        scheduler.next_batch(Phase::Prefill).is_none(),
        "a head runs"
    );
    drop(held);
    let batch = scheduler.next_batch(Phase::Prefill).unwrap();
    assert_eq!(batch.phase(), Phase::Prefill);
    assert!(scheduler.hold_prompts().is_none(), "a prompt runs");
    scheduler.ended(&batch);
    assert!(scheduler.hold_prompts().is_some());
}

/// Returns the sequences of a batch with their rows.
fn parts(batch: Option<&Arc<Batch>>) -> Vec<(u64, std::ops::Range<usize>)> {
    let parts = batch.iter().flat_map(|batch| batch.parts());
    parts
        .map(|part| (part.request.sequence().number(), part.rows.clone()))
        .collect()
}

#[test]
fn prompts_fill_batches_in_the_order_of_arrival_and_in_turns_of_a_whole_batch() {
    let scheduler = scheduler(LIMITS, Duration::MAX);
    let prompts = [(0, 3), (1, 21), (2, 4)];
    scheduler.submit(&prompts.map(|(id, rows)| request(id, rows, Phase::Prefill)));
    for expected in [
        vec![(0, 0..3), (1, 0..5)],
        // A prompt that had a part of a batch goes on.
        vec![(1, 5..13)],
        // After a whole one it waits for its turn.
        vec![(2, 0..4), (1, 13..17)],
    ] {
        let batch = scheduler.next_batch(Phase::Prefill);
        assert_eq!(parts(batch.as_ref()), expected);
        assert!(
            scheduler.next_batch(Phase::Prefill).is_none(),
            "one at a time"
        );
        batch.unwrap().end();
    }
    let last = request(3, 20, Phase::Prefill);
    scheduler.submit(std::slice::from_ref(&last));
    let batch = scheduler.next_batch(Phase::Prefill).unwrap();
    assert_eq!(parts(Some(&batch)), [(1, 17..21), (3, 0..4)]);
    // A prompt that ended early has no more batches.
    last.fail(Error::EmptyPrompt);
    batch.end();
    assert!(scheduler.next_batch(Phase::Prefill).is_none());
}

#[test]
fn a_batch_is_not_divided_within_rows_that_read_each_other() {
    let scheduler = scheduler(LIMITS, Duration::MAX);
    let layout = Layout {
        together: vec![3..10, 11..15],
        ..Layout::default()
    };
    let adapters = Adapters::default();
    let picture = with_layout(1, 20, Phase::Prefill, (&adapters, layout));
    scheduler.submit(&[request(0, 5, Phase::Prefill), picture]);
    for expected in [
        vec![(0, 0..5), (1, 0..3)],
        vec![(1, 3..11)],
        vec![(1, 11..19)],
        vec![(1, 19..20)],
    ] {
        let batch = scheduler.next_batch(Phase::Prefill);
        assert_eq!(parts(batch.as_ref()), expected);
        batch.unwrap().end();
    }
}

#[test]
fn a_prompt_that_is_cancelled_while_its_batch_ends_is_in_no_other() {
    let scheduler = scheduler(LIMITS, Duration::MAX);
    let request = request(0, 20, Phase::Prefill);
    scheduler.submit(std::slice::from_ref(&request));
    let batch = scheduler.next_batch(Phase::Prefill).unwrap();
    request.cancel();
    scheduler.drop_cancelled();
    assert!(!request.has_ended(), "its batch is computed");
    // The batch did not know yet.
    scheduler.ended(&batch);
    assert!(request.has_ended());
    assert!(scheduler.next_batch(Phase::Prefill).is_none());
}

#[test]
fn a_step_has_the_rows_of_all_sequences_that_decode_as_far_as_allowed() {
    let scheduler = scheduler(LIMITS, Duration::MAX);
    let requests =
        [(0, 2), (1, 1), (2, 1), (3, 7)].map(|(id, rows)| request(id, rows, Phase::Decode));
    scheduler.submit(&requests);
    // More rows than allowed are a step of their own.
    for expected in [vec![(0, 0..2), (1, 0..1)], vec![(2, 0..1)], vec![(3, 0..7)]] {
        // The sequences of the previous step have ended.
        (0..4).for_each(|id| scheduler.forget(SequenceId(id)));
        let batch = scheduler.next_batch(Phase::Prefill);
        assert_eq!(parts(batch.as_ref()), expected);
        assert!(
            scheduler.next_batch(Phase::Prefill).is_none(),
            "one at a time"
        );
        batch.unwrap().end();
    }
    assert_eq!(scheduler.steps(), 3);
}

#[test]
fn a_step_waits_for_prompts_no_longer_than_its_stall() {
    for (max_stall, first) in [(Duration::ZERO, 1), (Duration::MAX, 0)] {
        let scheduler = scheduler(LIMITS, max_stall);
        scheduler.submit(&[request(0, 3, Phase::Prefill), request(1, 1, Phase::Decode)]);
        for expected in [first, 1 - first] {
            let batch = scheduler.next_batch(Phase::Prefill).unwrap();
            assert_eq!(batch.parts()[0].request.sequence().number(), expected);
            batch.end();
        }
    }
    // It may run while prompts are computed.
    let scheduler = scheduler(LIMITS, Duration::ZERO);
    scheduler.submit(&[request(0, 3, Phase::Prefill)]);
    let _prompts = scheduler.next_batch(Phase::Prefill).unwrap();
    scheduler.submit(&[request(1, 1, Phase::Decode)]);
    assert!(scheduler.next_batch(Phase::Prefill).is_none());
    scheduler.run_due_step();
    assert!(scheduler.lock().rows.is_empty() && scheduler.lock().is_stepping);
}

#[test]
fn a_thread_that_waits_for_a_token_begins_no_prompts() {
    let scheduler = scheduler(LIMITS, Duration::MAX);
    let (prompt, row) = (request(0, 20, Phase::Prefill), request(1, 1, Phase::Decode));
    scheduler.submit(&[prompt, row]);
    let step = scheduler.next_batch(Phase::Decode).unwrap();
    assert_eq!(parts(Some(&step)), [(1, 0..1)]);
    step.end();
    assert!(scheduler.next_batch(Phase::Decode).is_none());
    assert!(scheduler.next_batch(Phase::Prefill).is_some());
}

#[test]
fn batches_overlap_and_adapters_are_apart_where_the_executor_says_so() {
    let limits = Limits {
        prompt_rows: usize::MAX,
        picture_rows: usize::MAX,
        prompts: 2,
        overlap: true,
        separate_adapters: true,
    };
    let scheduler = scheduler(limits, Duration::MAX);
    let adapters = [(0, 0), (1, 0), (2, 1), (3, 2), (4, 0)];
    for phase in [Phase::Prefill, Phase::Decode] {
        let request =
            |(id, adapters): (u64, usize)| with_adapters(id, 1, phase, &ADAPTERS[adapters]);
        scheduler.submit(&adapters.map(request));
    }
    let batches: Vec<_> = std::iter::from_fn(|| scheduler.next_batch(Phase::Prefill)).collect();
    let sequences = |batch: &Arc<Batch>| -> (Phase, Vec<u64>) {
        let parts = parts(Some(batch)).into_iter();
        (batch.phase(), parts.map(|(id, _)| id).collect())
    };
    let found: Vec<_> = batches.iter().map(sequences).collect();
    let expected = [
        (Phase::Prefill, vec![0, 1]),
        (Phase::Prefill, vec![2, 3]),
        (Phase::Decode, vec![0, 1]),
    ];
    assert_eq!(found, expected);
}
