//! The registry of served models. Each model is loaded on its first request.
//!
//! The loaded models have a memory limit in total. If one more model would exceed it, the least recently requested
//! models are unloaded first. A model stays loaded while a request waits for it or runs on it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;
use triad_frontend::pressure::PressureFiles;
use triad_kernels::heap;

use crate::blocking::{blocking, spawn};
use crate::counters::reason::{CHANGED, KEEP_ALIVE, OTHER_MODEL};
use crate::counters::{Metrics, ModelMetrics};
use crate::error::{ApiError, ApiResult};
use crate::hosted::{HostedModel, LoadError};
use crate::names::now;
use crate::options::{ServerOptions, StartError};
use crate::prepare::Preparers;
use crate::served::ServedModel;

/// The interval at which a load that waits for memory first checks whether other models became idle. It doubles up to
/// [`LONGEST_POLL`].
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const LONGEST_POLL: Duration = Duration::from_millis(500);
/// The interval at which idle models are checked that may stay in memory for a limited time.
const SWEEP: Duration = Duration::from_millis(100);

/// Drops models that left the registry, in another thread: dropping an engine joins its threads, which takes a moment.
/// Returns its end, if there is anything to wait for.
fn unload(models: Vec<Arc<ServedModel>>, reason: &'static str) -> Option<JoinHandle<()>> {
    if models.is_empty() {
        return None;
    }
    for model in &models {
        model.metrics().unloaded(reason);
        tracing::info!(model = model.name(), reason, "the model left the memory");
    }
    let end = move || {
        drop(models);
        heap::give_back();
    };
    spawn(end).ok()
}

/// The registry of all models.
pub(crate) struct ModelRegistry {
    models: Vec<HostedModel>,
    /// The creation time of the registry, in seconds since 1970.
    pub(crate) created: u64,
    options: ServerOptions,
    metrics: Vec<ModelMetrics>,
    /// The preparation threads that all models share.
    preparers: Arc<Preparers>,
    loaded: Mutex<Loaded>,
    /// Locked during a load: two concurrent loads could exceed the memory limit.
    loading: Arc<tokio::sync::Mutex<()>>,
}

/// The models in memory.
struct Loaded {
    models: Vec<Option<Arc<ServedModel>>>,
    /// The number of the latest request for each model, as counted by `requests`.
    asked: Vec<u64>,
    requests: u64,
    /// How long each model stays in memory after its last request.
    kept: Vec<Kept>,
    /// Whether a task checks for idle models.
    is_swept: bool,
}

/// How long a model stays in memory after its last request.
#[derive(Clone, Copy, Default)]
struct Kept {
    /// `None` keeps the model until another one needs the memory.
    time: Option<Duration>,
    /// The time since which the model is known to be idle.
    idle_since: Option<Instant>,
}

impl ModelRegistry {
    /// Creates the registry with no model loaded.
    ///
    /// # Errors
    /// If there is no model, two models have the same name, or one model alone exceeds the memory limit.
    pub(crate) fn new(
        options: ServerOptions,
        metrics: &Metrics,
        models: Vec<HostedModel>,
    ) -> Result<Self, StartError> {
        if models.is_empty() {
            return Err(StartError::Zero { name: "models" });
        }
        let mut names = BTreeSet::new();
        for model in &models {
            let HostedModel { name, bytes, .. } = model;
            if let Some(name) = model.names().find(|name| !names.insert(*name)) {
                return Err(StartError::Name { name: name.into() });
            }
            if *bytes > options.model_bytes {
                return Err(StartError::Memory {
                    name: name.clone(),
                    bytes: *bytes,
                    most: options.model_bytes,
                });
            }
        }
        let loaded = Loaded {
            models: vec![None; models.len()],
            asked: vec![0; models.len()],
            requests: 0,
            kept: vec![Kept::default(); models.len()],
            is_swept: false,
        };
        let metrics = models
            .iter()
            .map(|model| metrics.of_model(&model.name))
            .collect();
        let loading = Arc::default();
        let preparers = Arc::new(Preparers::new(options.queue, options.image_bytes));
        Ok(Self {
            preparers,
            models,
            created: now(),
            options,
            metrics,
            loaded: Mutex::new(loaded),
            loading,
        })
    }

