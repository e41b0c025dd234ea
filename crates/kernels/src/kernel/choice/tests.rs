//! Tests which kernel is chosen, and that it is used.

use super::*;
use crate::kernel::int8::rows::{Part, QuantizedView};
use crate::kernel::int8::weight::Int8Weight;
use crate::output::OutputMut;

const FEATURES: usize = 64;
const COLUMNS: usize = 64;

fn timed(kernel: &'static str, rates: &[f64]) -> TimedKernel {
    let rate = |rate: &f64| Rate {
        threads: 1,
        from_memory: false,
        operations_per_second: *rate,
    };
    TimedKernel {
        kernel,
        rates: rates.iter().map(rate).collect(),
    }
}

#[test]
fn the_fastest_is_chosen_and_a_lower_isa_only_if_it_is_a_quarter_faster() {
    let choose = |rates: &[&[f64]]| {
        let kernels = ["first", "second", "third"]
            .iter()
            .zip(rates)
            .map(|(kernel, rates)| timed(kernel, rates));
        Choice::new(ProductKind::F32, kernels.collect())
    };
    assert_eq!(choose(&[&[100.0, 100.0], &[120.0, 124.0]]).chosen, "first");
    assert_eq!(choose(&[&[72.0], &[154.0], &[153.0]]).chosen, "second");
    assert_eq!(choose(&[&[72.0], &[80.0], &[91.0]]).chosen, "third");
    // Twice as fast from memory and half as fast from a cache counts as equally fast.
    assert_eq!(choose(&[&[100.0, 100.0], &[200.0, 50.0]]).chosen, "first");
    let choice = choose(&[&[50.0], &[100.0]]);
    assert_eq!((choice.by_isa(), choice.chosen), ("first", "second"));
    assert!((choice.gain() - 2.0).abs() < 1e-9);
}

#[test]
fn every_kind_of_product_has_a_kernel_that_this_processor_has_and_a_rate_in_each_setting() {
    let choices = choose_kernels(2);
    assert_eq!(
        choices.iter().map(|choice| choice.kind).collect::<Vec<_>>(),
        ProductKind::ALL
    );
    for choice in &choices {
        assert!(
            choice
                .timed
                .iter()
                .any(|timed| timed.kernel == choice.chosen),
            "{choice:?}"
        );
        let rates = choice.timed.iter().flat_map(|timed| &timed.rates);
        assert!(
            rates.clone().all(|rate| rate.operations_per_second > 0.0),
            "{choice:?}"
        );
        assert_eq!(
            rates.filter(|rate| rate.threads == 2).count() * 2,
            choice
                .timed
                .iter()
                .map(|timed| timed.rates.len())
                .sum::<usize>()
        );
    }
    let name = |kind| {
        choices
            .iter()
            .find(|choice| choice.kind == kind)
            .map(|choice| choice.chosen)
    };
    let kernels = named(available(), name).unwrap();
    assert_eq!(Some(kernels.int16.name()), name(ProductKind::Int16));
    assert_eq!(Some(kernels.float.name()), name(ProductKind::F32));
    let rounded = kernels
        .rounded_pairs()
        .map(|kernel| kernel as &dyn PanelKernel);
    let rounded = rounded
        .or(kernels.bf16.map(|kernel| kernel as _))
        .unwrap_or(kernels.float);
    assert_eq!(Some(rounded.name()), name(ProductKind::Rounded));
}

#[test]
fn kernels_are_found_by_their_names_and_others_are_errors() {
    let rows = available();
    let last = rows.last().expect("plain Rust");
    let plain = |kind| match kind {
        ProductKind::Int8Few | ProductKind::Int8Many | ProductKind::Int16 => Some("reference"),
        ProductKind::F32 | ProductKind::Rounded => Some("portable"),
    };
    let kernels = named(rows, plain).unwrap();
    assert_eq!(
        (
            kernels.int8.name(),
            kernels.int16.name(),
            kernels.float.name()
        ),
        ("reference", "reference", last.float.name())
    );
    assert!(kernels.bf16.is_none(), "f32 in place of bf16");
    assert!(!kernels.rounds_to_pairs, "f32 in place of INT16");
    let none = named(rows, |_| None).unwrap();
    assert_eq!(
        (none.int8.name(), none.float.name()),
        (rows[0].int8.name(), rows[0].float.name())
    );
    for pairs in rows.iter().filter_map(|row| row.pairs) {
        let kernels = named(rows, |kind| {
            (kind == ProductKind::Rounded).then_some(pairs.name())
        })
        .unwrap();
        assert_eq!(
            kernels.rounded_pairs().map(PanelKernel::name),
            Some(pairs.name())
        );
    }
    for bf16 in rows.iter().filter_map(|row| row.bf16) {
        let kernels = named(rows, |kind| {
            (kind == ProductKind::Rounded).then_some(bf16.name())
        })
        .unwrap();
        assert!(kernels.rounded_pairs().is_none());
        assert_eq!(kernels.bf16.map(PanelKernel::name), Some(bf16.name()));
    }
    let rounded = |kind| (kind == ProductKind::Rounded).then_some("sse9");
    let Err(error) = named(rows, rounded) else {
        panic!("accepted a kernel that does not exist")
    };
    assert_eq!(
        error,
        "sse9 is no kernel of this processor for rounded, many rows"
    );
    let Err(error) = named(rows, |_| Some("sse9")) else {
        panic!("accepted a kernel that does not exist")
    };
    assert_eq!(
        error,
        "sse9 is no kernel of this processor for INT8, few rows"
    );
}

#[test]
fn few_rows_and_many_rows_may_have_two_kernels() {
    struct Named(&'static str);
    impl Int8Kernel for Named {
        fn name(&self) -> &'static str {
            self.0
        }

        fn multiply(&self, rectangle: &Rectangle) {
            // SAFETY: no other reference to the output exists.
            #[allow(unsafe_code)]
            let out = unsafe { rectangle.out.row(0, 0..1) };
            out[0] = self.0.len() as f32;
        }
    }
    let by_rows = ByRows {
        few: &Named("a"),
        many: &Named("bb"),
    };
    let (numbers, scales) = (vec![127; MANY * FEATURES], vec![0.01; COLUMNS.max(MANY)]);
    let (packed, sums) = (vec![1i8; FEATURES * COLUMNS], vec![0; COLUMNS]);
    for (rows, expected) in [
        (1, 1.0),
        (MANY_FROM - 1, 1.0),
        (MANY_FROM, 2.0),
        (MANY, 2.0),
    ] {
        let mut out = vec![0.0; rows * COLUMNS];
        let x = QuantizedView {
            in_features: FEATURES,
            bytes: &numbers[..rows * FEATURES],
            scales: &scales[..rows],
            parts: &[Part::default()],
            rows_before: 0,
            outlier_columns: &[],
        };
        let weight = Int8Weight {
            out_features: COLUMNS,
            in_features: FEATURES,
            packed: &packed,
            scales: &scales[..COLUMNS],
            sums: &sums,
        };
        let shared = OutputMut::new(&mut out, COLUMNS).into_shared();
        by_rows.multiply(&Rectangle {
            x,
            rows: 0..rows,
            weight,
            columns: 0..COLUMNS,
            bias: None,
            out: shared,
        });
        assert_eq!(out[0], expected, "{rows} rows");
    }
}
