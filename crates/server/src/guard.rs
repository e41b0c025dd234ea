//! Access control: API keys, the Host header and CORS origins.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::app::App;
use crate::error::ApiError;
use crate::owner::{Owner, Tenant};
use crate::route::Access;

/// Maximum size of a request's head in bytes.
pub(crate) const HEAD_BYTES: usize = 64 << 10;

/// Another header for the key, of Anthropic's API.
static OWN_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The address of a connection's client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    /// The tenant whose share of the server the request uses.
    pub(crate) address: Tenant,
    /// The owner of the prompts that the request may reuse.
    pub(crate) owner: Owner,
}

/// An extractor of the [`Caller`] of a request that passed the guard.
pub(crate) struct Client(pub(crate) Caller);

impl FromRequestParts<Arc<App>> for Client {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Caller>();
        caller
            .copied()
            .map(Self)
            .ok_or_else(|| ApiError::internal("a request that did not pass the guard"))
    }
}

/// The state of the guard.
#[derive(Clone)]
pub(crate) struct Guard {
    pub(crate) app: Arc<App>,
    /// Returns the access that a request requires.
    pub(crate) access: fn(&Request) -> Access,
    /// The methods of all routes, as a header value.
    pub(crate) methods: HeaderValue,
}

/// Refuses requests without access, and adds CORS headers for the allowed origins.
pub(crate) async fn guard(
    State(Guard {
        app,
        access,
        methods,
    }): State<Guard>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Err(error) = check_head(&request).and_then(|()| check_host(&app, &request)) {
        return error.into_response();
    }
    let origin = allowed_origin(&app, request.headers());
    let asked_headers = request
        .headers()
        .get(header::ACCESS_CONTROL_REQUEST_HEADERS)
        .cloned();
    let is_preflight = request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if is_preflight {
        StatusCode::NO_CONTENT.into_response()
    } else {
        match check_key(&app, access(&request), &request) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                next.run(request).await
            }
            Err(error) => error.into_response(),
        }
    };
    let headers = response.headers_mut();
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    if !app.options.cors.is_empty() {
        headers.insert(
            header::VARY,
            HeaderValue::from_static("origin, access-control-request-headers"),
        );
    }
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("*"),
        );
        if is_preflight {
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
            headers.insert(
                header::ACCESS_CONTROL_MAX_AGE,
                HeaderValue::from_static("600"),
            );
            // Clients have their own headers, and new versions add more. No header gives a page more access than its
            // key does.
            if let Some(asked) = asked_headers {
                headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
            }
        }
    }
    response
}

/// Refuses a head that is too large, whose path is no text, or in which a header is repeated of which proxies may read another
/// one.
fn check_head(request: &Request) -> Result<(), ApiError> {
    let headers = request.headers();
    let bytes = |(name, value): (&HeaderName, &HeaderValue)| {
        // The colon, a space and the end of the line count, too.
        name.as_str().len() + value.len() + 4
    };
    let uri = request.uri();
    let of_uri = uri.path().len() + uri.query().map_or(0, str::len);
    let bytes = of_uri + headers.iter().map(bytes).sum::<usize>();
    if bytes > HEAD_BYTES {
        return Err(ApiError::refused(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "head_too_large",
            format!("the head of the request has more than {HEAD_BYTES} bytes"),
        ));
    }
    // hyper reads the chunks of every body whose last encoding they are, and leaves the encodings before as they are.
    let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
    if encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return Err(ApiError::refused(
            StatusCode::NOT_IMPLEMENTED,
            "unsupported_transfer_encoding",
            "the header Transfer-Encoding has another value than chunked",
        ));
    }
    if percent_decode_str(uri.path()).decode_utf8().is_err() {
        let message = "the path has bytes after % that are no UTF-8";
        return Err(ApiError::invalid(message).with_code("invalid_path"));
    }
    let values = |name: &HeaderName| headers.get_all(name).iter();
    let is_repeated = |name: &&HeaderName| values(name).nth(1).is_some();
    let has_two = |name: &&HeaderName| {
        let first = values(name).next();
        values(name).any(|value| Some(value) != first)
    };
    let repeated = [&header::HOST, &header::CONTENT_TYPE]
        .into_iter()
        .find(is_repeated);
    let repeated =
        repeated.or_else(|| [&header::AUTHORIZATION, &OWN_KEY].into_iter().find(has_two));
    match repeated {
        Some(name) => Err(ApiError::refused(
            StatusCode::BAD_REQUEST,
            "repeated_header",
            format!("the header {name} is repeated, expected it once"),
        )),
        None => Ok(()),
    }
}

