//! The powers of processors, where the system reports energy.

use std::sync::Arc;

use anyhow::Result;
use triad_engine::{Cancel, Error, Model};
use triad_frontend::energy::EnergyMeter;
use triad_plan::partition::energy::Powers;

use triad_console::progress;

use super::Arguments;

/// Measures the powers of the processors, if the system reports energy.
pub(super) fn measure(
    arguments: &Arguments,
    model: &Arc<Model>,
    cancel: &Cancel,
) -> Result<Result<Option<Powers>, Error>> {
    let Some(meter) = EnergyMeter::find() else {
        return Ok(Ok(None));
    };
    let Arguments {
        processors,
        devices,
        chunk,
        ..
    } = arguments;
    let (options, _opened) = processors.open(devices, model, false)?;
    let _spinner = progress::spinner("measuring power".to_owned());
    let joules = || meter.joules();
    let powers = triad_hetero::measure_powers(model, &options, *chunk, &joules, cancel);
    Ok(powers.map_err(Error::from))
}

/// Returns the powers as a line, if they are known.
pub(super) fn text(powers: Option<&Powers>, names: &[String]) -> String {
    powers.map_or_else(String::new, |powers| {
        let of_processor = names.iter().zip(&powers.processors);
        let watts: Vec<_> = of_processor
            .map(|(name, watts)| format!("{name} {watts:.2}"))
            .collect();
        format!(
            "\nwatts: the machine {:.2}; more while they multiply: {}",
            powers.base,
            watts.join(", ")
        )
    })
}
