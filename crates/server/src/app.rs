//! What all requests share.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::bodies::Bodies;
use crate::catalog::{Catalog, HostedModel};
use crate::counters::Metrics;
use crate::engines::Engines;
use crate::error::ApiResult;
use crate::hosted::Hosted;
use crate::options::{ServerOptions, StartError};

/// The server.
pub(crate) struct App {
    pub(crate) options: ServerOptions,
    metrics: Metrics,
    catalog: Arc<Catalog>,
    bodies: Bodies,
}

impl App {
    /// With the first of the models in memory; `threads` answer requests with large bodies.
    ///
    /// # Errors
    /// If there is no model, two have one name, the first can't be loaded, or one takes more memory than it may.
    pub(crate) fn new(
        options: ServerOptions,
        models: Vec<HostedModel>,
        threads: Handle,
    ) -> Result<Self, StartError> {
        let mut metrics = Metrics::new();
        let catalog = Arc::new(Catalog::new(options.clone(), &metrics, models)?);
        catalog.load_first()?;
        metrics.watch(Box::new(Engines(Arc::clone(&catalog))));
        let bodies = Bodies::new(options.bodies_bytes, threads);
        Ok(Self {
            options,
            metrics,
            catalog,
            bodies,
        })
    }

    /// What is counted.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the memory for the bodies of requests.
    pub(crate) fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    /// All models.
    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The model that a request names; the first one if it names none.
    ///
    /// # Errors
    /// If there is none of this name, or it can't be loaded.
    pub(crate) async fn model(&self, name: Option<&str>) -> ApiResult<Arc<Hosted>> {
        self.catalog.model(name).await
    }
}
