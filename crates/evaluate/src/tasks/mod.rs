//! Conversion of a row to a question: one file per task, each by the harness's definition.

pub(super) mod hellaswag;
pub(super) mod lambada;
pub(super) mod mmlu;
pub(super) mod openbookqa;
pub(super) mod winogrande;
