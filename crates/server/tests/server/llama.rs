//! llama.cpp's own endpoints, and filling in the middle.

use serde_json::{Value, json};

use crate::scripted::{Script, TEMPLATE};
use crate::support::{CONTEXT, NAME, Reply, Server, add};

const PATH: &str = "/completion";

/// Returns the events of a stream.
fn parts(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(
        reply.headers.contains("text/event-stream"),
        "{}",
        reply.headers
    );
    let data = reply
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

fn ask(server: &Server, more: Value) -> Reply {
    let mut body = json!({"prompt": "Hi", "n_predict": 12});
    add(&mut body, more);
    server.post(PATH, &body)
}

#[test]
fn a_completion_is_that_of_the_other_apis_whole_and_streamed() {
    let server = Server::start();
    let other = server
        .post(
            "/v1/completions",
            &json!({"prompt": "Hi", "max_tokens": 12}),
        )
        .good();
    let whole = ask(&server, json!({})).good();
    assert_eq!(whole["content"], other["choices"][0]["text"]);
    assert_eq!(
        (&whole["stop"], &whole["stop_type"]),
        (&json!(true), &json!("limit"))
    );
    assert_eq!(
        (&whole["tokens_predicted"], &whole["tokens_evaluated"]),
        (&json!(12), &json!(2))
    );
    assert_eq!(
        (&whole["model"], &whole["prompt"]),
        (&json!(NAME), &json!("Hi"))
    );
    assert_eq!(whole["generation_settings"]["n_ctx"], CONTEXT);
    let parts = parts(&ask(&server, json!({"stream": true})));
    let (last, rest) = parts.split_last().unwrap();
    let text: String = parts
        .iter()
        .map(|part| part["content"].as_str().unwrap())
        .collect();
    assert_eq!(text, whole["content"].as_str().unwrap());
    assert!(rest.iter().all(|part| part["stop"] == false));
    assert_eq!(
        (&last["stop"], &last["tokens_predicted"]),
        (&json!(true), &json!(12))
    );
    assert!(last["timings"]["prompt_n"].is_number());
}

#[test]
fn a_prompt_may_be_texts_and_tokens_joined_but_not_several() {
    let server = Server::start();
    let content = |prompt: Value| ask(&server, json!({"prompt": prompt})).good()["content"].clone();
    let hi = content(json!("Hi"));
    assert_eq!(content(json!([72, 105])), hi);
    assert_eq!(content(json!(["H", 105])), hi);
    assert_eq!(content(json!(["Hi"])), hi);
    for wrong in [
        json!([]),
        json!(["a", "b"]),
        json!([259]),
        json!({"a": 1}),
        json!(""),
    ] {
        let error = ask(&server, json!({"prompt": wrong})).error(400);
        assert!(
            error["message"].as_str().unwrap().contains("prompt"),
            "{error}"
        );
    }
}

#[test]
fn a_stop_string_is_told_and_fields_are_chosen_by_paths() {
    let server = Server::start();
    let text = ask(&server, json!({})).good()["content"]
        .as_str()
        .unwrap()
        .to_owned();
    let stop: String = text.chars().skip(3).take(1).collect();
    let stopped = ask(&server, json!({"stop": [stop]})).good();
    assert_eq!(
        (&stopped["stop_type"], &stopped["stopping_word"]),
        (&json!("word"), &json!(stop))
    );
    let chosen = json!({"response_fields": ["content", "timings/prompt_n", "none/x"]});
    let chosen = ask(&server, chosen).good();
    let names: Vec<_> = chosen.as_object().unwrap().keys().collect();
    assert_eq!(names, ["content", "timings/prompt_n"]);
}

#[test]
fn more_than_64_paths_of_fields_are_refused() {
    let server = Server::start();
    let of = |count: usize| {
        let paths: Vec<_> = (0..count).map(|index| format!("a/{index}")).collect();
        ask(&server, json!({"response_fields": paths}))
    };
    assert_eq!(of(64).good(), json!({}));
    assert_eq!(of(65).error(400)["param"], "response_fields");
}

#[test]
fn parts_of_other_files_without_room_are_left_out_and_the_answer_says_so() {
    let server = Server::for_infill();
    let ask = |extra: Value| {
        let body =
            json!({"input_prefix": "a", "input_suffix": "b", "n_predict": 4, "input_extra": extra});
        server.post("/infill", &body)
    };
    let part = |name: &str, letters| json!({"filename": name, "text": "x".repeat(letters), "time": [1, 2]});
    let left_out = |reply: &Reply| {
        reply
            .headers
            .contains("x-triad-fields-left-out: input_extra")
    };
    let last = ask(json!([part("b", 8)]));
    let both = ask(json!([part("a", 4), part("b", 8)]));
    assert!(!left_out(&last) && !left_out(&both));
    assert_ne!(both.good()["prompt"], last.good()["prompt"]);
    // The middle keeps its room.
    for letters in [CONTEXT, CONTEXT - 20] {
        let too_many = ask(json!([part("a", letters), part("b", 8)]));
        assert!(left_out(&too_many), "{letters}");
        assert_eq!(too_many.good()["prompt"], last.good()["prompt"]);
    }
}

#[test]
fn a_seed_of_minus_1_is_another_one_for_each_request() {
    let server = Server::for_infill();
    for (path, prompt) in [(PATH, "prompt"), ("/infill", "input_prefix")] {
        let seed = |seed: i64| {
            let body = json!({prompt: "Hi", "n_predict": 2, "seed": seed});
            server.post(path, &body).good()["generation_settings"]["seed"].clone()
        };
        assert_eq!(seed(7), 7);
        assert_ne!(seed(-1), seed(-1));
    }
}

#[test]
fn probabilities_are_refused_with_the_endpoint_that_has_them() {
    let server = Server::start();
    let error = ask(&server, json!({"n_probs": 3})).error(400);
    assert_eq!(error["param"], "n_probs");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("/v1/completions") && !message.contains("expected logprobs"),
        "{message}"
    );
}

