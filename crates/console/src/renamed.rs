//! Options whose old names still work, for one release.

use std::ffi::OsString;

use crate::output;

/// Old and new names.
const RENAMED: [(&str, &str); 9] = [
    ("--chunk", "--prefill-chunk"),
    ("--cut", "--tensor-split"),
    ("--exact", "--f32"),
    ("--float", "--no-quantize"),
    ("--hot-rows", "--outlier-cache"),
    ("--kv", "--cache-type"),
    ("--npu-activation", "--ffn-precision"),
    ("--wait", "--sync"),
    ("--window", "--npu-memory"),
];

/// Returns the command line of this process with new names, and prints a note for each old one.
pub fn command_line() -> Vec<OsString> {
    let (arguments, notes) = rename(std::env::args_os());
    for note in notes {
        output::note(&note);
    }
    arguments
}

fn rename(arguments: impl Iterator<Item = OsString>) -> (Vec<OsString>, Vec<String>) {
    let mut arguments: Vec<OsString> = arguments.collect();
    let mut notes = Vec::new();
    // `eval` has a window of its own: tokens of a text.
    let kept = if arguments.get(1).is_some_and(|command| command == "eval") {
        "--window"
    } else {
        ""
    };
    for argument in &mut arguments {
        if argument == "--" {
            break;
        }
        let Some(text) = argument.to_str() else {
            continue;
        };
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let Some((old, new)) = RENAMED.iter().find(|(old, _)| *old == name && *old != kept) else {
            continue;
        };
        let renamed = value.map_or_else(|| (*new).into(), |value| format!("{new}={value}"));
        *argument = renamed.into();
        notes.push(format!(
            "note: {old} is now {new}; the next release removes the old name"
        ));
    }
    (arguments, notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(line: &str) -> (String, usize) {
        let (arguments, notes) = rename(line.split(' ').map(OsString::from));
        let arguments: Vec<_> = arguments.iter().map(|it| it.to_str().unwrap()).collect();
        (arguments.join(" "), notes.len())
    }

    #[test]
    fn old_names_are_replaced_with_a_note_for_each() {
        let (line, notes) = renamed("triad run --kv int8 --chunk=64 --float -p hi");
        assert_eq!(
            line,
            "triad run --cache-type int8 --prefill-chunk=64 --no-quantize -p hi"
        );
        assert_eq!(notes, 3);
    }

    #[test]
    fn other_words_stay() {
        for line in [
            "triad run --context 64 -p --kvs",
            "triad eval --window 512",
            "triad run -- --kv",
        ] {
            assert_eq!(renamed(line), (line.into(), 0));
        }
    }
}
