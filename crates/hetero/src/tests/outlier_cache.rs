//! Shadows that read rows of channels, with a device that has its own memory: the bits of one processor alone.

use std::path::PathBuf;

use tempfile::TempDir;
use triad_engine::LinearInput;
use triad_engine::outlier_cache::{Hot, OutlierCacheOptions, OutlierCacheUse};
use triad_engine::quantization::InputQuantization;
use triad_plan::schedule::parts::{Axis, Cut, Share};
use triad_plan::tasks::Operation;

use super::devices::{OnRun, TestDevice, unplugged, with_device};
use super::*;
use crate::shadows;

/// Returns the path of the file of rows.
fn rows(folder: &TempDir) -> PathBuf {
    folder.path().join("rows")
}

/// Returns options with half of the channels hot.
fn outlier_cache(model: &Model, folder: &TempDir) -> Option<OutlierCacheOptions> {
    let description = model.description();
    let even = |block| {
        LinearInput::DENSE.map(|input| {
            let channels = input.channels(block, description.hidden) as u32;
            (0..channels).step_by(2).collect()
        })
    };
    let hot = Hot::Listed(description.blocks.iter().map(even).collect());
    Some(OutlierCacheOptions {
        hot,
        file: Some(rows(folder)),
    })
}

fn nothing() -> OnRun {
    Arc::new(|_, _, _| Ok(()))
}

fn options_of(
    model: &Model,
    folder: &TempDir,
    device: &Arc<TestDevice>,
    policy: Policy,
) -> HeteroOptions {
    HeteroOptions {
        outlier_cache: outlier_cache(model, folder),
        ..with_device(device, options(policy))
    }
}

fn usage(engine: &HeteroEngine) -> OutlierCacheUse {
    engine
        .outlier_cache()
        .expect("it has a device with its own memory")
}

#[test]
fn every_policy_chunk_length_and_number_of_chunks_in_flight_gives_the_logits_of_the_sequential_pass()
 {
    for family in FAMILIES {
        for rate in [0.0, 0.5] {
            let (model, folder) = (pruned(family, rate), tempfile::tempdir().unwrap());
            let tokens = prompt(&model, 29);
            let expected = all_logits(session(&model, CHUNK), &tokens);
            for (number, policy) in Policy::ALL.into_iter().enumerate() {
                let device = TestDevice::with_own_memory(nothing());
                let mut options = options_of(&model, &folder, &device, policy);
                options.engine.session.chunk = [CHUNK, 1, 5, 29][number % 4];
                options.chunks_in_flight = 1 + number % 4;
                let engine = engine(&model, options);
                engine.plan_ahead(tokens.len());
                assert!(
                    all_logits(engine.session(), &tokens) == expected,
                    "{family}, {rate}, {policy:?}"
                );
                let OutlierCacheUse {
                    statistics,
                    hot_bytes,
                    file_bytes,
                    failure,
                } = usage(&engine);
                assert_eq!(failure, None);
                assert!(
                    statistics.hits > 0 && statistics.misses > 0,
                    "{family}, {rate}: {statistics:?}"
                );
                assert!(hot_bytes > 0 && (hot_bytes as u64) < file_bytes);
            }
        }
    }
}

#[test]
fn hits_and_misses_are_those_of_the_outliers_of_each_chunk() {
    let (model, folder) = (pruned("llama", 0.0), tempfile::tempdir().unwrap());
    let tokens = prompt(&model, 2 * CHUNK);
    // The sequential pass has the same inputs, one chunk after the other.
    let device = TestDevice::with_own_memory(nothing());
    let engine = engine(&model, options_of(&model, &folder, &device, Policy::Fifo));
    all_logits(engine.session(), &tokens);
    let (mut hits, mut misses, mut bytes) = (0, 0, 0);
    let mut sequential = session(&model, CHUNK);
    for chunk in tokens.chunks(CHUNK) {
        let description = model.description();
        let mut observe = |block: usize, input: LinearInput, x: &[f32]| {
            let InputQuantization::Static { clip, .. } =
                &model.weights().blocks[block].inputs.as_ref().unwrap()[input.index()]
            else {
                panic!("static scales")
            };
            let channels = input.channels(&description.blocks[block], description.hidden);
            let features = description.blocks[block]
                .linears(description.hidden)
                .into_iter();
            let features: usize = features
                .filter(|shape| LinearInput::read_by(shape.linear) == input)
                .map(|shape| shape.out_features)
                .sum();
            let clip = 127.0 * (clip / 127.0);
            let is_outlier = |channel: &usize| {
                x.iter()
                    .skip(*channel)
                    .step_by(channels)
                    .any(|x| x.abs() > clip)
            };
            for channel in (0..channels).filter(is_outlier) {
                match channel % 2 {
                    0 => hits += 1,
                    _ => (misses, bytes) = (misses + 1, bytes + features as u64 + 16),
                }
            }
        };
        sequential
            .observe(chunk, &Cancel::new(), &mut observe)
            .unwrap();
    }
    let statistics = usage(&engine).statistics;
    assert_eq!(
        (statistics.hits, statistics.misses, statistics.bytes_read),
        (hits, misses, bytes)
    );
    assert_eq!(
        statistics.late, 0,
        "all are requested when an input is quantized"
    );
    assert!(hits > 0 && misses > 0);
}

