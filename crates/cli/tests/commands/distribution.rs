//! Tests of the manual and the version, which distributions use.

use super::succeed;
use super::support::Place;

#[test]
fn every_command_has_a_page_in_the_manual() {
    let place = Place::new();
    succeed(&place.triad(&["man", "pages"]));
    let help = succeed(&place.triad(&["--help"]));
    let commands = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty());
    // The further lines of a description are indented more.
    let commands = commands.filter(|line| line.len() > 2 && !line[2..].starts_with(' '));
    let commands: Vec<_> = commands
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(
        commands.contains(&"fit") && !commands.contains(&"man"),
        "{commands:?}"
    );
    for command in commands.iter().filter(|command| **command != "help") {
        let page = std::fs::read_to_string(place.path("pages").join(format!("triad-{command}.1")))
            .unwrap();
        assert!(
            page.contains(".SH SYNOPSIS") && page.contains(&format!("triad {command}")),
            "{page}"
        );
    }
    assert!(place.path("pages/triad.1").exists());
}

#[test]
fn the_version_has_its_features() {
    let version = succeed(&Place::new().triad(&["--version"]));
    let features = [
        ("gpu", cfg!(feature = "gpu")),
        ("npu", cfg!(feature = "npu")),
    ];
    assert!(
        version.starts_with(&format!("triad {} (", env!("CARGO_PKG_VERSION"))),
        "{version}"
    );
    assert!(
        features
            .iter()
            .all(|(name, is_on)| version.contains(name) == *is_on),
        "{version}"
    );
}
