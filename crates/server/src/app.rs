//! The state that all requests share.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::bodies::Bodies;
use crate::engines::Engines;
use crate::error::ApiResult;
use crate::host_tools::CallPlaces;
use crate::hosted::HostedModel;
use crate::image_urls::ImageUrls;
use crate::library::Changes;
use crate::metrics::Metrics;
use crate::options::{ServerOptions, StartError};
use crate::registry::ModelRegistry;
use crate::served::ServedModel;
use crate::stored::Store;

/// The server's shared state.
pub(crate) struct App {
    pub(crate) options: ServerOptions,
    metrics: Metrics,
    registry: Arc<ModelRegistry>,
    bodies: Bodies,
    image_urls: ImageUrls,
    stored: Arc<Store>,
    calls: CallPlaces,
    changes: Changes,
}

impl App {
    /// Creates the state with the first model in memory. `threads` runs the handlers of requests with large bodies.
    ///
    /// # Errors
    /// If there is no model, two models have the same name, the first model can't be loaded, or one needs more memory
    /// than allowed.
    pub(crate) fn new(
        options: ServerOptions,
        models: Vec<HostedModel>,
        threads: Handle,
    ) -> Result<Self, StartError> {
        let mut metrics = Metrics::new();
        let registry = Arc::new(ModelRegistry::new(options.clone(), &metrics, models)?);
        registry.load_first()?;
        if let Some(library) = &options.library {
            registry.add_all(library.models(None), &metrics);
        }
        metrics.watch(Box::new(Engines(Arc::clone(&registry))));
        let bodies = Bodies::new(options.bodies_bytes, threads);
        let stored = Arc::new(Store::new(&options));
        Ok(Self {
            image_urls: ImageUrls::new(&options),
            options,
            metrics,
            registry,
            bodies,
            stored,
            calls: CallPlaces::default(),
            changes: Changes::default(),
        })
    }

    /// Returns the metrics.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the memory budget for request bodies.
    pub(crate) fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    /// Returns what fetches pictures from a network.
    pub(crate) fn image_urls(&self) -> &ImageUrls {
        &self.image_urls
    }

    /// Returns the stored responses and conversations.
    pub(crate) fn stored(&self) -> &Arc<Store> {
        &self.stored
    }

    /// Returns the places of calls of tools that are made at the same time.
    pub(crate) fn calls(&self) -> &CallPlaces {
        &self.calls
    }

    /// Returns the models that are fetched or deleted now.
    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Returns the registry of models; tasks that outlive a request keep it.
    pub(crate) fn registry(&self) -> &Arc<ModelRegistry> {
        &self.registry
    }

    /// Sets how long `model` stays in memory after its last request, if a request asks for it. On a server whose keys
    /// are separate, no key may take a model from the others.
    pub(crate) fn keep(&self, model: &ServedModel, keep: Option<Option<Duration>>) {
        if let Some(time) = keep.filter(|_| !self.options.separates_keys()) {
            self.registry.keep(model, time);
        }
    }

    /// Lets the model that a request names leave the memory once it is idle. Returns its name, or `None` on a server whose
    /// keys are separate, where no key may take a model from the others.
    ///
    /// # Errors
    /// If there is no model of this name.
    pub(crate) fn unload(&self, name: Option<&str>) -> ApiResult<Option<String>> {
        if self.options.separates_keys() {
            return Ok(None);
        }
        self.registry.unload(name).map(Some)
    }

    /// Returns the model that a request names, or the first model if it names none.
    ///
    /// # Errors
    /// If there is no model of this name, or it can't be loaded.
    pub(crate) async fn model(&self, name: Option<&str>) -> ApiResult<Arc<ServedModel>> {
        self.registry.model(name).await
    }
}
