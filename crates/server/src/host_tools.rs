//! Tools of this machine, which the program that starts a server lends to the web page.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::owner::Tenant;

/// Maximum number of calls at the same time. A tenant may have half of them.
const MAX_CALLS: usize = 4;

/// Tools that a server calls for its clients.
pub trait ToolHost: fmt::Debug + Send + Sync {
    /// Returns the tools. Their names differ.
    fn tools(&self) -> &[HostTool];

    /// Calls the tool at `index` of [`tools`](Self::tools). Blocks until it has ended. `is_cancelled` is asked now and then.
    /// A call that can't be made has an error as its result.
    fn call(
        &self,
        index: usize,
        arguments: Map<String, Value>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> ToolResult;
}

/// A tool.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct HostTool {
    /// The name of the MCP server that has the tool.
    pub server: String,
    /// The tool's name in calls.
    pub name: String,
    /// The description for models.
    pub description: Option<String>,
    /// The JSON schema of the arguments.
    #[schema(value_type = Object)]
    pub parameters: Value,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ToolResult {
    /// The text for the model.
    pub text: String,
    /// Whether the tool reports an error, or could not be called.
    pub is_error: bool,
}

/// The places of calls that are made at the same time.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallPlaces(Arc<Mutex<Vec<Tenant>>>);

/// A place, which is free again when it is dropped.
#[derive(Debug)]
pub(crate) struct CallPlace {
    places: CallPlaces,
    tenant: Tenant,
}

impl CallPlaces {
    /// Takes a place for a call of `tenant`. Returns `None` if all places are taken, or half of them by `tenant`.
    pub(crate) fn take(&self, tenant: Tenant) -> Option<CallPlace> {
        let mut taken = self.taken();
        let own = taken.iter().filter(|one| **one == tenant).count();
        if taken.len() >= MAX_CALLS || own >= MAX_CALLS / 2 {
            return None;
        }
        taken.push(tenant);
        Some(CallPlace {
            places: self.clone(),
            tenant,
        })
    }

    fn taken(&self) -> MutexGuard<'_, Vec<Tenant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(index) = taken.iter().position(|one| *one == self.tenant) {
            taken.swap_remove(index);
        }
    }
}
