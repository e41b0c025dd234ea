"""Completion in an editor."""

import os
import time
from pathlib import Path

WAIT_SECONDS = 30


def llama_vim(t):
    """llama.vim in Neovim: a person opens a file, goes to the end of a line, and accepts what the plugin suggests."""
    import pynvim

    folder = os.environ["GIVEN"]
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
