//! `/slots`: the completions that the server computes concurrently.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;

/// A place for a completion.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Slot {
    id: usize,
    /// Maximum number of tokens of a prompt with its completion.
    n_ctx: usize,
    /// Whether the model has a head that proposes tokens to speculative decoding.
    speculative: bool,
    is_processing: bool,
    /// The model of the slot.
    model: String,
}

/// Returns the slots of all models in memory. They have no prompts: these belong to the clients that sent them.
#[utoipa::path(get, path = "/slots", tag = "server", responses((status = 200, body = Vec<Slot>)))]
pub(crate) async fn slots(State(app): State<Arc<App>>) -> Json<Vec<Slot>> {
    let models = app.registry().loaded();
    let of_model = models.iter().flat_map(|model| {
        let (_, answering) = model.queue().counts();
        (0..app.options.parallel).map(move |place| (model, place < answering))
    });
    let slots = of_model
        .enumerate()
        .map(|(id, (model, is_processing))| Slot {
            id,
            n_ctx: model.context(),
            speculative: model.speculates(),
            is_processing,
            model: model.name().to_owned(),
        });
    Json(slots.collect())
}
