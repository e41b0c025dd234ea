//! Reads the head of arbitrary bytes as a picture, decodes them, and prepares it for a model.

use std::path::Path;
use std::sync::LazyLock;

use triad_pictures::{Head, Picture, Processor};

static PROCESSOR: LazyLock<Processor> = LazyLock::new(|| {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures");
    Processor::from_folder(&golden.join("processors/small-lfm2-vl"))
        .expect("the settings are valid")
});

/// Reads one input.
pub fn read(bytes: &[u8]) {
    let head = Head::read(bytes);
    let Ok(picture) = Picture::decode(bytes) else {
        return;
    };
    let head = head.expect("the head of a picture is read");
    assert_eq!((head.width, head.height), (picture.width, picture.height));
    // Larger ones take too long.
    if picture.rgb.len() < 1 << 20 {
        let _ = PROCESSOR.prepare(&picture);
    }
}
