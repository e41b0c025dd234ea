//! From a row to a question: one file a task, each by the harness's definition of it.

pub(super) mod hellaswag;
pub(super) mod lambada;
pub(super) mod mmlu;
pub(super) mod openbookqa;
pub(super) mod winogrande;
