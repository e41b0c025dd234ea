//! The environment variables of hubs.

use ureq::http::Uri;

use super::super::get::without_login;
use super::super::progress::fetch_error;
use super::HUGGING_FACE;
use crate::environment;
use crate::error::Result;

/// Returns the address in `HF_ENDPOINT`, if it is set.
///
/// # Errors
/// If it is no address.
pub(super) fn endpoint() -> Result<Option<String>> {
    let endpoint = trimmed("HF_ENDPOINT")?;
    endpoint.as_deref().map_or(Ok(()), check_endpoint)?;
    Ok(endpoint)
}

/// Returns the token in `HF_TOKEN`, if it is set.
///
/// # Errors
/// If it cannot be sent.
pub(super) fn token() -> Result<Option<String>> {
    let token = trimmed("HF_TOKEN")?;
    token.as_deref().map_or(Ok(()), check_token)?;
    Ok(token)
}

/// Returns a variable without white space around it; `None` if nothing is left.
fn trimmed(name: &str) -> Result<Option<String>> {
    let text = environment::text(name)?.map(|text| text.trim().to_owned());
    Ok(text.filter(|text| !text.is_empty()))
}

/// Checks the value of `HF_ENDPOINT`.
pub(super) fn check_endpoint(endpoint: &str) -> Result<()> {
    let is_origin = |url: Uri| {
        let is_http = matches!(url.scheme_str(), Some("http" | "https"));
        is_http && url.host().is_some_and(|host| !host.is_empty()) && url.query().is_none()
    };
    if endpoint.parse().is_ok_and(is_origin) && !endpoint.contains('#') {
        return Ok(());
    }
    Err(fetch_error(format!(
        "HF_ENDPOINT is {:?}, expected the address of a hub, such as {HUGGING_FACE}",
        without_login(endpoint)
    )))
}

/// Checks the value of `HF_TOKEN`.
pub(super) fn check_token(token: &str) -> Result<()> {
    if token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    Err(fetch_error(
        "HF_TOKEN is no token: expected letters, digits and signs of ASCII without spaces",
    ))
}
