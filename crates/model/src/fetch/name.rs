//! The names of models for users.

use std::path::PathBuf;

use super::progress::fetch_error;
use crate::error::Result;

/// The name of the default model: SmolLM2-135M-Instruct, Apache-2.0.
pub const DEFAULT_MODEL: &str = "smollm2-135m";

/// The end of a name that stands for no tag, as in Ollama.
const LATEST: &str = ":latest";

/// Returns the name of a model of the cache without `:latest`, which says nothing. Other names and paths stay.
pub fn untagged(name: &str) -> &str {
    match name.strip_suffix(LATEST) {
        // Of two, none is dropped, so that a name without its tag stays what it is.
        Some(rest) if rest.ends_with(LATEST) => name,
        Some(rest) if rest == DEFAULT_MODEL || rest.starts_with("hf:") => rest,
        _ => name,
    }
}

/// A parsed model name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ModelName {
    /// [`DEFAULT_MODEL`].
    Default,
    /// A repository on the hub.
    Hub(Repository),
    /// A file or folder, which may not exist.
    Path(PathBuf),
}

/// `hf:owner/name[:file]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Repository {
    pub(super) owner: String,
    pub(super) name: String,
    /// The one file to fetch; `None`: the files that belong together by the repository's list.
    pub(super) file: Option<String>,
}

impl ModelName {
    pub(super) fn parse(name: &str) -> Result<Self> {
        let name = untagged(name);
        if name.is_empty() {
            return Err(fetch_error("the model's name is empty"));
        }
        if name == DEFAULT_MODEL {
            return Ok(Self::Default);
        }
        let Some(rest) = name.strip_prefix("hf:") else {
            return Ok(Self::Path(name.into()));
        };
        let (repository, file) = match rest.split_once(':') {
            Some((repository, file)) => (repository, Some(file)),
            None => (rest, None),
        };
        let malformed = |what: &str| {
            fetch_error(format!(
                "model name `{name}`: {what}, expected `hf:owner/name` or `hf:owner/name:file`"
            ))
        };
        let (owner, name) = repository
            .split_once('/')
            .ok_or_else(|| malformed("no `/` between owner and name"))?;
        for (part, what) in [(owner, "owner"), (name, "name")] {
            if !is_plain(part) {
                return Err(malformed(&format!(
                    "the {what} may have letters, digits, `-`, `_` and `.`"
                )));
            }
        }
        if let Some(file) = file.filter(|file| !stays_inside(file)) {
            return Err(malformed(&format!(
                "`{file}` is not a file inside the repository"
            )));
        }
        Ok(Self::Hub(Repository {
            owner: owner.into(),
            name: name.into(),
            file: file.map(str::to_owned),
        }))
    }
}

fn is_plain(part: &str) -> bool {
    let letters = part
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    letters && !part.is_empty() && part.bytes().any(|byte| byte != b'.')
}

/// Returns whether `file`, joined to a folder on any platform, names a path below that folder.
pub(super) fn stays_inside(file: &str) -> bool {
    let foreign =
        |c: char| c.is_control() || matches!(c, '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    !file.contains(foreign)
        && file
            .split('/')
            .all(|part| !part.trim_end_matches(['.', ' ']).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_kinds_of_names_are_distinguished() {
        let hub = |file: Option<&str>| {
            let file = file.map(str::to_owned);
            ModelName::Hub(Repository {
                owner: "Qwen".into(),
                name: "Qwen2.5-0.5B_x".into(),
                file,
            })
        };
        for (name, expected) in [
            ("smollm2-135m", ModelName::Default),
            ("./smollm2-135m", ModelName::Path("./smollm2-135m".into())),
            ("model.gguf", ModelName::Path("model.gguf".into())),
            ("smollm2-135m:latest", ModelName::Default),
            ("model:latest", ModelName::Path("model:latest".into())),
            ("hf:Qwen/Qwen2.5-0.5B_x", hub(None)),
            ("hf:Qwen/Qwen2.5-0.5B_x:latest", hub(None)),
            (
                "hf:Qwen/Qwen2.5-0.5B_x:q4.gguf:latest",
                hub(Some("q4.gguf")),
            ),
            (
                "hf:Qwen/Qwen2.5-0.5B_x:sub/q4.gguf",
                hub(Some("sub/q4.gguf")),
            ),
        ] {
            assert_eq!(ModelName::parse(name).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn a_malformed_hub_name_is_an_error_with_the_form() {
        for name in [
            "hf:",
            "hf:owner",
            "hf:/name",
            "hf:owner/",
            "hf:../name",
            "hf:a/b/c",
            "hf:a/b:",
            "hf:a/b:../c",
            "hf:a/b:latest:latest",
            "hf:a/b c",
        ] {
            let error = ModelName::parse(name).unwrap_err().to_string();
            assert!(
                error.contains(name) && error.contains("`hf:owner/name:file`"),
                "{error}"
            );
        }
    }

    #[test]
    fn only_names_below_the_folder_stay_inside() {
        for inside in ["model.gguf", "a/b.gguf", "..model", ".hidden", "Ünï.gguf"] {
            assert!(stays_inside(inside), "{inside}");
        }
        for outside in [
            "",
            "..",
            ".",
            "../a",
            "a/../../b",
            "/etc/passwd",
            "a//b",
            "c:\\x",
            "c:x",
            "a\\..\\b",
            "a/.. /b",
            "a\0",
        ] {
            assert!(!stays_inside(outside), "{outside:?}");
        }
    }
}
