"""A page in headless Chromium, driven over the pipes of its DevTools protocol: keys, sizes, colours, what the page says."""
import base64
import json
import os
import select
import shutil
import subprocess
import time

program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), " ": (32, " ")}
SHIFT = 8


class Browser:
    def __init__(self, url, folder):
        to_browser, self.to = os.pipe()
        self.of, from_browser = os.pipe()
        self.process = subprocess.Popen(["/bin/bash", "-c", 'exec "$0" "$@" 3<&%d 4>&%d' % (to_browser, from_browser), program, "--headless", "--no-sandbox",
                                         "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir=" + folder, "--remote-debugging-pipe", "about:blank"],
                                        pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.n, self.session, self.held = 0, None, b""
        self.session = self.call("Target.attachToTarget", targetId=self.page(), flatten=True)["sessionId"]
        self.call("Page.navigate", url=url)
        self.wait("document.readyState == 'complete' && location.href == %s" % json.dumps(url))

    def page(self):
        for _ in range(600):
            pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
            if pages:
                return pages[0]["targetId"]
            time.sleep(0.05)
        raise RuntimeError("the browser has no page")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        os.close(self.to)
        os.close(self.of)

    def call(self, method, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.held:
                data = select.select([self.of], [], [], 60)[0] and os.read(self.of, 1 << 16)
                if not data:
                    raise RuntimeError("the browser does not answer " + method)
                self.held += data
            text, self.held = self.held.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self.n:
                return answer["result"]

    def value(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in r:
            raise RuntimeError(r["exceptionDetails"].get("exception", {}).get("description", str(r)))
        return r["result"].get("value")

    def wait(self, expression, seconds=60):
        end = time.time() + seconds
        while not self.value("!!(%s)" % expression):
            if time.time() > end:
                raise RuntimeError("waited for " + expression)
            time.sleep(0.02)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, name, modifiers=0):
        code, text = KEYS[name]
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code="Space" if name == " " else name, windowsVirtualKeyCode=code, modifiers=modifiers, **more)

    def look(self, width, height, scheme):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
