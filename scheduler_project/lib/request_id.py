"""The id by which answers and logs name a request; its rule: the caller's is kept if sane."""

import re
import uuid
from contextvars import ContextVar
from typing import Final

HEADER: Final = "X-Request-Id"
# Printable and free of anything that could end a header or forge a log line.
_SANE: Final = re.compile(r"[A-Za-z0-9._:@=+/-]{1,128}", re.ASCII)

# The id of the request this thread works on; empty outside requests.
current_request_id: ContextVar[str] = ContextVar("current_request_id", default="")


def request_id_from(header: str | None) -> str:
    """Return the caller's id, or a fresh `req_…` when it has none or it is malformed."""
    if header is not None and _SANE.fullmatch(header):
        return header
    return f"req_{uuid.uuid4().hex}"
