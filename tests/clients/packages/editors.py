"""Completion in an editor, and web clients."""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

WAIT_SECONDS = 30


def llama_vim(t):
    """llama.vim in Neovim: a person opens a file, goes to the end of a line, and accepts what the plugin suggests."""
    folder = os.environ.get("LLAMA_VIM")
    if not folder:
        t.leaves_out("infill", "it is in no registry: --llama-vim FOLDER names a checkout of ggml-org/llama.vim")
        return
    import pynvim

    Path("add.py").write_text("def add(a, b):\n    return \n\nprint(add(1, 2))\n")
    editor = pynvim.attach("child", argv=["nvim", "--embed", "--headless", "-u", "NONE", "-i", "NONE"])

    def until(holds):
        for _ in range(WAIT_SECONDS * 10):
            if found := holds():
                return found
            time.sleep(0.1)
        raise AssertionError(f"not within {WAIT_SECONDS} s: {editor.current.buffer[:]}, {editor.command_output('messages')!r}")

    def suggestion():
        """The text that the editor shows and that is not in the file."""
        marks = [mark for space in editor.api.get_namespaces().values() for mark in editor.current.buffer.api.get_extmarks(space, 0, -1, {"details": True})]
        return "".join(piece[0] for mark in marks for piece in mark[3].get("virt_text", []))

    @t.tries
    def infill():
        editor.vars["llama_config"] = {
            "endpoint_fim": f"{t.address}/infill", "api_key": t.key, "model_fim": t.middle, "show_info": 0, "n_predict": 16, "t_max_predict_ms": 20000,
        }
        editor.command(f"set runtimepath+={folder}")
        editor.command("edit add.py")
        editor.command(f"source {folder}/plugin/llama.vim")
        editor.command("2")
        editor.input("A")
        until(lambda: "a + b" in suggestion())
        editor.input("<Tab>")
        until(lambda: editor.current.buffer[1] == "    return a + b")
        [exchange] = [it for it in t.recorded() if it["path"].startswith("/infill")][-1:]
        assert exchange["asked"]["input_suffix"].strip() == "print(add(1, 2))", exchange["asked"]
        assert exchange["asked"]["input_prefix"].strip() == "def add(a, b):", exchange["asked"]

    editor.close()


def ollama_chat(t):
    """A web client of Ollama's API: its page's requests to its own program, which asks the server."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

    def ask(action, **fields):
        """Reads with GET and a query, or starts with a body."""
        body = json.dumps(fields).encode() if action.startswith("start") else None
        query = "" if body or not fields else "?" + urllib.parse.urlencode(fields)
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{action}{query}", body, {"content-type": "application/json"})
        for _ in range(WAIT_SECONDS * 10):
            try:
                with urllib.request.urlopen(request, timeout=60) as reply:
                    return json.load(reply)
            except ConnectionRefusedError:
                time.sleep(0.1)
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ConnectionRefusedError):
                    raise
                time.sleep(0.1)
        raise AssertionError(f"{action}: not within {WAIT_SECONDS} s")

    program = subprocess.Popen(["ollama-chat", "-n", "-q", "-c", "config.json", "-p", str(port)], env=os.environ | {"OLLAMA_HOST": t.address})
    try:

        @t.tries
        def models():
            names = [model["id"] for model in ask("getModels")["models"]]
            assert t.scripted in " ".join(names), names

        @t.tries
        def stream():
            begun = ask("startConversation", user="Name three colours.", model=t.scripted)["id"]
            for _ in range(WAIT_SECONDS * 10):
                found = ask("getConversation", id=begun)["conversation"]
                if not found["generating"]:
                    break
                time.sleep(0.1)
            t.said(found["exchanges"][-1]["model"], streams=True)
    finally:
        program.terminate()
        program.wait()