#[test]
fn steps_of_sampling_that_are_not_named_are_off() {
    let server = Server::start();
    let steps = json!({"samplers": ["top_k", "infill"], "top_k": 3, "temperature": 0, "repeat_penalty": 2, "seed": 1});
    let named = ask(&server, steps).good();
    let plain = ask(&server, json!({"top_k": 3, "temperature": 1, "seed": 1})).good();
    assert_eq!(named["content"], plain["content"]);
    let settings = &named["generation_settings"];
    assert_eq!(
        (&settings["top_k"], &settings["repeat_penalty"]),
        (&json!(3), &json!(1.0))
    );
    let error = ask(&server, json!({"samplers": ["min_p", "top_k"]})).error(400);
    assert_eq!(error["param"], "samplers");
}

/// Returns a script with tokens for filling in the middle: 259 to 261, and 262, which ends a middle.
fn filler(middle: &[&str]) -> Script {
    let marks = [
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        "<|fim_pad|>",
    ];
    let said: Vec<_> = middle.iter().copied().chain(["<|fim_pad|>"]).collect();
    Script::new(&marks).says("<|fim_middle|>", &said)
}

#[test]
fn the_middle_is_asked_for_with_the_models_own_tokens_and_ends_with_them() {
    let server = filler(&["mid", "dle"]).serve(TEMPLATE);
    let body = json!({"input_prefix": "a", "prompt": "b", "input_suffix": "cd", "n_predict": 20});
    let filled = server.post("/infill", &body).good();
    assert_eq!(filled["content"], "middle");
    assert_eq!(
        (&filled["stop_type"], &filled["tokens_evaluated"]),
        (&json!("eos"), &json!(7))
    );
    assert_eq!(filled["stopping_word"], "");
    // A prompt of the same tokens is found in the cache, except for its last token.
    let same = json!({"prompt": [259, 97, 98, 260, 99, 100, 261], "max_tokens": 1});
    let usage = server.post("/v1/completions", &same).good()["usage"].clone();
    assert_eq!(
        usage["prompt_tokens_details"]["cached_tokens"], 6,
        "{usage}"
    );
    let suffix = json!({"prompt": "ab", "suffix": "cd", "max_tokens": 20});
    let choice = server.post("/v1/completions", &suffix).good()["choices"][0].clone();
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!("middle"), &json!("stop"))
    );
    let generate = json!({"prompt": "ab", "suffix": "cd", "stream": false});
    assert_eq!(
        server.post("/api/generate", &generate).good()["response"],
        "middle"
    );
    let shown = server.post("/api/show", &json!({})).good();
    assert!(
        shown["capabilities"]
            .as_array()
            .unwrap()
            .contains(&json!("insert"))
    );
}

#[test]
fn parts_of_other_files_come_before_the_prefix() {
    let server = filler(&["x"]).serve(TEMPLATE);
    let extra = json!([{"filename": "f", "text": "t"}]);
    let body =
        json!({"input_prefix": "a", "input_suffix": "b", "input_extra": extra, "n_predict": 4});
    server.post("/infill", &body).good();
    let prompt: Vec<u32> = "--- f ---\nt\n"
        .bytes()
        .map(u32::from)
        .chain([259, 97, 260, 98, 261])
        .collect();
    let same = json!({"prompt": prompt, "max_tokens": 1});
    let usage = server.post("/v1/completions", &same).good()["usage"].clone();
    assert_eq!(
        usage["prompt_tokens_details"]["cached_tokens"],
        prompt.len() - 1
    );
}

