"""The listening socket, TLS, and the limit of open files."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
import ssl

from infera_router.fleet.options import UsageError
from infera_router.settings import Settings


def bind(settings: Settings) -> socket.socket:
    """The listening socket that all processes of this router share. Raises UsageError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        address = socket.getaddrinfo(settings.host, settings.port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4]
    except OSError as error:
        raise UsageError(f"--host: {settings.host!r} is no address of this machine ({error.strerror})") from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(settings.backlog)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"--port: {settings.port} on {settings.host} is in use by another process; stop it or choose another port") from None
        raise UsageError(f"--host: cannot listen on {settings.host} port {settings.port} ({error.strerror})") from None
    sock.setblocking(False)
    return sock


def tls(settings: Settings) -> ssl.SSLContext | None:
    """The server's TLS context, or None. Raises UsageError for files that are no PEM pair."""
    if not settings.tls_cert_file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file, password="")
    except (ssl.SSLError, OSError) as error:
        raise UsageError(f"--tls-cert-file: {settings.tls_cert_file!r} with --tls-key-file {settings.tls_key_file!r} is no PEM pair "
                         f"without a passphrase ({error})") from None
    return context


def raise_file_limit() -> int:
    """The soft limit of open files up to the hard one; a request needs three. Returns what is in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
