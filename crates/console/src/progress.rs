//! Progress bars and spinners on stderr; hidden if stderr is not a terminal.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use triad_model::fetch::Progress;

use crate::interrupt::{Interrupted, on_interrupt};
use crate::output;

const TICK: Duration = Duration::from_millis(100);

/// Shows a spinner with the text `what` until the returned value is dropped.
pub fn spinner(what: impl Into<String>) -> Shown {
    let bar = ProgressBar::new_spinner().with_message(message(&what.into()));
    bar.enable_steady_tick(TICK);
    Shown(bar)
}

/// Shows a bar that counts up to `total` tokens.
pub fn tokens(what: impl Into<String>, total: usize) -> Shown {
    bar(
        what,
        total,
        "{msg} [{bar:30}] {pos}/{len} tokens, {per_sec:.0}",
    )
}

/// Shows a bar that counts up to `total` linear layers.
pub fn layers(what: impl Into<String>, total: usize) -> Shown {
    bar(what, total, "{msg} [{bar:30}] {pos}/{len} linear layers")
}

/// Shows a bar that counts up to `total` pictures.
pub fn pictures(what: impl Into<String>, total: usize) -> Shown {
    bar(what, total, "{msg} [{bar:30}] {pos}/{len} pictures")
}

/// Shows a bar that counts up to `total` subgraphs.
pub fn subgraphs(what: impl Into<String>, total: usize) -> Shown {
    bar(what, total, "{msg} [{bar:30}] {pos}/{len} subgraphs")
}

/// Shows a bar that counts up to `total` prompts.
pub fn prompts(what: impl Into<String>, total: usize) -> Shown {
    bar(what, total, "{msg} [{bar:30}] {pos}/{len} prompts")
}

/// Shows a bar that counts up to `total` products.
pub fn products(what: impl Into<String>, total: usize) -> Shown {
    bar(what, total, "{msg} [{bar:30}] {pos}/{len} products")
}

/// Shows a bar for work of which only the completed fraction is known.
pub fn share(what: &'static str) -> Shown {
    bar(what, STEPS, "{msg} [{bar:30}] {percent} %, {eta} left")
}

/// Returns a callback that shows the progress of reading the model files at `path` until all are read.
pub fn reading(path: &Path) -> impl FnMut(u64, u64) {
    bytes(format!("reading {}", path.display()))
}

/// Returns a callback that shows the progress of checking the package files at `path` until all are checked.
pub fn checking(path: &Path) -> impl FnMut(u64, u64) {
    bytes(format!("checking {}", path.display()))
}

/// Returns a callback that is called with the completed and the total bytes.
fn bytes(what: String) -> impl FnMut(u64, u64) {
    let mut shown = None;
    move |done, total| {
        if done >= total {
            shown = None;
            return;
        }
        let new = || {
            let what = format!("{what} ({})", output::bytes(total));
            bar(
                what,
                total as usize,
                "{msg} [{bar:30}] {percent} %, {binary_bytes_per_sec}",
            )
        };
        shown.get_or_insert_with(new).set(done as usize);
    }
}

/// Number of steps of a bar of [`share`].
const STEPS: usize = 1000;

fn bar(what: impl Into<String>, total: usize, style: &str) -> Shown {
    let bar = ProgressBar::new(total as u64)
        .with_style(template(style))
        .with_message(message(&what.into()));
    bar.enable_steady_tick(TICK);
    Shown(bar)
}

/// Returns `what` as a bar shows it. Names of files and models may contain any characters.
fn message(what: &str) -> String {
    output::printable(what).into_owned()
}

fn template(style: &str) -> ProgressStyle {
    ProgressStyle::with_template(style)
        .expect("the template is valid")
        .progress_chars("=> ")
}

/// A bar or spinner on the screen; removed when dropped.
pub struct Shown(ProgressBar);

impl Shown {
    /// Moves the bar to `position` of `total`.
    pub fn set_to(&self, position: usize, total: usize) {
        self.0.set_length(total as u64);
        self.set(position);
    }

    /// Moves a bar of [`share`] to the fraction `share` of its length.
    pub fn set_share(&self, share: f64) {
        self.set((share * STEPS as f64) as usize);
    }

    /// Moves the bar to `position`.
    pub fn set(&self, position: usize) {
        self.0.set_position(position as u64);
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Progress of a model's fetch, which Ctrl-C can end.
pub struct FetchProgress {
    shown: RefCell<Option<(String, Shown)>>,
    cancelled: Arc<AtomicBool>,
}

impl FetchProgress {
    /// Creates a progress that shows nothing yet. The fetch ends when `cancelled` becomes true.
    pub fn new(cancelled: Arc<AtomicBool>) -> Self {
        Self {
            shown: RefCell::new(None),
            cancelled,
        }
    }
}

impl Progress for FetchProgress {
    fn step(&self, what: &str) {
        // Remove the old line before the new one is drawn.
        drop(self.shown.take());
        self.shown.replace(Some((String::new(), spinner(what))));
    }

    fn bytes(&self, file: &str, done: u64, total: Option<u64>) {
        let mut shown = self.shown.borrow_mut();
        if shown.as_ref().is_none_or(|(name, _)| name != file) {
            drop(shown.take());
            let (bar, style) = match total {
                Some(total) => {
                    let bar = ProgressBar::new(total);
                    (
                        bar,
                        "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta} left",
                    )
                }
                None => (
                    ProgressBar::no_length(),
                    "{spinner} {msg} {binary_bytes}, {binary_bytes_per_sec}",
                ),
            };
            let bar = bar.with_style(template(style)).with_message(message(file));
            bar.enable_steady_tick(TICK);
            // Bytes of an earlier, interrupted fetch don't count for the speed.
            bar.set_position(done);
            bar.reset_eta();
            *shown = Some((file.to_owned(), Shown(bar)));
        }
        if let Some((_, shown)) = shown.as_ref() {
            shown.0.set_position(done);
        }
    }

    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// Runs a fetch with progress bars. Ctrl-C ends it cleanly.
pub fn fetch<T>(fetch: impl FnOnce(&FetchProgress) -> Result<T>) -> Result<T> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cancelled);
    let _guard = on_interrupt(move || flag.store(true, Ordering::Relaxed));
    let fetched = fetch(&FetchProgress::new(Arc::clone(&cancelled)));
    if cancelled.load(Ordering::Relaxed) {
        return Err(Interrupted.into());
    }
    fetched
}
