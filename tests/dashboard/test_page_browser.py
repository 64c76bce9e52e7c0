"""The page in a browser: every verb by its buttons, and the broker asked afterwards whether it happened."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import CorrelationRuleFilter

from pairbus import PairedServiceBusClient
from tests.brokers import BrokerProcess
from tests.report.chromium import Tab, browser

pytestmark = pytest.mark.slow

PATIENCE_S = 30.0
LOOKS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"

# Elements that leave the window; tables scroll inside of their own frame.
OVERFLOWING = """
[...document.querySelectorAll('body *')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width && box.right > innerWidth + 1 && !e.closest('.scroll, .tabs, .unseen, .skip');
}).map(e => `${e.tagName}.${e.className} ${e.textContent.slice(0, 40)}`)
"""


# On the overview and among the tabs nothing is to be scrolled sideways, and the cells of key figures fill their rows.
CUT = """
[...document.querySelectorAll('.tabs, .cards, .tiles')].filter(e => {
  const last = e.classList.contains('tiles') ? e.lastElementChild.getBoundingClientRect().right : null;
  return e.scrollWidth > e.clientWidth + 1 || (last && last < e.getBoundingClientRect().right - 3);
}).map(e => `${e.className} ${e.textContent.slice(0, 40)}`)
"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("page")
    with BrokerProcess(folder / "data", options=("--meter", str(folder / "meter"))) as process:
        yield process


def visit(tab: Tab, url: str, *, width: int = 1280, colours: str = "light") -> None:
    """Open an address as if in a new tab."""
    tab.call("Page.navigate", url="about:blank")
    tab.complaints, tab.requests = [], []
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
    tab.call("Page.navigate", url=url)
    until(tab, "document.querySelector('main h1, main form') !== null")


def until(tab: Tab, expression: str) -> Any:
    """Wait until the expression is true in the page."""
    give_up_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_s:
        found = tab.ask(f"(() => {{ try {{ return {expression}; }} catch {{ return null; }} }})()")
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {expression}; the page says: {tab.ask('document.body.innerText')[:1500]}")


def click(tab: Tab, selector: str) -> None:
    until(tab, f"document.querySelector({json.dumps(selector)}) !== null")
    tab.ask(f"document.querySelector({json.dumps(selector)}).click()")


def write(tab: Tab, selector: str, text: str) -> None:
    tab.ask(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")


def page_of(broker: BrokerProcess, hash_: str = "") -> str:
    return f"http://127.0.0.1:{broker.ports['contoso']}/{hash_}"


def counts(broker: BrokerProcess, queue: str) -> tuple[int, int]:
    with broker.admin() as admin:
        found = admin.get_queue_runtime_properties(queue)
    return found.active_message_count or 0, found.dead_letter_message_count or 0


def until_counts(broker: BrokerProcess, queue: str, expected: tuple[int, int]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while counts(broker, queue) != expected:
        assert time.monotonic() < give_up_s, f"{queue} has {counts(broker, queue)}, not {expected}"
        time.sleep(0.1)


def messaging(broker: BrokerProcess) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(broker.connection_string())


def fill(broker: BrokerProcess, queue: str, bodies: list[str], **settings: Any) -> None:
    with broker.admin() as admin:
        admin.create_queue(queue, **settings)
    with messaging(broker) as client, client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(body, message_id=body[-9:]) for body in bodies])


def bodies(broker: BrokerProcess, queue: str) -> list[str]:
    with messaging(broker) as client, client.get_queue_receiver(queue) as receiver:
        return sorted(str(message) for message in receiver.peek_messages(100))


def test_browse_search_edit_and_send_again(tab: Tab, broker: BrokerProcess) -> None:
    fill(broker, "edited", [f"body {number}" for number in range(60)])
    visit(tab, page_of(broker, "#/entity/contoso/edited"))
    until(tab, "document.querySelectorAll('tbody tr').length === 50")
    click(tab, "[data-action=next]")
    until(tab, "document.querySelectorAll('tbody tr').length === 10")
    write(tab, "#search", "body 42")
    tab.ask("document.querySelector('#browse').requestSubmit()")
    until(tab, "document.querySelector('a[data-number]')?.textContent === '43'")
    click(tab, "a[data-number='43']")
    click(tab, "dialog [data-action=edit]")
    write(tab, "#send-form textarea[name=body]", "better")
    click(tab, "#send-form [data-action=submit]")
    until(tab, "document.querySelector('dialog') === null")
    assert counts(broker, "edited") == (60, 0)
    assert "better" in bodies(broker, "edited") and "body 42" not in bodies(broker, "edited")
    assert tab.complaints == []


