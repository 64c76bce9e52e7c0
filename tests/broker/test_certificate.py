"""The broker's own certificate: accepted by strict clients, renewed when it must be, kept when it need not be."""

from __future__ import annotations

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pairbus.broker.wire.certificate import RENEW_BEFORE, VALIDITY, ca_path, server_context
from pairbus.errors import ConfigError

NOW = datetime.now(UTC)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def handshake(server: ssl.SSLContext, ca_file: Path, host: str) -> None:
    """A whole TLS handshake in memory, with a client that checks everything OpenSSL can check."""
    client = ssl.create_default_context(cafile=str(ca_file))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server, server_hostname=host)
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    unfinished = [client_end, server_end]
    for _ in range(10):
        for end in list(unfinished):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            unfinished.remove(end)
        if not unfinished:
            return
    raise AssertionError("the handshake did not end")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "contoso", "Broker.Example", "10.1.2.3"])
def test_a_strict_client_accepts_the_certificate_for_every_host(tmp_path: Path, host: str) -> None:
    """Python 3.13 and OpenSSL 3 refuse certificates without key identifiers or key usage."""
    context = server_context(tmp_path, ["contoso", "broker.example", "10.1.2.3"])
    handshake(context, ca_path(tmp_path), host)


def test_a_host_that_is_not_in_the_certificate_is_refused(tmp_path: Path) -> None:
    """The test above could otherwise not fail."""
    context = server_context(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(context, ca_path(tmp_path), "contoso")


def test_the_key_is_private_and_the_authoritys_key_is_nowhere(tmp_path: Path) -> None:
    """Trusting ca.pem must not mean trusting whatever somebody signs with it later."""
    server_context(tmp_path)
    assert sorted(contents(tmp_path)) == ["ca.pem", "server.key", "server.pem"]
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600
    assert b"PRIVATE" not in contents(tmp_path)["ca.pem"] + contents(tmp_path)["server.pem"]


def test_a_good_certificate_is_kept_over_restarts(tmp_path: Path) -> None:
    """Clients have been given ca.pem; a new one at each start would lock them out."""
    server_context(tmp_path, ["contoso", "fabrikam"])
    before = contents(tmp_path)
    server_context(tmp_path, ["fabrikam"])
    assert contents(tmp_path) == before


def test_a_new_host_renews_the_certificate_and_keeps_the_old_hosts(tmp_path: Path) -> None:
    """Two brokers that share a folder in turn would otherwise renew it for ever."""
    server_context(tmp_path, ["contoso"])
    context = server_context(tmp_path, ["fabrikam"])
    handshake(context, ca_path(tmp_path), "contoso")
    handshake(context, ca_path(tmp_path), "fabrikam")


def test_a_certificate_is_renewed_before_it_ends(tmp_path: Path) -> None:
    """A month before, so that a broker which is restarted now and then never serves an expired one."""
    server_context(tmp_path, now=NOW)
    before = contents(tmp_path)
    server_context(tmp_path, now=NOW + VALIDITY - RENEW_BEFORE - timedelta(days=1))
    assert contents(tmp_path) == before
    server_context(tmp_path, now=NOW + VALIDITY - RENEW_BEFORE + timedelta(days=1))
    assert contents(tmp_path)["ca.pem"] != before["ca.pem"]


@pytest.mark.parametrize("name", ["ca.pem", "server.pem", "server.key"])
@pytest.mark.parametrize("damage", ["missing", "garbage", "other"])
def test_files_that_do_not_belong_together_are_replaced_as_a_whole(tmp_path: Path, name: str, damage: str) -> None:
    """A crash between two files of a renewal must not keep the broker from starting."""
    folder, other = tmp_path / "one", tmp_path / "other"
    server_context(folder)
    server_context(other)
    match damage:
        case "missing":
            (folder / name).unlink()
        case "garbage":
            (folder / name).write_bytes(b"garbage")
        case "other":
            (folder / name).write_bytes((other / name).read_bytes())
    handshake(server_context(folder), ca_path(folder), "localhost")


@pytest.mark.parametrize("host", ["", "a" * 64, "a..b"])
def test_a_host_that_cannot_be_is_a_configuration_error(tmp_path: Path, host: str) -> None:
    """The error names the wrong host, instead of a failure inside of a library."""
    with pytest.raises(ConfigError, match="neither a host name nor an IP address"):
        server_context(tmp_path, [host])
