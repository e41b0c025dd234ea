"""The models of the cases: each says what models of a family say."""

from scripted import CHATML, STRING, USER_DEFINED, Model

# Renders as the templates of these formats of calls do, as far as a server can tell the format from the text.
TOLD = "{# %s #}{% if tools %}{{ tools | length }}{% endif %}" + CHATML
HEADERS = (
    "{%% for m in messages %%}<|u|>{{ m.role }}\n{{ m.content }}{%% endfor %%}"
    "{%% if add_generation_prompt %%}<|a|>{%% endif %%}{# %s #}"
)
OBJECT = '{"a": "b"}'
CALL = '{"name": "fun", "arguments": {"a": "b"}}'
TEMPLATES = {
    "json": "{{ value | tojson }}|{{ value | tojson(indent=2) }}|{{ value | tojson(sort_keys=true) }}"
    "|{{ value | tojson(separators=(',', ':')) }}",
    "methods": "{% for m in messages %}{% set c = m.content %}{{ c.strip() }}|{{ c.split(' ')[-1] }}|{{ c.upper() }}"
    "|{{ c.startswith('x') }}|{{ c.replace('a', 'o') }}|{{ 'a' in c }}|{{ c[1:3] }}{% endfor %}",
    "last": "{{ messages[-1].role }}|{{ messages[::-1][0].content }}|{{ messages[1:] | length }}",
    "loop": "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}"
    "{% if m.content == 'stop' %}{% break %}{% endif %}{{ m.content }}{{ '' if loop.last else ',' }}{% endfor %}",
    "filters": "{% set n = namespace(count=0) %}{% for m in messages | selectattr('role', 'equalto', 'user') %}"
    "{% set n.count = n.count + 1 %}{% endfor %}{{ n.count }}|{{ messages | map(attribute='role') | join('+') }}"
    "|{{ messages | rejectattr('role', 'equalto', 'user') | list | length }}",
    "macro": "{% macro turn(m) -%} <{{ m.role }}>{{ m.content }} {%- endmacro %}{% for m in messages %}{{ turn(m) }}{% endfor %}",
    "words": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}|{{ nothing }}|{{ nothing is defined }}",
    "space": "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "date": "{{ strftime_now('%Y') }}",
    "raises": "{% if messages | length > 1 %}{{ raise_exception('Only one message, please') }}{% endif %}{{ messages[0].content }}",
    "documents": "{% for d in documents %}[{{ d.title }}: {{ d.text }}]{% endfor %}{{ messages[0].content }}",
    "arguments": "{% for m in messages %}{% if m.tool_calls %}{% for t in m.tool_calls %}{{ t.function.name }}"
    "{% for key, value in t.function.arguments | items %} {{ key }}={{ value }}{% endfor %}{% endfor %}"
    "{% else %}{{ m.content | trim }}{% endif %}{% endfor %}{# tools #}",
    "sum": "{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}",
    "kept": "{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% endfor %}",
    "effort": "{{ reasoning_effort | default('none given') }}",
    "custom": "{{ colour }}",
}
# Formats of calls: the words that are control tokens, the pieces of an answer.
FORMATS = {
    "hermes": (["<tool_call>", "</tool_call>"], ["<tool_call>", f"\n{CALL}\n", "</tool_call>"], "<tool_call>"),
    "mistral-array": (["[TOOL_CALLS]"], ["[TOOL_CALLS]", f"[{CALL}]"], "[TOOL_CALLS]"),
    "mistral-id": (
        ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
        ["[TOOL_CALLS]", "fun", "[CALL_ID]", "123456789", "[ARGS]", OBJECT],
        "[TOOL_CALLS] [CALL_ID] [ARGS]",
    ),
    "qwen3-coder": (
        ["<tool_call>", "</tool_call>"],
        ["<tool_call>", "\n<function=fun>\n<parameter=a>\nb\n</parameter>\n</function>\n", "</tool_call>"],
        "<tool_call> <function= <parameter=",
    ),
    "glm": (
        ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
        ["<tool_call>", "fun\n", "<arg_key>", "a", "</arg_key>", "\n", "<arg_value>", "b", "</arg_value>", "\n\n", "</tool_call>"],
        "<tool_call> <arg_key> <arg_value>",
    ),
    "lfm2": (
        ["<|tool_call_start|>", "<|tool_call_end|>"],
        ["<|tool_call_start|>", '[fun(a="b")]', "<|tool_call_end|>"],
        "<|tool_call_start|>",
    ),
    "granite": (["<|tool_call|>"], ["<|tool_call|>", f"[{CALL}]"], "<|tool_call|>"),
    "minimax": (
        ["<minimax:tool_call>", "</minimax:tool_call>"],
        ["<minimax:tool_call>", '\n<invoke name="fun">\n<parameter name="a">b</parameter>\n</invoke>\n', "</minimax:tool_call>"],
        "<minimax:tool_call> <invoke name=",
    ),
    "command-r": (
        ["<|START_ACTION|>", "<|END_ACTION|>"],
        ["<|START_ACTION|>", '[{"tool_call_id": "0", "tool_name": "fun", "parameters": {"a": "b"}}]', "<|END_ACTION|>"],
        "<|START_ACTION|>",
    ),
    "nemotron": ([], ["<TOOLCALL>", f"[{CALL}]", "</TOOLCALL>"], "<TOOLCALL>"),
    "kimi": (
        ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"],
        ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.fun:0", "<|tool_call_argument_begin|>", OBJECT,
         "<|tool_call_end|>", "<|tool_calls_section_end|>"],
        "<|tool_calls_section_begin|> <|tool_call_begin|> <|tool_call_argument_begin|>",
    ),
    "deepseek": (
        ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
        ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "fun", "<｜tool▁sep｜>", OBJECT, "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
        "<｜tool▁calls▁begin｜> <｜tool▁call▁begin｜> <｜tool▁sep｜>",
    ),
    "llama3": ([], ['{"name": "fun", "parameters": {"a": "b"}}'], '<|start_header_id|> {"name": function name, "parameters": dictionary}'),
    "pythonic": ([], ['[fun(a="b")]'], "[func_name1(params_name1=params_value1"),
    "phi4": ([], ["functools", f"[{CALL}]"], "<|tool|> <|/tool|>"),
}


