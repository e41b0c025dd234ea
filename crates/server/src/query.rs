//! Parameters of an address, after `?`.

use std::borrow::Cow;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;

use crate::error::{ApiError, ApiResult};
use crate::responses::check_include;

/// The parameter with the parts of items that a client asks for, which may be given several times.
const INCLUDE: &str = "include";

/// The parameter by which clients of Azure name a version of the interface. It has no effect here.
const VERSION: &str = "api-version";

/// An extractor for routes without parameters, which refuses all.
pub(crate) struct NoQuery;

impl<S: Send + Sync> FromRequestParts<S> for NoQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        read(parts.uri.query(), &[]).map(|_| Self)
    }
}

/// Reads the parameters of an address with their names. `include` follows the rule of request bodies, and is left out.
///
/// # Errors
/// If a name is none of the `known` ones, a parameter is given twice, or a text is no UTF-8.
pub(crate) fn read<'a>(
    query: Option<&str>,
    known: &[&'a str],
) -> ApiResult<Vec<(&'a str, String)>> {
    let mut found: Vec<(&str, String)> = Vec::new();
    let mut include = Vec::new();
    let pairs = query.unwrap_or_default().split('&');
    for pair in pairs.filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decoded(name)?, decoded(value)?);
        if name == VERSION {
            continue;
        }
        let plain = name.strip_suffix("[]").filter(|name| *name == INCLUDE);
        let plain = plain.unwrap_or(&name);
        let Some(known) = known.iter().find(|known| **known == plain) else {
            let expected = match known {
                [] => "no parameters".to_owned(),
                known => known.join(", "),
            };
            let message = format!("unknown parameter: expected {expected} after the path");
            return Err(ApiError::field(&name, message).with_code("unknown_parameter"));
        };
        if *known == INCLUDE {
            include.push(value);
        } else if found.iter().any(|(name, _)| name == known) {
            return Err(ApiError::field(
                known,
                "it is given twice, expected it once",
            ));
        } else {
            found.push((known, value));
        }
    }
    check_include(&include)?;
    Ok(found)
}

/// Returns a name or value of a parameter without its encoding.
fn decoded(text: &str) -> ApiResult<String> {
    // Forms have `+` for a space.
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    let wrong = |_| ApiError::field(text, "it is no UTF-8");
    decoded.map(Cow::into_owned).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(query: &str) -> Option<String> {
        let error = read(Some(query), &["after", "include", "limit"]).err()?;
        error.detail.param
    }

    #[test]
    fn parameters_are_known_decoded_and_given_once() {
        let query = "after=a%20b%2Bc+d&&include[]=message.output_text.logprobs&limit=1\
                     &include%5B%5D=reasoning.encrypted_content&include=web_search_call.results";
        assert_eq!(
            read(Some(query), &["after", "include", "limit"]).unwrap(),
            [("after", "a b+c d".to_owned()), ("limit", "1".to_owned())]
        );
        assert!(read(None, &[]).unwrap().is_empty());
        for (query, name) in [
            ("limit=1&limit=1", "limit"),
            ("limit=1&l%69mit=2", "limit"),
            ("order=asc", "order"),
            ("Limit=1", "Limit"),
            ("limit[]=1", "limit[]"),
            ("before", "before"),
            ("include=a", "include"),
            (
                "include[]=message.output_text.logprobs&include[]=a",
                "include",
            ),
            ("after=%ff", "%ff"),
        ] {
            assert_eq!(refused(query).as_deref(), Some(name), "{query}");
        }
        assert!(read(Some("include=a"), &[]).is_err());
    }
}
