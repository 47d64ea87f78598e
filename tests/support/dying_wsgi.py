"""The API, but for a request that says so the process is killed once its work is committed.

So the client sees what it would see if the machine lost power between commit and answer.
"""

import os
import signal
from collections.abc import Iterable
from typing import Any

from scheduler_project.wsgi import application as _application


def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """The answer of the real application, unless the request asks for a death before it."""
    answer = list(_application(environ, start_response))
    if environ.get("HTTP_X_DIE_BEFORE_ANSWER"):
        os.kill(os.getpid(), signal.SIGKILL)
    return answer
