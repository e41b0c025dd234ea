//! What templates written for Python's Jinja expect beyond Jinja itself.

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, State, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Widest indentation of `tojson`, in spaces.
const MAX_INDENT: usize = 16;

/// Filters that allocate as much as a number in the template demands. No chat needs them.
const UNBOUNDED: [&str; 5] = ["batch", "format", "indent", "pprint", "slice"];

/// Adds `raise_exception`, and takes away what is unbounded. Python's methods on strings and maps are [`method`], `tojson`
/// is [`to_json`].
pub(super) fn install(environment: &mut Environment<'_>) {
    UNBOUNDED.iter().for_each(|filter| environment.remove_filter(filter));
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
}

/// Python's methods on strings and maps.
pub(super) fn method(state: &mut State, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    if method == "format" {
        // Its widths are unbounded.
        return Err(Error::from(ErrorKind::UnknownMethod));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)` into `writer`: Jinja's own filter would escape for HTML.
pub(super) fn to_json(value: &Value, options: &Kwargs, writer: &mut dyn std::io::Write) -> Result<(), Error> {
    let indent: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(writer, Spaced)),
        Some(indent) => {
            let indent = " ".repeat(indent.min(MAX_INDENT));
            value.serialize(&mut Serializer::with_formatter(writer, PrettyFormatter::with_indent(indent.as_bytes())))
        }
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// Python's default separators: `, ` and `: `.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
