"""Bare Celery: a task that does nothing but say so, sent with an ETA.

celery -A bench.peers.bare_celery worker …
"""

from __future__ import annotations

import os

from celery import Celery

from bench.no_op_log import NoOpLog
from scheduler_project.lib import due_timers

app = Celery("bare", broker=os.environ["REDIS_URL"])
app.conf.task_ignore_result = True
# Of the product's workers too: a message stays with the broker until its task has ended. An ETA
# message that is not acknowledged within this time would be delivered again.
app.conf.task_acks_late = True
app.conf.broker_transport_options = {"visibility_timeout": 3_600}
# As it comes, it fires ten due ETAs a second on an idle worker: this is Celery at its best.
if os.environ.get("DUE_TIMERS"):
    due_timers.install(app)

_log: NoOpLog | None = None


@app.task(name="no_op")
def no_op(name: str) -> None:
    """Say that it ran."""
    global _log
    if _log is None:
        _log = NoOpLog(os.environ["NO_OP_LOG"])
    _log.write(name)