#[test]
fn a_device_or_a_cpu_lost_at_any_step_changes_no_bit() {
    let (model, folder) = (pruned("qwen2", 0.3), tempfile::tempdir().unwrap());
    let tokens = prompt(&model, 3 * CHUNK + 2);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let with_counted = |device: &Arc<TestDevice>, policy| {
        engine(&model, options_of(&model, &folder, device, policy))
    };
    let device = TestDevice::with_own_memory(nothing());
    let counted = with_counted(&device, Policy::Fifo);
    let runs = 4 * device.prepared.lock().unwrap().len();
    for after in (0..runs).step_by(3) {
        let ran = AtomicUsize::new(0);
        let device = TestDevice::with_own_memory(Arc::new(move |_, _, outs| {
            if ran.fetch_add(1, Ordering::Relaxed) != after {
                return Ok(());
            }
            outs.iter_mut().for_each(|out| out.fill(7.0));
            Err(unplugged())
        }));
        let mut session = with_counted(&device, Policy::ALL[after % Policy::ALL.len()]).session();
        for lost in [1, 0] {
            session.truncate(0);
            assert!(
                session.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected,
                "{after}"
            );
            assert_eq!(failures(&session).len(), lost);
        }
    }
    let (graph, shadows) = (counted.graph(), counted.tasks().shadows.clone());
    let int8 = graph
        .subgraphs()
        .iter()
        .filter(|subgraph| subgraph.role.format() == Format::Int8)
        .count();
    let others = graph.subgraphs().len() - int8 + shadows.iter().flatten().count();
    for at in (0..2 * 4 * others).step_by(5) {
        let fail = if at % 2 == 0 { error } else { panic };
        let device = TestDevice::with_own_memory(nothing());
        let engine = with_counted(&device, Policy::ALL[at % Policy::ALL.len()]);
        let mut session = with_probe(engine, failing(CPU, at, fail)).session();
        assert!(
            session.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected,
            "{at}"
        );
        assert_eq!(failures(&session).len(), 1);
    }
}

#[test]
fn sequences_at_once_and_cancelled_ones_change_no_bit() {
    let (model, folder) = (pruned("llama", 0.2), tempfile::tempdir().unwrap());
    let device = TestDevice::with_own_memory(nothing());
    let engine = engine(
        &model,
        options_of(&model, &folder, &device, Policy::CriticalPath),
    );
    std::thread::scope(|scope| {
        for length in [9, 30, 17, 24] {
            let (engine, model) = (&engine, &model);
            scope.spawn(move || {
                let tokens = prompt(model, length);
                let expected = all_logits(session(model, CHUNK), &tokens);
                for round in 0..4 {
                    let mut own = engine.session();
                    if round % 2 == 1 {
                        let cancel = Cancel::new();
                        let cancelled = cancel.clone();
                        let _ = own.prefill(&tokens, &cancel, |_| cancelled.cancel());
                        own.truncate(0);
                    }
                    assert!(
                        own.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected,
                        "{length}"
                    );
                }
            });
        }
    });
    assert_eq!(usage(&engine).failure, None);
}

