//! Tests of encoders of pictures on the devices that the environment names: the GPU, QNN's emulator, Hexagon's emulator.

use triad_engine::quantization::DecodeWeights;

use super::pictures::*;
use super::*;

/// Returns the largest difference, compared with the largest expected value.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // NaN is more than anything.
    differences.fold(0.0, |most, x| if x <= most { most } else { x }) / largest
}

/// Returns a checkpoint whose text model is in INT8, and its encoder, too.
fn in_int8(name: &str) -> Arc<Model> {
    let model = with_int8_encoder(name, 0.5);
    let tokens = prompt(&model, 40);
    Arc::new(testing::quantize(&model, &tokens, 0.5, DecodeWeights::Int8))
}

/// Returns the largest differences of rows and of logits with `device` next to a CPU from those of the CPU. All products of
/// each view have to run on the device.
fn next_to_cpu(name: &str, model: &Arc<Model>, device: Arc<dyn Device>) -> [f32; 2] {
    let golden = golden(name);
    let engine = engine(model, options_of(two(1, Some(device))));
    let (rows, logits) = answer(&engine, &golden);
    for view in views(&engine, golden.views()) {
        assert!(view.failures.is_empty(), "{name}: {:?}", view.failures);
        assert_eq!(view.without_room, 0, "{name}");
        let count = 4 * model.vision().unwrap().description().blocks;
        assert_eq!(view.products.len(), count, "{name}");
    }
    let expected = on_cpu(model, &golden);
    [
        difference(&rows, &expected.0),
        difference(&logits, &expected.1),
    ]
}

#[cfg(feature = "hexagon")]
#[test]
fn encoders_on_hexagon_have_the_bits_of_the_cpu() {
    use triad_processors::hexagon::{Hexagon, HexagonOptions, program_from_environment};
    let program = match program_from_environment() {
        Ok(program) => program,
        Err(error) => return skip::skip(error),
    };
    for name in ["smolvlm", "qwen2_5_vl"] {
        let hexagon = Hexagon::open(&HexagonOptions::new(program.clone())).unwrap();
        let differences = next_to_cpu(name, &in_int8(name), Arc::new(hexagon));
        assert_eq!(differences, [0.0; 2], "{name}");
    }
}

#[cfg(feature = "npu")]
#[test]
fn encoders_on_the_emulator_of_qnn_have_the_rows_of_the_cpu_within_the_rounding_of_its_outputs() {
    use triad_processors::npu::{Npu, NpuOptions, Provider, library_from_environment};
    /// The provider's outputs are rounded, and so an input in INT8 may be rounded to its neighbour.
    const BOUND: f32 = 3e-2;
    let library = match library_from_environment() {
        Ok(library) => library,
        Err(error) => return skip::skip(error),
    };
    let options = NpuOptions::new(library, Provider::Qnn);
    if options.provider_library.is_none() {
        return skip::skip("TRIAD_QNN names no library");
    }
    let npu = Arc::new(Npu::new(options).unwrap());
    for name in ["smolvlm", "qwen2_5_vl"] {
        let device = Arc::clone(&npu) as Arc<dyn Device>;
        let differences = next_to_cpu(name, &in_int8(name), device);
        assert!(differences[0] < BOUND, "{name}: {differences:?}");
    }
}

#[cfg(feature = "gpu")]
mod gpu {
    use super::super::gpu::gpu;
    use super::*;

    /// The largest difference that other sums explain.
    const OF_FLOATS: f32 = 1e-4;
    /// The same where a number in INT8 may be rounded to its neighbour.
    const OF_INT8: f32 = 3e-2;

    #[test]
    fn encoders_next_to_a_cpu_on_a_gpu_have_the_rows_of_the_cpu() {
        let Some(gpu) = gpu() else { return };
        for name in ["smolvlm", "qwen2_5_vl", "gemma3"] {
            for (model, bound) in [(stored(name), OF_FLOATS), (in_int8(name), OF_INT8)] {
                let device = Arc::clone(&gpu) as Arc<dyn Device>;
                let differences = next_to_cpu(name, &model, device);
                assert!(differences[0] < bound, "{name}: {differences:?}");
                assert!(differences[1] < 10.0 * OF_INT8, "{name}: {differences:?}");
            }
        }
    }

    #[test]
    fn a_gpu_that_runs_the_model_whole_computes_prompts_with_pictures_or_refuses_them_by_name() {
        let Some(gpu) = gpu() else { return };
        let alone = || ProcessorOptions {
            description: Processor::gpu("gpu"),
            threads: Threads::Count(1),
            device: Some(Arc::clone(&gpu) as Arc<dyn Device>),
            multiplier: None,
        };
        let (of_smolvlm, model) = (golden("smolvlm"), stored("smolvlm"));
        let engine_of_gpu = engine(&model, options_of(vec![alone()]));
        let (rows, logits) = answer(&engine_of_gpu, &of_smolvlm);
        let expected = on_cpu(&model, &of_smolvlm);
        let of_rows = difference(&rows, &expected.0);
        let of_logits = difference(&logits, &expected.1);
        assert!(
            of_rows < OF_FLOATS && of_logits < 5e-3,
            "{of_rows}, {of_logits}"
        );
        for (name, missing) in [
            ("qwen2_5_vl", "RoPE of three axes"),
            ("gemma3", "rows that read later ones"),
        ] {
            let engine = engine(&stored(name), options_of(vec![alone()]));
            let golden = golden(name);
            let error = encode(&engine, golden.pixels().next().unwrap()).unwrap_err();
            assert!(error.to_string().contains(missing), "{error}");
        }
    }
}
