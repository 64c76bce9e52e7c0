"""A headless Chromium for tests: opens a page, reports its errors, answers questions about it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_S = 60.0  # one second on an idle machine
ANSWER_S = 60.0
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0"),
)


def executable() -> str:
    """PAIRBUS_CHROMIUM, or one of PATH; the test is skipped when there is none."""
    given = os.environ.get("PAIRBUS_CHROMIUM")
    found = given or next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(
            f"the page is not opened in a browser: none of {', '.join(NAMES)} is on PATH (Debian: apt-get install"
            " chromium), and PAIRBUS_CHROMIUM names none"
        )
    return found


class Tab:
    """One page, with the errors that it reported and the network requests that it made."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=ANSWER_S, suppress_origin=True)
        self._calls = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        while (answer := self._next()).get("id") != self._calls:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path, *, width: int, colours: str) -> None:
        """`colours`: light or dark."""
        self.complaints, self.requests, self._loaded = [], [], False
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
        self.call("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._next()

    def ask(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, height: int) -> bytes:
        """A PNG of the head of the page."""
        clip = {"x": 0, "y": 0, "width": self.ask("innerWidth"), "height": height, "scale": 1}
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])

    def close(self) -> None:
        self._socket.close()

    def _next(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(self._socket.recv())
        match heard.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(heard["params"]["request"]["url"])
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded":
                self.complaints.append(json.dumps(heard["params"]))
        return heard


@contextmanager
def browser() -> Iterator[Tab]:
    """A tab of a browser of its own, which ends with it."""
    with tempfile.TemporaryDirectory(prefix="pairbus-chromium-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [executable(), *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            tab = Tab(_address(process, Path(folder) / "DevToolsActivePort"))
            yield tab
            tab.close()
        finally:
            process.terminate()
            process.wait(START_S)


def _address(process: subprocess.Popen[bytes], port_file: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the browser ended with {process.returncode}"
        lines = port_file.read_text(encoding="utf-8").split() if port_file.exists() else []
        if len(lines) == 2:
            with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=ANSWER_S) as answer:
                tabs = [one for one in json.load(answer) if one["type"] == "page"]
            if tabs:
                return str(tabs[0]["webSocketDebuggerUrl"])
        time.sleep(0.02)
    raise AssertionError(f"the browser did not start within {START_S} s")
