"""JSON schemas: annotations never refuse, what restricts holds, what cannot hold is refused by name."""

import json

from asking import case

ONLY_A = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}


def answer(s, schema):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    reply = s.chat("plain", response_format=form, temperature=0, max_tokens=400)
    assert reply.status == 200, reply.text
    return json.loads(reply.content)


def refused(s, schema, *words):
    s.chat("plain", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}).refuses(*words)


def annotated(**keywords):
    def holds(s):
        assert answer(s, ONLY_A | keywords) == {"a": 1}

    return holds


for name, keywords in {
    "a_title_and_a_description": {"title": "T", "description": "D", "$comment": "c"},
    "examples_and_defaults": {"examples": [{}], "default": {}},
    "a_dialect_and_an_address": {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:x"},
    "marks_of_programs": {"deprecated": True, "readOnly": True, "writeOnly": False, "x-order": 1, "nullable": False},
    "closed_by_the_negation_of_everything": {"additionalProperties": {"not": {}}},
    "names_that_may_be_any_text": {"propertyNames": {"type": "string"}},
    "unused_definitions": {"$defs": {"b": {"type": "string"}}, "definitions": {"c": {"type": "null"}}},
}.items():
    holds = annotated(**keywords)
    holds.__name__ = f"schemas_with_{name}_restrict_nothing_more"
    case(holds)


@case
def formats_that_are_none_are_annotations(s):
    for name in ("password", "byte", "int32", "phone"):
        schema = {"type": "object", "properties": {"a": {"enum": ["x"], "format": name}}, "required": ["a"]}
        assert answer(s, schema) == {"a": "x"}, name


@case
def known_formats_hold(s):
    for name, length in (("uuid", 36), ("date", 10), ("ipv4", 7)):
        text = answer(s, {"type": "string", "format": name})
        assert len(text) >= length, (name, text)


@case
def pointers_are_read_with_their_escapes(s):
    for name, escaped in (("a/b", "a~1b"), ("c~d", "c~0d"), ("e f", "e%20f")):
        schema = {"$defs": {name: {"const": 7}}, "type": "object", "properties": {"a": {"$ref": f"#/$defs/{escaped}"}}, "required": ["a"]}
        assert answer(s, schema) == {"a": 7}, name


@case
def a_pointer_to_nothing_is_refused(s):
    refused(s, {"$ref": "#/$defs/none"}, "none")


@case
def ranges_of_64_bits_hold(s):
    least = 2**63 - 2
    assert answer(s, {"type": "integer", "minimum": least, "maximum": 2**63 - 1}) in (least, least + 1)
    assert answer(s, {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 6}) == 5
    assert answer(s, {"type": "integer", "minimum": -3, "maximum": -3}) == -3


@case
def empty_ranges_are_refused(s):
    refused(s, {"type": "integer", "minimum": 5, "maximum": 4})


@case
def constants_of_every_type_hold(s):
    for value in (None, True, 0, -1.5, "", "Ä\n", [], [1, "a"], {}, {"b": None}):
        assert answer(s, {"const": value}) == value
    assert answer(s, {"enum": [None]}) is None


@case
def types_may_be_several(s):
    assert answer(s, {"type": ["null", "boolean"]}) in (None, True, False)
    assert answer(s, {"anyOf": [{"const": "a"}, {"type": "null"}]}) in ("a", None)
    assert answer(s, {"oneOf": [{"const": "a"}, {"const": 1}]}) in ("a", 1)


@case
def lists_have_their_lengths_and_their_places(s):
    assert answer(s, {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}) == [1, 1]
    places = {"type": "array", "prefixItems": [{"const": 1}, {"const": "a"}], "items": False, "minItems": 2}
    assert answer(s, places) == [1, "a"]
    assert answer(s, {"type": "array", "items": {"const": 1}, "maxItems": 1, "uniqueItems": True}) in ([], [1])
    assert answer(s, {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2, "uniqueItems": False}) == [1, 1]


@case
def texts_have_their_lengths_and_patterns(s):
    assert len(answer(s, {"type": "string", "minLength": 2, "maxLength": 3})) in (2, 3)
    assert answer(s, {"type": "string", "pattern": "^[ab]{2}$"}) in ("aa", "ab", "ba", "bb")


@case
def parts_of_several_schemas_are_one_object(s):
    first = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    second = {"type": "object", "properties": {"b": {"const": 2}}, "required": ["b"]}
    assert answer(s, {"allOf": [first, second]}) == {"a": 1, "b": 2}


@case
def schemas_that_name_themselves_hold(s):
    schema = {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}, "required": ["next"]}
    assert "next" in answer(s, schema)


@case
def names_of_patterns_hold(s):
    schema = {"type": "object", "patternProperties": {"^[ab]$": {"const": 1}}, "additionalProperties": False, "required": ["a"], "maxProperties": 1}
    assert answer(s, schema) == {"a": 1}


@case
def what_cannot_hold_is_refused_by_its_name(s):
    for keyword, value in {
        "not": {"type": "string"}, "if": {"const": 1}, "contains": {"const": 1}, "dependentRequired": {"a": ["b"]},
        "uniqueItems": True, "propertyNames": {"pattern": "a"},
    }.items():
        schema = {keyword: value} | ({"then": {"const": 1}} if keyword == "if" else {})
        schema |= {"type": "array"} if keyword in ("contains", "uniqueItems") else {}
        schema |= {"type": "object"} if keyword in ("dependentRequired", "propertyNames") else {}
        refused(s, schema, keyword)


@case
def a_schema_that_is_none_is_refused(s):
    refused(s, {"type": "objekt"}, "objekt")
    refused(s, {"type": "object", "properties": 3}, "properties")
    refused(s, {"type": "string", "pattern": "("})


@case
def schemas_stand_in_all_their_places(s):
    assert json.loads(s.chat("plain", response_format={"type": "json_object", "schema": ONLY_A}, temperature=0, max_tokens=200).content) == {"a": 1}
    assert json.loads(s.chat("plain", guided_json=ONLY_A, temperature=0, max_tokens=200).content) == {"a": 1}
    form = {"format": {"type": "json_schema", "name": "x", "schema": ONLY_A}}
    output = s.responses("plain", text=form, temperature=0, max_output_tokens=200).json["output"]
    assert json.loads(output[-1]["content"][0]["text"]) == {"a": 1}
    config = {"format": {"type": "json_schema", "schema": ONLY_A}}
    blocks = s.messages("plain", output_config=config, temperature=0, max_tokens=200).json["content"]
    assert json.loads(blocks[-1]["text"]) == {"a": 1}
    reply = s.ask("/api/generate", {"model": "plain", "prompt": "Hi", "format": ONLY_A, "stream": False, "options": {"temperature": 0}})
    assert json.loads(reply.json["response"]) == {"a": 1}
    reply = s.ask("/completion", {"model": "plain", "prompt": "Hi", "json_schema": ONLY_A, "temperature": 0, "n_predict": 200})
    assert json.loads(reply.json["content"]) == {"a": 1}
