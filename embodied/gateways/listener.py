"""TCP listening of gateways: addresses, API keys, signals."""

import errno
import hmac
import ipaddress
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from embodied.errors import UserError
from embodied.wire.addresses import holder


def parse(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, also after `ws://` or `tcp://`, `*` for all interfaces; raises `UserError`."""
    found = re.fullmatch(r"(?:ws://|tcp://)?(\*|\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})", address)
    if found is None or int(found[2]) > 65535:
        raise UserError("not an address", address[:200], "write host:port, such as 127.0.0.1:8000")
    return "0.0.0.0" if found[1] == "*" else found[1].strip("[]"), int(found[2])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_key(given: Sequence[str], wanted: str | None) -> bool:
    """Whether the values of a request's `Authorization` header hold the wanted API key; true where None is wanted."""
    if wanted is None:
        return True
    scheme, _, key = (given[0] if len(given) == 1 else "").partition(" ")
    same = hmac.compare_digest(key.strip().encode("utf-8", "replace"), wanted.encode("utf-8", "replace"))
    return same and scheme.lower() == "api-key"


def listen(host: str, port: int, address: str) -> socket.socket:
    """Open a listening TCP socket; raises `UserError` naming `address` where that fails."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            what = f"port {port} is in use{holder(port)}"
            raise UserError(what, address, "stop that process, or choose another port") from None
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise UserError(f"cannot listen: {why.lower()}", address, "choose another port or address") from None


def probe(host: str, port: int, address: str) -> None:
    """Raise `UserError` unless the address can be listened on now; port 0 is always free."""
    listen(host, port, address).close()


@contextmanager
def signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGINT and SIGTERM, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
