//! Environment variables that are texts.

use std::env;
use std::ffi::OsString;

use crate::error::{Error, ErrorKind, Result};

/// Returns the text in the environment variable `name`; `None` if it is not set, or empty.
///
/// # Errors
/// [`ErrorKind::Malformed`] if it is not UTF-8. To go on as if it were not set could leave out a key, or send a token to
/// another host.
pub fn text(name: &str) -> Result<Option<String>> {
    checked(name, env::var_os(name))
}

fn checked(name: &str, value: Option<OsString>) -> Result<Option<String>> {
    let text = value.map(OsString::into_string).transpose();
    // The value may be a secret: it is not shown.
    let text = text.map_err(|_| {
        let message = format!("the environment variable {name} is not UTF-8: expected a text");
        Error::new(ErrorKind::Malformed, message)
    })?;
    Ok(text.filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_not_text_is_an_error_and_not_one_that_is_not_set() {
        let read = |value: Option<&str>| checked("KEY", value.map(OsString::from)).unwrap();
        assert_eq!((read(None), read(Some(""))), (None, None));
        assert_eq!(read(Some("key")).as_deref(), Some("key"));
        #[cfg(unix)]
        {
            use std::os::unix::ffi::OsStringExt;
            let error = checked("KEY", Some(OsString::from_vec(b"secret\xff".to_vec())));
            let error = error.unwrap_err().to_string();
            assert!(error.contains("KEY is not UTF-8"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