@pytest.mark.parametrize("action", ["purge", "export"])
def test_verb_on_page_two_takes_page_one_too(tab: Tab, broker: BrokerProcess, tmp_path: Path, action: str) -> None:
    """The dialog names the count of all; the export before a purge has the messages of the first page."""
    name = f"two-pages-{action}"
    fill(broker, name, [f"body {number}" for number in range(60)])
    visit(tab, page_of(broker, f"#/entity/contoso/{name}"))
    click(tab, "[data-action=next]")
    until(tab, "document.querySelectorAll('tbody tr').length === 10")
    click(tab, f"[data-action={action}]")
    if action == "export":
        assert f"60 messages exported to {name}.jsonl" in until(tab, "document.querySelector('#toast')?.textContent")
        return
    words = until(tab, "document.querySelector('dialog')?.textContent")
    assert f"Delete 60 messages of queue {name} in contoso? They are all that are there, on all pages" in words
    click(tab, "dialog button.danger")
    until_counts(broker, name, (0, 0))
    assert until(tab, "document.querySelector('.job.done')?.textContent").count("60 messages")


def test_pages_and_messages_have_addresses(tab: Tab, broker: BrokerProcess) -> None:
    """Back closes a message and returns to the page before; an address opens what it names."""
    fill(broker, "addressed", ['{"order": 1, "lines": []}'] * 60)
    visit(tab, page_of(broker, "#/entity/contoso/addressed"))
    click(tab, "[data-action=next]")
    until(tab, "document.querySelectorAll('tbody tr').length === 10")
    click(tab, "a[data-number='55']")
    until(tab, "document.querySelector('dialog pre')?.textContent === '{\\n  \"order\": 1,\\n  \"lines\": []\\n}'")
    address = tab.ask("location.href")
    tab.ask("history.back()")
    until(tab, "document.querySelector('dialog') === null && document.querySelectorAll('tbody tr').length === 10")
    tab.ask("history.back()")
    until(tab, "document.querySelectorAll('tbody tr').length === 50")
    visit(tab, address)
    until(tab, "document.querySelector('dialog h2')?.textContent === 'Message 55'")
    click(tab, "dialog [data-action=close]")
    until(tab, "document.querySelector('dialog') === null && location.hash.endsWith('?from=51')")
    assert tab.complaints == []


def test_queue_is_created_changed_and_deleted(tab: Tab, broker: BrokerProcess) -> None:
    visit(tab, page_of(broker))
    click(tab, "[data-action=new-entity]")
    until(tab, "document.querySelector('#entity-form') !== null")
    write(tab, "#entity-form input[name=path]", "by-hand")
    write(tab, "#entity-form input[name=lock_duration]", "45s")
    click(tab, "#entity-form [data-action=submit]")
    until(tab, "document.querySelector('main h1')?.textContent === 'by-hand'")
    click(tab, "[data-action=settings]")
    until(tab, "document.querySelector('#entity-form input[name=lock_duration]').value === '45s'")
    write(tab, "#entity-form input[name=max_delivery_count]", "3")
    click(tab, "#entity-form [data-action=submit]")
    until(tab, "document.querySelector('dialog') === null")
    with broker.admin() as admin:
        found = admin.get_queue("by-hand")
        assert (found.lock_duration, found.max_delivery_count) == (timedelta(seconds=45), 3)
    click(tab, "[data-action=delete-entity]")
    words = until(tab, "document.querySelector('dialog')?.textContent")
    assert "Delete the queue by-hand in contoso, with 0 messages and 0 dead letters?" in words
    click(tab, "dialog button.danger")
    until(tab, "!document.querySelector('[data-key=entities]').textContent.includes('by-hand')")
    with broker.admin() as admin:
        assert "by-hand" not in [queue.name for queue in admin.list_queues()]
    assert tab.complaints == []


