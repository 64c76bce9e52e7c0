"""A Dockerfile's steps carried out without a container engine: `python -m tests.image_root DOCKERFILE`, as root.

The program runs in mount and process namespaces of its own (`unshare --mount --pid --fork`). Its root is an empty
memory disk; in the place of the base image it has this system's `/usr` and interpreter, in layers that take the writes.
Then the image's command is run as its user in an empty network, and its health check must succeed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from tests.dockerfile import Instruction, command_of, instructions
from tests.limits import slowness

ROOT = Path(__file__).parent.parent
ETC = (
    "passwd",
    "group",
    "shadow",
    "gshadow",
    "login.defs",
    "nsswitch.conf",
    "ld.so.cache",
    "ssl",
    "pip.conf",
    "hosts",
    "resolv.conf",
)
LINKS = ("bin", "sbin", "lib", "lib64")
START_S = 60
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
CLONE_NEWNET = 0x40000000


def run(*words: str | Path, **options: object) -> None:
    subprocess.run([str(word) for word in words], check=True, **options)  # type: ignore[call-overload]


class ImageRoot:
    """The file system of an image, and what its instructions said about the process that runs on it."""

    def __init__(self, folder: Path, context: Path) -> None:
        self.root = folder / "root"
        self._layers = folder / "layers"
        self._context = context
        self.environment = {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        self.environment["LD_LIBRARY_PATH"] = "/usr/local/lib"  # the interpreter's own library, before the system's
        self.user = "root"
        self.folder = "/"
        self.commands: dict[str, list[str]] = {}

    def make_base(self) -> None:
        """Make what an image of Python has: a distribution, an interpreter in /usr/local, and a few files in /etc."""
        self._layers.mkdir()
        run("mount", "-t", "tmpfs", "tmpfs", self._layers)
        self.root.mkdir()
        run("mount", "-t", "tmpfs", "tmpfs", self.root)
        self._mount_layer("usr", Path("/usr"))
        self._mount_layer("usr/local", Path(sys.base_prefix))
        for name in LINKS:
            if Path("/", name).is_symlink():
                (self.root / name).symlink_to(os.readlink(Path("/", name)))
            elif Path("/", name).is_dir():
                self._mount_layer(name, Path("/", name))
        for name in ("etc", "tmp", "proc", "dev", "var/lib", "root"):
            (self.root / name).mkdir(parents=True)
        (self.root / "tmp").chmod(0o1777)
        for name in ETC:
            place = Path("/etc", name)
            if place.is_dir():
                shutil.copytree(place, self.root / "etc" / name, symlinks=True)
            elif place.exists():
                shutil.copy2(place, self.root / "etc" / name)
        # Packages of this machine are not those of the image, which has pip alone.
        packages = f"usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        run("mount", "-t", "tmpfs", "tmpfs", self.root / packages)
        run("chroot", self.root, "/usr/local/bin/python3", "-m", "ensurepip", env=self.environment)
        pip = self.root / "usr/local/bin/pip"  # that of the interpreter names the place where it is on this machine
        pip.unlink(missing_ok=True)
        pip.write_text('#!/bin/sh\nexec /usr/local/bin/python3 -m pip "$@"\n')
        pip.chmod(0o755)
        run("mount", "-t", "proc", "proc", self.root / "proc")
        run("mount", "--rbind", "/dev", self.root / "dev")
        for place in self._places_of_packages():
            self._bind(place)

    def _mount_layer(self, name: str, lower: Path) -> None:
        upper, work = (self._layers / f"{name.replace('/', '-')}.{kind}" for kind in ("upper", "work"))
        upper.mkdir()
        work.mkdir()
        (self.root / name).mkdir(exist_ok=True)
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        run("mount", "-t", "overlay", "overlay", "-o", options, self.root / name)

    def _bind(self, place: Path) -> None:
        target = self.root / place.relative_to("/")
        if not target.exists():
            target.mkdir(parents=True)
            run("mount", "--bind", place, target)

    def _places_of_packages(self) -> list[Path]:
        """Return the folders of this machine from which pip installs, if any; elsewhere it asks the network."""
        told = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
        )
        settings = re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", told.stdout, re.MULTILINE)
        self.environment |= {f"PIP_{name.replace('-', '_').upper()}": value for name, value in settings}
        texts = [text for _, value in settings for text in value.split()]
        # An index lies beside the files to which it leads.
        found = [
            Path(text.removeprefix("file://")).parent if text.startswith("file://") else Path(text) for text in texts
        ]
        return [place for place in found if place.is_dir()]

    # ── the instructions ──

    def carry_out(self, each: Instruction) -> None:
        match each.name:
            case "FROM":
                self.make_base()
            case "COPY":
                self._copy(*each.value.split())
            case "RUN":
                run("chroot", self.root, "/bin/sh", "-c", each.value, env=self.environment)
            case "ENV":
                self.environment |= dict(re.findall(r"(\w+)=(\S+)", each.value))
            case "USER":
                self.user = each.value
            case "WORKDIR":
                self.folder = each.value
                (self.root / each.value.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "ENTRYPOINT" | "CMD" | "HEALTHCHECK":
                self.commands[each.name] = command_of(each.value) or []
            case "VOLUME" | "EXPOSE" | "STOPSIGNAL":
                pass  # of no meaning without an engine
            case other:
                raise NotImplementedError(f"{other} in line {each.line}")

    def _copy(self, source: str, target: str) -> None:
        """Copy the build context: the files that .dockerignore lets in by name."""
        assert source == ".", "only the whole context is copied"
        for line in (self._context / ".dockerignore").read_text().split():
            if line.startswith("!"):
                place, to = self._context / line[1:], self.root / target.lstrip("/") / line[1:]
                to.parent.mkdir(parents=True, exist_ok=True)
                if place.is_dir():
                    shutil.copytree(place, to, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy2(place, to)

    # ── the process ──

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        words = [
            "chroot",
            f"--userspec={self.user}",
            str(self.root),
            "/bin/sh",
            "-c",
            'cd "$0" && exec "$@"',
            self.folder,
        ]
        return subprocess.Popen([*words, *command], env=self.environment, stdout=subprocess.PIPE, text=True)


def leave_network() -> None:
    """Get an empty network, in which the ports of the image are free; `os.unshare` came with Python 3.12."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot leave the network")


def bring_loopback_up() -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def main() -> None:
    dockerfile, folder = map(Path, sys.argv[1:])
    run("mount", "--make-rprivate", "/")
    image = ImageRoot(folder, ROOT)
    for each in instructions(dockerfile.read_text()):
        print(f"{each.name} {each.value}", flush=True)
        image.carry_out(each)
    leave_network()
    bring_loopback_up()
    served = image.start([*image.commands["ENTRYPOINT"], *image.commands["CMD"]])
    assert served.stdout is not None
    for line in served.stdout:
        print(line, end="", flush=True)
        if line.startswith("Emulator Service is"):
            break
    until = time.monotonic() + START_S * slowness()
    while image.start(image.commands["HEALTHCHECK"]).wait() != 0:
        assert time.monotonic() < until, "the health check does not succeed"
        time.sleep(0.5)
    print("healthy", flush=True)
    served.terminate()
    print(f"ended with {served.wait()}", flush=True)


if __name__ == "__main__":
    main()
