//! Memory that the server gives back: of idle models, and when memory is short.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use triad_frontend::pressure::PressureFiles;

use crate::support::Server;

fn waits_until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Asks for the continuations of prompts of a page each, which the server keeps, and returns the answers.
fn traffic(server: &Server) -> Vec<Value> {
    let ask = |index: usize| {
        let prompt = format!("{index}{}", "x".repeat(300));
        let body = json!({"prompt": prompt, "max_tokens": 4, "temperature": 0});
        server.post("/v1/completions", &body).good()["choices"][0]["text"].clone()
    };
    (0..6).map(ask).collect()
}

fn kept_bytes(server: &Server) -> usize {
    server.engine.usage().kv.bytes
}

/// Returns a counter of the metrics, by its name with labels.
fn counter(server: &Server, name: &str) -> usize {
    let metrics = server.get("/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0, |value| value.trim().parse().unwrap())
}

fn models_in_memory(server: &Server) -> usize {
    server.get("/api/ps").good()["models"]
        .as_array()
        .unwrap()
        .len()
}

#[test]
fn an_idle_server_gives_kept_prompts_back_except_for_a_floor_and_answers_the_same() {
    let server = Server::with(|options| options.idle_time = None);
    let expected = traffic(&server);
    let (kept, page) = (kept_bytes(&server), server.engine.usage().kv.page_bytes);
    assert!(kept >= 6 * page);
    drop(server);

    let server = Server::with(|options| {
        options.idle_time = Some(Duration::from_millis(500));
        options.idle_bytes = 2 * page;
    });
    for round in 1..3 {
        assert_eq!(traffic(&server), expected, "round {round}");
        waits_until("the kept prompts are given back", || {
            kept_bytes(&server) <= 2 * page
        });
        assert!(kept_bytes(&server) > 0, "the floor stays");
        let name = "triad_released_bytes_total{model=\"tiny\",reason=\"idle\"}";
        assert!(
            counter(&server, name) >= round * (kept - 2 * page),
            "round {round}"
        );
    }
    assert_eq!(models_in_memory(&server), 1);
}

#[test]
fn without_an_idle_time_and_without_pressure_prompts_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with(|options| {
        options.idle_time = None;
        options.pressure_files = PressureFiles::below(folder.path());
    });
    traffic(&server);
    let kept = kept_bytes(&server);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(kept_bytes(&server), kept);
}

#[test]
fn when_memory_is_short_kept_prompts_go_first_then_idle_models_and_requests_are_answered_all_the_same()
 {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proc/pressure/memory");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let write = |percent: &str| {
        let text = format!("some avg10={percent} avg60=0.00 avg300=0.00 total=1\n");
        fs::write(&file, text).unwrap();
    };
    write("0.00");
    let server = Server::with(|options| {
        options.idle_time = None;
        options.pressure_files = PressureFiles::below(folder.path());
    });
    let expected = traffic(&server);
    assert!(kept_bytes(&server) > 0);
    write("35.00");
    waits_until("kept prompts are given back", || kept_bytes(&server) == 0);
    let released = "triad_released_bytes_total{model=\"tiny\",reason=\"pressure\"}";
    assert_eq!(
        models_in_memory(&server),
        1,
        "the caches are enough at first"
    );
    // They are counted after they are given back.
    waits_until("what was given back is counted", || {
        counter(&server, released) > 0
    });
    // Nothing became better.
    waits_until("the idle model leaves", || models_in_memory(&server) == 0);
    let unloaded = "triad_unloaded_total{model=\"tiny\",reason=\"pressure\"}";
    assert_eq!(counter(&server, unloaded), 1);
    write("0.00");
    assert_eq!(traffic(&server), expected);
    assert_eq!(models_in_memory(&server), 1);
}

#[test]
fn an_idle_model_leaves_the_memory_after_the_servers_own_keep_alive() {
    let server = Server::with(|options| options.keep_alive = Some(Duration::from_millis(300)));
    waits_until("the model leaves without any request", || {
        models_in_memory(&server) == 0
    });
    let first = traffic(&server);
    waits_until("the model leaves after requests", || {
        models_in_memory(&server) == 0
    });
    let unloaded = "triad_unloaded_total{model=\"tiny\",reason=\"keep_alive\"}";
    assert!(counter(&server, unloaded) >= 2);
    // A request may keep it.
    let body = json!({"model": "tiny", "prompt": "a", "stream": false, "keep_alive": -1, "options": {"num_predict": 1}});
    server.post("/api/generate", &body).good();
    std::thread::sleep(Duration::from_millis(900));
    assert_eq!(models_in_memory(&server), 1);
    assert_eq!(traffic(&server), first);
}
