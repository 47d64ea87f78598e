"""What may a job ask for? Its rule: every bound has a name, and each breach names field and cure.

Types are the caller's business (the API reads JSON strictly); values are decided here, the same
for the API, admin and commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from jobs.domain.exit_codes import ExitCodes, exit_codes_problems
from jobs.domain.image import ImageError, is_allowed

OVERLAPS: Final = ("skip", "queue", "allow", "replace")
# How many runs wait behind an active one (overlap = queue) before the next is skipped.
DEFAULT_QUEUE_LIMIT: Final = 10
LONGEST_QUEUE: Final = 1_000

Backoff = Literal["exponential", "fixed"]
Jitter = Literal["full", "none"]

MOST_ATTEMPTS: Final = 20
# A day: what may start later than that is late by nobody's measure.
LONGEST_LATE_AFTER_S: Final = 86_400
MOST_FAILURES_TO_PAUSE: Final = 1_000
SHORTEST_TIMEOUT_S: Final = 1
# A day: longer waits between attempts are schedules, not retries.
LONGEST_BACKOFF_S: Final = 86_400
DEFAULT_CPU: Final = 1.0
LEAST_CPU: Final = 0.01
DEFAULT_MEMORY_MB: Final = 512
# Engines refuse less than 6 MB, and nothing useful starts in it.
LEAST_MEMORY_MB: Final = 16

# The kernel takes 128 KiB for one argument or variable; all of them ride in every job version.
MOST_ARGS: Final = 1_000
ARG_BYTES: Final = 32_768
ARGS_BYTES: Final = 65_536
MOST_VARIABLES: Final = 500
VARIABLE_NAME_LENGTH: Final = 128
VARIABLE_BYTES: Final = 32_768
ENV_BYTES: Final = 65_536
MOST_LABELS: Final = 32
LABEL_VALUE_LENGTH: Final = 200

# Set by us in every container, or kept for us (RUN_TOKEN): a program must be able to trust them.
RESERVED_VARIABLES: Final = frozenset(
    {"RUN_ID", "JOB_ID", "ATTEMPT", "SCHEDULED_FOR", "FENCE", "RUN_TOKEN"}
)
_VARIABLE_NAME: Final = re.compile(
    rf"[A-Za-z_][A-Za-z0-9_]{{0,{VARIABLE_NAME_LENGTH - 1}}}", re.ASCII
)
# No colon: the list filter `label=name:value` splits at the first one.
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One thing wrong with a request. `path` leads to the member; `code` is stable."""

    path: tuple[str | int, ...]
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """What a run executes: an image with arguments and variables, within its limits."""

    image: str
    timeout_s: int
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: float = DEFAULT_CPU
    memory_mb: int = DEFAULT_MEMORY_MB

    def to_json(self) -> dict[str, object]:
        """The stored and shown form; nothing is left out, so that defaults are seen."""
        return {
            "image": self.image,
            "args": list(self.args),
            "env": dict(self.env),
            "timeout_s": self.timeout_s,
            "resources": {"cpu": self.cpu, "memory_mb": self.memory_mb},
        }


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a run is tried and how long it waits between tries (seconds)."""

    max_attempts: int = 1
    backoff: Backoff = "exponential"
    base_s: float = 5
    max_s: float = 3_600
    jitter: Jitter = "full"
    exit_codes: ExitCodes = field(default_factory=ExitCodes)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Retry:
        """The policy that `to_json` stored; what is missing takes its default."""
        return cls(**{**stored, "exit_codes": ExitCodes.from_json(stored.get("exit_codes"))})

    def to_json(self) -> dict[str, object]:
        """The stored and shown form, defaults included."""
        return {
            "max_attempts": self.max_attempts,
            "backoff": self.backoff,
            "base_s": self.base_s,
            "max_s": self.max_s,
            "jitter": self.jitter,
            "exit_codes": self.exit_codes.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a tenant may ask for at most."""

    timeout_s: int
    cpu: float
    memory_mb: int
    image_prefixes: tuple[str, ...] = ()


def task_problems(task: Task, ceilings: Ceilings) -> Iterator[FieldProblem]:
    """Everything wrong with `task` for a tenant with these ceilings."""
    resources = ("task", "resources")
    yield from _image_problems(task.image, ceilings.image_prefixes)
    yield from _args_problems(task.args)
    yield from _env_problems(task.env)
    yield from _range(("task", "timeout_s"), task.timeout_s, SHORTEST_TIMEOUT_S, ceilings.timeout_s)
    yield from _range((*resources, "cpu"), task.cpu, LEAST_CPU, ceilings.cpu)
    yield from _range(
        (*resources, "memory_mb"), task.memory_mb, LEAST_MEMORY_MB, ceilings.memory_mb
    )


