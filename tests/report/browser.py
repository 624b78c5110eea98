"""Drives a headless Chromium through its debugging pipe: a page at a chosen width and colour scheme, its console, its pictures.

    python3 browser.py PAGE.html OUT.png --width 375 --dark     a picture of the whole page, every spec of which is open
"""

import argparse
import base64
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import time


def find():
    return next((path for path in map(shutil.which, ["chromium", "chromium-browser", "google-chrome"]) if path), None)


class Gone(Exception):
    pass


class DoesNotStart(Exception):
    pass


class Browser:
    """Use with `with`: the process and its profile go away at the end."""

    def __init__(self, timeout=60):
        self.timeout, self.last, self.pending, self.errors = timeout, 0, b"", []
        self.profile = tempfile.TemporaryDirectory(prefix="flashjit-browser-", ignore_cleanup_errors=True)
        to_browser, self.to = os.pipe()
        self.back, from_browser = os.pipe()

        def pipes():  # the browser reads commands from 3 and writes answers to 4
            first, second = os.dup(to_browser), os.dup(from_browser)
            os.dup2(first, 3)
            os.dup2(second, 4)

        command = [find(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                   "--remote-debugging-pipe", "--user-data-dir=" + self.profile.name, "about:blank"]
        # A group of its own, to be killed as one: its parts go on writing to the profile for a moment when it alone is gone.
        self.process = subprocess.Popen(command, preexec_fn=pipes, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        self.session = None
        try:
            target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        except (Gone, BrokenPipeError) as error:
            self.__exit__()
            raise DoesNotStart(f"it ended with code {self.process.returncode}") from error
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log"]:
            self.ask(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        self.profile.cleanup()

    def message(self, until):
        while b"\0" not in self.pending:
            ready, _, _ = select.select([self.back], [], [], max(0, until - time.monotonic()))
            data = os.read(self.back, 1 << 20) if ready else b""
            assert ready, "the browser does not answer"
            if not data:
                raise Gone("the browser has ended")
            self.pending += data
        text, self.pending = self.pending.split(b"\0", 1)
        found = json.loads(text)
        if found.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(found["params"]["exceptionDetails"]))
        if found.get("method") == "Log.entryAdded" and found["params"]["entry"]["level"] == "error":
            self.errors.append(found["params"]["entry"]["text"])
        return found

    def ask(self, method, **params):
        self.last += 1
        call = {"id": self.last, "method": method, "params": params}
        if self.session:
            call["sessionId"] = self.session
        os.write(self.to, json.dumps(call).encode() + b"\0")
        until = time.monotonic() + self.timeout
        while True:
            answer = self.message(until)
            if answer.get("id") == self.last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def size(self, width, height=800, dark=False):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, path, width=1280, dark=False):
        self.errors.clear()
        self.size(width, dark=dark)
        self.ask("Page.navigate", url=pathlib.Path(path).absolute().as_uri())
        until = time.monotonic() + self.timeout
        while self.message(until).get("method") != "Page.loadEventFired":
            pass

    def eval(self, expression):
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{expression}\n{answer['exceptionDetails']}"
        return answer["result"].get("value")

    def key(self, name):
        for kind in ["keyDown", "keyUp"]:
            self.ask("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def open_details(self):
        """Opens all specs and waits for what that draws."""
        self.eval("""new Promise(done => { document.querySelectorAll('details').forEach(details => details.open = true);
                     requestAnimationFrame(() => setTimeout(done, 50)); })""")

    def picture(self, path):
        width, height = self.eval("[innerWidth, document.documentElement.scrollHeight]")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page")
    parser.add_argument("out")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--dark", action="store_true")
    ARGS = parser.parse_args()
    with Browser() as browser:
        browser.open(ARGS.page, ARGS.width, ARGS.dark)
        browser.open_details()
        browser.picture(ARGS.out)
        assert not browser.errors, browser.errors
