"""Every version of azure-servicebus for Python that applications have, each in an environment of its own.

The environments are made once, below .venv/sdk-versions, from the package index that pip is set up for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import BrokerProcess
from tests.limits import slowness

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / ".venv" / "sdk-versions"
PROGRAM = Path(__file__).parent / "program.py"
HOST = f"127.56.71.{os.getpid() % 250 + 1}" if sys.platform == "linux" else "127.0.0.1"
"A loopback address that no other test uses: old versions dial port 5671 and no other."
INSTALL_S = 300
RUN_S = 120
STEPS = [
    "administration",
    "send",
    "batch",
    "receive",
    "complete",
    "abandon and defer",
    "dead letter",
    "schedule",
    "session",
    "topic",
    "deleted",
]
ON_UAMQP = ["7.0.1", "7.6.1", "7.8.3"]
"Versions on a library in C, whose last release has no wheel for later versions of Python than 3.12."
VERSIONS = [*ON_UAMQP, "7.11.4", "7.12.3", "7.13.0", "7.14.3", "7.15.0"]
KNOW_THE_EMULATOR = ["7.14.3", "7.15.0"]

pytestmark = pytest.mark.slow


def interpreter(version: str) -> Path:
    """Return the interpreter of an environment with this version, which is made when there is none."""
    folder = FOLDER / version
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if not complete.exists():
        venv.create(folder, clear=True)
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        command += ["--disable-pip-version-check", f"azure-servicebus=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        assert done.returncode == 0, f"azure-servicebus {version} cannot be installed:\n{done.stdout}\n{done.stderr}"
        complete.touch()
    return python


def run(version: str, broker: BrokerProcess, connection: str, administration: str) -> None:
    """Run the program with this version and expect all its steps."""
    given = {"connection": connection, "administration": administration, "ca_file": str(broker.ca_file)}
    trust = {"REQUESTS_CA_BUNDLE": str(broker.ca_file), "SSL_CERT_FILE": str(broker.ca_file)}
    done = subprocess.run(
        [interpreter(version), PROGRAM, json.dumps(given)],
        env={**os.environ, **trust},
        capture_output=True,
        text=True,
        timeout=RUN_S * slowness(),
        check=False,
    )
    assert done.returncode == 0, f"{version} failed after {done.stdout.split()[-1:]}:\n{done.stderr[-4000:]}"
    steps = [line for line in done.stdout.splitlines() if line in STEPS]
    assert steps == STEPS


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("versions")
    with BrokerProcess(folder / "data", namespaces=["contoso"], options=["--host", HOST]) as process:
        yield process


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that can also be reached on 5671, the port of AMQP over TLS."""
    options = ["--host", HOST, "--listen-tls", "5671"]
    with BrokerProcess(tmp_path_factory.mktemp("tls") / "data", namespaces=["contoso"], options=options) as process:
        yield process


def test_version_that_reads_fields_by_position_does_everything(broker: BrokerProcess) -> None:
    """7.11 to 7.14 need whole performatives; the string of the emulator is known from 7.14 on."""
    run("7.14.3", broker, broker.connection_string(), broker.connection_string())


@pytest.mark.deep
@pytest.mark.parametrize("version", KNOW_THE_EMULATOR)
def test_version_that_knows_the_emulator_does_everything(broker: BrokerProcess, version: str) -> None:
    """On the port of the connection string, without TLS."""
    run(version, broker, broker.connection_string(), broker.connection_string())


@pytest.mark.deep
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_does_everything_over_tls(tls_broker: BrokerProcess, version: str) -> None:
    """On port 5671, which older versions dial whatever the connection string says."""
    if version in ON_UAMQP and sys.version_info >= (3, 13):
        pytest.skip("uamqp has no wheel for this Python")
    key = tls_broker.connection_string().partition(";")[2].replace(";UseDevelopmentEmulator=true", "")
    run(version, tls_broker, f"Endpoint=sb://{HOST}/;{key}", f"Endpoint=sb://{HOST}:5671/;{key}")
