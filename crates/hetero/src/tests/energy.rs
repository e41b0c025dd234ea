//! Tests of plans that save energy.

use std::time::Instant;

use triad_plan::joint::CandidateId;
use triad_plan::partition::energy::{Objective, Powers};
use triad_plan::partition::plans::products_of;
use triad_plan::partition::solve::Restriction;

use super::*;
use crate::work::alignment;
use crate::{MeasuredJoins, MeasuredProcessor, ProductCosts, ProductTime, measure_powers};

/// Returns costs of two processors, of which the second takes 1.5 times as long, and a tenth of the power.
fn costs(model: &Model, chunk: usize, powers: Option<Powers>) -> ProductCosts {
    let description = model.description();
    let products = products_of(description, chunk, |role, shape| {
        alignment(description, role, shape)
    });
    let mut products_times: Vec<ProductTime> = Vec::new();
    for product in products.unwrap() {
        let (most, depth) = (product.shape.columns(), product.shape.depth());
        for (processor, rate) in [(CPU, 1e-9), (NPU, 1.5e-9)] {
            for (rows, columns) in [(1, 16), (1, most), (chunk, 16), (chunk, most)] {
                let seconds = rate * (rows * columns * depth) as f64;
                let time = ProductTime {
                    processor,
                    rows,
                    columns,
                    depth,
                    alone: seconds,
                    contended: seconds,
                };
                let is_it = |other: &ProductTime| {
                    (other.processor, other.rows, other.columns, other.depth)
                        == (processor, rows, columns, depth)
                };
                if !products_times.iter().any(is_it) {
                    products_times.push(time);
                }
            }
        }
    }
    let processors = NAMES.map(|name| MeasuredProcessor {
        name: name.into(),
        lengths: None,
    });
    ProductCosts {
        chunk,
        processors: processors.into(),
        joins: MeasuredJoins {
            float: CPU,
            own_seconds: 0.0,
            begin_seconds: 0.0,
            end_seconds: 0.0,
        },
        products: products_times,
        decode: None,
        prompts: Vec::new(),
        powers,
        objective: Objective::Latency,
    }
}

fn powers() -> Option<Powers> {
    Some(Powers {
        base: 0.0,
        processors: vec![10.0, 1.0],
    })
}

#[test]
fn a_plan_for_energy_uses_the_processor_with_the_least_power_and_needs_measured_powers() {
    let model = int8("llama");
    let chunk = 32;
    let plan = |objective| {
        let costs = costs(&model, chunk, powers());
        let costs = costs.with_objective(objective).unwrap();
        let plans = costs.plans(model.description(), chunk, Restriction::Auto);
        let of_products = plans.unwrap();
        let planner = costs.joint(model.description(), chunk, &[CPU, NPU]);
        let options = HeteroOptions {
            engine: of_session(64, chunk),
            joint: Some(planner.unwrap()),
            ..options(Policy::InOrder)
        };
        let engine = engine(&model, options);
        let found = engine.planned(chunk).unwrap().plan;
        // A plan changes no bit.
        let tokens = prompt(&model, 40);
        let expected = all_logits(session(&model, chunk), &tokens);
        assert!(all_logits(engine.session(), &tokens) == expected);
        (of_products, found)
    };
    let (products, found) = plan(Objective::Energy);
    for choice in products.products().iter().flat_map(|plan| &plan.choices) {
        assert_eq!(choice.best.busy.len(), 1, "{choice:?}");
        assert_eq!(choice.best.busy[0].0, NPU, "{choice:?}");
        assert!(choice.best.joules.unwrap() > 0.0);
    }
    assert_eq!(found.id, CandidateId::alone(NPU), "{found:?}");
    let joules = |id| {
        let mut candidates = found.candidates.iter();
        candidates.find(|one| one.id == id).unwrap().joules.unwrap()
    };
    let least = joules(found.id);
    assert!(found.candidates.iter().all(|one| joules(one.id) >= least));
    let (products, found) = plan(Objective::Latency);
    let choices = products.products().iter().flat_map(|plan| &plan.choices);
    assert!(choices.clone().any(|choice| choice.best.busy.len() == 2));
    assert_ne!(found.id, CandidateId::alone(NPU), "{found:?}");
    // Without powers there is no such plan.
    for objective in [Objective::Energy, Objective::Balanced] {
        let refused = costs(&model, chunk, None).with_objective(objective);
        assert!(matches!(refused, Err(Error::UnmeasuredPower)));
    }
    assert!(
        costs(&model, chunk, None)
            .with_objective(Objective::Latency)
            .is_ok()
    );
}

#[test]
fn powers_are_the_energy_while_a_processor_multiplies_beyond_that_of_the_idle_machine() {
    let model = int8("llama");
    let start = Instant::now();
    // The power of a machine that grows, of one that shrinks, and of one that does not know it.
    let joules = |watts: f64, more: f64| {
        move || {
            let seconds = start.elapsed().as_secs_f64();
            Some(watts * seconds + more * seconds * seconds)
        }
    };
    let measure = |joules: &dyn Fn() -> Option<f64>, cancel: &Cancel| {
        measure_powers(&model, &two(1, None), 32, joules, cancel)
    };
    let powers = measure(&joules(5.0, 2.0), &Cancel::new()).unwrap().unwrap();
    assert!(powers.base > 5.0, "{powers:?}");
    let [first, second] = powers.processors[..] else {
        panic!("{powers:?}");
    };
    assert!(first > 0.5 && second > first, "{powers:?}");
    let shrinks = joules(5000.0, -2.0);
    assert_eq!(measure(&shrinks, &Cancel::new()).unwrap(), None);
    assert_eq!(measure(&|| None, &Cancel::new()).unwrap(), None);
    let cancel = Cancel::new();
    cancel.cancel();
    assert!(measure(&shrinks, &cancel).is_err());
}
