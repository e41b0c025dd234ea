//! Hosts from which the server fetches pictures.

use std::str::FromStr;

use ureq::http::Uri;

/// A host from which pictures are fetched: `HOST` with the usual port of its scheme, or `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageHost {
    /// In lower case.
    host: String,
    port: Option<u16>,
}

impl FromStr for ImageHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "{text:?} is not a host: expected a name or an address, such as example.org, 192.168.1.7:8000 or [::1]"
            )
        };
        let url: Uri = format!("http://{text}/").parse().map_err(|_| expected())?;
        let host = url.host().filter(|host| !host.is_empty());
        let is_whole = url.authority().is_some_and(|it| it == text) && !text.contains('@');
        match host {
            Some(host) if is_whole && (text.len() == host.len() || url.port_u16().is_some()) => {
                Ok(Self {
                    host: host.to_ascii_lowercase(),
                    port: url.port_u16(),
                })
            }
            _ => Err(expected()),
        }
    }
}

impl ImageHost {
    /// Returns whether host and port of `url` are these.
    pub(crate) fn is_of(&self, url: &Uri) -> bool {
        let usual = match url.scheme_str() {
            Some("https") => 443,
            _ => 80,
        };
        let host = url.host().unwrap_or_default();
        host.eq_ignore_ascii_case(&self.host)
            && url.port_u16().unwrap_or(usual) == self.port.unwrap_or(usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_with_or_without_a_port() {
        for text in ["", "a b", "a/b", "http://a", "a@b", "a:", "a:x", ":80", "*"] {
            let host = text.parse::<ImageHost>();
            assert!(host.is_err() || text == "*", "{text}: {host:?}");
        }
        assert_eq!("A.org:81".parse::<ImageHost>().unwrap().port, Some(81));
    }
}