def test_rule_is_created_changed_and_deleted(tab: Tab, broker: BrokerProcess) -> None:
    with broker.admin() as admin:
        admin.create_topic("ruled")
        admin.create_subscription("ruled", "eu")
    visit(tab, page_of(broker, "#/entity/contoso/ruled%2FSubscriptions%2Feu/rules"))
    click(tab, "[data-action=new-rule]")
    until(tab, "document.querySelector('#entity-form') !== null")
    write(tab, "#entity-form input[name=name]", "dear")
    write(tab, "#entity-form textarea[name=expression]", "amount > 10")
    click(tab, "#entity-form [data-action=submit]")
    click(tab, "[data-action=change-rule][data-rule=dear]")
    until(tab, "document.querySelector('#entity-form textarea').value === 'amount > 10'")
    tab.ask(
        "(() => { const kind = document.querySelector('#entity-form select[name=filter]');"
        " kind.value = 'correlation'; kind.dispatchEvent(new Event('change')); })()"
    )
    write(tab, "#entity-form input[name=label]", "paint")
    click(tab, "#entity-form [data-action=submit]")
    until(tab, "document.querySelector('dialog') === null && document.body.textContent.includes('paint')")
    click(tab, "[data-action=delete-rule][data-rule='$Default']")
    assert "1 rule stays" in until(tab, "document.querySelector('dialog')?.textContent")
    click(tab, "dialog button.danger")
    until(tab, "document.querySelector('dialog') === null && document.querySelectorAll('tbody tr').length === 1")
    with broker.admin() as admin:
        [rule] = admin.list_rules("ruled", "eu")
    assert isinstance(rule.filter, CorrelationRuleFilter)
    assert (rule.name, rule.filter.label) == ("dear", "paint")
    assert tab.ask(OVERFLOWING) == [] and tab.complaints == []


def test_send_and_purge(tab: Tab, broker: BrokerProcess) -> None:
    fill(broker, "purged", ["one"])
    visit(tab, page_of(broker, "#/entity/contoso/purged"))
    click(tab, "[data-action=send]")
    write(tab, "#send-form textarea[name=body]", "two")
    click(tab, "#send-form [data-action=submit]")
    until(tab, "document.querySelectorAll('tbody tr').length === 2")
    assert bodies(broker, "purged") == ["one", "two"]
    click(tab, "[data-action=purge]")
    click(tab, "dialog button.danger")
    until_counts(broker, "purged", (0, 0))
    until(tab, "document.querySelector('.job.done') !== null")


def test_dead_letters_are_redriven_by_reason(tab: Tab, broker: BrokerProcess) -> None:
    fill(broker, "letters", ["a", "b", "c"])
    with messaging(broker) as client, client.get_queue_receiver("letters", max_wait_time=20) as receiver:
        for _, message in zip(range(3), receiver, strict=False):
            receiver.dead_letter_message(message, reason="Late" if str(message) != "c" else MARKUP)
    until_counts(broker, "letters", (0, 3))
    visit(tab, page_of(broker, "#/entity/contoso/letters/dead-letters"))
    click(tab, "[data-reason=Late]")
    click(tab, "dialog button.danger")
    until_counts(broker, "letters", (2, 1))
    assert bodies(broker, "letters") == ["a", "b"]


def choose_file(tab: Tab, text: str) -> None:
    """Choose a file for the import, as a person does in the dialog of the browser."""
    until(tab, "document.querySelector('label.file input') !== null")
    tab.ask(
        f"""(() => {{
          const chosen = new DataTransfer(), input = document.querySelector('label.file input');
          chosen.items.add(new File([{json.dumps(text)}], 'orders.jsonl'));
          input.files = chosen.files;
          input.dispatchEvent(new Event('change'));
        }})()"""
    )


