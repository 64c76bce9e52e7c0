"""Unix sockets that only their user may open, and that are not visible before they are served."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from pathlib import Path

SOCKET_MODE = 0o600
PATH_BYTES_MAX = 106 if sys.platform == "linux" else 102  # limit of the system, less the dot of the first name
CONNECT_S = 1.0


def listen(path: Path) -> socket.socket:
    """Return a listening socket at this path; a socket that a killed process left behind is replaced.

    OSError when the path is too long, taken, or not writable. Programs that this process starts do not inherit the
    socket. It is bound under another name and renamed when it listens: until then others would take it for a stale one.
    """
    size = len(os.fsencode(path))
    if size > PATH_BYTES_MAX:
        reason = f"its path has {size} bytes, and a Unix socket allows {PATH_BYTES_MAX}; use a shorter path"
        raise OSError(errno.ENAMETOOLONG, reason)
    at_first = path.with_name(f".{path.name}")
    for taken in (path, at_first):
        if os.path.lexists(taken) and not is_stale(taken):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    at_first.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(at_first))
        at_first.chmod(SOCKET_MODE)  # before it listens, so that no other user can connect
        listener.listen()
        at_first.rename(path)
    except BaseException:
        listener.close()
        at_first.unlink(missing_ok=True)
        raise
    return listener


def is_stale(path: Path) -> bool:
    """Tell whether this is a socket that no process serves. A socket that may not be opened belongs to another user."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(CONNECT_S)
            client.connect(str(path))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def has_unix_sockets() -> bool:
    """Tell whether this system has Unix sockets that Python knows."""
    return hasattr(socket, "AF_UNIX")
