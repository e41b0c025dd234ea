//! Conversations in templates: contents of both kinds, last messages that go on, Python's JSON, and letters that name tokens.

use std::path::Path;

use serde_json::{Value, json};
use triad_model::checkpoint::Source;
use triad_model::gguf;
use triad_model::template::{ChatTemplate, RenderOptions};
use triad_model::testing::GgufBuilder;
use triad_model::tokenizer::{Encoded, Letters, Special, Tokenizer};

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, None, None).unwrap()
}

#[track_caller]
fn rendered(source: &str, messages: &Value, options: &RenderOptions) -> String {
    template(source)
        .render_conversation(messages.as_array().unwrap(), options, None)
        .unwrap()
}

#[test]
fn json_is_written_as_python_writes_it_with_every_argument() {
    // Made by Python's json.dumps: the arguments of the filter, and the text.
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/templates/tojson.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let variables = json!({"value": golden["value"]});
    let options = RenderOptions {
        variables: variables.as_object(),
        ..RenderOptions::default()
    };
    for case in golden["cases"].as_array().unwrap() {
        let arguments = case[0].as_str().unwrap();
        let source = format!("{{{{ value | tojson({arguments}) }}}}");
        assert_eq!(
            rendered(&source, &json!([]), &options),
            case[1].as_str().unwrap(),
            "{arguments}"
        );
    }
    for wrong in [
        "1, ensure_ascii=1",
        "indent=[]",
        "indent=65",
        "separators=','",
        "spaces=1",
        "1, 1, 1, 1, 1",
    ] {
        let template = template(&format!("{{{{ value | tojson({wrong}) }}}}"));
        assert!(
            template.render_conversation(&[], &options, None).is_err(),
            "{wrong}"
        );
    }
}

#[test]
fn a_template_with_lines_of_windows_writes_lines() {
    let lines = "{% for m in messages %}\n{{ m.role }}\n{{ 'a\nb' }}\n{% endfor %}\nend\n";
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let expected = rendered(lines, &messages, &RenderOptions::default());
    assert_eq!(expected, "user\na\nb\nend");
    for line in ["\r\n", "\r"] {
        assert_eq!(
            rendered(
                &lines.replace('\n', line),
                &messages,
                &RenderOptions::default()
            ),
            expected,
            "{line:?}"
        );
    }
}

#[test]
fn contents_are_texts_or_parts_as_the_template_reads_them() {
    let (text, parts) = (
        json!("a\nb"),
        json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
    );
    let of_texts = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    let of_parts = "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}[{{ p.text }}]{% endif %}\
                    {% endfor %}{% endfor %}";
    let of_both = "{% for m in messages %}{% if m.content is string %}({{ m.content }}){% else %}\
                   {% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}";
    for (source, of_text, of_list) in [
        (of_texts, "[a\nb]", "[a\nb]"),
        (of_parts, "[a\nb]", "[a][b]"),
        (of_both, "(a\nb)", "<a><b>"),
    ] {
        for (content, expected) in [(&text, of_text), (&parts, of_list)] {
            let messages = json!([{"role": "user", "content": content}]);
            assert_eq!(
                rendered(source, &messages, &RenderOptions::default()),
                expected,
                "{source}"
            );
        }
    }
    assert!(template(of_texts).reads_system());
    assert!(
        !template("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}")
            .reads_system()
    );
}

#[test]
fn an_answer_goes_on_with_the_last_message_where_the_template_writes_it() {
    let options = RenderOptions {
        continue_final_message: true,
        ..RenderOptions::default()
    };
    let plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}<end>\n{% endfor %}";
    let trimmed = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}<end>\n{% endfor %}";
    let last = |content: Value| json!([{"role": "user", "content": "("}, {"role": "assistant", "content": content}]);
    for (source, content, expected) in [
        (plain, json!("It is ("), "user: (<end>\nassistant: It is ("),
        (
            plain,
            json!("It is ( \n"),
            "user: (<end>\nassistant: It is ( \n",
        ),
        (
            trimmed,
            json!("It is ( \n"),
            "user: (<end>\nassistant: It is (",
        ),
        (
            plain,
            json!([{"type": "text", "text": "It"}]),
            "user: (<end>\nassistant: It",
        ),
    ] {
        assert_eq!(rendered(source, &last(content), &options), expected);
    }
    let silent = template("{{ messages[0].content }}");
    let error = silent
        .render_conversation(last("a".into()).as_array().unwrap(), &options, None)
        .unwrap_err();
    assert!(error.to_string().contains("last message"), "{error}");
}