#[test]
fn parts_of_other_files_are_a_repository_if_the_vocabulary_has_its_tokens() {
    let marks = [
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        "<|repo_name|>",
        "<|file_sep|>",
    ];
    let script = Script::new(&marks).says("<|fim_middle|>", &["x", "<|file_sep|>"]);
    let server = script.serve(TEMPLATE);
    let extra = json!([{"filename": "f", "text": "t"}, {"text": "u"}]);
    let body =
        json!({"input_prefix": "a", "input_suffix": "b", "input_extra": extra, "n_predict": 9});
    let filled = server.post("/infill", &body).good();
    assert_eq!(
        (&filled["content"], &filled["stop_type"]),
        (&json!("x"), &json!("eos"))
    );
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let prompt = [
        vec![262],
        bytes("myproject\n"),
        vec![263],
        bytes("f\nt"),
        vec![263],
        bytes("tmp\nu"),
        vec![263],
        bytes("filename\n"),
        vec![259, 97, 260, 98, 261],
    ]
    .concat();
    assert_eq!(filled["tokens_evaluated"], prompt.len());
    let same = json!({"prompt": prompt, "max_tokens": 1});
    let usage = server.post("/v1/completions", &same).good()["usage"].clone();
    assert_eq!(
        usage["prompt_tokens_details"]["cached_tokens"],
        prompt.len() - 1
    );
    // A gap alone has no names.
    let alone = json!({"input_prefix": "a", "input_suffix": "b", "n_predict": 9});
    assert_eq!(server.post("/infill", &alone).good()["tokens_evaluated"], 5);
}

#[test]
fn a_middle_has_no_penalty_for_repetition_unless_the_request_has_one() {
    // The authors of this model recommend nothing, so that its other completions have a penalty.
    let server = Server::for_infill_with(&[]);
    let penalty = |path: &str, more: Value| {
        let mut body = json!({"n_predict": 1});
        add(&mut body, more);
        let reply = server.post(path, &body).good();
        reply["generation_settings"]["repeat_penalty"]
            .as_f64()
            .unwrap()
    };
    let usual = penalty(PATH, json!({"prompt": "a"}));
    assert!((usual - 1.05).abs() < 1e-6, "{usual}");
    assert_eq!(penalty("/infill", json!({"input_prefix": "a"})), 1.0);
    for name in ["repeat_penalty", "repetition_penalty"] {
        let body = json!({"input_prefix": "a", name: 1.5});
        assert_eq!(penalty("/infill", body), 1.5, "{name}");
    }
    let completion = |more: Value| {
        let mut body = json!({"prompt": "ab", "suffix": "cd", "max_tokens": 64, "seed": 1});
        add(&mut body, more);
        server.post("/v1/completions", &body).good()["choices"][0]["text"].clone()
    };
    let plain = completion(json!({}));
    assert_eq!(plain, completion(json!({"repetition_penalty": 1})));
    assert_ne!(plain, completion(json!({"repetition_penalty": 3})));
    let generated = |more: Value| {
        let mut options = json!({"num_predict": 64, "seed": 1});
        add(&mut options, more);
        let body = json!({"prompt": "ab", "suffix": "cd", "stream": false, "options": options});
        server.post("/api/generate", &body).good()["response"].clone()
    };
    let plain = generated(json!({}));
    assert_eq!(plain, generated(json!({"repeat_penalty": 1})));
    assert_ne!(plain, generated(json!({"repeat_penalty": 3})));
}

#[test]
fn fields_of_tokens_that_a_suffix_does_not_follow_are_refused_by_name() {
    let server = filler(&["x"]).serve(TEMPLATE);
    for (field, followed) in [("parse_special", false), ("add_special_tokens", true)] {
        let ask = |value: bool| {
            let body = json!({"prompt": "ab", "suffix": "cd", "max_tokens": 4, field: value});
            server.post("/v1/completions", &body)
        };
        assert_eq!(ask(followed).good()["choices"][0]["text"], "x");
        assert_eq!(ask(!followed).error(400)["param"], field);
    }
}

#[test]
fn a_model_without_such_tokens_refuses_by_name() {
    let server = Server::start();
    let infill = server
        .post(
            "/infill",
            &json!({"input_prefix": "a", "input_suffix": "b"}),
        )
        .error(400);
    assert_eq!(infill["param"], "input_prefix");
    let suffix = server
        .post("/v1/completions", &json!({"prompt": "a", "suffix": "b"}))
        .error(400);
    assert_eq!(suffix["param"], "suffix");
    let generate = server.post("/api/generate", &json!({"prompt": "a", "suffix": "b"}));
    assert!(
        generate.status == 400 && generate.body.contains("suffix: "),
        "{generate:?}"
    );
    let several = json!({"prompt": ["a", "c"], "suffix": "b"});
    assert_eq!(
        server.post("/v1/completions", &several).error(400)["param"],
        "suffix"
    );
}

