//! Encoding pictures with the engine of a model that reads them.

use sha2::{Digest, Sha256};

use crate::cancel::Cancel;
use crate::engine::Engine;
use crate::error::Result;
use crate::kv::PrefixSalt;
use crate::pictures::{Picture, PictureId, Together};
use crate::vision::Pixels;

impl Engine {
    /// Returns the rows of a view that was encoded before, if they are still there. Only those who give the same salt find
    /// them.
    pub fn known_picture(&self, id: PictureId, salt: PrefixSalt) -> Option<Picture> {
        self.shared().forward.pictures().find(&(salt, id.0))
    }

    /// Encodes a view of a picture, or finds its rows: those of a picture that was encoded before are kept for some time.
    /// Only those who give the same salt find them. An engine encodes one view at a time, and others wait. The prompt of a
    /// session that
    /// [holds](crate::Session::hold) the picture may then have its [tokens](Picture::tokens).
    ///
    /// # Errors
    /// If the model reads no pictures or this engine cannot compute them, the view has a size that the encoder cannot read,
    /// or `cancel` is set.
    pub fn picture(&self, pixels: Pixels, salt: PrefixSalt, cancel: &Cancel) -> Result<Picture> {
        let vision = self.model().vision()?;
        vision.rows(pixels.height, pixels.width)?;
        let key = (salt, pixels.id().0);
        let pictures = self.shared().forward.pictures();
        if let Some(picture) = pictures.find(&key) {
            return Ok(picture);
        }
        let _turn = pictures.turn(cancel)?;
        // Another request may have encoded it meanwhile.
        if let Some(picture) = pictures.find(&key) {
            return Ok(picture);
        }
        let values = self.executor().encode(pixels, cancel)?;
        vision.check_unchanged()?;
        let description = vision.description();
        let cells = description.cells(pixels.height, pixels.width)?;
        let row_len = description.width * (1 + description.deepstack.len());
        pictures.add(key, (cells, row_len), values, Together::new(description))
    }
}

impl Pixels<'_> {
    /// Returns the identity of the view.
    pub fn id(&self) -> PictureId {
        let mut hash = Sha256::new();
        hash.update((self.height as u64).to_le_bytes());
        hash.update((self.width as u64).to_le_bytes());
        hash.update(bytemuck::cast_slice::<f32, u8>(self.planes));
        PictureId(hash.finalize().into())
    }
}
