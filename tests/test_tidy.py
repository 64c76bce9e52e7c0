"""Rules that a linter cannot check: who may import whom, what a core may not know, how large a file may grow."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pairbus.cli import MODULES

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80

# Part → the parts that it may import. A new part needs a row here, because what it may import must be decided.
MAY_IMPORT: dict[str, set[str]] = {
    # leaves
    "errors": set(),
    "host": {"errors"},
    "auth": {"errors"},
    "settings": {"errors"},
    "faults": {"errors", "settings"},
    "amqp": set(),
    "filters": {"amqp", "errors"},
    "ledger": {"errors", "host"},
    "report": {"errors", "ledger"},
    # decisions, without I/O
    "pairing": {"errors", "settings"},
    # Options of a pair decide how long a message lives that comes home.
    "backlog": {"amqp", "errors", "pairing", "settings"},
    # The pages of metrics (`telemetry/metrics`) need no counters of clients; the broker and commands use these pages.
    "telemetry": {"amqp", "auth", "errors", "pairing"},
    "broker": {"amqp", "auth", "errors", "faults", "filters", "host", "ledger", "settings", "telemetry"},
    # The transport says in pairing's words how a send failed (`transport/errors.py`).
    "transport": {"amqp", "auth", "errors", "pairing"},
    # The proxy plays the broker's faults in the broker's words, and has its certificates and its control socket.
    "proxy": {"amqp", "auth", "broker", "errors", "faults"},
    "testing": {"amqp", "auth", "broker", "client", "errors", "faults", "filters", "proxy", "settings"},
    # pieces of the client
    "sdk": {"auth", "errors", "pairing", "transport"},
    "spool": {"amqp", "backlog", "errors", "host", "ledger", "pairing", "transport"},
    # The syphon works on raw messages: the core of the backlog message reads and writes them.
    "syphon": {"amqp", "backlog", "errors", "host", "ledger", "pairing", "telemetry", "transport"},
    "explorer": {"amqp", "backlog", "errors", "filters", "pairing", "syphon", "transport"},
    "spark": {"amqp", "auth", "backlog", "errors", "host", "ledger", "pairing", "sdk", "syphon", "transport"},
    "client": {
        "amqp",
        "auth",
        "backlog",
        "errors",
        "host",
        "ledger",
        "pairing",
        "sdk",
        "spool",
        "syphon",
        "telemetry",
        "transport",
    },
    "aio": {"client"},
    "dashboard": {
        "amqp",
        "auth",
        "broker",
        "client",
        "errors",
        "explorer",
        "faults",
        "host",
        "ledger",
        "pairing",
        "sdk",
        "settings",
        "syphon",
        "telemetry",
        "transport",
    },
}
MAY_IMPORT |= {
    "cli": set(MAY_IMPORT) - {"testing"},
    "__main__": {"cli"},
    "__init__": {"client", "errors", "pairing"},
}

# Files that are told the time and never touch the outside world, so that tests can move the clock by hand.
CORES_OF_THE_BROKER = [
    *("boxes/", "budget.py", "entities/", "kit/recorder.py", "refusal.py"),
    *(f"wire/{name}.py" for name in ("address", "deliveries", "draft_reader", "messages")),
    *(f"rest/{name}.py" for name in ("paths", "dates", "json_text", "broker_properties", "header_values")),
    *("rest/incoming.py", "rest/outgoing.py"),
]
PURE = [
    *("amqp/", "backlog/", "pairing/", "syphon/decide/", "client/processing/decide/", "filters/", "settings/"),
    *(f"faults/{name}.py" for name in ("__init__", "active", "fault", "kinds", "load", "pace")),
    *(f"broker/{name}" for name in CORES_OF_THE_BROKER),
]
"Folders, with everything in them, and files."
OUTSIDE_WORLD = {
    *("time", "datetime", "socket", "ssl", "select", "selectors", "asyncio", "threading", "subprocess", "sqlite3"),
    *("aiohttp", "uvloop", "pathlib", "tempfile", "http", "urllib"),
}

# A broad `except` that does not raise again may lose errors. These lose none; the code has the reason beside each.
BROAD_EXCEPTS = {
    ("broker/admin/app.py", "handle"),  # answers 500 and logs the traceback
    ("broker/admin/app.py", "_answer"),  # the same, and the answer is counted
    ("faults/play/held_steps.py", "run_all"),  # reports to the loop's exception handler; other steps must run too
    ("broker/store/committer.py", "_try_commit"),  # logs the traceback and tells every sender of the group
    ("broker/store/writer.py", "_copy"),  # logs the traceback and tells the caller of the backup; commits must go on
    ("broker/store/sqlite.py", "_tell"),  # reports to the loop's exception handler; other callbacks must hear too
    ("client/background.py", "_ping"),  # logs the traceback; the entity must be asked again
    (
        "client/event_outbox.py",
        "call_listener",
    ),  # logs the traceback; a send must not fail by a callback
    ("client/life.py", "_after_fork"),  # logs the traceback; the other clients must hear of the fork too
    ("client/processing/processing.py", "_hook"),  # tells the error of the application's hook
    ("client/processing/runners.py", "_handled"),  # the error decides about the message, and is told
    ("client/processing/runners.py", "_told"),  # logs the traceback of the application's listener
    ("client/engine_thread.py", "_begin_call"),  # raised where the call is waited for
    ("client/engine_thread.py", "_make_engine"),  # raised where the calls are waited for
    ("client/engine_thread.py", "run"),  # raised where the call is waited for
    ("host/control/serving.py", "_respond"),  # answers 500 and logs the traceback
    ("host/control/serving.py", "call"),  # raised where the result is waited for
    ("host/control/serving.py", "call_in"),
    ("spark/syphon_job/journal.py", "_write"),  # raised where the lines are waited for, and where the journal is closed
    ("spool/disk_threads.py", "_do"),  # raised where the outcome is asked
    ("transport/tasks.py", "kept"),  # logs the traceback and begins again
    ("transport/threads.py", "_run"),  # raised where the call is awaited
}

# A task whose end nobody awaits may fail unheard: `transport/tasks.py` starts long ones. In these places the function
# that starts a task, or its object, reads the result.
OWN_TASKS = {
    ("client/engine.py", "close"),  # awaited by every call of `close`
    ("client/engine.py", "pair"),  # awaited by its callers; `_pairing_ended` logs the error when they have left
    ("client/processing/aio.py", "run_forever"),  # awaited there
    ("client/processing/feed.py", "run"),  # awaited there
    ("client/processing/processing.py", "_next_session"),  # awaited there
    ("client/processing/runners.py", "_begin"),  # `_ended` reports the end of the handler
    ("client/processing/runners.py", "_hear"),  # `_told` logs the error
    ("client/engine_thread.py", "_begin_call"),  # `_Call.run` keeps the error for the caller
    ("spool/forwarder.py", "_last_write"),  # `_tell_error` logs the error
    ("spool/forwarder.py", "_send_and_remove"),  # awaited there
    ("spool/forwarder.py", "_start_lanes"),  # a lane that ends wakes `run`, which raises its error
    ("syphon/syphon.py", "_run"),  # awaited there
    ("syphon/syphon.py", "adopt"),  # `_run` awaits it
    ("syphon/syphon.py", "run"),  # `_run` awaits it
    ("syphon/receive.py", "first_of"),  # awaited there
    ("syphon/send.py", "_start"),  # `add` and `all_home` raise its error
    ("syphon/send.py", "send_home"),  # in a TaskGroup
    ("transport/connection/client_connection.py", "_open_management"),  # awaited there
    ("transport/carrier/senders.py", "_start_on_spare"),  # awaited by the send that waited for a link
    (
        "transport/connection/shared_work.py",
        "begin",
    ),  # its callers await it; without them `_ended` reports the error
    ("transport/connection/steps.py", "step"),  # awaited there
    ("transport/tasks.py", "start"),
}
STARTS_TASK = "create_task|ensure_future"
ROOMS_OF_TASKS = ("client/", "syphon/", "spool/", "transport/")

ENTRY_POINTS = {
    *("pairbus", "pairbus.__main__", "pairbus.broker", "pairbus.transport", "pairbus.aio", "pairbus.testing"),
    "pairbus.explorer",
    "pairbus.spark",
    "pairbus.testing.plugin",
    *(f"pairbus.cli.{module}" for module in MODULES.values()),  # imported by name, only those that a command line needs
}

# In pieces, so that this file does not contain them.
FORBIDDEN = [
    r"\bTO" r"DO\b",
    r"\bFIX" r"ME\b",
    r"registry\.npm" r"js",
    r"py" r"pi\.org",
    r"arti" r"factory",
    r"index" r"-url",
    r"(?<![\w.])/(?:wo" r"rk|ro" r"ot|ho" r"me)/",
]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def sources() -> list[Path]:
    return sorted((SRC / "pairbus").rglob("*.py"))


def short(path: Path) -> str:
    return path.relative_to(SRC / "pairbus").as_posix()


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(path: Path) -> Iterator[str]:
    """Full names of the modules, and of what is imported from them: one of the two is the module."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{short(path)}:{node.lineno}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(name: str) -> str | None:
    """`pairbus.broker.namespace` → `broker`; None for what is not a part of ours, such as `pairbus.__version__`."""
    words = name.split(".")
    if words[0] != "pairbus" or len(words) < 2 or words[1] == "__version__":
        return None
    return words[1]


