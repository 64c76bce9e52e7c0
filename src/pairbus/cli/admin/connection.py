"""Options of the commands that administer a namespace, ours or Azure's, and the client that they lead to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.models import ArgumentInfo

from pairbus.cli import namespace_options
from pairbus.cli.trust import CaFile
from pairbus.errors import EntityNotFound

if TYPE_CHECKING:
    from pairbus.client.sides import Side

KEPT_OFF = f"{namespace_options.KEPT_OFF.format(variables='PAIRBUS_CONNECTION_STRING')} {namespace_options.ENTRA}"

ConnectionString = Annotated[
    str | None,
    typer.Option(
        "--connection-string",
        envvar="PAIRBUS_CONNECTION_STRING",
        help="Connection string of the namespace, or @FILE.",
        metavar="CS",
        show_default=False,
    ),
]
ConnectionStringFile = Annotated[
    Path | None, typer.Option("--connection-string-file", help="The same as @FILE.", metavar="FILE")
]
NamespaceHost = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        help="Host of the namespace, with --credential instead of a connection string.",
        metavar="HOST",
        show_default=False,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        envvar="PAIRBUS_TARGET",
        metavar="CS|HOST",
        help="Another namespace that gets the messages: connection string, @FILE, or host.",
        show_default=False,
    ),
]
_OPTIONS: dict[str, Any] = {
    "connection_string": ConnectionString,
    "connection_string_file": ConnectionStringFile,
    "namespace": NamespaceHost,
    "credential": namespace_options.CredentialName,
    "ca_file": CaFile,
}
_FILES = frozenset({"connection_string", "file", "target"})
"Texts that may name a file, whose name may have any bytes."
_OPTIONS_WITH_TARGET: dict[str, Any] = {**_OPTIONS, "target": Target}


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a namespace.

    The command's first parameter is the connected administration client; the options come after its arguments.
    """

    def call(place: dict[str, Any], values: dict[str, Any]) -> None:
        with client_of(**place) as client:
            command(client, **values)

    return _with_options(command, call)


def listing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a namespace; its first parameter is the list of queues with their status."""
    return _with_options(command, lambda place, values: command(queues_of(**place), **values))


def queue_shown(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a namespace; its first parameter is settings and counts of queue `name`."""
    return _with_options(command, lambda place, values: command(queue_of(values["name"], place), **values))


def reached(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a namespace; its first parameter is a `Side`, which can connect to it."""
    return _with_options(command, lambda place, values: command(side_of(**place), **values))


def reached_with_target(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a namespace and `--target`; its first parameter is a list of sides.

    The list has the `Side` of the namespace and, where a target was given, that of the target.
    """
    return _with_options(
        command, lambda place, values: command(sides_of(**place), **values), options=_OPTIONS_WITH_TARGET
    )


def _with_options(
    command: Callable[..., None],
    call: Callable[[dict[str, Any], dict[str, Any]], None],
    options: dict[str, Any] = _OPTIONS,
) -> Callable[..., None]:
    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in list(inspect.signature(command).parameters.values())[1:]
    ]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in options.items()
    ]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    count = sum(_is_argument(parameter) for parameter in own)

    @functools.wraps(command)
    def with_client(**values: Any) -> None:
        for name, value in values.items():
            if name not in _FILES:
                _check_text(value)
        call({name: values.pop(name) for name in options}, values)

    parameters = [*own[:count], *shared, *own[count:]]
    with_client.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_client.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del with_client.__wrapped__  # readers of the signature must see this one
    return with_client


