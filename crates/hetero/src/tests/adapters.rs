//! Sequences with LoRA adapters: each has the bits that it has alone on one CPU, on any processors.

use triad_engine::testing::adapters::{adapted, random, together};

use super::devices::TestDevice;
use super::*;

/// Returns the logits of a prompt, and of some tokens that follow it.
fn logits(session: &mut Session, prompt: &[u32]) -> Vec<f32> {
    let mut all = session.prefill_all_logits(prompt, &Cancel::new()).unwrap();
    for token in 1..4 {
        all.extend_from_slice(session.decode(token, &Cancel::new()).unwrap());
    }
    all
}

#[test]
fn any_processors_and_devices_compute_adapters_alike() {
    for family in FAMILIES {
        for model in [
            float(family),
            int8(family),
            pruned(family, 1.0),
            Arc::new(testing::quantize_int4(&float(family))),
        ] {
            let adapters = together(&[(&random(&model, 4, |place| place % 4 != 2), 1.0)]);
            let tokens = prompt(&model, 3 * CHUNK + 2);
            let run = |session| logits(&mut adapted(session, &adapters), &tokens);
            let expected = run(session(&model, CHUNK));
            for (name, engine) in engines(&model) {
                assert!(run(engine.session()) == expected, "{family}, {name}");
            }
            if model.weights().is_int8() {
                // The device has programs of whole feed-forwards, which sessions without adapters still use.
                let device = Arc::new(TestDevice::new());
                let processors = two(1, Some(Arc::clone(&device) as Arc<dyn Device>));
                let engine = engine(
                    &model,
                    HeteroOptions {
                        processors,
                        ..options(Policy::CriticalPath)
                    },
                );
                let plain = |session: Session| all_logits(session, &tokens);
                let (with, without) = std::thread::scope(|scope| {
                    let with = scope.spawn(|| run(engine.session()));
                    (plain(engine.session()), with.join().unwrap())
                });
                assert!(
                    without == expected && with == plain(session(&model, CHUNK)),
                    "{family}"
                );
            }
        }
    }
}

#[test]
fn a_processor_lost_at_any_step_changes_no_bit_of_adapters() {
    let model = int8("gemma3");
    let adapters = together(&[(&random(&model, 5, |_| true), 1.0)]);
    let tokens = prompt(&model, 2 * CHUNK + 3);
    let run = |session| all_logits(adapted(session, &adapters), &tokens);
    let expected = run(session(&model, CHUNK));
    let tasks = engine(&model, options(Policy::Fifo))
        .graph()
        .subgraphs()
        .len();
    for at in 0..2 * tasks {
        let fail = if at % 2 == 0 { error } else { panic };
        let processor = if at % 3 == 0 { NPU } else { CPU };
        let engine = with_probe(
            engine(&model, options(Policy::Paper)),
            failing(processor, at, fail),
        );
        assert!(run(engine.session()) == expected, "{processor:?} at {at}");
    }
}
