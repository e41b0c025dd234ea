//! `run --session`: a conversation in a file.

use serde_json::{Value as Json, json};

use super::support::stderr;
use super::{place, place_with_context, succeed};

const ASK: [&str; 8] = [
    "run",
    "--no-quantize",
    "-m",
    "model.gguf",
    "-n",
    "4",
    "--session",
    "talk.json",
];

#[test]
fn an_answer_is_printed_even_if_its_session_cannot_be_written() {
    let place = place();
    let mut arguments = ASK.to_vec();
    arguments[7] = "no-folder/talk.json";
    arguments.extend(["-p", "Hello", "--json"]);
    let output = place.triad(&arguments);
    assert!(!output.status.success());
    assert!(
        stderr(&output).contains("no-folder/talk.json"),
        "{}",
        stderr(&output)
    );
    let report: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["text"].is_string(), "{report}");
}

#[test]
fn a_session_goes_on_where_its_file_ends() {
    let place = place();
    let saved = || -> Json {
        serde_json::from_slice(&std::fs::read(place.path("talk.json")).unwrap()).unwrap()
    };
    succeed(&place.triad(&[&ASK[..], &["-p", "Hello"]].concat()));
    let first = saved();
    assert_eq!(
        first["messages"][0],
        json!({"role": "user", "content": "Hello"})
    );
    let answer = succeed(&place.triad(&[&ASK[..], &["-p", "More"]].concat()));
    let second = saved();
    let roles: Vec<_> = second["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| &message["role"])
        .collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!(second["messages"][1], first["messages"][1]);
    // The model's template has a line for each message: the whole prompt in one call has the same answer.
    let said = first["messages"][1]["content"].as_str().unwrap();
    let whole = format!("user: Hello\nassistant: {said}\nuser: More\n");
    assert_eq!(
        succeed(&place.triad(&[
            "run",
            "--no-quantize",
            "-m",
            "model.gguf",
            "-n",
            "4",
            "--raw",
            "-p",
            &whole
        ])),
        answer
    );
}

/// The small model answers within milliseconds, so that processes read and write the file at the same time.
#[test]
fn each_of_many_processes_that_ends_well_has_written_its_turn() {
    // All turns of a round fit, where one process answers after another.
    let place = place_with_context(1024);
    for round in 0..6 {
        let texts: Vec<String> = (0..6).map(|number| format!("{round}.{number}")).collect();
        let begin = |text: &String| {
            let arguments = [&ASK[..], &["-p", text.as_str()]].concat();
            let mut command = place.command(&arguments);
            command.stdin(std::process::Stdio::null());
            command.stdout(std::process::Stdio::piped());
            command.stderr(std::process::Stdio::piped());
            command.spawn().unwrap()
        };
        let running: Vec<_> = texts.iter().map(begin).collect();
        let outputs = running
            .into_iter()
            .map(|child| child.wait_with_output().unwrap());
        let outputs: Vec<_> = outputs.collect();
        let saved = std::fs::read_to_string(place.path("talk.json")).unwrap();
        let mut written = 0;
        for (text, output) in texts.iter().zip(&outputs) {
            let is_written = saved.contains(&format!("\"{text}\""));
            assert_eq!(output.status.success(), is_written, "{text}: {saved}");
            written += usize::from(is_written);
            let error = stderr(output);
            assert!(
                is_written || error.contains("talk.json was written by another program"),
                "{error}"
            );
        }
        assert!(written > 0, "{saved}");
        // Nothing is left next to it.
        let names = std::fs::read_dir(place.path("")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: Vec<_> = names.filter(|name| name.starts_with('.')).collect();
        assert!(left.is_empty(), "{left:?}");
        std::fs::remove_file(place.path("talk.json")).unwrap();
    }
}

#[test]
fn other_instructions_take_the_place_of_those_that_a_session_began_with() {
    let place = place();
    for (system, count) in [("Be brief.", 3), ("Be loud.", 5)] {
        succeed(&place.triad(&[&ASK[..], &["-p", "So", "--system", system]].concat()));
        let saved: Json =
            serde_json::from_slice(&std::fs::read(place.path("talk.json")).unwrap()).unwrap();
        assert_eq!(
            saved["messages"][0],
            json!({"role": "system", "content": system})
        );
        assert_eq!(saved["messages"].as_array().unwrap().len(), count);
    }
}

#[test]
fn a_file_that_is_no_conversation_is_refused_and_kept() {
    let place = place();
    place.write("talk.json", "{\"messages\": 1}");
    let model = std::fs::read(place.path("model.gguf")).unwrap();
    for (file, message) in [
        ("talk.json", "not a saved conversation"),
        ("model.gguf", "UTF-8"),
    ] {
        let output = place.triad(&[
            "run",
            "--no-quantize",
            "-m",
            "model.gguf",
            "-p",
            "Hello",
            "--session",
            file,
        ]);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            stderr(&output).contains(message) && stderr(&output).contains(file),
            "{}",
            stderr(&output)
        );
    }
    assert_eq!(
        std::fs::read(place.path("talk.json")).unwrap(),
        b"{\"messages\": 1}"
    );
    assert_eq!(std::fs::read(place.path("model.gguf")).unwrap(), model);
}

/// Returns what a chat shows to a user who types `lines`, at a terminal of `script` of util-linux; `None` without it.
#[cfg(target_os = "linux")]
fn chat(place: &super::support::Place, arguments: &[&str], lines: &[u8]) -> Option<String> {
    use std::io::Write;
    use std::process::{Command, Stdio};

    const SCRIPT: &str = "/usr/bin/script";
    if !std::path::Path::new(SCRIPT).exists() {
        return None;
    }
    let command = place.command(arguments);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_str().unwrap()).collect();
    let mut child = Command::new(SCRIPT)
        .args(["-q", "-c", &words.join(" "), "/dev/null"])
        .current_dir(place.path(""))
        .envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env("SHELL", "/bin/sh")
        .env("VISUAL", place.path("editor"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines).unwrap();
    Some(super::support::stdout(&child.wait_with_output().unwrap()))
}

#[test]
#[cfg(target_os = "linux")]
fn an_edited_message_without_an_answer_leaves_the_conversation_as_it_was() {
    use std::os::unix::fs::PermissionsExt;

    let place = place();
    // More letters than the model's context has tokens.
    place.write("editor", "#!/bin/sh\nprintf '%0900d' 0 > \"$1\"\n");
    let runs = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.path("editor"), runs).unwrap();
    let Some(shown) = chat(&place, &ASK, b"Hello\n/edit\nMore\n/exit\n") else {
        return;
    };
    assert!(shown.contains("error: the prompt has"), "{shown}");
    let saved: Json = serde_json::from_slice(&std::fs::read(place.path("talk.json")).unwrap())
        .unwrap_or_else(|error| panic!("{error}: {shown}"));
    let contents = saved["messages"].as_array().unwrap();
    assert_eq!(contents.len(), 4, "{saved}");
    assert_eq!(
        (&contents[0]["content"], &contents[2]["content"]),
        (&json!("Hello"), &json!("More"))
    );
}
