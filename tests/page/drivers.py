"""Firefox and WebKitGTK, as far as the test of the page drives them: by Marionette and by WebDriver, with Python alone."""

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

# Seconds for a browser to start or to answer, on a busy machine.
PATIENCE = 120


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(what, ask):
    """Returns the result of `ask`, as soon as that is true."""
    end = time.monotonic() + PATIENCE
    while not (found := ask()):
        assert time.monotonic() < end, f"waited {PATIENCE} s for {what}"
        time.sleep(0.1)
    return found


class Browser:
    """A browser that is started headless with a profile of its own, and ends with the block."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.log = Path(self.folder.name, "log")
        self.processes = []
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        self.folder.cleanup()

    def start(self, *command, **variables):
        # The caller's settings and sessions of a desktop are none of a test's.
        environment = {"PATH": os.environ["PATH"], "HOME": self.folder.name, "LANG": "C.UTF-8", **variables}
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.processes.append(process)
        return process


class Firefox(Browser):
    name = "Firefox"

    def begin(self):
        port = free_port()
        preferences = {"marionette.port": port, "datareporting.policy.dataSubmissionEnabled": False}
        lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in preferences.items())
        Path(self.folder.name, "user.js").write_text("".join(lines))
        process = self.start(
            os.environ.get("FIREFOX", "firefox-esr"), "--headless", "--no-remote", "--marionette",
            "--remote-allow-system-access", "--profile", self.folder.name,
        )
        self.stream = until("Firefox", lambda: self.connect(port, process))
        self.count = 0
        self.receive()
        self.send("WebDriver:NewSession", {"timeouts": {"script": PATIENCE * 1000}})

    def connect(self, port, process):
        assert process.poll() is None, self.log.read_text(errors="replace")
        try:
            return socket.create_connection(("127.0.0.1", port), PATIENCE).makefile("rwb")
        except ConnectionRefusedError:
            return None

    def receive(self):
        length = b""
        while (byte := self.stream.read(1)) != b":":
            assert byte, "Firefox has ended"
            length += byte
        return json.loads(self.stream.read(int(length)))

    def send(self, command, parameters=None):
        self.count += 1
        message = json.dumps([0, self.count, command, parameters or {}]).encode()
        self.stream.write(b"%d:%s" % (len(message), message))
        self.stream.flush()
        _, _, error, result = self.receive()
        assert error is None, error
        return result

    def go(self, url):
        self.send("WebDriver:Navigate", {"url": url})

    def run(self, script, *arguments):
        return self.send("WebDriver:ExecuteScript", {"script": script, "args": arguments})["value"]

    def problems(self):
        """Errors of the console."""
        self.send("Marionette:SetContext", {"value": "chrome"})
        script = """return Services.console.getMessageArray()
            .filter((one) => one instanceof Ci.nsIScriptError && !(one.flags & Ci.nsIScriptError.warningFlag))
            .filter((one) => one.sourceName.startsWith(arguments[0]) || one.errorMessage.includes(arguments[0]))
            .map((one) => one.errorMessage)"""
        try:
            return self.run(script, self.url)
        finally:
            self.send("Marionette:SetContext", {"value": "content"})


class WebKit(Browser):
    name = "WebKitGTK"

    def begin(self):
        port = free_port()
        read, write = os.pipe()
        with open(read) as display, open(write) as chosen:
            screen = subprocess.Popen(
                ["Xvfb", "-displayfd", str(chosen.fileno()), "-screen", "0", "1200x800x24", "-nolisten", "tcp"],
                pass_fds=[chosen.fileno()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            self.processes.append(screen)
            chosen.close()
            number = display.readline().strip()
        assert number, "Xvfb has ended"
        runtime = Path(self.folder.name, "runtime")
        runtime.mkdir(mode=0o700)
        self.start(
            os.environ.get("WEBKIT_DRIVER", "WebKitWebDriver"), f"--port={port}",
            DISPLAY=f":{number}", XDG_RUNTIME_DIR=str(runtime), NO_AT_BRIDGE="1", LIBGL_ALWAYS_SOFTWARE="1",
        )
        self.address = f"http://127.0.0.1:{port}/session"
        options = {"binary": mini_browser(), "args": ["--automation"]}
        capabilities = {"alwaysMatch": {"webkitgtk:browserOptions": options}}
        session = until("WebKitGTK", lambda: self.connect(capabilities))
        self.address += f"/{session['sessionId']}"

    def connect(self, capabilities):
        try:
            return self.post("", {"capabilities": capabilities})
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                return None
            raise

    def post(self, path, body):
        request = urllib.request.Request(
            self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def go(self, url):
        self.post("/url", {"url": url})
        # The driver does not tell what is in the console.
        self.run("""window.problems = [];
            const note = (text) => window.problems.push(String(text));
            const from = (event) => note(event.message ?? event.reason ?? event.blockedURI ?? event.target?.outerHTML);
            for (const kind of ['error', 'unhandledrejection', 'securitypolicyviolation']) addEventListener(kind, from, true);
            console.error = (...parts) => note(parts.join(' '));""")

    def run(self, script, *arguments):
        return self.post("/execute/sync", {"script": script, "args": arguments})

    def problems(self):
        """Errors since the page was loaded."""
        return self.run("return window.problems")


def mini_browser():
    """The browser of WebKitGTK's own tests, which comes with its library."""
    found = sorted(Path("/usr/lib").glob("*/webkit2gtk-4.*/MiniBrowser"))
    assert found, "expected MiniBrowser of Debian's libwebkit2gtk"
    return str(found[-1])
