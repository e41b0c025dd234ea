//! Checks that the header matches the sources.

use std::path::Path;

#[test]
fn the_header_is_what_cbindgen_makes_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = cbindgen::generate(folder).expect("the sources can be read");
    let mut text = Vec::new();
    made.write(&mut text);
    let (text, path) = (
        String::from_utf8(text).unwrap(),
        folder.join("include/triad.h"),
    );
    if std::env::var_os("TRIAD_WRITE_HEADER").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        committed, text,
        "run TRIAD_WRITE_HEADER=1 cargo test -p triad-c --test header"
    );
}
