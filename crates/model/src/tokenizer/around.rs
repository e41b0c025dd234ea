//! The tokens around a text, as `transformers` puts them: those of `post_processor`, which some classes replace.

use super::classes::Class;
use super::config::{CONFIG, Config};
use crate::error::{Error, ErrorKind, Result};

/// The tokens around a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Around {
    pub(super) prefix: Vec<u32>,
    pub(super) suffix: Vec<u32>,
}

/// Returns the tokens around a text: `of_file` are those of `post_processor`, `four_raises` states whether version 4 of
/// `transformers` does not read the files. Versions differ in the tokens where `post_processor` contradicts the
/// configuration, as in files of DeepSeek. They are then those of version 4, with which such files were made, and of
/// llama.cpp.
///
/// # Errors
/// If a field is not a boolean, or states a token that is not given.
pub(super) fn read(
    config: &Config<'_>,
    of_file: Around,
    (bos, eos): (Option<u32>, Option<u32>),
    four_raises: bool,
) -> Result<Around> {
    let stated = [config.bool("add_bos_token")?, config.bool("add_eos_token")?];
    if config.value["tokenizer_class"].is_null() {
        return without_class(of_file, stated, (bos, eos));
    }
    let Some(class) = Class::of(config) else {
        return Ok(of_file);
    };
    Ok(match class.adds(config.value).filter(|_| !four_raises) {
        Some((adds_bos, adds_eos)) => Around {
            prefix: bos.filter(|_| adds_bos).into_iter().collect(),
            suffix: eos.filter(|_| adds_eos).into_iter().collect(),
        },
        None if four_raises && class.adds_none_in_five => Around::default(),
        None => of_file,
    })
}

/// Returns the tokens around a text if the class is not known: what the configuration states overrides
/// `post_processor`.
fn without_class(
    mut around: Around,
    [adds_bos, adds_eos]: [Option<bool>; 2],
    (bos, eos): (Option<u32>, Option<u32>),
) -> Result<Around> {
    let overrule = |tokens: &mut Vec<u32>, field, stated, token: Option<u32>| {
        match (stated, token) {
            (None, _) => {}
            (Some(false), _) => tokens.clear(),
            (Some(true), Some(token)) => *tokens = vec![token],
            (Some(true), None) => {
                let message = format!("{CONFIG}: `{field}` is true, but the token is not given");
                return Err(Error::new(ErrorKind::Missing, message));
            }
        }
        Ok(())
    };
    overrule(&mut around.prefix, "add_bos_token", adds_bos, bos)?;
    overrule(&mut around.suffix, "add_eos_token", adds_eos, eos)?;
    Ok(around)
}