#[test]
fn a_middle_ends_before_a_line_with_less_indentation() {
    let server = filler(&["a", "\n    b", "\n  ", "c", "\n    d"]).serve(TEMPLATE);
    let body = |stream: bool| json!({"input_prefix": "x", "n_indent": 4, "n_predict": 30, "stream": stream});
    let whole = server.post("/infill", &body(false)).good();
    assert_eq!(whole["content"], "a\n    b");
    assert_eq!(
        (&whole["stop_type"], &whole["has_new_line"]),
        (&json!("limit"), &json!(true))
    );
    let parts = parts(&server.post("/infill", &body(true)));
    let text: String = parts
        .iter()
        .map(|part| part["content"].as_str().unwrap())
        .collect();
    assert_eq!(text, "a\n    b");
    assert_eq!(parts.iter().filter(|part| part["stop"] == true).count(), 1);
}

#[test]
fn a_stream_that_a_limit_cuts_ends_and_nothing_answers_any_more() {
    // Nothing else ends these completions before the end of the context.
    let marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
    let said = ["a", "\n    b", "\nc", "d", "e", "d"];
    let endless = Script::new(&marks).says("<|fim_middle|>", &said);
    let server = endless.serve(TEMPLATE);
    let body = json!({"input_prefix": "x", "n_indent": 4, "stream": true});
    let indented = parts(&server.post("/infill", &body));
    let text: String = indented
        .iter()
        .map(|part| part["content"].as_str().unwrap())
        .collect();
    assert_eq!(text, "a\n    b");
    assert_eq!(indented.last().unwrap()["tokens_predicted"], 3);
    server.wait_until_idle();
    // All tokens are line ends.
    let server = Server::start();
    let body =
        json!({"prompt": "Hi", "logit_bias": {"10": 100}, "t_max_predict_ms": 1, "stream": true});
    let timed = parts(&server.post(PATH, &body));
    server.wait_until_idle();
    for parts in [indented, timed] {
        let (last, rest) = parts.split_last().unwrap();
        assert!(rest.iter().all(|part| part["stop"] == false));
        assert_eq!(
            (&last["stop"], &last["stop_type"]),
            (&json!(true), &json!("limit"))
        );
    }
}

#[test]
fn slots_and_properties_have_the_names_that_clients_read() {
    let server = Server::with(|options| options.parallel = 3);
    let slots = server.get("/slots").good();
    let slots = slots.as_array().unwrap();
    assert_eq!(slots.len(), 3);
    assert_eq!(
        (&slots[2]["id"], &slots[2]["n_ctx"]),
        (&json!(2), &json!(CONTEXT))
    );
    assert!(slots.iter().all(|slot| slot["is_processing"] == false));
    let props = server.get("/props").good();
    assert_eq!(props["total_slots"], 3);
    assert_eq!(props["default_generation_settings"]["n_ctx"], CONTEXT);
    assert!(
        props["chat_template"]
            .as_str()
            .unwrap()
            .contains("message.role")
    );
    assert_eq!(props["eos_token"], "<|end|>");
    assert_eq!(props["modalities"]["vision"], false);
}

#[test]
fn tokens_have_their_texts_or_bytes() {
    let server = Server::start();
    let tokens = server
        .post(
            "/tokenize",
            &json!({"content": "ab\u{e9}<|turn|>", "with_pieces": true}),
        )
        .good();
    assert_eq!(
        tokens["tokens"],
        json!([
            {"id": 256, "piece": "ab"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]},
            {"id": 257, "piece": "<|turn|>"}
        ])
    );
}

#[test]
fn a_text_in_content_gets_special_tokens_only_if_they_are_asked_for() {
    // The model appends an end token, 256, to texts.
    let golden = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/embeddings/qwen3"
    );
    let server = Server::of_model(std::path::Path::new(golden));
    let ends = |body: Value| {
        let tokens = server.post("/tokenize", &body).good()["tokens"].clone();
        tokens.as_array().unwrap().last() == Some(&json!(256))
    };
    assert!(!ends(json!({"content": "a"})));
    assert!(ends(json!({"content": "a", "add_special": true})));
    assert!(ends(json!({"content": "a", "add_special_tokens": true})));
    assert!(ends(json!({"prompt": "a"})));
    assert!(!ends(json!({"prompt": "a", "add_special_tokens": false})));
}
