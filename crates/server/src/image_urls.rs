//! Pictures in a network, which the server fetches only from hosts that its operator names.
//!
//! A client chooses the URL, so the request must not reach what only the server can reach. Host and port have to be
//! named, also those of a redirect. The name is resolved once, and the connection goes to the checked address: an
//! address of this machine or of a private network is used only if it is named itself. No proxy is used, which would
//! resolve names on its own.

use std::collections::HashMap;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use triad_engine::Cancel;
use triad_model::fetch::joined;
use ureq::Agent;
use ureq::config::Config;
use ureq::http::{Uri, header};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use crate::blocking::blocking;
use crate::bodies::Share;
use crate::error::{ApiError, ApiResult};
use crate::form_shares::Shares;
use crate::image_host::ImageHost;
use crate::options::ServerOptions;
use crate::owner::Tenant;
use crate::pictures::{GivenPicture, Source};
use crate::prepare::CancelOnDrop;
use crate::queue::{Full, Need, Queue};

/// Time for all pictures of a request.
const TIME: Duration = Duration::from_secs(20);
/// Maximum number of redirects of a picture.
const MAX_REDIRECTS: usize = 3;
/// Maximum number of requests whose pictures are fetched at once, of which a tenant has at most half.
const PARALLEL: usize = 8;
/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;

/// Fetches pictures from the hosts that are named.
pub(crate) struct ImageUrls {
    hosts: Arc<[ImageHost]>,
    queue: Arc<Queue>,
    shares: Shares,
    agent: Agent,
    max_bytes: usize,
}

impl ImageUrls {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        let config = Config::builder()
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent("triad")
            .accept("image/*")
            .build();
        let agent = Agent::with_parts(config, DefaultConnector::default(), CheckedResolver);
        let most = Need {
            slots: PARALLEL,
            pages: PARALLEL,
        };
        Self {
            hosts: options.image_hosts.clone().into(),
            queue: Queue::new(most, options.queue),
            shares: Shares::new(PARALLEL / 2),
            agent,
            max_bytes: options.body_bytes,
        }
    }

    /// Replaces the URLs among `given` that are in a network by the content of these pictures, which together have at most
    /// as many bytes as the body of a request. `share` counts their memory.
    ///
    /// # Errors
    /// If a host is not named, or a picture can't be fetched; the error names its field.
    pub(crate) async fn fetch(
        &self,
        client: Tenant,
        given: &mut [GivenPicture],
        mut share: Share,
    ) -> ApiResult<Share> {
        let mut wanted: Vec<(String, String, Uri)> = Vec::new();
        for GivenPicture { field, source } in &*given {
            let Some(url) = source.in_network() else {
                continue;
            };
            let parsed: Uri = url
                .parse()
                .map_err(|_| ApiError::field(field, "this is not a URL"))?;
            check_host(&self.hosts, &parsed)
                .map_err(|error| ApiError::unsupported(field, error))?;
            if wanted.iter().all(|(known, ..)| known != url) {
                wanted.push((url.to_owned(), field.clone(), parsed));
            }
        }
        if wanted.is_empty() {
            return Ok(share);
        }
        let share_of_tenant = self.shares.take(client).await;
        let need = Need { slots: 1, pages: 1 };
        let permit = self.queue.admit(client, need).await;
        let permit = permit.map_err(|Full(waiting)| ApiError::full(waiting))?;
        let cancel = CancelOnDrop(Cancel::new());
        let mut fetching = Fetching {
            agent: self.agent.clone(),
            hosts: Arc::clone(&self.hosts),
            left: self.max_bytes,
            end: Instant::now() + TIME,
            cancel: cancel.0.clone(),
        };
        let (share, fetched) = blocking(move || {
            let _permits = (permit, share_of_tenant);
            let mut fetched = HashMap::new();
            for (text, field, url) in wanted {
                let content = fetching.get(&url, &mut share);
                let content = content.map_err(|error| error.in_field(&field))?;
                fetched.insert(text, Arc::<[u8]>::from(content));
            }
            Ok((share, fetched))
        })
        .await?;
        for GivenPicture { source, .. } in given {
            let content = source.in_network().and_then(|url| fetched.get(url));
            if let Some(content) = content {
                *source = Source::Content(Arc::clone(content));
            }
        }
        Ok(share)
    }
}

/// Checks that the host of `url` is named.
fn check_host(hosts: &[ImageHost], url: &Uri) -> Result<(), String> {
    let (Some(authority), Some("http" | "https")) = (url.authority(), url.scheme_str()) else {
        return Err("the URL has no host, expected one of http: or https:".into());
    };
    if authority.as_str().contains('@') {
        return Err("the URL has a user, expected only a host".into());
    }
    if hosts.is_empty() {
        return Err(
            "this server fetches no pictures from a network (--allow-image-urls), expected a data: URL with the picture \
             in base64"
                .into(),
        );
    }
    if hosts.iter().any(|host| host.is_of(url)) {
        return Ok(());
    }
    Err(format!(
        "{authority} is not among the hosts from which this server fetches pictures (--allow-image-urls)"
    ))
}

/// The reason why a picture can't be fetched.
enum Failure {
    /// A sentence for the client.
    Sentence(String),
    /// The memory for bodies is in use, or the client left.
    Request(ApiError),
}

impl Failure {
    fn in_field(self, field: &str) -> ApiError {
        match self {
            Self::Sentence(text) => {
                ApiError::field(field, format!("the picture can't be fetched: {text}"))
            }
            Self::Request(error) => error,
        }
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self::Sentence(text)
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::Request(error)
    }
}

