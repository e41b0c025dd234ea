//! The argument `--partition`: products are cut as the partition solver chooses by the measurements of `triad profile`.

mod table;

use std::path::Path;

use anyhow::{Context, Result};
use triad_hetero::{ProductCosts, ProductTable};
use triad_plan::partition::energy::Objective;
use triad_plan::partition::solve::Restriction;

pub use table::{CutProduct, Partitions, because};

use crate::measurements;

/// Parses a restriction by its name.
pub fn restriction(text: &str) -> Result<Restriction, String> {
    let named = Restriction::ALL
        .into_iter()
        .find(|restriction| restriction.name() == text.trim());
    named.ok_or_else(|| "expected layer, tensor or auto".into())
}

/// Parses an objective by its name.
pub fn objective(text: &str) -> Result<Objective, String> {
    let named = Objective::ALL
        .into_iter()
        .find(|objective| objective.name() == text.trim());
    named.ok_or_else(|| "expected latency, energy or balanced".into())
}

/// Returns the times of products on the processors with the key `key`, as `triad profile` measured them for the model
/// of a `package`. `list` is the user's text for the processors.
pub fn product_costs(package: Option<&Path>, key: &str, list: &str) -> Result<ProductCosts> {
    let package = package
        .context("--partition uses the measurements that `triad profile` stores in a package: expected a package")?;
    let table = measurements::open::<ProductCosts>(package)?;
    let measured = table.get(key).cloned();
    measured.with_context(|| {
        format!(
            "{}: the time of products on {key} was not measured: run `triad profile -m {} --processors {list}` first, with \
             the same --npu and --gpu",
            ProductTable::path(package).display(),
            package.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_measurements_the_command_that_makes_them_is_named() {
        let package = tempfile::tempdir().unwrap();
        let refused = product_costs(Some(package.path()), "CPU, CPU2", "cpu=0,cpu=1")
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("triad profile -m ") && refused.contains("--processors cpu=0,cpu=1"),
            "{refused}"
        );
        assert!(
            product_costs(None, "CPU, CPU2", "cpu=0,cpu=1")
                .unwrap_err()
                .to_string()
                .contains("package")
        );
        assert_eq!(restriction("tensor"), Ok(Restriction::Tensor));
        assert_eq!(objective("energy"), Ok(Objective::Energy));
        assert!(objective("power").unwrap_err().starts_with("expected"));
        assert!(
            restriction("whole")
                .unwrap_err()
                .starts_with("expected layer")
        );
    }
}
