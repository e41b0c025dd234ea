//! `/v1/embeddings`.

use serde_json::{Value, json};

use crate::support::{Server, byte_letter};

const PATH: &str = "/v1/embeddings";

fn vector(value: &Value) -> Vec<f32> {
    value["embedding"]
        .as_array()
        .unwrap()
        .iter()
        .map(|number| number.as_f64().unwrap() as f32)
        .collect()
}

#[test]
fn a_vector_is_the_scaled_mean_of_the_states_that_the_output_matrix_reads() {
    let server = Server::start();
    let tokens = [3_u32, 14, 15, 92];
    let reply = server.post(PATH, &json!({"input": tokens})).good();
    let mut sums = vec![0.0_f64; 32];
    for count in 1..=tokens.len() {
        // Compute the mean from the vectors of the last token of each prefix.
        let last = server
            .post(PATH, &json!({"input": tokens[..count], "pooling": "last"}))
            .good();
        let last = vector(&last["data"][0]);
        let length = last.iter().map(|value| value * value).sum::<f32>().sqrt();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
        // The norm has weights of 1, so all hidden states have the same length.
        sums.iter_mut()
            .zip(last)
            .for_each(|(sum, value)| *sum += f64::from(value));
    }
    let length = sums.iter().map(|sum| sum * sum).sum::<f64>().sqrt();
    for (mean, sum) in vector(&reply["data"][0]).into_iter().zip(sums) {
        assert!(
            (f64::from(mean) - sum / length).abs() < 1e-3,
            "{mean} {sum}"
        );
    }
    assert_eq!(
        reply["usage"],
        json!({"prompt_tokens": 4, "total_tokens": 4})
    );
}

#[test]
fn several_texts_have_the_vectors_that_each_has_alone_and_base64_has_the_same_numbers() {
    let server = Server::start();
    let several = server
        .post(PATH, &json!({"input": ["ab", "b", "long ".repeat(40)]}))
        .good();
    for (index, text) in ["ab".to_owned(), "b".to_owned(), "long ".repeat(40)]
        .iter()
        .enumerate()
    {
        let alone = server.post(PATH, &json!({"input": text})).good();
        assert_eq!(vector(&several["data"][index]), vector(&alone["data"][0]));
        assert_eq!(several["data"][index]["index"], index);
        let packed = server
            .post(PATH, &json!({"input": text, "encoding_format": "base64"}))
            .good();
        let packed = packed["data"][0]["embedding"].as_str().unwrap().to_owned();
        assert_eq!(decoded(&packed), vector(&alone["data"][0]));
    }
}

/// Decodes the numbers from base64 without a line end.
fn decoded(text: &str) -> Vec<f32> {
    let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let sextets = text
        .bytes()
        .filter(|byte| *byte != b'=')
        .map(|byte| letters.find(char::from(byte)).unwrap() as u32);
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for sextet in sextets {
        (bits, count) = (bits << 6 | sextet, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    bytes
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect()
}

#[test]
fn what_has_no_vector_is_refused_with_its_field() {
    let server = Server::start();
    let long = byte_letter(b'a').repeat(2000);
    for (body, field) in [
        (json!({"input": ""}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [99_999]}), "input"),
        (json!({"input": long}), "input"),
        (json!({"input": "a", "dimensions": 33}), "dimensions"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "prompt_name": "query"}), "prompt_name"),
        (json!({"input": "a", "embd_normalize": 1}), "embd_normalize"),
        (
            json!({"input": "a", "normalize": true, "embd_normalize": -1}),
            "embd_normalize",
        ),
        (
            json!({"input": "a", "encoding_format": "int8"}),
            "encoding_format",
        ),
        (json!({"input": "a", "pooling": "max"}), "pooling"),
        (json!({"input": {"a": 1}}), "input"),
    ] {
        let reply = server.post(PATH, &body);
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &field.into()),
            "{body}: {reply:?}"
        );
    }
}

#[test]
fn pooling_prompts_and_end_tokens_are_those_of_the_models_files() {
    let golden = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/embeddings/qwen3"
    );
    let server = Server::of_model(std::path::Path::new(golden));
    let cases = std::fs::read_to_string(format!("{golden}.json")).unwrap();
    let near = |one: &[f32], case: &Value| {
        let expected = case["vector"].as_array().unwrap();
        assert_eq!(one.len(), expected.len());
        let differences = one.iter().zip(expected);
        differences.for_each(|(value, expected)| {
            // The keys and values of this server are in f16; a test of `triad-frontend` has them in f32.
            let difference = (f64::from(*value) - expected.as_f64().unwrap()).abs();
            assert!(difference <= 5e-3, "{difference}: {case}");
        });
    };
    let mut seen = 0;
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let body = json!({
            "input": case["text"], "prompt_name": case["prompt"], "dimensions": case["dimensions"],
        });
        let reply = server.post(PATH, &body).good();
        near(&vector(&reply["data"][0]), &case);
        if case["prompt"].is_null() {
            // Ollama's API has the same vectors, and tokens with the end token have them, too.
            let body = json!({"input": case["text"], "dimensions": case["dimensions"]});
            let reply = server.post("/api/embed", &body).good();
            near(
                &vector(&json!({"embedding": reply["embeddings"][0]})),
                &case,
            );
            let body = json!({"prompt": case["text"]});
            let tokens = server.post("/tokenize", &body).good()["tokens"].clone();
            let body = json!({"input": tokens, "dimensions": case["dimensions"]});
            near(&vector(&server.post(PATH, &body).good()["data"][0]), &case);
            seen += 1;
        }
    }
    assert!(seen >= 10, "{seen}");
    let other = json!({"input": "a", "prompt_name": "passage"});
    let error = server.post(PATH, &other).error(400);
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("document, query"),
        "{error}"
    );
    let tokens = json!({"input": [1, 2], "prompt_name": "query"});
    assert_eq!(
        server.post(PATH, &tokens).error(400)["param"],
        "prompt_name"
    );
}
