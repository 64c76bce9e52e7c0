"""The switches of a running broker over HTTP: `/$pairbus/…` on the port of a namespace, with a key that may manage."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from pairbus.auth.connection_string import ConnectionString
from pairbus.auth.emulator import DEFAULT_PORT
from pairbus.auth.hosts import in_url
from pairbus.auth.sas import sign
from pairbus.errors import ConfigError, PairbusError
from pairbus.sdk.administration import CONNECT_WAIT_S, READ_WAIT_S, trusted

TOKEN_S = 300
ANSWER_SIZE_MAX = 1 << 20


def switch(connection_string: str, method: str, name: str, asked: Any, ca_file: Path | None = None) -> Any:
    """Make one request to `/$pairbus/<name>` and return its JSON; errors arrive as a PairbusError of one line."""
    parsed = ConnectionString.parse(connection_string)
    port = parsed.port or (DEFAULT_PORT if parsed.emulator else 443)
    authority = f"{in_url(parsed.host)}:{port}"
    token = parsed.signature
    if parsed.key is not None and parsed.key_name is not None:
        token = sign(f"sb://{authority}/", parsed.key_name, parsed.key, int(time.time()) + TOKEN_S)
    headers = {"Authorization": token or "", "Content-Type": "application/json"}
    own_file = None if ca_file is None else str(ca_file)
    wait_s = CONNECT_WAIT_S + READ_WAIT_S  # for connecting and for the answer: the socket has one limit
    try:
        with trusted(parsed.host if parsed.emulator else None, authority, own_file) as certificates:
            context = ssl.create_default_context(cafile=certificates if isinstance(certificates, str) else None)
        with closing(http.client.HTTPSConnection(parsed.host, port, timeout=wait_s, context=context)) as connection:
            connection.request(method, f"/$pairbus/{name}", json.dumps(asked), headers)
            answer = connection.getresponse()
            text = answer.read(ANSWER_SIZE_MAX).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise PairbusError(f"cannot reach {authority}: {error}; is the broker running?") from None
    return _result(answer.status, text, authority)


def _result(status: int, text: str, authority: str) -> Any:
    if status == 401:
        detail = re.search(r"<Detail>(?:SubCode=\d+\. )?(.*?)</Detail>", text, re.DOTALL)
        raise ConfigError(f"{authority} refused the key of the connection string: {detail[1] if detail else status}")
    try:
        reply = json.loads(text)
    except ValueError:
        raise PairbusError(
            f"{authority} does not know this request (status {status}): it is no Pairbus broker of this version"
        ) from None
    if status != 200:
        raise PairbusError(f"refused by {authority}: {reply.get('error', status)}")
    return reply
