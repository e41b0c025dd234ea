//! Settings from configurations and from the metadata of mmproj files.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use triad_model::gguf::{Metadata, Value as Field};
use triad_pictures::{Picture, Piece, Prepared, Processor};

fn processors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures/processors")
}

/// Opens the processor `name` with `value` in a field of its image processor.
fn changed(name: &str, field: &str, value: &Value) -> triad_pictures::Result<Processor> {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(processors().join(name)).unwrap() {
        let path = file.unwrap().path();
        let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        if json["image_processor_type"].is_string() {
            json[field] = value.clone();
        } else if json["image_processor"].is_object() {
            json["image_processor"][field] = value.clone();
        }
        let text = json.to_string();
        fs::write(folder.path().join(path.file_name().unwrap()), text).unwrap();
    }
    Processor::from_folder(folder.path())
}

#[test]
fn unsupported_and_invalid_fields_are_refused_by_name() {
    let cases = [
        (
            "smolvlm",
            "do_resize",
            json!(false),
            "is false, expected true",
        ),
        (
            "smolvlm",
            "resample",
            json!(0),
            "is 0, expected 1 (Lanczos), 2 (bilinear) or 3 (bicubic)",
        ),
        (
            "smolvlm",
            "image_std",
            json!([0.5, 0, 0.5]),
            "has a number that is not above 0",
        ),
        (
            "smolvlm",
            "image_mean",
            json!([0.5, 0.5]),
            "is [0.5,0.5], expected a number or a list of 3",
        ),
        (
            "smolvlm",
            "size",
            json!({"height": 9, "width": 9}),
            "is 9, which is not supported",
        ),
        (
            "smolvlm",
            "max_image_size",
            json!({"longest_edge": 8}),
            "makes 65537 views, expected at most 128",
        ),
        (
            "smolvlm",
            "image_processor_type",
            json!("CLIPImageProcessor"),
            "expected Idefics3ImageProcessor or",
        ),
        (
            "gemma3",
            "do_pan_and_scan",
            json!(true),
            "is true, expected false",
        ),
        (
            "gemma3",
            "do_center_crop",
            json!(true),
            "is true, expected false",
        ),
        (
            "gemma3",
            "size",
            json!({"shortest_edge": 9}),
            "expected an integer or",
        ),
        (
            "gemma4",
            "patch_size",
            json!(0),
            "is 0, expected an integer from 1 to 256",
        ),
        (
            "internvl3",
            "min_patches",
            json!(13),
            "is 13, expected at most `max_patches` = 12",
        ),
        (
            "lfm2-vl",
            "min_tiles",
            json!(11),
            "is 11, expected at most `max_tiles` = 10",
        ),
        (
            "llava",
            "crop_size",
            json!(-1),
            "is -1, expected an integer or",
        ),
        (
            "qwen2.5-vl",
            "min_pixels",
            json!(20_000_000),
            "are 20000000, expected at most the maximum, 12845056",
        ),
        (
            "qwen3-vl",
            "new_steps",
            json!("blur"),
            "is \"blur\", which is not supported",
        ),
    ];
    for (name, field, value, problem) in cases {
        let error = changed(name, field, &value).unwrap_err().to_string();
        let last = field.rsplit('.').next().unwrap();
        assert!(
            error.contains(last) && error.contains(problem),
            "{name}, {field}: {error}"
        );
    }
    // Absent fields have the values of the image processor's class.
    for name in [
        "smolvlm",
        "gemma3",
        "internvl3",
        "lfm2-vl",
        "llava",
        "qwen3-vl",
        "gemma4",
    ] {
        assert!(changed(name, "new_steps", &Value::Null).is_ok(), "{name}");
    }
}

#[test]
fn other_models_and_missing_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        Processor::from_folder(folder.path())
            .unwrap_err()
            .to_string()
    };
    assert!(open().contains("config.json: the file could not be read"));
    fs::write(
        folder.path().join("config.json"),
        r#"{"model_type": "llama"}"#,
    )
    .unwrap();
    assert!(open().contains("preprocessor_config.json: the file could not be read"));
    fs::write(folder.path().join("preprocessor_config.json"), "{").unwrap();
    assert!(open().contains("preprocessor_config.json: not valid JSON"));
    fs::write(folder.path().join("preprocessor_config.json"), "{}").unwrap();
    assert!(open().contains("pictures for the model type \"llama\" are not supported"));
}

