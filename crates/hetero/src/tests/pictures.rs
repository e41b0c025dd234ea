//! Tests of pictures on several processors: rows and logits have the bits of one CPU, whichever device multiplies for the
//! encoder, and whatever happens to it.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use triad_engine::testing::quantize_vision;
use triad_engine::{KvFormat, LoadOptions, Picture, Pixels, PrefixSalt};
use triad_model::role::Role;
use triad_processors::Error as DeviceError;

use super::devices::{TestDevice, unplugged, with_device};
use super::*;
use crate::EncodedView;

/// All checkpoints of `tests/golden/pictures`.
pub(super) const NAMES: [&str; 11] = [
    "smolvlm",
    "idefics3",
    "gemma3",
    "gemma4",
    "gemma4-inputs",
    "llava",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "internvl",
    "lfm2_vl",
];

/// The views of a checkpoint, and a prompt in which -1 - V stands for a row of view V.
pub(super) struct Golden {
    views: Vec<(usize, usize, Vec<f32>)>,
    tokens: Vec<i32>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures")
}

pub(super) fn golden(name: &str) -> Golden {
    let bytes = std::fs::read(folder().join("golden.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let view = |index| {
        let tensor = file.tensor(&format!("{name}.pixels.{index}")).ok()?;
        let words = tensor.data().as_chunks().0.iter();
        let planes = words.map(|word| f32::from_le_bytes(*word)).collect();
        Some((tensor.shape()[1], tensor.shape()[2], planes))
    };
    let tokens = file.tensor(&format!("{name}.tokens")).unwrap();
    let words = tokens.data().as_chunks().0.iter();
    Golden {
        views: (0..).map_while(view).collect(),
        tokens: words.map(|word| i32::from_le_bytes(*word)).collect(),
    }
}

impl Golden {
    /// Returns the number of views.
    pub(super) fn views(&self) -> usize {
        self.views.len()
    }

    pub(super) fn pixels(&self) -> impl Iterator<Item = Pixels<'_>> {
        self.views.iter().map(|(height, width, planes)| Pixels {
            height: *height,
            width: *width,
            planes,
        })
    }
}

/// Returns a checkpoint as it is stored.
pub(super) fn stored(name: &str) -> Arc<Model> {
    let options = LoadOptions {
        threads: Threads::Count(2),
        ..LoadOptions::default()
    };
    Arc::new(Model::load(&folder().join(name), &options).expect(name))
}

/// Returns a checkpoint whose encoder is in INT8, without this share of the shadows.
pub(super) fn with_int8_encoder(name: &str, pruned: f64) -> Arc<Model> {
    let golden = golden(name);
    let views: Vec<_> = golden.pixels().collect();
    let model = Arc::into_inner(stored(name)).unwrap();
    let encoder = quantize_vision(model.vision().unwrap(), &views, pruned);
    Arc::new(model.with_vision(encoder))
}

/// Returns options of an engine with room for the prompts.
pub(super) fn options_of(processors: Vec<ProcessorOptions>) -> HeteroOptions {
    let mut engine = of_session(512, CHUNK);
    engine.session.kv_format = KvFormat::F16;
    HeteroOptions {
        engine,
        processors,
        ..options(Policy::CriticalPath)
    }
}

pub(super) fn encode(engine: &Engine, pixels: Pixels) -> Result<Picture> {
    engine.picture(pixels, PrefixSalt::default(), &Cancel::new())
}

/// Returns the rows of all views and all logits of the prompt.
pub(super) fn answer(engine: &Engine, golden: &Golden) -> (Vec<f32>, Vec<f32>) {
    let pictures: Vec<_> = golden
        .pixels()
        .map(|pixels| encode(engine, pixels).unwrap())
        .collect();
    let (mut prompt, mut before) = (Vec::new(), 0);
    for token in &golden.tokens {
        match usize::try_from(-1 - *token) {
            Ok(view) if before != *token => prompt.extend(pictures[view].tokens()),
            Ok(_) => {}
            Err(_) => prompt.push(*token as u32),
        }
        before = *token;
    }
    let mut session = engine.session();
    pictures.iter().for_each(|picture| session.hold(picture));
    let logits = session.prefill_all_logits(&prompt, &Cancel::new()).unwrap();
    let rows = pictures.iter().flat_map(Picture::values).copied();
    (rows.collect(), logits)
}

pub(super) fn on_cpu(model: &Arc<Model>, golden: &Golden) -> (Vec<f32>, Vec<f32>) {
    let engine = Engine::new(model, &options_of(Vec::new()).engine).unwrap();
    answer(&engine, golden)
}

/// Returns the views of an engine, which has encoded `count`.
pub(super) fn views(engine: &HeteroEngine, count: usize) -> Vec<EncodedView> {
    let views = engine.take_encoded_views();
    assert_eq!(views.len(), count);
    views
}

/// Returns how many products of an encoder's blocks a device computes for a view: those of feed-forwards are one tile. The
/// CPU computes layers that read different inputs.
fn products(model: &Model) -> usize {
    let vision = model.vision().unwrap();
    let blocks = 0..vision.description().blocks;
    let divided = blocks.filter(|block| vision.divides(*block, Role::QueryKeyValue));
    4 * vision.description().blocks - divided.count()
}

