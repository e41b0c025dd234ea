//! Pictures in a conversation: parts `{"type": "image"}` of its messages, in the order of the pictures.
//!
//! The chat template writes a token for each picture. What the model's processor made of the picture takes its place:
//! text, and one token for each row of the encoder's output.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use triad_engine::package::Package;
use triad_engine::{Cancel, Model, Picture as EncodedPicture, Pixels, Session, VisionModel};
use triad_kernels::BlockArithmetic;
use triad_model::checkpoint::Checkpoint;
use triad_model::template::ChatTemplate;
use triad_model::tokenizer::{TokenKind, Tokenizer};
use triad_model::vision::{VisionFile, mmproj_next_to};
use triad_pictures::{Piece, Prepared, Processor, View};

use crate::error::{Error, Result};
use crate::plain_messages::{has_shown_result, is_picture, with_pictures_after_results};
use crate::tool_calls;

/// The pictures of a conversation.
#[derive(Clone, Copy, Debug)]
pub struct Pictures<'a> {
    /// The model's processor.
    pub processor: &'a Processor,
    /// The pieces of each picture.
    pub pieces: &'a [Arc<[Piece]>],
}

/// A prompt with places for rows of pictures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PicturePrompt {
    /// The tokens; those in the places of rows stand for no text.
    pub tokens: Vec<u32>,
    /// The places, in order.
    pub places: Vec<Place>,
}

impl From<Vec<u32>> for PicturePrompt {
    /// Creates a prompt without pictures.
    fn from(tokens: Vec<u32>) -> Self {
        Self {
            tokens,
            places: Vec::new(),
        }
    }
}

/// The place of the rows of one view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The tokens.
    pub tokens: Range<usize>,
    /// The picture, counted through the conversation.
    pub picture: usize,
    /// The view of this picture.
    pub view: usize,
}

/// Returns the number of pictures in `messages`.
pub fn count(messages: &[Value]) -> usize {
    let contents = messages.iter().map(|message| &message["content"]);
    let parts = contents.filter_map(Value::as_array).flatten();
    parts.filter(|part| is_picture(part)).count()
}

/// Puts text in place of the pictures in `messages`, if the `template` writes none. If it writes none in results of calls,
/// these pictures follow the last result, as the user's.
///
/// # Errors
/// If the template takes too long for one picture.
pub fn mark(
    processor: &Processor,
    template: &ChatTemplate,
    messages: &mut Vec<Value>,
) -> Result<()> {
    let placeholder = processor.placeholder();
    if template.writes_pictures(placeholder)? {
        // A template that knows no calls has results in messages of the user.
        if messages.iter().any(has_shown_result)
            && tool_calls::template_lists_tools(template.source())
            && !template.writes_pictures_of_results(placeholder)?
        {
            *messages = with_pictures_after_results(std::mem::take(messages));
        }
        return Ok(());
    }
    let text = json!({"type": "text", "text": processor.marker()});
    for message in messages {
        let parts = message.get_mut("content").and_then(Value::as_array_mut);
        let parts = parts.into_iter().flatten();
        parts
            .filter(|part| is_picture(part))
            .for_each(|part| *part = text.clone());
    }
    Ok(())
}

/// Checks that a rendered conversation has a place for each of its pictures, whose number is `pictures`.
///
/// # Errors
/// If it has more or fewer.
pub fn check_places(processor: &Processor, text: &str, pictures: usize) -> Result<()> {
    let token = processor.placeholder();
    let places = text.matches(token).count();
    if places == pictures {
        return Ok(());
    }
    Err(Error::PicturePlaces {
        token,
        places,
        pictures,
    })
}

/// A part of a rendered conversation. No text is next to another one.
enum Part {
    Text(String),
    Rows {
        picture: usize,
        view: usize,
        rows: usize,
    },
}

