"""Headless Chromium, driven by Debian's `chromium-driver` in the protocol of W3C WebDriver.

This module needs the standard library alone.
"""

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
]
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class BrowserError(Exception):
    """Error of the browser or of its driver."""


def is_installed() -> bool:
    return shutil.which("chromedriver") is not None and shutil.which("chromium") is not None


def install() -> bool:
    """Installs Chromium from Debian's packages, and returns true if it is installed."""
    packages = ["chromium", "chromium-driver", "fonts-dejavu-core"]
    commands = [
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
    ]
    for command in commands:
        if is_installed():
            break
        try:
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        except (OSError, subprocess.CalledProcessError):
            break
    return is_installed()


class Browser:
    """Window of a headless Chromium with an empty profile."""

    def __init__(self, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        self.process: int | None = None
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.output = tempfile.TemporaryFile("w+")
        command = ["chromedriver", "--port=0"]
        self.driver = subprocess.Popen(command, stdout=self.output, stderr=subprocess.STDOUT)
        try:
            self.address = f"http://127.0.0.1:{self._wait_for_port()}"
            window = [f"--window-size={width},{height}", f"--user-data-dir={self.profile.name}"]
            theme = ["--force-dark-mode"] if dark else []
            chrome = {"binary": shutil.which("chromium"), "args": [*FLAGS, *window, *theme]}
            logs = {"browser": "ALL"}
            wanted = {"goog:chromeOptions": chrome, "goog:loggingPrefs": logs}
            body = {"capabilities": {"alwaysMatch": wanted}}
            session = self._call("POST", "/session", body)
            self.process = session["capabilities"]["goog:processID"]
            self.address += f"/session/{session['sessionId']}"
        except BaseException:
            self._stop_driver()
            raise

    def _wait_for_port(self) -> int:
        for _ in range(600):
            self.output.seek(0)
            found = re.search(r"started successfully on port (\d+)", self.output.read())
            if found:
                return int(found[1])
            if self.driver.poll() is not None:
                break
            time.sleep(0.05)
        self.output.seek(0)
        raise BrowserError(f"chromedriver did not start:\n{self.output.read()}")

    def _call(self, method: str, path: str, body: dict | None = None):
        data = None if method == "GET" else json.dumps(body or {}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise BrowserError(json.load(error)["value"]["message"])

    def open(self, address: str) -> None:
        self._call("POST", "/url", {"url": address})

    def run(self, script: str, *arguments):
        """Runs the body of a function in the page, and returns its result."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def _find(self, selector: str) -> str:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        return f"/element/{found[ELEMENT]}"

    def click(self, selector: str) -> None:
        self._call("POST", f"{self._find(selector)}/click")

    def type(self, selector: str, text: str, clear: bool = False) -> None:
        """Types into a field; `\\ue007` is the key Enter."""
        element = self._find(selector)
        if clear:
            self._call("POST", f"{element}/clear")
        self._call("POST", f"{element}/value", {"text": text})

    def choose(self, selector: str, value: str) -> None:
        self.click(f'{selector} option[value="{value}"]')

    def text(self, selector: str) -> str:
        """Returns the text of the first element that matches; empty if there is none."""
        return self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def wait_for(self, script: str, *arguments, seconds: float = 120):
        """Waits until an expression in the page is true, and returns its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.run(f"return {script}", *arguments)
            if value:
                return value
            time.sleep(0.02)
        page = self.run("return document.body.innerText")
        raise BrowserError(f"waited {seconds} s for `{script}`; the page has:\n{page}")

    def read_log(self) -> list[str]:
        """Returns the new messages of the page's console."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def save_screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def close(self) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._stop_driver()

    def _stop_driver(self) -> None:
        self.driver.terminate()
        self.driver.wait()
        # A browser that did not answer outlives its driver.
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)
        self.output.close()
        self.profile.cleanup()
