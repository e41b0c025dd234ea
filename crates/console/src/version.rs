//! The text of `triad --version`: version, commit and features.

use std::sync::LazyLock;

/// Returns `0.1.0 (commit 0123456789ab, features gpu, hexagon, npu)`. The commit ends in `+` if files were changed. It
/// is omitted if it is unknown, as in debug builds.
pub fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| text(option_env!("TRIAD_BUILT_FROM")));
    &TEXT
}

fn text(commit: Option<&str>) -> String {
    let features = [
        ("gpu", cfg!(feature = "gpu")),
        ("hexagon", cfg!(feature = "hexagon")),
        ("npu", cfg!(feature = "npu")),
    ];
    let features: Vec<_> = features
        .iter()
        .filter(|(_, is_on)| *is_on)
        .map(|(name, _)| *name)
        .collect();
    let features = if features.is_empty() {
        "no features".into()
    } else {
        format!("features {}", features.join(", "))
    };
    let commit = commit.map_or(String::new(), |commit| format!("commit {commit}, "));
    format!("{} ({commit}{features})", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_names_the_commit_if_it_is_known_and_the_features() {
        let known = text(Some("0123456789ab"));
        assert!(
            known.starts_with(env!("CARGO_PKG_VERSION"))
                && known.contains("(commit 0123456789ab, "),
            "{known}"
        );
        assert!(!text(None).contains("commit"));
        assert_eq!(known.contains("gpu"), cfg!(feature = "gpu"));
        assert_eq!(known.contains("npu"), cfg!(feature = "npu"));
    }
}
