"""A private RabbitMQ node to measure and to test against: own folder, ports, cookie and epmd, all on loopback.

Debian's wrappers in /usr/sbin switch to the rabbitmq user and write to the system's folders. The scripts they wrap run
as any user and take every path from the environment. So these scripts are called, with a new environment: no setting of
the system's broker is used, and no file of it is read or written.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

SCRIPTS = Path("/usr/lib/rabbitmq/bin")
START_TIMEOUT_S = 120.0  # 5 s on an idle machine of two cores, 13 s on a busy one
STOP_TIMEOUT_S = 30.0
COMMAND_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 5.0
LOOPBACK_DISTRIBUTION = "-kernel inet_dist_use_interface {127,0,0,1}"  # else the node listens on every address

USER = PASSWORD = "guest"
AMQP_HEADER, SASL_HEADER = b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00"
AMQP_FRAME, SASL_FRAME = 0, 1
OPEN, SASL_MECHANISMS, SASL_INIT, SASL_OUTCOME = 0x10, 0x40, 0x41, 0x44


Bound = tuple[str, str, str]
"Exchange, queue, key."


class RabbitMQError(Exception):
    """The node could not be started or a command failed; the text ends with its last output."""


def available() -> str | None:
    """Return None when a node can be started here, else the reason in a sentence."""
    if not (SCRIPTS / "rabbitmq-server").exists():
        return "rabbitmq-server is not installed: apt-get install rabbitmq-server"
    if not (shutil.which("erl") and shutil.which("epmd")):
        return "erl or epmd is not on the path: apt-get install erlang-base"
    return None


def version() -> str:
    """Return the installed server's version, as its folder is named: 3.10.8."""
    return (SCRIPTS / "rabbitmq-server").resolve().parents[1].name.rpartition("-")[2]


def _major() -> int:
    return int(version().partition(".")[0])


