"""Writes many_tools.json: hashes of conversations with as many and as large tools as agents have, as `transformers` renders
them. The tools are made here and by the test in the same way: the file has none of them.

    python many_tools.py        # needs transformers (written with 4.57.6)
"""

import json
from table import ASK, FOLDER, render

TOOLS, PROPERTIES = 128, 48


def schema(index):
    kinds = [
        {"type": "string", "description": f"Parameter {index} of the <tool>"},
        {"type": "integer", "minimum": index},
        {"type": "string", "enum": ["one", "two", "three"]},
        {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        {"type": "object", "properties": {"a": {"type": "boolean"}}},
    ]
    return kinds[index % len(kinds)]


def tool(index):
    properties = {f"property_{place}": schema(place) for place in range(PROPERTIES)}
    parameters = {"type": "object", "properties": properties, "required": ["property_0", "property_3"]}
    function = {"name": f"tool_{index}", "description": f"Tool {index}", "parameters": parameters}
    return {"type": "function", "function": function}


def fnv(text):
    hashed = 0xCBF29CE484222325
    for byte in text.encode():
        hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
    return hashed


def main():
    made = {}
    for path in sorted(FOLDER.glob("styles/*.jinja")):
        tools = [tool(index) for index in range(TOOLS)]
        variables = {"tools": tools, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
        rendered = render(path.read_text().removesuffix("\n"), [ASK], variables)
        made[path.name] = f"{fnv(rendered['text']):016x}"
        print(path.name, len(rendered["text"]), "bytes of", len(json.dumps(tools)))
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in made.items())
    (FOLDER / "many_tools.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