#[test]
fn encoders_in_int8_on_a_device_have_the_rows_and_logits_of_the_cpu() {
    for name in NAMES {
        let golden = golden(name);
        for pruned in [0.0, 0.5, 1.0] {
            let model = with_int8_encoder(name, pruned);
            let expected = on_cpu(&model, &golden);
            for device in [TestDevice::new(), TestDevice::with_static_shapes()] {
                let device = Arc::new(device);
                let engine = engine(&model, with_device(&device, options_of(Vec::new())));
                let before = device.prepared.lock().unwrap().len();
                let found = answer(&engine, &golden);
                assert!(found.0 == expected.0, "{name}, {pruned}: rows");
                assert!(found.1 == expected.1, "{name}, {pruned}: logits");
                let prepared = device.prepared.lock().unwrap().len() - before;
                assert_eq!(prepared, products(&model), "{name}: once for all views");
                for view in views(&engine, golden.views.len()) {
                    assert!(view.failures.is_empty() && view.without_room == 0, "{name}");
                    assert_eq!(view.products.len(), products(&model), "{name}");
                    assert!(view.products.iter().all(|it| it.processor == NPU));
                    let times = view.products.iter().flat_map(|it| [it.start, it.end]);
                    assert!(times.is_sorted_by(|one, other| one <= other), "{name}");
                }
            }
        }
    }
}

