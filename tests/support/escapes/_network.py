"""Attempts on the network and on the host's sockets."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
from pathlib import Path

from ._attempt import Facts, attempt, syscall

_KNOWN_SOCKETS = (
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/systemd/journal/stdout",
    "/run/user/0/bus",
    "/run/user/1000/bus",
    "/tmp/.X11-unix/X0",
)


def _connect(family: int, address: object, kind: int = socket.SOCK_STREAM) -> str:
    with socket.socket(family, kind) as connection:
        connection.settimeout(3)
        connection.connect(address)  # pyright: ignore[reportArgumentType]
    return f"connected to {address}"


@attempt("network", "Connect to a service on the host's loopback (IPv4)")
def connect_loopback4(facts: Facts) -> str | None:
    return _connect(socket.AF_INET, ("127.0.0.1", facts["tcp4"]))


@attempt("network", "Connect to a service on the host's loopback (IPv6)")
def connect_loopback6(facts: Facts) -> str | None:
    return _connect(socket.AF_INET6, ("::1", facts["tcp6"]))


@attempt("network", "Connect to the host by its own address")
def connect_host(facts: Facts) -> str | None:
    return _connect(socket.AF_INET, (facts["address"] or "127.0.0.2", facts["tcp4"]))


@attempt("network", "Find a route to the internet (IPv4)")
def route4(facts: Facts) -> str | None:
    # Connecting a datagram socket sends nothing; it fails where there is no route.
    return _connect(socket.AF_INET, ("192.0.2.1", 9), socket.SOCK_DGRAM)


@attempt("network", "Find a route to the internet (IPv6)")
def route6(facts: Facts) -> str | None:
    return _connect(socket.AF_INET6, ("2001:db8::1", 9), socket.SOCK_DGRAM)


@attempt("network", "Reach a cloud's metadata service")
def reach_metadata(facts: Facts) -> str | None:
    return _connect(socket.AF_INET, ("169.254.169.254", 80), socket.SOCK_DGRAM)


@attempt("network", "Send a datagram to the host")
def send_datagram(facts: Facts) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(facts["canary"].encode(), ("127.0.0.1", facts["udp"]))
    return None  # The host checks whether it arrived.


@attempt("network", "Reach a name server")
def reach_name_server(facts: Facts) -> str | None:
    for line in Path("/etc/resolv.conf").read_text().splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "nameserver":
            family = socket.AF_INET6 if ":" in words[1] else socket.AF_INET
            return _connect(family, (words[1], 53), socket.SOCK_DGRAM)
    return None


@attempt("network", "Connect to a Unix socket of the host")
def connect_unix(facts: Facts) -> str | None:
    return _connect(socket.AF_UNIX, facts["unix_stream"])


@attempt("network", "Send a datagram to a Unix socket of the host")
def send_unix_datagram(facts: Facts) -> str | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", facts["unix_datagram"])
    return "sent"


@attempt("network", "Send a datagram to the host through one end of a socket pair")
def send_from_pair(facts: Facts) -> str | None:
    left, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    left.sendto(b"x", facts["unix_datagram"])
    return "sent"


@attempt("network", "Connect to an abstract socket of the host")
def connect_abstract(facts: Facts) -> str | None:
    return _connect(socket.AF_UNIX, "\0" + facts["abstract"])


@attempt("network", "Connect to the host's well-known services (Docker, D-Bus, systemd, X)")
def connect_known_services(facts: Facts) -> str | None:
    for path in _KNOWN_SOCKETS:
        with contextlib.suppress(OSError):
            return _connect(socket.AF_UNIX, path)
    return None


@attempt("network", "Connect to the host's socket through a symbolic link in the workspace")
def connect_through_link(facts: Facts) -> str | None:
    link = Path(facts["workspace"], "socket")
    link.symlink_to(facts["unix_stream"])
    return _connect(socket.AF_UNIX, str(link))


@attempt("network", "See the host's network interfaces")
def list_interfaces(facts: Facts) -> str | None:
    names = {name for _, name in socket.if_nameindex()} - {"lo"}
    return f"{sorted(names)}" if names else None


@attempt("network", "Listen to kernel events (netlink)")
def listen_to_kernel(facts: Facts) -> str | None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15).bind((0, 1))
    return "listening"


@attempt("network", "Talk to the audit system (netlink)")
def talk_to_audit(facts: Facts) -> str | None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)
    return "opened"


@attempt("network", "Capture packets")
def capture_packets(facts: Facts) -> str | None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    return "capturing"


@attempt("network", "Send raw IP packets")
def send_raw(facts: Facts) -> str | None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    return "opened"


@attempt("network", "Use the kernel's crypto sockets")
def open_crypto_socket(facts: Facts) -> str | None:
    socket.socket(38, socket.SOCK_SEQPACKET, 0)
    return "opened"


@attempt("network", "Talk to the hypervisor (vsock)")
def open_vsock(facts: Facts) -> str | None:
    socket.socket(40, socket.SOCK_STREAM, 0)
    return "opened"


@attempt("network", "Use rare socket families (Bluetooth, CAN, TIPC, RDS, X.25, XDP)")
def open_rare_sockets(facts: Facts) -> str | None:
    opened: list[int] = []
    for family in (9, 21, 29, 30, 31, 44):
        for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            with contextlib.suppress(OSError):
                socket.socket(family, kind, 0)
                opened.append(family)
    return f"{opened}" if opened else None


@attempt("network", "Slip a socket family past the filter in the upper half of a register")
def smuggle_family(facts: Facts) -> str | None:
    libc = ctypes.CDLL(None, use_errno=True)
    number = 198 if os.uname().machine == "aarch64" else 41
    wide = ctypes.c_long((1 << 32) | socket.AF_PACKET)
    fd = libc.syscall(ctypes.c_long(number), wide, ctypes.c_long(socket.SOCK_RAW), ctypes.c_long(0))
    if fd < 0:
        raise OSError(ctypes.get_errno(), errno.errorcode[ctypes.get_errno()])
    return "opened"


@attempt("network", "Enter the host's network namespace")
def enter_host_network(facts: Facts) -> str | None:
    for pid in (1, facts["pid"]):
        with contextlib.suppress(OSError):
            syscall("setns", os.open(f"/proc/{pid}/ns/net", os.O_RDONLY), 0)
            return "entered"
    return None
