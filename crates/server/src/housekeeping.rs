//! Gives memory back to the system: kept prompts of models that are idle, and, when memory is short, everything that no
//! request needs.

use std::sync::Weak;
use std::time::{Duration, Instant};

use triad_frontend::machine;
use triad_kernels::heap;

use crate::blocking::spawn;
use crate::metrics::reason::{IDLE, PRESSURE};
use crate::registry::ModelRegistry;
use crate::served::ServedModel;
use crate::stored::Store;

/// The interval at which idle models and the system's memory are checked.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which stored responses are checked.
const STORED_INTERVAL: Duration = Duration::from_secs(60);
/// The time that the system gets until what was given back shows in its figures.
const SETTLE: Duration = Duration::from_secs(10);

/// The time after which idle models may be unloaded again when memory is short.
const UNLOAD_PAUSE: Duration = Duration::from_secs(600);

/// The state of a model between two looks.
#[derive(Clone, Copy)]
struct Seen {
    /// The number of its latest request.
    asked: u64,
    idle_since: Instant,
    is_released: bool,
}

/// Looks after the models until the registry is dropped.
pub(crate) async fn run(registry: Weak<ModelRegistry>) {
    let mut seen = Vec::new();
    // The last times that caches were given back, and that models were unloaded, when memory was short.
    let (mut shrunk, mut unloaded): (Option<Instant>, Option<Instant>) = (None, None);
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let Some(registry) = registry.upgrade() else {
            return;
        };
        let settles = shrunk.is_some_and(|since| since.elapsed() < SETTLE);
        // Another program may be what takes the memory: models are not loaded again and again.
        let rests = unloaded.is_some_and(|since| since.elapsed() < UNLOAD_PAUSE);
        let unloads = shrunk.is_some() && !rests;
        let look = move || {
            registry.check_idle(&mut seen);
            let pressure = if settles {
                None
            } else {
                registry.pressure_files().read()
            };
            if let Some(pressure) = &pressure {
                tracing::warn!("memory is short: {pressure}");
                registry.relieve(unloads);
            }
            (seen, pressure.is_some())
        };
        // Without a thread or memory for this look, the next one may have both.
        let done = match spawn(look) {
            Ok(done) => done.await.ok(),
            Err(_) => None,
        };
        let Some((after, is_short)) = done else {
            seen = Vec::new();
            continue;
        };
        seen = after;
        if is_short {
            if unloads {
                unloaded = Some(Instant::now());
            }
            shrunk = Some(Instant::now());
        } else if !settles {
            shrunk = None;
        }
    }
}

/// Drops stored responses and conversations after their time, until the store is dropped.
pub(crate) async fn drop_stored(store: Weak<Store>) {
    loop {
        tokio::time::sleep(STORED_INTERVAL).await;
        let Some(store) = store.upgrade() else {
            return;
        };
        // Without a thread for this, the next time may have one.
        if let Ok(done) = spawn(move || store.drop_old()) {
            let _ = done.await;
        }
    }
}

impl ModelRegistry {
    /// Gives back kept prompts of models without requests for the idle time, except for a floor, once for each
    /// such time.
    fn check_idle(&self, seen: &mut Vec<Option<Seen>>) {
        let (idle_time, keep) = self.idle();
        let Some(idle_time) = idle_time else { return };
        let activity = self.activity();
        seen.resize(activity.len(), None);
        for (model, seen) in activity.into_iter().zip(seen) {
            let Some((model, asked, is_idle)) = model else {
                *seen = None;
                continue;
            };
            let state = seen.get_or_insert(Seen {
                asked,
                idle_since: Instant::now(),
                is_released: false,
            });
            if state.asked != asked || !is_idle {
                (state.asked, state.idle_since, state.is_released) = (asked, Instant::now(), false);
            } else if !state.is_released && state.idle_since.elapsed() >= idle_time {
                state.is_released = true;
                release(&model, keep, IDLE);
            }
        }
    }

    /// Gives back all kept prompts that no request uses and, if it `unloads`, idle models.
    fn relieve(&self, unloads: bool) {
        for (model, ..) in self.activity().into_iter().flatten() {
            release(&model, 0, PRESSURE);
        }
        if unloads {
            self.unload_all_idle(PRESSURE);
        }
    }
}

/// Gives back compiled grammars of `model`, and its kept prompts beyond `keep` bytes, which are counted and logged.
fn release(model: &Weak<ServedModel>, keep: usize, reason: &'static str) {
    // It may have left the memory meanwhile.
    let Some(model) = model.upgrade() else { return };
    let before = machine::resident();
    let bytes = model.engine().release(keep);
    model.release_grammars();
    heap::give_back();
    if bytes == 0 {
        return;
    }
    model.metrics().released(reason, bytes as u64);
    let resident = before.zip(machine::resident());
    let resident = resident.map(|(before, after)| (before.bytes, after.bytes));
    let (before, after) = resident.unwrap_or_default();
    tracing::info!(
        model = model.name(),
        reason,
        bytes,
        resident_before = before,
        resident_after = after,
        "keys and values of kept prompts were given back"
    );
}
