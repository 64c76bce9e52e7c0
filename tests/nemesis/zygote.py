"""A process that has imported everything and forks the children of a world: a new one costs milliseconds.

    python -m tests.nemesis.zygote

It reads requests from standard input, one JSON array a line, and answers each with a line of JSON.

* `["start", module, arguments, environment, file for standard error]`: the process id.
* `["look", process id]`: null while it runs, otherwise its exit code, which is negative after a signal.

When standard input ends, because the world did, every child is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from typing import Any

PRELOADED = ("tests.nemesis.sender", "tests.nemesis.receiver", "tests.nemesis.program", "pairbus.cli.pipeline.pumping")


def start(module: str, arguments: list[str], environment: dict[str, str], stderr: str) -> int:
    """Fork a child that runs the module's `main`."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        files = os.open(os.devnull, os.O_RDONLY), os.open(stderr, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for source, target in ((files[0], 0), (files[1], 1), (files[1], 2)):
            os.dup2(source, target)
        os.environ.update(environment)
        sys.argv = [module, *arguments]
        import_module(module).main(*arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    for name in PRELOADED:
        import_module(name)
    running: set[int] = set()
    ended: dict[int, int] = {}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process later
    for line in sys.stdin:
        [what, *fields] = json.loads(line)
        answer: Any
        if what == "start":
            answer = start(*fields)
            note(answer, running, ended)
        else:
            answer = look(fields[0], running, ended)
        print(json.dumps(answer), flush=True)
    for child in running:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def note(child: int, running: set[int], ended: dict[int, int]) -> None:
    """Note a child that was started. The system gives the number of a child that has ended to another one."""
    running.add(child)
    ended.pop(child, None)


def look(child: int, running: set[int], ended: dict[int, int]) -> int | None:
    """Return the exit code of a child, None while it runs."""
    if child in running:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            running.discard(child)
            ended[child] = os.waitstatus_to_exitcode(status)
    return ended.get(child)


if __name__ == "__main__":
    main()
