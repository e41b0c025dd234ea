//! `/rerank`, and encoders at the other endpoints.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::Server;

const PATHS: [&str; 4] = ["/rerank", "/v1/rerank", "/reranking", "/v1/reranking"];

fn golden(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/encoders");
    PathBuf::from(folder).join(name)
}

fn cases(name: &str) -> Vec<Value> {
    let cases = std::fs::read_to_string(golden(&format!("{name}.json"))).unwrap();
    cases
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn score(result: &Value) -> f64 {
    result["relevance_score"].as_f64().unwrap()
}

#[test]
fn scores_are_those_of_the_model_and_the_best_is_first() {
    for name in [
        "rerank-bert",
        "rerank-xlm-roberta",
        "rerank-xlm-roberta.gguf",
    ] {
        let server = Server::of_model(&golden(name));
        for case in cases(name.trim_end_matches(".gguf")) {
            let body = json!({"query": case["query"], "documents": [case["document"]], "raw_scores": true});
            let reply = server.post("/rerank", &body).good();
            let difference = score(&reply["results"][0]) - case["score"].as_f64().unwrap();
            assert!(difference.abs() <= 1e-5, "{name}: {reply} for {case}");
        }
        let documents = ["a cat", "3 + 4", "the end", "x", "a cat"];
        let body = json!({"query": "cat", "documents": documents});
        let replies = PATHS.map(|path| server.post(path, &body).good());
        assert!(replies.iter().all(|reply| *reply == replies[0]));
        let results = replies[0]["results"].as_array().unwrap();
        assert_eq!(results.len(), documents.len());
        assert!(results.is_sorted_by(|one, other| score(one) >= score(other)));
        let of = |index: usize| {
            let result = results.iter().find(|it| it["index"] == index);
            score(result.unwrap())
        };
        assert_eq!(of(0), of(4), "equal documents have equal scores");
        assert!(results.iter().all(|it| (0.0..=1.0).contains(&score(it))));
        assert!(results.iter().all(|it| it.get("document").is_none()));
        assert!(replies[0]["usage"]["total_tokens"].as_u64().unwrap() > 20);
    }
}

#[test]
fn a_language_model_ranks_by_its_words_and_follows_an_instruction() {
    for name in ["rerank-qwen3", "rerank-qwen3.gguf", "rerank-qwen3-score"] {
        let server = Server::of_model(&golden(name));
        let reads = !name.ends_with(".gguf");
        for case in cases(name.trim_end_matches(".gguf")) {
            let mut body = json!({"query": case["query"], "documents": [case["document"]]});
            body["instruction"] = case["instruction"].clone();
            if !reads && !case["instruction"].is_null() {
                let reply = server.post("/rerank", &body);
                let param = &reply.json()["error"]["param"];
                assert_eq!((reply.status, param), (400, &json!("instruction")));
                continue;
            }
            for (path, is_raw) in PATHS.into_iter().zip([false, true].into_iter().cycle()) {
                body["raw_scores"] = is_raw.into();
                let found = score(&server.post(path, &body).good()["results"][0]);
                let expected = case["score"].as_f64().unwrap();
                let expected = match is_raw {
                    true => expected,
                    false => 1.0 / (1.0 + (-expected).exp()),
                };
                // Keys and values are kept in f16.
                assert!(
                    (found - expected).abs() < 0.01,
                    "{name}: {found} for {case}"
                );
            }
        }
    }
}

#[test]
fn classes_have_the_form_of_text_embeddings_inference() {
    let server = Server::of_model(&golden("classes-bert"));
    let labels = ["contradiction", "entailment", "neutral"];
    let (mut inputs, mut all) = (Vec::new(), Vec::new());
    for case in cases("classes-bert") {
        let input = match &case["second"] {
            Value::Null => json!([case["text"]]),
            second => json!([case["text"], second]),
        };
        for (field, is_raw) in [("probabilities", false), ("outputs", true)] {
            let body = json!({"inputs": input, "raw_scores": is_raw});
            let classes = server.post("/predict", &body).good();
            let classes = classes.as_array().unwrap();
            let score = |class: &Value| class["score"].as_f64().unwrap();
            assert!(classes.is_sorted_by(|one, other| score(one) >= score(other)));
            for (label, expected) in labels.iter().zip(case[field].as_array().unwrap()) {
                let class = classes.iter().find(|it| it["label"] == *label).unwrap();
                let difference = score(class) - expected.as_f64().unwrap();
                assert!(difference.abs() < 1e-5, "{case}: {classes:?}");
            }
            if !is_raw {
                all.push(Value::from(classes.clone()));
            }
        }
        inputs.push(input);
    }
    let several = server.post("/predict", &json!({"inputs": inputs})).good();
    assert_eq!(several, Value::from(all));
    let text = server.post("/predict", &json!({"inputs": "a cat"})).good();
    let same = server
        .post("/predict", &json!({"inputs": ["a cat"]}))
        .good();
    assert_eq!(text, same);
    for (inputs, words) in [
        (json!([]), "0 texts"),
        (json!([[]]), "0 texts"),
        (json!(["a", "b", "c"]), "3 texts"),
        (json!([["a", "b", "c"]]), "3 texts"),
        (json!({"text": "a"}), "inputs"),
        (json!(vec![["a"]; 1025]), "1025"),
        (json!("long ".repeat(300)), "maximum context length is 192"),
    ] {
        let reply = server.post("/predict", &json!({"inputs": inputs}));
        assert!(
            reply.status == 400 && reply.body.contains(words),
            "{reply:?}"
        );
    }
    let reply = server.post("/rerank", &json!({"query": "a", "documents": ["a"]}));
    assert!(
        reply.status == 400 && reply.body.contains("3 classes"),
        "{reply:?}"
    );
    let reply = server.post("/v1/embeddings", &json!({"input": "a"}));
    assert!(
        reply.status == 400 && reply.body.contains("3 classes"),
        "{reply:?}"
    );
    let other = Server::of_model(&golden("bert"));
    let reply = other.post("/predict", &json!({"inputs": "a"}));
    assert!(
        reply.status == 400 && reply.body.contains("classifier"),
        "{reply:?}"
    );
}

#[test]
fn seconds_of_vectors_count_as_those_of_the_processor() {
    let server = Server::of_model(&golden("bert"));
    let busy = || {
        let metrics = server.get("/metrics").body;
        let line = metrics
            .lines()
            .find(|line| line.starts_with("triad_processor_busy_seconds_total"));
        let line = line.expect("a processor");
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let before = busy();
    let texts = vec!["a cat sleeps"; 64];
    server
        .post("/v1/embeddings", &json!({"input": texts}))
        .good();
    assert!(busy() > before);
}

#[test]
fn results_are_cut_and_have_their_documents_on_request() {
    let server = Server::of_model(&golden("rerank-bert"));
    let documents = json!(["a cat", {"text": "3 + 4"}, "the end"]);
    let body =
        json!({"query": "cat", "documents": documents, "top_n": 2, "return_documents": true});
    let reply = server.post("/v1/rerank", &body).good();
    let results = reply["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    for result in results {
        let document = &documents[result["index"].as_u64().unwrap() as usize];
        let text = document.get("text").unwrap_or(document);
        assert_eq!(&result["document"]["text"], text);
    }
    let raw = json!({"query": "cat", "documents": documents, "raw_scores": true});
    let raw = server.post("/rerank", &raw).good();
    for (scaled, raw) in results.iter().zip(raw["results"].as_array().unwrap()) {
        let sigmoid = 1.0 / (1.0 + (-score(raw)).exp());
        assert!((score(scaled) - sigmoid).abs() < 1e-12);
    }
}

#[test]
fn texts_have_the_answer_of_text_embeddings_inference() {
    let server = Server::of_model(&golden("rerank-bert"));
    let texts = json!(["a cat", "3 + 4", "the end"]);
    let reply = |returns: bool| {
        let body = json!({"query": "cat", "texts": texts, "return_text": returns});
        server.post("/rerank", &body).good()
    };
    let documents = server.post("/rerank", &json!({"query": "cat", "documents": texts}));
    let documents = documents.good();
    let expected = documents["results"].as_array().unwrap();
    let (plain, whole) = (reply(false), reply(true));
    assert_eq!(plain.as_array().unwrap().len(), 3);
    for (place, expected) in expected.iter().enumerate() {
        let (index, score) = (&expected["index"], &expected["relevance_score"]);
        assert_eq!(plain[place], json!({"index": index, "score": score}));
        let text = &texts[index.as_u64().unwrap() as usize];
        assert_eq!(
            whole[place],
            json!({"index": index, "score": score, "text": text})
        );
    }
}

#[test]
fn what_cannot_be_ranked_is_refused_by_name() {
    let server = Server::of_model(&golden("rerank-bert"));
    let long = "long ".repeat(300);
    for (body, field) in [
        (json!({"documents": ["a"]}), "query"),
        (json!({"query": "a"}), "documents"),
        (json!({"query": "a", "documents": []}), "documents"),
        (json!({"query": "a", "texts": []}), "texts"),
        (
            json!({"query": "a", "documents": ["a"], "texts": ["a"]}),
            "documents",
        ),
        (json!({"query": "a", "documents": [5]}), "documents"),
        (
            json!({"query": "a", "documents": [{"text": "a", "title": "b"}]}),
            "documents",
        ),
        (
            json!({"query": "a", "documents": vec!["a"; 1025]}),
            "documents",
        ),
        (
            json!({"query": "a", "documents": ["a"], "top_n": 0}),
            "top_n",
        ),
        (
            json!({"query": "a", "documents": ["a", long]}),
            "maximum context length is 192",
        ),
        (
            json!({"query": long, "documents": ["a"]}),
            "maximum context length is 192",
        ),
        (
            json!({"query": "a", "documents": ["a"], "top_n": 1, "top_k": 2}),
            "top_k",
        ),
        (
            json!({"query": "a", "documents": ["a"], "lora": []}),
            "lora",
        ),
    ] {
        let reply = server.post("/rerank", &body);
        let named = reply.json()["error"]["message"].to_string();
        assert!(
            reply.status == 400 && named.contains(field),
            "{body}: {reply:?}"
        );
    }
    for (query, document, field) in [(&*long, "a", "query"), ("a", &long, "documents")] {
        let body = json!({"query": query, "documents": [document]});
        let reply = server.post("/rerank", &body);
        assert_eq!(reply.json()["error"]["param"], field);
    }
    let reply = server.post("/v1/embeddings", &json!({"input": "a"}));
    assert_eq!(
        (reply.status, &reply.json()["error"]["param"]),
        (400, &json!("model"))
    );
    let other = Server::start();
    let reply = other.post("/rerank", &json!({"query": "a", "documents": ["a"]}));
    assert_eq!(
        (reply.status, &reply.json()["error"]["param"]),
        (400, &json!("model"))
    );
    assert!(reply.body.contains("cross-encoder"), "{reply:?}");
}

#[test]
fn an_encoder_has_vectors_and_its_other_endpoints_refuse_it_by_name() {
    let server = Server::of_model(&golden("bert"));
    let texts: Vec<Value> = cases("bert")
        .iter()
        .map(|case| case["text"].clone())
        .collect();
    let reply = server
        .post("/v1/embeddings", &json!({"input": texts}))
        .good();
    for (case, embedding) in cases("bert").iter().zip(reply["data"].as_array().unwrap()) {
        let vector = embedding["embedding"].as_array().unwrap();
        for (value, expected) in vector.iter().zip(case["vector"].as_array().unwrap()) {
            let difference = value.as_f64().unwrap() - expected.as_f64().unwrap();
            assert!(difference.abs() <= 1e-5, "{difference}: {case}");
        }
    }
    let shown = server.post("/api/show", &json!({})).good();
    assert_eq!(shown["capabilities"], json!(["embedding"]));
    assert_eq!(shown["model_info"]["bert.embedding_length"], 32);
    // Its authors allow 128 tokens, to which Ollama's API cuts texts.
    let long = "cat ".repeat(140);
    let reply = server.post("/v1/embeddings", &json!({"input": long}));
    assert!(
        reply.status == 400 && reply.body.contains("128"),
        "{reply:?}"
    );
    server.post("/api/embed", &json!({"input": long})).good();
    let hi = json!([{"role": "user", "content": "Hi"}]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "Hi"})),
        ("/v1/chat/completions", json!({"messages": hi})),
        ("/v1/messages", json!({"messages": hi, "max_tokens": 5})),
        ("/v1/responses", json!({"input": "Hi"})),
        ("/completion", json!({"prompt": "Hi"})),
        ("/api/generate", json!({"prompt": "Hi", "stream": false})),
        ("/api/chat", json!({"messages": hi, "stream": false})),
    ] {
        let reply = server.post(path, &body);
        assert!(
            reply.status == 400 && reply.body.contains("encoder (bert)"),
            "{path}: {reply:?}"
        );
    }
}
