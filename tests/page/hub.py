"""A hub of models on this machine, with one repository `here/tiny`, whose file comes as fast as a test lets it."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "golden" / "families" / "llama.gguf"
NAME = "tiny.gguf"


class Hub:
    """Serves until the block ends. While `go` is not set, a file stops in its middle; the end of the block breaks it off there."""

    def __init__(self, port):
        self.go = threading.Event()
        self.go.set()
        self.has_ended = False
        # The first byte of each request of a file.
        self.begins = []
        content = FILE.read_bytes()
        large = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        listing = json.dumps({"sha": "0" * 40, "siblings": [{"rfilename": NAME, "size": len(content), "lfs": large}]}).encode()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path.split("?")[0] == "/api/models/here/tiny":
                    self.give(200, listing)
                elif self.path.startswith("/here/tiny/resolve/"):
                    self.give_file()
                else:
                    self.give(404, b"")

            def give(self, status, body):
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def give_file(self):
                begin = int(self.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
                hub.begins.append(begin)
                self.send_response(206 if begin else 200)
                if begin:
                    self.send_header("content-range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
                self.send_header("content-length", str(len(content) - begin))
                self.end_headers()
                middle = max(begin, len(content) // 2)
                self.wfile.write(content[begin:middle])
                self.wfile.flush()
                hub.go.wait()
                # The server may not know yet that its client has cancelled the download.
                if hub.has_ended:
                    raise ConnectionAbortedError
                self.wfile.write(content[middle:])

            def log_message(self, *_):
                pass

            def handle(self):
                try:
                    super().handle()
                except ConnectionError:
                    # The server has ended the fetch.
                    pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.has_ended = True
        self.go.set()
        self.server.shutdown()
        self.server.server_close()
