//! Pictures within JSON: `data:` URLs and base64.

use base64::Engine;
use base64::engine::general_purpose::GeneralPurpose;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use percent_encoding::percent_decode_str;

use crate::check::check_bytes;
use crate::error::{Error, Result};

/// The standard alphabet; clients differ in the padding at the end.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Decodes base64. Line breaks are allowed.
///
/// # Errors
///
/// Returns an error for other letters, and for more bytes than a picture may have.
pub fn from_base64(text: &str) -> Result<Vec<u8>> {
    // Checked before memory is taken: 4 letters are 3 bytes.
    check_bytes(text.len() / 4 * 3)?;
    if text.contains(['\n', '\r']) {
        let one_line = text.replace(['\n', '\r'], "");
        return Ok(BASE64.decode(one_line)?);
    }
    Ok(BASE64.decode(text)?)
}

/// Returns the bytes of a `data:` URL of a picture. Its media type is not trusted: the bytes say what they are.
///
/// # Errors
///
/// Returns an error if the URL is of another kind or not base64.
pub fn from_data_url(url: &str) -> Result<Vec<u8>> {
    let rest = strip_scheme(url).ok_or(Error::DataUrl("is not a data: URL"))?;
    let (head, data) = rest
        .split_once(',')
        .ok_or(Error::DataUrl("has no comma after its media type"))?;
    let mut parts = head.split(';');
    let kind = parts.next().unwrap_or_default();
    if !kind.is_empty() && !kind.to_ascii_lowercase().starts_with("image/") {
        return Err(Error::DataUrl("is not that of a picture"));
    }
    if !parts.any(|part| part.eq_ignore_ascii_case("base64")) {
        return Err(Error::DataUrl("is not in base64"));
    }
    if !data.contains(['%', ' ', '\t']) {
        return from_base64(data);
    }
    // Letters of a URL may be escaped.
    let data = percent_decode_str(data).decode_utf8_lossy();
    from_base64(&data.replace([' ', '\t'], ""))
}

/// Returns the part of a `data:` URL after the scheme, or `None` for other text.
fn strip_scheme(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once(':')?;
    scheme.eq_ignore_ascii_case("data").then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_urls_and_base64_are_decoded_with_and_without_padding() {
        for url in [
            "data:image/png;base64,aGk=",
            "DATA:image/PNG;charset=x;BASE64,aGk",
            "data:;base64,aG\nk=",
            "data:image/png;base64, aGk%3D",
        ] {
            assert_eq!(from_data_url(url).unwrap(), b"hi", "{url}");
        }
    }

    #[test]
    fn other_urls_are_refused_by_name() {
        for (url, problem) in [
            ("https://a/b.png", "is not a data: URL"),
            ("b.png", "is not a data: URL"),
            ("data:image/png;base64", "has no comma"),
            ("data:text/plain;base64,aGk=", "is not that of a picture"),
            ("data:image/svg+xml,<svg/>", "is not in base64"),
            ("data:image/png;base64,a%20", "not valid base64"),
        ] {
            let error = from_data_url(url).unwrap_err().to_string();
            assert!(error.contains(problem), "{url}: {error}");
        }
    }
}
