"""What may a job say about exit codes? Its rule: each code stands in one list at most."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MOST_RANGES: Final = 32
# 0 is a success, whatever is said about it.
_LOWEST, _HIGHEST = 1, 255
_RANGE: Final = re.compile(r"(0|[1-9][0-9]{0,2})(?:-([1-9][0-9]{0,2}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ExitCodes:
    """Codes that make a failure final (`fail`), and codes that use no attempt (`ignore`).

    As they were written: single codes ("2") and ranges ("64-78").
    """

    fail: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: object) -> ExitCodes:
        """Read what is stored; what can't be read says nothing."""
        if not isinstance(data, Mapping):
            return cls()
        return cls(fail=_texts(data.get("fail")), ignore=_texts(data.get("ignore")))

    def to_json(self) -> dict[str, list[str]]:
        """The stored and shown form."""
        return {"fail": list(self.fail), "ignore": list(self.ignore)}

    def fails(self, exit_code: int) -> bool:
        """Whether this code makes the failure final."""
        return _holds(self.fail, exit_code)

    def ignores(self, exit_code: int) -> bool:
        """Whether a try that ends with this code is not counted."""
        return _holds(self.ignore, exit_code)


def exit_codes_problems(codes: ExitCodes) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Where something is wrong, and what: a range that can't be read, or a code in both lists."""
    for name, texts in (("fail", codes.fail), ("ignore", codes.ignore)):
        for index, text in enumerate(texts):
            if parse_range(text) is None:
                yield (
                    (name, index),
                    f"must be a code from {_LOWEST} to {_HIGHEST}, or a range such as 64-78",
                )
    for index, text in enumerate(codes.ignore):
        twice = next((code for code in parse_range(text) or () if codes.fails(code)), None)
        if twice is not None:
            yield ("ignore", index), f"{twice} is in fail as well"


def parse_range(text: str) -> range | None:
    """The codes of "2" or "64-78"; None when the text is neither, or leaves 1 to 255."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first = int(match[1])
    last = int(match[2] or match[1])
    return range(first, last + 1) if _LOWEST <= first <= last <= _HIGHEST else None


def _texts(data: Any) -> tuple[str, ...]:
    is_list = isinstance(data, Sequence) and not isinstance(data, str)
    return tuple(text for text in data if isinstance(text, str)) if is_list else ()


def _holds(texts: Sequence[str], exit_code: int) -> bool:
    return any(exit_code in (parse_range(text) or ()) for text in texts)
