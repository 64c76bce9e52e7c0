"""The programs of docs/integrations.md run for real: their frameworks, real sockets, and an outage in the middle."""

from __future__ import annotations

import importlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.testing import ServiceBusPair
from tests.pages import blocks_of
from tests.test_deploy import variables_of_the_broker

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "integrations"
WAIT_S = 60.0


def needed(module: str) -> Any:
    """Import a framework, or skip the test where it is not installed."""
    return pytest.importorskip(module, reason=f"{module} is not installed: pip install 'pairbus[integrations]'")


@pytest.fixture
def pair(servicebus_pair: ServiceBusPair, monkeypatch: pytest.MonkeyPatch) -> ServiceBusPair:
    """Two namespaces whose connection strings are where the programs look for them; the primary has their queues."""
    for name in ("orders", "tasks"):
        servicebus_pair.primary.create_queue(name)
    monkeypatch.setenv("PAIRBUS_PRIMARY", servicebus_pair.primary.connection_string)
    monkeypatch.setenv("PAIRBUS_SECONDARY", servicebus_pair.secondary.connection_string)
    return servicebus_pair


@contextmanager
def loaded(name: str) -> Iterator[ModuleType]:
    """A program of the folder, imported under its own name, and forgotten afterwards."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop(name, None)


def until(happened: Any, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline, f"{what}: not within {WAIT_S} s"
        time.sleep(0.05)


def brought_home(pair: ServiceBusPair, queue: str, bodies: list[str]) -> None:
    """Run a syphon until the primary has every message, each of them once."""
    with pair.client(enable_syphon=True):
        until(lambda: len(pair.primary.sent(queue)) >= len(bodies), f"{len(bodies)} messages in {queue}")
    assert sorted(str(message) for message in pair.primary.sent(queue)) == sorted(bodies)


def post(url: str, body: str) -> tuple[int, str]:
    with urllib.request.urlopen(urllib.request.Request(url, body.encode(), method="POST"), timeout=WAIT_S) as answer:
        return answer.status, answer.read().decode()


@pytest.mark.slow
@pytest.mark.deep
def test_fastapi_answers_every_request_during_an_outage(pair: ServiceBusPair) -> None:
    """Under a real uvicorn, with requests at the same time before, in and after the outage."""
    needed("fastapi")
    uvicorn = needed("uvicorn")
    bodies = [f"order {number}" for number in range(30)]
    with loaded("fastapi_app") as program, ThreadPoolExecutor(5) as callers:
        server = uvicorn.Server(uvicorn.Config(program.app, port=0, log_level="warning"))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            until(lambda: server.started, "uvicorn listens")
            url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/orders"
            answers = list(callers.map(lambda body: post(url, body), bodies[:10]))
            until(lambda: sorted(program.shipped) == sorted(bodies[:10]), "the orders are handled")
            with pair.primary.outage("refuse"):
                answers += callers.map(lambda body: post(url, body), bodies[10:20])
            answers += callers.map(lambda body: post(url, body), bodies[20:])
        finally:
            server.should_exit = True
            thread.join(WAIT_S)
    assert answers == [(202, '{"order":"stored"}')] * 30
    brought_home(pair, "orders", bodies)


@contextmanager
def started(program: str) -> Iterator[subprocess.Popen[str]]:
    """A program of the folder in a process of its own, whose output can be read."""
    process = subprocess.Popen([sys.executable, program], cwd=FOLDER, stdout=subprocess.PIPE, text=True)
    late = threading.Timer(WAIT_S, process.kill)
    late.start()
    try:
        yield process
    finally:
        late.cancel()
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.deep
def test_asyncio_service_handles_orders_until_it_is_told_to_stop(pair: ServiceBusPair) -> None:
    """SIGTERM ends it in order, and an outage in the middle does not."""
    with pair.client(failover_interval=0) as client, started("asyncio_service.py") as service:
        assert service.stdout is not None
        sender = client.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("a book"))
        assert service.stdout.readline() == "shipped a book\n"
        with pair.primary.outage("refuse"):
            time.sleep(0.2)  # too short a wait could only miss a failure
            assert service.poll() is None
        with pair.client() as other:
            other.get_queue_sender("orders").send_messages(ServiceBusMessage("a lamp"))
        assert service.stdout.readline() == "shipped a lamp\n"
        service.send_signal(signal.SIGTERM)
        assert service.wait(WAIT_S) == 0


@pytest.mark.slow
@pytest.mark.deep
def test_orders_become_celery_tasks_beside_the_worker(pair: ServiceBusPair) -> None:
    needed("celery")
    with pair.client() as client, started("celery_orders.py") as beside:
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("a book"))
        until(lambda: pair.primary.sent("tasks"), "the task is published")
        beside.send_signal(signal.SIGTERM)
        assert beside.wait(WAIT_S) == 0


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.skipif(sys.platform == "win32", reason="gunicorn forks")
def test_gunicorn_workers_send_with_a_client_made_before_the_fork(pair: ServiceBusPair) -> None:
    """Two real workers of a preloaded application; both of them divert."""
    needed("gunicorn")
    words = ["--preload", "--workers", "2", "--bind", "127.0.0.1:0", "--chdir", str(FOLDER)]
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *words, "gunicorn_app:application"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    bodies: list[str] = []
    seen: set[str] = set()
    try:
        found = next(found for line in process.stderr if (found := re.search(r"Listening at: (http://\S+)", line)))
        rest = threading.Thread(target=process.stderr.read, daemon=True)
        rest.start()
        for trouble in (False, True):
            seen.clear()
            outage = pair.primary.outage("refuse") if trouble else None
            while len(seen) < 2 and len(bodies) < 400:
                more = [f"order {len(bodies) + number}" for number in range(4)]
                bodies += more
                with ThreadPoolExecutor(4) as callers:
                    answers = list(callers.map(lambda body: post(found[1], body), more))
                assert {status for status, _ in answers} == {202}
                seen |= {text for _, text in answers}
            assert len(seen) == 2, "each of the two workers has answered"
            if outage is not None:
                outage.end()
    finally:
        process.terminate()
        assert process.wait(WAIT_S) == 0
    rest.join(WAIT_S)
    process.stderr.close()
    brought_home(pair, "orders", bodies)


@pytest.mark.slow
@pytest.mark.deep
def test_celery_task_that_is_published_during_an_outage_is_carried_out(pair: ServiceBusPair) -> None:
    """Published by kombu's channel through the pair, and received by a real worker when it is home."""
    needed("celery")
    with loaded("celery_app") as program, program.client:
        program.ship.delay("a book")
        with pair.primary.outage("refuse"):
            program.ship.delay("a lamp")
        assert len(pair.primary.sent("tasks")) == 1
    with pair.client(enable_syphon=True):
        until(lambda: len(pair.primary.sent("tasks")) == 2, "the second task is home")
    words = re.findall(r"^celery --app celery_app (worker .*)$", str(program.__doc__), re.MULTILINE)[0].split()
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "--app", "celery_app", *words, "--loglevel", "INFO"],
        cwd=FOLDER,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    late = threading.Timer(WAIT_S, worker.kill)
    late.start()
    done: list[str] = []
    assert worker.stdout is not None
    try:
        for line in worker.stdout:
            done += re.findall(r"succeeded in .*: '(shipped .*)'", line)
            if len(done) == 2:
                break
    finally:
        worker.kill()
        worker.communicate()
        late.cancel()
    assert sorted(done) == ["shipped a book", "shipped a lamp"]


