//! Downloads one file over HTTPS: resumes an earlier attempt, checks the file, and renames it when it is complete.

use std::io::Read;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use ureq::http::StatusCode;
use ureq::{Agent, Body, http};

use super::get::{Get, without_login};
use super::part::{BLOCK, Expected, Part};
use super::waiting::{receive, spawn, wait};
use super::{Progress, fetch_error};
use crate::error::{Error, Result};

/// Maximum number of consecutive attempts that get no further; after a broken connection, the download reconnects.
const FRUITLESS_ATTEMPTS: usize = 3;

/// Limits for a hub: a fetch that violates them is aborted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Minimum number of bytes that must arrive within each period `within`.
    pub(super) least: u64,
    pub(super) within: Duration,
    /// Maximum bytes of a file whose size the hub does not state; it states those of weights.
    pub(super) unstated: u64,
}

impl Default for Bounds {
    /// Returns bounds that a modem exceeds ten times.
    fn default() -> Self {
        Self {
            least: 16 << 10,
            within: Duration::from_secs(60),
            unstated: 256 << 20,
        }
    }
}

/// A file to fetch.
pub(super) struct Download<'a> {
    pub(super) agent: &'a Agent,
    pub(super) token: Option<&'a str>,
    pub(super) url: String,
    /// Name of the download in progress bars and errors.
    pub(super) name: &'a str,
    pub(super) expected: Expected,
    pub(super) bounds: Bounds,
}

/// The reason why an attempt ended before the file was complete.
enum Interruption {
    /// The network failed: the received bytes are valid, and the rest may follow later.
    Network(String),
    /// The server is too slow: the received bytes are valid, but another attempt would take as long.
    Slow,
    /// Another attempt would fail in the same way.
    Final(Error),
}

impl From<Error> for Interruption {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

impl Download<'_> {
    /// Returns the address for messages.
    fn shown_url(&self) -> String {
        without_login(&self.url)
    }

    /// Fetches the file to `destination`, unless the existing file already has the known hash.
    pub(super) fn to(&self, destination: &Path, progress: &dyn Progress) -> Result<()> {
        if self.expected.is_met_by(destination) {
            return Ok(());
        }
        let resumable = self.expected.is_resumable();
        let mut part = if resumable {
            Part::resume(destination)?
        } else {
            Part::create(destination)?
        };
        match self.fill(&mut part, progress) {
            Ok(()) => part.finish(&self.expected),
            Err(error) => {
                // The next pull begins such a file again.
                if !resumable {
                    part.remove();
                }
                Err(error)
            }
        }
    }

    /// Fetches all bytes of the file that `part` does not have yet.
    fn fill(&self, part: &mut Part, progress: &dyn Progress) -> Result<()> {
        let resumable = self.expected.is_resumable();
        // An attempt that starts again has to get further than those before it: a server that always ends at the same
        // byte would be asked for ever.
        let (mut fruitless, mut furthest) = (0, part.length());
        loop {
            let kept = if resumable {
                "; the next pull goes on from there"
            } else {
                ""
            };
            let reason = match self.attempt(part, progress) {
                Ok(()) => return Ok(()),
                Err(Interruption::Final(error)) => return Err(error),
                Err(Interruption::Slow) => {
                    let Bounds { least, within, .. } = self.bounds;
                    let message = format!(
                        "{}: given up at byte {}: fewer than {least} bytes came within {} s{kept}",
                        self.shown_url(),
                        part.length(),
                        within.as_secs_f64()
                    );
                    return Err(fetch_error(message));
                }
                Err(Interruption::Network(reason)) => reason,
            };
            let is_further = part.length() >= furthest.saturating_add(self.bounds.least);
            furthest = furthest.max(part.length());
            fruitless = if is_further && resumable {
                0
            } else {
                fruitless + 1
            };
            if fruitless == FRUITLESS_ATTEMPTS {
                let message = format!(
                    "{}: the network failed at byte {}: {reason}{kept}",
                    self.shown_url(),
                    part.length()
                );
                return Err(fetch_error(message));
            }
            if !resumable {
                part.restart()?;
            }
        }
    }

