"""Which port each service listens on.

Owns the rule: a port that was set is used or the start stops; else the last one is kept while it
is free or ours; else the usual one; else the next free one.
"""

import itertools
import socket
from collections.abc import Callable, Mapping

from scheduler_project.stack.errors import StackError

# Programs that serve their metrics on a port of their own.
METRICS_PORTS = {
    "scheduler-1": 9101,
    "scheduler-2": 9102,
    "worker-1": 9111,
    "worker-2": 9112,
    "notifier": 9121,
}
USUAL_PORTS = {
    "api": 8000,
    "flower": 5555,
    "postgres": 5433,
    "redis": 6380,
    **{f"{program}_metrics": port for program, port in METRICS_PORTS.items()},
}

# Below what the kernel hands to outgoing connections (32768 on Linux): a port picked from those
# could be somebody's client port by the time that a stopped server wants it back.
_LAST_PORT = 32_767
_HIGHEST_PORT = 65_535


def ports_set(environ: Mapping[str, str]) -> dict[str, int]:
    """The ports that a person set, by service; raises StackError for what is no port."""
    ports = {}
    for name in USUAL_PORTS:
        variable = f"{name.upper()}_PORT"
        if text := environ.get(variable):
            if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= _HIGHEST_PORT:
                raise StackError(
                    f"{variable}={text!r} is no port.",
                    f"set {variable} to a number from 1 to {_HIGHEST_PORT}, or leave it out",
                )
            ports[name] = int(text)
    return ports


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: without it the last connections of the old server (TIME_WAIT) would
        # make its port look taken for a minute.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def first_free(start: int, avoid: frozenset[int] = frozenset()) -> int:
    """Return the first free port from `start` on that is not in `avoid`."""
    for port in itertools.chain(range(start, _LAST_PORT + 1), range(1024, start)):
        if port not in avoid and is_free(port):
            return port
    raise StackError("No port is free on 127.0.0.1.")


def choose_ports(
    wanted: Mapping[str, int],
    kept: Mapping[str, int],
    is_ours: Callable[[int], bool],
) -> dict[str, int]:
    """Return a port for each service of USUAL_PORTS.

    `wanted` holds the ones a person set, `kept` those of last time; `is_ours` tells whether the
    process that listens on a port now belongs to this stack.
    """
    ports: dict[str, int] = {}
    for name, usual in USUAL_PORTS.items():
        avoid = frozenset(ports.values()) | frozenset(
            port for other, port in wanted.items() if other != name
        )
        ports[name] = _choose(name, usual, wanted.get(name), kept.get(name), avoid, is_ours)
    return ports


def _choose(
    name: str,
    usual: int,
    wanted: int | None,
    kept: int | None,
    avoid: frozenset[int],
    is_ours: Callable[[int], bool],
) -> int:
    if wanted is not None:
        if not is_free(wanted) and not is_ours(wanted):
            variable = f"{name.upper()}_PORT"
            raise StackError(
                f"{variable}={wanted}, but another program listens there.",
                f"set {variable} to a free port, or leave it out to have one picked",
            )
        return wanted
    if kept is not None and kept not in avoid and (is_free(kept) or is_ours(kept)):
        return kept
    return first_free(usual, avoid)
