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
use crate::error::{ApiError, ApiResult};
use crate::hosted::{HostedModel, LoadError};
use crate::metrics::reason::{CHANGED, DELETED, KEEP_ALIVE, OTHER_MODEL};
use crate::metrics::{Metrics, ModelMetrics};
use crate::names::now;
use crate::options::{ServerOptions, StartError};
use crate::prepare::Preparers;
use crate::served::ServedModel;
use crate::slots::{Kept, Models, Offered};

/// The interval at which a load that waits for memory first checks whether other models became idle. It doubles up to
/// [`LONGEST_POLL`].
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const LONGEST_POLL: Duration = Duration::from_millis(500);
/// The number of times that a model in use is looked at before its removal is refused.
const REMOVE_TRIES: usize = 10;
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

/// Ends the load of a model when it is dropped.
struct EndLoad<'a>(&'a ModelRegistry, usize);

impl Drop for EndLoad<'_> {
    fn drop(&mut self) {
        self.0.lock().end_load(self.1);
    }
}

/// The registry of all models.
pub(crate) struct ModelRegistry {
    /// The creation time of the registry, in seconds since 1970.
    pub(crate) created: u64,
    options: ServerOptions,
    /// The preparation threads that all models share.
    preparers: Arc<Preparers>,
    models: Mutex<Models>,
    /// Locked during a load: two concurrent loads could exceed the memory limit.
    loading: Arc<tokio::sync::Mutex<()>>,
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
        let models = models.into_iter().map(|model| {
            let metrics = metrics.of_model(&model.name);
            (model, metrics)
        });
        let models = Models::new(models);
        let loading = Arc::default();
        let preparers = Arc::new(Preparers::new(options.queue, options.image_bytes));
        Ok(Self {
            preparers,
            models: Mutex::new(models),
            created: now(),
            options,
            loading,
        })
    }

    /// Returns the models that requests may name.
    pub(crate) fn offered(&self) -> Vec<Offered> {
        self.unload_changed();
        self.lock().offered()
    }

    /// Returns the models in memory.
    pub(crate) fn loaded(&self) -> Vec<Arc<ServedModel>> {
        self.unload_changed();
        let models = self.lock();
        models
            .slots
            .iter()
            .filter_map(|slot| slot.served.clone())
            .collect()
    }

    /// Adds models of the cache. One that can't be served is logged.
    pub(crate) fn add_all(&self, models: impl IntoIterator<Item = HostedModel>, metrics: &Metrics) {
        for model in models {
            let own = metrics.of_model(&model.name);
            if let Err(why) = self.add(model, own) {
                tracing::warn!("a model of the cache is not served: {why}");
            }
        }
    }

    /// Adds a model, or replaces the one of the same name if it has changed. Running requests of that end as they began.
    ///
    /// # Errors
    /// A sentence, if the model alone exceeds the memory limit, or the server was started with another model of this name.
    pub(crate) fn add(&self, model: HostedModel, metrics: ModelMetrics) -> Result<(), String> {
        let HostedModel { name, bytes, .. } = &model;
        let most = self.options.model_bytes;
        if *bytes > most {
            return Err(format!(
                "{name} takes {bytes} bytes of memory, but models may take {most} (--model-memory)"
            ));
        }
        let replaced = self.lock().add(model, metrics)?;
        unload(replaced.into_iter().collect(), CHANGED);
        Ok(())
    }

    /// Removes the models that `is_meant` holds for, which must all be idle. Their files may be deleted afterwards.
    ///
    /// # Errors
    /// The name of a model that a request uses. None is removed then.
    pub(crate) async fn remove(&self, is_meant: impl Fn(&str) -> bool) -> Result<(), String> {
        let mut tries = REMOVE_TRIES;
        let dropped = loop {
            let removed = self.lock().remove(&is_meant);
            match removed {
                // Requests that only describe the server hold a model for an instant.
                Err(_) if tries > 1 => tries -= 1,
                removed => break removed?,
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        if let Some(end) = unload(dropped, DELETED) {
            let _ = end.await;
        }
        Ok(())
    }

    /// Sets the time for which `model` stays in memory after its last request. `None` keeps it until another one needs
    /// the memory.
    pub(crate) fn keep(self: &Arc<Self>, model: &ServedModel, time: Option<Duration>) {
        let index = self.lock().position(model.name());
        if let Some(index) = index {
            self.keep_at(index, time);
        }
    }

    /// Lets the model that a request names leave the memory once it is idle. Returns its name.
    ///
    /// # Errors
    /// If there is no model of this name.
    pub(crate) fn unload(self: &Arc<Self>, name: Option<&str>) -> ApiResult<String> {
        let index = self.index(name)?;
        self.keep_at(index, Some(Duration::ZERO));
        Ok(self.hosted(index).name.clone())
    }

    /// Returns the model at `index`.
    fn hosted(&self, index: usize) -> Arc<HostedModel> {
        Arc::clone(&self.lock().slots[index].hosted)
    }

    /// Sets the time for which the model at `index` stays in memory, if it is there.
    fn keep_at(self: &Arc<Self>, index: usize, time: Option<Duration>) {
        let mut models = self.lock();
        let slot = &mut models.slots[index];
        if slot.served.is_none() {
            return;
        }
        slot.kept = Kept {
            time,
            idle_since: None,
        };
        drop(models);
        self.sweep();
    }

    /// Starts the task that checks for idle models, if any may stay for a limited time and it does not run.
    fn sweep(self: &Arc<Self>) {
        let mut models = self.lock();
        if !models.is_limited() || std::mem::replace(&mut models.is_swept, true) {
            return;
        }
        drop(models);
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
        let mut models = self.lock();
        let dropped = models.take_expired();
        let is_swept = models.is_limited();
        models.is_swept = is_swept;
        drop(models);
        unload(dropped, KEEP_ALIVE);
        is_swept
    }

    /// Unloads all models that no request waits for or uses.
    pub(crate) fn unload_all_idle(&self, reason: &'static str) {
        let dropped = self.lock().take_idle();
        unload(dropped, reason);
    }

    /// Returns each model that is in memory, with the number of its latest request, and whether no request uses it.
    /// They stay idle: the results do not count as users.
    pub(crate) fn activity(&self) -> Vec<Option<(Weak<ServedModel>, u64, bool)>> {
        self.lock().activity()
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
            name: self.hosted(0).name.clone(),
            source,
        })
    }

    /// Returns the index of the model that a request names, or of the first model if it names none. A server of one model
    /// also takes other names for it, unless its options are strict or clients may fetch models.
    ///
    /// # Errors
    /// If there is no model of this name.
    fn index(&self, name: Option<&str>) -> ApiResult<usize> {
        // Many clients can't change the name that they ask for. Those that may fetch a model ask for it by its name.
        let answers_for_any = !self.options.strict_models && self.options.library.is_none();
        let index = self.lock().index(name, answers_for_any);
        index.map_err(|names| ApiError::no_model(name.unwrap_or_default(), &names))
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
        // Others need not leave the memory for a model that can't be loaded.
        self.check(index)?;
        let (mut failed, mut interval) = (None, POLL_INTERVAL);
        let loading = loop {
            let loading = Arc::clone(&self.loading).lock_owned().await;
            // Another request may have loaded the model in the meantime. `ask` looks at files, which is too much for each
            // poll of many requests.
            let is_loaded = self.lock().slots[index].served.is_some();
            if is_loaded && let Some(model) = self.ask(index) {
                return Ok(model);
            }
            let Err(in_use) = self.try_make_room(index).await else {
                break loading;
            };
            // Models that fit are loaded while this one waits.
            drop(loading);
            if failed.get_or_insert_with(Instant::now).elapsed() > self.options.client_time_out {
                let name = &self.hosted(index).name;
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

    /// Drops models whose files were changed by another program, which refuse to compute, and models whose files a pull has
    /// replaced, under whatever name. The next request loads them again.
    fn unload_changed(&self) {
        let is_changed = |model: &mut Arc<ServedModel>| {
            model.model().check_unchanged().is_err() || !model.is_current()
        };
        let mut models = self.lock();
        let slots = models.slots.iter_mut();
        let changed: Vec<_> = slots
            .filter_map(|slot| slot.served.take_if(is_changed))
            .collect();
        drop(models);
        unload(changed, CHANGED);
    }

    /// Returns the model at `index` if it is in memory, and marks it as the most recently requested.
    fn ask(&self, index: usize) -> Option<Arc<ServedModel>> {
        self.unload_changed();
        self.lock().ask(index)
    }

    /// Unloads idle models until the model at `index` fits.
    ///
    /// # Errors
    /// The names of the models in use, if these leave too little memory.
    async fn try_make_room(&self, index: usize) -> Result<(), String> {
        let dropped = self.lock().make_room(index, self.options.model_bytes)?;
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
        let name = &self.hosted(index).name;
        self.load(index).map_err(|error| {
            // A deletion, or a pull that began during the load, is the reason for whatever error there is.
            let ready = self.index(Some(name)).and_then(|_| self.check(index));
            ready.err().unwrap_or_else(|| {
                ApiError::failed(&format!("{name} can't be loaded"), &*error).with_param("model")
            })
        })
    }

    /// Checks that the files of the model at `index` may be loaded now.
    fn check(&self, index: usize) -> ApiResult<()> {
        let hosted = self.hosted(index);
        (hosted.check)().map_err(|why| {
            let message = format!("{} can't be loaded: {why}", hosted.name);
            ApiError::unavailable(message).with_param("model")
        })
    }

    fn load(&self, index: usize) -> Result<Arc<ServedModel>, LoadError> {
        let begun = self.lock().begin_load(index);
        let (hosted, metrics) = begun.ok_or("the model was deleted")?;
        let _end = EndLoad(self, index);
        let of_server = (&self.options, &self.preparers);
        let served = ServedModel::new(hosted.name.clone(), (hosted.load)()?, of_server, metrics);
        let served = Arc::new(served);
        let time = self.options.keep_alive;
        self.lock().put(index, (&hosted, &served), time);
        Ok(served)
    }

    fn lock(&self) -> MutexGuard<'_, Models> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