def retry_problems(retry: Retry) -> Iterator[FieldProblem]:
    """Everything wrong with `retry`."""
    yield from _range(("retry", "max_attempts"), retry.max_attempts, 1, MOST_ATTEMPTS)
    yield from _range(("retry", "base_s"), retry.base_s, 0, LONGEST_BACKOFF_S)
    yield from _range(("retry", "max_s"), retry.max_s, 0, LONGEST_BACKOFF_S)
    if retry.base_s > retry.max_s:
        yield FieldProblem(("retry", "base_s"), "too_large", "base_s is larger than max_s")
    for path, message in exit_codes_problems(retry.exit_codes):
        yield FieldProblem(("retry", "exit_codes", *path), "invalid_exit_code", message)


def overlap_problems(
    overlap: str, queue_limit: int = DEFAULT_QUEUE_LIMIT
) -> Iterator[FieldProblem]:
    """A problem unless `overlap` is one of those offered, and its queue is of a length offered."""
    if overlap not in OVERLAPS:
        yield FieldProblem(("overlap",), "invalid_choice", f"must be one of {', '.join(OVERLAPS)}")
    yield from _range(("queue_limit",), queue_limit, 1, LONGEST_QUEUE)


def label_problems(labels: Mapping[str, str]) -> Iterator[FieldProblem]:
    """Everything wrong with a job's labels."""
    if len(labels) > MOST_LABELS:
        yield _too_many(("labels",), len(labels), MOST_LABELS, "labels")
        return
    for name, value in labels.items():
        if not _LABEL_NAME.fullmatch(name):
            yield FieldProblem(
                ("labels", name),
                "invalid_label_name",
                "a label's name must be 1 to 63 letters, digits, '.', '_', '/' or '-', "
                "with a letter or digit at both ends",
            )
        if len(value) > LABEL_VALUE_LENGTH:
            message = f"a label's value has at most {LABEL_VALUE_LENGTH} characters"
            yield FieldProblem(("labels", name), "too_long", message)


def _image_problems(image: str, prefixes: tuple[str, ...]) -> Iterator[FieldProblem]:
    path = ("task", "image")
    try:
        allowed = is_allowed(image, list(prefixes))
    except ImageError as error:
        yield FieldProblem(path, "invalid_image", error.message, error.hint)
        return
    if not allowed:
        hint = f"an image that begins with one of: {', '.join(prefixes)}"
        yield FieldProblem(path, "image_not_allowed", "your account may not run this image", hint)


def _args_problems(args: tuple[str, ...]) -> Iterator[FieldProblem]:
    path = ("task", "args")
    if len(args) > MOST_ARGS:
        yield _too_many(path, len(args), MOST_ARGS, "arguments")
        return
    sizes = [_bytes(arg) for arg in args]
    for index, size in enumerate(sizes):
        if size > ARG_BYTES:
            yield _too_long((*path, index), size, ARG_BYTES)
    if sum(sizes) > ARGS_BYTES:
        yield _too_long(path, sum(sizes), ARGS_BYTES)


def _env_problems(env: Mapping[str, str]) -> Iterator[FieldProblem]:
    path = ("task", "env")
    if len(env) > MOST_VARIABLES:
        yield _too_many(path, len(env), MOST_VARIABLES, "variables")
        return
    for name, value in env.items():
        yield from _variable_problems((*path, name), name, value)
    total = sum(_bytes(name) + _bytes(value) for name, value in env.items())
    if total > ENV_BYTES:
        yield _too_long(path, total, ENV_BYTES)


def _variable_problems(path: tuple[str, ...], name: str, value: str) -> Iterator[FieldProblem]:
    if name in RESERVED_VARIABLES:
        message = f"{name} is the scheduler's own in every container"
        yield FieldProblem(path, "reserved_env_name", message, "choose another name")
    elif not _VARIABLE_NAME.fullmatch(name):
        yield FieldProblem(
            path,
            "invalid_env_name",
            f"a variable's name must be 1 to {VARIABLE_NAME_LENGTH} letters, digits or '_', "
            "and not begin with a digit",
        )
    if _bytes(value) > VARIABLE_BYTES:
        yield _too_long(path, _bytes(value), VARIABLE_BYTES)


def _range(path: tuple[str, ...], value: float, low: float, high: float) -> Iterator[FieldProblem]:
    """A problem unless low ≤ value ≤ high; not-a-number is in no range."""
    if not low <= value <= high:
        code = "too_small" if value < low else "too_large"
        yield FieldProblem(path, code, f"must be between {low} and {high}")


def _too_many(path: tuple[str, ...], count: int, most: int, what: str) -> FieldProblem:
    return FieldProblem(path, "too_long", f"{count} {what} are more than {most}")


def _too_long(path: tuple[str | int, ...], size: int, most: int) -> FieldProblem:
    return FieldProblem(path, "too_long", f"{size} bytes are more than {most}")


def _bytes(text: str) -> int:
    # surrogatepass: half a surrogate pair is refused elsewhere, and must not be an exception here.
    return len(text.encode("utf-8", "surrogatepass"))
