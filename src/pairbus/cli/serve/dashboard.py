"""`pairbus dashboard`: the page for a pair or for one namespace, on a port of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.cli.loop import run, stop_event
from pairbus.cli.namespace_options import ENTRA, KEPT_OFF, CredentialName, Namespaces, check_two, connection_string
from pairbus.cli.pair.options import BacklogQueueCount, Primary, PrimaryName, Secondary
from pairbus.cli.trust import CaFile

if TYPE_CHECKING:
    from pairbus.cli.serve.dashboard_page import Given, PageOptions


def register(app: typer.Typer) -> None:
    """Add the command `pairbus dashboard`."""
    app.command(
        epilog=f"""\b
Examples:
  pairbus dashboard --primary @contoso.txt --secondary @fabrikam.txt
  # one namespace
  pairbus dashboard --primary @contoso.txt
  # brokers, whose faults are switched by their control socket, also while a fault has shut their ports
  pairbus dashboard --primary @contoso.txt --secondary @fabrikam.txt --control pairbus-data
  pairbus dashboard --credential default --primary contoso.servicebus.windows.net --secondary HOST
\b
{KEPT_OFF.format(variables="PAIRBUS_PRIMARY and PAIRBUS_SECONDARY")} {ENTRA}"""
    )(dashboard)


def dashboard(
    primary: Primary = None,
    secondary: Secondary = None,
    primary_name: PrimaryName = None,
    backlog_queue_count: BacklogQueueCount = 10,
    control: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Control socket of a broker, DIR/control.sock or DIR; it answers during every fault."
            " Repeat for a second broker.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any address but the loopback needs the token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 = any free one.")] = 8080,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A DNS name under which browsers call this page. Repeat for more."),
    ] = None,
    credential: CredentialName = None,
    ca_file: CaFile = None,
) -> None:
    """Show a pair of namespaces, or one, in a browser: entities, messages, states, faults and cost.

    Prints the address of the page and runs until Ctrl-C. Works for brokers of Pairbus and for Azure; --primary alone
    is one namespace.

    The page needs no token on the loopback when the namespaces have the emulator's well-known key. Otherwise the
    address ends with a token, which the browser keeps for itself: it is printed once and changes with every start.
    GET /metrics is for Prometheus: open on the loopback; elsewhere, and with --allowed-host, it needs the same token
    as a bearer token, or that of PAIRBUS_METRICS_TOKEN.
    Counts need the Manage claim. Looks at Azure, one at the start and one
    every 15 seconds while a page is open, are billed as operations.

    States, pings and syphons are those of clients on this machine, of this user, that have a control socket. With
    --control the faults of a broker are switched over its socket, which answers when its port does not.
    """
    # Imported when needed: the network takes a third of a second, which other commands should not pay.
    from pairbus.cli.serve.dashboard_page import PageOptions

    options = PageOptions(
        _given(primary, secondary, credential, ca_file),
        primary_name=primary_name,
        rotation=backlog_queue_count,
        controls=tuple(control or ()),
        host=host,
        hosts=frozenset(name.lower() for name in allowed_host or ()),
        ca_file=ca_file,
    )
    run(_run(options, host, port))


def _given(primary: str | None, secondary: str | None, credential: str | None, ca_file: Path | None) -> list[Given]:
    from pairbus.cli.serve.dashboard_page import Given

    namespaces = Namespaces(credential, ca_file)
    pair: list[Given] = []
    for value, option, variable in (
        (primary, "--primary", "PAIRBUS_PRIMARY"),
        (secondary, "--secondary", "PAIRBUS_SECONDARY"),
    ):
        if value is None and pair:
            continue
        side = namespaces.side(value, option, variable)
        text = connection_string(value, option, variable)
        pair.append(Given(side, text if "=" in text else None))
    namespaces.check()
    if len(pair) == 2:
        check_two(pair[0].side, pair[1].side)
    return pair


async def _run(page: PageOptions, host: str, port: int) -> None:
    from pairbus.cli.serve.dashboard_page import make_page
    from pairbus.dashboard.server import DashboardServer

    made, token = await make_page(page)
    async with DashboardServer(made, host, port) as server:
        stopped = stop_event()  # before the address is printed: from then on a signal is a clean end
        for line in address_lines(server.url, token):
            typer.echo(line)
        await stopped.wait()


def address_lines(url: str, token: str | None) -> list[str]:
    """Return the lines with the URL of the page. The token is behind '#', which no browser sends."""
    return [f"page: {url}" if token is None else f"page: {url}#token={token}", "Ctrl-C ends it."]
