//! Qualcomm's provider on the emulator that its Python package has. The tests run if the environment names the libraries
//! of ONNX Runtime and of the provider.

mod qnn_support;

use std::fs;
use std::path::Path;

use serde_json::Value;
use triad_kernels::activation::Activation;
use triad_kernels::int8::QuantizedRows;
use triad_processors::npu::{Formulation, Npu, NpuOptions};
use triad_processors::{Device, DeviceSubgraph, Error, FeedForward};

use qnn_support::plain::{Plain, Random, quantized, values};
use qnn_support::{SCALE, linear, options, run};

/// Returns half of the power of two that divides the sums of each output: the smallest with which 15 bits hold every
/// sum of the weights and inputs of up to 128. Exact sums have 0.
fn half_powers(layer: &Plain) -> Vec<f64> {
    let columns = layer.weight.chunks_exact(layer.in_features);
    let half = |column: &[i8]| {
        let largest = 128 * column.iter().map(|q| i64::from(*q).abs()).sum::<i64>();
        let shift = (0..).find(|shift| largest <= 32767 << shift).unwrap();
        if shift == 0 {
            0.0
        } else {
            f64::from(1u32 << shift) / 2.0
        }
    };
    columns.map(half).collect()
}

/// Asserts that each output is the layer's by definition, but for the rounding of its sum, and of f32. Returns the
/// largest error in units of that rounding.
fn assert_rounded(out: &[f32], layer: &Plain, input: &QuantizedRows, what: &str) {
    let half_powers = half_powers(layer);
    for (row, out) in out.chunks_exact(layer.out_features).enumerate() {
        let expected = layer.product(&values(input, row), SCALE);
        for (column, (out, (expected, magnitude))) in out.iter().zip(expected).enumerate() {
            let rounding = half_powers[column] * f64::from(SCALE * layer.scales[column]);
            let tolerance = rounding * 1.000_01 + 4.0 * f64::from(f32::EPSILON * magnitude);
            let error = (f64::from(*out) - f64::from(expected)).abs();
            assert!(
                error <= tolerance,
                "{what}: [{row}, {column}] is {out}, expected {expected} ± {tolerance}"
            );
        }
    }
}

#[test]
fn sums_are_rounded_to_16_bits_and_never_saturate() {
    let Some(options) = options() else { return };
    let npu = Npu::new(options).unwrap();
    let mut random = Random::new(1);
    for (rows, prepared, inputs, outputs) in [
        (1, 1, 1, &[1][..]),
        (5, 7, 33, &[50]),
        (64, 64, 576, &[576, 192, 192]),
        (37, 64, 1536, &[576]),
        (256, 256, 64, &[130, 3]),
        (3, 4, 5632, &[40]),
    ] {
        let layers: Vec<_> = outputs
            .iter()
            .enumerate()
            .map(|(index, outputs)| Plain::random(&mut random, *outputs, inputs, index != 1))
            .collect();
        // Some are beyond the clip threshold.
        let input = quantized(&random.floats(rows * inputs, 140.0 * SCALE), inputs, SCALE);
        let outs = run(&npu, &layers, prepared, &input);
        for (index, (out, layer)) in outs.iter().zip(&layers).enumerate() {
            let what = format!(
                "{rows} of {prepared} × {inputs} → {}, layer {index}",
                layer.out_features
            );
            assert_rounded(out, layer, &input, &what);
        }
    }
}

