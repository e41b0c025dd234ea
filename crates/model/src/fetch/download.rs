//! Downloads one file over HTTPS: resumes an earlier attempt, checks the file, and renames it when it is complete.
//!
//! After a broken connection it reconnects, with growing pauses. Of a hub that asks for a pause, it keeps that one.

use std::io::Read;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use ureq::http::StatusCode;
use ureq::{Agent, Body, http};

use super::disk::Disk;
use super::get::{Get, without_login};
use super::part::{BLOCK, Expected, Part};
use super::progress::{Progress, fetch_error, hub_error};
use super::retry::{Interruption, Pauses, interrupted};
use super::waiting::{pause, receive, spawn, wait};
use crate::error::{Error, ErrorKind, Result};

/// Limits for a hub: a fetch that violates them is aborted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Minimum number of bytes that must arrive within each period `within`.
    pub(super) least: u64,
    pub(super) within: Duration,
    /// Maximum bytes of a file whose size the hub does not state; it states those of weights.
    pub(super) unstated: u64,
    /// The pauses between attempts.
    pub(super) pauses: Pauses,
}

impl Default for Bounds {
    /// Returns bounds that a modem exceeds ten times.
    fn default() -> Self {
        Self {
            least: 16 << 10,
            within: Duration::from_secs(60),
            unstated: 256 << 20,
            pauses: Pauses::default(),
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
    pub(super) disk: Disk,
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
        if !self.expected.is_resumable() {
            let mut part = Part::create(destination)?;
            if let Err(error) = self.fill(&mut part, destination, progress) {
                // The next pull begins such a file again.
                part.remove();
                return Err(error);
            }
            return part.finish(&self.expected);
        }
        let mut part = Part::resume(destination)?;
        let is_continued = part.length() > 0;
        self.fill(&mut part, destination, progress)?;
        match part.finish(&self.expected) {
            // The first bytes were of another version of the file.
            Err(error) if is_continued && error.kind() == ErrorKind::Hub => {
                let mut part = Part::create(destination)?;
                self.fill(&mut part, destination, progress)?;
                part.finish(&self.expected)
            }
            finished => finished,
        }
    }

    /// Fetches all bytes of the file that `part` does not have yet.
    fn fill(&self, part: &mut Part, destination: &Path, progress: &dyn Progress) -> Result<()> {
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
            let (reason, asked) = match self.attempt(part, destination, progress) {
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
                    return Err(hub_error(message));
                }
                Err(Interruption::Network { reason, wait }) => (reason, wait),
            };
            let is_further = part.length() >= furthest.saturating_add(self.bounds.least);
            furthest = furthest.max(part.length());
            fruitless = if is_further && resumable {
                0
            } else {
                fruitless + 1
            };
            let Some(time) = self.bounds.pauses.after(fruitless, asked) else {
                let message = format!(
                    "{}: the network failed at byte {}: {reason}{kept}",
                    self.shown_url(),
                    part.length()
                );
                return Err(hub_error(message));
            };
            self.bounds.pauses.report(progress, &reason, time);
            pause(progress, time)?;
            if !resumable {
                part.restart()?;
            }
        }
    }

    /// Appends to `part` until the server has no more.
    fn attempt(
        &self,
        part: &mut Part,
        destination: &Path,
        progress: &dyn Progress,
    ) -> Result<(), Interruption> {
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
                return Err(Interruption::network(
                    "the server does not continue this file",
                ));
            }
            status => {
                if let Some(interruption) = interrupted(&response) {
                    return Err(interruption);
                }
                return Err(refusal(
                    &format!("file `{}`", self.name),
                    &self.shown_url(),
                    status,
                    self.token.is_some(),
                )
                .into());
            }
        }
        let total = self.expected.bytes.or_else(|| {
            Some(
                part.length()
                    .saturating_add(response.body().content_length()?),
            )
        });
        let stated = response.body().content_length();
        let blocks = blocks(response.into_body())?;
        let (mut start, mut came) = (Instant::now(), 0);
        let (folder, mut looked_at) = (destination.parent().unwrap_or(destination), None);
        loop {
            progress.bytes(self.name, part.length(), total);
            let Some(block) = receive(&blocks, progress)? else {
                break;
            };
            let block = block.map_err(Interruption::network)?;
            if self.disk.is_due(looked_at, part.length()) {
                self.disk.check_kept(folder, self.name, part.length())?;
                looked_at = Some(part.length());
            }
            part.append(&block)?;
            let most = self.bounds.unstated;
            if self.expected.bytes.is_none() && part.length() > most {
                let message = format!(
                    "{}: longer than {most} bytes, and the hub states no size",
                    self.shown_url()
                );
                return Err(hub_error(message).into());
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
            Some(total) if part.length() < total => Err(Interruption::network(
                "the connection ended before the file did",
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
        wait(progress, move || get.call())?.map_err(Interruption::network)
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
    let error = match status {
        status if status.is_client_error() => fetch_error,
        _ => hub_error,
    };
    error(match status {
        StatusCode::NOT_FOUND => format!("there is no {what} at {url}"),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if with_token => {
            format!(
                "{what} is not there, or the token in HF_TOKEN may not read it: {url} answered {status}"
            )
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            format!(
                "{what} is not there, or needs a token, and this fetch has none (accept its terms on the hub, then set HF_TOKEN): {url} answered {status}"
            )
        }
        status => format!("cannot fetch {what}: {url} answered {status}"),
    })
}
