//! The tensor names of several residual streams.

/// Tensor names of several residual streams; all but the first are those of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamNames {
    /// Projections and outputs: of each stream, or stacked.
    pub(super) shared: [&'static str; 2],
    /// Whether they are stacked.
    pub(super) stacked: bool,
    pub(super) router_norm: &'static str,
    pub(super) router: &'static str,
    pub(super) prediction: &'static str,
    pub(super) correction: &'static str,
    /// The factors on what the input by token reads, with the ending.
    pub(super) scale: &'static str,
    /// The layers next to attention.
    pub(super) left: &'static str,
    pub(super) right: &'static str,
    pub(super) norm: &'static str,
}

/// Names in a Hugging Face checkpoint.
pub(super) const HUGGING_FACE: StreamNames = StreamNames {
    shared: ["altup_projections", "altup_unembed_projections"],
    stacked: false,
    router_norm: "altup.router_norm",
    router: "altup.modality_router",
    prediction: "altup.prediction_coefs",
    correction: "altup.correction_coefs",
    scale: "altup.correct_output_scale",
    left: "laurel.linear_left",
    right: "laurel.linear_right",
    norm: "laurel.post_laurel_norm",
};

/// Names in GGUF.
pub(super) const GGUF: StreamNames = StreamNames {
    shared: ["altup_proj", "altup_unembd_proj"],
    stacked: true,
    router_norm: "altup_router_norm",
    router: "altup_router",
    prediction: "altup_predict_coef",
    correction: "altup_correct_coef",
    scale: "altup_correct_scale.weight",
    left: "laurel_l",
    right: "laurel_r",
    norm: "laurel_post_norm",
};
