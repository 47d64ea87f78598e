"""The API's entry point for a WSGI server."""

import os

from django.core.wsgi import get_wsgi_application

from scheduler_project.checks import refuse_unsound_start

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_project.settings")
application = get_wsgi_application()
refuse_unsound_start()