    /// Returns all models as they are offered.
    pub(crate) fn hosted(&self) -> &[HostedModel] {
        &self.models
    }

    /// Returns the names of all models, each with the model if it is in memory.
    pub(crate) fn names(&self) -> Vec<(&str, Option<Arc<ServedModel>>)> {
        self.unload_changed();
        let loaded = self.lock().models.clone();
        self.models
            .iter()
            .map(|model| &*model.name)
            .zip(loaded)
            .collect()
    }

    /// Returns the models in memory.
    pub(crate) fn loaded(&self) -> Vec<Arc<ServedModel>> {
        self.unload_changed();
        self.lock().models.iter().flatten().cloned().collect()
    }

    /// Returns each model that is in memory, with the time after which it leaves the memory if it has one.
    pub(crate) fn loaded_until(&self) -> Vec<Option<(Arc<ServedModel>, Option<Duration>)>> {
        self.unload_changed();
        let loaded = self.lock();
        let rest = |kept: &Kept| {
            let idle = kept
                .idle_since
                .map_or(Duration::ZERO, |since| since.elapsed());
            kept.time.map(|time| time.saturating_sub(idle))
        };
        let models = loaded.models.iter().zip(&loaded.kept);
        models
            .map(|(model, kept)| Some((model.clone()?, rest(kept))))
            .collect()
    }

    /// Sets the time for which `model` stays in memory after its last request. `None` keeps it until another one needs
    /// the memory.
    pub(crate) fn keep(self: &Arc<Self>, model: &ServedModel, time: Option<Duration>) {
        let named = |hosted: &HostedModel| hosted.name == model.name();
        if let Some(index) = self.models.iter().position(named) {
            self.keep_at(index, time);
        }
    }

    /// Lets the model that a request names leave the memory once it is idle. Returns its name.
    ///
    /// # Errors
    /// If there is no model of this name.
    pub(crate) fn unload(self: &Arc<Self>, name: Option<&str>) -> ApiResult<&str> {
        let index = self.index(name)?;
        self.keep_at(index, Some(Duration::ZERO));
        Ok(&self.models[index].name)
    }

    /// Sets the time for which the model at `index` stays in memory, if it is there.
    fn keep_at(self: &Arc<Self>, index: usize, time: Option<Duration>) {
        let mut loaded = self.lock();
        if loaded.models[index].is_none() {
            return;
        }
        loaded.kept[index] = Kept {
            time,
            idle_since: None,
        };
        drop(loaded);
        self.sweep();
    }

