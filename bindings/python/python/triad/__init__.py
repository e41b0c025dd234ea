"""Triad runs language models on the device in your hand.

    import triad

    model = triad.Model("smollm2-135m")
    for part in model.chat_stream([{"role": "user", "content": "Why is the sky blue?"}]):
        print(part, end="", flush=True)

A `Model` has weights, tokenizer and threads; a `Session` of it is one conversation, which is not computed again as it goes
on. Long calls leave Python's lock to other threads, and end with Ctrl-C.
"""

from ._triad import Answer, Busy, Model, PromptTooLong, Session, Stream, ToolCall, TriadError, __version__, prepare

# Its name in this package.
Error = TriadError

__all__ = ["Answer", "Busy", "Error", "Model", "PromptTooLong", "Session", "Stream", "ToolCall", "TriadError", "__version__", "prepare"]
