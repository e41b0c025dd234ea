//! Preparing packages with an encoder of pictures.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use triad_engine::Cancel;
use triad_model::checkpoint::Checkpoint;
use triad_prepare::Error;
use triad_prepare::calibration::pictures::CalibrationPictures;
use triad_prepare::package::{Progress, Recipe, prepare};

use crate::tiny::{Place, files};

/// Pictures of which four calibrate.
const FILES: [&str; 5] = ["28x28.png", "3x3.png", "5x4.png", "7x64.png", "gray.png"];

/// Returns the recipe of a model that reads pictures, on pictures in a folder of `place`.
fn recipe(place: &Place) -> Recipe {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures");
    let (folder, model) = (place.path("screens"), golden.join("chat"));
    fs::create_dir(&folder).unwrap();
    for name in FILES {
        fs::copy(golden.join("files").join(name), folder.join(name)).unwrap();
    }
    Recipe {
        checkpoint: Arc::new(Checkpoint::open(&model).unwrap()),
        pictures: Some(CalibrationPictures::of_folder(&folder, &model).unwrap()),
        ..place.recipe()
    }
}

#[test]
fn a_calibration_on_pictures_that_is_cancelled_anywhere_goes_on_to_the_same_bytes() {
    let place = Place::new();
    let recipe = recipe(&place);
    let whole = files(place.prepare(&recipe, "whole").unwrap().package.path());
    let (mut checks, mut most) = (5, 0);
    while let Err(error) = place.stop(&recipe, "package", checks) {
        assert!(
            matches!(error, Error::Engine(triad_engine::Error::Cancelled)),
            "{error} after {checks} checks"
        );
        // A resumed run is cancelled once more, elsewhere.
        let _ = place.stop(&recipe, "package", checks * 7 % 31);
        let mut first = None;
        let mut progress = |progress| {
            if let Progress::CalibratingPictures { done, .. } = progress {
                first.get_or_insert(done);
            }
        };
        let path = place.path("package");
        let resumed = prepare(&recipe, &path, &Cancel::new(), &mut progress).unwrap();
        assert!(
            whole == files(resumed.package.path()),
            "cancelled after {checks} checks"
        );
        most = most.max(first.unwrap());
        fs::remove_dir_all(path).unwrap();
        checks += 61;
    }
    assert_eq!(most, 4, "pictures that no later run calibrates again");
    assert_eq!(
        place.names(""),
        ["model.gguf", "package", "screens", "whole"]
    );
}

#[test]
fn a_calibration_on_other_pictures_starts_again() {
    let place = Place::new();
    let of_others = recipe(&place);
    let whole = files(place.prepare(&of_others, "whole").unwrap().package.path());
    fs::copy(
        place.path("screens/gray.png"),
        place.path("screens/3x3.png"),
    )
    .unwrap();
    let _ = place.stop(&of_others, "package", 300).unwrap_err();
    assert!(
        place
            .names("package.part")
            .contains(&"vision-calibration.safetensors".to_owned())
    );
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures");
    fs::copy(golden.join("files/3x3.png"), place.path("screens/3x3.png")).unwrap();
    let again = place.prepare(&of_others, "package").unwrap();
    assert!(whole == files(again.package.path()));
}
