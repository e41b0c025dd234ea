//! Device profiles: speed, memory and power of a phone's processors as numbers.
//!
//! Profiles are TOML files. [`NAMES`] are built in; their comments give the source of each number. [`cost`] computes
//! seconds from a profile.

pub mod cost;
mod range;
pub mod weight_only;

use serde::{Deserialize, Serialize};

use range::Range;
use weight_only::WeightOnly;

/// Names of the built-in profiles.
pub const NAMES: [&str; 2] = ["snapdragon-8gen3", "snapdragon-8gen2"];

/// A profile of a device, such as a phone: speed, memory and power of its processors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Human-readable name.
    pub name: String,
    /// Milliseconds that a processor that was idle needs to notice and start its next task.
    pub wake_milliseconds: f64,
    /// The NPU.
    pub npu: Npu,
    /// The CPU.
    pub cpu: Float,
    /// The GPU. Without one, the CPU computes in float.
    pub gpu: Option<Float>,
    /// GPU and NPU for products with INT4 weights in f16, if the profile has them.
    #[serde(default)]
    pub w4a16: Option<WeightOnly>,
}

/// A processor for static INT8 subgraphs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Npu {
    /// Tera multiplications and additions per second, once weights are loaded.
    pub int8_tera_operations: f64,
    /// Sizes are rounded up to a multiple of this number.
    pub step: usize,
    /// Bandwidth for loading weights and activations.
    pub gigabytes_per_second: f64,
    /// Slowdown of rows in one line compared with a square.
    pub flat_rows_slowdown: f64,
    /// Slowdown of subgraphs with activation scales per group.
    pub per_group_slowdown: f64,
    /// Time to launch a subgraph, independent of its size.
    pub launch_milliseconds: f64,
    /// Time to add the result of a shadow.
    pub join_milliseconds: f64,
    /// Memory that it can address.
    pub window_gibibytes: f64,
    /// Time to build graphs, per gigabyte of weights.
    pub build_milliseconds_per_gigabyte: f64,
    /// Time to optimize graphs, per gigabyte of weights.
    pub optimize_milliseconds_per_gigabyte: f64,
    /// Power while it works.
    pub busy_watts: f64,
    /// Power while it is idle.
    pub idle_watts: f64,
}

/// A processor for all operators, including float.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Float {
    /// Tera multiplications and additions per second in INT8.
    pub int8_tera_operations: f64,
    /// Giga multiplications and additions per second in float.
    pub float_giga_operations: f64,
    /// Bandwidth for activations, and for weights in decode.
    pub gigabytes_per_second: f64,
    /// Time to launch a subgraph, independent of its size.
    pub launch_milliseconds: f64,
    /// Power while it works.
    pub busy_watts: f64,
    /// Power while it is idle.
    pub idle_watts: f64,
}

/// An error in a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct DeviceProfileError {
    name: String,
    problem: String,
}

/// Maximum number of characters of a line in an error.
const LONGEST_LINE: usize = 60;
/// Upper limit of all rates, times and powers.
const LARGEST: f64 = 1e9;

impl DeviceProfile {
    /// Returns the built-in profile called `name`.
    ///
    /// # Errors
    /// If `name` is not in [`NAMES`].
    pub fn builtin(name: &str) -> Result<Self, DeviceProfileError> {
        let text = match name {
            "snapdragon-8gen3" => include_str!("../../profiles/snapdragon-8gen3.toml"),
            "snapdragon-8gen2" => include_str!("../../profiles/snapdragon-8gen2.toml"),
            _ => {
                let problem = format!(
                    "no device has this name: expected {} or a TOML file",
                    NAMES.join(", ")
                );
                return Err(DeviceProfileError {
                    name: name.into(),
                    problem,
                });
            }
        };
        Self::parse(text, name)
    }

    /// Parses a profile from `text`; errors call it `name`.
    ///
    /// # Errors
    /// If the text is not TOML, a field is missing, unknown or of another type, or a value is out of range.
    pub fn parse(text: &str, name: &str) -> Result<Self, DeviceProfileError> {
        let error = |problem: String| DeviceProfileError {
            name: name.into(),
            problem,
        };
        let device: Self = toml::from_str(text).map_err(|problem| {
            let start = problem.span().map_or(0, |span| span.start);
            let number = text.get(..start).unwrap_or_default().matches('\n').count();
            let line: String = text
                .lines()
                .nth(number)
                .unwrap_or_default()
                .trim()
                .chars()
                .take(LONGEST_LINE)
                .collect();
            error(format!(
                "not a device in TOML: line {}, `{line}`: {}",
                number + 1,
                problem.message().trim()
            ))
        })?;
        device.check().map_err(error)?;
        Ok(device)
    }

