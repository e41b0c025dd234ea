//! The crate's public API on a tiny model.

// The tests of the command use the other functions.
#[allow(dead_code)]
#[path = "../../cli/tests/support/gguf.rs"]
mod gguf;
#[path = "../../cli/tests/support/scripted.rs"]
mod scripted;
/// The module of the command's tests that `scripted` uses.
mod support {
    pub(crate) use crate::gguf;
}

use std::path::PathBuf;

use gguf::{Gguf, Value};
use scripted::{Word, scripted};
use triad::{Cancel, Constraint, ErrorKind, Finish, GenerateOptions, Model, Tool};

/// A folder with a tiny model; deleted when dropped.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self::with_model(&Gguf::tiny().with("llama.context_length", Value::U32(128)))
    }

    fn with_model(model: &Gguf) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::write(place.path("model.gguf"), model.bytes()).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn open(&self) -> Model {
        let options = Model::options().no_quantize().threads(1);
        options
            .open(self.path("model.gguf").to_str().unwrap())
            .unwrap()
    }
}

fn eight() -> GenerateOptions {
    GenerateOptions::new().max_tokens(8).temperature(0.0)
}

#[test]
fn the_pieces_of_a_generation_are_its_text_and_its_tokens_are_in_the_session() {
    let place = Place::new();
    let model = place.open();
    let mut session = model.session().with_options(eight());
    let whole = session.generate("Hello").unwrap().finish().unwrap();
    assert!(whole.tokens.len() <= 8 && !whole.tokens.is_empty());
    let held = session.tokens().len();
    assert!(held >= model.tokenize("Hello").unwrap().len());
    let mut again = model.session().with_options(eight());
    let pieces: Result<Vec<_>, _> = again.generate("Hello").unwrap().collect();
    assert_eq!(pieces.unwrap().concat(), whole.text);
    assert_eq!(again.tokens().len(), held);
}

#[test]
fn a_dropped_generation_ends_and_the_session_goes_on() {
    let place = Place::new();
    let model = place.open();
    let mut session = model.session();
    drop(session.generate("Hello").unwrap());
    let mut session = session.with_options(eight());
    let answer = session.generate("Hello").unwrap().finish().unwrap();
    let other = model
        .session()
        .with_options(eight())
        .generate("Hello")
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!(answer.text, other.text);
}

#[test]
fn a_cancelled_generation_says_so() {
    let place = Place::new();
    let mut session = place.open().session();
    let generation = session.generate("Hello").unwrap();
    generation.cancel().cancel();
    let answer = generation.finish().unwrap();
    assert!(matches!(
        answer.finish,
        Finish::Cancelled | Finish::ContextFull | Finish::EndToken
    ));
}

#[test]
fn a_chat_keeps_the_answers_that_are_whole() {
    let place = Place::new();
    let model = place.open();
    let mut chat = model.chat().with_system("Be brief.").with_options(eight());
    let answer = chat.send("Hello").unwrap().finish().unwrap();
    let roles: Vec<_> = chat
        .messages()
        .into_iter()
        .map(|message| message.role)
        .collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    assert_eq!(chat.messages()[2].content, answer.text);
    drop(chat.send("More").unwrap());
    assert_eq!(chat.messages().len(), 4);
    let too_long = "word ".repeat(100_000);
    let error = chat.send(&too_long).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ContextFull, "{error}");
    assert_eq!(chat.messages().len(), 4, "a refused message is not kept");
    let mut chat = chat.with_options(eight().adapter(place.path("no-adapter"), 1.0));
    assert!(chat.send("Hello").is_err());
    assert_eq!(chat.messages().len(), 4, "nor one whose adapter is missing");
}

#[test]
fn an_answer_keeps_its_constraint() {
    let place = Place::new();
    let options = eight().constraint(Constraint::Regex("(yes|no)".into()));
    let mut session = place.open().session().with_options(options);
    let answer = session.generate("Hello").unwrap().finish().unwrap();
    assert!(["yes", "no"].contains(&answer.text.as_str()), "{answer:?}");
    let wrong = eight().constraint(Constraint::JsonSchema("{".into()));
    let mut session = place.open().session().with_options(wrong);
    let error = session.generate("Hello").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Constraint, "{error}");
}

