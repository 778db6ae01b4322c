"""The etcd flags that both commands share, and their check as a whole."""

from __future__ import annotations

import argparse
import ssl
from urllib.parse import urlsplit

from infera_router.fleet.etcd import EtcdSettings
from infera_router.fleet.options import Option, UsageError, file, text
from infera_router.fleet.record import DEFAULT_PREFIX

DEFAULT_PORT = 2379


def endpoint(value: str) -> str:
    """host, host:port or http(s)://host:port; a scheme that is not given is filled in later."""
    url = value if "://" in value else f"//{value}"
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise ValueError(f"is not host:port or a URL ({error})") from None
    if parts.scheme not in ("", "http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise ValueError("is not host, host:port or http(s)://host:port")
    if parts.username is not None:
        raise ValueError("carries a user; use --etcd-user and --etcd-password-file")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}" if parts.scheme else f"{host}:{port}"


def prefix(value: str) -> str:
    if not value.startswith("/") or not value.endswith("/"):
        raise ValueError("has to begin and end with /")
    return value


ETCD_OPTIONS = (
    Option("--etcd-endpoint", "etcd client endpoint: host, host:port or URL; one that fails is followed by the next", endpoint,
           default=("http://127.0.0.1:2379",), metavar="URL", repeat=True, group="etcd"),
    Option("--etcd-prefix", "key prefix of the worker records; engines and routers of one deployment share it", prefix,
           default=DEFAULT_PREFIX, group="etcd"),
    Option("--etcd-ca-file", "PEM file of the authority that signed etcd's certificate; makes endpoints without a scheme https", file,
           metavar="FILE", group="etcd"),
    Option("--etcd-cert-file", "PEM file of the client certificate, needs --etcd-key-file", file, metavar="FILE", group="etcd"),
    Option("--etcd-key-file", "PEM file of the client certificate's key", file, metavar="FILE", group="etcd"),
    Option("--etcd-user", "etcd user, needs --etcd-password-file", text, group="etcd"),
    Option("--etcd-password-file", "file with the user's password (mode 0600), read again at every login", file, metavar="FILE",
           group="etcd"),
)


def etcd_settings(values: argparse.Namespace) -> EtcdSettings:
    """The settings of parsed ETCD_OPTIONS. Raises UsageError where options do not fit together or a PEM file is none."""
    tls = bool(values.etcd_ca_file or values.etcd_cert_file)
    endpoints = tuple(dict.fromkeys(url if "://" in url else f"{'https' if tls else 'http'}://{url}" for url in values.etcd_endpoint))
    for url in endpoints:
        if tls and url.startswith("http:"):
            raise UsageError(f"--etcd-endpoint: {url!r} is plain http, but --etcd-ca-file or --etcd-cert-file is given; write https://")
    for one, other in (("etcd_cert_file", "etcd_key_file"), ("etcd_key_file", "etcd_cert_file"),
                       ("etcd_user", "etcd_password_file"), ("etcd_password_file", "etcd_user")):
        if getattr(values, one) and not getattr(values, other):
            raise UsageError(f"--{one.replace('_', '-')} needs --{other.replace('_', '-')}")
    settings = EtcdSettings(endpoints, values.etcd_ca_file, values.etcd_cert_file, values.etcd_key_file,
                            values.etcd_user, values.etcd_password_file)
    _check_pem(settings)
    return settings


def _check_pem(settings: EtcdSettings) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if settings.ca_file or settings.cert_file else None
    if context is None:
        return
    if settings.ca_file:
        try:
            context.load_verify_locations(settings.ca_file)
        except (ssl.SSLError, OSError) as error:
            raise UsageError(f"--etcd-ca-file: {settings.ca_file!r} holds no PEM certificate ({error})") from None
    if settings.cert_file:
        try:
            context.load_cert_chain(settings.cert_file, settings.key_file, password="")
        except (ssl.SSLError, OSError) as error:
            raise UsageError(f"--etcd-cert-file: {settings.cert_file!r} with --etcd-key-file {settings.key_file!r} is no PEM pair "
                             f"without a passphrase ({error})") from None
