//! The messages of a conversation, with their pictures.

use std::path::PathBuf;

use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use serde_json::Value;
use triad_frontend::picture_reader;
use triad_frontend::tool_calls::Tool;
use triad_pictures::Picture;

use crate::error::{self, TriadError, chain};
use crate::options::json_value;

/// Messages in OpenAI's form, in which `{"type": "image"}` stands for a picture.
pub struct Messages {
    pub messages: Vec<Value>,
    /// The pictures, in order.
    pub images: Vec<Picture>,
    /// Functions that the model may call.
    pub tools: Vec<Tool>,
}

impl Messages {
    /// Reads messages as [`Messages::read`] does, and the functions that the model may call.
    pub fn read_with_tools(
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let tools = read_tools(tools)?;
        Ok(Self {
            tools,
            ..Self::read(messages)?
        })
    }

    /// Reads messages, each an object with `role` and `content`: a text, or a list of parts. A part
    /// `{"type": "image", "image": …}` has a picture.
    pub fn read(messages: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut images = Vec::new();
        let messages = json_value(&without_images(messages, &mut images)?)?;
        let Value::Array(messages) = messages else {
            let message = "messages: expected a list of objects with role and content";
            return Err(PyTypeError::new_err(message));
        };
        Ok(Self {
            messages,
            images,
            tools: Vec::new(),
        })
    }
}

/// Reads functions that the model may call, each in OpenAI's form.
fn read_tools(tools: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<Tool>> {
    let Some(tools) = tools else {
        return Ok(Vec::new());
    };
    let Value::Array(tools) = json_value(tools)? else {
        let message = "tools: expected a list of functions in the form of OpenAI's chat API";
        return Err(PyTypeError::new_err(message));
    };
    let each = |(index, tool): (usize, &Value)| {
        Tool::from_json(tool)
            .map_err(|error| PyValueError::new_err(format!("tools[{index}]: {}", chain(&error))))
    };
    tools.iter().enumerate().map(each).collect()
}

/// Returns the messages without the values of their pictures, which are added to `images`.
fn without_images<'py>(
    messages: &Bound<'py, PyAny>,
    images: &mut Vec<Picture>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = messages.py();
    let Some(given) = list(messages) else {
        return Ok(messages.clone());
    };
    let copies = PyList::empty(py);
    for (place, message) in given.iter().enumerate() {
        let parts = match message.cast::<PyDict>() {
            Ok(message) => message.get_item("content")?,
            Err(_) => None,
        };
        let Some(parts) = parts.and_then(|parts| list(&parts)) else {
            copies.append(message)?;
            continue;
        };
        let content = PyList::empty(py);
        for (index, part) in parts.iter().enumerate() {
            refuse_urls(&format!("messages[{place}].content[{index}].type"), &part)?;
            let image = match part.cast::<PyDict>() {
                Ok(part) if is_image(part)? => part.get_item("image")?,
                _ => {
                    content.append(part)?;
                    continue;
                }
            };
            let field = format!("messages[{place}].content[{index}].image");
            let image =
                image.ok_or_else(|| PyValueError::new_err(format!("{field}: it is missing")))?;
            images.push(picture(&field, &image)?);
            let plain = PyDict::new(py);
            plain.set_item("type", "image")?;
            content.append(plain)?;
        }
        let copy = message.cast::<PyDict>()?.copy()?;
        copy.set_item("content", content)?;
        copies.append(copy)?;
    }
    Ok(copies.into_any())
}

/// Returns a list, or a tuple as one.
fn list<'py>(value: &Bound<'py, PyAny>) -> Option<Bound<'py, PyList>> {
    if let Ok(tuple) = value.cast::<PyTuple>() {
        return Some(tuple.to_list());
    }
    value.cast::<PyList>().ok().cloned()
}

/// Refuses the parts in which other APIs have pictures.
fn refuse_urls(field: &str, part: &Bound<'_, PyAny>) -> PyResult<()> {
    let kind = part.cast::<PyDict>().ok().map(|part| part.get_item("type"));
    let kind = kind.transpose()?.flatten();
    match kind.as_ref().and_then(|kind| kind.extract::<&str>().ok()) {
        Some(kind @ ("image_url" | "input_image")) => Err(PyValueError::new_err(format!(
            "{field}: {kind}, expected image, with a path, bytes, a Pillow image or an array as image"
        ))),
        _ => Ok(()),
    }
}

fn is_image(part: &Bound<'_, PyDict>) -> PyResult<bool> {
    let kind = part.get_item("type")?;
    Ok(kind.is_some_and(|kind| kind.extract::<&str>().is_ok_and(|kind| kind == "image")))
}

/// Reads a picture: the path of a file, the bytes of one, a Pillow image, or an array `[height, width, 3]` of bytes.
fn picture(field: &str, value: &Bound<'_, PyAny>) -> PyResult<Picture> {
    let failed =
        |error: triad_pictures::Error| TriadError::new_err(format!("{field}: {}", chain(&error)));
    let py = value.py();
    if let Ok(bytes) = value.cast::<PyBytes>() {
        let bytes = bytes.as_bytes();
        return py.detach(|| Picture::decode(bytes)).map_err(failed);
    }
    if let Ok(path) = value.extract::<PathBuf>() {
        let read = py.detach(|| picture_reader::read(&path));
        return read.map_err(error::frontend);
    }
    if let Ok(array) = value.cast::<PyArrayDyn<u8>>() {
        let &[height, width, 3] = array.shape() else {
            let message = format!(
                "{field}: an array of shape {:?}, expected [height, width, 3]",
                array.shape()
            );
            return Err(PyValueError::new_err(message));
        };
        let side = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
        let array = array.readonly();
        let array = array.as_array();
        // Only in the order of rows: those in the order of columns are contiguous, too.
        let colors = match array.as_slice() {
            Some(colors) => colors.to_vec(),
            None => array.iter().copied().collect(),
        };
        return Picture::from_rgb(side(width), side(height), colors).map_err(failed);
    }
    if value.hasattr("convert")? && value.hasattr("tobytes")? {
        return pillow(value)?.map_err(failed);
    }
    let kind = value.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "{field}: {kind}, expected a path, bytes, a Pillow image or an array of uint8 [height, width, 3]"
    )))
}

/// Reads a Pillow image as `transformers` does: upright, then in red, green and blue.
fn pillow(image: &Bound<'_, PyAny>) -> PyResult<Result<Picture, triad_pictures::Error>> {
    let operations = image.py().import("PIL.ImageOps")?;
    let upright = operations.call_method1("exif_transpose", (image,))?;
    let colors = upright.call_method1("convert", ("RGB",))?;
    let (width, height) = colors.getattr("size")?.extract()?;
    let bytes = colors.call_method0("tobytes")?;
    let bytes = bytes.cast::<PyBytes>()?.as_bytes();
    Ok(Picture::from_rgb(width, height, bytes.to_vec()))
}
