//! Decides whether the weights of a model are read into huge pages, or used where their file is mapped.
//!
//! Each token of decode reads all weights, and a processor reads them a fifth faster from pages of 2 MiB than from
//! those of a mapped file (`docs/measurements/memory.md`). But a copy takes time, and memory that the system cannot reclaim as
//! it can reclaim pages of a file. So it is made where twice the memory that it takes is available.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};
use crate::machine;

/// The environment variable that decides for all models, with `on` or `off`, regardless of memory.
pub const VARIABLE: &str = "TRIAD_HUGE_PAGES";
/// The file in which Linux reports which programs get huge pages.
const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// The files with the memory limit of a control group, by its versions.
const LIMITS: [&str; 2] = ["memory.max", "memory/memory.limit_in_bytes"];
/// Available memory that a copy requires, as a multiple of its size.
const ROOM: u64 = 2;

/// Returns whether `bytes` bytes of weights should be read into huge pages.
///
/// # Errors
/// [`Error::Variable`] if [`VARIABLE`] is neither `on` nor `off`.
pub fn are_worth_it(bytes: u64) -> Result<bool> {
    let value = std::env::var_os(VARIABLE).unwrap_or_default();
    if let Some(decided) = requested(&value.to_string_lossy())? {
        return Ok(decided);
    }
    let enabled = fs::read_to_string(ENABLED).unwrap_or_default();
    let rooms = [
        machine::available_memory(),
        machine::available_addresses(),
        group_limit(),
    ];
    Ok(are_enabled(&enabled) && has_room(bytes, rooms))
}

/// Parses a value of [`VARIABLE`]. Returns `None` for an empty value.
fn requested(value: &str) -> Result<Option<bool>> {
    match value {
        "" => Ok(None),
        "on" => Ok(Some(true)),
        "off" => Ok(Some(false)),
        _ => Err(Error::Variable {
            name: VARIABLE,
            value: value.to_owned(),
            expected: "on or off",
        }),
    }
}

/// Returns whether a program that requests huge pages gets them, by the content of [`ENABLED`].
fn are_enabled(content: &str) -> bool {
    ["[always]", "[madvise]"]
        .iter()
        .any(|chosen| content.contains(chosen))
}

/// Returns whether each known amount of memory is large enough.
fn has_room(bytes: u64, rooms: [Option<u64>; 3]) -> bool {
    rooms
        .iter()
        .flatten()
        .all(|room| bytes.saturating_mul(ROOM) <= *room)
}

/// Returns the memory limit of this process's control group, usually of a container; `None` without a limit.
fn group_limit() -> Option<u64> {
    let root = Path::new("/sys/fs/cgroup");
    // In a container, its own group is the root. Elsewhere the group has a name.
    let named = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let named = named
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or_default();
    let folders = [root.to_owned(), root.join(named)];
    let files = folders
        .iter()
        .flat_map(|folder| LIMITS.map(|limit| folder.join(limit)));
    files
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_made_where_huge_pages_are_given_and_all_memory_that_is_known_has_room_for_two() {
        assert!(are_enabled("always [madvise] never\n") && are_enabled("[always] madvise never\n"));
        assert!(!are_enabled("always madvise [never]\n") && !are_enabled(""));
        assert!(has_room(50, [Some(100), None, Some(1000)]) && has_room(u64::MAX, [None; 3]));
        assert!(
            !has_room(51, [Some(100), None, None]) && !has_room(50, [Some(100), Some(99), None])
        );
        assert!(!has_room(u64::MAX, [Some(u64::MAX - 1), None, None]));
    }

    #[test]
    fn the_variable_is_on_or_off() {
        assert_eq!(
            [requested("").unwrap(), requested("on").unwrap()],
            [None, Some(true)]
        );
        assert_eq!(requested("off").unwrap(), Some(false));
        let refused = requested("yes").unwrap_err().to_string();
        assert_eq!(refused, r#"TRIAD_HUGE_PAGES is "yes": expected on or off"#);
    }
}
