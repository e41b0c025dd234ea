#!/usr/bin/env python3
"""Writes numbers.json: schemas whose numbers are written as clients without integers write them, and the texts that conform.

JSON Schema has no kinds of numbers: 5.0 and 5e0 are the integer 5. A case has the schema, the same schema with plain
integers, and texts, each with whether the library `jsonschema` takes it for both.

    python make.py           # needs jsonschema (written with jsonschema 4.26.0)
"""

import json
from pathlib import Path

from jsonschema import Draft4Validator, Draft202012Validator

DEEP = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/name"}, "minItems": 1.0, "maxItems": 2e0}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"name": {"anyOf": [{"type": "string", "maxLength": 2.0}, {"const": {"maxLength": 1.5}}]}},
}
STRINGS = ['""', '"a"', '"ab"', '"abc"', '"abcdef"', "1"]
ARRAYS = ["[]", "[1]", "[1,2]", "[1,2,3]", "1"]
OBJECTS = ["{}", '{"a":1}', '{"b":1}', '{"a":1,"b":1}']
NUMBERS = ["-1", "0", "1", "1.0", "1.00", "1.5", "2", "2.0", "3", "4", "5", "6", "1e0", '"1"', "true"]
NAMES = {"properties": {"a": {}, "b": {}}, "type": "object", "additionalProperties": False}

# Schemas and texts that may conform.
CASES = [
    ({"type": "string", "maxLength": 2.0}, STRINGS),
    ({"type": "string", "minLength": 1e0, "maxLength": 20e-1}, STRINGS),
    ({"minLength": 2.0, "type": ["string", "integer"]}, STRINGS),
    ({"type": "string", "minLength": -0.0, "maxLength": 1.0}, STRINGS),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1.0, "maxItems": 2.0}, ARRAYS),
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 1.0}, ARRAYS),
    (NAMES | {"minProperties": 1.0, "required": ["a"]}, OBJECTS),
    (NAMES | {"maxProperties": 1.0}, OBJECTS),
    ({"type": "integer", "minimum": 1e0, "maximum": 5.0}, NUMBERS),
    ({"type": "integer", "exclusiveMinimum": 1.0, "exclusiveMaximum": 5e0}, NUMBERS),
    ({"type": "number", "minimum": 1.0, "exclusiveMaximum": 2.0}, NUMBERS),
    ({"type": "integer", "multipleOf": 2.0, "minimum": 0.0, "maximum": 4.0}, NUMBERS),
    ({"type": "number", "multipleOf": 0.5, "minimum": 0.0, "maximum": 4.0}, NUMBERS),
    ({"const": 1.0}, NUMBERS),
    ({"const": 1}, NUMBERS),
    ({"type": "integer", "const": 1.0}, NUMBERS),
    ({"type": "integer", "enum": [1.0, 2e0, 5]}, NUMBERS),
    ({"enum": [1.0, "1", 1.5]}, NUMBERS),
    ({"const": {"maxLength": 2.0}}, ['{"maxLength":2}', '{"maxLength":2.0}', '{"maxLength":3}']),
    (DEEP, ['{"a":[]}', '{"a":["ab"]}', '{"a":["abc"]}', '{"a":["a","b"]}', '{"a":["a","b","c"]}', '{"a":[{"maxLength":1.5}]}']),
]
# The ends of draft 4, which says by a boolean that an end is no part of the range. The end may be anywhere in the schema.
DRAFT_4 = [
    ({"type": "integer", "minimum": 1, "exclusiveMinimum": True, "maximum": 4, "exclusiveMaximum": False}, NUMBERS),
    ({"type": "number", "exclusiveMinimum": True, "minimum": 0, "maximum": 0.5}, ["0", "0.0", "0.25", "0.5", "1"]),
    ({"minimum": 1, "anyOf": [{"type": "integer"}], "exclusiveMinimum": True}, NUMBERS),
    ({"type": "integer", "minimum": 1.0, "maximum": 5, "exclusiveMaximum": True}, NUMBERS),
]
VALUES = ("const", "enum")


def plain(schema, is_draft_4=False):
    """Returns the schema with whole numbers as integers, and with the ends of later drafts."""
    if isinstance(schema, list):
        return [plain(part, is_draft_4) for part in schema]
    if isinstance(schema, float) and schema.is_integer():
        return int(schema)
    if not isinstance(schema, dict):
        return schema
    made = {key: value if key in VALUES else plain(value, is_draft_4) for key, value in schema.items()}
    for excluded, end in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        is_excluded = made.get(excluded)
        if is_excluded is True:
            made[excluded] = made.pop(end)
        elif is_excluded is False:
            made.pop(excluded)
    return made


def main():
    cases = []
    for schemas, draft in ((CASES, Draft202012Validator), (DRAFT_4, Draft4Validator)):
        for schema, texts in schemas:
            draft.check_schema(schema)
            alike = plain(schema)
            first, second = draft(schema), Draft202012Validator(alike)
            judged = []
            for text in texts:
                valid = first.is_valid(json.loads(text))
                # Draft 4 says that 1.0 is no integer; later drafts that it is one.
                assert valid == second.is_valid(json.loads(text)) or (draft is Draft4Validator and "." in text or "e0" in text)
                judged.append([text, second.is_valid(json.loads(text))])
            assert any(valid for _, valid in judged) and not all(valid for _, valid in judged), schema
            cases.append({"schema": schema, "plain": alike, "texts": judged})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (Path(__file__).parent / "numbers.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
