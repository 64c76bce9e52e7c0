"""`pairbus store backup`: a copy of the store of one namespace, while its broker runs or is stopped."""

from __future__ import annotations

import http.client
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus.cli.outputs import check_output
from pairbus.cli.serve.broker import check_extra
from pairbus.cli.serve.control_client import SOCKET_NAME
from pairbus.cli.standard import ProgressLine
from pairbus.errors import ConfigError, StoreError, StoreInUse
from pairbus.host.control.asking import UnixConnection
from pairbus.host.folders import sync_folder

if TYPE_CHECKING:
    from pairbus.broker.store.backup import Backup, Contents

STORE_NAME = "messages.db"
ANSWER_S = 30.0  # the broker says four times a second how far it is
STALL_S = 600.0  # without a further page; the broker may be checking a large file first
LINE_SIZE_MAX = 64 * 1024
MB = 1_000_000

BACKUP_EPILOG = """\b
Examples:
  pairbus store backup --to contoso.backup
  pairbus store backup pairbus-data/contoso --to contoso.backup --verify --force
"""


def backup(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="[DIR]",
            envvar="PAIRBUS_DATA",
            help="Folder of one namespace, such as pairbus-data/contoso, or a data folder that holds only one.",
            show_default=False,
        ),
    ] = Path("pairbus-data"),
    *,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The backup, one file.")],
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Read the copy before it becomes FILE: every checksum, and the number of messages."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy the messages and entities of one namespace into a file, while its broker goes on.

    Everything that was acknowledged before the backup began is in the file, which is the store as it was after one
    commit. A running broker makes the copy itself, so DIR must be the path under which it sees its folder and FILE's.
    FILE appears when it is complete. A broker starts with it as messages.db in a new folder of the namespace.
    """
    check_extra()
    from pairbus.broker.store.backup import remove_draft

    folder = _namespace_folder(folder)
    check_output("--to", to)
    _check_free(to, force)
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{to.name}.", suffix=".new", dir=to.parent.resolve())
    except OSError as error:
        raise ConfigError(f"--to {to}: {error.strerror}") from None
    os.close(descriptor)
    draft = Path(name)
    try:
        with _sigterm_as_exit():
            contents, entities = _filled(folder, draft, verify)
            _check_free(to, force)
            size = draft.stat().st_size
            draft.replace(to)
            sync_folder(to.parent)
    except OSError as error:
        raise StoreError(f"The backup failed: {error.strerror or error} ({error.filename or to}).") from error
    finally:
        remove_draft(draft)
    if as_json:
        facts = {"file": str(to), "bytes": size, **contents._asdict(), "verified": verify}
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo(f"{to}: {size / MB:.1f} MB, {counted(contents.messages)}, commit {contents.commits}")
    if verify:
        typer.echo(f"verified: every checksum, and the number of messages of each entity ({entities})")


def counted(messages: int) -> str:
    return "1 message" if messages == 1 else f"{messages} messages"


def _namespace_folder(folder: Path) -> Path:
    """Return the folder of the namespace: the given one, or the only one inside it."""
    if not folder.is_dir():
        raise StoreError(f"There is no folder {folder}.")
    if (folder / STORE_NAME).exists():
        return folder
    inside = sorted(path.parent for path in folder.glob(f"*/{STORE_NAME}"))
    if not inside:
        raise StoreError(f"There is no store in {folder}: {STORE_NAME} is missing.")
    if len(inside) > 1:
        names = ", ".join(path.name for path in inside)
        raise StoreError(
            f"{folder} holds the namespaces {names}; back up one at a time, for example"
            f" `pairbus store backup {inside[0]} --to {inside[0].name}.backup`."
        )
    return inside[0]


def _check_free(to: Path, force: bool) -> None:
    if to.exists() and not force:
        raise ConfigError(f"--to {to}: this file exists; --force replaces it")


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """End by an exception at SIGTERM, so that the draft is removed."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _filled(folder: Path, draft: Path, with_verification: bool) -> tuple[Contents, int]:
    """Copy the store into the draft, and verify it on request; return its contents and its number of entities."""
    from pairbus.broker.store.backup import back_up_stopped
    from pairbus.broker.store.verification import verify

    line = ProgressLine()

    def tell(copied: int, size: int) -> None:
        line.show(f"backing up {folder.name}: {copied / MB:.0f} of {size / MB:.0f} MB")

    def tell_step(backup: Backup) -> None:
        tell(backup.copied, backup.size)

    try:
        try:
            contents, missing = back_up_stopped(folder, draft, tell_step)
        except StoreInUse as in_use:
            contents, missing = _copied_by_broker(folder, draft, tell, in_use), 0
        if not with_verification:
            entities = 0
        else:
            line.show(f"verifying {draft.stat().st_size / MB:.0f} MB")
            verified = verify(draft, line.show)
            if verified.damage:
                raise StoreError(
                    f"The copy is damaged, as the store is; no backup was made: {' '.join(verified.damage)}"
                )
            if verified.contents != contents:
                raise StoreError(
                    f"The copy has {verified.contents} where the store had {contents}; no backup was made."
                )
            entities = verified.entities
    finally:
        line.clear()
    if missing:
        typer.echo(f"the last {missing} acknowledged commits are missing in {folder}, and so in the backup", err=True)
    return contents, entities


def _copied_by_broker(folder: Path, draft: Path, tell: Callable[[int, int], None], in_use: StoreInUse) -> Contents:
    """Have the running broker copy its store; errors say what it answered."""
    from pairbus.broker.store.backup import Contents

    place = folder.resolve().parent / SOCKET_NAME
    connection = UnixConnection(place, ANSWER_S)
    try:
        body = json.dumps({"draft": str(draft)})
        connection.request("POST", f"/{folder.resolve().name}/$pairbus/backup", body)
        answer = connection.getresponse()
        last, advanced_at = -1, time.monotonic()
        while line := answer.readline(LINE_SIZE_MAX):
            match _read_line(line):
                case {"copied": int(copied), "of": int(size)}:
                    tell(copied, size)
                    if copied != last:
                        last, advanced_at = copied, time.monotonic()
                    elif time.monotonic() - advanced_at > STALL_S:
                        raise StoreError(f"The broker copied nothing for {STALL_S:g} s; no backup was made.")
                case {"commits": int(commits), "messages": int(messages)}:
                    return Contents(commits, messages)
                case {"error": error}:
                    raise StoreError(f"The broker made no backup: {error}")
                case other:
                    raise StoreError(f"{place} does not speak as a broker of this version does: {other!r:.200}")
    except (FileNotFoundError, ConnectionRefusedError):
        raise StoreError(f"{in_use} It does not answer at {place}, where a running broker makes backups.") from None
    except TimeoutError:
        raise StoreError(f"The broker has not answered for {ANSWER_S:g} s at {place}; no backup was made.") from None
    except (OSError, http.client.HTTPException) as error:
        raise StoreError(f"The broker ended during the backup: {str(error) or type(error).__name__}.") from None
    finally:
        connection.close()
    raise StoreError("The broker ended during the backup; no backup was made.")


def _read_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line.decode("utf-8", "replace")
