//! The Python module `triad._triad`, which the package in `python/triad` re-exports.
//!
//! [`model`] and [`session`] are the classes for users, [`answer`] has their results, and [`options`] and [`prompt`]
//! read arguments. [`lent`] prevents concurrent use of one session. [`running`] computes on its own thread without
//! Python's lock, while the calling thread waits for it and for Ctrl-C. [`tools`] prepares and evaluates models, and
//! [`error`] converts errors to exceptions.
#![forbid(unsafe_code)]

mod answer;
mod error;
mod lent;
mod messages;
mod model;
mod options;
mod prompt;
mod running;
mod session;
mod tools;

use pyo3::prelude::*;

/// The compiled part of `triad`.
#[pymodule(name = "_triad")]
mod module {
    #[pymodule_export]
    use crate::answer::{Answer, Stream, ToolCall};
    #[pymodule_export]
    use crate::error::{Busy, PromptTooLong, TriadError};
    #[pymodule_export]
    use crate::model::Model;
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::tools::prepare;

    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