#[test]
fn products_that_are_cut_and_decoded_rows_change_no_bit() {
    let (model, folder) = (pruned("llama", 0.0), tempfile::tempdir().unwrap());
    let tokens = prompt(&model, 21);
    let mut sequential = session(&model, CHUNK);
    let last = sequential
        .prefill(&tokens, &Cancel::new(), |_| {})
        .unwrap()
        .to_vec();
    let next = sequential.decode(3, &Cancel::new()).unwrap().to_vec();
    for axis in [Axis::Columns, Axis::Rows] {
        let device = TestDevice::with_own_memory(nothing());
        let cut = Cut::new(
            axis,
            [(CPU, 1.0), (NPU, 3.0)]
                .map(|(processor, share)| Share { processor, share })
                .into(),
            16,
        )
        .unwrap();
        let options = HeteroOptions {
            cuts: vec![(triad_plan::graph::Role::Down, cut)],
            ..options_of(&model, &folder, &device, Policy::Fifo)
        };
        let engine = engine(&model, options);
        let mut own = engine.session();
        assert!(
            own.prefill(&tokens, &Cancel::new(), |_| {}).unwrap() == last,
            "{axis:?}"
        );
        let counted = usage(&engine);
        assert!(counted.statistics.misses > 0);
        assert!(
            own.decode(3, &Cancel::new()).unwrap() == next,
            "{axis:?}: decode"
        );
        assert_eq!(usage(&engine), counted, "decode reads the weights in place");
    }
}

#[test]
fn a_file_that_is_damaged_while_it_is_used_changes_no_bit_and_is_reported() {
    let (model, folder) = (pruned("gemma3", 0.0), tempfile::tempdir().unwrap());
    let tokens = prompt(&model, 40);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let shadows = shadows::shadows(&model).len();
    for after in 0..3 * shadows {
        let (path, ran) = (rows(&folder), AtomicUsize::new(0));
        let device = TestDevice::with_own_memory(Arc::new(move |_, _, _| {
            if ran.fetch_add(1, Ordering::Relaxed) == after {
                std::fs::OpenOptions::new()
                    .write(true)
                    .open(&path)
                    .unwrap()
                    .set_len(50)
                    .unwrap();
            }
            Ok(())
        }));
        let engine = engine(
            &model,
            options_of(&model, &folder, &device, Policy::CriticalPath),
        );
        let mut own = engine.session();
        assert!(
            own.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected,
            "{after}"
        );
        assert!(failures(&own).is_empty(), "no processor is lost for it");
        assert!(
            usage(&engine)
                .failure
                .is_some_and(|failure| failure.contains("rows"))
        );
    }
}

#[test]
fn without_a_place_for_the_file_weights_are_read_in_place_and_that_is_reported() {
    let (model, folder) = (pruned("llama", 0.0), tempfile::tempdir().unwrap());
    let tokens = prompt(&model, 20);
    let device = TestDevice::with_own_memory(nothing());
    let file = Some(folder.path().join("absent").join("rows"));
    let outlier_cache = Some(OutlierCacheOptions {
        hot: Hot::None,
        file,
    });
    let engine = engine(
        &model,
        HeteroOptions {
            outlier_cache,
            ..with_device(&device, options(Policy::Fifo))
        },
    );
    assert!(all_logits(engine.session(), &tokens) == all_logits(session(&model, CHUNK), &tokens));
    let OutlierCacheUse {
        statistics,
        failure,
        ..
    } = usage(&engine);
    assert_eq!((statistics.hits, statistics.misses), (0, 0));
    assert!(failure.unwrap().contains("absent"));
}

