# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Do the hosts reach each other's ports? Each host listens on its free ports and dials the others', at the same time."""
from __future__ import annotations

import errno
import selectors
import socket
import time

from .host_ports import listeners

_BLOCKED = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM)


def _resolve(address):
    """Return ``(family, address)`` of a host's address or name, or None when it has none."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        return None
    return found[0], found[4][0]


def _listen(address, ports, chosen):
    """Open listeners on those ports that are free; returns ``(sockets, [ports that are listened on])``."""
    sockets, open_ports = [], []
    family, address = _resolve(address) or (None, None)
    for port in ports if family else ():
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        try:
            listener.bind((address, port))
            listener.listen(64)
        except OSError as error:
            listener.close()
            # Our own engine, already running, listens there; an outgoing connection may hold a port as well.
            if error.errno == errno.EADDRINUSE and listeners([port]):
                open_ports.append(port)
            continue
        sockets.append(listener)
        open_ports.append(port)
        chosen.register(listener, selectors.EVENT_READ, None)
    return sockets, open_ports


class _Dial:
    """One peer's port, dialled again while it refuses, since that host may not listen yet."""

    def __init__(self, peer, port):
        self.peer, self.port, self.socket, self.again = peer, port, None, 0.0
        self.family, self.address = _resolve(peer["address"]) or (None, None)
        self.outcome = "no answer" if self.family else "no such host"

    def start(self, chosen):
        self.socket = socket.socket(self.family, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        code = self.socket.connect_ex((self.address, self.port))
        if code in (0, errno.EINPROGRESS):
            chosen.register(self.socket, selectors.EVENT_WRITE, self)
        else:
            self.finish(code, None)

    def finish(self, code, chosen):
        if chosen:
            chosen.unregister(self.socket)
        self.socket.close()
        self.socket = None
        self.outcome = "open" if code == 0 else "refused" if code == errno.ECONNREFUSED else (
            "blocked: %s" % errno.errorcode.get(code, code) if code in _BLOCKED else errno.errorcode.get(code, str(code)))
        self.again = time.monotonic() + 0.2


def probe(address, ports, peers, timeout=5.0):
    """Listen and dial until every peer's port answered or ``timeout`` seconds passed.

    ``peers``: ``[{host, address, ports[]}]``. Returns ``{listening[], attempts[{host, address, port, outcome}]}``; outcome is
    open, refused, no answer, no such host, or what the network said. The listeners stay for the whole time, for slower peers.
    """
    chosen = selectors.DefaultSelector()
    sockets, listening = _listen(address, ports, chosen)
    dials = [_Dial(peer, port) for peer in peers for port in peer["ports"]]
    end = time.monotonic() + timeout
    try:
        while time.monotonic() < end:
            for dial in dials:
                if dial.family and dial.socket is None and dial.outcome != "open" and time.monotonic() >= dial.again:
                    dial.start(chosen)
            for key, _events in chosen.select(0.05):
                if key.data is None:
                    try:
                        key.fileobj.accept()[0].close()
                    except OSError:
                        pass
                else:
                    key.data.finish(key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), chosen)
    finally:
        for dial in dials:
            if dial.socket is not None:
                dial.socket.close()
        for listener in sockets:
            listener.close()
        chosen.close()
    return {"listening": listening, "attempts": [
        {"host": dial.peer["host"], "address": dial.peer["address"], "port": dial.port, "outcome": dial.outcome} for dial in dials]}