class RabbitMQ:
    """One node from `__enter__` to `__exit__`; its data is in a new folder inside `folder` and deleted with it."""

    host = "127.0.0.1"
    port: int
    "Port of AMQP, 1.0 and 0-9-1 alike; a new one each time the node starts."

    def __init__(self, folder: Path | None = None, *, plugins: Sequence[str] = (), durable: bool = True) -> None:
        """Prepare a node. `plugins` besides that for AMQP 1.0, which RabbitMQ 4 has built in. `durable`: `folder` must
        be on a disk."""
        parent = folder or Path(tempfile.gettempdir())
        if durable and _is_in_memory(parent):
            raise RabbitMQError(f"{parent} is in memory: a durable queue there is not durable; name a folder on disk")
        self._parent = parent
        self._plugins = ("rabbitmq_amqp1_0", *plugins)
        self._node: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        state = f"{self.host}:{self.port} pid={self._node.pid} {self._home}" if self._node else "stopped"
        return f"<RabbitMQ {version()} {state}>"

    def __enter__(self) -> Self:
        self.port, self._epmd_port, self._node_port, self._control_port = _free_ports(4)
        self._home = Path(tempfile.mkdtemp(prefix="rabbitmq-", dir=self._parent))
        try:
            self._configure()
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        """Process id of the Erlang virtual machine, which is all of the broker."""
        assert self._node is not None, "the node runs only inside its with block"
        return self._node.pid

    def address(self, queue: str) -> str:
        """Return the link address of this existing queue; a bare name would declare a classic queue."""
        return f"/amq/queue/{queue}" if _major() < 4 else f"/queues/{queue}"

    def exchange_address(self, exchange: str, key: str) -> str:
        """Return the link address of an exchange, which must exist, and a routing key."""
        return f"/{'exchange' if _major() < 4 else 'exchanges'}/{exchange}/{key}"

    def declare_quorum_queue(self, name: str) -> None:
        self.declare([name])

    def declare(self, queues: Sequence[str], exchanges: Mapping[str, str] = {}, bindings: Sequence[Bound] = ()) -> None:
        """Declare durable quorum queues, exchanges with their types, and bindings with their keys."""
        durable = {"vhost": "/", "durable": True, "auto_delete": False}
        definitions = {
            "queues": [{"name": name, **durable, "arguments": {"x-queue-type": "quorum"}} for name in queues],
            "exchanges": [
                {"name": name, "type": kind, **durable, "internal": False, "arguments": {}}
                for name, kind in exchanges.items()
            ],
            "bindings": [
                {
                    "source": exchange,
                    "vhost": "/",
                    "destination": queue,
                    "destination_type": "queue",
                    "routing_key": key,
                    "arguments": {},
                }
                for exchange, queue, key in bindings
            ],
        }
        self.control("import_definitions", "--format", "json", stdin=json.dumps(definitions))
        # An import reports success before it says which parts it skipped, so the queues are looked up.
        listed = self.control("list_queues", "--silent", "name", "type", "durable")
        missing = [name for name in queues if f"{name}\tquorum\ttrue" not in listed.splitlines()]
        if missing:
            raise RabbitMQError(f"{missing} are not durable quorum queues after their declaration: {listed!r}")

    def _configure(self) -> None:
        cookie = self._home / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)  # Erlang refuses a cookie that others may read
        (self._home / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {self.host}:{self.port}\n"
            f"default_user = {USER}\n"
            f"default_pass = {PASSWORD}\n"
            "loopback_users.guest = true\n"
        )
        (self._home / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].\n")

    def _environment(self) -> dict[str, str]:
        home = self._home
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(home),  # where Erlang looks for the cookie
            # Makes the script become the virtual machine instead of waiting for it: our child's pid is the broker's.
            "RUNNING_UNDER_SYSTEMD": "true",
            "ERL_EPMD_ADDRESS": self.host,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": f"pairbus-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": LOOPBACK_DISTRIBUTION,
            "RABBITMQ_CTL_ERL_ARGS": LOOPBACK_DISTRIBUTION,
            "RABBITMQ_CTL_DIST_PORT_MIN": str(self._control_port),
            "RABBITMQ_CTL_DIST_PORT_MAX": str(self._control_port),
            "RABBITMQ_CONF_ENV_FILE": str(home / "no-rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
            "RABBITMQ_CONFIG_FILES": str(home / "conf.d"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(home / "generated"),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
        }

    def _start(self) -> None:
        # Started here and not by Erlang, whose epmd is a daemon that outlives the node.
        self._epmd = subprocess.Popen(
            ["epmd", "-port", str(self._epmd_port), "-address", self.host],
            env={"PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _listens(self.host, self._epmd_port):
            self._wait_a_little("epmd", self._epmd, deadline)
        with (self._home / "output").open("wb") as output:
            self._node = subprocess.Popen(
                [SCRIPTS / "rabbitmq-server"],
                env=self._environment(),
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a process group to kill, and no Ctrl-C that the benchmark has not seen first
            )
        while not _speaks_amqp_1_0(self.host, self.port):
            self._wait_a_little("the node", self._node, deadline)

    def _wait_a_little(self, what: str, process: subprocess.Popen[bytes], deadline: float) -> None:
        if process.poll() is not None:
            raise RabbitMQError(f"{what} ended with status {process.returncode}: {self._last_output()}")
        if time.monotonic() > deadline:
            raise RabbitMQError(f"{what} is not up after {START_TIMEOUT_S:.0f} s: {self._last_output()}")
        time.sleep(0.05)

    def _last_output(self) -> str:
        # Early failures are only on its standard output, later ones only in its log.
        written = [self._home / "output", *sorted((self._home / "log").glob("*.log"))]
        return "\n".join(each.read_text(errors="replace")[-2000:] for each in written if each.exists())

    def control(self, *arguments: str, stdin: str = "") -> str:
        """Return the answer of rabbitmqctl."""
        done = subprocess.run(
            [SCRIPTS / "rabbitmqctl", *arguments],
            env=self._environment(),
            cwd=self._home,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise RabbitMQError(f"rabbitmqctl {arguments[0]} failed: {(done.stdout + done.stderr)[-2000:]}")
        return done.stdout

    def _stop(self) -> None:
        """End the processes, in order if they obey and by force if not, also after a Ctrl-C during the wait."""
        try:
            if self._node is not None:
                self._node.terminate()  # the virtual machine answers SIGTERM with an orderly stop
                self._node.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass  # its data is not needed any more, so a node that does not stop is killed below
        finally:
            if self._node is not None and self._node.poll() is None:
                os.killpg(self._node.pid, signal.SIGKILL)
                self._node.wait()
            if self._epmd is not None:
                self._epmd.kill()  # it holds only the names of running nodes
                self._epmd.wait()
            self._node = self._epmd = None
            shutil.rmtree(self._home)


def _is_in_memory(folder: Path) -> bool:
    """Return whether the file system of `folder` is lost with the power."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    holding = [mount for mount in mounts if folder.resolve().is_relative_to(mount[1])]
    return max(holding, key=lambda mount: len(mount[1]))[2] in {"tmpfs", "ramfs"}


def _free_ports(count: int) -> list[int]:
    """Return different ports, free now; all are held until the last is found, so that none comes twice."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _speaks_amqp_1_0(host: str, port: int) -> bool:
    """Return whether a whole AMQP 1.0 handshake as our user succeeds: SASL PLAIN, then open for open."""
    plain = f"\0{USER}\0{PASSWORD}".encode()
    try:
        with socket.create_connection((host, port), PROBE_TIMEOUT_S) as peer, peer.makefile("rb") as answers:
            peer.sendall(
                SASL_HEADER + _frame(SASL_FRAME, SASL_INIT, [b"\xa3\x05PLAIN", b"\xa0%c%b" % (len(plain), plain)])
            )
            if answers.read(8) != SASL_HEADER or _read_descriptor(answers) != SASL_MECHANISMS:
                return False
            # A refused user is not recognised here: the broker closes, and the open below is never answered.
            if _read_descriptor(answers) != SASL_OUTCOME:
                return False
            peer.sendall(AMQP_HEADER + _frame(AMQP_FRAME, OPEN, [b"\xa1\x05probe"]))
            return answers.read(8) == AMQP_HEADER and _read_descriptor(answers) == OPEN
    except OSError:
        return False


def _frame(kind: int, descriptor: int, fields: list[bytes]) -> bytes:
    """Return one frame on channel 0 with a short list of encoded fields: all that the probe needs of the codec."""
    encoded = b"".join(fields)
    body = b"\x00\x53%c\xc0%c%c%b" % (descriptor, len(encoded) + 1, len(fields), encoded)
    return struct.pack(">IBBH", 8 + len(body), 2, kind, 0) + body


def _read_descriptor(answers: BinaryIO) -> int | None:
    """Read which performative the next frame holds; None at the end of the stream or for another kind of frame."""
    head = answers.read(8)
    if len(head) < 8:
        return None
    body = answers.read(int.from_bytes(head[:4]) - 8)
    match body[:2]:
        case b"\x00\x53":  # smallulong
            return body[2]
        case b"\x00\x80":  # ulong
            return int.from_bytes(body[2:10])
    return None
