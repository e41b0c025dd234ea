//! The chips with an NPU for which Qualcomm's provider compiles.

use std::fmt;
use std::str::FromStr;

/// A chip with an NPU for which Qualcomm's provider compiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chip {
    name: &'static str,
    /// Version of the NPU's instructions.
    architecture: u32,
    /// Number of the chip in Qualcomm's runtime.
    soc_model: u32,
}

impl Chip {
    /// The chips that have a name.
    pub const ALL: [Self; 4] = [
        Self::new("snapdragon-8gen2", 73, 43),
        Self::new("snapdragon-8gen3", 75, 57),
        Self::new("snapdragon-8elite", 79, 69),
        Self::new("snapdragon-8elite-gen5", 81, 87),
    ];

    const fn new(name: &'static str, architecture: u32, soc_model: u32) -> Self {
        Self {
            name,
            architecture,
            soc_model,
        }
    }

    /// Returns its name for people.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns the options of Qualcomm's provider that select it.
    pub(super) fn options(self) -> [(String, String); 2] {
        [
            ("htp_arch", self.architecture),
            ("soc_model", self.soc_model),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_string()))
    }
}

impl fmt::Display for Chip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl FromStr for Chip {
    type Err = String;

    /// # Errors
    /// The names that were expected.
    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|chip| chip.name == name)
            .ok_or_else(|| format!("expected one of {}", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_are_found_by_their_names() {
        for chip in Chip::ALL {
            assert_eq!(chip.name().parse(), Ok(chip));
        }
        let error = "snapdragon".parse::<Chip>().unwrap_err();
        assert!(
            error.starts_with("expected one of snapdragon-8gen2, "),
            "{error}"
        );
    }
}
