//! Conversations with pictures, compared with `apply_chat_template` and `generate` of `transformers`.
//! `tests/golden/pictures/chat.py` wrote the files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use triad_engine::sampler::SamplerOptions;
use triad_engine::{
    Cancel, EngineOptions, GenerateOptions, LoadOptions, Model, SessionOptions, Threads, generate,
};
use triad_frontend::chat::{self, Conversation};
use triad_frontend::pictures::{self, PicturePrompt, Pictures};
use triad_frontend::{Error, answer, models};
use triad_kernels::BlockArithmetic;
use triad_model::template::ChatTemplate;
use triad_pictures::{Picture, Piece, Prepared, Processor, View};

const CONTEXT: usize = 2048;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures")
}

fn model() -> Arc<Model> {
    load(&golden().join("chat"))
}

fn load(folder: &Path) -> Arc<Model> {
    let options = LoadOptions {
        threads: Threads::Count(1),
        block_arithmetic: BlockArithmetic::Exact,
        ..LoadOptions::default()
    };
    let model = models::load(folder, &options, &mut |_, _| {});
    Arc::new(model.unwrap())
}

fn talks() -> Vec<Value> {
    let text = std::fs::read_to_string(golden().join("chat.json")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

fn prepare(processor: &Processor, talk: &Value) -> Vec<Arc<Prepared>> {
    let files = talk["files"].as_array().unwrap().iter();
    let prepared = files.map(|file| {
        let path = golden().join("files").join(file.as_str().unwrap());
        let picture = Picture::decode(&std::fs::read(path).unwrap()).unwrap();
        Arc::new(processor.prepare(&picture).unwrap())
    });
    prepared.collect()
}

fn pieces(prepared: &[Arc<Prepared>]) -> Vec<Arc<[Piece]>> {
    prepared.iter().map(|it| Arc::clone(&it.pieces)).collect()
}

fn prompt(
    model: &Model,
    processor: &Processor,
    (messages, prepared): (&[Value], &[Arc<Prepared>]),
    keeps_letters: bool,
) -> Result<PicturePrompt, Error> {
    let conversation = Conversation {
        messages,
        keeps_letters,
        ..Conversation::default()
    };
    let pictures = Pictures {
        processor,
        pieces: &pieces(prepared),
    };
    let within = (CONTEXT, &Cancel::new());
    chat::encode_pictures(model, "chat", &conversation, (pictures, within))
}

/// Returns tokens with runs of `row` as `[row, count]`.
fn runs(tokens: &[u32], row: u32) -> Value {
    let groups = tokens.chunk_by(|a, b| a == b && *a == row);
    let groups = groups.map(|group| match group[0] == row {
        true => json!([row, group.len()]),
        false => json!(group[0]),
    });
    groups.collect()
}

#[test]
fn prompts_and_answers_are_those_of_transformers() {
    let model = model();
    let processor = pictures::processor(&model).unwrap();
    let row = model
        .tokenizer()
        .unwrap()
        .id(processor.row_token())
        .unwrap();
    let session = SessionOptions {
        context: CONTEXT,
        ..SessionOptions::default()
    };
    let options = EngineOptions {
        session,
        ..EngineOptions::default()
    };
    let engine = answer::engine(&model, &options).unwrap();
    let talks = talks();
    assert!(talks.len() >= 4);
    for talk in talks {
        let messages = talk["messages"].as_array().unwrap();
        let prepared = prepare(&processor, &talk);
        for keeps_letters in [false, true] {
            let prompt = prompt(&model, &processor, (messages, &prepared), keeps_letters).unwrap();
            assert_eq!(runs(&prompt.tokens, row), talk["tokens"]);
            let views: usize = prepared.iter().map(|it| it.views.len()).sum();
            assert_eq!(prompt.places.len(), views);
        }
        let prompt = prompt(&model, &processor, (messages, &prepared), false).unwrap();
        let mut session = engine.session();
        let tokens = prompt
            .hold(&mut session, &prepared, &Cancel::new())
            .unwrap();
        let expected = talk["answer"].as_array().unwrap();
        let options = GenerateOptions {
            max_tokens: Some(expected.len()),
            sampler: SamplerOptions {
                temperature: 0.0,
                ..SamplerOptions::default()
            },
            ..GenerateOptions::default()
        };
        let answer = generate(&mut session, &tokens, &options, &Cancel::new(), &mut |_| {});
        assert_eq!(json!(answer.unwrap().tokens), talk["answer"]);
    }
}

#[test]
fn a_vocabulary_without_the_token_of_rows_gives_the_same_prompt() {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(golden().join("chat")).unwrap() {
        let file = file.unwrap();
        let mut bytes = std::fs::read(file.path()).unwrap();
        if file.file_name().to_string_lossy().starts_with("tokenizer") {
            let text = String::from_utf8(bytes).unwrap();
            bytes = text.replace("\"<image>\"", "\"<other>\"").into_bytes();
        }
        std::fs::write(folder.path().join(file.file_name()), bytes).unwrap();
    }
    let (with, without) = (model(), load(folder.path()));
    let processor = pictures::processor(&without).unwrap();
    let id = |model: &Model| model.tokenizer().unwrap().id(processor.row_token());
    let row = id(&with).unwrap();
    assert_eq!(id(&without), None);
    for talk in talks() {
        let messages = talk["messages"].as_array().unwrap();
        let prepared = prepare(&processor, &talk);
        for keeps_letters in [false, true] {
            let shown = (&messages[..], &prepared[..]);
            let mut found = prompt(&without, &processor, shown, keeps_letters).unwrap();
            let expected = prompt(&with, &processor, shown, keeps_letters).unwrap();
            for place in &found.places {
                found.tokens[place.tokens.clone()].fill(row);
            }
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn a_text_that_names_the_token_of_pictures_is_kept_or_refused() {
    let model = model();
    let processor = pictures::processor(&model).unwrap();
    let talk = &talks()[0];
    let prepared = prepare(&processor, talk);
    let text = json!({"type": "text", "text": "What does <image> mean?"});
    let messages = [json!({"role": "user", "content": [{"type": "image"}, text]})];
    let shown = (&messages[..], &prepared[..]);
    let kept = prompt(&model, &processor, shown, true).unwrap();
    assert_eq!(kept.places.len(), prepared[0].views.len());
    let error = prompt(&model, &processor, shown, false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the prompt names <image> 2 times, expected 1: once for each picture"
    );
}

#[test]
fn a_prompt_with_more_rows_than_the_context_is_refused() {
    let model = model();
    let processor = pictures::processor(&model).unwrap();
    let talk = &talks()[1];
    let (messages, prepared) = (
        talk["messages"].as_array().unwrap(),
        prepare(&processor, talk),
    );
    let conversation = Conversation {
        messages,
        ..Conversation::default()
    };
    let shown = Pictures {
        processor: &processor,
        pieces: &pieces(&prepared),
    };
    let within = (100, &Cancel::new());
    let error = chat::encode_pictures(&model, "chat", &conversation, (shown, within));
    assert!(matches!(
        error,
        Err(Error::PromptTooLong { context: 100, .. })
    ));
}

#[test]
fn pictures_of_results_are_where_the_template_writes_them() {
    let model = model();
    let processor = pictures::processor(&model).unwrap();
    let source = |results: &str| {
        format!(
            "{{% if tools %}}{{{{ tools }}}}{{% endif %}}{{% for message in messages %}}[{{{{ message.role }}}}]\
             {{% if message.content is string %}}{{{{ message.content }}}}{{% else %}}{{% for part in message.content %}}\
             {{% if part.type == 'image'{results} %}}<image>{{% else %}}{{{{ part.text }}}}{{% endif %}}{{% endfor %}}\
             {{% endif %}}{{% endfor %}}"
        )
    };
    let text = |text: &str| json!({"type": "text", "text": text});
    let image = json!({"type": "image"});
    let messages = vec![
        json!({"role": "tool", "content": [text("a"), image]}),
        json!({"role": "tool", "content": [image, text("b")]}),
        json!({"role": "user", "content": "c"}),
        json!({"role": "tool", "content": [image]}),
    ];
    for (results, expected) in [
        ("", "[tool]a<image>[tool]<image>b[user]c[tool]<image>"),
        (
            " and message.role != 'tool'",
            "[tool]a[tool]b[user]<image><image>c[tool][user]<image>",
        ),
    ] {
        let template = ChatTemplate::new(source(results), None, None).unwrap();
        let mut messages = messages.clone();
        pictures::mark(&processor, &template, &mut messages).unwrap();
        let conversation = Conversation {
            messages: &messages,
            ..Conversation::default()
        };
        let rendered =
            chat::render_conversation(&template, "model", &conversation, &Cancel::new()).unwrap();
        assert_eq!(rendered, expected);
    }
    // In messages of the user, a result is between its marks.
    let plain = model.chat_template().unwrap();
    let mut messages = messages;
    pictures::mark(&processor, plain, &mut messages).unwrap();
    let conversation = Conversation {
        messages: &messages,
        ..Conversation::default()
    };
    let rendered =
        chat::render_conversation(plain, "model", &conversation, &Cancel::new()).unwrap();
    let first =
        "<tool_response>\na<image>\n</tool_response>\n<tool_response>\n<image>b\n</tool_response>";
    assert!(rendered.contains(first), "{rendered}");
}

#[test]
fn templates_without_pictures_get_their_token_as_text() {
    let model = model();
    let processor = pictures::processor(&model).unwrap();
    let source = "{% for message in messages %}{{ message.content }}{% endfor %}";
    let plain = ChatTemplate::new(source, None, None).unwrap();
    let part = json!({"type": "text", "text": "Hi"});
    let mut messages = vec![json!({"role": "user", "content": [{"type": "image"}, part]})];
    let writes = model.chat_template().unwrap();
    let before = messages.clone();
    pictures::mark(&processor, writes, &mut messages).unwrap();
    assert_eq!(messages, before);
    pictures::mark(&processor, &plain, &mut messages).unwrap();
    let text = chat::render_conversation(
        &plain,
        "plain",
        &Conversation {
            messages: &messages,
            ..Conversation::default()
        },
        &Cancel::new(),
    );
    assert_eq!(text.unwrap(), "<image>\nHi");
}

#[test]
fn an_encoder_is_found_in_its_folder_and_only_for_its_model() {
    let chat = golden().join("chat");
    assert_eq!(pictures::encoder_of(&chat), Some(chat));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let text = triad_model::testing::tiny_llama().build();
    std::fs::write(&path, &text).unwrap();
    assert_eq!(pictures::encoder_of(&path), None);
    // The encoder of another model, and a file that is none.
    let other = std::fs::read(golden().join("qwen2_vl-mmproj.gguf")).unwrap();
    for other in [other, text] {
        std::fs::write(folder.path().join("mmproj-other.gguf"), other).unwrap();
        assert_eq!(pictures::encoder_of(&path), None);
        let options = LoadOptions {
            vision: pictures::encoder_of(&path),
            ..LoadOptions::default()
        };
        assert!(models::load(&path, &options, &mut |_, _| {}).is_ok());
    }
}

#[test]
fn encoders_make_the_rows_that_processors_promise_in_the_sizes_of_published_models() {
    let processors = golden().join("processors");
    let mut checked = Vec::new();
    for folder in std::fs::read_dir(&processors).unwrap() {
        let folder = folder.unwrap();
        let name = folder.file_name().into_string().unwrap();
        if name.starts_with("small-") {
            continue;
        }
        let config = std::fs::read(folder.path().join("config.json")).unwrap();
        let config = serde_json::from_slice(&config).unwrap();
        let encoder = triad_model::vision::describe(&config).expect(&name);
        let processor = Processor::from_folder(&folder.path()).unwrap();
        for file in ["1x1.png", "64x64.png", "333x777.png", "1200x540.png"] {
            let picture = std::fs::read(golden().join("files").join(file)).unwrap();
            let picture = Picture::decode(&picture).unwrap();
            let prepared = processor.prepare(&picture).unwrap();
            let mut views = 0;
            for piece in prepared.pieces.iter() {
                let Piece::Rows { view, rows } = piece else {
                    continue;
                };
                let View { height, width, .. } = prepared.views[*view];
                let [high, wide] = encoder.cells(height, width).expect(&name);
                assert_eq!(high * wide, *rows, "{name}, {file}: {width} × {height}");
                views += 1;
            }
            assert_eq!(views, prepared.views.len(), "{name}, {file}");
        }
        checked.push(name);
    }
    checked.sort();
    assert_eq!(
        checked,
        [
            "gemma3",
            "gemma4",
            "idefics3",
            "internvl3",
            "lfm2-vl",
            "llava",
            "llava-siglip",
            "qwen2-vl",
            "qwen2.5-vl",
            "qwen3-vl",
            "smolvlm",
            "smolvlm-2.2b"
        ]
    );
}
