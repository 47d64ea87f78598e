"""Gunicorn for the API: threads, because a request waits for the database and little else.

Address, processes and threads are given on the command line (see stack/programs.py).
"""

worker_class = "gthread"
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
accesslog = "-"
access_log_format = '%(h)s "%(r)s" %(s)s %(b)s %(M)sms'
