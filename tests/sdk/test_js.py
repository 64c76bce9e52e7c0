"""The genuine JavaScript SDK: a node process runs js/suite.mjs, and each of its cases is a test here.

A second one runs the cases of settlements, sessions, topics and rules on a strict broker at the same time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import ROOT_KEY_NAME, BrokerProcess

FOLDER = Path(__file__).parent / "js"


def cases_of(*files: str) -> list[str]:
    texts = [(FOLDER / f"{file}.mjs").read_text(encoding="utf-8") for file in files]
    return [name for text in texts for name in re.findall(r'^test\("([^"]+)"', text, re.MULTILINE)]


STRICT_CASES = cases_of("settlement", "sessions", "topics")
CASES = cases_of("messages", "namespace") + STRICT_CASES
INSTALL_S = 300
SUITE_S = 300
MISSING = [tool for tool in ("node", "npm") if shutil.which(tool) is None]

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(bool(MISSING), reason=f"the JavaScript SDK is not tested: {' and '.join(MISSING)} not found"),
]


@pytest.fixture(scope="module")
def installed() -> None:
    """The packages of package.json in js/node_modules; there is no lock file, because it would name a registry."""
    wanted = json.loads((FOLDER / "package.json").read_text())["dependencies"]
    if all(_installed_version(name) == version for name, version in wanted.items()):
        return
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, f"npm install failed:\n{done.stdout}\n{done.stderr}"


def _installed_version(name: str) -> str | None:
    file = FOLDER / "node_modules" / name / "package.json"
    return str(json.loads(file.read_text())["version"]) if file.exists() else None


@pytest.fixture(scope="module")
def js_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """A broker with a second key that may only send, and one more that is strict."""
    keys = [
        {"Name": ROOT_KEY_NAME, "Key": "root-key", "Rights": ["Manage"]},
        {"Name": "sender", "Key": "sender-key", "Rights": ["Send"]},
    ]
    config = {"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [], "Keys": keys}]}}
    folder = tmp_path_factory.mktemp("js")
    with (
        BrokerProcess(folder / "data", namespaces=["contoso"], config=config) as lenient,
        BrokerProcess(folder / "strict", namespaces=["contoso"], config=config, strict=True) as strict,
    ):
        yield lenient, strict


Results = dict[str, Any]
"The JSON line of each case, by name."


@pytest.fixture(scope="module")
def all_results(installed: None, js_brokers: tuple[BrokerProcess, BrokerProcess]) -> tuple[Results, Results]:
    """Run both suites, on a lenient and on a strict broker, side by side, because both mostly wait."""
    with ThreadPoolExecutor(2) as threads:
        lenient, strict = threads.map(run_suite, js_brokers, ([], STRICT_CASES))
    return lenient, strict


def run_suite(broker: BrokerProcess, only: list[str]) -> Results:
    """Run the cases, all unless some are named."""
    authority = f"127.0.0.1:{broker.ports['contoso']}"
    token = broker.token("", key="root-key", lives_s=-3600)
    given = {
        "connectionString": broker.connection_string(key_name=ROOT_KEY_NAME, key="root-key"),
        "sendOnly": broker.connection_string(key_name="sender", key="sender-key"),
        "wrongKey": broker.connection_string(key_name=ROOT_KEY_NAME, key="wrong"),
        "expired": f"Endpoint=sb://{authority};SharedAccessSignature={token};UseDevelopmentEmulator=true",
    }
    environment = {**os.environ, "PAIRBUS_JS": json.dumps(given), "NODE_EXTRA_CA_CERTS": str(broker.ca_file)}
    process = subprocess.Popen(
        ["node", "suite.mjs", *only],
        cwd=FOLDER,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=SUITE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
    found = {line["name"]: line for line in map(json.loads, stdout.splitlines())}
    missing = set(only or CASES) - set(found)
    assert not missing, f"no result for {sorted(missing)}; node wrote on standard error:\n{stderr[-8000:]}"
    return found


@pytest.mark.parametrize("name", CASES)
def test_javascript_sdk(all_results: tuple[Results, Results], name: str) -> None:
    """One case of the suite."""
    result = all_results[0][name]
    assert result["ok"], result["error"]


@pytest.mark.parametrize("name", STRICT_CASES)
def test_javascript_sdk_on_a_strict_broker(all_results: tuple[Results, Results], name: str) -> None:
    """Late credit, bare refusals, single answers and tracked errors change nothing for the application."""
    result = all_results[1][name]
    assert result["ok"], result["error"]


def test_every_case_of_the_suite_is_collected(all_results: tuple[Results, Results]) -> None:
    """A case that the regular expression overlooks would run and never be judged."""
    assert sorted(all_results[0]) == sorted(CASES)
    assert len(CASES) > 30