@pytest.mark.slow
@pytest.mark.deep
async def test_faststream_handler_sends_during_an_outage(pair: ServiceBusPair) -> None:
    """FastStream's own test broker stands for NATS; the sends are real."""
    needed("nats")
    faststream, of_nats = needed("faststream"), needed("faststream.nats")
    with loaded("faststream_app") as program:
        async with of_nats.TestNatsBroker(program.broker) as nats, faststream.TestApp(program.app):
            await nats.publish("a book", "orders")
            with pair.primary.outage("refuse"):
                await nats.publish("a lamp", "orders")
    assert [str(message) for message in pair.primary.sent("orders")] == ["a book"]
    brought_home(pair, "orders", ["a book", "a lamp"])


@pytest.mark.slow
@pytest.mark.deep
def test_pytest_example_passes(servicebus_pair: ServiceBusPair, outage: Any) -> None:
    """The fixtures are those of the plugin that pytest has loaded."""
    with loaded("test_orders") as program:
        program.test_order_is_stored_during_an_outage(servicebus_pair, outage)


def workflow() -> list[dict[str, Any]]:
    [job] = needed("yaml").safe_load((FOLDER / "github-actions.yml").read_text())["jobs"].values()
    steps: list[dict[str, Any]] = job["steps"]
    return steps


@pytest.mark.slow
@pytest.mark.deep
def test_workflow_starts_a_pair_of_namespaces(tmp_path: Path) -> None:
    """The step of the workflow as it stands, with other ports."""
    [script] = [step["run"] for step in workflow() if "pairbus broker" in step.get("run", "")]
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        for port, taken in (("5672", one), ("5673", other)):
            script = script.replace(port, str(taken.getsockname()[1]))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.Popen(
        ["bash", "-e", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, start_new_session=True
    )
    try:
        assert process.wait(WAIT_S) == 0, "the namespaces are healthy"
        assert "contoso Endpoint=sb://" in (tmp_path / "broker.txt").read_text()
    finally:
        os.killpg(process.pid, signal.SIGTERM)


def test_compose_file_gives_the_application_both_namespaces() -> None:
    """No container is started here: the file is read, and its variables are those of the broker."""
    services = needed("yaml").safe_load((FOLDER / "compose.yaml").read_text())["services"]
    assert set(services["servicebus"]["environment"]) <= variables_of_the_broker()
    ports = re.findall(r"=(\d+)", services["servicebus"]["environment"]["PAIRBUS_NAMESPACES"])
    given = services["app"]["environment"]
    assert [re.findall(r"servicebus:(\d+);", given[name]) for name in ("PAIRBUS_PRIMARY", "PAIRBUS_SECONDARY")] == [
        [port] for port in ports
    ]


def test_page_shows_the_programs_as_they_are() -> None:
    """A text that stands in two places differs within a month."""
    shown = [block.text for block in blocks_of("test_page_shows_the_programs_as_they_are")]
    files = [path for path in FOLDER.iterdir() if path.suffix in (".py", ".yml", ".yaml")]
    assert sorted(shown) == sorted(path.read_text() for path in files)