def test_every_part_imports_only_what_the_table_allows() -> None:
    """The protocol core can then be read, tested and reused without the broker, and neither end needs the other."""
    for path in sources():
        part = path.relative_to(SRC / "pairbus").with_suffix("").parts[0]
        assert part in MAY_IMPORT, f"{short(path)}: give '{part}' a row in MAY_IMPORT"
        wanted = {part_of(name) for name in imported_by(path)} - {None, part}
        assert wanted <= MAY_IMPORT[part], f"{short(path)} imports {sorted(map(str, wanted - MAY_IMPORT[part]))}"


def test_cores_know_no_clock_no_loop_and_no_socket() -> None:
    """Time is an argument and bytes are an argument: that is what makes them testable without sleeping."""
    paths = [path for path in sources() if short(path).startswith(tuple(PURE))]
    assert len(paths) > 20
    for path in paths:
        names = set(imported_by(path))
        if "datetime.timedelta" in names:  # a length of time, not the time
            names -= {"datetime", "datetime.timedelta"}
        outside = {name.split(".")[0] for name in names} & OUTSIDE_WORLD
        assert not outside, f"{short(path)} imports {sorted(outside)}"
        for node in ast.walk(tree_of(path)):
            assert not isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith), (
                f"{short(path)}:{node.lineno} awaits"
            )


