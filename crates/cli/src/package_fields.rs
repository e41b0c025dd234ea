//! The fields of a package that commands print.

use serde_json::json;
use triad_engine::LinearInput;
use triad_engine::package::Package;
use triad_engine::package::layers;
use triad_engine::package::preparation::{InputSummary, PlanOptions, Preparation, Prune};
use triad_engine::package::tensors::fits_int4;
use triad_engine::package::vision::PackagedVision;
use triad_engine::quantization::LinearFormat;
use triad_kernels::int4::GROUP;
use triad_model::description::ModelDescription;

use triad_console::output;

/// Returns the names and values of a package's fields, the same for every command.
pub fn fields(package: &Package) -> Vec<(&'static str, String)> {
    let manifest = package.manifest();
    let preparation = &manifest.preparation;
    let plan = &preparation.options.plan;
    let files: Vec<_> = manifest
        .files
        .iter()
        .map(|(name, file)| format!("{name} {}", output::bytes(file.bytes)))
        .collect();
    let method = match plan.linears {
        LinearFormat::W8a8 => format!(
            "W8A8, activations static per tensor, weights per {}; decode with {}",
            name_of(&plan.weight_scales),
            name_of(&plan.decode_weights)
        ),
        LinearFormat::W4a16 => {
            let others = match plan.bits {
                Some(_) => String::new(),
                None => not_in_int4(&manifest.model),
            };
            format!("W4A16, activations in float, weights per {GROUP} of a channel{others}")
        }
    };
    let mut fields = vec![
        (
            "model",
            manifest
                .model
                .name
                .clone()
                .unwrap_or_else(|| "unnamed".into()),
        ),
        ("family", manifest.model.family.clone()),
        ("package", package.path().display().to_string()),
        (
            "size",
            format!("{} ({})", output::bytes(package.bytes()), files.join(", ")),
        ),
        ("method", method),
        (
            "calibration",
            format!(
                "{}, {} tokens",
                preparation.calibration_text,
                output::count(preparation.calibration_tokens)
            ),
        ),
    ];
    if plan.linears == LinearFormat::W8a8 {
        fields.extend(of_inputs(&preparation.inputs, plan));
    }
    fields.extend(of_layers(&manifest.model, preparation));
    if manifest.model.mtp.is_some() {
        let parameters = output::count(manifest.model.mtp_parameters());
        let text = format!("{parameters} parameters in 8 bits, which propose tokens");
        fields.push(("MTP head", text));
    }
    if let Some(vision) = &manifest.vision {
        let PackagedVision {
            model,
            pictures,
            preparation,
            ..
        } = &**vision;
        let kept = preparation.inputs.iter().filter(|input| input.shadow);
        let searched = match preparation.options.prune {
            Prune::Auto { .. } if *pictures < 4 => {
                ", all because fewer than 4 pictures hold none out"
            }
            _ => "",
        };
        let encoder = format!(
            "{}, blocks in W8A8, patch embedding and projector in float; calibrated on {} pictures ({}, {} patches); {} of {} inputs keep their shadow{searched}",
            model.family,
            output::count(*pictures),
            preparation.calibration_text,
            output::count(preparation.calibration_tokens),
            kept.count(),
            preparation.inputs.len()
        );
        fields.push(("encoder", encoder));
    }
    fields.push(("made by", manifest.made_by.clone()));
    fields
}

/// Returns the fields on outliers and shadows of INT8 inputs.
fn of_inputs(inputs: &[InputSummary], plan: &PlanOptions) -> [(&'static str, String); 2] {
    let share = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
    let channels: usize = inputs.iter().map(|input| input.channels).sum();
    let outlier_channels = inputs.iter().map(|input| input.outlier_channels).sum();
    let hot = inputs.iter().map(|input| input.hot_channels.len()).sum();
    let values = |input: &InputSummary| input.outlier_share * input.channels as f64;
    let outliers = 100.0 * inputs.iter().map(values).sum::<f64>() / channels.max(1) as f64;
    let kept = |place: LinearInput| {
        let kept = inputs
            .iter()
            .filter(|input| input.input == place && input.shadow)
            .count();
        format!("{} {kept}", place.name())
    };
    let shadows = inputs.iter().filter(|input| input.shadow).count();
    [
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
            format!(
                "{shadows} of {} inputs keep theirs ({})",
                inputs.len(),
                LinearInput::ALL.map(kept).join(", ")
            ),
        ),
    ]
}

/// Returns the bits per weight, and the bits of each kind of layer in all blocks, `s` for one as the model's file stores
/// it; nothing without a budget of bits.
fn of_layers(model: &ModelDescription, preparation: &Preparation) -> Vec<(&'static str, String)> {
    let Some(budget) = preparation.options.plan.bits else {
        return Vec::new();
    };
    let groups = layers::groups(model);
    let bits: Vec<_> = preparation.layers.iter().map(|layer| layer.bits).collect();
    let per_weight = layers::bits_per_weight(&groups, &bits).unwrap_or(f64::NAN);
    let count = |of: Option<u8>| bits.iter().filter(|bits| bits.number() == of).count();
    let all = format!(
        "{per_weight:.2} per weight of at most {budget}; of {} layers {} in 4 bits, {} in 5 bits, {} in 8 bits, {} as stored",
        bits.len(),
        count(Some(4)),
        count(Some(5)),
        count(Some(8)),
        count(None)
    );
    let mut fields = vec![("bits", all)];
    for (group, bits) in groups.iter().zip(&bits) {
        let digit = bits.number().map_or("s".to_owned(), |it| it.to_string());
        let known = fields[1..]
            .iter_mut()
            .find(|(name, _)| *name == group.layer);
        match known {
            Some((_, digits)) => *digits += &digit,
            None => fields.push((group.layer, digit)),
        }
    }
    fields
}

/// Describes how many layers stay in f32 in an INT4 package. Empty if none do.
fn not_in_int4(model: &ModelDescription) -> String {
    let layers: Vec<_> = model
        .blocks
        .iter()
        .flat_map(|block| block.linears(model.hidden))
        .collect();
    match layers
        .iter()
        .filter(|layer| !fits_int4(layer.in_features))
        .count()
    {
        0 => String::new(),
        count => format!(
            "; {count} of {} layers in f32, whose rows are no multiple of {GROUP}",
            layers.len()
        ),
    }
}

/// Returns the name of a choice on the command line.
fn name_of(choice: &impl serde::Serialize) -> String {
    json!(choice).as_str().unwrap_or_default().to_owned()
}