#[test]
fn only_shadows_next_to_a_device_with_memory_of_its_own_read_rows() {
    let (model, folder) = (pruned("llama", 0.0), tempfile::tempdir().unwrap());
    let of = |device: Arc<TestDevice>, outlier_cache| {
        engine(
            &model,
            HeteroOptions {
                outlier_cache,
                ..with_device(&device, options(Policy::Fifo))
            },
        )
        .outlier_cache()
    };
    let on = || outlier_cache(&model, &folder);
    assert_eq!(
        of(Arc::new(TestDevice::new()), on()),
        None,
        "it reads the CPU's weights"
    );
    assert_eq!(
        of(TestDevice::with_own_memory(nothing()), None),
        None,
        "switched off"
    );
    assert_eq!(
        of(
            TestDevice::with_own_memory(nothing()),
            Some(OutlierCacheOptions::default())
        ),
        None,
        "no package"
    );
    assert!(!rows(&folder).exists());
    assert!(of(TestDevice::with_own_memory(nothing()), on()).is_some());
    let without = pruned("llama", 1.0);
    let device = TestDevice::with_own_memory(nothing());
    let engine = engine(
        &without,
        options_of(&without, &folder, &device, Policy::Fifo),
    );
    assert!(engine.tasks().shadows.iter().all(Option::is_none));
    assert_eq!(engine.outlier_cache(), None, "no shadow");
    // Only shadows that are separate tasks use rows.
    let device = TestDevice::with_own_memory(nothing());
    let engine = self::engine(&model, options_of(&model, &folder, &device, Policy::Fifo));
    let mut session = engine.session();
    session
        .prefill(&prompt(&model, 30), &Cancel::new(), |_| {})
        .unwrap();
    let tasks = &execution(&session).unwrap().tasks.tasks;
    assert!(tasks.iter().any(|task| task.operation == Operation::Shadow));
}

/// Returns the resident bytes of a file's mapping, as counted by the system.
#[cfg(target_os = "linux")]
fn resident(path: &std::path::Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps
        .lines()
        .skip_while(|line| !line.ends_with(path.to_str().unwrap()));
    let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    rss.trim()
        .strip_suffix(" kB")
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 1024
}

#[test]
#[cfg(target_os = "linux")]
fn next_to_a_device_with_memory_of_its_own_no_page_of_its_weights_stays_resident() {
    use std::os::unix::fs::FileExt;

    use triad_engine::weights::{Int8Matrix, Weight};

    /// The distance of layers: the system maps up to this much around a page that is read, so no layer is read with
    /// another.
    const APART: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let mapped = folder.path().join("weights");
    let mut model = Arc::into_inner(pruned("llama", 0.0)).unwrap();
    let file = std::fs::File::create_new(&mapped).unwrap();
    let mut matrices = Vec::new();
    for linear in model
        .weights_mut()
        .blocks
        .iter_mut()
        .flat_map(|block| block.linears.values_mut())
    {
        if let Weight::Int8(matrix) = &mut linear.weight {
            let packed = matrix.view().packed.iter();
            let packed: Vec<u8> = packed.map(|weight| weight.cast_unsigned()).collect();
            file.write_all_at(&packed, matrices.len() as u64 * APART)
                .unwrap();
            let length = packed.len();
            matrices.push((matrix, length));
        }
    }
    file.set_len(matrices.len() as u64 * APART).unwrap();
    let file = triad_model::mapped::MappedFile::open(&mapped).unwrap();
    for (index, (matrix, length)) in matrices.into_iter().enumerate() {
        let start = index * APART as usize;
        let view = matrix.view();
        let (scales, sums) = (view.scales.to_vec(), view.sums.to_vec());
        let packed = file.part(start..start + length);
        *matrix =
            Int8Matrix::mapped(view.out_features, view.in_features, packed, scales, sums).unwrap();
    }
    let model = Arc::new(model);
    let tokens = prompt(&model, 30);
    let run = |own_memory: bool, outlier_cache: Option<OutlierCacheOptions>| {
        let device = if own_memory {
            TestDevice::with_own_memory(nothing())
        } else {
            Arc::new(TestDevice::new())
        };
        let options = HeteroOptions {
            outlier_cache,
            ..with_device(&device, options(Policy::Fifo))
        };
        let engine = engine(&model, options);
        let prepared = resident(&mapped);
        let logits = all_logits(engine.session(), &tokens);
        (prepared, resident(&mapped), logits)
    };
    let (prepared, later, expected) = run(true, outlier_cache(&model, &folder));
    assert_eq!((prepared, later), (0, 0));
    let (prepared, later, logits) = run(true, None);
    assert!(
        prepared == 0 && later > 0 && logits == expected,
        "shadows read the weights in place: {later}"
    );
    let (_, later, logits) = run(true, outlier_cache(&model, &folder));
    assert!(later == 0 && logits == expected);
    let (_, later, logits) = run(false, outlier_cache(&model, &folder));
    assert!(
        later > 0 && logits == expected,
        "a device that reads the CPU's weights leaves them: {later}"
    );
}
