//! `--partition`: products that are cut as the partition solver chooses by what `triad profile` measured.

use std::path::Path;

use anyhow::{Context, Result};
use triad_engine::execute::{ProductCosts, ProductTable};
use triad_plan::partition::solve::Restriction;

use crate::measurements;

/// Reads a restriction by its name.
pub fn restriction(text: &str) -> Result<Restriction, String> {
    let named = Restriction::ALL
        .into_iter()
        .find(|restriction| restriction.name() == text.trim());
    named.ok_or_else(|| "expected layer, tensor or auto".into())
}

/// What products take on a list of processors by its `key`, as `triad profile` has measured it for the model of a
/// `package`. `list` is how the user names the processors.
pub fn product_costs(package: Option<&Path>, key: &str, list: &str) -> Result<ProductCosts> {
    let package = package
        .context("--partition goes by what `triad profile` keeps in a package: expected one")?;
    let table = measurements::open::<ProductCosts>(package)?;
    let measured = table.of(key).cloned();
    measured.with_context(|| {
        format!(
            "{}: what products take on {key} was not measured: run `triad profile -m {} --processors {list}` first, with \
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
        assert!(
            restriction("whole")
                .unwrap_err()
                .starts_with("expected layer")
        );
    }
}
