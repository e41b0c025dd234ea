"""Prints the answers of the conversation that bindings/conversation prints with Rust."""

import triad

model = triad.Model("smollm2-135m")
messages = [{"role": "system", "content": "Answer in one sentence."}]
for question in ("Name three colours.", "And a fourth one?"):
    messages.append({"role": "user", "content": question})
    answer = model.chat(messages, temperature=0, max_tokens=24)
    messages.append({"role": "assistant", "content": answer.text})
    print(answer.text)
