//! The API of llama.cpp's server for texts without a chat template: `/completion`, `/infill` and `/slots`.

pub(crate) mod answer;
pub(crate) mod completion;
pub(crate) mod samplers;
pub(crate) mod slots;