#[test]
fn the_largest_sums_and_columns_of_all_sizes_are_rounded_alike() {
    let Some(options) = options() else { return };
    let npu = Npu::new(options).unwrap();
    for inputs in [576, 5632] {
        // Columns of 127, of −127, of both, of one weight, of zeros, and of every tenth weight, with scales far apart.
        let weight = |column: usize, input: usize| match column % 6 {
            0 => 127,
            1 => -127,
            2 if input.is_multiple_of(2) => -127,
            2 => 127,
            3 => i8::from(input == 5),
            4 => 0,
            _ if input.is_multiple_of(10) => (input % 251) as i8,
            _ => 0,
        };
        let columns = 24;
        let weights = (0..columns)
            .flat_map(|column| (0..inputs).map(move |input| weight(column, input)))
            .collect();
        let scales = (0..columns)
            .map(|column| 1e-6 * 3f32.powi(column as i32 / 2))
            .collect();
        let layer = Plain::new(weights, scales, None);
        let rows = 6;
        let value = |row: usize, input: usize| match row {
            0 => 127.0,
            1 => -127.0,
            2 if input.is_multiple_of(2) => 127.0,
            2 => -127.0,
            3 => 0.0,
            4 => 1.0,
            _ => (input % 255) as f32 - 127.0,
        };
        let x: Vec<_> = (0..rows)
            .flat_map(|row| (0..inputs).map(move |input| value(row, input) * SCALE))
            .collect();
        let input = quantized(&x, inputs, SCALE);
        let outs = run(&npu, std::slice::from_ref(&layer), rows, &input);
        assert_rounded(&outs[0], &layer, &input, &format!("{inputs} inputs"));
    }
}

#[test]
fn padding_changes_no_bit_and_a_row_that_is_not_finite_is_nan() {
    let Some(options) = options() else { return };
    let npu = Npu::new(options).unwrap();
    let layers = [Plain::random(&mut Random::new(2), 24, 32, true)];
    let mut x = Random::new(3).floats(7 * 32, 1.0);
    let whole = &run(&npu, &layers, 7, &quantized(&x, 32, SCALE))[0];
    let part = &run(&npu, &layers, 9, &quantized(&x[..3 * 32], 32, SCALE))[0];
    assert!(part[..] == whole[..3 * 24]);
    x[32] = f32::INFINITY;
    let out = &run(&npu, &layers, 7, &quantized(&x, 32, SCALE))[0];
    assert!(out[..24] == whole[..24] && out[48..] == whole[48..]);
    assert!(out[24..48].iter().all(|x| x.is_nan()));
}

#[test]
fn threads_that_prepare_at_once_all_get_whole_graphs() {
    let Some(options) = options() else { return };
    let npu = Npu::new(options).unwrap();
    let layers = [Plain::random(&mut Random::new(2), 24, 32, true)];
    let subgraph = linear(&layers);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..8 {
                    drop(npu.prepare(&subgraph, 7).unwrap());
                }
            });
        }
    });
}

/// A number format in the provider's dump of a graph: `Qnn_DataType_t`.
const INT8: u64 = 0x308;
const UINT16: u64 = 0x416;

/// Prepares a subgraph and returns the provider's dump of its graph.
fn dump(options: &NpuOptions, subgraph: &DeviceSubgraph) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let dumped = [("dump_json_qnn_graph", "1"), ("json_qnn_graph_dir", path)];
    let npu = Npu::new(NpuOptions {
        provider_options: dumped
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..options.clone()
    })
    .unwrap();
    drop(npu.prepare(subgraph, 8).unwrap());
    let files = fs::read_dir(folder.path()).unwrap();
    let graphs = files.map(|file| -> Value {
        serde_json::from_slice(&fs::read(file.unwrap().path()).unwrap()).unwrap()
    });
    let graphs: Vec<_> = graphs.filter(|file| file["graph"].is_object()).collect();
    let [graph] = &graphs[..] else {
        panic!("{} graphs, expected one that has all nodes", graphs.len())
    };
    graph["graph"].clone()
}

/// Returns why a graph does not multiply in integers: a product that is not one node of 16 by 8 bits, or a float.
fn not_in_integers(graph: &Value, products: usize) -> Option<String> {
    let tensors = graph["tensors"].as_object()?;
    let format = |name: &Value| tensors[name.as_str()?]["data_type"].as_u64();
    let other = tensors.iter().find(|(_, tensor)| {
        ![INT8, UINT16]
            .map(Some)
            .contains(&tensor["data_type"].as_u64())
    });
    if let Some((name, tensor)) = other {
        return Some(format!("{name} is {}", tensor["data_type"]));
    }
    let mut found = 0;
    for node in graph["nodes"].as_object()?.values() {
        let formats: Vec<_> = ["input_names", "output_names"]
            .into_iter()
            .flat_map(|names| node[names].as_array().unwrap().iter().map(format))
            .collect();
        match node["type"].as_str()? {
            "FullyConnected" if formats == [Some(UINT16), Some(INT8), Some(UINT16)] => found += 1,
            other => return Some(format!("{other} of {formats:x?}")),
        }
    }
    (found != products).then(|| format!("{found} products of {products}"))
}