    fn check(&self) -> Result<(), String> {
        use Range::{Factor, NotNegative, Positive};
        let npu = &self.npu;
        let w4a16_step = self
            .w4a16
            .as_ref()
            .map(|w4a16| ("w4a16.npu.step", w4a16.npu.step));
        for (field, step) in [("npu.step", npu.step)].into_iter().chain(w4a16_step) {
            if !(1..=4096).contains(&step) {
                return Err(format!(
                    "{field} is {step}: expected a whole number from 1 to 4096"
                ));
            }
        }
        let mut fields = vec![
            (
                "wake_milliseconds".to_owned(),
                self.wake_milliseconds,
                NotNegative,
            ),
            (
                "npu.int8_tera_operations".into(),
                npu.int8_tera_operations,
                Positive,
            ),
            (
                "npu.gigabytes_per_second".into(),
                npu.gigabytes_per_second,
                Positive,
            ),
            (
                "npu.flat_rows_slowdown".into(),
                npu.flat_rows_slowdown,
                Factor,
            ),
            (
                "npu.per_group_slowdown".into(),
                npu.per_group_slowdown,
                Factor,
            ),
            (
                "npu.launch_milliseconds".into(),
                npu.launch_milliseconds,
                NotNegative,
            ),
            (
                "npu.join_milliseconds".into(),
                npu.join_milliseconds,
                NotNegative,
            ),
            (
                "npu.window_gibibytes".into(),
                npu.window_gibibytes,
                NotNegative,
            ),
            (
                "npu.build_milliseconds_per_gigabyte".into(),
                npu.build_milliseconds_per_gigabyte,
                NotNegative,
            ),
            (
                "npu.optimize_milliseconds_per_gigabyte".into(),
                npu.optimize_milliseconds_per_gigabyte,
                NotNegative,
            ),
            ("npu.busy_watts".into(), npu.busy_watts, NotNegative),
            ("npu.idle_watts".into(), npu.idle_watts, NotNegative),
        ];
        for (of, float) in [("cpu", Some(&self.cpu)), ("gpu", self.gpu.as_ref())] {
            let Some(float) = float else { continue };
            fields.extend([
                (
                    format!("{of}.int8_tera_operations"),
                    float.int8_tera_operations,
                    Positive,
                ),
                (
                    format!("{of}.float_giga_operations"),
                    float.float_giga_operations,
                    Positive,
                ),
                (
                    format!("{of}.gigabytes_per_second"),
                    float.gigabytes_per_second,
                    Positive,
                ),
                (
                    format!("{of}.launch_milliseconds"),
                    float.launch_milliseconds,
                    NotNegative,
                ),
                (format!("{of}.busy_watts"), float.busy_watts, NotNegative),
                (format!("{of}.idle_watts"), float.idle_watts, NotNegative),
            ]);
        }
        fields.extend(self.w4a16.iter().flat_map(WeightOnly::fields));
        for (field, value, range) in fields {
            let (fits, expected) = match range {
                // Rates near zero would result in infinite times.
                Positive => (value >= 1.0 / LARGEST, "a number above 0"),
                NotNegative => (value >= 0.0, "a number of 0 or above"),
                Factor => (value >= 1.0, "a number of 1 or above"),
            };
            if !fits || value > LARGEST {
                return Err(format!(
                    "{field} is {value}: expected {expected}, and at most {LARGEST}"
                ));
            }
        }
        Ok(())
    }

    /// Returns the bytes of the NPU's window.
    pub fn window(&self) -> usize {
        (self.npu.window_gibibytes * (1u64 << 30) as f64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_builtin_profile_is_one() {
        for name in NAMES {
            assert!(
                DeviceProfile::builtin(name).is_ok(),
                "{:?}",
                DeviceProfile::builtin(name)
            );
        }
        assert!(
            DeviceProfile::builtin("phone")
                .unwrap_err()
                .to_string()
                .contains("snapdragon-8gen3")
        );
    }

    #[test]
    fn a_bad_profile_is_refused_by_its_field() {
        let good = include_str!("../../profiles/snapdragon-8gen3.toml");
        let cases = [
            ("step = 32", "step = 0", "npu.step"),
            ("step = 32", "step = -1", "step"),
            ("step = 32", "stepp = 32", "stepp"),
            ("step = 32", "", "step"),
            (
                "weight_bits = 4.125",
                "weight_bits = 0.0",
                "w4a16.weight_bits",
            ),
            ("order_slowdown", "order", "order"),
            (
                "step = 32\n# [H] 1: up",
                "step = 0\n# [H] 1: up",
                "w4a16.npu.step",
            ),
            (
                "copy_microseconds = 400.0",
                "copy_microseconds = -1.0",
                "w4a16.synchronization.copy_microseconds",
            ),
            (
                "float_giga_operations = 300.0",
                "float_giga_operations = 0.0",
                "cpu.float_giga_operations",
            ),
            (
                "float_giga_operations = 300.0",
                "float_giga_operations = nan",
                "cpu.float_giga_operations",
            ),
            (
                "float_giga_operations = 300.0",
                "float_giga_operations = inf",
                "cpu.float_giga_operations",
            ),
            (
                "flat_rows_slowdown = 1.62",
                "flat_rows_slowdown = 0.5",
                "npu.flat_rows_slowdown",
            ),
            (
                "window_gibibytes = 4.0",
                "window_gibibytes = \"4\"",
                "window_gibibytes",
            ),
            ("[cpu]", "[cpus]", "cpus"),
        ];
        for (from, to, field) in cases {
            assert!(good.contains(from), "{from}");
            let error = DeviceProfile::parse(&good.replacen(from, to, 1), "phone.toml")
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with("phone.toml: ") && error.contains(field),
                "{to}: {error}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,200}", line in 0usize..80, value in "[-0-9a-z.\"\\[\\]{}=]{0,12}") {
            let _ = DeviceProfile::parse(&text, "text");
            let good = include_str!("../../profiles/snapdragon-8gen3.toml");
            let changed: Vec<_> = good.lines().enumerate().map(|(number, old)| match old.split_once('=') {
                Some((field, _)) if number == line => format!("{field}= {value}"),
                _ => old.into(),
            }).collect();
            if let Ok(device) = DeviceProfile::parse(&changed.join("\n"), "text") {
                prop_assert!(device.check().is_ok());
            }
        }
    }
}
