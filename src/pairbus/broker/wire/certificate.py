"""The broker's own certificate: made at the first start, so that clients which insist on TLS find it.

A folder holds `ca.pem` (which clients trust), `server.pem` and `server.key`. The authority signs exactly one
certificate and its private key is thrown away at once: a user who puts `ca.pem` into a trust store trusts this broker,
and no certificate that is signed later. Therefore a renewal brings a new `ca.pem`; certificates last ten years, and a
renewal keeps every host that the old one had.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pairbus.auth.hosts import LOOPBACK_HOSTS
from pairbus.errors import ConfigError
from pairbus.host.folders import FOLDER_MODE

VALIDITY = timedelta(days=3650)
RENEW_BEFORE = timedelta(days=30)
CLOCK_SKEW = timedelta(days=1)  # containers and virtual machines may run behind
EXPIRED_SINCE = timedelta(days=2)  # longer than the skew
EXPIRED_NAME = "expired.pem"


def ca_path(folder: Path) -> Path:
    """Return the path of the certificate that clients must trust."""
    return folder / "ca.pem"


def server_context(folder: Path, hosts: Iterable[str] = (), *, now: datetime | None = None) -> ssl.SSLContext:
    """Return the TLS context of a server that is known by `hosts` besides the loopback names.

    Makes the certificate when there is none, when it ends soon, when a host is missing in it, or when its files do
    not belong together (a crash between two of them). Raises ConfigError for a host that no certificate can name.
    """
    wanted = {_general_name(host) for host in (*LOOPBACK_HOSTS, *hosts)}
    now = now or datetime.now(UTC)
    present = _intact_names(folder, now)
    if present is None or not wanted <= present:
        try:
            _create(folder, wanted | (present or set()), now)
        except OSError as error:
            raise ConfigError(f"cannot write the certificate into {folder}: {error.strerror}") from error
    return _context(folder, "server.pem")


def expiring_contexts(
    folder: Path, hosts: Iterable[str] = (), *, now: datetime | None = None
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return two TLS contexts: one shows a good certificate, one an expired certificate of the same authority.

    Files are as in `server_context`, and `expired.pem`. ConfigError: the folder is not one of ours.
    """
    wanted = {_general_name(host) for host in (*LOOPBACK_HOSTS, *hosts)}
    now = now or datetime.now(UTC)
    if (folder / "server.pem").exists() and not (folder / EXPIRED_NAME).exists():
        raise ConfigError(f"{folder} has a certificate of somebody else; choose another folder")
    present = _intact_names(folder, now, EXPIRED_NAME)
    if present is None or not wanted <= present:
        try:
            _create(folder, wanted | (present or set()), now, has_expired=True)
        except OSError as error:
            raise ConfigError(f"cannot write the certificate into {folder}: {error.strerror}") from error
    return _context(folder, "server.pem"), _context(folder, EXPIRED_NAME)


def _context(folder: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(folder / name, folder / "server.key")
    return context


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        name = host.lower().encode("idna").decode()
    except UnicodeError:
        name = ""
    if not name:
        raise ConfigError(f"{host!r} is neither a host name nor an IP address")
    return x509.DNSName(name)


def _intact_names(folder: Path, now: datetime, *others: str) -> set[x509.GeneralName] | None:
    """Return the names that the stored certificate is good for, or None when the set cannot be used.

    `others`: further certificates that must be of the same authority.
    """
    try:
        authority = x509.load_pem_x509_certificate(ca_path(folder).read_bytes())
        server = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
        key = serialization.load_pem_private_key((folder / "server.key").read_bytes(), password=None)
        server.verify_directly_issued_by(authority)
        for other in others:
            x509.load_pem_x509_certificate((folder / other).read_bytes()).verify_directly_issued_by(authority)
        names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (FileNotFoundError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return None
    if key.public_key() != server.public_key():
        return None
    if now < server.not_valid_before_utc or server.not_valid_after_utc - RENEW_BEFORE < now:
        return None
    return set(names)


def _create(folder: Path, names: set[x509.GeneralName], now: datetime, *, has_expired: bool = False) -> None:
    folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _authority(authority_key, now)
    server = _server(server_key, names, authority, authority_key, now)
    private = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # Each file appears whole; a set that a crash left half old, half new is recognised at the next start.
    if has_expired:  # first: this file marks the folder as one that may be rewritten
        expired = _server(server_key, names, authority, authority_key, now - VALIDITY - EXPIRED_SINCE)
        _write(folder / EXPIRED_NAME, expired.public_bytes(serialization.Encoding.PEM))
    _write(folder / "server.key", private)
    _write(folder / "server.pem", server.public_bytes(serialization.Encoding.PEM))
    _write(ca_path(folder), authority.public_bytes(serialization.Encoding.PEM))


def _authority(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    # The serial number in the name keeps two authorities apart in one trust store: OpenSSL finds issuers by name.
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Pairbus local authority {serial:x}"[:64])])
    usage = _key_usage(sign=False, authority=True)
    return (
        _builder(name, name, key.public_key(), serial, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _server(
    key: ec.EllipticCurvePrivateKey,
    names: set[x509.GeneralName],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    now: datetime,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Pairbus broker")])
    ordered = sorted(names, key=repr)
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _builder(name, authority.subject, key.public_key(), x509.random_serial_number(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(sign=True, authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(ordered), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, serial: int, now: datetime
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=serial,
        not_valid_before=now - CLOCK_SKEW,
        not_valid_after=now + VALIDITY,
    )


def _key_usage(*, sign: bool, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=sign,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
