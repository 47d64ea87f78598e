"""Gunicorn for the API: threads, because a request waits for the database and little else.

Address, processes and threads are given on the command line (see stack/programs.py). The processes
put their counts together in files (PROMETHEUS_MULTIPROC_DIR), which begin anew with each start.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any


def _fresh_metrics_dir() -> str:
    """An empty directory: the one that was set, or one in shared memory that goes with us.

    Made when this file is read, before the application is: the metrics library looks for it when
    it is imported, and what a former life counted would be added to ours.
    """
    given = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if not given:
        # What a server left that was killed.
        for left in Path("/dev/shm").glob("scheduler-api-metrics-*-*"):  # noqa: S108
            if not Path("/proc", left.name.split("-")[3]).exists():
                shutil.rmtree(left, ignore_errors=True)
        return tempfile.mkdtemp(prefix=f"scheduler-api-metrics-{os.getpid()}-", dir="/dev/shm")
    for file in Path(given).glob("*.db"):
        file.unlink(missing_ok=True)
    Path(given).mkdir(parents=True, exist_ok=True)
    return given


_is_ours = not os.environ.get("PROMETHEUS_MULTIPROC_DIR")
os.environ["PROMETHEUS_MULTIPROC_DIR"] = _metrics_dir = _fresh_metrics_dir()

worker_class = "scheduler_project.gunicorn_worker.PatientWorker"
# Imported once and shared: a worker that imports for longer than `timeout` would be killed for it.
preload_app = True
# Behind a proxy that keeps connections open; longer than its own time-out, or it would meet
# closed ones.
keepalive = 75
# A request is bounded by the database's statement time-out (10 s); longer means a stuck process.
timeout = 30
graceful_timeout = 8
# The heartbeat file is written every second or so: on a disk a slow one could stall it.
worker_tmp_dir = "/dev/shm"  # noqa: S108 – tmpfs is the point
# Its control socket would be one for all servers of this account, in its home directory.
control_socket_disable = True
# By default a client could name the path of the application in a header, and get a 500 for it.
forwarder_headers = ""
accesslog = "-"
access_log_format = '%(h)s "%(r)s" %(s)s %(b)s %(M)sms'


def post_worker_init(worker: Any) -> None:
    """A process of the server is ready: it begins to look at itself and at the replica."""
    # Imported now: the application has set up Django by then.
    from django.conf import settings

    from scheduler_project.lib.process_metrics import metrics_duty
    from scheduler_project.lib.replica import replica_duties

    metrics_duty().start()
    if settings.DATABASE_REPLICA_URL:
        for duty in replica_duties():
            duty.start()


def child_exit(server: Any, worker: Any) -> None:
    """What a dead process counted stays, what it was goes."""
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]


def on_exit(server: Any) -> None:
    """Leave nothing behind in shared memory."""
    if _is_ours:
        shutil.rmtree(_metrics_dir, ignore_errors=True)
