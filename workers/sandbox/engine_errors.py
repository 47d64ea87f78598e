"""What the engine's complaints mean to a run: free text in, our small vocabulary out.

Owns the rule that an answer we do not recognise is the engine's trouble, never the customer's.
"""

from __future__ import annotations

import re

from runs.domain.outcome import OutcomeCode
from workers.sandbox.base import (
    BadCommand,
    ContainerGone,
    EngineUnreachable,
    ImageNotFound,
    PermissionDenied,
    PullDenied,
    SandboxError,
)

NOT_FOUND = 404

_NO_SUCH_IMAGE = re.compile(r"no such image", re.I)
_BAD_REFERENCE = re.compile(r"invalid reference format", re.I)
_NO_COMMAND = re.compile(
    r"no command specified"
    r"|exec: .*(executable file not found|no such file or directory|is a directory)"
    r"|exec format error",
    re.I | re.S,
)
# The second: an image whose working directory is closed to an unprivileged user.
_NOT_PERMITTED = re.compile(r"(exec: |chdir to cwd ).*permission denied", re.I | re.S)
# The init is the engine's own part: when that is missing, no customer can help it.
_INIT_MISSING = re.compile(r"docker-init|catatonit", re.I)

_PULL_DENIED = re.compile(
    r"denied:|access denied|unauthorized|authentication required|no basic auth|forbidden", re.I
)
_PULL_NOT_FOUND = re.compile(
    # A registry whose name does not exist has answered, in its way: asking again won't help.
    r"manifest unknown|not found|no such host|name unknown|no matching manifest",
    re.I,
)

# The engine's init is pid 1 and says so when it cannot execute the program; its exit code alone
# (126, 127) could be the program's own.
_INIT_FAILED = re.compile(
    rb"\[FATAL tini \(\d+\)\] exec (?P<what>.*) failed: (?P<why>[^\n]*)\s*\Z", re.S
)
_INIT_EXIT_CODES = frozenset({1, 126, 127})


def error_of_reply(status: int, message: str) -> SandboxError:
    """The error for the engine's refusal to create, start or act on a container."""
    if status == NOT_FOUND and _NO_SUCH_IMAGE.search(message):
        return ImageNotFound(message)
    if status == NOT_FOUND:
        return ContainerGone(message)
    return _error_of_start(message) or EngineUnreachable(f"the engine answered {status}: {message}")


def error_of_pull(image: str, message: str) -> SandboxError:
    """The error for a pull that failed, by what the registry or the way to it said."""
    if _PULL_DENIED.search(message):
        return PullDenied(f"image {image}: {message}")
    if _BAD_REFERENCE.search(message) or _PULL_NOT_FOUND.search(message):
        return ImageNotFound(f"image {image}: {message}")
    return ImageNotFound(f"image {image}: {message}", permanent=False)


def error_of_state(message: str) -> OutcomeCode:
    """The class of the engine's own note on a container that failed to start."""
    error = _error_of_start(message)
    return OutcomeCode.ENGINE_UNREACHABLE if error is None else error.outcome


def exec_failure(exit_code: int | None, output: bytes) -> SandboxError | None:
    """The error when the init could not execute the program, else None.

    A program that prints the init's sentence itself and exits with its code fools only its
    own owner.
    """
    if exit_code not in _INIT_EXIT_CODES:
        return None
    found = _INIT_FAILED.match(output)
    if found is None:
        return None
    what, why = (found[name].decode(errors="replace") for name in ("what", "why"))
    error = PermissionDenied if "permission denied" in why.lower() else BadCommand
    return error(f"cannot execute {what}: {why}")


def _error_of_start(message: str) -> SandboxError | None:
    if _BAD_REFERENCE.search(message):
        return ImageNotFound(message)
    if _INIT_MISSING.search(message):
        return None
    if _NOT_PERMITTED.search(message):
        return PermissionDenied(message)
    if _NO_COMMAND.search(message):
        return BadCommand(message)
    return None
