//! Changes the kind of every metadata field of every family's GGUF file, one by one: another type, width or number, twice, or
//! in capital letters. The model must stay the same, or be refused with the field's name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use triad_model::checkpoint::Checkpoint;
use triad_model::description::ModelDescription;
use triad_model::gguf::{self, Value};
use triad_model::testing::{GgufBuilder, string};
use triad_model::tokenizer::{EncodeOptions, Tokenizer};

/// GGUF's numbers of types.
const U8: u32 = 0;
const I8: u32 = 1;
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;
const I64: u32 = 11;
const F64: u32 = 12;

/// A field as it is written: its key, its type and its bytes.
type Field = (String, u32, Vec<u8>);

/// A change of a field: its name, the fields in its place, and whether the model must stay as it is.
struct Change {
    name: &'static str,
    fields: Vec<Field>,
    is_alike: bool,
}

/// Returns an array of elements of type `of`.
fn array(of: u32, elements: &[Vec<u8>]) -> Vec<u8> {
    let head = [
        of.to_le_bytes().to_vec(),
        (elements.len() as u64).to_le_bytes().to_vec(),
    ];
    head.into_iter()
        .chain(elements.to_vec())
        .flatten()
        .collect()
}

/// Returns the spellings of an integer that have the same value, in every width that holds it.
fn widths(number: i128) -> Vec<(&'static str, u32, Vec<u8>)> {
    macro_rules! width {
        ($name:literal, $id:expr, $kind:ty) => {
            <$kind>::try_from(number)
                .ok()
                .map(|number| ($name, $id, number.to_le_bytes().to_vec()))
        };
    }
    let widths = [
        width!("i8", I8, i8),
        width!("u32", U32, u32),
        width!("u64", U64, u64),
        width!("i64", I64, i64),
    ];
    widths.into_iter().flatten().collect()
}

/// Returns the changes of a field's kind.
fn changes(key: &str, value: &Value) -> Vec<Change> {
    let with = |name, kind, bytes: Vec<u8>, is_alike| Change {
        name,
        fields: vec![(key.to_owned(), kind, bytes)],
        is_alike,
    };
    let float = |number: f32| number.to_le_bytes().to_vec();
    let mut changes = vec![
        with(
            "an array of arrays",
            ARRAY,
            array(ARRAY, &[array(U32, &[vec![1, 0, 0, 0]])]),
            false,
        ),
        with("no elements", ARRAY, array(U32, &[]), false),
        with(
            "an array of booleans",
            ARRAY,
            array(BOOL, &[vec![1], vec![0], vec![1]]),
            false,
        ),
        with("an unknown type", 13, vec![0; 8], false),
        with("a boolean of 2", BOOL, vec![2], false),
    ];
    let is_list = matches!(
        value,
        Value::Integers(_) | Value::Floats(_) | Value::Bools(_) | Value::Strings(_)
    );
    if !matches!(value, Value::String(_)) {
        changes.push(with("a text", STRING, string("two"), false));
    }
    // Other tokens are another vocabulary.
    if !matches!(value, Value::Strings(_)) {
        let texts = array(STRING, &[string("a"), string("b")]);
        changes.push(with("an array of strings", ARRAY, texts, false));
    }
    if !matches!(value, Value::Bool(_)) {
        changes.push(with("true", BOOL, vec![1], false));
    }
    match value {
        Value::Integer(number) => {
            let alike = widths(*number).into_iter();
            changes.extend(alike.map(|(name, kind, bytes)| with(name, kind, bytes, true)));
            changes.push(with("a whole float", F32, float(*number as f32), false));
            changes.push(with(
                "a fraction",
                F64,
                (*number as f64 + 0.5).to_le_bytes().to_vec(),
                false,
            ));
            changes.push(with("-1", I32, (-1i32).to_le_bytes().to_vec(), false));
            let one = array(U32, &[(*number as u32).to_le_bytes().to_vec()]);
            changes.push(with("an array of it", ARRAY, one, false));
        }
        Value::Float(number) => {
            changes.push(with("f64", F64, number.to_le_bytes().to_vec(), true));
            if number.fract() == 0.0 && *number >= 0.0 {
                let whole = (*number as u64).to_le_bytes().to_vec();
                changes.push(with("u64", U64, whole, false));
            }
            changes.push(with("NaN", F32, float(f32::NAN), false));
            changes.push(with("infinity", F32, float(f32::INFINITY), false));
            changes.push(with(
                "beyond f32",
                F64,
                1e300f64.to_le_bytes().to_vec(),
                false,
            ));
            let one = array(F32, &[float(*number as f32)]);
            changes.push(with("an array of it", ARRAY, one, false));
        }
        Value::Bool(flag) => {
            for (name, kind) in [("an u8", U8), ("an i8", I8)] {
                changes.push(with(name, kind, vec![(*flag).into()], false));
            }
            changes.push(with("an u32", U32, vec![(*flag).into(), 0, 0, 0], false));
        }
        Value::String(text) => {
            changes.push(with("an integer", U32, vec![2, 0, 0, 0], false));
            changes.push(with("a float", F32, float(2.0), false));
            changes.push(with(
                "an array of it",
                ARRAY,
                array(STRING, &[string(text)]),
                false,
            ));
        }
        _ => {}
    }
    if is_list {
        changes.push(with("a float", F32, float(2.5), false));
        changes.push(with("-1", I32, (-1i32).to_le_bytes().to_vec(), false));
        changes.push(with(
            "an array of fractions",
            ARRAY,
            array(F32, &[float(0.5), float(1.5)]),
            false,
        ));
    }
    let (kind, bytes) = written(value);
    let field = |key: String| (key, kind, bytes.clone());
    changes.push(Change {
        name: "twice",
        fields: vec![field(key.to_owned()), field(key.to_owned())],
        is_alike: false,
    });
    changes.push(Change {
        name: "in capital letters",
        fields: vec![field(key.to_uppercase())],
        is_alike: false,
    });
    changes
}

