//! The special tokens that the files next to a `tokenizer.json` name, against two versions of `transformers`:
//! `tests/golden/tokenizer/special.py` wrote their results.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use triad_model::ErrorKind;
use triad_model::tokenizer::{EncodeOptions, Tokenizer};

type Fields = Map<String, Value>;

#[derive(Deserialize)]
struct Golden {
    texts: Vec<String>,
    around: String,
    /// The folder of each class's `tokenizer.json`, fields to replace in it, and its post-processors by name.
    classes: BTreeMap<String, (String, Fields, Fields)>,
    /// Class, name of the post-processor, configuration, other files.
    rows: Vec<(String, String, Value, Fields)>,
    results: Vec<Option<Expected>>,
    /// The place of the result of each version for each row.
    #[serde(rename = "4")]
    four: Vec<usize>,
    #[serde(rename = "5")]
    five: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Expected {
    size: usize,
    /// BOS and EOS.
    ends: [Option<u32>; 2],
    around: Vec<u32>,
    ids: Vec<Vec<u32>>,
    texts: Vec<String>,
}

fn golden(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizer");
    folder.join(name)
}

/// The outcome of one row.
enum Outcome {
    Refused(String),
    Read(Box<Expected>),
}

impl Golden {
    fn read() -> Self {
        serde_json::from_slice(&fs::read(golden("special.json")).unwrap()).unwrap()
    }

    fn outcome(&self, row: usize) -> Outcome {
        let (class, post, config, files) = &self.rows[row];
        let (base, changes, posts) = &self.classes[class];
        let file = fs::read(golden(base).join("tokenizer.json")).unwrap();
        let mut file: Value = serde_json::from_slice(&file).unwrap();
        for (field, value) in changes {
            file[field] = value.clone();
        }
        file["post_processor"] = posts[post].clone();
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, value: &Value| {
            fs::write(folder.path().join(name), value.to_string()).unwrap();
        };
        write("tokenizer.json", &file);
        files.iter().for_each(|(name, value)| write(name, value));
        let mut config = config.clone();
        config["tokenizer_class"] = json!(class.strip_suffix(" of bytes").unwrap_or(class));
        let tokenizer = match Tokenizer::from_folder(folder.path(), Some(&config), &[]) {
            Ok(tokenizer) => tokenizer,
            Err(error) => {
                assert!(
                    [ErrorKind::Malformed, ErrorKind::Unsupported].contains(&error.kind()),
                    "{error}"
                );
                return Outcome::Refused(error.to_string());
            }
        };
        let encode = |text: &String| tokenizer.encode(text, EncodeOptions::TEMPLATE).unwrap();
        let ids: Vec<_> = self.texts.iter().map(encode).collect();
        let around = tokenizer.encode(&self.around, EncodeOptions::TEXT);
        Outcome::Read(Box::new(Expected {
            size: tokenizer.vocab_size(),
            ends: [tokenizer.bos(), tokenizer.eos()],
            around: around.unwrap(),
            texts: ids.iter().map(|ids| tokenizer.decode(ids)).collect(),
            ids,
        }))
    }
}

#[test]
fn special_tokens_are_those_of_transformers_or_are_refused() {
    let golden = Golden::read();
    let (mut same, mut refused, mut of_four) = (0, 0, 0);
    let (mut wrong, mut needless) = (Vec::new(), Vec::new());
    for row in 0..golden.rows.len() {
        let results = [golden.four[row], golden.five[row]];
        let results = results.map(|place| golden.results[place].as_ref());
        let read: Vec<&Expected> = results.into_iter().flatten().collect();
        let name = || format!("{row}: {}", json!(golden.rows[row]));
        match golden.outcome(row) {
            Outcome::Refused(error) => {
                refused += 1;
                if let [first, rest @ ..] = &read[..]
                    && rest.iter().all(|other| first == other)
                {
                    needless.push(format!("{}: {error}", name()));
                }
            }
            Outcome::Read(found) => {
                // Where versions differ in the tokens around a text, or version 5 gives tokens of the file other ids,
                // they are those of version 4.
                match &read[..] {
                    [first, rest @ ..] if **first == *found => match rest {
                        [other] if *other != *first => of_four += 1,
                        _ => same += 1,
                    },
                    _ => wrong.push(format!("{}: {found:?} {read:?}", name())),
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} rows are wrong, {same} same, {refused} refused, {of_four} as version 4:\n{}",
        wrong.len(),
        golden.rows.len(),
        wrong[..wrong.len().min(10)].join("\n")
    );
    // Of those that both versions read as the same, or only one reads.
    let needless: Vec<&str> = needless
        .iter()
        .map(|row| &row[..row.len().min(600)])
        .collect();
    assert_eq!(
        (same, of_four, refused, needless.len()),
        (869, 311, 147, 0),
        "{needless:#?}"
    );
}
