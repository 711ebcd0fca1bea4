"""Hosts of a test: network namespaces, each with an address and a network card of its own, on one wire.

The card is a TUN device, whose packets pass through this process. So every packet between two hosts, whichever
protocol it is of and whoever sends it, can be let through, dropped for ever, or dropped now and then; who sends learns
nothing of it but silence, as with a broken switch. The kernel's TCP does the rest, on both ends. Nothing of the
machine's own network is touched, and the namespaces are gone with the processes in them and this one's descriptors.

It takes Linux, the right to make namespaces, and /dev/net/tun: `Unavailable` says what is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import random
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU = 0x8914, 0x8916, 0x891C, 0x8922
IFF_UP, IFF_RUNNING = 0x1, 0x40

CARD = b"tun0"
MTU = 16_000
"""Fewer packets, each of which Python passes on; a loss costs more bytes."""
NETWORK = "10.214.77."
"""Of the namespaces only: the machine has no route there."""
PACKET_BYTES_MAX = 65_535
SOURCE, DESTINATION = slice(12, 16), slice(16, 20)
"""Of an IPv4 header."""

T = TypeVar("T")
Way = tuple[int, int]
"""(from, to), by number of the host."""


class Unavailable(Exception):
    """This machine makes no namespaces for tests."""


class Host:
    """A namespace. `entered` has the calling thread, and the processes and threads it starts meanwhile, live in it."""

    def __init__(self, number: int, namespace: int, card: int) -> None:
        self.number = number
        self.address = f"{NETWORK}{number}"
        self.namespace = namespace
        self.card = card

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _set_namespace(self.namespace)
            try:
                yield
            finally:
                _set_namespace(before)
        finally:
            os.close(before)


class Network:
    """Hosts of these numbers, 1 to 254, which all reach each other. Raises `Unavailable`."""

    def __init__(self, numbers: Iterable[int], seed: int = 1) -> None:
        self.hosts: dict[int, Host] = {}
        self._cut: set[Way] = set()
        self._loss = 0.0
        self._random = random.Random(seed)
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._pass_on, name="network", daemon=True)
        self.passed = self.dropped = 0
        try:
            for number in numbers:
                self.hosts[number] = _in_a_thread(lambda number=number: _made(number))  # type: ignore[misc]
        except OSError as error:
            self._close_descriptors()
            if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENODEV, errno.ENOSYS, errno.EINVAL):
                raise
            raise Unavailable(f"network namespaces with TUN devices cannot be made here: {error}") from error
        self._thread.start()

    def close(self) -> None:
        os.write(self._woken, b"x")
        self._thread.join()
        self._close_descriptors()

    def cut(self, one: int, other: int) -> None:
        """Between two hosts, both ways."""
        self._cut |= {(one, other), (other, one)}

    def cut_one_way(self, sender: int, receiver: int) -> None:
        """Messages from `sender` do not arrive; messages to it do."""
        self._cut.add((sender, receiver))

    def lose(self, share: float) -> None:
        """Of all packets, whoever sends them."""
        self._loss = share

    def mend(self) -> None:
        self._cut.clear()
        self._loss = 0.0

    def _pass_on(self) -> None:
        by_address = {socket.inet_aton(host.address): host for host in self.hosts.values()}
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            for host in self.hosts.values():
                selector.register(host.card, selectors.EVENT_READ, host)
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    packet = os.read(key.data.card, PACKET_BYTES_MAX)
                    to = by_address.get(packet[DESTINATION])
                    if to is None or packet[0] >> 4 != 4:  # what a card says of itself when it comes up
                        continue
                    if (key.data.number, to.number) in self._cut or self._random.random() < self._loss:
                        self.dropped += 1
                        continue
                    with contextlib.suppress(BlockingIOError):  # its queue is full, as a switch's may be
                        os.write(to.card, packet)
                        self.passed += 1

    def _close_descriptors(self) -> None:
        for host in self.hosts.values():
            os.close(host.card)
            os.close(host.namespace)
        os.close(self._wake)
        os.close(self._woken)


def _made(number: int) -> Host:
    """A namespace with its card, made by a thread that ends with that."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "there are namespaces on Linux only")
    _checked(_libc().unshare(CLONE_NEWNET))
    card = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.ioctl(card, TUNSETIFF, struct.pack("16sH22x", CARD, IFF_TUN | IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            for request, address in ((SIOCSIFADDR, f"{NETWORK}{number}"), (SIOCSIFNETMASK, "255.255.255.0")):
                packed = struct.pack("16sHH4s16x", CARD, socket.AF_INET, 0, socket.inet_aton(address))
                fcntl.ioctl(control, request, packed)
            fcntl.ioctl(control, SIOCSIFMTU, struct.pack("16si20x", CARD, MTU))
            for name in (b"lo", CARD):
                fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", name, IFF_UP | IFF_RUNNING))
        namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except BaseException:
        os.close(card)
        raise
    return Host(number, namespace, card)


def _in_a_thread(work: Callable[[], T]) -> T:
    """Done by a thread of its own, which takes along whatever it has entered."""
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def _set_namespace(descriptor: int) -> None:
    _checked(_libc().setns(descriptor, CLONE_NEWNET))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