/// Returns the type and the bytes of a value.
fn written(value: &Value) -> (u32, Vec<u8>) {
    let elements = |of: u32, elements: Vec<Vec<u8>>| (ARRAY, array(of, &elements));
    match value {
        Value::Integer(number) => match u32::try_from(*number) {
            Ok(number) => (U32, number.to_le_bytes().to_vec()),
            Err(_) => (I64, (*number as i64).to_le_bytes().to_vec()),
        },
        Value::Float(number) => (F32, (*number as f32).to_le_bytes().to_vec()),
        Value::Bool(flag) => (BOOL, vec![(*flag).into()]),
        Value::String(text) => (STRING, string(text)),
        Value::Integers(list) => elements(
            I64,
            list.iter().map(|it| it.to_le_bytes().to_vec()).collect(),
        ),
        Value::Floats(list) => elements(
            F32,
            list.iter().map(|it| it.to_le_bytes().to_vec()).collect(),
        ),
        Value::Bools(list) => elements(BOOL, list.iter().map(|&it| vec![it.into()]).collect()),
        Value::Strings(list) => elements(STRING, list.iter().map(|it| string(it)).collect()),
    }
}

/// A model file whose fields are changed, with a place for what is written.
struct Base {
    fields: BTreeMap<String, Value>,
    tensors: GgufBuilder,
    path: PathBuf,
}

/// Everything that a model's answers depend on, or the error that refuses the model.
type Seen = Result<String, String>;

impl Base {
    fn new(path: &Path, folder: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let file = gguf::read(&bytes).unwrap();
        let fields = file.metadata.iter();
        let fields = fields.map(|(key, value)| (key.to_owned(), value.clone()));
        let tensors = file
            .tensors
            .values()
            .fold(GgufBuilder::new(), |builder, tensor| {
                let bytes = &bytes[tensor.bytes.clone()];
                builder.tensor(&tensor.name, &tensor.shape, tensor.format, bytes)
            });
        Self {
            fields: fields.collect(),
            tensors,
            path: folder.join("model.gguf"),
        }
    }

    /// Reads the model with `fields` in place of the field `key`.
    fn read(&self, key: &str, fields: &[Field]) -> Seen {
        let others = self.fields.iter().filter(|(other, _)| *other != key);
        let others = others.map(|(key, value)| {
            let (kind, bytes) = written(value);
            (key.clone(), kind, bytes)
        });
        let all = others.chain(fields.iter().cloned());
        let file = all.fold(self.tensors.clone(), |file, (key, kind, bytes)| {
            file.raw_field(&key, kind, &bytes)
        });
        fs::write(&self.path, file.build()).unwrap();
        let error = |error: triad_model::Error| error.to_string();
        let checkpoint = Checkpoint::open(&self.path).map_err(error)?;
        let tokenizer = Tokenizer::from_checkpoint(&checkpoint).map_err(error)?;
        let tokens = tokenizer.encode("<s> a b token_7", EncodeOptions::TEXT);
        let description = ModelDescription {
            name: None,
            ..checkpoint.description().clone()
        };
        Ok(format!(
            "{description:?} {:?} {tokens:?} {:?} {:?}",
            checkpoint.generation_defaults(),
            tokenizer.bos(),
            tokenizer.eos(),
        ))
    }
}

#[test]
fn a_field_of_another_kind_changes_nothing_or_is_refused_by_its_name() {
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/families");
    let folder = tempfile::tempdir().unwrap();
    let (mut wrong, mut same, mut refused) = (Vec::new(), 0, 0);
    let mut files: Vec<_> = fs::read_dir(families)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|it| it == "gguf"));
    files.sort();
    assert!(files.len() > 40, "{} files", files.len());
    for (index, file) in files.iter().enumerate() {
        let base = Base::new(file, folder.path());
        let seen = base.read("", &[]);
        // The same code reads the tokenizers of all families.
        let is_new = |key: &str| index < 2 || !key.starts_with("tokenizer.");
        for (key, value) in base.fields.iter().filter(|(key, _)| is_new(key)) {
            for change in changes(key, value) {
                let case = || {
                    format!(
                        "{}: {key} as {}",
                        file.file_name().unwrap().display(),
                        change.name
                    )
                };
                match base.read(key, &change.fields) {
                    found if found == seen => same += 1,
                    Err(error) if error.contains(key) && !change.is_alike => refused += 1,
                    Err(error) => wrong.push(format!("{}: {error}", case())),
                    Ok(_) => wrong.push(format!("{}: another model", case())),
                }
            }
        }
    }
    println!("{same} the same, {refused} refused");
    let count = wrong.len();
    wrong.truncate(100);
    assert!(
        wrong.is_empty(),
        "{count} wrong, among them\n{}",
        wrong.join("\n")
    );
}
