//! Graphs that Qualcomm's provider compiles ahead of time for other chips, on the emulator of its Python package. These tests
//! have a process of their own, and take turns in it: the emulator has ended with a segmentation fault while one thread
//! compiled for a chip and others computed for another one. In a process, it has one chip at a time: graphs that it
//! compiles for itself, or loads for another chip, end those that are loaded.

mod qnn_support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use triad_kernels::OutputMut;
use triad_kernels::int8::QuantizedRows;
use triad_processors::npu::{Chip, Contexts, KeptContexts, Npu, NpuOptions, Provider};
use triad_processors::{Device, Error, Program};

use qnn_support::plain::{Plain, Random, quantized};
use qnn_support::{SCALE, linear, options, run};

static TURN: Mutex<()> = Mutex::new(());

/// Returns options with graphs compiled ahead of time.
fn with_contexts(options: &NpuOptions, contexts: Contexts) -> NpuOptions {
    NpuOptions {
        contexts: Some(contexts),
        ..options.clone()
    }
}

/// Compiles the graphs of some layers, each for 4 rows, to a new folder, in contexts of so many bytes.
fn compile(
    options: &NpuOptions,
    (chip, context_bytes): (Chip, usize),
    folder: &Path,
    layers: &[Arc<Plain>],
) -> KeptContexts {
    let folder = folder.to_owned();
    let contexts = Contexts::Compile {
        chip,
        folder,
        context_bytes,
    };
    let npu = Npu::new(with_contexts(options, contexts)).unwrap();
    for layer in layers {
        let subgraph = linear(std::slice::from_ref(layer));
        let mut program = npu.prepare(&subgraph, 4).unwrap();
        let input = quantized(&[0.0; 32], 32, SCALE);
        let mut out = vec![0.0; layer.out_features];
        let run = program.run(
            input.view(),
            &mut [OutputMut::new(&mut out, layer.out_features)],
        );
        let error = run.unwrap_err().to_string();
        assert!(
            error.contains("are compiled ahead of time, and not run"),
            "{error}"
        );
    }
    let kept = npu.keep_contexts().unwrap().unwrap();
    assert_eq!(kept.graphs, layers.len());
    kept
}

/// Returns the outputs of layers by graphs that the emulator compiles for itself.
fn expected(options: &NpuOptions, layers: &[Arc<Plain>], input: &QuantizedRows) -> Vec<Vec<f32>> {
    let npu = Npu::new(options.clone()).unwrap();
    let layers = layers.chunks_exact(1);
    layers
        .map(|layer| run(&npu, layer, 4, input).remove(0))
        .collect()
}

/// Opens a folder.
fn open(options: &NpuOptions, folder: &Path) -> Npu {
    let folder = folder.to_owned();
    Npu::new(with_contexts(options, Contexts::Run { folder })).unwrap()
}

/// Returns the paths of the contexts of a folder, in order.
fn contexts(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let is_context = |path: &PathBuf| path.extension() == Some("bin".as_ref());
    let mut contexts: Vec<_> = files.filter(is_context).collect();
    contexts.sort();
    contexts
}

#[test]
fn graphs_compiled_for_each_chip_run_on_a_device_that_compiles_nothing_and_give_the_same_bits() {
    let Some(options) = options() else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let place = tempfile::tempdir().unwrap();
    let mut random = Random::new(2);
    let layers = [24, 40].map(|outputs| Plain::random(&mut random, outputs, 32, true));
    let floats = random.floats(4 * 32, 1.0);
    let input = quantized(&floats, 32, SCALE);
    let expected = expected(&options, &layers, &input);
    let mut first = None;
    for chip in Chip::ALL {
        let folder = place.path().join(chip.name());
        let kept = compile(&options, (chip, Contexts::MAX_BYTES), &folder, &layers);
        assert_eq!(kept.contexts, 1);
        let npu = open(&options, &folder);
        for (layer, expected) in layers.iter().zip(&expected) {
            let layer = std::slice::from_ref(layer);
            assert!(run(&npu, layer, 4, &input)[0] == *expected, "{chip}");
            // Shorter chunks are padded.
            let short = quantized(&floats[..3 * 32], 32, SCALE);
            let rows = 3 * layer[0].out_features;
            assert!(run(&npu, layer, 3, &short)[0] == expected[..rows], "{chip}");
        }
        // The context is that of this chip.
        let [context] = &contexts(&folder)[..] else {
            panic!()
        };
        let content = fs::read(context).unwrap();
        assert_eq!(content.len() as u64, kept.bytes);
        assert_ne!(first.replace(content.clone()), Some(content), "{chip}");
    }
}

/// Runs a program on 4 rows.
fn outputs(program: &mut dyn Program, layer: &Plain, input: &QuantizedRows) -> Vec<f32> {
    let mut out = vec![0.5; 4 * layer.out_features];
    let view = OutputMut::new(&mut out, layer.out_features);
    program.run(input.view(), &mut [view]).unwrap();
    out
}

