"""A Spark Connect server on this machine: a Java process of its own that listens on loopback only."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pairbus.spark.session import LIGHT_JAVA, LOCAL_CONF

START_S = 180.0  # it takes eight seconds; the rest is for a machine busy with other things
STOP_S = 20.0
LOOK_S = 0.2
HOST = "127.0.0.1"
MASTER = "local[2,1]"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
CONF = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": LIGHT_JAVA,
    "spark.connect.grpc.binding.address": HOST,
}


class ConnectServer:
    """Use it as a context manager: leaving it ends the server.

    `python` has the Spark of the server, and is the interpreter of its processes. They have `environment` and none of
    this process's variables of Pairbus. `port`: 0 is any that is free.
    """

    def __init__(
        self,
        folder: Path,
        *,
        environment: Mapping[str, str],
        python: str = sys.executable,
        port: int = 0,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.remote = ""
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self._environment = environment
        self._python = python
        self._port = port or _free_port()
        self._conf = LOCAL_CONF | CONF | dict(conf or {})

    def __enter__(self) -> ConnectServer:
        self.folder.mkdir(parents=True, exist_ok=True)
        port = self._port
        settings = self._conf | {
            "spark.connect.grpc.binding.port": str(port),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
        }
        given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        variables = self._variables()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [f"{variables['SPARK_HOME']}/bin/spark-submit", "--class", SERVER, "--master", MASTER, *given],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=variables,
            )
        try:
            self._wait_for(port)
        except BaseException:
            self.__exit__()
            raise
        self.remote = f"sc://{HOST}:{port}"
        return self

    def restart(self) -> None:
        """Kill the server, and start another at the same address."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.__enter__()

    def __exit__(self, *_: object) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def _log(self) -> Path:
        return self.folder / "connect-server.log"

    def log(self) -> str:
        """Return what the server has said."""
        return self._log.read_text(errors="replace")

    def _variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PAIRBUS_", "SPARK_"))}
        pythons = {"PYSPARK_PYTHON": self._python, "PYSPARK_DRIVER_PYTHON": self._python}
        return {**kept, **_homes(self._python), "SPARK_LOCAL_IP": HOST, **pythons, **self._environment}

    def _wait_for(self, port: int) -> None:
        deadline = time.monotonic() + START_S
        assert self.process is not None
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection((HOST, port), 1.0).close()
                return
            except OSError:
                time.sleep(LOOK_S)
        raise AssertionError(f"the Connect server did not start:\n{self.log()[-4000:]}")


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port: int = taken.getsockname()[1]
        return port


def _homes(python: str) -> dict[str, str]:
    """Return the folders of the pyspark of an interpreter, and of the Java that it finds."""
    ask = (
        "import json, os, pyspark; from pairbus.spark import find_java;"
        "print(json.dumps({'SPARK_HOME': os.path.dirname(pyspark.__file__), 'JAVA_HOME': str(find_java().home)}))"
    )
    asked = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    homes: dict[str, str] = json.loads(asked.stdout)
    return homes
