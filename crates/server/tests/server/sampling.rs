//! The defaults of sampling.

use serde_json::{Value, json};
use triad_model::gguf;

use crate::support::{Server, add};

fn answer(server: &Server, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 24});
    add(&mut body, more);
    server.post("/v1/chat/completions", &body).good()["choices"][0]["message"]["content"].clone()
}

#[test]
fn a_model_without_recommendations_samples_and_the_seed_decides_what() {
    let server = Server::with_fields(&[]);
    let sampling = server.get("/props").good()["models"][0]["sampling"].clone();
    let near = |name: &str, value: f64| (sampling[name].as_f64().unwrap() - value).abs() < 1e-6;
    assert!(
        near("temperature", 0.7) && near("top_p", 0.95) && near("repetition_penalty", 1.05),
        "{sampling}"
    );
    let of_seed = |seed: u32| answer(&server, json!({"seed": seed}));
    assert_eq!(of_seed(1), of_seed(1));
    assert_ne!(of_seed(1), of_seed(2));
    let stated = json!({"seed": 1, "temperature": 0.7, "top_p": 0.95, "repetition_penalty": 1.05});
    assert_eq!(of_seed(1), answer(&server, stated));
    let greedy = |seed: u32| answer(&server, json!({"seed": seed, "temperature": 0}));
    assert_eq!(greedy(1), greedy(2));
    let without_guard = json!({"temperature": 0, "repetition_penalty": 1, "top_p": 1});
    assert_eq!(greedy(1), answer(&server, without_guard));
}

#[test]
fn what_the_authors_recommend_is_the_default() {
    let server = Server::with_fields(&[("general.sampling.top_k", gguf::Value::Integer(5))]);
    let sampling = server.get("/props").good()["models"][0]["sampling"].clone();
    assert_eq!(
        (
            &sampling["top_k"],
            &sampling["top_p"],
            &sampling["repetition_penalty"]
        ),
        (&json!(5), &json!(1.0), &json!(1.0))
    );
}
