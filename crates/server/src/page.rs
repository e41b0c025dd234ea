//! The web page at `/`. Its files are embedded in this program and request nothing from other hosts.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::route::Entry;

/// The content security policy: the page may only run its own modules and connect to this server. It shows pictures
/// that users give it, and its fonts of formulas.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; \
                      connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
struct File {
    path: &'static str,
    kind: &'static str,
    content: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const FONT: &str = "font/woff2";
const TEXT: &str = "text/plain; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Returns a file of the folder `page`, whose path is `/` and its name.
macro_rules! file {
    ($name:literal, $kind:expr) => {
        file!($name, $kind, concat!("/", $name))
    };
    ($name:literal, $kind:expr, $path:expr) => {
        File {
            path: $path,
            kind: $kind,
            content: include_bytes!(concat!("../page/", $name)),
        }
    };
}

/// The files of the page. Those in `vendor` are of others: the library Temml, which makes MathML of formulas, and a font
/// for them.
const FILES: [File; 31] = [
    file!("index.html", HTML, "/"),
    file!("style.css", STYLE),
    file!("icon.svg", "image/svg+xml"),
    file!("app.js", SCRIPT),
    file!("answer.js", SCRIPT),
    file!("api.js", SCRIPT),
    file!("calls.js", SCRIPT),
    file!("elements.js", SCRIPT),
    file!("files.js", SCRIPT),
    file!("formulas.js", SCRIPT),
    file!("inline.js", SCRIPT),
    file!("markdown.js", SCRIPT),
    file!("messages.js", SCRIPT),
    file!("models.js", SCRIPT),
    file!("pictures.js", SCRIPT),
    file!("settings.js", SCRIPT),
    file!("sidebar.js", SCRIPT),
    file!("store.js", SCRIPT),
    file!("text.js", SCRIPT),
    file!("text-de.js", SCRIPT),
    file!("text-en.js", SCRIPT),
    file!("text-es.js", SCRIPT),
    file!("text-zh.js", SCRIPT),
    file!("timeline.js", SCRIPT),
    file!("tools.js", SCRIPT),
    file!("vendor/temml.min.js", SCRIPT),
    file!("vendor/Temml-Local.css", STYLE),
    file!("vendor/Temml.woff2", FONT),
    file!("vendor/temml-license.txt", TEXT),
    file!("vendor/noto-sans-math.woff2", FONT),
    file!("vendor/noto-sans-math-license.txt", TEXT),
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
fn tag(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
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

    /// Returns the path and the text of each file that has one.
    fn texts() -> impl Iterator<Item = (&'static str, &'static str)> {
        let text = |file: &File| Some((file.path, std::str::from_utf8(file.content).ok()?));
        FILES.iter().filter_map(text)
    }

    #[test]
    fn every_file_that_the_page_names_is_one_of_its_files() {
        for (path, content) in texts() {
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
        // Licences are plain text.
        for (path, content) in texts().filter(|(path, _)| !path.ends_with(".txt")) {
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
