"""Answers a question, part by part: python chat.py "Why is the sky blue?" [MODEL]"""

import sys

import triad

question = sys.argv[1] if len(sys.argv) > 1 else "Why is the sky blue?"
name = sys.argv[2] if len(sys.argv) > 2 else "smollm2-135m"
model = triad.Model(name, progress=lambda step: print(step, file=sys.stderr))
stream = model.chat_stream([{"role": "user", "content": question}], max_tokens=64)
for part in stream:
    print(part, end="", flush=True)
answer = stream.answer
print(f"\n{answer.prompt_tokens} tokens at {answer.prefill_tokens_per_second:.0f} a second, "
      f"{len(answer.tokens)} at {answer.decode_tokens_per_second:.0f}", file=sys.stderr)
