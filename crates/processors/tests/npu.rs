//! Errors and caching of NPUs. The tests run if the environment names ONNX Runtime's library. Its CPU build lacks
//! devices and providers, which the tests rely on.

#[path = "conformance/plain.rs"]
#[allow(dead_code, reason = "the conformance suite uses all of it")]
mod plain;
mod skip;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use triad_kernels::OutputMut;
use triad_kernels::activation::Activation;
use triad_processors::npu::{
    DeviceKind, Formulation, Npu, NpuOptions, Provider, RowShapes, library_from_environment,
};
use triad_processors::{Device, DeviceSubgraph, Error, FeedForward, Layer, Linear, Result};

use plain::{Plain, Random, quantized};

const SCALE: f32 = 0.01;

/// Returns options for `provider`, or `None` if there is no library.
fn options(provider: Provider) -> Option<NpuOptions> {
    match library_from_environment() {
        Ok(library) => Some(NpuOptions::new(library, provider)),
        Err(error) => {
            skip::skip(error);
            None
        }
    }
}

fn linear(seed: u64) -> DeviceSubgraph {
    let layers = vec![Plain::random(&mut Random::new(seed), 24, 32, true) as Arc<dyn Layer>];
    DeviceSubgraph::Linear(Linear {
        input_scale: SCALE,
        layers,
    })
}

fn feed_forward() -> FeedForward {
    let mut random = Random::new(9);
    FeedForward {
        input_scale: SCALE,
        up: Plain::random(&mut random, 40, 32, true),
        gate: Some(Plain::random(&mut random, 40, 32, false)),
        activation: Activation::Silu,
        inner_scale: 0.01,
        smoothing: None,
        down: Plain::random(&mut random, 32, 40, false),
        return_inner: false,
        fixed_point: false,
    }
}

fn run(processor: &dyn Device, subgraph: &DeviceSubgraph) -> Vec<f32> {
    let input = quantized(&Random::new(4).floats(3 * 32, 1.0), 32, SCALE);
    let features = subgraph.outputs()[0];
    let mut out = vec![0.0; 3 * features];
    let mut program = processor.prepare(subgraph, 5).unwrap();
    program
        .run(input.view(), &mut [OutputMut::new(&mut out, features)])
        .unwrap();
    out
}

fn error<T>(result: Result<T>) -> Error {
    result.map(|_| ()).expect_err("refused")
}

#[test]
fn a_provider_that_the_library_lacks_is_named_with_those_that_it_has() {
    for provider in [
        Provider::Qnn,
        Provider::OpenVino,
        Provider::CoreMl,
        Provider::VitisAi,
    ] {
        let Some(options) = options(provider) else {
            return;
        };
        let error = error(Npu::new(NpuOptions {
            provider_library: None,
            ..options
        }));
        assert!(matches!(error, Error::ProviderMissing { .. }), "{error:?}");
        assert!(
            error
                .to_string()
                .contains(&format!("without the provider {provider} (it has cpu")),
            "{error}"
        );
    }
}

#[test]
fn a_provider_without_the_device_is_an_error_with_what_it_finds() {
    for device in [DeviceKind::Npu, DeviceKind::Gpu] {
        let Some(options) = options(Provider::Cpu) else {
            return;
        };
        let error = error(Npu::new(NpuOptions {
            device: Some(device),
            ..options
        }));
        assert!(matches!(error, Error::NoDevice { .. }), "{error:?}");
        assert!(
            error.to_string().contains(&format!(
                "finds no {device} on this machine (it finds: cpu "
            )),
            "{error}"
        );
    }
    let Some(options) = options(Provider::Cpu) else {
        return;
    };
    Npu::new(NpuOptions {
        device: Some(DeviceKind::Cpu),
        ..options
    })
    .unwrap();
}

#[test]
fn a_provider_that_leaves_nodes_to_the_cpu_is_refused() {
    let Some(options) = options(Provider::Azure) else {
        return;
    };
    let npu = Npu::new(options).unwrap();
    for subgraph in [linear(1), DeviceSubgraph::FeedForward(feed_forward())] {
        let error = error(npu.prepare(&subgraph, 4));
        assert!(matches!(error, Error::PartlyTaken { .. }), "{error:?}");
    }
}

