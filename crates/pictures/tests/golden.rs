//! Pictures and what is made of them, compared with Pillow and the processors of `transformers`.
//! `tests/golden/pictures/processors.py` wrote the files.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};
use triad_pictures::{Head, Layout, Picture, Piece, Prepared, Processor};

/// Cells of each side whose mean colors are known.
const CELLS: usize = 8;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures")
}

fn lines(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(golden().join(name)).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

fn decode(name: &str) -> Picture {
    let bytes = fs::read(golden().join("files").join(name)).unwrap();
    Picture::decode(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn hex(digest: Sha256) -> String {
    let bytes = digest.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the largest difference of the mean colors of cells.
fn difference(picture: &Picture, means: &Value) -> f64 {
    let (width, height) = (picture.width as usize, picture.height as usize);
    let mut largest = 0.0_f64;
    for cell in 0..CELLS * CELLS {
        let (row, column) = (cell / CELLS, cell % CELLS);
        let rows = row * height / CELLS..(row + 1) * height / CELLS;
        let columns = column * width / CELLS..(column + 1) * width / CELLS;
        for channel in 0..3 {
            let mut sum = 0.0;
            for y in rows.clone() {
                for x in columns.clone() {
                    sum += f64::from(picture.rgb[(y * width + x) * 3 + channel]);
                }
            }
            let mean = sum / (rows.len() * columns.len()) as f64;
            let expected = means[cell * 3 + channel].as_f64().unwrap();
            largest = largest.max((mean - expected).abs());
        }
    }
    largest
}

#[test]
fn pictures_are_decoded_as_pillow_does_it() {
    let lines = lines("decoded.json");
    assert!(lines.len() >= 60);
    for line in lines {
        let name = line["file"].as_str().unwrap();
        let picture = decode(name);
        let head = Head::read(&fs::read(golden().join("files").join(name)).unwrap()).unwrap();
        assert_eq!(
            [head.width, head.height],
            [picture.width, picture.height],
            "{name}"
        );
        assert!(head.bytes > picture.rgb.len(), "{name}: {head:?}");
        let size = [picture.width, picture.height].map(u64::from);
        assert_eq!(line["size"], Value::from(size.to_vec()), "{name}");
        if let Some(expected) = line["sha256"].as_str() {
            let digest = Sha256::new().chain_update(&picture.rgb);
            assert_eq!(hex(digest), expected, "{name}");
            continue;
        }
        // Decoders of JPEG may interpolate halved colors differently: by at most 4 levels here, and 1 on average.
        let largest = difference(&picture, &line["means"]);
        match name {
            // Pillow clips 16 bits of gray to 8, so that almost everything is white; here they keep their upper 8.
            "gray-16~.png" => assert!(largest > 100.0, "{name}: {largest}"),
            _ => assert!(largest < 1.5, "{name}: {largest}"),
        }
    }
}

/// Returns the text of `pieces`, with `{n}` for n rows.
fn text(prepared: &Prepared) -> String {
    let mut text = String::new();
    let mut waiting = 0;
    for piece in prepared.pieces.iter() {
        match piece {
            Piece::Rows { rows, .. } => waiting += rows,
            Piece::Text(words) => {
                if waiting > 0 {
                    text.push_str(&format!("{{{waiting}}}"));
                    waiting = 0;
                }
                text.push_str(words);
            }
        }
    }
    if waiting > 0 {
        text.push_str(&format!("{{{waiting}}}"));
    }
    text
}

#[test]
fn views_and_texts_are_those_of_transformers() {
    let lines = lines("prepared.json");
    assert!(lines.len() >= 400);
    let mut processor: Option<(String, Processor)> = None;
    for line in lines {
        let name = line["processor"].as_str().unwrap();
        if processor.as_ref().is_none_or(|(last, _)| last != name) {
            let folder = golden().join("processors").join(name);
            let opened = Processor::from_folder(&folder).unwrap();
            processor = Some((name.to_owned(), opened));
        }
        let (_, processor) = processor.as_ref().unwrap();
        let file = line["file"].as_str().unwrap();
        let picture = decode(file);
        let prepared = processor.prepare(&picture).unwrap();
        let layout = processor.layout(picture.width, picture.height).unwrap();
        let views = prepared.views.iter();
        let expected = Layout {
            views: views.map(|view| [view.height, view.width]).collect(),
            pieces: prepared.pieces.clone(),
        };
        assert_eq!(layout, expected, "{file}, {name}");
        let sizes = prepared
            .views
            .iter()
            .map(|view| vec![view.height, view.width]);
        let place = format!("{file}, {name}");
        assert_eq!(
            Value::from(sizes.map(Value::from).collect::<Vec<_>>()),
            line["views"],
            "{place}"
        );
        assert_eq!(text(&prepared), line["text"].as_str().unwrap(), "{place}");
        let mut digest = Sha256::new();
        for view in &prepared.views {
            assert_eq!(view.planes.len(), 3 * view.height * view.width);
            for float in &view.planes {
                digest.update(float.to_le_bytes());
            }
        }
        assert_eq!(hex(digest), line["sha256"].as_str().unwrap(), "{place}");
    }
}
