"""A real Azurite for tests: the blob service of Azure Storage on a free port of the loopback, from npm.

Between a client and it stands a door that can be shut, and that can lose answers: it passes a request on and ends the
connection instead of bringing the answer back.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from azure.core.exceptions import AzureError
from azure.storage.blob import AccountSasPermissions, BlobServiceClient, ResourceTypes, generate_account_sas

FOLDER = Path(__file__).parent / "azurite"
MAIN = FOLDER / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
MISSING = [tool for tool in ("node", "npm") if shutil.which(tool) is None]
WHY_MISSING = f"Azure Blob is not tested: {' and '.join(MISSING)} not found"
INSTALL_S = 600
START_S = 60.0
FIRST_TRIES = 3  # each with another port
# Published with the emulator: https://learn.microsoft.com/azure/storage/common/storage-use-azurite
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def install() -> None:
    """Install the packages of package.json, once for all processes; no lock file, because it would name a registry."""
    wanted = json.loads((FOLDER / "package.json").read_text())["dependencies"]["azurite"]
    with (FOLDER.parent / "azurite" / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = FOLDER / "node_modules" / "azurite" / "package.json"
        if found.exists() and json.loads(found.read_text())["version"] == wanted:
            return
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        assert done.returncode == 0, f"npm install failed:\n{done.stdout}\n{done.stderr}"


class Azurite:
    """The process. With a folder it keeps its blobs there when it is stopped; without, in its memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._has_listened = False
        self.port = _free_port()

    def __enter__(self) -> Azurite:
        install()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, again on the same port. Before the first start another process may have got the free port."""
        tries_left = 1 if self._has_listened else FIRST_TRIES
        while not self._listens():
            tries_left -= 1
            assert tries_left, "azurite has ended"
            self.port = _free_port()
        self._has_listened = True

    def _listens(self) -> bool:
        """Start the process; return True when it listens, and False when it has ended."""
        command = ["node", str(MAIN), "--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        command += ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        command += ["--inMemoryPersistence"] if self._folder is None else ["--location", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        while self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return self._process.poll() is None  # otherwise it is another process that listens
            assert time.monotonic() < deadline, "azurite does not listen"
            time.sleep(0.05)
        return False

    def stop(self) -> None:
        """End it as its own signal does: every connection breaks, and with a folder it writes what it has."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def url(self, port: int | None = None) -> str:
        return f"http://127.0.0.1:{port or self.port}/{ACCOUNT}"

    @property
    def connection_string(self) -> str:
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={self.url()};"

    def new_container(self, name: str) -> str:
        """Create a container, and return its location."""
        assert re.fullmatch(r"[a-z0-9-]{3,63}", name)
        service = BlobServiceClient(self.url(), credential={"account_name": ACCOUNT, "account_key": KEY})
        deadline = time.monotonic() + START_S
        while True:
            try:
                service.create_container(name)
                return f"{self.url()}/{name}"
            except AzureError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def sas(self, rights: str) -> str:
        """Make a token of the account with these rights (r, w, d, l, a, c)."""
        return str(
            generate_account_sas(
                ACCOUNT,
                KEY,
                ResourceTypes(service=True, container=True, object=True),
                AccountSasPermissions.from_string(rights),  # type: ignore[no-untyped-call]
                expiry=datetime.now(UTC) + timedelta(hours=1),
            )
        )


class Door:
    """A TCP door before a port. `lose_answers(n)`: the next n requests pass, and their answers do not come back."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._lose = 0
        self._lock = threading.Lock()
        self._pairs: set[socket.socket] = set()
        self.lose_every = 0
        "Lose every answer of this number; 0: none."
        self._answers = 0
        self.lost = 0
        "Answers that were lost."
        self.port = _free_port()
        self._listener: socket.socket | None = None

    def __enter__(self) -> Door:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def shut(self) -> None:
        """Break every connection, and refuse new ones."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for end in pairs:
            _end(end)

    def lose_answers(self, count: int) -> None:
        with self._lock:
            self._lose = count

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # shut
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                _end(client)  # the storage is away: this connection fails, the next one may not
                continue
            with self._lock:
                self._pairs |= {client, server}
            for source, sink, is_answer in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._carry, args=[source, sink, is_answer], daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if is_answer and self._loses():
                    break
                sink.sendall(data)
        for end in (source, sink):
            _end(end)
        with self._lock:
            self._pairs -= {source, sink}

    def _loses(self) -> bool:
        with self._lock:
            self._answers += 1
            loses = self._lose > 0
            self._lose -= loses
            loses = loses or (self.lose_every > 0 and self._answers % self.lose_every == 0)
            self.lost += loses
            return loses


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