#[test]
fn a_library_of_a_provider_that_is_none_is_refused() {
    let Some(options) = options(Provider::Qnn) else {
        return;
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = error(Npu::new(NpuOptions {
        provider_library: Some(file.path().to_owned()),
        ..options
    }));
    assert!(matches!(error, Error::ProviderLibrary { .. }), "{error:?}");
    let error = error.to_string();
    assert!(
        error.contains(" can't be used as the library of the provider qnn: "),
        "{error}"
    );
}

#[test]
fn an_option_that_a_provider_does_not_have_is_refused_by_name() {
    let option = |provider, names: &[&str]| {
        let options = NpuOptions {
            provider_options: names
                .iter()
                .map(|name| (name.to_string(), "1".to_owned()))
                .collect(),
            ..NpuOptions::new("nowhere/libonnxruntime.so", provider)
        };
        error(Npu::new(options)).to_string()
    };
    let unknown = option(Provider::Qnn, &["vtcm_mb", "vtcm"]);
    assert!(
        unknown.starts_with(
            "the provider qnn does not take the option vtcm: expected one of backend_path, "
        ),
        "{unknown}"
    );
    assert_eq!(
        option(Provider::Qnn, &["vtcm_mb", "vtcm_mb"]),
        "the provider qnn does not take the option vtcm_mb: it is given twice"
    );
    assert_eq!(
        option(Provider::Cpu, &["threads"]),
        "the provider cpu does not take the option threads: the provider has no options"
    );
}

#[test]
fn a_second_library_is_refused_by_name() {
    let Some(options) = options(Provider::Cpu) else {
        return;
    };
    let _first = Npu::new(options).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = error(Npu::new(NpuOptions::new(file.path(), Provider::Cpu)));
    assert!(matches!(error, Error::LibraryLoaded { .. }), "{error:?}");
}

#[test]
fn programs_share_the_window_and_give_back_what_they_took() {
    let Some(options) = options(Provider::Cpu) else {
        return;
    };
    let (subgraph, rows) = (linear(1), 4);
    let window = Some(2 * subgraph.bytes(rows) - 1);
    let npu = Npu::new(NpuOptions { window, ..options }).unwrap();
    assert_eq!(npu.capabilities().window, window);
    let first = npu.prepare(&subgraph, rows).unwrap();
    let refused = error(npu.prepare(&subgraph, rows));
    let bytes = subgraph.bytes(rows);
    assert!(
        matches!(refused, Error::WindowFull { needed, free, .. } if needed == bytes && free == bytes - 1),
        "{refused:?}"
    );
    drop(first);
    npu.prepare(&subgraph, rows).unwrap();
}

#[test]
fn numbers_that_integers_would_hide_are_refused() {
    let Some(options) = options(Provider::Cpu) else {
        return;
    };
    let npu = Npu::new(options).unwrap();
    let layer = |scale: f32, bias: f32| {
        Plain::new(vec![1; 32], vec![scale], Some(vec![bias])) as Arc<dyn Layer>
    };
    let linear = |layer| {
        DeviceSubgraph::Linear(Linear {
            input_scale: 1.0,
            layers: vec![layer],
        })
    };
    for subgraph in [
        linear(layer(f32::NAN, 0.0)),
        linear(layer(f32::MAX, 0.0)),
        linear(layer(1.0, f32::INFINITY)),
    ] {
        assert!(matches!(
            error(npu.prepare(&subgraph, 1)),
            Error::Subgraph { .. }
        ));
    }
    let smoothing = Some([&[1.0; 39][..], &[f32::NAN]].concat().into());
    let subgraph = DeviceSubgraph::FeedForward(FeedForward {
        smoothing,
        ..feed_forward()
    });
    assert!(matches!(
        error(npu.prepare(&subgraph, 1)),
        Error::Subgraph { .. }
    ));
}

#[test]
fn both_formulations_mean_the_same() {
    let Some(options) = options(Provider::Cpu) else {
        return;
    };
    let npu = |formulation| {
        Npu::new(NpuOptions {
            formulation: Some(formulation),
            ..options.clone()
        })
        .unwrap()
    };
    let (integer, float) = (
        npu(Formulation::Integer),
        npu(Formulation::QuantizeDequantize),
    );
    for activation in [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::Gelu,
        Activation::ReluSquared,
    ] {
        let smoothing = Some(Random::new(5).floats(40, 1.0).into());
        for subgraph in [
            linear(2),
            DeviceSubgraph::FeedForward(FeedForward {
                activation,
                smoothing,
                ..feed_forward()
            }),
        ] {
            let largest = run(&integer, &subgraph)
                .iter()
                .fold(0.0, |largest: f32, x| largest.max(x.abs()));
            for (one, other) in run(&integer, &subgraph).iter().zip(run(&float, &subgraph)) {
                // A number next to a tie may be requantized to its neighbour.
                assert!((one - other).abs() <= 0.01 * largest, "{one} and {other}");
            }
        }
    }
}

#[test]
fn rows_in_any_shape_give_the_same_bits() {
    let Some(options) = options(Provider::Cpu) else {
        return;
    };
    let subgraphs = [
        linear(2),
        DeviceSubgraph::FeedForward(FeedForward {
            return_inner: true,
            ..feed_forward()
        }),
    ];
    for (formulation, subgraph) in [Formulation::Integer, Formulation::QuantizeDequantize]
        .into_iter()
        .flat_map(|one| subgraphs.iter().map(move |other| (one, other)))
    {
        let run = |row_shapes: Option<RowShapes>, rows: usize| {
            let options = NpuOptions {
                formulation: Some(formulation),
                row_shapes,
                ..options.clone()
            };
            let input = quantized(&Random::new(4).floats(rows * 32, 1.0), 32, SCALE);
            let mut outs: Vec<_> = subgraph
                .outputs()
                .iter()
                .map(|features| vec![f32::NAN; rows * features])
                .collect();
            let views = outs
                .iter_mut()
                .zip(subgraph.outputs())
                .map(|(out, features)| OutputMut::new(out, features));
            let mut program = Npu::new(options).unwrap().prepare(subgraph, 12).unwrap();
            program
                .run(input.view(), &mut views.collect::<Vec<_>>())
                .unwrap();
            outs
        };
        for rows in [12, 7, 1] {
            let expected = run(None, rows);
            let shapes = [RowShapes::Flat, RowShapes::Fastest]
                .into_iter()
                .chain([2, 3, 4, 6].map(RowShapes::Lines));
            for shape in shapes {
                assert!(
                    run(Some(shape), rows) == expected,
                    "{formulation:?}, {rows} rows, {shape:?}"
                );
            }
        }
    }
    let npu = Npu::new(NpuOptions {
        row_shapes: Some(RowShapes::Lines(5)),
        ..options
    })
    .unwrap();
    assert!(matches!(
        error(npu.prepare(&linear(1), 12)),
        Error::Subgraph { .. }
    ));
}

#[test]
fn the_fastest_shape_is_kept_with_the_compiled_graph() {
    let Some(options) = options(Provider::Cpu) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let npu = |row_shapes: RowShapes| {
        let cache = Some(folder.path().to_owned());
        Npu::new(NpuOptions {
            cache,
            row_shapes: Some(row_shapes),
            ..options.clone()
        })
        .unwrap()
    };
    let prepare = |row_shapes: RowShapes| drop(npu(row_shapes).prepare(&linear(1), 12).unwrap());
    prepare(RowShapes::Fastest);
    let first = graphs(folder.path());
    assert_eq!(first.len(), 1, "one of those that were tried");
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        2,
        "it and its seal, nothing of the others"
    );
    prepare(RowShapes::Fastest);
    assert_eq!(graphs(folder.path()), first, "not tried again");
    prepare(RowShapes::Flat);
    assert_eq!(
        graphs(folder.path()).len(),
        2,
        "a shape that was asked for is another graph"
    );
    // The kept graph has this shape, whichever was the fastest.
    let of_lines = graphs(folder.path());
    prepare(RowShapes::Lines(3));
    let lines = graphs(folder.path())
        .into_iter()
        .find(|graph| !of_lines.contains(graph))
        .unwrap()
        .0;
    replace(&first[0].0, &fs::read(lines).unwrap());
    let input = quantized(&Random::new(4).floats(12 * 32, 1.0), 32, SCALE);
    let run = |npu: Npu| {
        let mut out = vec![0.0; 12 * 24];
        let mut program = npu.prepare(&linear(1), 12).unwrap();
        program
            .run(input.view(), &mut [OutputMut::new(&mut out, 24)])
            .unwrap();
        out
    };
    assert!(run(npu(RowShapes::Fastest)) == run(npu(RowShapes::Flat)));
}

