"""Namespaces in options of commands: a connection string, which need not be on the command line where every process of
the machine can read it, or a host and a credential of Microsoft Entra ID.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus.auth.secret_place import FILE, VARIABLE, is_secret_place, read_secret
from pairbus.errors import ConfigError

if TYPE_CHECKING:
    from pairbus.client.sides import Side

KEPT_OFF = (
    "Connection strings also come from {variables}, from a file as @FILE, or from a variable as env:NAME, which keep"
    " the keys off the command line."
)
"Text for the help of a command; `variables` are those that it reads."
ENTRA = (
    "With --credential, give hosts instead of connection strings: default is DefaultAzureCredential of azure-identity"
    " (pip install azure-identity), MODULE:CALLABLE any function that returns a credential."
)
"Text for the help of a command."


def _named(text: str | None) -> str | None:
    if text is None:
        return None
    from pairbus.transport.tokens.named_credential import is_credential_name

    if not is_credential_name(text):
        raise typer.BadParameter(f"must be 'default' or 'MODULE:CALLABLE', not {text!r}")
    return text


CredentialName = Annotated[
    str | None,
    typer.Option(
        "--credential",
        metavar="default|MODULE:CALLABLE",
        callback=_named,
        help="Source of Microsoft Entra ID tokens, for namespaces that are given by their hosts.",
        show_default=False,
    ),
]


def connection_string(text: str | None, option: str, variable: str) -> str:
    """Return the text as it was given, or the content of the file of `@FILE` or of the variable of `env:NAME`.

    `option` and `variable` are in the error when it is missing.
    """
    if not text:
        raise typer.BadParameter(f"no connection string: give {option} CS or {option} @FILE, or set {variable}")
    if text in (FILE, VARIABLE):
        raise typer.BadParameter(f"{option} {text} names no {'file' if text == FILE else 'variable'}")
    return read_secret(text, option) if is_secret_place(text) else text


class Namespaces:
    """Makes the sides of one command, by connection string or by host and credential."""

    def __init__(self, credential: str | None, ca_file: Path | None) -> None:
        self._credential = credential
        self._trust: dict[str, Any] = {} if ca_file is None else {"connection_verify": str(ca_file)}
        self._used = False

    def side(self, option_text: str | None, option: str, variable: str) -> Side:
        """Read a connection string, or with a credential a host. ConfigError says what is wrong with it."""
        from pairbus.client.sides import Side

        text = connection_string(option_text, option, variable)
        if "=" in text:
            return Side.from_connection_string(text, **self._trust)
        return Side.from_credential(self.host(text, option), self.credential(option), **self._trust)

    def pair(self, primary: str | None, secondary: str | None) -> tuple[Side, Side]:
        """Read both namespaces of a pair, when no others are needed. ConfigError when they are one."""
        sides = (
            self.side(primary, "--primary", "PAIRBUS_PRIMARY"),
            self.side(secondary, "--secondary", "PAIRBUS_SECONDARY"),
        )
        self.check()
        check_two(*sides)
        return sides

    def host(self, text: str, option: str) -> str:
        """Check that the text is the host of a namespace, and that there is a credential for it."""
        from pairbus.auth.connection_string import host_and_port

        if self._credential is None:
            raise ConfigError(
                f"{option}: this is no connection string, which has Endpoint=sb://… and a key. If it is the host of a"
                " namespace, give a credential for it: --credential default"
            )
        try:
            host_and_port(text, option)
        except ConfigError:
            raise typer.BadParameter(f"{option}: {text!r} is not the host of a namespace") from None
        return text

    def credential(self, option: str) -> object:
        """Make the credential. ConfigError says what to install."""
        from pairbus.transport.tokens.named_credential import made_credential

        assert self._credential is not None, "host has checked it"
        self._used = True
        try:
            return made_credential(self._credential)
        except ConfigError as error:
            raise ConfigError(f"{option}: {error}") from None

    def check(self) -> None:
        """Refuse a credential that no namespace needs: the user made a mistake."""
        if self._credential is not None and not self._used:
            raise typer.BadParameter(
                "--credential is for hosts, and every namespace was given by a connection string; check also the"
                " PAIRBUS_… variables"
            )


def check_two(primary: Side, secondary: Side) -> None:
    """Refuse a pair whose sides are the same namespace. ConfigError."""
    if primary.authority.lower() == secondary.authority.lower():
        raise ConfigError(f"primary and secondary are the same namespace, {primary.name}: a pair needs two")