#[test]
fn a_saved_session_goes_on_where_it_was() {
    let place = Place::new();
    let model = place.open();
    let mut session = model.session().with_options(eight());
    session.generate("Hello").unwrap().finish().unwrap();
    session.save(place.path("saved")).unwrap();
    let restored = model.restore(place.path("saved")).unwrap();
    assert_eq!(restored.tokens(), session.tokens());
    let error = model.restore(place.path("model.gguf")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
}

#[test]
fn an_embedding_has_length_one_and_that_of_nothing_is_refused() {
    let place = Place::new();
    let model = place.open();
    let vector = model.embed("Hello").unwrap();
    let length: f32 = vector.iter().map(|value| value * value).sum();
    assert!((length - 1.0).abs() < 1e-5);
    assert_eq!(vector, model.embed("Hello").unwrap());
}

#[test]
fn errors_have_the_kind_that_a_program_decides_on() {
    let place = Place::new();
    let open = |name: &str| Model::options().no_quantize().open(name).unwrap_err();
    let missing = place.path("no.gguf");
    assert_eq!(open(missing.to_str().unwrap()).kind(), ErrorKind::NotFound);
    std::fs::write(place.path("damaged.gguf"), b"GGUF").unwrap();
    let damaged = open(place.path("damaged.gguf").to_str().unwrap());
    assert_eq!(damaged.kind(), ErrorKind::Damaged, "{damaged}");
    let cancel = Cancel::new();
    cancel.cancel();
    let cancelled = Model::options()
        .no_quantize()
        .cancel_with(&cancel)
        .open(place.path("model.gguf").to_str().unwrap())
        .unwrap_err();
    assert_eq!(cancelled.kind(), ErrorKind::Cancelled, "{cancelled}");
    let model = place.open();
    let token = model.detokenize(&[u32::MAX]).unwrap_err();
    assert_eq!(token.kind(), ErrorKind::InvalidArgument, "{token}");
    let tool = Tool::new("no name", "", "{}").unwrap_err();
    assert_eq!(tool.kind(), ErrorKind::InvalidArgument, "{tool}");
    let hot = GenerateOptions::new().temperature(-1.0);
    let mut session = model.session().with_options(hot);
    let error = session.generate("Hello").unwrap().finish().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

#[test]
fn words_of_calls_that_are_control_tokens_make_calls() {
    let call = "{\"name\": \"add\", \"arguments\": {\"a\": 2}}";
    let words = [
        Word::Control("<|end|>"),
        Word::Control("<|ask|>"),
        Word::Control("<tool_call>"),
        Word::Text(call),
        Word::Control("</tool_call>"),
    ];
    let next = [(1, 2), (2, 3), (3, 4), (4, 0)];
    let template = "{# tools #}{{ messages[0].content }}<|ask|>";
    let place = Place::with_model(&scripted(&words, &next, 0, template));
    let model = place.open();
    let tool = Tool::new("add", "Adds.", r#"{"type": "object"}"#).unwrap();
    let mut chat = model.chat().with_options(eight()).with_tools([tool]);
    let answer = chat.send("2?").unwrap().finish().unwrap();
    assert_eq!(answer.text, "");
    assert_eq!(answer.calls.len(), 1);
    assert_eq!(&*answer.calls[0].name, "add");
    assert_eq!(&*answer.calls[0].arguments, "{\"a\":2}");
}

/// A newcomer can read a small public API in one sitting.
#[test]
fn the_front_door_has_at_most_sixty_five_items() {
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut items = 0;
    for file in std::fs::read_dir(sources).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let is_item = |line: &&str| {
            ["pub fn ", "pub struct ", "pub enum ", "pub type "]
                .iter()
                .any(|start| line.trim_start().starts_with(start))
        };
        items += text.lines().filter(is_item).count();
    }
    assert!((40..=65).contains(&items), "{items}");
}
