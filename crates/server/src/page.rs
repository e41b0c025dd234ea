//! The web page at `/`. Its files are embedded in this program and request nothing from other hosts.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::route::Entry;

/// The content security policy: the page may only run its own modules and connect to this server. It shows pictures
/// that users give it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
struct File {
    path: &'static str,
    kind: &'static str,
    content: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files of the page.
const FILES: [File; 11] = [
    File {
        path: "/",
        kind: HTML,
        content: include_str!("../page/index.html"),
    },
    File {
        path: "/style.css",
        kind: "text/css; charset=utf-8",
        content: include_str!("../page/style.css"),
    },
    File {
        path: "/icon.svg",
        kind: "image/svg+xml",
        content: include_str!("../page/icon.svg"),
    },
    File {
        path: "/app.js",
        kind: SCRIPT,
        content: include_str!("../page/app.js"),
    },
    File {
        path: "/api.js",
        kind: SCRIPT,
        content: include_str!("../page/api.js"),
    },
    File {
        path: "/markdown.js",
        kind: SCRIPT,
        content: include_str!("../page/markdown.js"),
    },
    File {
        path: "/messages.js",
        kind: SCRIPT,
        content: include_str!("../page/messages.js"),
    },
    File {
        path: "/pictures.js",
        kind: SCRIPT,
        content: include_str!("../page/pictures.js"),
    },
    File {
        path: "/sidebar.js",
        kind: SCRIPT,
        content: include_str!("../page/sidebar.js"),
    },
    File {
        path: "/store.js",
        kind: SCRIPT,
        content: include_str!("../page/store.js"),
    },
    File {
        path: "/timeline.js",
        kind: SCRIPT,
        content: include_str!("../page/timeline.js"),
    },
];

/// Returns the routes of the page's files. They need no API key: the page itself asks for it.
pub(crate) fn routes() -> impl Iterator<Item = Entry> {
    FILES.iter().map(|file| {
        let tag = tag(file.content);
        Entry::open(file.path, move |headers: HeaderMap| async move {
            respond(file, &tag, &headers)
        })
    })
}

/// Returns the ETag of a file's content.
fn tag(content: &str) -> String {
    let digest = Sha256::digest(content.as_bytes());
    let digits: String = digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("\"{digits}\"")
}

fn respond(file: &File, tag: &str, headers: &HeaderMap) -> Response {
    let is_known = headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        file.content.into_response()
    };
    let fields = [
        (header::CONTENT_TYPE, file.kind),
        (header::ETAG, tag),
        // A newer server may have newer files.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    for (name, value) in fields {
        // Replaces headers that the body set: with two content types, browsers use the first or none.
        response.headers_mut().insert(
            name,
            HeaderValue::from_str(value)
                .expect("header values of the page's files are visible ASCII"),
        );
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_the_page_names_is_one_of_its_files() {
        for File { path, content, .. } in &FILES {
            let named = content.split(['\'', '"']).filter_map(|part| {
                let name = part.strip_prefix("./").unwrap_or(part);
                let is_file = [".js", ".css", ".svg"]
                    .iter()
                    .any(|end| name.ends_with(end));
                (is_file && !name.contains([' ', ','])).then_some(name)
            });
            for name in named {
                assert!(
                    FILES
                        .iter()
                        .any(|file| file.path.trim_start_matches('/') == name),
                    "{path} names {name}"
                );
            }
        }
    }

    #[test]
    fn no_file_names_another_host_or_makes_html_of_text() {
        for File { path, content, .. } in &FILES {
            // XML namespaces are allowed, since they are never fetched, and so are the schemes of links.
            let named = content
                .match_indices("://")
                .map(|(at, _)| &content[at + 3..content.len().min(at + 16)]);
            let foreign: Vec<_> = named
                .filter(|name| {
                    !name.starts_with("www.w3.org") && name.starts_with(char::is_alphanumeric)
                })
                .collect();
            assert!(foreign.is_empty(), "{path}: {foreign:?}");
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                assert!(!content.contains(word), "{path} has {word}");
            }
        }
    }

    #[test]
    fn content_that_a_browser_has_is_not_sent_again() {
        let (file, tag) = (&FILES[0], tag(FILES[0].content));
        assert_eq!(
            respond(file, &tag, &HeaderMap::new()).status(),
            StatusCode::OK
        );
        let known =
            HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_str(&tag).unwrap())]);
        let response = respond(file, &tag, &known);
        assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
        assert!(
            response.headers()[header::CONTENT_SECURITY_POLICY]
                .to_str()
                .unwrap()
                .contains("script-src 'self'")
        );
    }
}
