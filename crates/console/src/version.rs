//! The text of `triad --version`: version, commit and features.

use std::sync::LazyLock;

/// Returns `0.1.0 (commit 0123456789ab, features gpu, hexagon, npu)`. The commit ends in `+` if files were changed. It
/// is omitted if it is unknown, as in debug builds.
pub fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| text(option_env!("TRIAD_BUILT_FROM")));
    &TEXT
}

/// The features for processors, and whether this program was built with each.
const FEATURES: [(&str, bool); 3] = [
    ("gpu", cfg!(feature = "gpu")),
    ("hexagon", cfg!(feature = "hexagon")),
    ("npu", cfg!(feature = "npu")),
];

/// Returns the features for processors that this program was built without.
pub fn missing_features() -> Vec<&'static str> {
    with(false)
}

/// Returns the features that are on, or those that are not.
fn with(on: bool) -> Vec<&'static str> {
    let features = FEATURES.iter().filter(|(_, is_on)| *is_on == on);
    features.map(|(name, _)| *name).collect()
}

/// Returns an error's words for a feature that this program was built without.
pub fn without(feature: &str) -> String {
    format!(
        "this program was built without the feature {feature}: add `--features full` to the `cargo` command that \
         builds it"
    )
}

fn text(commit: Option<&str>) -> String {
    let features = with(true);
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
