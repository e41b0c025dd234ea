//! Times the encoder of pictures and the prompt with its rows: `picture MODEL MMPROJ WIDTH HEIGHT THREADS SEED`. Prints one JSON
//! object with seconds. `benches/pictures.py` runs it in turns with llama.cpp.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use triad_engine::vision::{Pixels, VisionModel};
use triad_engine::{
    Cancel, Engine, EngineOptions, LoadOptions, Model, PrefixSalt, SessionOptions, Threads,
};
use triad_kernels::BlockArithmetic;
use triad_prepare::calibration::Calibration;
use triad_prepare::{PrepareOptions, Prune, vision};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, mmproj, width, height, threads, seed] = &arguments[..] else {
        return Err("expected MODEL MMPROJ WIDTH HEIGHT THREADS SEED".into());
    };
    let (width, height): (usize, usize) = (width.parse()?, height.parse()?);
    let (threads, mut state): (usize, u64) = (threads.parse()?, seed.parse()?);
    let (model, mmproj) = (Path::new(model), PathBuf::from(mmproj));
    let options = LoadOptions {
        threads: Threads::Count(threads),
        vision: Some(mmproj.clone()),
        ..LoadOptions::default()
    };
    let planes = (0..3 * width * height).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    });
    let planes: Vec<f32> = planes.collect();
    let view = Pixels {
        height,
        width,
        planes: &planes,
    };
    let cancel = Cancel::new();
    let loaded = Arc::new(Model::load(model, &options)?);
    let float = times(&loaded, view, &cancel)?;

    let encoder = VisionModel::load(&mmproj, loaded.description(), BlockArithmetic::Exact)?;
    let mut calibration = Calibration::of_encoder(&encoder, "the view");
    calibration.add_view(&loaded, &encoder, view, &cancel)?;
    let options = PrepareOptions {
        prune: Prune::PAPER,
        ..PrepareOptions::default()
    };
    let decided = vision::decide(&loaded, &encoder, &calibration, &[], &options, &cancel)?;
    let plan = decided.quantization().ok_or("a plan for INT8")?;
    let int8 = loaded.install(|| encoder.quantize(&plan, None));
    let loaded = Arc::into_inner(loaded).ok_or("the model is used elsewhere")?;
    let of_int8 = times(&Arc::new(loaded.with_vision(int8)), view, &cancel)?;
    let report = json!({
        "rows": float.rows,
        "encode": float.encode,
        "encode_w8a8": of_int8.encode,
        "prefill": float.prefill,
        "again": float.again,
    });
    println!("{report}");
    Ok(())
}

/// Seconds of a picture and of a prompt with it.
struct Times {
    rows: usize,
    encode: f64,
    prefill: f64,
    /// The picture and the prompt with another question after them.
    again: f64,
}

fn times(model: &Arc<Model>, view: Pixels, cancel: &Cancel) -> Result<Times, Box<dyn Error>> {
    let options = EngineOptions {
        session: SessionOptions {
            context: 4096,
            ..SessionOptions::default()
        },
        ..EngineOptions::default()
    };
    let engine = Engine::new(model, &options)?;
    // Threads start, and pages of the weights are read.
    model.install(|| model.vision().map(|vision| vision.encode(view, cancel)))??;
    let start = Instant::now();
    let picture = engine.picture(view, PrefixSalt::default(), cancel)?;
    let encode = start.elapsed().as_secs_f64();
    let mut session = engine.session();
    session.hold(&picture);
    let prompt: Vec<u32> = picture.tokens().collect();
    session.prefill(&prompt, cancel, |_| {})?;
    let start = Instant::now();
    session.truncate(0);
    session.prefill(&prompt, cancel, |_| {})?;
    let prefill = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let same = engine.picture(view, PrefixSalt::default(), cancel)?;
    session.prefill(&[5; 8], cancel, |_| {})?;
    let again = start.elapsed().as_secs_f64();
    assert_eq!(same.tokens(), picture.tokens(), "the rows are found");
    Ok(Times {
        rows: prompt.len(),
        encode,
        prefill,
        again,
    })
}
