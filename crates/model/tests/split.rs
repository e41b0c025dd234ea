//! Models in several GGUF files.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use triad_model::ErrorKind::{self, Malformed, Missing, Unsupported};
use triad_model::checkpoint::Checkpoint;
use triad_model::gguf::Value;
use triad_model::testing::{GgufBuilder, tiny_llama};

/// Tensors of the tiny model.
const TENSORS: usize = 11;

/// One file: its number, the number of files that it states, and its tensors.
struct Part {
    number: i128,
    count: i128,
    tensors: Range<usize>,
}

const PARTS: [Part; 3] = [part(0, 0..0), part(1, 0..7), part(2, 7..TENSORS)];

const fn part(number: i128, tensors: Range<usize>) -> Part {
    Part {
        number,
        count: 3,
        tensors,
    }
}

impl Part {
    fn build(&self, tensors: i128) -> Vec<u8> {
        let mut builder: GgufBuilder = tiny_llama()
            .field("split.no", Value::Integer(self.number))
            .field("split.count", Value::Integer(self.count))
            .field("split.tensors.count", Value::Integer(tensors));
        builder.entries = builder.entries[self.tensors.clone()].to_vec();
        builder.build()
    }
}

fn name(number: usize) -> String {
    format!("tiny-{number:05}-of-00003.gguf")
}

/// Writes the files.
fn folder(parts: &[Part], tensors: i128) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (index, part) in parts.iter().enumerate() {
        fs::write(folder.path().join(name(index + 1)), part.build(tensors)).unwrap();
    }
    folder
}

fn first(folder: &TempDir) -> PathBuf {
    folder.path().join(name(1))
}

#[track_caller]
fn assert_refused(path: &Path, kind: ErrorKind, mentions: &[&str]) {
    let error = Checkpoint::open(path).expect_err("accepted");
    let message = error.to_string();
    assert_eq!(error.kind(), kind, "{message}");
    for mention in mentions {
        assert!(message.contains(mention), "{mention:?} in: {message}");
    }
}

#[test]
fn the_first_of_several_files_opens_the_whole_model() {
    let folder = folder(&PARTS, TENSORS as i128);
    let split = Checkpoint::open(first(&folder)).unwrap();
    let path = folder.path().join("whole.gguf");
    fs::write(&path, tiny_llama().build()).unwrap();
    let whole = Checkpoint::open(path).unwrap();
    assert_eq!(split.description(), whole.description());
    assert_eq!(split.tensors().len(), TENSORS);
    for (name, tensor) in whole.tensors() {
        let other = split.tensor(name).unwrap();
        assert_eq!(split.bytes(other), whole.bytes(tensor), "{name}");
        let number = split.files().nth(other.file).unwrap();
        assert!(number.ends_with(self::name(other.file + 1)), "{name}");
    }
    assert!(split.text_files().is_ok());
}

#[test]
fn a_missing_file_is_named() {
    let folder = folder(&PARTS, TENSORS as i128);
    fs::remove_file(folder.path().join(name(2))).unwrap();
    assert_refused(&first(&folder), Missing, &[&name(2), "missing", "3 files"]);
}

#[test]
fn a_file_that_is_not_the_first_is_refused_with_the_name_of_that() {
    let folder = folder(&PARTS, TENSORS as i128);
    let second = folder.path().join(name(2));
    assert_refused(
        &second,
        Unsupported,
        &[&name(2), "`split.no` is 1, expected 0", &name(1)],
    );
    // The second file under the name of the first.
    fs::copy(&second, first(&folder)).unwrap();
    assert_refused(&first(&folder), Unsupported, &["`split.no` is 1"]);
}

#[test]
fn a_name_without_the_number_of_files_is_refused() {
    let folder = folder(&PARTS, TENSORS as i128);
    for name in ["model.gguf", "tiny-00001-of-00004.gguf"] {
        let path = folder.path().join(name);
        fs::copy(first(&folder), &path).unwrap();
        let expected = ["`split.count` is 3", "NAME-00001-of-00003.gguf"];
        assert_refused(&path, Malformed, &expected);
    }
}

#[test]
fn a_file_with_another_number_or_count_than_its_name_says_is_refused() {
    let wrong = [
        (part(2, 0..7), "`split.no` is 2, expected 1"),
        (
            Part {
                number: 1,
                count: 4,
                tensors: 0..7,
            },
            "`split.count` is 4, expected 3",
        ),
    ];
    for (wrong, mention) in wrong {
        let folder = folder(&[part(0, 0..0), wrong, part(2, 7..TENSORS)], 11);
        assert_refused(&first(&folder), Malformed, &[&name(2), mention]);
    }
}

#[test]
fn a_tensor_in_two_files_is_refused() {
    let folder = folder(&[part(0, 0..0), part(1, 0..8), part(2, 7..TENSORS)], 12);
    let mentions = [&name(3), "tensor \"blk.0.", "is also in", &name(2)];
    assert_refused(&first(&folder), Malformed, &mentions);
}

#[test]
fn another_number_of_tensors_than_the_first_file_states_is_refused() {
    let folder = folder(&PARTS, 12);
    let mentions = [&name(1), "`split.tensors.count` is 12", "have 11 tensors"];
    assert_refused(&first(&folder), Malformed, &mentions);
}
