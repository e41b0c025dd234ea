//! LoRA adapters of sessions.

use std::ffi::c_char;
use std::path::Path;

use triad_engine::{Adapters, ScaledAdapter};

use crate::pointers::{reference, slice, text};
use crate::session::TriadSession;
use crate::status::{Failure, TriadStatus, call};

/// A LoRA adapter.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TriadAdapter {
    /// The path of a GGUF or safetensors file, or of a folder of PEFT.
    pub path: *const c_char,
    /// The factor of its change; 1 applies the adapter as it was trained.
    pub scale: f32,
}

/// Replaces the adapters of a conversation: later calls compute with the sum of their changes. A `count` of 0 removes
/// all. Tokens that were processed with other adapters are processed again by the next answer. If an adapter does not
/// fit the model, those of before remain.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_set_adapters(
    session: *const TriadSession,
    adapters: *const TriadAdapter,
    count: usize,
) -> TriadStatus {
    call(|| {
        let mut session = reference("session", session)?.lock()?;
        let given = slice("adapters", adapters, count)?;
        let open = |(index, adapter): (usize, &TriadAdapter)| {
            let path = text(&format!("adapters[{index}].path"), adapter.path)?;
            Ok(ScaledAdapter {
                adapter: session.model().open_adapter(Path::new(path))?,
                scale: adapter.scale,
            })
        };
        let opened: Result<Vec<_>, Failure> = given.iter().enumerate().map(open).collect();
        let adapters = Adapters::new(opened?)?;
        Ok(session.set_adapters(&adapters)?)
    })
}
