//! Tables of measurements in packages, as commands read them.

use std::path::Path;

use anyhow::Result;
use triad_hetero::{Measurements, Table};

use crate::output;

/// Opens a table of a package, with a note where no regular file has its name.
pub fn open<T: Measurements>(package: &Path) -> Result<Table<T>> {
    note_unread::<T>(package);
    Ok(Table::open(package)?)
}

/// Notes that something other than a regular file has the name of a table.
pub fn note_unread<T: Measurements>(package: &Path) {
    if let Some(path) = Table::<T>::unread(package) {
        output::note(&format!(
            "note: {} is no regular file, and counts as missing",
            path.display()
        ));
    }
}