def test_interrupted_import_goes_on_with_the_same_file(tab: Tab, broker: BrokerProcess) -> None:
    """The browser keeps how far it came; nothing before that line is sent again."""
    lines = [f'{{"body": "line {number}"}}\n' for number in range(3)]
    with broker.admin() as admin:
        admin.create_queue("imported")
    visit(tab, page_of(broker, "#/entity/contoso/imported"))
    choose_file(tab, lines[0] + lines[1] + lines[2].replace("}", "]"))
    assert "accepted up to line 2" in until(tab, "document.querySelector('.job.failed')?.textContent")
    assert bodies(broker, "imported") == ["line 0", "line 1"]
    choose_file(tab, "".join(lines))
    click(tab, "dialog button.danger")
    until_counts(broker, "imported", (3, 0))
    until(tab, "document.querySelector('.job.done') !== null")
    assert bodies(broker, "imported") == ["line 0", "line 1", "line 2"]
    assert tab.ask("localStorage.getItem('pairbus-imports')") == "{}"


def test_markup_never_runs(tab: Tab, broker: BrokerProcess) -> None:
    """Bodies, ids, properties and reasons are texts, whatever they say."""
    with broker.admin() as admin:
        admin.create_queue("markup")
    message = ServiceBusMessage(MARKUP, message_id=MARKUP, subject=MARKUP, application_properties={MARKUP: MARKUP})
    with messaging(broker) as client, client.get_queue_sender("markup") as sender:
        sender.send_messages(message)
    visit(tab, page_of(broker, "#/entity/contoso/markup"))
    click(tab, "a[data-number]")
    until(tab, "document.querySelector('dialog pre') !== null")
    assert tab.ask("document.querySelector('dialog pre').textContent") == MARKUP
    assert tab.ask("document.images.length") == 0
    assert tab.ask("document.querySelectorAll('script').length") == 2  # the two scripts of the page itself
    assert "owned" not in tab.ask("document.title")
    assert tab.complaints == []


def test_page_asks_nobody_else(tab: Tab, broker: BrokerProcess) -> None:
    visit(tab, page_of(broker))
    until(tab, "document.querySelector('#entities') !== null")
    assert {url.split("/")[2] for url in tab.requests if url.startswith("http")} == {
        f"127.0.0.1:{broker.ports['contoso']}"
    }


@pytest.mark.parametrize(("width", "colours"), LOOKS)
def test_no_element_overflows(tab: Tab, broker: BrokerProcess, width: int, colours: str) -> None:
    name = f"wide-{width}-{colours}"
    long_name = f"{name}/{'a-very-long-name-of-a-queue-' * 4}end"
    fill(broker, long_name, [f"{'word' * 200} {number}" for number in range(3)])
    for hash_ in ("", "#/faults", "#/events", f"#/entity/contoso/{long_name.replace('/', '%2F')}"):
        visit(tab, page_of(broker, hash_), width=width, colours=colours)
        until(tab, "document.querySelector('.link.live') !== null")
        if "entity" in hash_:
            click(tab, "a[data-number]")
            until(tab, "document.querySelector('dialog pre') !== null")
        assert tab.ask(OVERFLOWING) == [], hash_
        assert tab.ask(CUT) == [], hash_
        assert tab.ask("document.querySelector('#link').getBoundingClientRect().width") > 5, hash_
        assert tab.ask("document.documentElement.scrollWidth <= innerWidth"), hash_
        assert tab.complaints == []


def test_page_on_the_port_tells_that_the_port_is_shut(tab: Tab, broker: BrokerProcess) -> None:
    """The page cannot end the outage that shut its own port, so it says who can, and comes back with the port."""
    visit(tab, page_of(broker, "#/faults"))
    until(tab, "document.querySelectorAll('select[name=kind] option').length > 5")
    write(tab, "#fault-form input[name=for_s]", "5s")
    tab.ask("document.querySelector('#fault-form').requestSubmit()")
    hint = "“pairbus fault clear --control DIR/control.sock --namespace contoso”"
    assert hint in until(tab, "document.querySelector('#banner p')?.textContent")
    tab.ask("location.hash = '#/'")
    until(tab, "document.querySelector('main h1').textContent === 'contoso does not answer'")
    until(tab, "document.querySelector('.link.live') && !document.querySelector('#banner p')")


