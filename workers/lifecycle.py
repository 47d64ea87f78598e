"""One life of a worker process: Celery's signals open, drain and close its keeper.

The run queue belongs to the session, not to the process's name: a message for a former life finds
no consumer and does no harm.
"""

import logging
import os
import threading
from typing import Any
from uuid import UUID, uuid4

from celery.signals import celeryd_after_setup, worker_shutdown, worker_shutting_down
from django.conf import settings

from runs import transport
from runs.leases import SessionOffer
from scheduler_project.checks import refuse_unsound_start
from scheduler_project.lib.metrics_http import serve_metrics
from scheduler_project.lib.process_metrics import metrics_duty
from workers.execution import Limits, execute_run
from workers.keeper import Keeper, LeaseTiming
from workers.sandbox.base import Sandbox
from workers.sandbox.docker import DockerSandbox
from workers.worker_metrics import show_slots


class Worker:
    """The keeper and the sandbox of this process."""

    def __init__(self, celery_name: str) -> None:
        session_id = uuid4()
        self.sandbox: Sandbox = DockerSandbox(
            instance=settings.INSTANCE,
            node=settings.NODE,
            docker_host=settings.DOCKER_HOST,
            output_bytes=settings.OUTPUT_TAIL_BYTES,
        )  # fmt: skip
        self._limits = Limits(output_tail_bytes=settings.OUTPUT_TAIL_BYTES)
        self.keeper = Keeper(
            SessionOffer(
                session_id=session_id,
                node=settings.NODE,
                celery_name=celery_name,
                pid=os.getpid(),
                queue=f"runs.{session_id}",
                region=settings.WORKER_REGION,
                tiers=settings.WORKER_TIERS,
                slots=settings.WORKER_SLOTS,
                prepared_limit=settings.WORKER_PREPARED_LIMIT,
            ),
            LeaseTiming(
                lease_s=settings.LEASE_S,
                heartbeat_s=settings.HEARTBEAT_S,
                worker_margin_s=settings.WORKER_MARGIN_S,
                warden_margin_s=settings.WARDEN_MARGIN_S,
                prepare_lead_s=settings.PREPARE_LEAD_S,
            ),
            self.sandbox,
            settings.DEADLINES_DIR,
            self.execute,
        )
        self.metrics = metrics_duty()

    def execute(self, run_id: UUID) -> str:
        """Run one run to its end."""
        return execute_run(self.keeper, self.sandbox, run_id, self._limits)

    def show_metrics(self) -> None:
        """Serve this process's metrics, and keep them fresh."""
        show_slots(self.keeper)
        serve_metrics()
        self.metrics.start()

    def drain(self) -> None:
        """Take nothing new; stop what still runs when the drain limit has passed."""
        self.keeper.drain()
        limit = threading.Timer(settings.WORKER_DRAIN_S, self.keeper.give_up)
        limit.daemon = True
        limit.start()


_worker: Worker | None = None
# Of a process that delivers notifications: it runs no containers and holds no session.
_NOTIFIER = "notifier"


def current_worker() -> Worker:
    """Return the worker of this process; raises RuntimeError outside of one."""
    if _worker is None:
        raise RuntimeError("this process is not a worker: its keeper was never opened")
    return _worker


@celeryd_after_setup.connect
def open_worker(sender: str, instance: Any, **_: Any) -> None:
    """Open the session and consume its queue, or end the process.

    Celery logs what a receiver raises and goes on: a worker that found no database would live on
    without a session, given nothing and missed by nobody.
    """
    global _worker
    if settings.PROCESS_ROLE == _NOTIFIER:
        _open_notifier()
        return
    try:
        refuse_unsound_start()
        worker = Worker(celery_name=sender)
        worker.keeper.open()
    except Exception as error:
        logging.getLogger(__name__).critical("the worker can't start", exc_info=True)
        raise SystemExit(1) from error
    _worker = worker
    worker.show_metrics()
    name = _worker.keeper.offer.queue
    instance.app.amqp.queues.select_add(name, routing_key=name)


def _open_notifier() -> None:
    try:
        refuse_unsound_start()
    except Exception as error:
        logging.getLogger(__name__).critical("the notifier can't start", exc_info=True)
        raise SystemExit(1) from error
    serve_metrics()
    # It looks at the database's clock: that this works is what the health check asks.
    metrics_duty().start()


@worker_shutting_down.connect
def drain_worker(**_: Any) -> None:
    """SIGTERM: hand back what has not started. In a thread: this runs inside a signal handler."""
    if _worker is not None:
        threading.Thread(target=_worker.drain, name="drain", daemon=True).start()


@worker_shutdown.connect
def close_worker(sender: Any, **_: Any) -> None:
    """The last running run has ended: close the session and delete its queue."""
    if _worker is None:
        return
    if not _worker.keeper.is_draining:  # Celery ended by itself: nobody has set the limit
        _worker.drain()
    _worker.metrics.stop(0)
    _worker.keeper.close()
    _worker.sandbox.close()
    transport.forget_queues([_worker.keeper.offer.queue])
