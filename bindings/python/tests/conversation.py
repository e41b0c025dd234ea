"""Prints the answers of the conversation that the example `conversation` of Rust's library prints."""

import sys

import triad

SCHEMA = {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 40}}, "required": ["city"], "additionalProperties": False,
}


def show(name, text):
    line = text.replace("\n", "\\n")
    sys.stdout.buffer.write(f"{name}: {line}\n".encode())


model = triad.Model("smollm2-135m")
options = {"temperature": 0, "max_tokens": 24}
messages = [{"role": "system", "content": "Answer in one sentence."}, {"role": "user", "content": "Name three colours."}]
session = model.session()
answer = session.chat(messages, **options)
show("first turn", answer.text)
messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": "And a fourth one?"}]
pieces = list(session.chat_stream(messages, **options))
show("second turn", "".join(pieces))
show("its pieces", "|".join(pieces))
answer = model.chat([{"role": "user", "content": "Where is the Eiffel Tower?"}], schema=SCHEMA, **options)
show("JSON", answer.text)
vector = model.embed("A cat sleeps on the sofa.")
show("embedding", " ".join(f"{bits:08x}" for bits in vector.view("uint32")))
