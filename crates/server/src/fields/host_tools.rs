//! The fields of `/mcp/call`.

use super::{Field, followed, noted};

pub(super) const FIELDS: &[Field] = &[
    followed("name", "T"),
    noted("arguments", "T", "an object; the default has no fields"),
];
