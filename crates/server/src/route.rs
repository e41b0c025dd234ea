//! Routes: method, path, required access and handler.

use std::sync::Arc;

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, on};

use crate::app::App;

/// The access that a route requires on a server with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No key: the route only shows what the program is and whether it runs.
    Open,
    /// An API key.
    Key,
    /// The key of metrics, since metrics cover the requests of all keys.
    Metrics,
}

/// A route of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The method in capitals. `GET` includes `HEAD`.
    pub method: &'static str,
    /// The path. `{name}` matches one segment, and `{*name}` matches the rest of the path.
    pub path: &'static str,
    /// The required access.
    pub access: Access,
}

/// A route with its handler.
pub(crate) struct Entry {
    pub(crate) route: Route,
    pub(crate) handler: MethodRouter<Arc<App>>,
}

impl Entry {
    /// Returns a route that requires a key.
    pub(crate) fn new<T: 'static>(
        method: &'static str,
        path: &'static str,
        handler: impl Handler<T, Arc<App>>,
    ) -> Self {
        let filter = method
            .parse::<Method>()
            .ok()
            .and_then(|method| MethodFilter::try_from(method).ok());
        let handler = on(filter.expect("routes have HTTP methods"), handler);
        Self {
            route: Route {
                method,
                path,
                access: Access::Key,
            },
            handler,
        }
    }

    /// Returns a `GET` route that requires a key.
    pub(crate) fn get<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Self {
        Self::new("GET", path, handler)
    }

    /// Returns a `POST` route that requires a key.
    pub(crate) fn post<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Self {
        Self::new("POST", path, handler)
    }

    /// Returns a `GET` route that requires no key.
    pub(crate) fn open<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Self {
        Self::get(path, handler).with(Access::Open)
    }

    /// Returns the same route with another required access.
    pub(crate) fn with(mut self, access: Access) -> Self {
        self.route.access = access;
        self
    }
}