def test_every_file_can_be_read_in_a_sitting() -> None:
    """The limits hold for files of tests and benchmarks too."""
    folders = ("src", "tests", "bench", "tools", "examples")
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        if "node_modules" in path.parts:
            continue
        lines = path.read_text(encoding="utf-8").count("\n")
        assert lines <= FILE_LINES_MAX, f"{path.relative_to(ROOT)} has {lines} lines; {FILE_LINES_MAX} are allowed"
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                assert size <= FUNCTION_LINES_MAX, f"{path.relative_to(ROOT)}: {node.name} has {size} lines"


def test_no_broad_except_swallows() -> None:
    """A message that is nobody's any more is the worst bug; exceptions that nobody sees are how it hides."""
    found = set()
    for path in sources():
        for function in ast.walk(tree_of(path)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for handler in ast.walk(function):
                if isinstance(handler, ast.ExceptHandler) and _is_broad(handler) and not _raises(handler):
                    found.add((short(path), function.name))
    assert found == BROAD_EXCEPTS


def test_long_tasks_are_started_by_one_helper() -> None:
    """A background task that ends by an exception which nobody reads is how a client stands still in silence."""
    found = set()
    for path in [path for path in sources() if short(path).startswith(ROOMS_OF_TASKS)]:
        if not re.search(STARTS_TASK, path.read_text()):
            continue
        for function in ast.walk(tree_of(path)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Attribute) and re.fullmatch(STARTS_TASK, node.attr):
                        found.add((short(path), function.name))
    assert found == OWN_TASKS


def _is_broad(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")) for kind in kinds
    )


def _raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def test_no_module_is_dead() -> None:
    """Every module is imported by another one, is a command, or is where users come in."""
    wanted = {name for path in sources() for name in imported_by(path)} | {f"pairbus.cli.{name}" for name in MODULES}
    for path in sources():
        name = module_name(path)
        used = name in wanted or any(other.startswith(f"{name}.") for other in wanted)
        assert used or name in ENTRY_POINTS, f"nobody imports {name}"


def _tracked_files() -> list[Path]:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: which files belong to the repository is not known")
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_the_repository_speaks_of_the_product_alone() -> None:
    """No unfinished business, no addresses of package registries, no paths of one machine."""
    pattern = re.compile("|".join(FORBIDDEN))
    for path in _tracked_files():
        content = path.read_bytes()
        if b"\0" in content[:8192]:
            continue
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
            match = pattern.search(line)
            assert match is None, f"{path.relative_to(ROOT)}:{number}: {match[0] if match else ''!r}"


VAGUE = ("What ", "Of ", "Those ", "Whoever ", "Whether it ", "That which ", "Nor ")


def test_docstrings_do_not_begin_with_a_riddle() -> None:
    """A pronoun cannot be searched for: a sentence has a subject that is named."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value.value[:60]!r}"
        for folder in ("src", "tests", "bench", "tools", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "node_modules" not in path.parts
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if node.value.value.startswith(VAGUE)
    ]
    assert found == []
