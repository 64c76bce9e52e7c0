"""A real broker process for tests: started, killed, stopped and restarted, never leaked."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient

START_S = 60.0  # a broker is ready in under a second; the rest is for a machine busy with other things
STOP_S = 15.0
PORT_TAKEN_S = 0.5  # between two starts while another process has the port
ROOT_KEY_NAME = "RootManageSharedAccessKey"


class BrokerProcess:
    """`python -m pairbus broker` on free ports of the loopback, with its data in `data_dir`.

    `strict`: it keeps Azure's limits and habits, as it does for everything that our own code does to a broker.
    `program`: another module that has the same commands.
    Use it as a context manager: leaving it kills the process if it still runs.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        namespaces: Sequence[str] = ("contoso", "fabrikam"),
        config: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
        strict: bool = False,
        program: str = "pairbus",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.ports = dict.fromkeys(namespaces, 0)
        "Port per namespace; 0 until the first start, the same one at every restart."
        self.start_s = 0.0
        "Duration of the last start."
        self._program = program
        self._environment = environment or {}
        self._options = [*options, "--strict"] if strict else list(options)
        self._connection_strings: dict[str, str] = {}
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        self._news = threading.Condition()
        data_dir.mkdir(parents=True, exist_ok=True)
        self._stderr_file = data_dir.with_name(data_dir.name + ".stderr")
        if config is not None:
            config_file = data_dir.with_name(data_dir.name + ".json")
            config_file.write_text(json.dumps(config))
            self._options += ["--config", str(config_file)]

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def ca_file(self) -> Path:
        return self.data_dir / "ca.pem"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker has not been started"
        return self._process.pid

    @property
    def stderr(self) -> str:
        """Standard error of the process, and of earlier processes on the same folder."""
        return self._stderr_file.read_text(errors="replace") if self._stderr_file.exists() else ""

    def connection_string(
        self, namespace: str = "contoso", *, key_name: str | None = None, key: str | None = None
    ) -> str:
        """The line that the broker printed for the namespace, on request with another key."""
        parts = dict(part.split("=", 1) for part in self._connection_strings[namespace].rstrip(";").split(";"))
        if key_name is not None:
            parts["SharedAccessKeyName"] = key_name
        if key is not None:
            parts["SharedAccessKey"] = key
        return ";".join(f"{name}={value}" for name, value in parts.items())

    def token(
        self,
        path: str,
        *,
        namespace: str = "contoso",
        key_name: str = ROOT_KEY_NAME,
        key: str | None = None,
        lives_s: int = 3600,
    ) -> str:
        """A shared access signature for `path` ("" = the whole namespace), made with the key of that name."""
        if key is None:
            fields = dict(part.split("=", 1) for part in self._connection_strings[namespace].rstrip(";").split(";"))
            key = fields["SharedAccessKey"]
        scope = urllib.parse.quote(f"sb://127.0.0.1:{self.ports[namespace]}/{path}".rstrip("/"), safe="")
        expiry = int(time.time()) + lives_s
        digest = hmac.new(key.encode(), f"{scope}\n{expiry}".encode(), hashlib.sha256).digest()
        signature = urllib.parse.quote(base64.b64encode(digest).decode(), safe="")
        return f"SharedAccessSignature sr={scope}&sig={signature}&se={expiry}&skn={key_name}"

    def admin(self, namespace: str = "contoso", **options: Any) -> ServiceBusAdministrationClient:
        """The genuine administration client; the caller closes it."""
        settings = {
            "connection_verify": str(self.ca_file),
            "retry_total": 0,
            "connection_timeout": 5,
            "read_timeout": 15,
        }
        return ServiceBusAdministrationClient.from_connection_string(
            self.connection_string(namespace), **{**settings, **options}
        )

    def start(self) -> None:
        """Start the process and wait for its `ready` line.

        While a broker is down, another process may get its port for a moment: then it is started again.
        """
        assert self._process is None, "the broker is running"
        deadline = time.monotonic() + START_S
        while not self._starts(deadline):
            time.sleep(PORT_TAKEN_S)

    def _starts(self, deadline: float) -> bool:
        """Start the process; return True when it is ready, and False when another process has its port."""
        said_before = len(self.stderr)
        command = [sys.executable, "-m", self._program, "broker", "--data", str(self.data_dir)]
        for name, port in self.ports.items():
            command += ["--namespace", f"{name}={port}"]
        self._lines.clear()
        began = time.monotonic()
        with self._stderr_file.open("ab") as stderr:
            self._process = subprocess.Popen(
                [*command, *self._options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **self._environment, "PYTHONUNBUFFERED": "1"},
            )
        # The reader goes on after `ready`, so that the process can never block on a full pipe.
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        try:
            self._await_ready(deadline)
        except BaseException as error:
            self.kill()
            is_taken = any(self.ports.values()) and "cannot listen on" in self.stderr[said_before:]
            if isinstance(error, AssertionError) and is_taken and time.monotonic() < deadline:
                return False
            raise
        self.start_s = time.monotonic() - began
        return True

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone. Harmless when it is not running."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def terminate(self) -> int:
        """SIGTERM; the exit code. A process that does not stop in time is killed and is an error."""
        assert self._process is not None, "the broker is not running"
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._end()
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def restart(self) -> None:
        """Start again on the same ports and data, after SIGKILL if it still runs."""
        self.kill()
        self.start()

    def _end(self) -> int:
        assert self._process is not None
        code = self._process.wait(STOP_S)
        self._process = None
        return code

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                with self._news:
                    self._lines.append(line.strip())
                    self._news.notify_all()
        with self._news:
            self._lines.append("")  # wakes a waiting thread, which then sees that the process has ended
            self._news.notify_all()

    def _await_ready(self, deadline: float) -> None:
        assert self._process is not None
        with self._news:
            while "ready" not in self._lines:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or (self._lines and self._lines[-1] == "" and self._process.poll() is not None):
                    raise AssertionError(
                        f"the broker is not ready after {START_S} s or has ended (exit code {self._process.poll()});"
                        f" it printed {self._lines!r} and on standard error:\n{self.stderr[-8000:]}"
                    )
                self._news.wait(min(left_s, 0.5))
            for line in self._lines[: self._lines.index("ready")]:
                name, found, rest = line.partition(" Endpoint=")
                if found and name in self.ports:
                    self._connection_strings[name] = f"Endpoint={rest}"
                    self.ports[name] = int(rest.split(";", 1)[0].rpartition(":")[2].rstrip("/"))
        missing = set(self.ports) - set(self._connection_strings)
        assert not missing, f"no connection string was printed for {missing}; the broker printed {self._lines!r}"
