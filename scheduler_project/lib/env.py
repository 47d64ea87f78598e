"""Strict readers of environment variables: a bad value stops the start and says how to mend it."""

import os
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TypeVar

T = TypeVar("T")


class SettingError(ValueError):
    """A variable is missing or malformed; the message names it, its value and what is accepted."""


def _read(name: str, default: T | None, convert: Callable[[str], T], accepted: str) -> T:
    text = os.environ.get(name)
    if text is None or text == "":
        if default is None:
            raise SettingError(f"{name} is not set. Set it to {accepted}.")
        return default
    try:
        return convert(text)
    except ValueError as error:
        raise SettingError(f"{name}={text!r} is not valid: set it to {accepted}.") from error


def text(name: str, default: str | None = None, *, accepted: str = "a text") -> str:
    """Return the variable, or `default`; without a default a missing one is an error."""
    return _read(name, default, str, accepted)


def integer(name: str, default: int, *, low: int, high: int) -> int:
    """Return a whole number between `low` and `high`, both included."""

    def convert(value: str) -> int:
        number = int(value)
        if not low <= number <= high:
            raise ValueError(value)
        return number

    return _read(name, default, convert, f"a whole number from {low} to {high}")


def seconds(name: str, default: float, *, low: float, high: float) -> float:
    """Return a duration in seconds between `low` and `high`, both included."""

    def convert(value: str) -> float:
        number = float(value)
        if not low <= number <= high:
            raise ValueError(value)
        return number

    return _read(name, default, convert, f"a number of seconds from {low} to {high}")


def boolean(name: str, default: bool) -> bool:
    """Return True for 1/true/yes/on and False for 0/false/no/off, in any case."""

    def convert(value: str) -> bool:
        words = {"1": True, "true": True, "yes": True, "on": True}
        words |= {"0": False, "false": False, "no": False, "off": False}
        try:
            return words[value.strip().lower()]
        except KeyError as error:
            raise ValueError(value) from error

    return _read(name, default, convert, "one of 1, 0, true, false, yes, no, on, off")


def words(name: str, default: list[str]) -> list[str]:
    """Return a comma-separated list, blanks dropped."""
    return _read(
        name, default, lambda value: [w.strip() for w in value.split(",") if w.strip()], "a,b,c"
    )


def choice(name: str, default: str, accepted: set[str]) -> str:
    """Return one of `accepted`."""

    def convert(value: str) -> str:
        if value not in accepted:
            raise ValueError(value)
        return value

    return _read(name, default, convert, "one of " + ", ".join(sorted(accepted)))


def networks(name: str) -> list[IPv4Network | IPv6Network]:
    """Return a comma-separated list of networks; none when the variable is not set."""
    return _read(
        name,
        [],
        lambda value: [ip_network(w.strip()) for w in value.split(",") if w.strip()],
        "networks such as 192.0.2.0/24,2001:db8::/32",
    )
