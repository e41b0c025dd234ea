//! The tables of the documents, which are made of measurements as data.
//!
//! A file of measurements has machine, commit, commands, rounds and values ([`data`]). [`record`] makes its rows from the
//! output of a command. A page says which of them a table has, between two marks; [`page`] writes the table there.

pub mod data;
mod format;
pub mod page;
pub mod record;
mod table;

/// The reason why a file of measurements, an output or a page is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of measurements is not what the schema says.
    #[error("{name}: {problem}")]
    Data {
        /// Name of the file.
        name: String,
        /// The fault, and what was expected.
        problem: String,
    },
    /// The output of a command has not the fields that were asked for.
    #[error("the output of the command: {problem}")]
    Output {
        /// The fault, and what was expected.
        problem: String,
    },
    /// The marks of a table cannot be followed.
    #[error("line {line}: {problem}")]
    Page {
        /// Number of the line in the page, from 1.
        line: usize,
        /// The fault, and what was expected.
        problem: String,
    },
}

/// The result of this module's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
