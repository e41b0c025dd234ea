//! A single GET. Redirects are followed here, so that the hub's token is only sent to that hub.

use std::time::Duration;

use ureq::http::{Response, Uri, header};
use ureq::{Agent, Body};

/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 10;

/// A request to a server.
pub(super) struct Get {
    pub(super) agent: Agent,
    pub(super) url: String,
    /// The token, which is only sent to the origin of `url`: the same scheme, host and port.
    pub(super) token: Option<String>,
    /// The first requested byte.
    pub(super) from: u64,
    /// Time limit for the whole response.
    pub(super) time_out: Option<Duration>,
}

impl Get {
    /// Returns the response after all redirects.
    ///
    /// # Errors
    /// A sentence, if the network fails or there are too many redirects.
    pub(super) fn call(&self) -> Result<Response<Body>, String> {
        let mut url: Uri = self
            .url
            .parse()
            .map_err(|error| format!("not an address: {error}"))?;
        let own = origin(&url);
        let mut token = self.token.as_deref();
        for _ in 0..=MAX_REDIRECTS {
            // The file's bytes come from another host, which must not receive the token.
            token = token.filter(|_| origin(&url) == own);
            let mut request = self.agent.get(url.clone());
            if let Some(token) = token {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            if self.from > 0 {
                request = request.header(header::RANGE, format!("bytes={}-", self.from));
            }
            let request = request.config().timeout_global(self.time_out).build();
            let response = request.call().map_err(|error| error.to_string())?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(response);
            }
            let location = response
                .headers()
                .get(header::LOCATION)
                .and_then(|location| location.to_str().ok());
            let location = location.ok_or("a redirect without an address")?;
            url = joined(&url, location)
                .ok_or_else(|| format!("a redirect to {location:?}, expected an address"))?;
        }
        Err(format!("more than {MAX_REDIRECTS} redirects"))
    }
}

/// Returns scheme, host and port.
fn origin(url: &Uri) -> (String, String, Option<u16>) {
    let scheme = url.scheme_str().unwrap_or_default().to_ascii_lowercase();
    let port = url.port_u16().or(match &*scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    });
    (
        scheme,
        url.host().unwrap_or_default().to_ascii_lowercase(),
        port,
    )
}

/// Returns an address for messages: without the name and password that it may have before its host.
pub(super) fn without_login(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = rest[..end].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}://{}", &rest[host..])
}

/// Returns the absolute address of `location` in a response from `base`; `None` if it is not HTTP.
pub fn joined(base: &Uri, location: &str) -> Option<Uri> {
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    let folder = base
        .path()
        .rsplit_once('/')
        .map_or("", |(folder, _)| folder);
    let whole = match location {
        other if other.starts_with("//") => format!("{scheme}:{other}"),
        path if path.starts_with('/') => format!("{scheme}://{authority}{path}"),
        query if query.starts_with('?') => format!("{scheme}://{authority}{}{query}", base.path()),
        whole
            if whole
                .split('/')
                .next()
                .is_some_and(|scheme| scheme.ends_with(':')) =>
        {
            whole.to_owned()
        }
        path => format!("{scheme}://{authority}{folder}/{path}"),
    };
    let url: Uri = whole.parse().ok()?;
    let is_http = matches!(origin(&url), (scheme, host, _) if ["http", "https"].contains(&&*scheme) && !host.is_empty());
    is_http.then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let origin = |url: &str| origin(&url.parse().unwrap());
        assert_eq!(origin("https://Hub.co/a"), origin("HTTPS://hub.co:443/b?c"));
        for other in [
            "http://hub.co/a",
            "https://hub.co:444/a",
            "https://a.hub.co/a",
            "https://hub.co.a/a",
        ] {
            assert_ne!(origin("https://hub.co/a"), origin(other));
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        for (url, shown) in [
            ("https://hub.co/a", "https://hub.co/a"),
            ("https://me:pass@hub.co:8/a?b", "https://hub.co:8/a?b"),
            ("https://me:p@ss@hub.co", "https://hub.co"),
            ("https://hub.co/a@b", "https://hub.co/a@b"),
            ("hub.co", "hub.co"),
        ] {
            assert_eq!(without_login(url), shown);
        }
    }

    #[test]
    fn a_location_is_an_address_or_a_part_of_one() {
        let joined = |location: &str| {
            joined(&"http://hub.co:8/a/b?c".parse().unwrap(), location).map(|url| url.to_string())
        };
        let cases = [
            ("https://cdn.co/x?y", "https://cdn.co/x?y"),
            ("//cdn.co/x", "http://cdn.co/x"),
            ("/x/y", "http://hub.co:8/x/y"),
            ("x", "http://hub.co:8/a/x"),
            ("?x", "http://hub.co:8/a/b?x"),
        ];
        for (location, expected) in cases {
            assert_eq!(joined(location).as_deref(), Some(expected));
        }
        for location in [
            "file:///etc/passwd",
            "ftp://hub.co/a",
            "http://",
            "http://a b/",
        ] {
            assert_eq!(joined(location), None, "{location}");
        }
    }
}