def makers():
    """The names of the models, each with a function that writes it."""
    made = {"plain": lambda path: Model().says("fine", " thing").save(path)}
    for name, template in TEMPLATES.items():
        made[f"t-{name}"] = lambda path, template=template: Model().says("ok").save(path, template)
    for name, (words, pieces, told) in FORMATS.items():
        made[f"c-{name}"] = lambda path, words=words, pieces=pieces, told=told: (
            Model(*words).says(*pieces).save(path, TOLD.replace("%s", told))
        )
    return made | OTHERS


def thinks(words=("<think>", "</think>"), kind=USER_DEFINED):
    return Model(*words, kind=kind).says(words[0], "\nhm", " hm\n", words[1], "\n\nYes.")


HERMES = TOLD.replace("%s", "<tool_call>")
CALL_WORDS = ("<tool_call>", "</tool_call>")
OTHERS = {
    "reasons": lambda path: thinks().save(path),
    "reasons-in-text": lambda path: Model().says("<think>", "\nhm\n", "</think>", "\n\nYes.").save(path, CHATML + "{# <think></think> #}"),
    # As DeepSeek R1's template: the prompt opens the reasoning.
    "reasons-opened": lambda path: Model("<think>", "</think>", kind=USER_DEFINED)
    .says("\nhm\n", "</think>", "\n\nYes.", after="<think>")
    .save(path, CHATML.replace("<|a|>", "<|a|><think>")),
    "reasons-long": lambda path: Model("<think>", "</think>", kind=USER_DEFINED)
    .says("<think>", "x", *[f" {index}" for index in range(30)], "</think>", "Yes.")
    .save(path),
    "reasons-calls": lambda path: Model("<think>", "</think>", *CALL_WORDS, kind=USER_DEFINED)
    .says("<think>", "hm", "</think>", "\n", "<tool_call>", f"\n{CALL}\n", "</tool_call>")
    .save(path, HERMES),
    "two-calls": lambda path: Model("<tool_call>", "</tool_call>")
    .says("<tool_call>", f"\n{CALL}\n", "</tool_call>", end=None)
    .says('\n<tool_call>\n{"name": "fun", "arguments": {"a": "c"}}\n</tool_call>', after="</tool_call>")
    .save(path, HERMES),
    "text-and-call": lambda path: Model(*CALL_WORDS).says("I look. ", "<tool_call>", f"\n{CALL}\n", "</tool_call>").save(path, HERMES),
    "no-call": lambda path: Model().says("{", '"city": "Oslo"}').save(path, TOLD.replace("%s", FORMATS["llama3"][2])),
    "continues": lambda path: Model().says(" 42", after="(").says("The answer").save(path),
    "typed": lambda path: Model().says("ok").save(
        path, "{% for m in messages %}{% for c in m.content %}{% if c.type == 'text' %}<{{ c.text }}>{% endif %}{% endfor %}{% endfor %}"
    ),
    "no-template": lambda path: Model().says("ing", after="y").save(path, None),
    "named": lambda path: Model().says("ok").save(
        path, "DEFAULT{{ messages[0].content }}",
        extra=[("tokenizer.chat_templates", 9, (STRING, ["tool_use"])), ("tokenizer.chat_template.tool_use", STRING, "TOOLS{{ tools | length }}")],
    ),
    "several-bytes": lambda path: Model().says("\N{GRINNING FACE}", " ok").save(path),
}
