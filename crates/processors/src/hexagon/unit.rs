//! The unit of the device that multiplies: HVX, the vector unit, or HMX, the matrix unit.

use std::fmt::{self, Display};
use std::str::FromStr;

use super::fault;
use super::protocol::{ALIGNMENT, TILE_COLUMNS, TILE_ROWS, field, sum_stride};
use super::shared::SharedMemory;

/// A unit of a Hexagon NPU that multiplies INT8 numbers. Both compute the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// The vector unit, which every supported DSP has.
    Hvx,
    /// The matrix unit.
    Hmx,
}

impl Unit {
    /// The name of the option that selects a unit.
    pub const OPTION: &str = "unit";
}

impl FromStr for Unit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "hvx" => Ok(Self::Hvx),
            "hmx" => Ok(Self::Hmx),
            _ => Err(format!("{text}: expected hvx or hmx")),
        }
    }
}

/// Work of HMX since the start of the device, as counted by the emulated program's model of it; zeros on a DSP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HmxCounts {
    /// Executed instructions. A matrix multiplication is two.
    pub instructions: u64,
    /// Bytes that they read from and wrote to VTCM.
    pub bytes: u64,
    /// Size of the part of VTCM that they used.
    pub used: u64,
}

impl HmxCounts {
    /// Returns these and `more` together.
    pub(super) fn and(self, more: Self) -> Self {
        Self {
            instructions: self.instructions.saturating_add(more.instructions),
            bytes: self.bytes.saturating_add(more.bytes),
            used: self.used.max(more.used),
        }
    }
}

/// The oldest architecture whose HMX is used. Its predecessor, v68, has other tables.
pub(super) const OLDEST_HMX: u32 = 0x69;
/// The unit that the host asks for, and a device's own one, in the protocol.
const HVX: u64 = 0;
const HMX: u64 = 1;
const MODEL: u64 = 2;
/// Features of a crouton, HMX's tile of activations.
const CROUTON_FEATURES: usize = 32;

/// Returns the unit that a host asks for, as a number of the protocol.
pub(super) fn request(unit: Option<Unit>) -> u64 {
    match unit {
        Some(Unit::Hvx) => HVX,
        Some(Unit::Hmx) | None => HMX,
    }
}

/// The unit of a running device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FoundUnit {
    code: u64,
    fault: u64,
    /// Maximum number of input features of a matmul on HMX.
    features: u64,
    /// The host's reason why the device does not use HMX.
    reason: Option<String>,
}

impl FoundUnit {
    /// Reads the fields of a started device.
    ///
    /// # Errors
    /// If they are not those of a device.
    pub fn read(shared: &SharedMemory) -> Result<Self, String> {
        let fields = [
            field::DEVICE_UNIT,
            field::DEVICE_FAULT,
            field::DEVICE_FEATURES,
        ];
        let [code, fault, features] = fields.map(|index| shared.field(index));
        if code > MODEL {
            return Err(format!(
                "it reports the unit {code}, expected at most {MODEL}"
            ));
        }
        Ok(Self {
            code,
            fault,
            features,
            reason: None,
        })
    }

    /// Keeps the host's reason why this is HVX.
    pub fn explain(&mut self, reason: String) {
        self.reason = Some(reason);
    }

    /// Returns the unit.
    pub fn unit(&self) -> Unit {
        if self.code == HVX {
            Unit::Hvx
        } else {
            Unit::Hmx
        }
    }

    /// Returns the unit for matmuls of these numbers of input features: HVX if their activations, and buffers for their
    /// weights and sums, do not fit into VTCM.
    pub fn for_features(&self, in_features: impl IntoIterator<Item = usize>) -> Unit {
        let fits = |features: usize| features as u64 <= self.features;
        if self.unit() == Unit::Hmx && in_features.into_iter().all(fits) {
            Unit::Hmx
        } else {
            Unit::Hvx
        }
    }
}

impl Display for FoundUnit {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let reason = match (self.code, self.fault, &self.reason) {
            (HMX, ..) => return f.write_str("HMX"),
            (MODEL, ..) => {
                return f.write_str("HMX (a model, which decodes the instruction words)");
            }
            (_, _, Some(reason)) => reason.clone(),
            (_, 0, None) => return f.write_str("HVX"),
            (_, fault, None) => fault::describe(fault),
        };
        write!(f, "HVX, since HMX can't be used: {reason}")
    }
}

/// Layouts that depend on the unit.
impl Unit {
    /// Returns the number of this unit in an image.
    pub(super) fn code(self) -> u32 {
        match self {
            Self::Hvx => HVX as u32,
            Self::Hmx => HMX as u32,
        }
    }

    /// Returns the bytes of the activations of a tile of rows. HVX has `[in_features / 4][8][4]`, zero-padded to whole
    /// vectors; HMX has rows that are padded to whole vectors.
    pub(super) fn input_tile(self, in_features: usize) -> usize {
        let multiple = match self {
            Self::Hvx => 16,
            Self::Hmx => ALIGNMENT,
        };
        in_features.next_multiple_of(multiple) * TILE_ROWS
    }

    /// Returns the output channels in a tile of weights, and the input features to whose multiple they are padded.
    pub(super) fn weight_tile(self) -> (usize, usize) {
        match self {
            Self::Hvx => (TILE_COLUMNS, 4),
            Self::Hmx => (32, CROUTON_FEATURES),
        }
    }

    /// Returns the exclusive-or mask between signed weights and those of the unit, which are unsigned for HVX.
    pub(super) fn flip(self) -> u8 {
        match self {
            Self::Hvx => 0x80,
            Self::Hmx => 0,
        }
    }

    /// Returns the number of corrections, which precede the weights of `out_features` channels in an image: −128 · Σ weights of each column.
    pub(super) fn corrections(self, out_features: usize) -> usize {
        match self {
            Self::Hvx => 0,
            Self::Hmx => sum_stride(out_features),
        }
    }
}