    /// Starts the task that checks for idle models, if any may stay for a limited time and it does not run.
    fn sweep(self: &Arc<Self>) {
        let mut loaded = self.lock();
        let is_limited = loaded.kept.iter().any(|kept| kept.time.is_some());
        if !is_limited || std::mem::replace(&mut loaded.is_swept, true) {
            return;
        }
        drop(loaded);
        let registry = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let Some(registry) = registry.upgrade() else {
                    return;
                };
                if !registry.unload_idle() {
                    return;
                }
            }
        });
    }

    /// Unloads models that were idle for as long as they may stay. Returns whether there are others to check later.
    fn unload_idle(&self) -> bool {
        let (mut dropped, mut loaded) = (Vec::new(), self.lock());
        let Loaded { models, kept, .. } = &mut *loaded;
        for (model, kept) in models.iter_mut().zip(kept) {
            let Some(time) = kept.time else { continue };
            // While the lock is held, no other thread can clone a model that only the registry references.
            let is_idle = |model: &Arc<ServedModel>| Arc::strong_count(model) == 1;
            match model {
                Some(one) if is_idle(one) => {
                    let since = *kept.idle_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= time {
                        dropped.extend(model.take());
                        *kept = Kept::default();
                    }
                }
                Some(_) => kept.idle_since = None,
                None => *kept = Kept::default(),
            }
        }
        loaded.is_swept = loaded.kept.iter().any(|kept| kept.time.is_some());
        let is_swept = loaded.is_swept;
        drop(loaded);
        unload(dropped, KEEP_ALIVE);
        is_swept
    }

    /// Unloads all models that no request waits for or uses.
    pub(crate) fn unload_all_idle(&self, reason: &'static str) {
        // While the lock is held, no other thread can clone a model that only the registry references.
        let is_idle = |model: &mut Arc<ServedModel>| Arc::strong_count(model) == 1;
        let mut loaded = self.lock();
        let models = loaded.models.iter_mut();
        let dropped: Vec<_> = models.filter_map(|model| model.take_if(is_idle)).collect();
        drop(loaded);
        unload(dropped, reason);
    }

    /// Returns each model that is in memory, with the number of its latest request, and whether no request uses it.
    /// They stay idle: the results do not count as users.
    pub(crate) fn activity(&self) -> Vec<Option<(Weak<ServedModel>, u64, bool)>> {
        let loaded = self.lock();
        let models = loaded.models.iter().zip(&loaded.asked);
        let of_one = |(model, asked): (&Option<Arc<ServedModel>>, &u64)| {
            let model = model.as_ref()?;
            let is_idle = Arc::strong_count(model) == 1 && model.queue().counts() == (0, 0);
            Some((Arc::downgrade(model), *asked, is_idle))
        };
        models.map(of_one).collect()
    }

    /// Returns the time after which an idle model gives kept prompts back, and the bytes of those that it keeps.
    pub(crate) fn idle(&self) -> (Option<Duration>, usize) {
        (self.options.idle_time, self.options.idle_bytes)
    }

    /// Returns the files in which the system reports that memory is short.
    pub(crate) fn pressure_files(&self) -> &PressureFiles {
        &self.options.pressure_files
    }

    /// Loads the first model.
    ///
    /// # Errors
    /// If the model can't be loaded.
    pub(crate) fn load_first(&self) -> Result<(), StartError> {
        self.load(0).map(drop).map_err(|source| StartError::Load {
            name: self.models[0].name.clone(),
            source,
        })
    }

    /// Returns the index of the model that a request names, or of the first model if it names none. A server of one model
    /// also takes other names for it, unless its options are strict.
    ///
    /// # Errors
    /// If there is no model of this name.
    fn index(&self, name: Option<&str>) -> ApiResult<usize> {
        let index = self
            .models
            .iter()
            .position(|model| name.is_none_or(|name| model.is_called(name)));
        // Many clients can't change the name that they ask for.
        let is_only = self.models.len() == 1 && !self.options.strict_models;
        index.or(is_only.then_some(0)).ok_or_else(|| {
            let names: Vec<_> = self.models.iter().flat_map(HostedModel::names).collect();
            ApiError::no_model(name.unwrap_or_default(), &names.join(", "))
        })
    }

    /// Returns the model that a request names, as [`index`](Self::index) finds it. Loads the model if it is not in memory,
    /// as soon as there is room.
    ///
    /// # Errors
    /// If there is no model of this name, it can't be loaded, or the models in memory stay in use for longer than the
    /// client timeout.
    pub(crate) async fn model(self: &Arc<Self>, name: Option<&str>) -> ApiResult<Arc<ServedModel>> {
        let index = self.index(name)?;
        if let Some(model) = self.ask(index) {
            return Ok(model);
        }
        let (mut failed, mut interval) = (None, POLL_INTERVAL);
        let loading = loop {
            let loading = Arc::clone(&self.loading).lock_owned().await;
            // Another request may have loaded the model in the meantime. `ask` looks at files, which is too much for each
            // poll of many requests.
            let is_loaded = self.lock().models[index].is_some();
            if is_loaded && let Some(model) = self.ask(index) {
                return Ok(model);
            }
            let Err(in_use) = self.try_make_room(index).await else {
                break loading;
            };
            // Models that fit are loaded while this one waits.
            drop(loading);
            if failed.get_or_insert_with(Instant::now).elapsed() > self.options.client_time_out {
                let name = &self.models[index].name;
                let message = format!(
                    "there is no memory for {name} while these models are in use: {in_use}; try again later"
                );
                return Err(ApiError::unavailable(message).with_param("model"));
            }
            tokio::time::sleep(interval).await;
            interval = (2 * interval).min(LONGEST_POLL);
        };
        let registry = Arc::clone(self);
        // The load continues if the client disconnects: the next request probably needs the same model.
        let load = move || {
            let model = registry.load_alone(index, loading)?;
            // Also if the client is gone.
            registry.sweep();
            Ok(model)
        };
        blocking(load).await
    }

    /// Begins the time after which the first model leaves the memory if there is no request.
    pub(crate) fn keep_first(self: &Arc<Self>) {
        self.sweep();
    }

    /// Drops models whose files were changed by another program. Such a model refuses to compute, and the next request
    /// loads it again.
    fn unload_changed(&self) {
        let is_changed = |model: &mut Arc<ServedModel>| model.model().check_unchanged().is_err();
        let changed: Vec<_> = self
            .lock()
            .models
            .iter_mut()
            .filter_map(|model| model.take_if(is_changed))
            .collect();
        unload(changed, CHANGED);
    }

    /// Returns the model at `index` if it is in memory, and marks it as the most recently requested.
    fn ask(&self, index: usize) -> Option<Arc<ServedModel>> {
        self.unload_changed();
        let mut loaded = self.lock();
        let model = loaded.models[index].clone()?;
        loaded.requests += 1;
        loaded.asked[index] = loaded.requests;
        loaded.kept[index].idle_since = None;
        Some(model)
    }

    /// Unloads idle models until the model at `index` fits.
    ///
    /// # Errors
    /// The names of the models in use, if these leave too little memory.
    async fn try_make_room(&self, index: usize) -> Result<(), String> {
        let dropped: Vec<_> = {
            let mut loaded = self.lock();
            let most = self.options.model_bytes - self.models[index].bytes;
            let mut by_age: Vec<_> = (0..self.models.len())
                .filter(|other| loaded.models[*other].is_some())
                .collect();
            by_age.sort_by_key(|other| loaded.asked[*other]);
            // While the lock is held, no other thread can clone a model that only the registry references.
            let is_idle = |other: &usize| {
                loaded.models[*other]
                    .as_ref()
                    .is_some_and(|one| Arc::strong_count(one) == 1)
            };
            let (idle, in_use): (Vec<_>, Vec<_>) = by_age.into_iter().partition(is_idle);
            let bytes = |models: &[usize]| {
                models
                    .iter()
                    .map(|other| self.models[*other].bytes)
                    .sum::<u64>()
            };
            let held = bytes(&in_use);
            if held > most {
                return Err(in_use
                    .iter()
                    .map(|other| &*self.models[*other].name)
                    .collect::<Vec<_>>()
                    .join(", "));
            }
            let first_kept = (0..=idle.len()).find(|first| held + bytes(&idle[*first..]) <= most);
            idle[..first_kept.unwrap_or(idle.len())]
                .iter()
                .filter_map(|other| loaded.models[*other].take())
                .collect()
        };
        if let Some(end) = unload(dropped, OTHER_MODEL) {
            let _ = end.await;
        }
        Ok(())
    }

    fn load_alone(
        &self,
        index: usize,
        _loading: OwnedMutexGuard<()>,
    ) -> ApiResult<Arc<ServedModel>> {
        let name = &self.models[index].name;
        self.load(index).map_err(|error| {
            ApiError::failed(&format!("{name} can't be loaded"), &*error).with_param("model")
        })
    }

    fn load(&self, index: usize) -> Result<Arc<ServedModel>, LoadError> {
        let HostedModel { name, load, .. } = &self.models[index];
        let of_server = (&self.options, &self.preparers);
        let hosted = Arc::new(ServedModel::new(
            name.clone(),
            load()?,
            of_server,
            self.metrics[index].clone(),
        ));
        let mut loaded = self.lock();
        loaded.requests += 1;
        loaded.asked[index] = loaded.requests;
        loaded.models[index] = Some(Arc::clone(&hosted));
        loaded.kept[index] = Kept {
            time: self.options.keep_alive,
            idle_since: None,
        };
        Ok(hosted)
    }

    fn lock(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
