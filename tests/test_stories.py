"""Pages that tell a reader what to type: their lines are typed as they stand, against real brokers."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus.auth.sas import sign
from pairbus.spool import Spool
from tests.pages import ROOT, taking
from tests.spool.entries import entries
from tests.terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.deep]

BROKER = "pairbus broker --namespace contoso=5672 --namespace fabrikam=5673"


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal() as terminal:
        yield terminal


@pytest.fixture(scope="module")
def served() -> Iterator[Terminal]:
    """A terminal with a broker of two namespaces, whose connection strings are in contoso.txt and fabrikam.txt."""
    with Terminal() as terminal:
        terminal.broker(BROKER)
        yield terminal


def shown_counts(shown: str) -> list[str]:
    """Return the number of active messages in each output of `pairbus queue show`."""
    return re.findall(r"^active\t(\d+)$", shown, re.MULTILINE)


def test_quickstart_survives_two_kills(terminal: Terminal) -> None:
    """The whole page but its demo and its last program, with the kills that its text asks for."""
    with taking("test_quickstart_survives_two_kills") as take:
        contoso, fabrikam = take(".venv/bin/pairbus broker").splitlines()
        running = terminal.broker(contoso)
        terminal.broker(fabrikam)
        assert running.lines == terminal.with_replacements(take("contoso Endpoint")).splitlines()
        terminal.typed(take("export PAIRBUS_CONNECTION_STRING"))
        (terminal.folder / "send_and_receive.py").write_text(
            take("import os\nfrom azure.servicebus import ServiceBusC")
        )
        assert terminal.typed("python send_and_receive.py") == "1 order 0\n2 order 1\n"
        running.kill()
        running = terminal.broker(contoso)
        assert shown_counts(terminal.typed(take(".venv/bin/pairbus queue show orders\n"))) == ["1"]
        terminal.typed(take("export PAIRBUS_PRIMARY"))
        (terminal.folder / "send.py").write_text(take("import os\nfrom azure.servicebus import ServiceBusMessage"))
        assert "<PairedSender orders HEALTHY for " in terminal.typed("python send.py")
        running.kill()
        assert "<PairedSender orders FAILED_OVER backlog=10/10 diverted=1 for " in terminal.typed("python send.py")
        running = terminal.broker(contoso)
        told = terminal.typed(take(".venv/bin/pairbus queue list"))
        assert "moved 1 message" in told and "/x-servicebus-transfer/9" in told and shown_counts(told) == ["3"]
        running.kill()
        terminal.replaced["192.0.2.10"] = "127.0.0.1"
        terminal.broker(take("PAIRBUS_KEY="))


def test_broker_page_is_what_a_broker_does(terminal: Terminal) -> None:
    """A broker prints the first lines, makes the entities, and has the files of the list while it runs."""
    with taking("test_broker_page_is_what_a_broker_does") as take:
        running = terminal.broker(take("pairbus broker"))
        assert running.lines == terminal.with_replacements(take("contoso Endpoint")).splitlines()
        terminal.replaced["'Endpoint=sb://127.0.0.1:5672;…'"] = "@contoso.txt"
        told = terminal.typed(take("export PAIRBUS_CONNECTION_STRING"))
        assert len(told.splitlines()) == 5, "a line for each entity or rule"
        folder = terminal.folder / "pairbus-data"
        there = {re.sub("^(contoso|fabrikam)/", "NAMESPACE/", str(path.relative_to(folder))) for path in files(folder)}
        assert {f"DIR/{path}" for path in there} == {
            name for line in take("DIR/ca.pem").splitlines() for name in named_files(line)
        }


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir()]


def named_files(line: str) -> Iterator[str]:
    """Expand `DIR/a.pem, b.pem` and `DIR/a.db (-wal, -shm)` in the first column of a list of files."""
    first, *more = re.findall(r"[\w./-]+", line[:38])
    yield first
    yield from (first + name if name.startswith("-") else f"{first.rpartition('/')[0]}/{name}" for name in more)


def test_messages_are_handled_as_on_the_page(served: Terminal) -> None:
    """The page begins with a line for each verb."""
    with taking("test_messages_are_handled_as_on_the_page") as take:
        told = served.typed(take("export PAIRBUS_CONNECTION_STRING=@contoso.txt"))
    for verb in (
        "created orders",
        "sent 1 message",
        '"amount": {"type": "int"',
        "exported 1 message",
        "moved 1 message",
    ):
        assert verb in told, told


def test_page_and_its_requests_are_served(terminal: Terminal) -> None:
    """The dashboard beside a broker, and both requests of the page to the broker itself."""
    with taking("test_page_and_its_requests_are_served") as take:
        broker, dashboard = take("pairbus broker").splitlines()
        terminal.broker(broker)
        address = terminal.started(f"{dashboard} --port 0", "^page: ").lines[0].removeprefix("page: ")
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert answer.status == 200
        overview, fault = (json.loads(terminal.typed(line)) for line in take("curl -s").splitlines())
    assert overview["namespaces"]["contoso"]["reachable"] and fault["kind"] == "throttle"


def test_faults_come_and_go(served: Terminal, terminal: Terminal) -> None:
    """The first lines of the page, a broker that throttles by load, the proxy, and a request to the control socket."""
    with taking("test_faults_come_and_go") as take:
        terminal.broker(take("pairbus broker"))
        given = "export PAIRBUS_CONNECTION_STRING=@contoso.txt\n"
        told = served.typed(given + take("pairbus fault add throttle --entity"))
        assert "throttle\torders\tsend" in told and told.endswith("1 cleared\n")
        proxy, fault = take("pairbus proxy").splitlines()
        served.started(proxy, "^ready$")
        assert served.typed(fault) == "1\n"
        assert json.loads(served.typed(take("curl")))["kind"] == "stall"
        served.typed("pairbus fault clear --control pairbus-data --namespace contoso")


def test_prices_are_estimated(served: Terminal) -> None:
    """A sheet that comes with Pairbus stands for the reader's contract."""
    with taking("test_prices_are_estimated") as take:
        shutil.copy(ROOT / "src/pairbus/ledger/price_sheets/premium.toml", served.folder / "contract.toml")
        assert "entities 50, clients 100, messages a second 200" in served.typed(take("pairbus estimate --entities"))
        assert "Prices: premium" in served.typed(take("pairbus estimate --prices"))


