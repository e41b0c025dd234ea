//! SVG output: elements, numbers, escaping.

use std::fmt::{self, Display, Formatter};

use super::style;

/// A document with its elements in painting order.
pub(super) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    /// Creates an empty document of this size in pixels.
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self {
            width,
            height,
            body: String::new(),
        }
    }

    /// Paints `element` on top of the previous ones.
    pub(super) fn push(&mut self, element: &Element) {
        self.body += &format!("{element}\n");
    }

    /// Returns the whole document with a white background.
    pub(super) fn document(&self) -> String {
        let (width, height) = (Number(self.width), Number(self.height));
        let ground = Element::new("rect")
            .set("width", "100%")
            .set("height", "100%")
            .set("fill", "white");
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"{}\" fill=\"{}\">\n{ground}\n{}</svg>\n",
            style::FONT,
            style::INK,
            self.body,
        )
    }
}

/// An element with its attributes.
pub(super) struct Element {
    tag: &'static str,
    attributes: String,
    content: String,
}

impl Element {
    /// Creates an element without attributes.
    pub(super) fn new(tag: &'static str) -> Self {
        Self {
            tag,
            attributes: String::new(),
            content: String::new(),
        }
    }

    /// Returns the element with one more attribute.
    pub(super) fn set(mut self, name: &str, value: &str) -> Self {
        self.attributes += &format!(" {name}=\"{}\"", escape(value));
        self
    }

    /// Returns the element with one more numeric attribute.
    pub(super) fn number(mut self, name: &str, value: f64) -> Self {
        self.attributes += &format!(" {name}=\"{}\"", Number(value));
        self
    }

    /// Returns the element with several more numeric attributes.
    pub(super) fn numbers<const N: usize>(self, named: [(&str, f64); N]) -> Self {
        named
            .into_iter()
            .fold(self, |element, (name, value)| element.number(name, value))
    }

    /// Returns the element with one more child after its others.
    pub(super) fn child(mut self, element: &Self) -> Self {
        self.content += &element.to_string();
        self
    }

    /// Returns the element with a tooltip.
    pub(super) fn tip(self, text: &str) -> Self {
        self.child(&Self::new("title").text(text))
    }

    /// Returns the element with `text` as its content.
    pub(super) fn text(mut self, text: &str) -> Self {
        self.content = escape(text);
        self
    }
}

impl Display for Element {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            tag,
            attributes,
            content,
        } = self;
        if content.is_empty() {
            write!(formatter, "<{tag}{attributes}/>")
        } else {
            write!(formatter, "<{tag}{attributes}>{content}</{tag}>")
        }
    }
}

/// A coordinate, rounded to a hundredth of a pixel.
pub(super) struct Number(pub(super) f64);

impl Display for Number {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let rounded = (self.0 * 100.0).round() / 100.0;
        // Adding zero makes a negative zero positive.
        write!(formatter, "{}", rounded + 0.0)
    }
}

/// Escapes `text` for use between tags and in attributes. Characters that XML can't contain are replaced.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\n' | '\t' | '\r' => escaped.push(' '),
            '\u{0}'..'\u{20}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// Returns a straight line between two points.
pub(super) fn line(colour: &str, width: f64, [(x1, y1), (x2, y2)]: [(f64, f64); 2]) -> Element {
    Element::new("line")
        .numbers([("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2)])
        .set("stroke", colour)
        .number("stroke-width", width)
}