/// Replaces a compiled graph, with this machine's seal.
fn replace(graph: &Path, bytes: &[u8]) {
    let name = graph.file_stem().unwrap().as_encoded_bytes();
    fs::write(graph, bytes).unwrap();
    let seal = triad_model::seal::seal("a compiled graph", &[name, bytes]);
    fs::write(graph.with_extension("seal"), seal).unwrap();
}

/// Returns the compiled graphs of a folder, with their modification times.
fn graphs(folder: &Path) -> Vec<(PathBuf, SystemTime)> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let graphs = files.filter(|path| {
        path.extension()
            .is_some_and(|extension| extension == "onnx")
    });
    let mut graphs: Vec<_> = graphs
        .map(|path| (path.clone(), path.metadata().unwrap().modified().unwrap()))
        .collect();
    graphs.sort();
    graphs
}

#[test]
fn a_compiled_graph_is_kept_and_used_again() {
    let Some(options) = options(Provider::Cpu) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let npu = |driver: &str| {
        let cache = Some(folder.path().join("compiled"));
        Npu::new(NpuOptions {
            cache,
            driver: driver.to_owned(),
            ..options.clone()
        })
        .unwrap()
    };
    let compiled = folder.path().join("compiled");
    let subgraph = DeviceSubgraph::FeedForward(feed_forward());
    let expected = run(&Npu::new(options.clone()).unwrap(), &subgraph);
    assert!(run(&npu("1"), &subgraph) == expected);
    let first = graphs(&compiled);
    assert_eq!(first.len(), 1);
    assert!(run(&npu("1"), &subgraph) == expected);
    assert_eq!(graphs(&compiled), first, "used, not written again");

    fs::write(&first[0].0, "broken").unwrap();
    assert!(
        run(&npu("1"), &subgraph) == expected,
        "a broken one is built again"
    );
    assert_ne!(fs::read(&first[0].0).unwrap(), b"broken");

    run(&npu("2"), &subgraph);
    assert_eq!(graphs(&compiled).len(), 2, "another driver");
    run(
        &npu("2"),
        &DeviceSubgraph::FeedForward(FeedForward {
            inner_scale: 0.02,
            ..feed_forward()
        }),
    );
    assert_eq!(graphs(&compiled).len(), 3, "another scale");
    run(&npu("2"), &linear(1));
    run(&npu("2"), &linear(2));
    assert_eq!(graphs(&compiled).len(), 5, "other weights");
    let all = fs::read_dir(&compiled).unwrap().count();
    assert_eq!(all, 2 * 5, "graphs and their hashes, nothing half-written");
}

