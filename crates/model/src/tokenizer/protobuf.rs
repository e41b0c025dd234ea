//! The wire format of Protocol Buffers, as far as files of SentencePiece use it: fields are read in place, so that
//! nothing is allocated by what a file states.

use crate::error::{Error, ErrorKind, Result};

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    /// An integer, a boolean or a number of an enumeration.
    Integer(u64),
    /// Eight bytes of a fixed size.
    Fixed64,
    /// Four bytes of a fixed size, as a float.
    Float(f32),
    /// A string, bytes or a message.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// Returns the bytes of a string, bytes or a message called `name`.
    pub(super) fn bytes(self, name: &str) -> Result<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(wrong(name, "a string of bytes")),
        }
    }

    /// Returns the text of a string called `name`.
    pub(super) fn text(self, name: &str) -> Result<&'a str> {
        std::str::from_utf8(self.bytes(name)?).map_err(|_| wrong(name, "UTF-8"))
    }

    /// Returns the integer called `name`.
    pub(super) fn integer(self, name: &str) -> Result<u64> {
        match self {
            Self::Integer(integer) => Ok(integer),
            _ => Err(wrong(name, "an integer")),
        }
    }

    /// Returns the boolean called `name`.
    pub(super) fn bool(self, name: &str) -> Result<bool> {
        self.integer(name).map(|integer| integer != 0)
    }

    /// Returns the number called `name`.
    pub(super) fn float(self, name: &str) -> Result<f32> {
        match self {
            Self::Float(float) => Ok(float),
            _ => Err(wrong(name, "a number of four bytes")),
        }
    }
}

fn wrong(name: &str, expected: &str) -> Error {
    Error::new(
        ErrorKind::Malformed,
        format!("field `{name}` is not {expected}"),
    )
}

/// The fields of a message: their numbers and values.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Returns an integer in groups of seven bits.
    fn varint(&mut self) -> Option<u64> {
        let mut integer = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            integer |= u64::from(byte & 0x7F).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(integer);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let length = usize::try_from(length).ok()?;
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }

    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Integer(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Float(f32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or_else(|| {
            Error::new(
                ErrorKind::Malformed,
                "expected a Protocol Buffers message of SentencePiece: a field is cut off or of an unknown type",
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_every_type_are_read() {
        let message = [
            0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1D, 0, 0, 0x80, 0x3F, 0x21, 0, 0, 0, 0, 0, 0,
            0, 0,
        ];
        let fields: Vec<_> = Fields::new(&message).map(Result::unwrap).collect();
        assert_eq!(
            fields,
            [
                (1, Value::Integer(150)),
                (2, Value::Bytes(b"hi")),
                (3, Value::Float(1.0)),
                (4, Value::Fixed64)
            ]
        );
    }

    #[test]
    fn a_field_that_is_cut_off_is_an_error_and_the_last_one() {
        for message in [
            &[0x08][..],
            &[0x08, 0x80],
            &[0x12, 3, b'h'],
            &[0x1D, 0, 0],
            &[0x0B],
            &[0xFF; 11],
            &[
                0x12, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01,
            ],
        ] {
            let fields: Vec<_> = Fields::new(message).collect();
            assert_eq!(fields.len(), 1, "{message:?}");
            assert_eq!(fields[0].as_ref().unwrap_err().kind(), ErrorKind::Malformed);
        }
    }
}
