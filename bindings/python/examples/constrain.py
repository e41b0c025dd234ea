"""Answers as JSON of a schema: python constrain.py [MODEL]"""

import sys

import triad

city = {"type": "string", "maxLength": 40}
schema = {"type": "object", "properties": {"city": city}, "required": ["city"], "additionalProperties": False}
model = triad.Model(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
answer = model.chat([{"role": "user", "content": "Where is the Eiffel Tower?"}], schema=schema, max_tokens=64)
print(answer.text)