#[test]
fn every_product_is_one_node_in_integers_and_nothing_is_in_float() {
    let Some(options) = options() else { return };
    let mut random = Random::new(5);
    let layers = [40, 16, 8].map(|outputs| Plain::random(&mut random, outputs, 32, true));
    for count in 1..=3 {
        let graph = dump(&options, &linear(&layers[..count]));
        assert_eq!(not_in_integers(&graph, count), None, "{graph:#}");
    }
    // The same check finds floats: the other form with one scale, which the provider takes.
    let floats = NpuOptions {
        formulation: Some(Formulation::QuantizeDequantize),
        ..options
    };
    let graph = dump(
        &floats,
        &linear(&[Plain::random(&mut random, 1, 32, false)]),
    );
    let reason = not_in_integers(&graph, 1).expect("a graph in float");
    assert!(reason.ends_with(&format!(" is {}", 0x232)), "{reason}");
}

#[test]
fn a_whole_feed_forward_is_refused_by_name_and_the_engine_is_told() {
    let Some(options) = options() else { return };
    let npu = Npu::new(options).unwrap();
    assert!(!npu.capabilities().feed_forwards);
    let mut random = Random::new(9);
    let subgraph = DeviceSubgraph::FeedForward(FeedForward {
        input_scale: SCALE,
        up: Plain::random(&mut random, 40, 32, true),
        gate: None,
        activation: Activation::Silu,
        inner_scale: 0.01,
        smoothing: None,
        down: Plain::random(&mut random, 32, 40, false),
        return_inner: false,
        fixed_point: false,
    });
    let error = npu.prepare(&subgraph, 4).map(|_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "npu:qnn runs no whole feed-forwards: expected their linear layers"
    );
}

#[test]
fn the_library_has_every_option_that_is_passed_on() {
    let Some(options) = options() else { return };
    let library = fs::read(options.provider_library.as_ref().unwrap()).unwrap();
    let unknown = NpuOptions {
        provider_options: vec![("none".to_owned(), String::new())],
        ..options
    };
    let error = Npu::new(unknown).map(|_| ()).unwrap_err().to_string();
    let (_, names) = error.split_once("expected one of ").unwrap();
    for name in names.split(", ") {
        // Short names are in the code of the library, not in its strings.
        let is_there = library
            .windows(name.len())
            .any(|bytes| bytes == name.as_bytes());
        assert!(is_there || name.len() < 16, "{name}");
    }
}

#[test]
fn a_second_library_of_the_provider_is_refused_by_name() {
    let Some(options) = options() else { return };
    let first = Npu::new(options.clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("libother.so");
    fs::write(&other, "no library").unwrap();
    for path in [&other, Path::new("nowhere/libqnn.so")] {
        let error = Npu::new(NpuOptions {
            provider_library: Some(path.to_owned()),
            ..options.clone()
        });
        let error = error.map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::ProviderLibrary { .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
    }
    drop(first);
}

#[test]
fn a_compiled_graph_is_kept_and_gives_the_same_bits() {
    let Some(options) = options() else { return };
    let folder = tempfile::tempdir().unwrap();
    let layers = [Plain::random(&mut Random::new(2), 24, 32, true)];
    let input = quantized(&Random::new(3).floats(4 * 32, 1.0), 32, SCALE);
    let npu = || {
        let cache = Some(folder.path().to_owned());
        Npu::new(NpuOptions {
            cache,
            ..options.clone()
        })
        .unwrap()
    };
    let compiled = || {
        let files = fs::read_dir(folder.path()).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        let graph = paths
            .into_iter()
            .find(|path| path.extension() == Some("onnx".as_ref()))
            .unwrap();
        (
            graph.metadata().unwrap().modified().unwrap(),
            fs::read(graph).unwrap(),
        )
    };
    let expected = run(&Npu::new(options.clone()).unwrap(), &layers, 4, &input);
    assert!(run(&npu(), &layers, 4, &input) == expected);
    let first = compiled();
    assert!(run(&npu(), &layers, 4, &input) == expected);
    assert!(compiled() == first, "used, not written again");
}
