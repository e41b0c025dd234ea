//! The names of filters: Jinja's, and our own in place of operators.

/// The filters that are put in place of operators. No template can name them; the engine drops spaces in names.
pub(super) const ADD: &str = "+";
pub(super) const SUBTRACT: &str = "-";
pub(super) const MULTIPLY: &str = "*";
pub(super) const DIVIDE: &str = "/";
pub(super) const FLOOR: &str = "//";
pub(super) const REMAINDER: &str = "%";
pub(super) const POWER: &str = "**";
pub(super) const CONCATENATE: &str = "~";
pub(super) const EQUAL: &str = "==";
pub(super) const NOT_EQUAL: &str = "!=";
pub(super) const LESS: &str = "<";
pub(super) const LESS_OR_EQUAL: &str = "<=";
pub(super) const GREATER: &str = ">";
pub(super) const GREATER_OR_EQUAL: &str = ">=";
pub(super) const IN: &str = "&in";
pub(super) const NOT_IN: &str = "!in";
/// All operators of two values.
pub(super) const BINARY: [&str; 16] = [
    ADD,
    SUBTRACT,
    MULTIPLY,
    DIVIDE,
    FLOOR,
    REMAINDER,
    POWER,
    CONCATENATE,
    EQUAL,
    NOT_EQUAL,
    LESS,
    LESS_OR_EQUAL,
    GREATER,
    GREATER_OR_EQUAL,
    IN,
    NOT_IN,
];
pub(super) const NEGATE: &str = "0-";
pub(super) const ATTRIBUTE: &str = ".";
pub(super) const ELEMENT: &str = "[.]";
pub(super) const SLICE: &str = "[:]";
pub(super) const METHOD: &str = ".()";
pub(super) const FILTER: &str = "|";
pub(super) const TEST: &str = "?is";
/// Filters that check their argument and return it, or its elements.
pub(super) const ITERATE: &str = "[*]";
pub(super) const UNPACK: &str = "*=";
pub(super) const HOLD: &str = "[]";
pub(super) const HOLD_IN_NAMESPACE: &str = ".=";
pub(super) const PASSED: &str = "()";
pub(super) const NAMED: &str = "(**)";
/// A filter that fails with its argument as the reason.
pub(super) const REFUSE: &str = "?";

/// The filters of Jinja.
const FILTERS: [&str; 54] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

/// Returns whether Jinja has a filter.
pub(super) fn is_filter(name: &str) -> bool {
    FILTERS.contains(&name)
}