    /// Appends to `part` until the server has no more.
    fn attempt(&self, part: &mut Part, progress: &dyn Progress) -> Result<(), Interruption> {
        if self.expected.bytes == Some(part.length()) && part.length() > 0 {
            return Ok(());
        }
        let response = self.request(part.length(), progress)?;
        let is_whole = response.status() == StatusCode::OK;
        match response.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(&response, part.length()) => {}
            // The server does not resume, or the part is longer than the file: starts again.
            StatusCode::OK => part.restart()?,
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE
                if part.length() > 0 =>
            {
                part.restart()?;
                return Err(Interruption::Network(
                    "the server does not continue this file".into(),
                ));
            }
            status if status.is_server_error() => {
                return Err(Interruption::Network(format!(
                    "the server answered {status}"
                )));
            }
            status => {
                return Err(refusal(
                    &format!("file `{}`", self.name),
                    &self.shown_url(),
                    status,
                    self.token.is_some(),
                )
                .into());
            }
        }
        let total = self
            .expected
            .bytes
            .or_else(|| Some(part.length() + response.body().content_length()?));
        let stated = response.body().content_length();
        let blocks = blocks(response.into_body())?;
        let (mut start, mut came) = (Instant::now(), 0);
        loop {
            progress.bytes(self.name, part.length(), total);
            let Some(block) = receive(&blocks, progress)? else {
                break;
            };
            let block = block.map_err(Interruption::Network)?;
            part.append(&block)?;
            let most = self.bounds.unstated;
            if self.expected.bytes.is_none() && part.length() > most {
                let message = format!(
                    "{}: longer than {most} bytes, and the hub states no size",
                    self.shown_url()
                );
                return Err(fetch_error(message).into());
            }
            if total.is_some_and(|total| part.length() > total) {
                break;
            }
            came += block.len() as u64;
            if start.elapsed() >= self.bounds.within {
                if came < self.bounds.least && total.is_none_or(|total| part.length() < total) {
                    return Err(Interruption::Slow);
                }
                (start, came) = (Instant::now(), 0);
            }
        }
        match total {
            // The server says that this is the whole file, so another attempt would get no more of it.
            _ if is_whole && stated == Some(part.length()) => Ok(()),
            Some(total) if part.length() < total => Err(Interruption::Network(
                "the connection ended before the file did".into(),
            )),
            _ => Ok(()),
        }
    }

    fn request(
        &self,
        from: u64,
        progress: &dyn Progress,
    ) -> Result<http::Response<Body>, Interruption> {
        let get = Get {
            agent: self.agent.clone(),
            url: self.url.clone(),
            token: self.token.map(str::to_owned),
            from,
            time_out: None,
        };
        wait(progress, move || get.call())?.map_err(Interruption::Network)
    }
}

/// Reads a body on a thread, which ends with the body or when the receiver is dropped. An error is the last block.
fn blocks(body: Body) -> Result<Receiver<Result<Vec<u8>, String>>> {
    let (sender, blocks) = sync_channel(2);
    spawn(move || {
        let mut body = body.into_reader();
        loop {
            let mut block = vec![0; BLOCK];
            let read = match body.read(&mut block) {
                Ok(0) => return,
                Ok(read) => Ok(read),
                Err(error) => Err(error.to_string()),
            };
            let is_last = read.is_err();
            let block = read.map(|read| {
                block.truncate(read);
                block
            });
            if sender.send(block).is_err() || is_last {
                return;
            }
        }
    })?;
    Ok(blocks)
}

/// Returns whether the response's `Content-Range` starts at byte `from`.
fn starts_at(response: &http::Response<Body>, from: u64) -> bool {
    let range = response
        .headers()
        .get("content-range")
        .and_then(|value| value.to_str().ok());
    range.and_then(|range| {
        range
            .strip_prefix("bytes ")?
            .split('-')
            .next()?
            .parse()
            .ok()
    }) == Some(from)
}

/// Describes a status other than success for the user.
pub(super) fn refusal(what: &str, url: &str, status: StatusCode, with_token: bool) -> Error {
    fetch_error(match status {
        StatusCode::NOT_FOUND => format!("there is no {what} at {url}"),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if with_token => {
            format!(
                "{what} is not there, or the token in HF_TOKEN may not read it: {url} answered {status}"
            )
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            format!(
                "{what} is not there, or needs a token (accept its terms on the hub, then set HF_TOKEN): {url} answered {status}"
            )
        }
        status => format!("cannot fetch {what}: {url} answered {status}"),
    })
}