/// The metadata of an mmproj file.
fn mmproj(projector: &str, size: i128, patch: i128, more: &[(&str, i128)]) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("clip.projector_type", Field::String(projector.into()));
    metadata.insert("clip.vision.image_size", Field::Integer(size));
    metadata.insert("clip.vision.patch_size", Field::Integer(patch));
    metadata.insert("clip.vision.image_mean", Field::Floats(vec![0.5; 3]));
    metadata.insert("clip.vision.image_std", Field::Floats(vec![0.5; 3]));
    for (key, value) in more {
        metadata.insert(*key, Field::Integer(*value));
    }
    metadata
}

fn open(metadata: &Metadata) -> triad_pictures::Result<Processor> {
    Processor::from_gguf("mmproj.gguf".as_ref(), metadata)
}

fn screen() -> Picture {
    Picture::from_rgb(540, 1200, [200, 100, 50].repeat(540 * 1200)).unwrap()
}

/// Sizes of views, and rows.
fn summary(prepared: &Prepared) -> (Vec<(usize, usize)>, usize) {
    let views = prepared.views.iter().map(|view| (view.width, view.height));
    (views.collect(), prepared.rows())
}

#[test]
fn mmproj_files_give_the_settings_of_their_family() {
    let scale = "clip.vision.projector.scale_factor";
    let prepare = |metadata| open(&metadata).unwrap().prepare(&screen()).unwrap();
    let longest = ("clip.vision.preproc_image_size", 2048);
    let prepared = prepare(mmproj("idefics3", 512, 16, &[(scale, 4), longest]));
    assert_eq!(summary(&prepared), (vec![(512, 512); 9], 9 * 64));
    let prepared = prepare(mmproj("gemma3", 896, 14, &[]));
    assert_eq!(summary(&prepared), (vec![(896, 896)], 256));
    let prepared = prepare(mmproj("internvl", 448, 14, &[(scale, 2)]));
    assert_eq!(summary(&prepared), (vec![(448, 448); 3], 3 * 256));
    let prepared = prepare(mmproj("mlp", 336, 14, &[]));
    assert_eq!(summary(&prepared), (vec![(336, 336)], 576));
    let prepared = prepare(mmproj("qwen2.5vl_merger", 560, 14, &[]));
    assert_eq!(summary(&prepared), (vec![(532, 1204)], 19 * 43));
    let small = ("clip.vision.image_max_pixels", 100_000);
    let prepared = prepare(mmproj("qwen3vl_merger", 768, 16, &[small]));
    assert_eq!(summary(&prepared), (vec![(192, 448)], 6 * 14));
    let prepared = prepare(mmproj("lfm2", 256, 16, &[(scale, 2)]));
    let (views, rows) = summary(&prepared);
    assert_eq!((views.len(), rows), (3, 2 * 256 + 10 * 23));
    let prepared = prepare(mmproj("gemma4v", 224, 16, &[]));
    assert_eq!(summary(&prepared), (vec![(528, 1152)], 11 * 24));
    let first = prepared.pieces.first();
    assert_eq!(first, Some(&Piece::Text("<|image>".into())));
}

#[test]
fn mmproj_files_that_are_not_supported_are_refused_by_key() {
    let key = "clip.vision.image_mean";
    let mut short = mmproj("gemma3", 896, 14, &[]);
    short.insert(key, Field::Floats(vec![0.5; 2]));
    let tiles = ("clip.vision.preproc_min_tiles", 13);
    let pinpoints = ("clip.vision.image_grid_pinpoints", 1);
    let cases = [
        (
            mmproj("resampler", 448, 14, &[]),
            "`clip.projector_type` is \"resampler\"",
        ),
        (
            mmproj("gemma3", 0, 14, &[]),
            "`clip.vision.image_size` is 0, expected 1 to 16384",
        ),
        (
            mmproj("gemma3", 896, 1 << 40, &[]),
            "`clip.vision.patch_size` is",
        ),
        (
            mmproj("internvl", 448, 14, &[tiles]),
            "`clip.vision.preproc_min_tiles` is 13",
        ),
        (
            mmproj("mlp", 336, 14, &[pinpoints]),
            "`clip.vision.image_grid_pinpoints` is not supported",
        ),
        (short, "`clip.vision.image_mean` has 2 floats, expected 3"),
        (Metadata::default(), "`clip.vision.image_mean` is absent"),
    ];
    for (metadata, problem) in cases {
        let error = open(&metadata).unwrap_err().to_string();
        assert!(error.starts_with("mmproj.gguf: field"), "{error}");
        assert!(error.contains(problem), "{error}");
    }
}