def test_spool_of_a_dead_client_is_drained(served: Terminal, tmp_path: Path) -> None:
    """Three messages are listed, and reach the primary."""
    spool = Spool(tmp_path / "spool")
    spool.append(entries(range(3), "spooled"))
    spool.close()
    served.typed("pairbus queue create spooled --connection-string @contoso.txt")
    served.replaced |= {
        "/var/spool/orders": str(tmp_path / "spool"),
        "@primary.cs": "@contoso.txt",
        "@secondary.cs": "@fabrikam.txt",
    }
    with taking("test_spool_of_a_dead_client_is_drained") as take:
        told = served.typed(take("pairbus spool list"))
    assert "\tspooled\t3\t" in told and told.endswith("forwarded 3 messages\n")


def test_namespace_is_reset(served: Terminal) -> None:
    """First the messages go, then the entities."""
    fabrikam = "PAIRBUS_CONNECTION_STRING=@fabrikam.txt pairbus"
    served.typed(f"{fabrikam} queue create orders")
    with taking("test_namespace_is_reset") as take:
        keeping, deleting = take("pairbus namespace reset").replace("pairbus", fabrikam).splitlines()
    assert "orders" in served.typed(f"{keeping}\n{fabrikam} queue list")
    assert "orders" not in served.typed(f"{deleting}\n{fabrikam} queue list")


def test_prometheus_finds_what_it_is_told_to_scrape(served: Terminal) -> None:
    """The two targets answer at the path and with the header that a Prometheus server would make of the file."""
    yaml = pytest.importorskip("yaml", reason="yaml is not installed: pip install 'pairbus[integrations]'")
    parts = dict(part.split("=", 1) for part in (served.folder / "contoso.txt").read_text().split(";"))
    token = sign(parts["Endpoint"], parts["SharedAccessKeyName"], parts["SharedAccessKey"], int(time.time()) + 600)
    (served.folder / "token-without-its-first-word").write_text(token.partition(" ")[2])
    served.replaced["broker.example"] = "127.0.0.1"
    with taking("test_prometheus_finds_what_it_is_told_to_scrape") as take:
        jobs = yaml.safe_load(served.with_replacements(take("scrape_configs")))["scrape_configs"]
    for job in jobs:
        [target] = job["static_configs"][0]["targets"]
        request = urllib.request.Request(f"http://{target}{job.get('metrics_path', '/metrics')}")
        if authorization := job.get("authorization"):
            credentials = (served.folder / authorization["credentials_file"]).read_text()
            request.add_header("Authorization", f"{authorization['type']} {credentials}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert b"pairbus_" in answer.read()
    assert len(jobs) == 2


@pytest.mark.skipif(shutil.which("git") is None, reason="the exercise of CONTRIBUTING.md is not tested: git not found")
def test_first_change_fails_and_passes_as_told(tmp_path: Path) -> None:
    """The exercise of CONTRIBUTING.md in a copy of the files that it needs, as a repository of its own."""
    copy = tmp_path / "reader"
    for folder in ("src", "tests/pairing", "tests/azure"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("__init__.py", "conftest.py", "balance.py", "brokers.py", "failures.py"):
        shutil.copy(ROOT / "tests" / name, copy / "tests" / name)
    for name in ("pyproject.toml", "CONTRIBUTING.md", ".gitignore"):
        shutil.copy(ROOT / name, copy / name)
    me = {f"GIT_{who}_{what}": "reader@example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    with (
        Terminal(copy, PYTHONPATH=str(copy / "src"), **me) as terminal,
        taking("test_first_change_fails_and_passes_as_told") as take,
    ):
        terminal.typed("git init --quiet && git add . && git commit --quiet --message all")
        found, told = terminal.typed(begin := take("git switch")), begin.rpartition("# ")[2]
        places = {line.partition(":")[0] for line in found.splitlines()}
        assert told == "src/pairbus/pairing/options.py, tests/pairing/test_options.py, and this page\n"
        assert places == {"CONTRIBUTING.md", "src/pairbus/pairing/options.py", "tests/pairing/test_options.py"}
        changed(copy, take("--- a/tests"))
        assert "20 failed, " in terminal.typed(take(".venv/bin/pytest tests/pairing/test_options.py     # 20"), code=1)
        changed(copy, take("--- a/src"))
        terminal.typed(take(".venv/bin/pytest tests/pairing/test_options.py\n"))
        terminal.typed(take("make check"))


def changed(folder: Path, diff: str) -> None:
    """Replace the one line that is marked with `-` by the one that is marked with `+`."""
    header, old, new = diff.splitlines()
    path = folder / header.removeprefix("--- a/")
    source = path.read_text()
    assert source.count(f"{old[1:]}\n") == 1, header
    path.write_text(source.replace(old[1:], new[1:]))
