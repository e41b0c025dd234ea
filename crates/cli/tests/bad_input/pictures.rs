//! Pictures that are broken or not for the model, and encoders of other models.

use std::path::{Path, PathBuf};

use super::{Case, case};
use crate::support::Place;
use crate::support::gguf::{Gguf, Value};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures")
}

fn picture(name: &str) -> Vec<u8> {
    std::fs::read(golden().join("files").join(name)).unwrap()
}

/// Writes a tiny model that reads pictures.
fn write_model(place: &Place) {
    for file in std::fs::read_dir(golden().join("chat")).unwrap() {
        let path = file.unwrap().path();
        let name = format!("model/{}", path.file_name().unwrap().to_str().unwrap());
        place.write(&name, std::fs::read(&path).unwrap());
    }
}

/// A PNG file of another size than it has pixels for.
fn resized(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = picture("3x3.png");
    bytes[16..20].copy_from_slice(&width.to_be_bytes());
    bytes[20..24].copy_from_slice(&height.to_be_bytes());
    let checksum = !bytes[12..29].iter().fold(!0_u32, |crc, byte| {
        let step = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
        (0..8).fold(crc ^ u32::from(*byte), step)
    });
    bytes[29..33].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

pub fn cases() -> Vec<Case> {
    const ASK: &[&str] = &[
        "run",
        "--no-quantize",
        "-m",
        "model",
        "--image",
        "screen.png",
        "-p",
        "Hi",
    ];
    const CALIBRATE: &[&str] = &[
        "prepare",
        "model",
        "-o",
        "package",
        "--calibrate-images",
        "screens",
    ];
    let shown = |what, content: fn() -> Vec<u8>, message: &[&'static str]| {
        let prepare = move |place: &Place| {
            write_model(place);
            place.write("screen.png", content());
        };
        case(
            what,
            ASK,
            prepare,
            1,
            &[message, &["screen.png: "]].concat(),
        )
    };
    let encoder = |what, content: fn() -> Vec<u8>, message: &[&'static str]| {
        let prepare = move |place: &Place| {
            place.write("model.gguf", Gguf::tiny().bytes());
            place.write("mmproj.gguf", content());
        };
        let arguments = [
            "run",
            "--no-quantize",
            "-m",
            "model.gguf",
            "--mmproj",
            "mmproj.gguf",
            "-p",
            "Hi",
        ];
        case(
            what,
            &arguments,
            prepare,
            1,
            &[message, &["mmproj.gguf: "]].concat(),
        )
    };
    vec![
        shown(
            "text in place of a picture",
            || b"Once".to_vec(),
            &["expected PNG, JPEG"],
        ),
        shown("empty picture", Vec::new, &["the file is empty"]),
        shown(
            "picture cut off",
            || picture("640x480.png")[..9000].to_vec(),
            &["the PNG picture is truncated"],
        ),
        shown(
            "picture with a damaged head",
            || {
                let mut bytes = picture("24.bmp");
                bytes[28] = 77;
                bytes
            },
            &["the BMP picture can't be decoded"],
        ),
        shown(
            "picture of one row",
            || resized(16_000, 1),
            &["16000 × 1 pixels, expected at most 200 times"],
        ),
        shown(
            "picture of 100,000 × 1 pixels",
            || resized(100_000, 1),
            &["expected at most 16384 a side"],
        ),
        shown(
            "picture that would fill the memory",
            || resized(16_000, 16_000),
            &["expected at most 16384 a side and 67108864 in all"],
        ),
        case(
            "picture that is not there",
            ASK,
            write_model,
            1,
            &["cannot read the picture screen.png"],
        ),
        case(
            "text that names the token of pictures",
            &[
                "run",
                "--no-quantize",
                "-m",
                "model",
                "--image",
                "screen.png",
                "-p",
                "What is <image>?",
            ],
            |place| {
                write_model(place);
                place.write("screen.png", picture("28x28.png"));
            },
            1,
            &["names <image> 2 times, expected 1"],
        ),
        case(
            "settings of pictures that are not supported",
            ASK,
            |place| {
                write_model(place);
                let file = place.path("model/preprocessor_config.json");
                let text = std::fs::read_to_string(&file).unwrap();
                place.write(
                    "model/preprocessor_config.json",
                    text.replace("\"do_resize\": true", "\"do_resize\": false"),
                );
                place.write("screen.png", picture("28x28.png"));
            },
            1,
            &["model/preprocessor_config.json: field `do_resize` is false"],
        ),
        case(
            "picture for a model that reads only text",
            &[
                "run",
                "--no-quantize",
                "-m",
                "model.gguf",
                "--image",
                "screen.png",
                "-p",
                "Hi",
            ],
            |place| {
                let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
                let template = Value::Text(template.into());
                let model = Gguf::tiny().with("tokenizer.chat_template", template);
                place.write("model.gguf", model.bytes());
                place.write("screen.png", picture("28x28.png"));
            },
            1,
            &["the model reads no pictures", "mmproj"],
        ),
        encoder(
            "model in place of an encoder of pictures",
            || Gguf::tiny().bytes(),
            &["clip"],
        ),
        encoder(
            "text in place of an encoder of pictures",
            || b"Once".to_vec(),
            &["GGUF"],
        ),
        encoder(
            "encoder of pictures cut off",
            || Gguf::tiny().bytes()[..500].to_vec(),
            &["metadata key has 21 bytes"],
        ),
        case(
            "folder without calibration pictures",
            CALIBRATE,
            |place| {
                write_model(place);
                place.write("screens/notes.txt", "not a picture");
            },
            1,
            &["screens: has 0 pictures, expected 1 to 1024"],
        ),
        case(
            "text in place of a calibration picture",
            CALIBRATE,
            |place| {
                write_model(place);
                place.write("screens/screen.png", "Once");
            },
            1,
            &[
                "screens/screen.png: cannot calibrate on this file",
                "expected PNG",
            ],
        ),
        case(
            "calibration pictures for a model that reads only text",
            &[
                "prepare",
                "model.gguf",
                "-o",
                "package",
                "--calibrate-images",
                "screens",
            ],
            |place| {
                place.write("model.gguf", Gguf::tiny().bytes());
                place.write("screens/screen.png", picture("28x28.png"));
            },
            1,
            &["model.gguf has no encoder of pictures"],
        ),
        case(
            "calibration pictures for INT4",
            &[CALIBRATE, &["--weights", "int4"]].concat(),
            |place| {
                write_model(place);
                place.write("screens/screen.png", picture("28x28.png"));
            },
            1,
            &["--calibrate-images is for INT8"],
        ),
        case(
            "encoder without calibration pictures",
            &[
                "prepare",
                "model",
                "-o",
                "package",
                "--mmproj",
                "mmproj.gguf",
            ],
            write_model,
            1,
            &["--mmproj is for --calibrate-images"],
        ),
    ]
}