#[test]
fn all_graphs_are_in_one_context_that_is_loaded_once_and_lives_as_long_as_one_of_them() {
    let Some(options) = options() else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let place = tempfile::tempdir().unwrap();
    let mut random = Random::new(7);
    let mut new = || [24, 40, 24, 8].map(|outputs| Plain::random(&mut random, outputs, 32, true));
    let packages = [new(), new()];
    let input = quantized(&random.floats(4 * 32, 1.0), 32, SCALE);
    let expected = packages
        .each_ref()
        .map(|layers| expected(&options, layers, &input));
    let prepare =
        |npu: &Npu, layer: &Arc<Plain>| npu.prepare(&linear(std::slice::from_ref(layer)), 4);
    let folders = ["phone", "several"].map(|name| place.path().join(name));
    // Small contexts have a graph each.
    for (most, contexts_of, (folder, layers)) in [
        (Contexts::MAX_BYTES, 1, (&folders[0], &packages[0])),
        (1, 4, (&folders[1], &packages[1])),
    ] {
        let kept = compile(&options, (Chip::ALL[1], most), folder, layers);
        assert_eq!(kept.contexts, contexts_of);
        assert_eq!(contexts(folder).len(), contexts_of);
    }
    let npu = open(&options, &folders[0]);
    let layers = &packages[0];
    let mut first = prepare(&npu, &layers[0]).unwrap();
    // Without the file, no other context can be loaded: the other graphs are in that of the first.
    let context = contexts(&folders[0]).remove(0);
    let aside = place.path().join("aside");
    fs::rename(&context, &aside).unwrap();
    let mut others: Vec<_> = layers[1..]
        .iter()
        .map(|layer| prepare(&npu, layer).unwrap())
        .collect();
    // All of its graphs are taken, so that this one needs another context.
    let error = prepare(&npu, &layers[2]).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Contexts { .. }), "{error:?}");
    fs::rename(&aside, &context).unwrap();
    let mut again = prepare(&npu, &layers[2]).unwrap();
    assert!(outputs(&mut *first, &layers[0], &input) == expected[0][0]);
    assert!(outputs(&mut *again, &layers[2], &input) == expected[0][2]);
    // Graphs of the same shapes, of another package.
    let other = open(&options, &folders[1]);
    for (layer, expected) in packages[1].iter().zip(&expected[1]) {
        let mut program = prepare(&other, layer).unwrap();
        assert!(outputs(&mut *program, layer, &input) == *expected);
    }
    drop((first, again, npu, other));
    for (index, program) in others.iter_mut().enumerate() {
        let (layer, expected) = (&layers[index + 1], &expected[0][index + 1]);
        assert!(outputs(&mut **program, layer, &input) == *expected);
    }
    drop(others);
    // A context is loaded again after its end.
    let npu = open(&options, &folders[0]);
    let mut last = prepare(&npu, &layers[3]).unwrap();
    assert!(outputs(&mut *last, &layers[3], &input) == expected[0][3]);
}

#[test]
fn a_graph_compiled_ahead_is_refused_if_it_is_missing_or_computes_another_layer() {
    let Some(options) = options() else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let place = tempfile::tempdir().unwrap();
    let mut random = Random::new(2);
    let [one, two, other] = [24; 3].map(|outputs| Plain::random(&mut random, outputs, 32, true));
    let folder = place.path().join("phone");
    let how = (Chip::ALL[1], Contexts::MAX_BYTES);
    compile(&options, how, &folder, &[one.clone(), two.clone()]);
    let npu = || open(&options, &folder);
    let refusal = |npu: &Npu, layer: &Arc<Plain>, rows| {
        let subgraph = linear(std::slice::from_ref(layer));
        let error = npu.prepare(&subgraph, rows).map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Contexts { .. }), "{error:?}");
        error.to_string()
    };
    for (layer, rows) in [(&other, 4), (&one, 5)] {
        let error = refusal(&npu(), layer, rows);
        assert!(error.contains("no graph of these weights"), "{error}");
        assert!(error.contains("for chunks of 4"), "{error}");
    }
    // The graphs of the two layers change places.
    let index = folder.join("contexts.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    let graphs = json["graphs"].as_object_mut().unwrap();
    let names: Vec<_> = graphs.keys().cloned().collect();
    let [first, second] = [0, 1].map(|index: usize| graphs[&names[index]].clone());
    (graphs[&names[0]], graphs[&names[1]]) = (second, first);
    fs::write(&index, serde_json::to_vec(&json).unwrap()).unwrap();
    for layer in [&one, &two] {
        let error = refusal(&npu(), layer, 4);
        let reason = " does not compute this package: output ";
        assert!(error.contains(reason), "{error}");
    }
    // Shapes of another graph, and a name that the context lacks.
    for (field, value, reason) in [
        ("in_features", Value::from(64), "it has other shapes"),
        (
            "name",
            Value::from("none"),
            "the provider qnn refuses the graph",
        ),
    ] {
        let mut changed = json.clone();
        for name in &names {
            changed["graphs"][name][field] = value.clone();
        }
        fs::write(&index, serde_json::to_vec(&changed).unwrap()).unwrap();
        let subgraph = linear(std::slice::from_ref(&one));
        let error = npu().prepare(&subgraph, 4).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn graphs_are_compiled_ahead_for_qualcomms_provider_alone_and_for_one_chip() {
    let Some(options) = options() else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("phone");
    let chip = Chip::ALL[0];
    let contexts = Contexts::Compile {
        chip,
        folder,
        context_bytes: Contexts::MAX_BYTES,
    };
    let cpu = NpuOptions::new(&options.library, Provider::Cpu);
    let error = Npu::new(with_contexts(&cpu, contexts.clone())).unwrap_err();
    let expected = "compiled ahead of time for the provider qnn: expected it, and not cpu";
    assert!(error.to_string().contains(expected), "{error}");
    let given = NpuOptions {
        provider_options: vec![("htp_arch".to_owned(), "75".to_owned())],
        ..options
    };
    let error = Npu::new(with_contexts(&given, contexts)).unwrap_err();
    let expected = "the provider qnn does not take the option htp_arch: snapdragon-8gen2 gives it";
    assert_eq!(error.to_string(), expected);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}
