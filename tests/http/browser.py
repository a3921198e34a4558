"""A headless Chromium, driven over a pipe with its DevTools protocol: no driver, no web socket."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = shutil.which("chromium")
DEADLINE_S = 120


class Browser:
    """One page. Messages end with a zero byte; the browser reads descriptor 3 and writes 4."""

    def __init__(self, profile, *flags, width=1280, height=1040):
        to_read, self.to_browser = os.pipe()
        self.from_browser, to_write = os.pipe()
        self.number, self.session, self.received = 0, None, b""
        # The shell puts the pipes where the browser looks for them.
        command = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", command, CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu",
             "--hide-scrollbars", "--no-first-run", f"--user-data-dir={profile}",
             f"--window-size={width},{height}", "--remote-debugging-pipe", *flags, "about:blank"],
            pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)

    def call(self, method, **params):
        answer = self.ask(method, **params)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def ask(self, method, **params):
        """The answer, even if it is an error."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                return answer

    def _receive(self):
        deadline = time.monotonic() + DEADLINE_S
        while b"\0" not in self.received:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.from_browser], [], [], left)[0]:
                raise TimeoutError("the browser said nothing")
            some = os.read(self.from_browser, 1 << 20)
            assert some, "the browser is gone"
            self.received += some
        message, _, self.received = self.received.partition(b"\0")
        return json.loads(message)

    def open(self, url):
        target = self.call("Target.createTarget", url=url)["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def value(self, expression):
        """The value of an expression; also None while a page is loading."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer.get("result", {}).get("result", {}).get("value")

    def wait_for(self, expression):
        deadline = time.monotonic() + DEADLINE_S
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never: {expression}"
            time.sleep(0.05)

    def resize(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True)

    def be_dark(self, is_dark):
        features = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path):
        png = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(png))
