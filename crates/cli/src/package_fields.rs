//! The fields that commands print of a package.

use serde_json::json;
use triad_engine::LinearInput;
use triad_engine::package::Package;
use triad_engine::package::preparation::InputSummary;

use crate::output;

/// The fields of a package by name, the same for every command.
pub fn fields(package: &Package) -> Vec<(&'static str, String)> {
    let manifest = package.manifest();
    let preparation = &manifest.preparation;
    let plan = &preparation.options.plan;
    let inputs = &preparation.inputs;
    let share = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
    let channels: usize = inputs.iter().map(|input| input.channels).sum();
    let outlier_channels = inputs.iter().map(|input| input.outlier_channels).sum();
    let hot = inputs.iter().map(|input| input.hot_channels.len()).sum();
    let values = |input: &InputSummary| input.outlier_share * input.channels as f64;
    let outliers = 100.0 * inputs.iter().map(values).sum::<f64>() / channels.max(1) as f64;
    let kept = |place: LinearInput| {
        let kept = inputs.iter().filter(|input| input.input == place && input.shadow).count();
        format!("{} {kept}", place.name())
    };
    let shadows = inputs.iter().filter(|input| input.shadow).count();
    let files: Vec<_> =
        manifest.files.iter().map(|(name, file)| format!("{name} {}", output::bytes(file.bytes))).collect();
    vec![
        ("model", manifest.model.name.clone().unwrap_or_else(|| "unnamed".into())),
        ("family", manifest.model.family.clone()),
        ("package", package.path().display().to_string()),
        ("size", format!("{} ({})", output::bytes(package.bytes()), files.join(", "))),
        (
            "method",
            format!(
                "W8A8, activations static per tensor, weights per {}; decode with {}",
                name_of(&plan.weight_scales),
                name_of(&plan.decode_weights)
            ),
        ),
        (
            "calibration",
            format!("{}, {} tokens", preparation.calibration_text, output::count(preparation.calibration_tokens)),
        ),
        (
            "outliers",
            format!(
                "{outliers:.2} % of values, in {:.1} % of channels; {:.1} % of channels give {:.0} % of them",
                share(outlier_channels, channels),
                share(hot, channels),
                100.0 * plan.hot_share
            ),
        ),
        (
            "shadows",
            format!("{shadows} of {} inputs keep theirs ({})", inputs.len(), LinearInput::ALL.map(kept).join(", ")),
        ),
        ("made by", manifest.made_by.clone()),
    ]
}

/// A choice as the command line names it.
fn name_of(choice: &impl serde::Serialize) -> String {
    json!(choice).as_str().unwrap_or_default().to_owned()
}
