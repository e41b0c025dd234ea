//! `run --image` and `fit --image`. `tests/golden/pictures/chat.py` made the model and its answers.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::support::{Place, stderr};
use super::{json, succeed};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures")
}

#[test]
fn run_answers_a_question_about_a_picture_as_transformers_does() {
    let place = Place::new();
    let model = golden().join("chat");
    let text = std::fs::read_to_string(golden().join("chat.json")).unwrap();
    for line in text.lines().take(2) {
        let talk: Value = serde_json::from_str(line).unwrap();
        let text = |pointer: &str| talk.pointer(pointer).unwrap().as_str().unwrap();
        let picture = golden().join("files").join(text("/files/0"));
        let answer = talk["answer"].as_array().unwrap();
        let count = answer.len().to_string();
        let arguments = [
            "run",
            "--no-quantize",
            "-m",
            model.to_str().unwrap(),
            "--image",
            picture.to_str().unwrap(),
            "-p",
            text("/messages/0/content/1/text"),
            "-n",
            &count,
            "--temp",
            "0",
            "--threads",
            "1",
            "--json",
        ];
        let report = json(&place.triad(&arguments));
        assert_eq!(report["tokens"], talk["answer"]);
    }
}

#[test]
fn a_question_about_a_picture_has_one_answer_on_several_processors_and_its_timeline_has_the_encoder()
 {
    let place = Place::new();
    let files = golden().join("files");
    std::fs::create_dir(place.path("screens")).unwrap();
    for name in ["28x28.png", "3x3.png"] {
        std::fs::copy(files.join(name), place.path("screens").join(name)).unwrap();
    }
    let model = golden().join("chat");
    let prepare = ["prepare", model.to_str().unwrap(), "-o", "eyes.triad"];
    let how = [
        "--calibrate-images",
        "screens",
        "--tokens",
        "100",
        "--prune",
        "0.5",
    ];
    succeed(&place.triad(&[&prepare[..], &how].concat()));
    let ask = [
        "run",
        "-m",
        "eyes.triad",
        "--image",
        "screens/28x28.png",
        "-p",
        "?",
        "-n",
        "8",
        "--temp",
        "0",
        "--json",
    ];
    let alone = json(&place.triad(&ask));
    let several = ["--processors", "cpu,npu", "--timeline", "run.json"];
    let several = json(&place.triad(&[&ask[..], &several].concat()));
    assert_eq!(several["tokens"], alone["tokens"]);
    let trace = std::fs::read_to_string(place.path("run.json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let lane = |event: &&Value| event["args"]["name"] == "encoder";
    let lane = &events.iter().find(lane).unwrap()["tid"];
    let views = events
        .iter()
        .filter(|event| event["ph"] == "X" && event["tid"] == *lane);
    let ends: Vec<_> = views
        .map(|event| event["ts"].as_f64().unwrap() + event["dur"].as_f64().unwrap())
        .collect();
    assert_eq!(ends.len(), 17, "views of the picture");
    let of_prompt = events
        .iter()
        .filter(|event| event["ph"] == "X" && event["tid"] != *lane);
    let last = ends.into_iter().fold(0.0, f64::max);
    assert!(of_prompt.clone().count() > 0);
    assert!(
        of_prompt
            .into_iter()
            .all(|event| event["ts"].as_f64().unwrap() >= last)
    );
}

#[test]
fn a_conversation_moves_with_its_pictures_and_one_that_changed_or_is_gone_is_refused_by_name() {
    let place = Place::new();
    let model = golden().join("chat");
    let picture = |name: &str| std::fs::read(golden().join("files").join(name)).unwrap();
    place.write("talks/shown/one.png", picture("28x28.png"));
    let ask = |session: &str, more: &[&str]| {
        let model = ["run", "--no-quantize", "-m", model.to_str().unwrap()];
        let rest = [
            "-n",
            "1",
            "--context",
            "512",
            "--session",
            session,
            "-p",
            "So",
        ];
        place.triad(&[&model[..], &rest, more].concat())
    };
    succeed(&ask("talks/talk.json", &["--image", "talks/shown/one.png"]));
    let saved: Value =
        serde_json::from_slice(&std::fs::read(place.path("talks/talk.json")).unwrap()).unwrap();
    assert_eq!(saved["messages"][0]["images"][0]["path"], "shown/one.png");
    std::fs::rename(place.path("talks"), place.path("moved")).unwrap();
    succeed(&ask("moved/talk.json", &[]));
    place.write("moved/shown/one.png", picture("3x3.png"));
    let changed = stderr(&ask("moved/talk.json", &[]));
    assert!(
        changed.contains("one.png has changed since the conversation was saved"),
        "{changed}"
    );
    std::fs::remove_file(place.path("moved/shown/one.png")).unwrap();
    let gone = stderr(&ask("moved/talk.json", &[]));
    assert!(
        gone.contains("cannot read the picture") && gone.contains("one.png"),
        "{gone}"
    );
}

#[test]
fn info_says_that_a_model_reads_pictures_and_counts_its_encoder_among_what_is_used() {
    let (place, model) = (Place::new(), golden().join("chat"));
    let model = model.to_str().unwrap();
    let text = succeed(&place.triad(&["info", model]));
    assert!(
        text.contains("read, by an encoder of") && !text.contains("not used"),
        "{text}"
    );
    let info = json(&place.triad(&["info", model, "--json"]));
    assert!(
        info["pictures"]["tensors"].as_u64() > Some(0) && info["unused_tensors"] == 0,
        "{info}"
    );
}

#[test]
fn fit_counts_the_tokens_of_a_picture_and_the_work_of_its_encoder() {
    let place = Place::new();
    let model = golden().join("chat");
    let model = model.to_str().unwrap();
    let fit = ["fit", model, "--threads", "1", "--prompt", "64"];
    let report = json(&place.triad(&[&fit[..], &["--image", "28x28", "--json"]].concat()));
    let picture = &report["picture"];
    // As `transformers` has it: 17 views of 9 rows.
    assert_eq!(
        [&picture["views"], &picture["rows"], &picture["width"]],
        [17, 153, 28]
    );
    let config = std::fs::read(golden().join("chat/config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let of_encoder = |name: &str| config["vision_config"][name].as_u64().unwrap();
    let (side, patch) = (of_encoder("image_size"), of_encoder("patch_size"));
    let patches = 17 * (side / patch).pow(2);
    assert_eq!(picture["patches"], patches);
    let (hidden, layers) = (of_encoder("hidden_size"), of_encoder("num_hidden_layers"));
    let attention = 17 * layers * 4 * hidden * (side / patch).pow(4);
    assert_eq!(picture["attention_operations"], attention as f64);
    let blocks = layers * (4 * hidden * hidden + 2 * hidden * of_encoder("intermediate_size"));
    let linear = 2 * patches * (blocks + hidden * 3 * patch * patch);
    let projector = picture["linear_operations"].as_f64().unwrap() - linear as f64;
    let scale = config["scale_factor"].as_u64().unwrap();
    let width = config["text_config"]["hidden_size"].as_u64().unwrap();
    assert_eq!(projector, (2 * 153 * hidden * scale * scale * width) as f64);
    assert!(picture["encoder_bytes"].as_u64() > Some(0));
    let text = succeed(&place.triad(&fit));
    assert!(text.contains("a picture of 1080 × 2400 pixels: "), "{text}");
}

#[test]
fn several_encoders_next_to_a_model_are_refused_by_name_once_there_is_a_picture() {
    let place = Place::new();
    let mut model = super::support::gguf::Gguf::tiny();
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
    let template = super::support::gguf::Value::Text(template.into());
    model = model.with("tokenizer.chat_template", template);
    place.write("model.gguf", model.bytes());
    for name in ["mmproj-BF16.gguf", "mmproj-F16.gguf"] {
        place.write(name, "x");
    }
    let ask = [
        "run",
        "--no-quantize",
        "-m",
        "model.gguf",
        "-p",
        "Hi",
        "-n",
        "1",
    ];
    succeed(&place.triad(&ask));
    place.write(
        "screen.png",
        std::fs::read(golden().join("files/28x28.png")).unwrap(),
    );
    let refused = place.triad(&[&ask[..], &["--image", "screen.png"]].concat());
    let message = stderr(&refused);
    assert!(
        message.contains("mmproj-BF16.gguf and ./mmproj-F16.gguf: give one"),
        "{message}"
    );
    let refused = place.triad(&["fit", "model.gguf", "--image", "10x10"]);
    assert!(
        stderr(&refused).contains("--mmproj"),
        "{}",
        stderr(&refused)
    );
}
