//! Decoding of pictures, within a memory limit of the server.
//!
//! A picture takes memory while it is decoded, and its views until the encoder has read them. A request waits until
//! there is room for all of its pictures. It gives the memory of decoding back after that, and the rest once they are
//! encoded or its client leaves.

use std::collections::HashMap;
use std::sync::Arc;

use triad_engine::{Cancel, Picture as EncodedPicture, Session};
use triad_frontend::pictures::{self as prompts, PicturePrompt, Place};
use triad_pictures::{Picture, Prepared};

use crate::error::{ApiError, ApiResult, chain};
use crate::owner::Owner;
use crate::prepare::{PictureMemory, Work};
use crate::queue::Place as QueuePlace;
use crate::read_pictures::ReadPicture;
use crate::served::ServedModel;

/// Maximum number of pixels of the pictures that are decoded for a request: as many as 100 screens of 1,080 × 2,400.
const MAX_PIXELS: u64 = 1 << 28;

/// Pictures of a prompt.
#[derive(Default)]
pub(crate) struct JobPictures {
    /// The places of their views among the tokens.
    places: Vec<Place>,
    pictures: Vec<JobPicture>,
    /// The memory of the views that are not encoded.
    _memory: Option<PictureMemory>,
}

struct JobPicture {
    hash: [u8; 32],
    views: Views,
}

/// The views of a picture.
#[derive(Clone)]
enum Views {
    /// Their rows.
    Encoded(Vec<EncodedPicture>),
    /// Their pixels.
    Prepared(Arc<Prepared>),
}

/// Decodes the pictures of a request that has a `place`, except those whose rows the engine still has. `places` are those
/// of their views.
///
/// # Errors
/// If a picture is broken; the error names its field.
pub(crate) async fn decode(
    (model, place, owner): (&Arc<ServedModel>, &QueuePlace, Owner),
    places: Vec<Place>,
    pictures: Vec<ReadPicture>,
) -> ApiResult<JobPictures> {
    let find = move |model: &ServedModel, hash| {
        let views = model.known_pictures().find(model.engine(), owner, hash);
        views.map(Views::Encoded)
    };
    // Rows that are found stay as long as they are held here.
    let (mut seen, mut unknown, mut pixels) = (HashMap::new(), HashMap::new(), 0_u64);
    for picture in &pictures {
        if let Some(views) = find(model, picture.hash) {
            seen.insert(picture.hash, views);
        } else if unknown
            .insert(picture.hash, (picture.head.bytes, picture.layout.bytes()))
            .is_none()
        {
            pixels += u64::from(picture.head.width) * u64::from(picture.head.height);
        }
        if pixels > MAX_PIXELS {
            let message = format!(
                "the new pictures up to this one have {pixels} pixels, expected at most {MAX_PIXELS} in a request"
            );
            return Err(ApiError::field(&picture.field, message));
        }
    }
    // One after the other is decoded, and the views of all are kept.
    let decoded = unknown.values().map(|(decoded, _)| *decoded).max();
    let views = unknown.values().map(|(_, views)| *views);
    let kept = views.fold(0, usize::saturating_add);
    let mut memory = match decoded.unwrap_or(0).saturating_add(kept) {
        0 => None,
        bytes => Some(
            model
                .preparers()
                .picture_memory(place.client(), bytes)
                .await,
        ),
    };
    let work = move |model: &ServedModel, cancel: &Cancel| {
        let mut job = Vec::with_capacity(pictures.len());
        for picture in pictures {
            cancel.check()?;
            let hash = picture.hash;
            // Another request may have had it encoded meanwhile.
            let known = seen.get(&hash).cloned().or_else(|| find(model, hash));
            let views = match known {
                Some(views) => views,
                None => Views::Prepared(Arc::new(of_one(model, &picture, cancel)?)),
            };
            seen.insert(hash, views.clone());
            job.push(JobPicture { hash, views });
        }
        Ok(job)
    };
    let pictures = model
        .preparers()
        .prepare((model, place), Work::Pictures, work)
        .await?;
    if let Some(memory) = &mut memory {
        memory.keep(kept);
    }
    Ok(JobPictures {
        places,
        pictures,
        _memory: memory,
    })
}

fn of_one(model: &ServedModel, picture: &ReadPicture, cancel: &Cancel) -> ApiResult<Prepared> {
    let ReadPicture {
        field,
        content,
        head,
        ..
    } = picture;
    let failed = |error| ApiError::field(field, chain(&error));
    let processor = model.processor(&[])?;
    let decoded = Picture::decode(content).map_err(failed)?;
    // The prompt has places for a picture of the size in the head.
    if (decoded.width, decoded.height) != (head.width, head.height) {
        let message = "the picture has another size than its head states";
        return Err(ApiError::field(field, message));
    }
    cancel.check()?;
    model.metrics().decoded_picture();
    processor.prepare(&decoded).map_err(failed)
}

impl JobPictures {
    /// Encodes the pictures for `session`, which then holds them, and returns the tokens of the prompt with those of their
    /// rows. The memory of their pixels is given back.
    ///
    /// # Errors
    /// If a picture can't be encoded, or `cancel` is set.
    pub(crate) fn hold(
        self,
        (model, owner): (&ServedModel, Owner),
        session: &mut Session,
        tokens: Vec<u32>,
        cancel: &Cancel,
    ) -> ApiResult<Vec<u32>> {
        let Self {
            places, pictures, ..
        } = self;
        let mut encoded: Vec<Vec<EncodedPicture>> = vec![Vec::new(); pictures.len()];
        let prompt = PicturePrompt { tokens, places };
        let tokens = prompt.hold_encoded(session, |session, picture, view| {
            let rows = match &pictures[picture].views {
                Views::Encoded(views) => views[view].clone(),
                Views::Prepared(prepared) => {
                    let pixels = prompts::pixels(&prepared.views[view]);
                    session.engine().picture(pixels, session.salt(), cancel)?
                }
            };
            encoded[picture].push(rows.clone());
            Ok(rows)
        })?;
        for (picture, views) in pictures.iter().zip(&encoded) {
            model.known_pictures().keep(owner, picture.hash, views);
        }
        Ok(tokens)
    }
}