#[test]
fn a_graph_that_is_not_built_is_an_error_with_the_reason() {
    let Some(options) = options(Provider::Cpu) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let npu = Npu::new(NpuOptions {
        cache: Some(folder.path().to_owned()),
        ..options
    })
    .unwrap();
    npu.prepare(&linear(1), 4).unwrap();
    // A broken graph with a correct seal.
    replace(&graphs(folder.path())[0].0, b"broken");
    let error = error(npu.prepare(&linear(1), 4));
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .starts_with("the provider cpu refuses the graph: "),
        "{error}"
    );
}

#[test]
fn a_folder_that_can_not_be_written_is_reported_and_graphs_run_without() {
    let Some(options) = options(Provider::Cpu) else {
        return;
    };
    let expected = run(&Npu::new(options.clone()).unwrap(), &linear(1));
    let file = tempfile::NamedTempFile::new().unwrap();
    let npu = Npu::new(NpuOptions {
        cache: Some(file.path().join("compiled")),
        ..options.clone()
    })
    .unwrap();
    assert!(npu.not_kept().is_none());
    assert!(run(&npu, &linear(1)) == expected);
    assert!(matches!(npu.not_kept(), Some(Error::Cache { .. })));
    // A folder takes the graph's path.
    let folder = tempfile::tempdir().unwrap();
    let npu = || {
        Npu::new(NpuOptions {
            cache: Some(folder.path().to_owned()),
            ..options.clone()
        })
        .unwrap()
    };
    run(&npu(), &linear(1));
    let graph = &graphs(folder.path())[0].0;
    fs::remove_file(graph).unwrap();
    fs::create_dir(graph).unwrap();
    let npu = npu();
    assert!(run(&npu, &linear(1)) == expected);
    assert!(matches!(npu.not_kept(), Some(Error::Cache { .. })));
}
