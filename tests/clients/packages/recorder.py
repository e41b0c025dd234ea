"""A proxy in front of the server that keeps what a client asked and what it was answered."""

import http.client
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Headers of one connection, which the proxy makes by itself.
OWN = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}
LONGEST_SECONDS = 600
WAIT_SECONDS = 10


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def reply(self, body):
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def serve(self):
        recorder = self.server.recorder
        if self.path == "/recorded":
            # A client may know the end of an answer before it is kept.
            with recorder.idle:
                recorder.idle.wait_for(lambda: recorder.running == 0, WAIT_SECONDS)
            self.reply(json.dumps(recorder.exchanges).encode())
            return
        recorder.run(1)
        try:
            self.ask(recorder)
        finally:
            recorder.run(-1)

    def ask(self, recorder):
        body = self.body()
        connection = http.client.HTTPConnection(recorder.host, recorder.port, timeout=LONGEST_SECONDS)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in OWN}
            if recorder.key:
                headers["authorization"] = f"Bearer {recorder.key}"
            if body or self.command in ("POST", "PUT"):
                headers["content-length"] = str(len(body))
            connection.request(self.command, self.path, body or None, headers)
            self.pass_on(connection.getresponse(), body)
        finally:
            connection.close()

    def pass_on(self, answer, body):
        """Sends each part of an answer as soon as it has come."""
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in OWN:
                self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        data = b""
        while part := answer.read1(65536):
            data += part
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
        # Kept before the client knows the end, since it may ask at once what was kept.
        self.server.recorder.keep(self, body, answer, data)
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = do_PATCH = serve

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """A client that goes away is no error."""


class Recorder:
    """`key` is added to requests, as a proxy does for clients that know of no keys."""

    def __init__(self, address, key=None):
        self.key, self.running, self.idle = key, 0, threading.Condition()
        parsed = urllib.parse.urlsplit(address)
        self.host, self.port = parsed.hostname, parsed.port
        self.exchanges = []
        self.server = Proxy(("127.0.0.1", 0), Handler)
        self.server.recorder = self
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def run(self, change):
        with self.idle:
            self.running += change
            self.idle.notify_all()

    def keep(self, request, body, answer, data):
        try:
            asked = json.loads(body) if body else {}
        except ValueError:
            asked = {}
        self.exchanges.append({
            "method": request.command, "path": request.path, "asked": asked, "status": answer.status,
            "kind": answer.getheader("content-type") or "", "answer": data.decode(errors="replace"),
        })

    def end(self):
        self.server.shutdown()
        self.server.server_close()