#[test]
fn a_conversation_with_functions_has_the_template_for_them() {
    let text = |text: &str| gguf::Value::String(text.into());
    let pieces = ["a", "b", "<s>", "</s>"].map(str::to_owned).to_vec();
    let file = GgufBuilder::new()
        .field("general.architecture", text("llama"))
        .field("tokenizer.ggml.model", text("gpt2"))
        .field("tokenizer.ggml.pre", text("gpt-2"))
        .field("tokenizer.ggml.tokens", gguf::Value::Strings(pieces))
        .field(
            "tokenizer.ggml.token_type",
            gguf::Value::Integers(vec![1, 1, 3, 3]),
        )
        .field("tokenizer.ggml.merges", gguf::Value::Strings(Vec::new()))
        .field("tokenizer.ggml.eos_token_id", gguf::Value::Integer(3))
        .field("tokenizer.chat_template", text("plain"))
        .field("tokenizer.chat_template.tool_use", text("tools"))
        .build();
    let source = Source::Gguf(gguf::read(&file).unwrap().metadata);
    let tokenizer = Tokenizer::from_source(&source, &[]).unwrap();
    let of_gguf = ChatTemplate::from_source(&source, &tokenizer)
        .unwrap()
        .unwrap();
    let named = json!({"chat_template": [
        {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}
    ]});
    let folder = Path::new("there is no such folder").to_path_buf();
    let source = Source::HuggingFace {
        folder,
        tokenizer_config: Some(named),
    };
    let of_folder = ChatTemplate::from_source(&source, &tokenizer)
        .unwrap()
        .unwrap();
    for template in [of_gguf, of_folder] {
        assert_eq!(
            (template.source(), template.for_tools().source()),
            ("plain", "tools")
        );
    }
    assert_eq!(template("one").for_tools().source(), "one");
}

#[test]
fn marked_names_of_control_tokens_are_letters_and_others_are_tokens() {
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizer/bpe-gpt-2");
    let of_folder = Tokenizer::from_folder(&golden, None, &[1001]).unwrap();
    let (tokenizer, names) = (&of_folder, controls(&of_folder));
    let name = names.first().expect("the tokenizer has control tokens");
    let text = format!("a {name} b");
    let letters = Letters::new(tokenizer, &[&text]).unwrap();
    let encode = |text: &str| match letters.encode_within(text, usize::MAX, &|| false).unwrap() {
        Encoded::Whole(tokens) => tokens,
        outcome => panic!("{outcome:?}"),
    };
    let marked = letters.mark(&text);
    assert_ne!(marked, text);
    let as_letters = tokenizer.encode_part(&text).unwrap();
    assert_eq!(encode(&marked), as_letters);
    assert_eq!(
        encode(&text),
        tokenizer.encode(&text, Special::Parsed).unwrap()
    );
    // Those of the template are tokens.
    let control = tokenizer.id(name).unwrap();
    let around: Vec<_> = [control]
        .into_iter()
        .chain(as_letters)
        .chain([control])
        .collect();
    assert_eq!(encode(&format!("{name}{marked}{name}")), around);
}

fn controls(tokenizer: &Tokenizer) -> Vec<String> {
    let control =
        |token: &u32| tokenizer.token_kind(*token) == triad_model::tokenizer::TokenKind::Control;
    let tokens = (0..tokenizer.vocab_size() as u32).filter(control);
    tokens
        .filter_map(|token| tokenizer.piece(token))
        .map(str::to_owned)
        .collect()
}
