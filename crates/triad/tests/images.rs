//! Pictures in conversations, compared with the answers of `transformers`. `tests/golden/pictures/chat.py` wrote the files,
//! and the tests of the command compare `triad run --image` with the same answers.

use std::path::{Path, PathBuf};

use serde_json::Value;
use triad::{ErrorKind, GenerateOptions, Image, Model};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures")
}

/// A conversation of one message: the file of its picture, its text and the tokens of the answer.
struct Talk {
    file: PathBuf,
    text: String,
    answer: Vec<u32>,
}

fn talks() -> Vec<Talk> {
    let text = std::fs::read_to_string(golden().join("chat.json")).unwrap();
    let talks = text.lines().take(2).map(|line| {
        let talk: Value = serde_json::from_str(line).unwrap();
        let text = |pointer: &str| talk.pointer(pointer).unwrap().as_str().unwrap().to_owned();
        let answer = talk["answer"].as_array().unwrap().iter();
        Talk {
            file: golden().join("files").join(text("/files/0")),
            text: text("/messages/0/content/1/text"),
            answer: answer.map(|token| token.as_u64().unwrap() as u32).collect(),
        }
    });
    talks.collect()
}

fn open(path: &Path) -> Model {
    let options = Model::options().no_quantize().threads(1);
    options.open(path.to_str().unwrap()).unwrap()
}

#[test]
fn answers_to_pictures_are_those_of_transformers() {
    let model = open(&golden().join("chat"));
    for talk in talks() {
        let options = GenerateOptions::new()
            .max_tokens(talk.answer.len())
            .temperature(0.0);
        let mut chat = model.chat().with_options(options);
        chat.push_image(&Image::open(&talk.file).unwrap()).unwrap();
        let answer = chat.send(&talk.text).unwrap().finish().unwrap();
        assert_eq!(answer.tokens, talk.answer);
        assert_eq!(chat.messages()[0].content, talk.text);
        // The next message goes on after the picture.
        let next = chat.send("And now?").unwrap().finish().unwrap();
        assert!(next.timing.reused_tokens >= talk.answer.len());
    }
}

#[test]
fn pictures_from_bytes_and_from_colors_are_those_of_files() {
    let file = golden().join("files/28x28.png");
    let opened = Image::open(&file).unwrap();
    let decoded = Image::decode(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(decoded, opened);
    assert!(Image::from_rgb(28, 28, vec![0; 28 * 28 * 3]).is_ok());
}

#[test]
fn what_can_not_be_shown_is_refused_and_leaves_the_conversation_as_it_was() {
    let error = Image::open("/nowhere.png").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("/nowhere.png"), "{error}");
    let text = golden().join("chat.json");
    let error = Image::open(&text).unwrap_err().to_string();
    assert!(
        error.contains("chat.json: this is not a picture"),
        "{error}"
    );
    let error = Image::from_rgb(2, 2, vec![0; 3]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let model = open(&golden().join("chat"));
    let mut chat = model.chat();
    let image = Image::open(golden().join("files/28x28.png")).unwrap();
    chat.push_image(&image).unwrap();
    let long = "word ".repeat(10_000);
    assert_eq!(chat.send(&long).unwrap_err().kind(), ErrorKind::ContextFull);
    assert!(chat.messages().is_empty());
    let options = GenerateOptions::new().max_tokens(4).temperature(0.0);
    let mut chat = chat.with_options(options);
    let answer = chat.send("Hello").unwrap().finish().unwrap();
    let alone = GenerateOptions::new().max_tokens(4).temperature(0.0);
    let mut alone = model.chat().with_options(alone);
    let expected = alone.send("Hello").unwrap().finish().unwrap();
    assert_eq!(answer.tokens, expected.tokens);
}
