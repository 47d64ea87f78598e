"""Where metrics are read: a small server in schedulers and workers, an address in the API.

Its rule: they are for operators. The server listens on the loopback unless told otherwise, and the
API answers nobody who comes through the proxy.
"""

from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from prometheus_client import start_http_server

from scheduler_project.lib.events import emit
from scheduler_project.lib.metrics import CONTENT_TYPE, REGISTRY, exposition

_SET_BY_PROXIES: Final = ("HTTP_X_FORWARDED_FOR", "HTTP_X_FORWARDED_PROTO", "HTTP_FORWARDED")


def serve_metrics() -> int | None:
    """Serve this process's metrics at METRICS_PORT; return the port, None when there is none.

    A port that is taken doesn't keep the process from its work: its absence is seen by whoever
    asks for the metrics.
    """
    if settings.METRICS_PORT < 0:
        return None
    address = settings.METRICS_ADDRESS
    try:
        server, _ = start_http_server(settings.METRICS_PORT, address, REGISTRY)
    except OSError as error:
        emit("metrics.not_served", "The port of the metrics can't be opened; they aren't served.",
             address=address, port=settings.METRICS_PORT, error=error)  # fmt: skip
        return None
    port = int(server.server_port)
    emit("metrics.served", "Metrics are served.", address=address, port=port)
    return port


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer with the metrics of all processes of this server; 404 through a proxy."""
    if any(name in request.META for name in _SET_BY_PROXIES):
        return HttpResponse(status=404)
    return HttpResponse(
        exposition(), content_type=CONTENT_TYPE, headers={"Cache-Control": "no-store"}
    )
