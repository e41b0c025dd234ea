//! Graphs that Qualcomm's provider compiles ahead of time for other chips, on the emulator of its Python package. These tests
//! have a process of their own, and take turns in it: the emulator has ended with a segmentation fault while one thread
//! compiled for a chip and others computed for another one.

mod qnn_support;

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use triad_processors::npu::{Chip, Contexts, Npu, NpuOptions, Provider};
use triad_processors::{Device, Error};

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

/// Compiles the graphs of some layers, each for 4 rows, to a new folder.
fn compile(options: &NpuOptions, chip: Chip, folder: &Path, layers: &[Arc<Plain>]) {
    let folder = folder.to_owned();
    let npu = Npu::new(with_contexts(options, Contexts::Compile { chip, folder })).unwrap();
    for layer in layers {
        drop(
            npu.prepare(&linear(std::slice::from_ref(layer)), 4)
                .unwrap(),
        );
    }
    let kept = npu.keep_contexts().unwrap().unwrap();
    assert_eq!(kept.graphs, layers.len());
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
    let plain = Npu::new(options.clone()).unwrap();
    let mut first = None;
    for chip in Chip::ALL {
        let folder = place.path().join(chip.name());
        compile(&options, chip, &folder, &layers);
        let npu = Npu::new(with_contexts(
            &options,
            Contexts::Run {
                folder: folder.clone(),
            },
        ));
        let npu = npu.unwrap();
        for layer in &layers {
            let layer = std::slice::from_ref(layer);
            let expected = run(&plain, layer, 4, &input);
            assert!(run(&npu, layer, 4, &input) == expected, "{chip}");
            // Shorter chunks are padded.
            let short = quantized(&floats[..3 * 32], 32, SCALE);
            let rows = 3 * layer[0].out_features;
            assert!(
                run(&npu, layer, 3, &short)[0] == expected[0][..rows],
                "{chip}"
            );
        }
        // The files are those of this chip.
        let files = fs::read_dir(&folder)
            .unwrap()
            .map(|file| file.unwrap().path());
        let mut graphs: Vec<_> = files
            .filter(|path| path.extension() == Some("onnx".as_ref()))
            .collect();
        graphs.sort();
        assert_eq!(graphs.len(), layers.len());
        let content = fs::read(&graphs[0]).unwrap();
        assert_ne!(first.replace(content.clone()), Some(content), "{chip}");
    }
}

#[test]
fn a_graph_compiled_ahead_is_refused_if_it_is_missing_or_computes_another_layer() {
    let Some(options) = options() else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let place = tempfile::tempdir().unwrap();
    let mut random = Random::new(2);
    let [one, two, other] = [24; 3].map(|outputs| Plain::random(&mut random, outputs, 32, true));
    let folder = place.path().join("phone");
    compile(&options, Chip::ALL[1], &folder, &[one.clone(), two.clone()]);
    let npu = || {
        let contexts = Contexts::Run {
            folder: folder.clone(),
        };
        Npu::new(with_contexts(&options, contexts)).unwrap()
    };
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
    // The graphs of the two layers change places, in the index, too.
    let index = folder.join("contexts.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    let graphs = json["graphs"].as_object_mut().unwrap();
    let names: Vec<_> = graphs.keys().cloned().collect();
    let [first, second] = [0, 1].map(|index: usize| graphs[&names[index]].clone());
    (graphs[&names[0]], graphs[&names[1]]) = (second, first);
    fs::write(&index, serde_json::to_vec(&json).unwrap()).unwrap();
    let paths = [0, 1].map(|index: usize| folder.join(format!("{}.onnx", names[index])));
    fs::rename(&paths[0], folder.join("aside")).unwrap();
    fs::rename(&paths[1], &paths[0]).unwrap();
    fs::rename(folder.join("aside"), &paths[1]).unwrap();
    for layer in [&one, &two] {
        let error = refusal(&npu(), layer, 4);
        let reason = "it does not compute this package: output y0[0, ";
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn graphs_are_compiled_ahead_for_qualcomms_provider_alone_and_for_one_chip() {
    let Some(options) = options() else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("phone");
    let chip = Chip::ALL[0];
    let contexts = Contexts::Compile { chip, folder };
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
