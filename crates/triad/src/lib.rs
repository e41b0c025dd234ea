//! Runs language models on this device.
//!
//! [`Model::open`] does what the command `triad` does: it fetches the model, prepares it in INT8, times the kernels and
//! puts the weights into huge pages. Fetching, preparing and timing happen once on a machine. A [`Chat`] answers
//! messages, a [`Session`] continues text. Both return a [`Generation`], an iterator over the pieces of the answer.
//!
//! ```no_run
//! # fn main() -> triad::Result<()> {
//! let model = triad::Model::open("smollm2-135m")?;
//! for piece in model.chat().send("Why is the sky blue?")? {
//!     print!("{}", piece?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`GenerateOptions`] choose how tokens are sampled and which [`Constraint`] the answer matches, such as a JSON
//! schema:
//!
//! ```no_run
//! # fn main() -> triad::Result<()> {
//! use triad::{Constraint, GenerateOptions, Model};
//!
//! let model = Model::open("model.gguf")?;
//! let schema = r#"{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}"#;
//! let options = GenerateOptions::new().constraint(Constraint::JsonSchema(schema.into())).max_tokens(64);
//! let answer = model.chat().with_options(options).send("Where is the Eiffel Tower?")?.finish()?;
//! println!("{}", answer.text);
//! # Ok(())
//! # }
//! ```
//!
//! An [`Error`] has a [kind](Error::kind) for programs and a message for people. The crates below this one
//! (`triad-engine`, `triad-model` and others) have more options and change more often.
#![forbid(unsafe_code)]

mod chat;
mod error;
mod generation;
mod image;
mod model;
mod opened;
mod options;
mod session;

pub use chat::{Chat, Message, Tool};
pub use error::{Error, ErrorKind, Result};
pub use generation::{Answer, Generation, ToolCall};
pub use image::Image;
pub use model::{CacheType, Model, OpenOptions};
pub use options::{Constraint, GenerateOptions};
pub use session::Session;
pub use triad_engine::{Cancel, Finish, Timing};

/// The examples of README and of `docs/guide/library.md` are tested as this documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/guide/library.md")]
struct Documents;