def test_page_with_a_token_opens_with_it(tab: Tab, tmp_path: Path) -> None:
    """The key is asked for, kept for this tab, and never part of an address."""
    with BrokerProcess(tmp_path / "data", namespaces=("contoso",), options=("--key", "my own key")) as process:
        visit(tab, page_of(process))
        write(tab, "input[name=token]", "wrong")
        tab.ask("document.querySelector('main form').requestSubmit()")
        until(tab, "document.querySelector('input[name=token]') !== null")
        write(tab, "input[name=token]", "my own key")
        tab.ask("document.querySelector('main form').requestSubmit()")
        until(tab, "document.querySelector('#namespaces') !== null")
        assert not any("key" in url for url in tab.requests)
        tab.ask("sessionStorage.clear()")


@contextmanager
def dashboard(broker: BrokerProcess) -> Iterator[str]:
    """`pairbus dashboard` for the pair of the broker; yields its address."""
    words = ["dashboard", "--port", "0", "--control", str(broker.data_dir), "--primary-name", "contoso"]
    words += ["--primary", broker.connection_string(), "--secondary", broker.connection_string("fabrikam")]
    process = subprocess.Popen([sys.executable, "-m", "pairbus", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("page: http://127.0.0.1:"), line
        yield line.removeprefix("page: ").strip()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        with process:  # closes its pipe
            process.kill()


@contextmanager
def sending(broker: BrokerProcess) -> Iterator[list[str]]:
    """An application that sends through a paired client with a syphon; yields the ids that were accepted."""
    accepted: list[str] = []
    stop = threading.Event()
    client = PairedServiceBusClient.from_connection_strings(
        broker.connection_string(),
        broker.connection_string("fabrikam"),
        primary_name="contoso",
        failover_interval=1,
        ping_primary_interval=1,
        backlog_queue_count=2,
        enable_syphon=True,
        control_socket=True,
    )

    def work() -> None:
        with client, client.get_queue_sender("journey") as sender:
            while not stop.wait(0.05):
                message = ServiceBusMessage("x", message_id=str(len(accepted)))
                try:
                    sender.send_messages(message, timeout=5)
                except ServiceBusError:
                    continue
                accepted.append(message.message_id or "")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield accepted
    finally:
        stop.set()
        thread.join(PATIENCE_S)


def test_outage_failover_backlog_recovery_and_drain(
    tab: Tab, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole story by two clicks: nothing that was accepted is missing at the end."""
    monkeypatch.setenv("PAIRBUS_CONTROL_DIR", str(tmp_path / "run"))
    with broker.admin() as admin:
        admin.create_queue("journey", requires_duplicate_detection=True)  # a send without an answer is repeated
    with dashboard(broker) as url:
        with sending(broker) as accepted:
            visit(tab, url)
            until(tab, "document.querySelector('#states ~ .scroll .pill.healthy') !== null")
            click(tab, "[data-action=start-outage][data-namespace=contoso]")
            until(tab, "document.querySelector('dialog input[name=for_s]').value === '2m'")
            click(tab, "dialog button.danger")
            until(tab, "document.querySelector('#states ~ .scroll .pill.failed')?.textContent === 'failed over'")
            until(tab, "document.title.startsWith('contoso is away, 1 entity failed over, ')")
            for width in (390, 1280):  # the reason of a failover is as long as the error
                tab.call(
                    "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
                )
                assert tab.ask("document.querySelectorAll('.cards .reason').length") > 0
                assert tab.ask(CUT) == []
            depth = "Number(/, (\\d+) messages? in the backlog/.exec(document.title)?.[1] ?? 0)"
            before = until(tab, depth)
            until(tab, f"{depth} > {before}")
            assert backlog(broker) > before
            click(tab, "[data-action=end-outage][data-namespace=contoso]")
            until(tab, "document.querySelector('#states ~ .scroll .pill.healthy') !== null")
            until(tab, "!/away|over|suspect|backlog|fault/.test(document.title)")
        until_counts(broker, "journey", (len(accepted), 0))
        assert backlog(broker) == 0
        assert "the backlog is drained" in until(tab, "document.querySelector('.events')?.textContent")
        assert tab.complaints == []


def backlog(broker: BrokerProcess) -> int:
    with broker.admin("fabrikam") as admin:
        return sum(queue.active_message_count or 0 for queue in admin.list_queues_runtime_properties())
