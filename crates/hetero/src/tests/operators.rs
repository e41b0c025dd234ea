//! Tests of the counted operators; those of one CPU are in the crate `triad-engine`.

use triad_engine::{Operator, Statistics};

use super::*;

#[test]
fn several_processors_count_what_one_does() {
    let model = int8("llama");
    let statistics = |engine: &Engine| {
        engine.count(true);
        let before = engine.statistics();
        let tokens = prompt(&model, 20);
        engine
            .session()
            .prefill(&tokens, &Cancel::new(), |_| {})
            .unwrap();
        engine.statistics() - before
    };
    let alone = Engine::new(&model, &of_session(64, CHUNK)).unwrap();
    let (one, two) = (one_processor(), options(Policy::Fifo));
    let [alone, one, two] = [
        statistics(&alone),
        statistics(&engine(&model, one)),
        statistics(&engine(&model, two)),
    ];
    for operator in Operator::ALL {
        assert_eq!(
            alone.operator(operator).bytes,
            one.operator(operator).bytes,
            "{}",
            operator.name()
        );
    }
    // With an NPU, gate-up and the activation are separate operators; a single CPU runs them as one.
    let inner = [Operator::GateUp, Operator::Activation, Operator::Gated];
    for operator in Operator::ALL
        .into_iter()
        .filter(|one| *one != Operator::Shadows && !inner.contains(one))
    {
        assert_eq!(
            one.operator(operator).bytes,
            two.operator(operator).bytes,
            "{}",
            operator.name()
        );
    }
    let weights = |statistics: &Statistics| {
        inner
            .map(|operator| statistics.operator(operator).bytes.weights)
            .iter()
            .sum::<u64>()
    };
    assert!(weights(&one) > 0 && weights(&one) == weights(&two));
    assert_eq!((one.values, one.outliers), (two.values, two.outliers));
    // Separate shadows are written once and read once more.
    assert!(
        two.operator(Operator::Shadows).bytes.written
            >= one.operator(Operator::Shadows).bytes.written
    );
}
