"""The address of a machine: one, resolved up front, and pinned for every socket and communicator on it.

Nothing here guesses. A name that resolves to nothing, to loopback though others must reach it, or to an
address that no interface of this machine has, is refused with what there is, and what to write.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
import threading
from array import array
from collections.abc import Mapping
from pathlib import Path

from coral.errors import CoralError

RESOLVE_S = 8.0
"""How long a name may take to resolve."""
SIOCGIFCONF = 0x8912
MOST = 128


class AddressError(CoralError):
    """A machine cannot be reached at what was said, or it is not said at what."""


def resolve(name: str, *, what: str, within_s: float = RESOLVE_S) -> str:
    """The address of a name; an address stays as it is. `what`: whose it is, for the reader of an error.

    Raises AddressError where it has none, several of different machines notwithstanding: the first counts,
    IPv4 before IPv6.
    """
    if _is_address(name):
        return name
    if not name:
        raise AddressError(f"{what} has no address", mend="give it the address by which others reach it")
    found, why = _looked_up(name, within_s)
    if not found:
        raise AddressError(
            f"{what}: {name!r} does not resolve: {why}",
            mend=f"write its address instead of {name!r}, or mend /etc/hosts or the name server here",
        )
    return sorted(found, key=lambda one: ipaddress.ip_address(one).version)[0]


def own_address(name: str, *, what: str, alone: bool = False, within_s: float = RESOLVE_S) -> str:
    """The address by which this machine is reached; `alone`: by itself only, so that loopback will do.

    Raises AddressError where it does not resolve, is loopback though others must reach it, or is on none
    of this machine's interfaces.
    """
    address = resolve(name, what=what, within_s=within_s)
    if ipaddress.ip_address(address).is_loopback:
        if not alone:
            raise AddressError(
                f"{what}: {name} is {address}, which no other machine can reach",
                mend=f"give one of {_listed(without_loopback=True)}",
            )
        return address
    interface_of(address, what=what)
    return address


def interface_of(address: str, *, what: str = "this machine") -> str:
    """The network interface that has this address. Raises AddressError where none has."""
    if ipaddress.ip_address(address).is_loopback:
        return "lo"
    for interface, addresses in interfaces().items():
        if address in addresses:
            return interface
    raise AddressError(
        f"{what}: no interface here has the address {address}", mend=f"give one of {_listed()}"
    )


def interfaces() -> Mapping[str, tuple[str, ...]]:
    """The addresses of every interface of this machine (of this network namespace) that is up."""
    found: dict[str, list[str]] = {}
    for interface, address in (*_ipv4(), *_ipv6()):
        found.setdefault(interface, []).append(address)
    return {interface: tuple(addresses) for interface, addresses in found.items()}


def private(address: str) -> bool:
    """Whether it is no address of the open internet."""
    return ipaddress.ip_address(address).is_private


def _listed(without_loopback: bool = False) -> str:
    all_of = [
        f"{address} ({interface})"
        for interface, addresses in interfaces().items()
        for address in addresses
        if not (without_loopback and ipaddress.ip_address(address).is_loopback)
    ]
    return ", ".join(all_of) or "no address: there is no interface"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _looked_up(name: str, within_s: float) -> tuple[list[str], str]:
    """(addresses, why there are none). The resolver knows no time limit of its own: it runs in a thread."""
    found: list[str] = []
    why: list[str] = []

    def look() -> None:
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            found.extend(str(answer[4][0]) for answer in answers)
        except (OSError, UnicodeError) as error:
            why.append(str(getattr(error, "strerror", None) or error))

    thread = threading.Thread(target=look, name="resolve", daemon=True)
    thread.start()
    thread.join(within_s)
    if thread.is_alive():
        return [], f"no answer within {within_s:g} s"
    return list(dict.fromkeys(found)), "".join(why)


def _ipv4() -> list[tuple[str, str]]:
    """(interface, address), aliases of an interface among them."""
    entry = 40
    buffer = array("B", bytes(MOST * entry))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        request = struct.pack("iP", len(buffer), buffer.buffer_info()[0])
        used = struct.unpack("iP", fcntl.ioctl(asked.fileno(), SIOCGIFCONF, request))[0]
    found = []
    for at in range(0, used, entry):
        name = bytes(buffer[at : at + 16]).partition(b"\0")[0].decode().partition(":")[0]
        found.append((name, socket.inet_ntoa(bytes(buffer[at + 20 : at + 24]))))
    return found


def _ipv6() -> list[tuple[str, str]]:
    file = Path("/proc/net/if_inet6")
    if not file.exists():
        return []
    found = []
    for line in file.read_text().splitlines():
        digits, _, _, scope, _, interface = line.split()
        if scope != "20":  # link-local: reached only with the name of an interface
            found.append((interface, str(ipaddress.ip_address(bytes.fromhex(digits)))))
    return found
