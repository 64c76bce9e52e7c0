"""Two namespaces for the other examples: two broker processes on this machine, or two of your own.

When the connection strings PAIRBUS_PRIMARY and PAIRBUS_SECONDARY are set, the examples use these namespaces. The key of
the secondary needs the Manage claim, because pairing creates the backlog queues. The key of the primary needs it for
examples that create a queue of their own. A queue that an example only names must exist in the primary.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4


@dataclass
class LocalNamespace:
    """`pairbus broker` in a process of its own, so that it can be killed."""

    name: str
    folder: Path
    queues: tuple[str, ...]
    port: int = 0
    connection_string: str = ""
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        config = self.folder / f"{self.name}.json"
        queues = [{"Name": queue} for queue in self.queues]
        config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": self.name, "Queues": queues}]}}))
        words = ["broker", "--namespace", f"{self.name}={self.port}", "--config", str(config)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pairbus", *words, "--data", str(self.folder / self.name)],
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(f"{self.name} "):
                self.connection_string = line.split(maxsplit=1)[1].strip()
                self.port = int(self.connection_string.split(";")[0].rsplit(":", 1)[1])
            if line == "ready\n":
                return
        raise SystemExit("the broker did not start")

    def kill(self) -> None:
        """Kill the broker by SIGKILL. Messages that it has accepted are on disk, and are there at the next start."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


@dataclass
class Namespaces:
    primary: str
    "Connection string of the primary."
    secondary: str
    local: LocalNamespace | None = None
    "The primary, when it is a process of ours."

    @contextmanager
    def own_queue(self, name: str) -> Iterator[str]:
        """Create a queue in the primary for this run only, and delete it with its messages at the end."""
        path = f"pairbus-example-{name}-{uuid4().hex[:8]}"
        self._queue("create", path)
        try:
            yield path
        finally:
            self._queue("delete", path, "--yes")

    def _queue(self, *words: str) -> None:
        given = {**os.environ, "PAIRBUS_CONNECTION_STRING": self.primary}  # other users can read command lines
        subprocess.run(
            [sys.executable, "-m", "pairbus", "queue", *words], env=given, stdout=subprocess.DEVNULL, check=True
        )


@contextmanager
def namespaces(*queues: str) -> Iterator[Namespaces]:
    """Yield two namespaces. `queues` are the queues that the example uses in the primary."""
    given = [os.environ.get(name) for name in ("PAIRBUS_PRIMARY", "PAIRBUS_SECONDARY")]
    if given[0] and given[1]:
        yield Namespaces(given[0], given[1])
        return
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        contoso, fabrikam = LocalNamespace("contoso", folder, queues), LocalNamespace("fabrikam", folder, ())
        for namespace in (contoso, fabrikam):
            ends.callback(namespace.kill)
            namespace.launch()
        for namespace in (contoso, fabrikam):
            namespace.wait_until_ready()
        yield Namespaces(contoso.connection_string, fabrikam.connection_string, contoso)
