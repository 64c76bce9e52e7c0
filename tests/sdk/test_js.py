"""The genuine JavaScript SDK: one node process runs js/suite.mjs, and each of its cases is a test here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import ROOT_KEY_NAME, BrokerProcess

FOLDER = Path(__file__).parent / "js"
CASES = [
    name
    for file in ("messages.mjs", "settlement.mjs", "namespace.mjs", "topics.mjs", "sessions.mjs")
    for name in re.findall(r'^test\("([^"]+)"', (FOLDER / file).read_text(encoding="utf-8"), re.MULTILINE)
]
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
def js_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a second key that may only send."""
    keys = [
        {"Name": ROOT_KEY_NAME, "Key": "root-key", "Rights": ["Manage"]},
        {"Name": "sender", "Key": "sender-key", "Rights": ["Send"]},
    ]
    config = {"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [], "Keys": keys}]}}
    with BrokerProcess(tmp_path_factory.mktemp("js") / "data", namespaces=["contoso"], config=config) as process:
        yield process


@pytest.fixture(scope="module")
def results(installed: None, js_broker: BrokerProcess) -> dict[str, Any]:
    """The JSON line of each case, by name."""
    authority = f"127.0.0.1:{js_broker.ports['contoso']}"
    token = js_broker.token("", key="root-key", lives_s=-3600)
    given = {
        "connectionString": js_broker.connection_string(key_name=ROOT_KEY_NAME, key="root-key"),
        "sendOnly": js_broker.connection_string(key_name="sender", key="sender-key"),
        "wrongKey": js_broker.connection_string(key_name=ROOT_KEY_NAME, key="wrong"),
        "expired": f"Endpoint=sb://{authority};SharedAccessSignature={token};UseDevelopmentEmulator=true",
    }
    environment = {**os.environ, "PAIRBUS_JS": json.dumps(given), "NODE_EXTRA_CA_CERTS": str(js_broker.ca_file)}
    process = subprocess.Popen(
        ["node", "suite.mjs"],
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
    missing = set(CASES) - set(found)
    assert not missing, f"no result for {sorted(missing)}; node wrote on standard error:\n{stderr[-8000:]}"
    return found


@pytest.mark.parametrize("name", CASES)
def test_javascript_sdk(results: dict[str, Any], name: str) -> None:
    """One case of the suite."""
    assert results[name]["ok"], results[name]["error"]


def test_every_case_of_the_suite_is_collected(results: dict[str, Any]) -> None:
    """A case that the regular expression overlooks would run and never be judged."""
    assert sorted(results) == sorted(CASES)
    assert len(CASES) > 30