def _check_text(value: Any) -> None:
    """Raise BadParameter for a text that is not UTF-8: no path and no field of a message can have it."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise typer.BadParameter(f"{text!r:.80} is not text in UTF-8") from None


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any(isinstance(each, ArgumentInfo) for each in getattr(parameter.annotation, "__metadata__", ()))


def client_of(
    connection_string: str | None,
    connection_string_file: Path | None,
    namespace: str | None,
    credential: str | None,
    ca_file: Path | None,
) -> AbstractContextManager[Any]:
    """Connect the genuine administration client."""
    # Imported when needed: the SDK takes a quarter of a second, which `pairbus broker` should not pay.
    from pairbus.cli.admin.admin_client import administration, administration_of

    namespaces = namespace_options.Namespaces(credential, ca_file)
    if namespace is not None:
        host = namespaces.host(namespace, "--namespace")
        return administration_of(host, namespaces.credential("--namespace"), ca_file)
    if credential is not None:
        raise typer.BadParameter("--credential needs --namespace HOST: a connection string has its own key")
    return administration(given_connection_string(connection_string, connection_string_file), ca_file)


def queues_of(**place: Any) -> list[tuple[str, Any]]:
    """List the queues with their counts, and the status of each; without the SDK where there is a key."""
    if place["namespace"] is None and place["credential"] is None:
        from pairbus.cli.admin.plain_queues import plain_queues

        text = given_connection_string(place["connection_string"], place["connection_string_file"])
        plain = plain_queues(text, place["ca_file"])
        if plain is not None:
            return [(queue.status, queue) for queue in plain]
    with client_of(**place) as client:
        status_of = {queue.name: str(queue.status) for queue in client.list_queues()}
        # A queue created between the two listings is missing in the first: it will be in the next answer.
        counted = client.list_queues_runtime_properties()
        return [(status_of[queue.name], queue) for queue in counted if queue.name in status_of]


def queue_of(name: str, place: dict[str, Any]) -> tuple[Any, Any]:
    """Return the settings and the counts of a queue; without the SDK where there is a key."""
    if place["namespace"] is None and place["credential"] is None:
        from pairbus.cli.admin.plain_queues import plain_queue

        text = given_connection_string(place["connection_string"], place["connection_string_file"])
        plain = plain_queue(text, name, place["ca_file"])
        if plain is not None:
            return plain, plain
    with client_of(**place) as client:
        return queue_by(client, name), client.get_queue_runtime_properties(name)


@contextmanager
def _named(client: Any, kind: str, name: str) -> Iterator[None]:
    """Say which kind of entity is not there: the service does not know which one was meant."""
    from azure.core.exceptions import ResourceNotFoundError

    try:
        yield
    except ResourceNotFoundError:
        where = client.fully_qualified_namespace
        raise EntityNotFound(
            f"there is no {kind} {name!r} in {where}; `pairbus {kind} list` shows those that are there"
        ) from None


def queue_by(client: Any, name: str) -> Any:
    """Read the settings of a queue with the administration client. EntityNotFound: the path is a topic's."""
    try:
        with _named(client, "queue", name):
            return client.get_queue(name)
    except AttributeError:  # the SDK's error when the path of a queue is that of a topic
        raise EntityNotFound(f"{name} is no queue, but a topic: see `pairbus topic show {name}`") from None


def topic_by(client: Any, name: str) -> Any:
    """Read the settings of a topic with the administration client. EntityNotFound: the path is a queue's."""
    try:
        with _named(client, "topic", name):
            return client.get_topic(name)
    except AttributeError:  # as in `queue_by`
        raise EntityNotFound(f"{name} is no topic, but a queue: see `pairbus queue show {name}`") from None


def side_of(
    connection_string: str | None,
    connection_string_file: Path | None,
    namespace: str | None,
    credential: str | None,
    ca_file: Path | None,
) -> Side:
    """Return the `Side` of the namespace, for our own transport. ConfigError says what is wrong with the options."""
    if namespace is None and credential is not None:
        raise typer.BadParameter("--credential needs --namespace HOST: a connection string has its own key")
    namespaces = namespace_options.Namespaces(credential, ca_file)
    return _side(namespaces, namespace, connection_string, connection_string_file)


def sides_of(
    connection_string: str | None,
    connection_string_file: Path | None,
    namespace: str | None,
    credential: str | None,
    ca_file: Path | None,
    target: str | None,
) -> list[Side]:
    """Return the `Side` of the namespace and, where there is one, of the target. One of them needs the credential."""
    if target is None:
        return [side_of(connection_string, connection_string_file, namespace, credential, ca_file)]
    namespaces = namespace_options.Namespaces(credential, ca_file)
    source = _side(namespaces, namespace, connection_string, connection_string_file)
    sides = [source, namespaces.side(target, "--target", "PAIRBUS_TARGET")]
    namespaces.check()
    return sides


def _side(
    namespaces: namespace_options.Namespaces,
    namespace: str | None,
    connection_string: str | None,
    connection_string_file: Path | None,
) -> Side:
    if namespace is not None:
        return namespaces.side(namespaces.host(namespace, "--namespace"), "--namespace", "PAIRBUS_CONNECTION_STRING")
    text = given_connection_string(connection_string, connection_string_file)
    return namespaces.side(text, "--connection-string", "PAIRBUS_CONNECTION_STRING")


def broker_hint(*hosts: str) -> str:
    """Return the question whether a broker runs, for hosts of this machine only."""
    from pairbus.auth.hosts import is_loopback

    return "; is the broker running? `pairbus broker --help`" if any(map(is_loopback, hosts)) else ""


def given_connection_string(connection_string: str | None, connection_string_file: Path | None) -> str:
    """Return the connection string of the options or of the environment. ConfigError: there is none."""
    text = connection_string
    option = "--connection-string"
    if connection_string_file is not None:  # before the environment: an option wins over a variable
        text, option = f"@{connection_string_file}", "--connection-string-file"
    return namespace_options.connection_string(text, option, "PAIRBUS_CONNECTION_STRING")
