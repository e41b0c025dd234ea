//! The pictures of a conversation, taken out of its messages and fetched if they are in a network.

use serde_json::Value;

use crate::app::App;
use crate::bodies::Share;
use crate::error::ApiResult;
use crate::owner::Tenant;
use crate::pictures::{GivenPicture, take};
use crate::served::ServedModel;

/// The pictures of a conversation, as a request has them or as they were fetched.
pub(crate) struct Gathered {
    pub(crate) pictures: Vec<GivenPicture>,
    /// Counts the memory of what was fetched.
    pub(crate) memory: Share,
}

impl Gathered {
    /// Returns the bytes of the pictures as they are.
    pub(crate) fn bytes(&self) -> usize {
        self.pictures.iter().map(GivenPicture::len).sum()
    }
}

/// Takes the pictures out of `messages` of a request of `client` to `model`, in order, and fetches those in a network.
///
/// # Errors
/// As [`take`]; if one is in a network, and the model reads none, or as [`ImageUrls::fetch`](crate::image_urls::ImageUrls::fetch).
pub(crate) async fn gather(
    (app, model, client): (&App, &ServedModel, Tenant),
    messages: &mut [Value],
) -> ApiResult<Gathered> {
    let mut pictures = take(messages, model.picture_limits().pictures)?;
    let mut memory = app.bodies().share(client);
    if pictures.iter().any(|it| it.source.in_network().is_some()) {
        model.processor(&pictures)?;
        memory = app
            .image_urls()
            .fetch(client, &mut pictures, memory)
            .await?;
    }
    Ok(Gathered { pictures, memory })
}
