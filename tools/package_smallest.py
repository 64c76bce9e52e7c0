"""Smallest real use of each extra, inside an empty environment that has the wheel with that extra alone.

python package_smallest.py EXTRA FOLDER      the connection string of a queue `orders` is in PAIRBUS_PRIMARY

Run by `package_test`, which copies this file away from the checkout. Prints one line, and fails with a traceback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pairbus
from pairbus.errors import ConfigError


def core(folder: Path) -> str:
    """Send by a paired client, and receive by the SDK behind it; the error for the broker names the missing extra."""
    from azure.servicebus import ServiceBusMessage

    primary = os.environ["PAIRBUS_PRIMARY"]
    client = pairbus.PairedServiceBusClient.from_connection_strings(primary, os.environ["PAIRBUS_SECONDARY"])
    with client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("from an empty environment"))
        with client.get_queue_receiver("orders", max_wait_time=10) as receiver:
            [message] = receiver.receive_messages(1)
            receiver.complete_message(message)
    text = b"".join(message.body).decode()
    demand(text == "from an empty environment", text)
    answer = _command("broker", "--namespace", "contoso=0", "--data", ":memory:")
    demand(answer.returncode != 0 and "pip install 'pairbus[broker]'" in answer.stderr, answer.stderr)
    return f"sent and received {text!r}; the broker asks for its extra"


def broker(folder: Path) -> str:
    """Start the broker of the extra with TLS, ask for its health, and stop it."""
    command = [_script(), "broker", "--namespace", "contoso=0", "--data", str(folder / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if lines[-1] == "ready":
                break
        [address] = [line.partition(" ")[2] for line in lines if line.startswith("contoso Endpoint=")]
        port = address.partition(";")[0].rstrip("/").rpartition(":")[2]
        health = _command("health", f"127.0.0.1:{port}")
        process.terminate()
    demand(health.returncode == 0, health.stdout + health.stderr)
    demand((folder / "data" / "ca.pem").exists(), "no certificate was made")
    return f"a broker ran with TLS: {health.stdout.strip()}"


def spark(folder: Path) -> str:
    """Write a stage and read it again; the error for pyspark, which a cluster brings, names it as missing."""
    from pairbus.spark import local_session
    from pairbus.spark.staging.stage_file import StageWriter, read_payloads
    from pairbus.spark.storage.folder import FolderStorage

    storage = FolderStorage(folder)
    stage = StageWriter(storage, "0000000001-0000-a.arrow")
    stage.add(b"a message", None)
    stage.finish()
    demand(list(read_payloads(storage, stage.name)) == [[b"a message"]], "another stage came back")
    demand(find_spec("pyspark") is None, "the extra must not bring a pyspark")
    return f"a stage was written and read; {_refusal(lambda: local_session('x'), 'pairbus[spark-local]')}"


def blob(folder: Path) -> str:
    """Open a container of an account that no server has: the package is there, and the error is of the network."""
    from pairbus.spark.storage.opening import open_storage

    os.environ["ACCOUNT"] = (
        "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=YQ==;BlobEndpoint=http://127.0.0.1:9/a;"
    )
    storage = open_storage("http://127.0.0.1:9/a/container/path", "env:ACCOUNT", patience_s=1.0)
    try:
        storage.put_new("key", b"1")
    except OSError as error:
        return f"the storage was asked for: {type(error).__name__}"
    raise AssertionError("nobody can have answered")


def spark_connect(folder: Path) -> str:
    """Import Spark's Connect client without any Java, and connect to a server that is not there."""
    from pyspark.sql.connect.session import SparkSession

    from pairbus.spark import remote_session

    demand(SparkSession.builder is not None, "no builder")
    return _refusal(lambda: remote_session("x", "sc://127.0.0.1:9"), "127.0.0.1:9")


def _refusal(call: Callable[[], object], text: str) -> str:
    try:
        call()
    except ConfigError as error:
        demand(text in str(error), str(error))
        return f"said: {error}"
    raise AssertionError("not refused")


def _script() -> str:
    return str(Path(sys.executable).with_name("pairbus"))


def _command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([_script(), *words], capture_output=True, text=True, timeout=60, check=False)


def demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


WORK = {"core": core, "broker": broker, "spark": spark, "blob": blob, "spark-connect": spark_connect}


def main() -> None:
    name, folder = sys.argv[1:]
    Path(folder).mkdir()
    print(json.dumps({"said": WORK[name](Path(folder)), "pairbus": pairbus.__file__}))


if __name__ == "__main__":
    main()
