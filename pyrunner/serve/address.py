"""Where `pyrunner serve` listens."""

from dataclasses import dataclass
from typing import Final

__all__ = ["DEFAULT_ADDRESS", "Address", "parse_address"]


@dataclass(frozen=True)
class Address:
    """Where to listen.

    Attributes:
        host: a name or an IP address; "" is all of this machine's.
        port: 0 takes a free one.
    """

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


# a port that nobody has registered
DEFAULT_ADDRESS: Final = Address("127.0.0.1", 8917)


def parse_address(text: str) -> Address:
    """Reads HOST:PORT, [IPV6]:PORT or :PORT.

    Raises:
        ValueError: it is none; the message says what is wanted.
    """
    host, colon, port = text.strip().rpartition(":")
    bare = host.startswith("[") and host.endswith("]")
    if bare:
        host = host[1:-1]
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    if not colon or not is_port or (":" in host) != bare or not host.isprintable() or " " in host:
        raise ValueError("HOST:PORT such as 127.0.0.1:8917, [::1]:8917, or :8917 for all addresses")
    return Address(host, int(port))
