# Two commands: `make up` brings up the whole product here and proves it, `make test` tests it.

# Any Python from 3.11 on; the packages are pinned in requirements.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
STACK := $(BIN)/python -m scheduler_project.stack

# Production settings for the checks, which read the settings and reach no server.
CHECK_ENVIRONMENT := \
	SECRET_KEY=$(shell head -c 48 /dev/urandom | base64 | tr -dc 'a-zA-Z0-9') \
	ALLOWED_HOSTS=scheduler.example HTTPS=1 DEBUG=0 \
	DATABASE_URL=postgresql://check@127.0.0.1:1/check REDIS_URL=redis://127.0.0.1:1/0

# These run on two cores at once; the others start real processes and containers and need both.
PARALLEL_TESTS := tests/unit tests/property tests/api tests/integration
SERIAL_TESTS := tests/concurrency tests/acceptance tests/chaos

.PHONY: help up status logs down reset test chaos bench bench-quick check format venv

help:
	@echo 'make up       bring up the whole stack here and run demo jobs; again: quick and harmless'
	@echo 'make status   what runs, and where        make logs [NAME=api]   follow the logs'
	@echo 'make down     end every process and container        make reset   down, and delete the data'
	@echo 'make test     all checks and tests        make check   format, lint, types, contracts'
	@echo 'make chaos    real faults, seeded [SEED=1 SECONDS=300 CLASS=double]; see docs/chaos.md'
	@echo 'make bench    all benchmarks, hours     make bench-quick   the main ones, in three minutes'

up: $(INSTALLED)
	@$(STACK) up

status logs down reset: $(INSTALLED)
	@$(STACK) $@ $(if $(filter logs,$@),$(NAME))

bench: $(INSTALLED)
	@$(BIN)/python -m bench

bench-quick: $(INSTALLED)
	@$(BIN)/python -m bench --quick

test: check
	$(BIN)/pytest -n 2 $(PARALLEL_TESTS)
	$(BIN)/pytest $(SERIAL_TESTS)

chaos: $(INSTALLED)
	@SEED='$(SEED)' SECONDS='$(SECONDS)' CLASS='$(CLASS)' GUARD='$(GUARD)' $(BIN)/python -m tests.chaos

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(CHECK_ENVIRONMENT) $(BIN)/mypy
	$(BIN)/lint-imports
	$(CHECK_ENVIRONMENT) $(BIN)/python -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	$(CHECK_ENVIRONMENT) $(BIN)/python manage.py check --deploy --fail-level WARNING

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: $(INSTALLED)

# The file says that everything is installed: it is written last, so a killed install is made again.
$(INSTALLED): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Python 3.11 or later is needed: make PYTHON=/path/to/python3.11 …' >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || \
		{ echo 'python3 -m venv failed: apt-get install python3-venv' >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
	@touch $@