#[test]
fn a_view_of_more_rows_than_a_program_runs_in_pieces() {
    for name in ["smolvlm", "qwen2_5_vl", "lfm2_vl"] {
        let model = with_int8_encoder(name, 0.0);
        let description = model.vision().unwrap().description();
        let patches = 24usize.next_multiple_of(description.projector.merge);
        let side = patches * description.patch;
        let planes = (0..3 * side * side).map(|index| (index * 7919 % 255) as f32 / 127.0 - 1.0);
        let planes: Vec<f32> = planes.collect();
        let pixels = Pixels {
            height: side,
            width: side,
            planes: &planes,
        };
        let cpu = Engine::new(&model, &options_of(Vec::new()).engine).unwrap();
        let expected = encode(&cpu, pixels).unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let device = TestDevice::on_run({
            let runs = Arc::clone(&runs);
            Arc::new(move |_, _, _| {
                runs.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        });
        let engine = engine(&model, with_device(&device, options_of(Vec::new())));
        let found = encode(&engine, pixels).unwrap();
        assert!(found.values() == expected.values(), "{name}");
        let runs = runs.load(Ordering::Relaxed);
        assert!(runs >= 3 * products(&model), "{name}: {runs} pieces");
    }
}

#[test]
fn encoders_run_on_the_cpu_where_no_processor_has_a_device() {
    for name in NAMES {
        let golden = golden(name);
        for model in [stored(name), with_int8_encoder(name, 0.5)] {
            let engine = engine(&model, options_of(two(1, None)));
            assert!(
                answer(&engine, &golden) == on_cpu(&model, &golden),
                "{name}"
            );
            for view in views(&engine, golden.views.len()) {
                assert!(view.products.is_empty(), "{name}");
            }
        }
    }
}

#[test]
fn encoders_in_float_on_a_device_that_multiplies_floats_have_the_rows_of_the_cpu() {
    for name in NAMES {
        let (golden, model) = (golden(name), stored(name));
        let device = Arc::new(TestDevice::new());
        let engine = engine(&model, with_device(&device, options_of(Vec::new())));
        assert!(
            answer(&engine, &golden) == on_cpu(&model, &golden),
            "{name}"
        );
        for view in views(&engine, golden.views.len()) {
            assert_eq!(view.products.len(), products(&model), "{name}");
        }
    }
}

#[test]
fn a_device_that_is_lost_at_any_product_leaves_the_rest_of_the_view_to_the_cpu() {
    let (golden, model) = (golden("qwen2_5_vl"), with_int8_encoder("qwen2_5_vl", 0.0));
    let pixels = golden.pixels().next().unwrap();
    let expected = on_cpu(&model, &golden).0;
    for at in 0..products(&model) {
        let runs = AtomicUsize::new(0);
        let device = TestDevice::on_run(Arc::new(
            move |_, _, outs: &mut [triad_kernels::OutputMut]| {
                if runs.fetch_add(1, Ordering::Relaxed) == at {
                    // Nothing that is in the outputs may be used.
                    outs.iter_mut().for_each(|out| out.fill(f32::NAN));
                    if at % 2 == 0 {
                        return Err(unplugged());
                    }
                    std::panic::resume_unwind(Box::new("unplugged"));
                }
                Ok(())
            },
        ));
        let engine = engine(&model, with_device(&device, options_of(Vec::new())));
        let found = encode(&engine, pixels).unwrap();
        assert!(expected.starts_with(found.values()), "lost at {at}");
        let [view] = &views(&engine, 1)[..] else {
            panic!("one view")
        };
        assert_eq!(view.products.len(), at, "those before it");
        let [failure] = &view.failures[..] else {
            panic!("lost at {at}: {:?}", view.failures)
        };
        assert!(
            failure.processor == "npu" && failure.reason.to_string().contains("unplugged"),
            "{failure}"
        );
        let salt = PrefixSalt::from_secret(b"another client");
        let again = engine.picture(pixels, salt, &Cancel::new()).unwrap();
        assert!(expected.starts_with(again.values()));
        let [view] = &views(&engine, 1)[..] else {
            panic!("one view")
        };
        assert!(
            view.failures.is_empty(),
            "the next view has the device again"
        );
        assert_eq!(view.products.len(), products(&model));
    }
}

#[test]
fn a_device_that_hangs_is_left_out_until_it_returns() {
    let (golden, model) = (golden("smolvlm"), with_int8_encoder("smolvlm", 0.0));
    let expected = on_cpu(&model, &golden).0;
    let views_of: Vec<_> = golden.pixels().collect();
    let (hangs, runs) = (Arc::new(AtomicBool::new(true)), AtomicUsize::new(0));
    let device = TestDevice::on_run({
        let hangs = Arc::clone(&hangs);
        Arc::new(move |_, _, _| {
            while runs.load(Ordering::Relaxed) == 5 && hangs.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            runs.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    });
    let options = HeteroOptions {
        time_out: Duration::from_millis(200),
        ..options_of(Vec::new())
    };
    let engine = engine(&model, with_device(&device, options));
    let first = encode(&engine, views_of[0]).unwrap();
    assert!(expected.starts_with(first.values()));
    let view = views(&engine, 1).remove(0);
    assert!(
        matches!(&view.failures[..], [failure] if matches!(failure.reason, FailureReason::TimeOut(_))),
        "{:?}",
        view.failures
    );
    // It still hangs, and the next view does not wait for it.
    let second = encode(&engine, views_of[1]).unwrap();
    assert!(expected[first.values().len()..].starts_with(second.values()));
    let view = views(&engine, 1).remove(0);
    assert!(view.products.is_empty() && view.failures.is_empty());
    hangs.store(false, Ordering::Relaxed);
    let begin = std::time::Instant::now();
    for salt in 0u32.. {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "it is used again"
        );
        let salt = PrefixSalt::from_secret(&salt.to_le_bytes());
        let again = engine.picture(views_of[0], salt, &Cancel::new()).unwrap();
        assert!(again.values() == first.values());
        if views(&engine, 1).remove(0).products.len() == products(&model) {
            break;
        }
    }
}

#[test]
fn products_that_a_device_has_no_room_for_run_on_the_cpu_and_are_counted() {
    let (golden, model) = (golden("internvl"), with_int8_encoder("internvl", 0.5));
    let expected = on_cpu(&model, &golden);
    let all: usize = {
        let device = Arc::new(TestDevice::new());
        let engine = engine(&model, with_device(&device, options_of(Vec::new())));
        answer(&engine, &golden);
        let prepared = device.prepared.lock().unwrap();
        prepared.iter().map(|subgraph| subgraph.bytes(CHUNK)).sum()
    };
    for room in [0, all / 2] {
        let device = Arc::new(TestDevice::with_room(room));
        let engine = engine(&model, with_device(&device, options_of(Vec::new())));
        assert!(answer(&engine, &golden) == expected, "{room}");
        for view in views(&engine, golden.views.len()) {
            assert_eq!(view.products.len() + view.without_room, products(&model));
            assert_eq!(view.products.is_empty(), room == 0);
            assert!(view.without_room > 0 && view.failures.is_empty());
        }
    }
}

#[test]
fn an_encoder_that_a_device_refuses_is_an_error_with_its_name() {
    let (golden, model) = (golden("smolvlm"), with_int8_encoder("smolvlm", 0.0));
    let device = Arc::new(TestDevice::refusing(|| DeviceError::Run {
        processor: "test".into(),
        reason: "no such operator".into(),
    }));
    let engine = engine(&model, with_device(&device, options_of(Vec::new())));
    let error = encode(&engine, golden.pixels().next().unwrap()).unwrap_err();
    let chain = format!("{error}: {:?}", Error::from_engine(&error));
    assert!(
        chain.contains("encoder of pictures") && chain.contains("no such operator"),
        "{chain}"
    );
}

#[test]
fn a_view_that_is_cancelled_at_any_place_ends_with_that_error() {
    let (golden, model) = (golden("smolvlm"), with_int8_encoder("smolvlm", 0.0));
    let device = Arc::new(TestDevice::new());
    let engine = engine(&model, with_device(&device, options_of(Vec::new())));
    let pixels = golden.pixels().next().unwrap();
    let mut stops = 0;
    while let Err(error) = engine.picture(pixels, PrefixSalt::default(), &Cancel::after(stops)) {
        assert!(matches!(error, EngineError::Cancelled), "{error}");
        stops += 1;
    }
    assert!(stops > 4, "{stops}");
}