impl Pictures<'_> {
    /// Returns the tokens of a rendered text, of which `encode` returns those of a part, with the pieces of each picture in
    /// its place and a token for each row.
    ///
    /// # Errors
    /// If `text` has not a place for each picture or names the token of rows elsewhere too, the tokenizer has no control
    /// token, or there are more than `context` tokens.
    pub(crate) fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        context: usize,
        encode: &dyn Fn(&str) -> Result<Vec<u32>>,
    ) -> Result<PicturePrompt> {
        let parts = self.parts(text)?;
        let name = self.processor.row_token();
        let row = tokenizer.id(name);
        let row = row.filter(|id| tokenizer.token_kind(*id) != TokenKind::Normal);
        // Vocabularies of GGUF files may lack the token of rows. Another control token cuts texts in the same way.
        let cut = row.or(tokenizer.bos()).or(tokenizer.eos());
        let cut = cut.and_then(|id| Some((id, tokenizer.piece(id)?)));
        let (cut, cut_name) = cut.ok_or(Error::NoPictureToken(name))?;
        let mut prompt = PicturePrompt::default();
        let mut named = 0;
        for (index, part) in parts.iter().enumerate() {
            let start = prompt.tokens.len();
            match part {
                Part::Text(text) => {
                    let [before, after] =
                        [index > 0, index + 1 < parts.len()].map(|is_row| match is_row {
                            true => cut_name,
                            false => "",
                        });
                    let tokens = encode(&format!("{before}{text}{after}"))?;
                    let mut tokens = &tokens[..];
                    if !before.is_empty() {
                        tokens = tokens
                            .strip_prefix(&[cut])
                            .ok_or(Error::NoPictureToken(name))?;
                    }
                    if !after.is_empty() {
                        tokens = tokens
                            .strip_suffix(&[cut])
                            .ok_or(Error::NoPictureToken(name))?;
                    }
                    named += tokens.iter().filter(|token| Some(**token) == row).count();
                    prompt.tokens.extend(tokens);
                }
                Part::Rows {
                    picture,
                    view,
                    rows,
                } => {
                    let end = start.saturating_add(*rows);
                    if end <= context {
                        prompt.tokens.resize(end, cut);
                    }
                    prompt.places.push(Place {
                        tokens: start..end,
                        picture: *picture,
                        view: *view,
                    });
                }
            }
            let places = prompt.places.last().map_or(0, |place| place.tokens.end);
            let tokens = prompt.tokens.len().max(places);
            if tokens > context {
                return Err(Error::PromptTooLong {
                    tokens,
                    more: index + 1 < parts.len(),
                    context,
                });
            }
        }
        match named {
            0 => Ok(prompt),
            _ => Err(Error::PicturePlaces {
                token: name,
                places: prompt.places.len() + named,
                pictures: prompt.places.len(),
            }),
        }
    }

    /// Puts the pieces of each picture in its place in `text`.
    ///
    /// # Errors
    /// If `text` has not a place for each picture.
    fn parts(&self, text: &str) -> Result<Vec<Part>> {
        check_places(self.processor, text, self.pieces.len())?;
        let mut texts = text.split(self.processor.placeholder());
        let mut parts = Vec::new();
        add_text(&mut parts, texts.next().unwrap_or_default());
        for ((picture, pieces), after) in self.pieces.iter().enumerate().zip(texts) {
            for piece in pieces.iter() {
                match *piece {
                    Piece::Text(ref text) => add_text(&mut parts, text),
                    Piece::Rows { view, rows } => parts.push(Part::Rows {
                        picture,
                        view,
                        rows,
                    }),
                }
            }
            add_text(&mut parts, after);
        }
        Ok(parts)
    }
}

fn add_text(parts: &mut Vec<Part>, text: &str) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(Part::Text(last)) => last.push_str(text),
        _ => parts.push(Part::Text(text.to_owned())),
    }
}

/// Returns the processor of pictures for `model`.
///
/// # Errors
/// If the model reads no pictures, or Triad does not support its encoder or its processor.
pub fn processor(model: &Model) -> Result<Processor> {
    Ok(Processor::of_encoder(model.vision()?.path())?)
}

/// Returns the encoder of pictures that belongs to the model at `path`, if Triad supports it: that of a folder in the
/// layout of `transformers`, or the only file `mmproj*.gguf` next to a GGUF file, unless it is that of another model.
pub fn encoder_of(path: &Path) -> Option<PathBuf> {
    let encoder = match path.extension() {
        Some(extension) if extension == "gguf" => match <[_; 1]>::try_from(mmproj_next_to(path)) {
            Ok([only]) => only,
            Err(_) => return None,
        },
        _ if Package::is_at(path) => return None,
        _ => path.to_owned(),
    };
    let text = VisionFile::open(&encoder)
        .and_then(|_| Checkpoint::open(path))
        .ok()?;
    let fits = VisionModel::load(&encoder, text.description(), BlockArithmetic::Rounded).is_ok();
    fits.then_some(encoder)
}

/// Returns the pixels of a view for an encoder.
pub fn pixels(view: &View) -> Pixels<'_> {
    Pixels {
        height: view.height,
        width: view.width,
        planes: &view.planes,
    }
}

impl PicturePrompt {
    /// Encodes the views of `prepared` for `session`, which then holds them, and returns the tokens of the prompt with
    /// those of their rows.
    ///
    /// # Errors
    /// If the engine computes no pictures, an encoder makes other rows than the processor expects, or `cancel` is set.
    pub fn hold(
        self,
        session: &mut Session,
        prepared: &[Arc<Prepared>],
        cancel: &Cancel,
    ) -> Result<Vec<u32>> {
        self.hold_encoded(session, |session, picture, view| {
            let pixels = pixels(&prepared[picture].views[view]);
            session.engine().picture(pixels, session.salt(), cancel)
        })
    }

    /// Makes `session` hold the views that `encode` returns by picture and view, and returns the tokens of the prompt with
    /// those of their rows.
    ///
    /// # Errors
    /// If `encode` fails, or an encoder makes other rows than the processor expects.
    pub fn hold_encoded(
        self,
        session: &mut Session,
        mut encode: impl FnMut(&Session, usize, usize) -> triad_engine::Result<EncodedPicture>,
    ) -> Result<Vec<u32>> {
        let Self { mut tokens, places } = self;
        for Place {
            tokens: place,
            picture,
            view,
        } in places
        {
            let picture = encode(session, picture, view)?;
            let rows = picture.tokens();
            if rows.len() != place.len() {
                return Err(Error::PictureRows {
                    rows: rows.len(),
                    expected: place.len(),
                });
            }
            session.hold(&picture);
            for (token, row) in tokens[place].iter_mut().zip(rows) {
                *token = row;
            }
        }
        Ok(tokens)
    }
}
