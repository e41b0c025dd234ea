//! The registry of served models. Each model is loaded on its first request.
//!
//! The loaded models have a memory limit in total. If one more model would exceed it, the least recently requested
//! models are unloaded first. A model stays loaded while a request waits for it or runs on it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::OwnedMutexGuard;

use crate::blocking::{blocking, spawn};
use crate::counters::{Metrics, ModelMetrics};
use crate::error::{ApiError, ApiResult};
use crate::names::now;
use crate::options::{ServerOptions, StartError};
use crate::prepare::Preparers;
use crate::served::{LoadedModel, ServedModel};

/// The interval at which a load that waits for memory checks whether other models became idle.
const LOOK: Duration = Duration::from_millis(20);
/// The interval at which idle models are checked that may stay in memory for a limited time.
const SWEEP: Duration = Duration::from_millis(100);

/// The reason why a model could not be loaded.
pub type LoadError = Box<dyn std::error::Error + Send + Sync>;

/// A model to serve.
pub struct HostedModel {
    /// The name that clients use, and that responses have.
    pub name: String,
    /// Further names that clients may use.
    pub aliases: Vec<String>,
    /// The memory of the loaded model in bytes: weights, KV cache and activations.
    pub bytes: u64,
    /// Facts that lists of models show.
    pub facts: ModelFacts,
    /// Loads the model.
    pub load: Box<dyn Fn() -> Result<LoadedModel, LoadError> + Send + Sync>,
}

/// Facts about a model that are known before it is loaded.
#[derive(Clone, Debug, Default)]
pub struct ModelFacts {
    /// The model family, such as `llama` or `qwen2`.
    pub family: String,
    /// The format of the file: `gguf`, `safetensors` or `triad`.
    pub format: String,
    /// The number format of the weights. Empty if it is unknown.
    pub quantization: String,
    /// The number of parameters.
    pub parameters: u64,
    /// The bytes of the file or folder.
    pub file_bytes: u64,
    /// The time of the last change of the file or folder.
    pub modified: Option<SystemTime>,
}

impl fmt::Debug for HostedModel {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self {
            name,
            aliases,
            bytes,
            facts,
            load: _,
        } = self;
        f.debug_struct("HostedModel")
            .field("name", name)
            .field("aliases", aliases)
            .field("bytes", bytes)
            .field("facts", facts)
            .finish_non_exhaustive()
    }
}

impl HostedModel {
    /// Returns all names that clients may use.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        [&self.name]
            .into_iter()
            .chain(&self.aliases)
            .map(String::as_str)
    }

    /// Returns whether a request that names `name` is for this model. The suffix `:latest` stands for no tag, as in
    /// Ollama.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let is = |name: &str| self.names().any(|own| own == name);
        is(name) || name.strip_suffix(":latest").is_some_and(is)
    }
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
        let preparers = Arc::new(Preparers::new(options.queue));
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
        if time.is_none() || std::mem::replace(&mut loaded.is_swept, true) {
            return;
        }
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
        if !dropped.is_empty() {
            // Dropping an engine joins its threads, which takes a moment.
            let _ = spawn(move || drop(dropped));
        }
        is_swept
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
        let loading = Arc::clone(&self.loading).lock_owned().await;
        // Another request may have loaded the model in the meantime.
        if let Some(model) = self.ask(index) {
            return Ok(model);
        }
        self.make_room(index).await?;
        let catalog = Arc::clone(self);
        // The load continues if the client disconnects: the next request probably needs the same model.
        blocking(move || catalog.load_alone(index, loading)).await
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
        if !changed.is_empty() {
            // Dropping an engine joins its threads, which takes a moment.
            let _ = spawn(move || drop(changed));
        }
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

    /// Waits until the model at `index` fits next to the models in use, and unloads as many idle models as necessary.
    async fn make_room(&self, index: usize) -> ApiResult<()> {
        let start = Instant::now();
        while let Err(in_use) = self.try_make_room(index).await {
            if start.elapsed() > self.options.client_time_out {
                let name = &self.models[index].name;
                let message = format!(
                    "there is no memory for {name} while these models are in use: {in_use}; try again later"
                );
                return Err(ApiError::unavailable(message).with_param("model"));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
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
                .map(|other| loaded.models[*other].take())
                .collect()
        };
        // Dropping an engine joins its threads, which takes a moment.
        if let Ok(end) = spawn(move || drop(dropped)) {
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
        Ok(hosted)
    }

    fn lock(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
