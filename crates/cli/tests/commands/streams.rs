//! The environment of a command: standard streams that cannot be written or are read ahead, and limits of the process.

#[cfg(target_os = "linux")]
use std::fs::File;
#[cfg(target_os = "linux")]
use std::process::Output;

#[cfg(target_os = "linux")]
use crate::place;
#[cfg(target_os = "linux")]
use crate::support::{Place, stdout};

/// Runs `triad` with a standard error that cannot be written.
#[cfg(target_os = "linux")]
fn with_full_stderr(place: &Place, arguments: &[&str]) -> Output {
    let full = File::options().write(true).open("/dev/full").unwrap();
    place
        .command(arguments)
        .stdin(std::process::Stdio::null())
        .stderr(full)
        .output()
        .unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn a_standard_error_that_cannot_be_written_changes_neither_output_nor_exit_code() {
    let place = place();
    for run in [
        &["run", "-m", "model.gguf", "-p", "Hello", "-n", "4"][..],
        &["-v", "run", "-m", "model.gguf", "-p", "Hello"],
    ] {
        let output = with_full_stderr(&place, run);
        assert!(
            output.status.success() && !stdout(&output).is_empty(),
            "{run:?}: {}",
            output.status
        );
    }
    for (wrong, code) in [
        (&["run", "-m", "no.gguf", "-p", "Hello"][..], 1),
        (&["run", "--fly"], 2),
    ] {
        assert_eq!(
            with_full_stderr(&place, wrong).status.code(),
            Some(code),
            "{wrong:?}"
        );
    }
}

#[test]
#[cfg(target_os = "linux")]
fn lines_typed_while_a_chat_loads_are_all_read() {
    use std::io::Write;
    use std::process::{Command, Stdio};

    // `script` runs a command at a terminal and types its own input there.
    const SCRIPT: &str = "/usr/bin/script";
    if !std::path::Path::new(SCRIPT).exists() {
        crate::skip::skip(format_args!("there is no {SCRIPT}"));
        return;
    }
    let place = place();
    let triad = place.command(&[]);
    let chat = format!("{} run -m model.gguf -n 4", triad.get_program().display());
    let mut script = Command::new(SCRIPT);
    script
        .args(["-qec", &chat, "/dev/null"])
        .current_dir(place.path(""))
        .env("TERM", "xterm");
    script.envs(
        triad
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    script.env("PATH", "/usr/bin:/bin").env("SHELL", "/bin/sh");
    let mut child = script
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // All lines at once, long before the model is ready, since it is prepared first. The end of this input does not end
    // the chat: it is typed as Ctrl-D, which a terminal drops while the model loads.
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"/one\n/two\n/three\n/exit\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let shown = stdout(&output);
    for line in ["/one", "/two", "/three"] {
        assert!(
            shown.contains(&format!("there is no command {line}")),
            "{line} is lost: {shown}"
        );
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_context_beyond_the_limit_of_the_process_is_an_error_and_no_abort() {
    use crate::support::gguf::{Gguf, Value};
    use crate::support::stderr;

    let place = Place::new();
    place.write(
        "model.gguf",
        Gguf::tiny()
            .with("llama.context_length", Value::U32(1 << 27))
            .bytes(),
    );
    let triad = place.command(&[]);
    let program = triad.get_program().display();
    // Keys and values take 64 bytes per token; the limit is in KiB.
    for (context, limit) in [
        (1 << 26, 1_500_000),
        (1 << 24, 1_100_000),
        (1 << 23, 600_000),
        (1 << 22, 490_000),
    ] {
        let run = format!(
            "{program} run --no-quantize -m model.gguf -p Hello --threads 2 --context {context}"
        );
        let mut limited = std::process::Command::new("/bin/sh");
        limited
            .args(["-c", &format!("ulimit -v {limit} && exec {run}")])
            .current_dir(place.path(""));
        limited.envs(
            triad
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let output = limited.stdin(std::process::Stdio::null()).output().unwrap();
        let printed = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{context}: {printed}");
        let names = [
            "the limit of this process leaves",
            "are available on this machine",
        ];
        let clear = printed.starts_with(&format!("error: a context of {context} tokens needs"))
            && printed.lines().count() == 1;
        assert!(
            clear && names.iter().any(|name| printed.contains(name)),
            "{printed}"
        );
    }
}

#[test]
#[cfg(target_os = "linux")]
fn names_in_a_model_file_do_not_steer_the_terminal() {
    use std::process::{Command, Stdio};

    use crate::support::gguf::{Gguf, Value};

    const SCRIPT: &str = "/usr/bin/script";
    if !std::path::Path::new(SCRIPT).exists() {
        eprintln!("skipped: there is no {SCRIPT}");
        return;
    }
    let place = place();
    let name = "\u{1b}]0;title\u{7}\u{9b}31m";
    place.write(
        "named.gguf",
        Gguf::tiny()
            .with("general.name", Value::Text(name.into()))
            .bytes(),
    );
    let triad = place.command(&[]);
    let info = format!("{} info named.gguf", triad.get_program().display());
    let mut script = Command::new(SCRIPT);
    script
        .args(["-qec", &info, "/dev/null"])
        .current_dir(place.path(""))
        .stdin(Stdio::null());
    script.envs(
        triad
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let shown = stdout(
        &script
            .env("PATH", "/usr/bin:/bin")
            .env("SHELL", "/bin/sh")
            .output()
            .unwrap(),
    );
    assert!(
        shown.contains(r"\u{1b}]0;title\u{7}\u{9b}31m") && !shown.contains(name),
        "{shown:?}"
    );
    // Output that is not a terminal has the name unchanged.
    assert!(stdout(&place.triad(&["info", "named.gguf"])).contains(name));
}
