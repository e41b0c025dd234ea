//! The heads of pictures: their sizes, and with these their places in a prompt. Nothing is decoded yet.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use triad_pictures::{Head, Layout, Processor};

use crate::error::{ApiError, ApiResult, chain};
use crate::pictures::{GivenPicture, PictureLimits};
use crate::served::ServedModel;

/// A picture whose head is read.
pub(crate) struct ReadPicture {
    /// The field of the request.
    pub(crate) field: String,
    /// The content of its file.
    pub(crate) content: Arc<[u8]>,
    /// The hash of the content.
    pub(crate) hash: [u8; 32],
    pub(crate) head: Head,
    pub(crate) layout: Layout,
}

/// Reads the heads of pictures for `model`.
///
/// # Errors
/// If one is not a picture, all together are beyond the model's limits, or its encoder can't read one of this size; the
/// error names the field.
pub(crate) fn read(model: &ServedModel, given: Vec<GivenPicture>) -> ApiResult<Vec<ReadPicture>> {
    let processor = model.processor(&given)?;
    let PictureLimits { patches: most, .. } = model.picture_limits();
    let vision = model.model().vision()?.description();
    let mut patches = 0_usize;
    let read = given.into_iter().map(|given| {
        let picture = of_one(processor, &given)?;
        for [height, width] in &picture.layout.views {
            let cells = vision.cells(*height, *width);
            let cells = cells.map_err(|error| ApiError::field(&given.field, chain(&error)))?;
            let of_view = cells[0] * cells[1] * vision.projector.merge * vision.projector.merge;
            patches = patches.saturating_add(of_view);
        }
        if patches > most {
            let message = format!(
                "the pictures up to this one have {patches} patches, expected at most {most} on this server \
                 (--max-image-patches)"
            );
            return Err(ApiError::field(&given.field, message));
        }
        Ok(picture)
    });
    read.collect()
}

fn of_one(processor: &Processor, given: &GivenPicture) -> ApiResult<ReadPicture> {
    let content = given.content()?;
    let head = Head::read(&content);
    let layout = head.and_then(|head| Ok((head, processor.layout(head.width, head.height)?)));
    let (head, layout) = layout.map_err(|error| ApiError::field(&given.field, chain(&error)))?;
    Ok(ReadPicture {
        field: given.field.clone(),
        hash: Sha256::digest(&content).into(),
        content,
        head,
        layout,
    })
}