impl From<ureq::Error> for Failure {
    /// The system's words could tell what is at an address.
    fn from(error: ureq::Error) -> Self {
        let text = match error {
            ureq::Error::Timeout(_) => format!("it took more than {} seconds", TIME.as_secs()),
            ureq::Error::HostNotFound => NOT_FOUND.into(),
            _ => "its host can't be reached".into(),
        };
        Self::Sentence(text)
    }
}

const NOT_FOUND: &str = "its host has no address in a public network; one of this machine or of a private network has \
                         to be named itself (--allow-image-urls)";

/// The pictures of a request while they are fetched.
struct Fetching {
    agent: Agent,
    hosts: Arc<[ImageHost]>,
    /// Bytes that the pictures may still have.
    left: usize,
    end: Instant,
    cancel: Cancel,
}

impl Fetching {
    /// Returns the content of `url`.
    fn get(&mut self, url: &Uri, share: &mut Share) -> Result<Vec<u8>, Failure> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            check_host(&self.hosts, &url)?;
            self.check()?;
            let time = self.end.saturating_duration_since(Instant::now());
            let request = self.agent.get(url.clone()).config();
            let request = request.timeout_global(Some(time)).build();
            let response = request.call()?;
            match response.status().as_u16() {
                200 => return self.read(response.into_body().into_reader(), share),
                301 | 302 | 303 | 307 | 308 => {
                    let location = response.headers().get(header::LOCATION);
                    let location = location.and_then(|location| location.to_str().ok());
                    let next = location.and_then(|location| joined(&url, location));
                    url = next.ok_or_else(|| "it is a redirect without an address".to_owned())?;
                }
                status => return Err(format!("its host answers with status {status}").into()),
            }
        }
        Err(format!("it has more than {MAX_REDIRECTS} redirects").into())
    }

    fn read(&mut self, mut reader: impl Read, share: &mut Share) -> Result<Vec<u8>, Failure> {
        let mut content = Vec::new();
        let mut chunk = vec![0; CHUNK];
        loop {
            self.check()?;
            let Ok(count) = reader.read(&mut chunk) else {
                // The time may be over.
                self.check()?;
                return Err("its host ended the connection".to_owned().into());
            };
            if count == 0 {
                return Ok(content);
            }
            self.left = self.left.checked_sub(count).ok_or_else(|| {
                "the fetched pictures have more bytes than the body of a request may have"
                    .to_owned()
            })?;
            share.grow(count)?;
            content.extend_from_slice(&chunk[..count]);
        }
    }

    fn check(&self) -> Result<(), Failure> {
        self.cancel.check().map_err(ApiError::from)?;
        match Instant::now() < self.end {
            true => Ok(()),
            false => Err(ureq::Error::Timeout(ureq::Timeout::Global).into()),
        }
    }
}

/// Resolves names to public addresses; addresses, and `localhost`, to themselves.
#[derive(Debug)]
struct CheckedResolver;

impl Resolver for CheckedResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let all = DefaultResolver::default().resolve(uri, config, timeout)?;
        if is_address(uri.host().unwrap_or_default()) {
            return Ok(all);
        }
        let mut public = self.empty();
        for address in all.iter().filter(|address| is_public(address.ip())) {
            public.push(*address);
        }
        match public.is_empty() {
            true => Err(ureq::Error::HostNotFound),
            false => Ok(public),
        }
    }
}

/// Returns whether a host is an address, or the name that is always one of this machine.
fn is_address(host: &str) -> bool {
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    plain.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}

/// Returns whether an address is one of the public network.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [first, second, third, _] = address.octets();
    let is_special = match first {
        // This network, and what is reserved for other uses: multicast and future use.
        0 | 224.. => true,
        100 => second & 0b1100_0000 == 64,
        192 => second == 0 && matches!(third, 0 | 2) || second == 88 && third == 99,
        198 => second & 0b1111_1110 == 18,
        _ => false,
    };
    !(is_special
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let last_v4 = || Ipv4Addr::from_bits(address.to_bits() as u32);
    match segments {
        // Addresses of IPv4 in a network without IPv4.
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => is_public_v4(last_v4()),
        // Tunnels, benchmarks and documentation.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x2002 | 0x3fff, ..] => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &[&str]) -> Vec<ImageHost> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn only_named_hosts_with_their_ports_are_reached() {
        let hosts = hosts(&["example.org", "10.0.0.7:8000", "[::1]"]);
        let checked = |url: &str| check_host(&hosts, &url.parse().unwrap());
        for url in [
            "https://example.org/a.png",
            "http://EXAMPLE.org:80/a",
            "http://10.0.0.7:8000/x",
            "http://[::1]/x",
        ] {
            checked(url).unwrap();
        }
        for url in [
            "https://sub.example.org/a.png",
            "https://example.org.evil/a",
            "http://example.org:22/a",
            "http://10.0.0.7/x",
            "http://10.0.0.8:8000/x",
            "http://[::2]/x",
            "http://example.org@10.0.0.8/x",
            "http://user@example.org/x",
            "/a.png",
        ] {
            checked(url).unwrap_err();
        }
    }

    #[test]
    fn addresses_of_this_machine_and_of_private_networks_are_not_public() {
        for address in [
            "127.0.0.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.31.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "198.19.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "::10.0.0.1",
            "fe80::1",
            "fc00::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "2002:0a00:0001::1",
            "64:ff9b::10.0.0.1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "2001:4860::8888",
            "64:ff9b::1.1.1.1",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        assert!(is_address("localhost") && is_address("[::1]") && is_address("10.0.0.1"));
        assert!(!is_address("localhost.example.org"));
    }
}
