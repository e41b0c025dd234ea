//! Values of requests that may be written in several ways: whole numbers, and texts in place of arrays or objects.
//!
//! `serde` reads an untagged enum from a copy of the value, so an error within it does not tell its place. These types
//! choose by the kind of the value, and read it where it is.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// The least magnitude of an `f64` that may stand for several integers.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// A whole number. It may be written as `3.0` or `3e0`, as clients without integers write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole<T>(pub(crate) T);

/// Reads a whole number that may be missing.
///
/// # Errors
/// If the value is something else, or does not fit in a `T`.
pub(crate) fn whole<'de, D: Deserializer<'de>, T: TryFrom<i64>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let number = Option::<Whole<T>>::deserialize(deserializer)?;
    Ok(number.map(|Whole(number)| number))
}

/// Returns the numbers of whole numbers.
pub(crate) fn numbers<T>(wholes: Vec<Whole<T>>) -> Vec<T> {
    wholes.into_iter().map(|Whole(number)| number).collect()
}

impl<'de, T: TryFrom<i64>> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WholeVisitor(PhantomData))
    }
}

/// Returns a number as a `T`.
///
/// # Errors
/// If it does not fit.
fn fit<T: TryFrom<i64>, E: Error>(number: i64) -> Result<Whole<T>, E> {
    T::try_from(number).map(Whole).map_err(|_| {
        let expected = if number < 0 {
            "a whole number of at least 0"
        } else {
            "a smaller whole number"
        };
        E::invalid_value(Unexpected::Signed(number), &expected)
    })
}

struct WholeVisitor<T>(PhantomData<T>);

impl<T: TryFrom<i64>> Visitor<'_> for WholeVisitor<T> {
    type Value = Whole<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Whole<T>, E> {
        fit(number)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Whole<T>, E> {
        match i64::try_from(number) {
            Ok(number) => fit(number),
            Err(_) => {
                let unexpected = Unexpected::Unsigned(number);
                Err(E::invalid_value(unexpected, &"a smaller whole number"))
            }
        }
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Whole<T>, E> {
        let unexpected = Unexpected::Float(number);
        if number.fract() != 0.0 {
            return Err(E::invalid_value(unexpected, &self));
        }
        // A larger `f64` is not the number that its text has.
        if number.abs() >= MAX_EXACT {
            return Err(E::invalid_value(
                unexpected,
                &"a whole number without a point or an exponent, or a smaller one",
            ));
        }
        fit(number as i64)
    }
}

/// A text, or an array.
#[derive(Debug)]
pub(crate) enum TextOrArray<T> {
    Text(String),
    Array(Vec<T>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOrArray<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrArrayVisitor(PhantomData))
    }
}

struct TextOrArrayVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrArrayVisitor<T> {
    type Value = TextOrArray<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string or an array")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextOrArray::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(TextOrArray::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element()? {
            array.push(item);
        }
        Ok(TextOrArray::Array(array))
    }
}

/// A text, or an object.
#[derive(Debug)]
pub(crate) enum TextOrObject<T> {
    Text(String),
    Object(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOrObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrObjectVisitor(PhantomData))
    }
}

struct TextOrObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrObjectVisitor<T> {
    type Value = TextOrObject<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string or an object")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextOrObject::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(TextOrObject::Text(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(TextOrObject::Object)
    }
}

/// A text, a token, or an array of tokens.
#[derive(Debug)]
pub(crate) enum PromptItem {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for PromptItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptItemVisitor)
    }
}

struct PromptItemVisitor;

impl<'de> Visitor<'de> for PromptItemVisitor {
    type Value = PromptItem;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string or a token, a whole number")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PromptItem, E> {
        Ok(PromptItem::Text(text.to_owned()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<PromptItem, E> {
        fit(number).map(|Whole(token)| PromptItem::Token(token))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<PromptItem, E> {
        let token = WholeVisitor(PhantomData).visit_u64(number);
        token.map(|Whole(token)| PromptItem::Token(token))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<PromptItem, E> {
        let token = WholeVisitor(PhantomData).visit_f64(number);
        token.map(|Whole(token)| PromptItem::Token(token))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<PromptItem, A::Error> {
        let mut tokens = Vec::new();
        while let Some(Whole(token)) = items.next_element()? {
            tokens.push(token);
        }
        Ok(PromptItem::Tokens(tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_whole_number_may_have_a_point_or_an_exponent_but_no_fraction() {
        for (text, number) in [
            ("40", 40),
            ("40.0", 40),
            ("2e0", 2),
            ("1e3", 1000),
            ("-1.0", -1),
            ("-0.0", 0),
            ("9007199254740991.0", 9_007_199_254_740_991),
            ("9223372036854775807", i64::MAX),
        ] {
            assert_eq!(read::<Whole<i64>>(text), Ok(Whole(number)), "{text}");
        }
        for text in [
            "40.5",
            "1e-3",
            "9007199254740993.0",
            "1e300",
            "9223372036854775808",
            "\"40\"",
            "true",
            "[1]",
            "{}",
            "null",
        ] {
            let error = read::<Whole<i64>>(text).unwrap_err();
            assert!(error.contains("whole number"), "{text}: {error}");
        }
        for text in ["-1", "-1.0"] {
            let error = read::<Whole<usize>>(text).unwrap_err();
            assert!(error.contains("at least 0"), "{text}: {error}");
        }
        let error = read::<Whole<u32>>("4294967296").unwrap_err();
        assert!(error.contains("a smaller whole number"), "{error}");
    }

    #[test]
    fn a_text_is_told_from_an_array_or_object_by_its_kind() {
        assert!(matches!(read("\"a\""), Ok(TextOrArray::<u8>::Text(_))));
        assert!(matches!(read("[1]"), Ok(TextOrArray::<u8>::Array(_))));
        assert!(read::<TextOrArray<u8>>("{}").is_err());
        assert!(matches!(
            read("\"a\""),
            Ok(TextOrObject::<Vec<u8>>::Text(_))
        ));
        assert!(read::<TextOrObject<Whole<u8>>>("[1]").is_err());
    }
}
