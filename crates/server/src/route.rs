//! A route: its path, what a request needs, and what answers it.

use std::sync::Arc;

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, on};

use crate::app::App;

/// What requests to a route need where the server has keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: it tells what the program is, and whether it runs.
    Open,
    /// A key.
    Key,
    /// The key of metrics, which are those of all keys.
    Metrics,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// In capitals. `GET` is for `HEAD`, too.
    pub method: &'static str,
    /// With `{name}` for any part, and `{*name}` for any end.
    pub path: &'static str,
    /// What a request needs.
    pub access: Access,
}

/// A route and what answers it.
pub(crate) struct Entry {
    pub(crate) route: Route,
    pub(crate) handler: MethodRouter<Arc<App>>,
}

impl Entry {
    /// Returns a route that wants a key.
    pub(crate) fn new<T: 'static>(
        method: &'static str,
        path: &'static str,
        handler: impl Handler<T, Arc<App>>,
    ) -> Self {
        let filter = method
            .parse::<Method>()
            .ok()
            .and_then(|method| MethodFilter::try_from(method).ok());
        let handler = on(filter.expect("routes have methods of HTTP"), handler);
        Self {
            route: Route {
                method,
                path,
                access: Access::Key,
            },
            handler,
        }
    }

    /// Returns a route to read that wants a key.
    pub(crate) fn get<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Self {
        Self::new("GET", path, handler)
    }

    /// Returns a route with a body that wants a key.
    pub(crate) fn post<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Self {
        Self::new("POST", path, handler)
    }

    /// Returns a route to read that needs no key.
    pub(crate) fn open<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Self {
        Self::get(path, handler).with(Access::Open)
    }

    /// Returns the same route for requests that have what `access` states.
    pub(crate) fn with(mut self, access: Access) -> Self {
        self.route.access = access;
        self
    }
}
