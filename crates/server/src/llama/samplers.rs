//! The field `samplers`: the steps of sampling that a request wants, in their order.

use crate::error::{ApiError, ApiResult};
use crate::sampling::Sampling;

/// The steps of this server in their order.
const STEPS: [&str; 5] = ["penalties", "temperature", "top_k", "top_p", "min_p"];
/// Other steps of llama.cpp's server, which have no effect here. The fields of all but `infill` are refused. `infill`
/// merges tokens with a common beginning; here the end tokens of fill-in-the-middle end the completion.
const OTHERS: [&str; 8] = [
    "dry",
    "top_n_sigma",
    "typ_p",
    "typical_p",
    "tfs_z",
    "xtc",
    "infill",
    "adaptive_p",
];

/// Turns off the steps that `samplers` does not name.
///
/// # Errors
/// If a name is unknown, or the order differs from this server's and that has an effect.
pub(crate) fn apply(samplers: Option<&[String]>, sampling: &mut Sampling) -> ApiResult<()> {
    let Some(samplers) = samplers else {
        return Ok(());
    };
    let mut places = Vec::new();
    for name in samplers {
        match STEPS.iter().position(|step| step == name) {
            Some(place) => places.push(place),
            None if OTHERS.contains(&name.as_str()) => {}
            None => {
                let names = STEPS.join(", ");
                let message = format!("there is no sampler {name:?}: expected {names}");
                return Err(ApiError::unsupported("samplers", message));
            }
        }
    }
    let has = |step: &str| samplers.iter().any(|name| name == step);
    // The temperature changes which tokens `top_p` and `min_p` keep, and how much penalties weigh, unless it is 1, or 0,
    // which leaves one token.
    let is_neutral = sampling
        .temperature
        .is_some_and(|it| it == 1.0 || it == 0.0);
    if is_neutral {
        places.retain(|place| STEPS[*place] != "temperature");
    }
    // The most likely tokens are the same at each temperature.
    let commutes = |pair: [usize; 2]| pair.map(|place| STEPS[place]) == ["top_k", "temperature"];
    let is_other = |(index, first): (usize, &usize)| {
        let later = &places[index + 1..];
        later
            .iter()
            .any(|second| first > second && !commutes([*first, *second]))
    };
    if places.iter().enumerate().any(is_other) {
        let message = format!("the order is fixed: expected {}", STEPS.join(", "));
        return Err(ApiError::unsupported("samplers", message));
    }
    if !has("penalties") {
        sampling.turn_penalties_off();
    }
    if !has("temperature") {
        sampling.temperature = Some(1.0);
    }
    if !has("top_k") {
        sampling.top_k = Some(0);
    }
    if !has("top_p") {
        sampling.top_p = Some(1.0);
    }
    if !has("min_p") {
        sampling.min_p = Some(0.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(names: &[&str], temperature: Option<f64>) -> ApiResult<Sampling> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut sampling = Sampling {
            temperature,
            top_k: Some(40),
            repeat_penalty: Some(1.5),
            ..Sampling::default()
        };
        apply(Some(&names), &mut sampling)?;
        Ok(sampling)
    }

    #[test]
    fn steps_that_are_not_named_are_off() {
        let sampling = applied(&["top_k", "infill"], Some(0.2)).unwrap();
        assert_eq!(
            (sampling.temperature, sampling.top_k),
            (Some(1.0), Some(40))
        );
        assert_eq!((sampling.top_p, sampling.min_p), (Some(1.0), Some(0.0)));
        assert_eq!(
            (sampling.repeat_penalty, sampling.repetition_penalty),
            (None, Some(1.0))
        );
    }

    #[test]
    fn another_order_is_refused_where_it_has_an_effect() {
        let last = ["penalties", "top_k", "top_p", "temperature"];
        assert!(applied(&last, Some(0.5)).is_err());
        assert!(applied(&last, None).is_err());
        assert!(applied(&last, Some(1.0)).is_ok());
        assert!(applied(&["top_p", "top_k"], Some(1.0)).is_err());
        assert!(applied(&["temperature", "penalties"], None).is_err());
        assert!(applied(&["mirostat"], None).is_err());
    }

    #[test]
    fn the_temperature_may_come_after_top_k_which_keeps_the_same_tokens() {
        assert!(applied(&["top_k", "temperature"], Some(0.5)).is_ok());
        assert!(applied(&["penalties", "top_k", "temperature", "top_p"], None).is_ok());
        assert!(applied(&["top_k", "penalties", "temperature"], None).is_err());
    }
}