/// Checks the Host header on a loopback address. By DNS rebinding, a page of another site may resolve its own name to
/// this machine, so the header must be a name of the loopback address.
fn check_host(app: &App, request: &Request) -> Result<(), ApiError> {
    if !app.options.host.is_loopback() {
        return Ok(());
    }
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let authority = host.and_then(|host| host.parse::<Authority>().ok());
    let is_allowed = |host: &str| {
        let allowed = &app.options.allowed_hosts;
        is_loopback(host) || allowed.iter().any(|name| name.eq_ignore_ascii_case(host))
    };
    if authority.is_some_and(|authority| is_allowed(authority.host())) {
        return Ok(());
    }
    let message = "the Host header names another machine: expected localhost, 127.0.0.1, [::1] or a name that \
                   --allow-host gives";
    Err(ApiError::refused(
        StatusCode::FORBIDDEN,
        "wrong_host",
        message,
    ))
}

fn is_loopback(host: &str) -> bool {
    let address = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    address.map_or_else(
        |_| host.eq_ignore_ascii_case("localhost"),
        |address| address.is_loopback(),
    )
}

/// Returns the caller of a request.
///
/// # Errors
/// If the request requires a key and has none, or a wrong one.
fn check_key(app: &App, access: Access, request: &Request) -> Result<Caller, ApiError> {
    let options = &app.options;
    let keys = match (access, &options.metrics_key) {
        (Access::Open, _) => &[],
        (Access::Metrics, Some(key)) => std::slice::from_ref(key),
        _ => &options.api_keys[..],
    };
    if keys.is_empty() {
        let peer = request.extensions().get::<Peer>();
        let Some(Peer(peer)) = peer else {
            return Err(ApiError::internal("a request without a connection"));
        };
        return Ok(Caller {
            address: Tenant::of_address(peer.ip()),
            owner: Owner::default(),
        });
    }
    let bearer = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.split_once(' '));
    let bearer = bearer
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| key.trim());
    let own = request
        .headers()
        .get(&OWN_KEY)
        .and_then(|value| value.to_str().ok());
    let Some(given) = bearer.or(own) else {
        return Err(ApiError::wrong_key(
            "this server requires a key: expected the header Authorization: Bearer KEY",
        ));
    };
    // Hashes are compared, and all keys are tried, so that timing reveals neither a key's length nor the position of a
    // difference.
    let digest = |key: &str| Sha256::digest(key.as_bytes());
    let given_digest = digest(given);
    let fits = keys.iter().fold(subtle::Choice::from(0), |fits, key| {
        fits | digest(key).ct_eq(&given_digest)
    });
    if !bool::from(fits) {
        return Err(ApiError::wrong_key("the key is wrong"));
    }
    // The metrics cover all keys together: with several keys, a client could derive what others request.
    if access == Access::Metrics && options.metrics_key.is_none() && options.separates_keys() {
        let message = "the metrics of a server with several keys reveal requests of other keys: start the server with --metrics-key";
        return Err(ApiError::refused(
            StatusCode::FORBIDDEN,
            "metrics_key_wanted",
            message,
        ));
    }
    let owner = if options.shares_prompts {
        Owner::default()
    } else {
        Owner::of_key(given)
    };
    Ok(Caller {
        address: Tenant::of_key(given),
        owner,
    })
}

/// Returns the origin of a request if CORS allows it.
fn allowed_origin(app: &App, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let is_allowed = |allowed: &String| {
        allowed == "*" || allowed.as_bytes().eq_ignore_ascii_case(origin.as_bytes())
    };
    app.options
        .cors
        .iter()
        .any(is_allowed)
        .then(|| origin.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_alone_are_loopback() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.8.8.8", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "localhost.example.org",
            "example.org",
            "192.168.0.1",
            "0.0.0.0",
            "[::]",
            "127.0.0.1.nip.io",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
