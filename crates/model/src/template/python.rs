//! What templates written for Python's Jinja expect beyond Jinja itself.

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Widest indentation of `tojson`, in spaces.
const MAX_INDENT: usize = 16;

/// Filters that allocate as much as a number in the template says. No chat needs them.
const UNBOUNDED: [&str; 4] = ["batch", "format", "indent", "slice"];

/// Adds Python's methods on strings and maps, `raise_exception`, and `tojson` as `transformers` has it.
pub(super) fn install(environment: &mut Environment<'_>) {
    UNBOUNDED.iter().for_each(|filter| environment.remove_filter(filter));
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        if method == "format" {
            // Its widths are as unbounded.
            return Err(Error::from(ErrorKind::UnknownMethod));
        }
        minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
    });
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_filter("tojson", to_json);
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`: Jinja's own filter would escape for HTML.
#[expect(clippy::needless_pass_by_value, reason = "filters take their options by value")]
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    let mut bytes = Vec::new();
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)),
        Some(indent) => {
            let indent = " ".repeat(indent.min(MAX_INDENT));
            value
                .serialize(&mut Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(indent.as_bytes())))
        }
    };
    written
        .map_err(|error| error.to_string())
        .and_then(|()| String::from_utf8(bytes).map_err(|error| error.to_string()))
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error))
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
