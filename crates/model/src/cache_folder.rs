//! The folder for data that Triad keeps outside of models: fetched models, measurements, and the secret of its seals.

use std::env;
use std::path::PathBuf;

use crate::error::{Error, ErrorKind, Result};

/// Returns `TRIAD_CACHE`, or `triad` in the platform's cache folder.
pub(crate) fn folder() -> Result<PathBuf> {
    folder_from(|name| {
        let value = env::var_os(name).filter(|value| !value.is_empty());
        let value = value.map(PathBuf::from);
        // A service may lack the variable, and its user has a home.
        value.or_else(|| env::home_dir().filter(|_| name == "HOME"))
    })
}

fn folder_from(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    let platform = || {
        if cfg!(windows) {
            variable("LOCALAPPDATA")
        } else if cfg!(target_os = "macos") {
            variable("HOME").map(|home| home.join("Library/Caches"))
        } else {
            // By the XDG specification, relative paths are ignored.
            let xdg = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute());
            xdg.or_else(|| variable("HOME").map(|home| home.join(".cache")))
        }
    };
    variable("TRIAD_CACHE")
        .or_else(|| Some(platform()?.join("triad")))
        .ok_or_else(|| {
            Error::new(
                ErrorKind::Io,
                "no cache folder is known on this machine: set TRIAD_CACHE to a folder for models",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(variables: &[(&str, &str)]) -> Result<PathBuf> {
        let find = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| PathBuf::from(value))
        };
        folder_from(find)
    }

    #[test]
    fn triad_cache_overrides_the_platform() {
        let found = folder_with(&[
            ("TRIAD_CACHE", "/models"),
            ("HOME", "/home/a"),
            ("LOCALAPPDATA", "/local"),
        ]);
        assert_eq!(found.unwrap(), PathBuf::from("/models"));
    }

    #[test]
    fn without_any_variable_the_error_names_what_to_set() {
        assert!(
            folder_with(&[])
                .unwrap_err()
                .to_string()
                .contains("set TRIAD_CACHE")
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn on_linux_the_cache_follows_the_xdg_specification() {
        let home = ("HOME", "/home/a");
        assert_eq!(
            folder_with(&[home]).unwrap(),
            PathBuf::from("/home/a/.cache/triad")
        );
        assert_eq!(
            folder_with(&[home, ("XDG_CACHE_HOME", "/c")]).unwrap(),
            PathBuf::from("/c/triad")
        );
        assert_eq!(
            folder_with(&[home, ("XDG_CACHE_HOME", "c")]).unwrap(),
            PathBuf::from("/home/a/.cache/triad")
        );
    }
}
