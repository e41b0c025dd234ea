//! Functions of Python's Jinja that templates use beyond Jinja itself.

use minijinja::{Environment, Error, ErrorKind, State, Value};

/// Filters that allocate as much as a number in the template states. No chat template needs them.
const UNBOUNDED: [&str; 5] = ["batch", "format", "indent", "pprint", "slice"];

/// Adds `raise_exception`, and removes unbounded filters. Python's methods on strings and maps are [`method`], `tojson`
/// is [`super::json::write`].
pub(super) fn install(environment: &mut Environment<'_>) {
    UNBOUNDED
        .iter()
        .for_each(|filter| environment.remove_filter(filter));
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        },
    );
}

/// Implements Python's methods on strings and maps.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    if method == "format" {
        // Its widths are unbounded.
        return Err(Error::from(ErrorKind::UnknownMethod));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
}
