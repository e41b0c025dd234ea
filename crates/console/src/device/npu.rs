//! The NPU that `--npu` names, and its options.

use std::str::FromStr;

use anyhow::Result;
#[cfg(feature = "npu")]
use triad_processors::npu::Provider;

#[cfg(not(all(feature = "hexagon", feature = "npu")))]
use crate::version::without;

/// Difference of logits, relative to the largest, that rounding explains. Scales and biases may be applied in another
/// order, and the provider's activation rounds differently, so that a value between two steps of INT8 may be rounded to
/// the other one. One such step in the input of down changed logits of SmolLM2 by 4.7e-2. Sums are exact, but for those of
/// Qualcomm's provider: rounded to 16 bits, they changed logits of SmolLM2 by 4.3e-2.
pub(super) const ROUNDING: f32 = 0.1;

/// The NPU to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Npu {
    /// Triad's INT8 kernels on separate CPU cores, in place of an NPU.
    Kernels,
    /// Triad's device program for Hexagon, under qemu or on a phone's DSP.
    #[cfg(feature = "hexagon")]
    Hexagon,
    /// A provider of ONNX Runtime.
    #[cfg(feature = "npu")]
    OnnxRuntime(Provider),
}

/// Parses an option of a provider.
pub(super) fn option(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = parts.ok_or("expected KEY=VALUE, such as htp_performance_mode=burst")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// A chip for whose NPU graphs can be compiled ahead of time.
#[cfg(feature = "npu")]
pub type Chip = triad_processors::npu::Chip;
/// There is none without the feature.
#[cfg(not(feature = "npu"))]
#[derive(Clone, Copy, Debug)]
pub enum Chip {}

#[cfg(not(feature = "npu"))]
impl std::fmt::Display for Chip {
    fn fmt(&self, _: &mut std::fmt::Formatter) -> std::fmt::Result {
        match *self {}
    }
}

/// Parses the name of a chip.
///
/// # Errors
/// The names that were expected, or that this program compiles for none.
pub fn chip(text: &str) -> Result<Chip, String> {
    #[cfg(feature = "npu")]
    return text.trim().parse();
    #[cfg(not(feature = "npu"))]
    return Err(format!("{text}: {}", without("npu")));
}

/// Returns the unit that the options of Hexagon select.
#[cfg(feature = "hexagon")]
pub(super) fn unit(
    options: &[(String, String)],
) -> Result<Option<triad_processors::hexagon::Unit>, String> {
    use triad_processors::hexagon::Unit;

    let mut unit = None;
    for (key, value) in options {
        if key != Unit::OPTION {
            return Err(format!(
                "--npu hexagon does not have the option {key}: expected {}=hvx or {}=hmx",
                Unit::OPTION,
                Unit::OPTION
            ));
        }
        let parsed = value
            .parse()
            .map_err(|error| format!("--npu-option {key}={error}"))?;
        if unit.replace(parsed).is_some_and(|other| other != parsed) {
            return Err(format!(
                "--npu-option {key} has two values: expected hvx or hmx"
            ));
        }
    }
    Ok(unit)
}

impl FromStr for Npu {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "kernels" => Ok(Self::Kernels),
            #[cfg(feature = "hexagon")]
            "hexagon" => Ok(Self::Hexagon),
            #[cfg(not(feature = "hexagon"))]
            "hexagon" => Err(without("hexagon")),
            #[cfg(feature = "npu")]
            provider => provider
                .parse()
                .map(Self::OnnxRuntime)
                .map_err(|error| format!("{error}, hexagon or kernels")),
            #[cfg(not(feature = "npu"))]
            _ => Err(format!("expected hexagon or kernels: {}", without("npu"))),
        }
    }
}

impl Npu {
    /// Returns whether it is a provider of ONNX Runtime.
    pub(super) fn is_provider(self) -> bool {
        match self {
            Self::Kernels => false,
            #[cfg(feature = "hexagon")]
            Self::Hexagon => false,
            #[cfg(feature = "npu")]
            Self::OnnxRuntime(_) => true,
        }
    }

    /// Returns whether it is Hexagon's NPU.
    pub(super) fn is_hexagon(self) -> bool {
        match self {
            Self::Kernels => false,
            #[cfg(feature = "hexagon")]
            Self::Hexagon => true,
            #[cfg(feature = "npu")]
            Self::OnnxRuntime(_) => false,
        }
    }

    pub(super) fn rounding(self) -> f32 {
        match self {
            Self::Kernels => 0.0,
            // It is bit-identical to Triad's kernels.
            #[cfg(feature = "hexagon")]
            Self::Hexagon => 0.0,
            #[cfg(feature = "npu")]
            Self::OnnxRuntime(_) => ROUNDING,
        }
    }
}

impl std::fmt::Display for Npu {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Kernels => f.write_str("INT8 kernels as NPU"),
            #[cfg(feature = "hexagon")]
            Self::Hexagon => {
                use triad_processors::hexagon::{Target, program_from_environment};

                let program = program_from_environment().ok();
                match program.and_then(|program| Target::read(&program).ok()) {
                    Some(Target::Dsp) => f.write_str("Hexagon NPU (by FastRPC)"),
                    _ => f.write_str("Hexagon NPU (emulated by qemu)"),
                }
            }
            #[cfg(feature = "npu")]
            Self::OnnxRuntime(provider) => write!(f, "ONNX Runtime's {provider} provider as NPU"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_npu_is_named_and_an_unknown_one_refused() {
        assert_eq!("kernels".parse(), Ok(Npu::Kernels));
        assert!("tpu".parse::<Npu>().unwrap_err().contains("kernels"));
        #[cfg(feature = "hexagon")]
        assert_eq!("hexagon".parse(), Ok(Npu::Hexagon));
        #[cfg(feature = "npu")]
        assert_eq!("qnn".parse(), Ok(Npu::OnnxRuntime(Provider::Qnn)));
    }

    #[test]
    #[cfg(feature = "hexagon")]
    fn the_unit_of_hexagon_is_hvx_or_hmx_and_another_option_is_refused() {
        use triad_processors::hexagon::Unit;

        let parsed = |options: &[&str]| {
            let options: Vec<_> = options.iter().map(|text| option(text).unwrap()).collect();
            unit(&options)
        };
        assert_eq!(parsed(&[]), Ok(None));
        assert_eq!(parsed(&["unit=hvx"]), Ok(Some(Unit::Hvx)));
        assert_eq!(parsed(&["unit=hmx", "unit=hmx"]), Ok(Some(Unit::Hmx)));
        for (options, refusal) in [
            (
                &["unit=npu"][..],
                "--npu-option unit=npu: expected hvx or hmx",
            ),
            (
                &["unit=hmx", "unit=hvx"],
                "--npu-option unit has two values",
            ),
            (
                &["vtcm_mb=8"],
                "does not have the option vtcm_mb: expected unit=hvx or unit=hmx",
            ),
        ] {
            let error = parsed(options).unwrap_err();
            assert!(error.contains(refusal), "{error}");
        }
    }

    #[test]
    fn an_option_is_a_key_and_a_value_that_may_hold_anything() {
        let parsed = |key: &str, value: &str| Ok((key.to_owned(), value.to_owned()));
        assert_eq!(option("htp_arch=73"), parsed("htp_arch", "73"));
        assert_eq!(option("path=a=b"), parsed("path", "a=b"));
        assert_eq!(option("path="), parsed("path", ""));
        for wrong in ["htp_arch", "=73", ""] {
            assert!(option(wrong).unwrap_err().starts_with("expected KEY=VALUE"));
        }
    }
}
