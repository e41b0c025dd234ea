//! Models by name: `triad list`, `remove`, `ps`, and short forms of `run`.

use crate::outcome::{json, succeed};
#[cfg(feature = "server")]
use crate::pulls::Serving;
use crate::support::gguf::Gguf;
use crate::support::{Place, stderr};
use crate::{RUN, place};

/// Returns a place with two models in its cache.
fn cached() -> Place {
    let place = Place::new();
    for name in ["a", "b"] {
        let folder = place.path("cache/hf/owner/name");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{name}.gguf")), Gguf::tiny().bytes()).unwrap();
    }
    place
}

#[test]
fn models_in_the_cache_are_listed_run_and_removed_by_one_name() {
    let place = cached();
    let listed = succeed(&place.triad(&["list"]));
    assert!(
        listed.contains("hf:owner/name:a.gguf") && listed.contains("KiB"),
        "{listed}"
    );
    let names = || {
        let listed = json(&place.triad(&["list", "--json"]));
        let names = listed.as_array().unwrap().iter();
        names
            .map(|model| model["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(), ["hf:owner/name:a.gguf", "hf:owner/name:b.gguf"]);
    succeed(&place.triad(&["run", "hf:owner/name:a.gguf", "-p", "Hi", "-n", "2"]));
    let removed = place.triad(&["remove", "hf:owner/name:a.gguf"]);
    succeed(&removed);
    assert!(
        stderr(&removed).contains("removed hf:owner/name:a.gguf"),
        "{}",
        stderr(&removed)
    );
    assert_eq!(names(), ["hf:owner/name:b.gguf"]);
    let wrong = place.triad(&["rm", "hf:owner/name:c.gguf"]);
    let printed = stderr(&wrong);
    assert!(
        !wrong.status.success() && printed.contains("did you mean `hf:owner/name:b.gguf`"),
        "{printed}"
    );
    succeed(&place.triad(&["remove", "hf:owner/name"]));
    assert!(names().is_empty());
}

#[test]
fn a_removed_model_leaves_no_unfinished_package_and_no_log() {
    let place = cached();
    let run = ["run", "hf:owner/name:a.gguf", "-p", "Hi", "-n", "2"];
    let ran = place
        .command(&run)
        .env("TRIAD_PREPARE", "first")
        .output()
        .unwrap();
    succeed(&ran);
    let packages = place.path("cache/packages");
    let names = || -> Vec<_> {
        let entries = std::fs::read_dir(&packages).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    };
    let [package] = &names()[..] else {
        panic!("{:?}", names());
    };
    // A preparation of a copy with another name was killed, and another one failed.
    let (_, key) = package.rsplit_once('-').unwrap();
    let unfinished = packages.join(format!("copy-{key}.part"));
    std::fs::create_dir(&unfinished).unwrap();
    std::fs::write(unfinished.join("weights.safetensors"), [0; 9]).unwrap();
    std::fs::write(packages.join(format!("{package}.log")), "it failed").unwrap();
    std::fs::create_dir(packages.join("other-0123456789abcdef.part")).unwrap();
    // Both models of this place have the same content.
    let before = names();
    succeed(&place.triad(&["remove", "hf:owner/name:a.gguf"]));
    assert_eq!(names(), before, "the other model runs from the package");
    succeed(&place.triad(&["remove", "hf:owner/name:b.gguf"]));
    assert_eq!(names(), ["other-0123456789abcdef.part"]);
}

#[test]
fn the_short_forms_of_run_mean_the_long_ones() {
    let place = place();
    let long = [
        &RUN[..],
        &["-p", "Hello", "--context", "40", "--threads", "2"],
    ]
    .concat();
    let short = [
        "run",
        "model.gguf",
        "--no-quantize",
        "-n",
        "12",
        "--temp",
        "0.8",
        "-p",
        "Hello",
        "-c",
        "40",
        "-t",
        "2",
    ];
    assert_eq!(succeed(&place.triad(&short)), succeed(&place.triad(&long)));
    let both = place.triad(&["run", "model.gguf", "-m", "model.gguf", "-p", "Hi"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn a_model_whose_name_is_nearly_there_is_suggested() {
    let place = place();
    for (given, meant) in [("modle.gguf", "model.gguf"), ("smollm2", "smollm2-135m")] {
        let output = place.triad(&["run", given, "-p", "Hi"]);
        let printed = stderr(&output);
        assert!(
            printed.contains(&format!("did you mean `{meant}`?")),
            "{printed}"
        );
    }
}

#[test]
fn without_recommendations_answers_are_sampled_and_a_seed_repeats_them() {
    let place = place();
    let of = |more: &[&str]| {
        let arguments = [
            "run",
            "--no-quantize",
            "-m",
            "model.gguf",
            "-n",
            "24",
            "-p",
            "Hello",
        ];
        succeed(&place.triad(&[&arguments[..], more].concat()))
    };
    assert_eq!(of(&[]), of(&["--seed", "0"]));
    assert_ne!(of(&["--seed", "1"]), of(&["--seed", "2"]));
    assert_eq!(
        of(&[]),
        of(&[
            "--temp",
            "0.7",
            "--top-p",
            "0.95",
            "--repetition-penalty",
            "1.05"
        ])
    );
    let greedy = of(&["--temperature", "0"]);
    assert_eq!(
        greedy,
        of(&[
            "--temperature",
            "0",
            "--seed",
            "9",
            "--top-p",
            "1",
            "--repetition-penalty",
            "1"
        ])
    );
}

#[test]
#[cfg(feature = "server")]
fn ps_shows_what_a_server_has_in_memory() {
    use std::io::{BufRead, BufReader};

    let place = place();
    let nothing = place.triad(&["ps", "--server", "127.0.0.1:1"]);
    assert!(
        stderr(&nothing).contains("there is no server at 127.0.0.1:1"),
        "{}",
        stderr(&nothing)
    );
    let mut server = place
        .command(&[
            "serve",
            "--no-quantize",
            "-m",
            "model.gguf",
            "--port",
            "0",
            "--context",
            "64",
        ])
        .env("TRIAD_API_KEY", "key")
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let address = lines.find_map(|line| {
        let line = line.unwrap();
        let (_, rest) = line.split_once("http://")?;
        Some(rest.split(';').next().unwrap().to_owned())
    });
    let address = address.unwrap();
    let ask = |key: &str| {
        let mut command = place.command(&["ps", "--server", &address]);
        command.env("TRIAD_API_KEY", key).output().unwrap()
    };
    let listed = succeed(&ask("key"));
    let refused = ask("other");
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(
        listed.contains("model.gguf") && listed.contains("64"),
        "{listed}"
    );
    assert!(
        stderr(&refused).contains("the key is wrong"),
        "{}",
        stderr(&refused)
    );
}

#[cfg(feature = "server")]
#[test]
fn clients_delete_models_of_the_cache_where_allowed_but_not_what_the_server_was_started_with() {
    let place = cached();
    place.write("cache/hf/owner/free/c.gguf", Gguf::tiny().bytes());
    let given = "hf:owner/name:a.gguf";
    let serve = [
        "--allow-pull",
        "--no-quantize",
        "--context",
        "64",
        "-m",
        given,
    ];
    let server = Serving::start(&place, &serve, "127.0.0.1:9");
    let delete = |name: &str| {
        let body = format!(r#"{{"model": "{name}"}}"#);
        server.ask("DELETE", "/api/delete", &body)
    };
    let (_, tags) = server.ask("GET", "/api/tags", "");
    assert!(
        tags.contains("hf:owner/name:b.gguf") && !tags.contains(given),
        "{tags}"
    );
    let ask = r#"{"model": "hf:owner/name:b.gguf", "prompt": "Hi", "max_tokens": 2}"#;
    let (status, answer) = server.ask("POST", "/v1/completions", ask);
    assert_eq!(status, 200, "{answer}");
    // Its own name, the repository with it and another file of that, the name of its file, and a path.
    for (name, status) in [
        (given, 403),
        ("hf:owner/name", 403),
        ("hf:owner/name:b.gguf", 403),
        ("name:a.gguf", 403),
        ("model.gguf", 404),
    ] {
        assert_eq!(delete(name).0, status, "{name}");
    }
    let file = |name: &str| place.path("cache/hf/owner").join(name).is_file();
    let free = "hf:owner/free:c.gguf";
    let ask = ask.replace("hf:owner/name:b.gguf", free);
    assert_eq!(server.ask("POST", "/v1/completions", &ask).0, 200);
    let (_, tags) = server.ask("GET", "/api/tags", "");
    let tags: serde_json::Value = serde_json::from_str(&tags).unwrap();
    let tags = tags["models"].as_array().unwrap().iter();
    let deletable = tags.filter(|tag| tag["deletable"] == true);
    let deletable: Vec<_> = deletable.map(|tag| tag["name"].as_str().unwrap()).collect();
    assert_eq!(deletable, [free]);
    assert_eq!(delete(free).0, 200);
    assert!(file("name/a.gguf") && file("name/b.gguf") && !file("free/c.gguf"));
    assert_eq!(server.ask("POST", "/v1/completions", &ask).0, 404);
    for (name, expected, reason) in [
        ("/etc/passwd", 404, "expected hf:owner/name"),
        ("hf:owner/other", 200, "cannot reach http://127.0.0.1:9"),
    ] {
        let (status, lines) = server.ask("POST", "/api/pull", &format!(r#"{{"model": "{name}"}}"#));
        assert!(
            status == expected && lines.contains(reason) && lines.contains("error"),
            "{lines}"
        );
    }
    drop(server);
    let refused = place.triad(&["serve", "--allow-pull", "--lora", "a=b", "-m", given]);
    assert!(
        stderr(&refused).contains("cannot be used with"),
        "{}",
        stderr(&refused)
    );
    let refused = place.triad(&[
        "serve",
        "--allow-pull",
        "--host",
        "0.0.0.0",
        "--no-key",
        "-m",
        given,
    ]);
    assert!(
        stderr(&refused).contains("need an API key"),
        "{}",
        stderr(&refused)
    );
}

/// Starts a server in a process that may open at most 100 files. Each client opens more connections than that, and keeps them.
#[test]
#[cfg(all(feature = "server", target_os = "linux"))]
fn idle_connections_use_up_no_files_that_another_connection_needs() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    let place = place();
    let serve = place.command(&["serve", "--no-quantize", "-m", "model.gguf", "--port", "0"]);
    let mut server = std::process::Command::new("/bin/sh");
    let words = serve.get_args().map(|word| word.to_str().unwrap());
    let words = words.collect::<Vec<_>>().join(" ");
    let program = serve.get_program().to_str().unwrap();
    server
        .args(["-c", &format!("ulimit -n 100 && exec {program} {words}")])
        .current_dir(place.path(""))
        .stderr(std::process::Stdio::piped());
    let variables = serve.get_envs();
    server.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    let mut server = server.spawn().unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let address = lines.find_map(|line| {
        let line = line.unwrap();
        let (_, rest) = line.split_once("http://")?;
        Some(rest.split(';').next().unwrap().to_owned())
    });
    let address = address.unwrap();
    let ask = || {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let request = format!("GET /health HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = [0; 12];
        let read = stream.read_exact(&mut answer);
        (stream, read.map(|()| answer))
    };
    let mut open = Vec::new();
    let mut last = None;
    for _ in 0..150 {
        let (stream, answer) = ask();
        open.push(stream);
        last = Some(answer);
        if last.as_ref().is_some_and(Result::is_err) {
            break;
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
    let answer = last.unwrap().expect("a connection is not answered");
    assert_eq!(&answer, b"HTTP/1.1 200");
    assert_eq!(open.len(), 150);
}
