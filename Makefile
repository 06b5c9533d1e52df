# `make` explains the targets: each has its line after two number signs.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
CHECKED = $(wildcard pyrunner consumers tests benchmarks docs docker/runner/*.py)
# each test process has a server of its own; one that was given is not shared, since roles belong to the whole server
WORKERS ?= $(if $(PYRUNNER_TEST_DSN),0,2)
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(if $(PG),--pg $(PG))

.PHONY: help
help: ## explain the targets
	@printf 'usage: make TARGET [VARIABLE=value]\n\n'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r target text; do \
	  printf '  %-12s %s\n' "$$target" "$$text"; done
	@printf '\nstart with: make demo\n'

.PHONY: setup
setup: ## make .venv from the locked package list (the other targets do it by themselves)
	@.ci/setup

.PHONY: demo
demo: setup ## start a PostgreSQL of its own, load a CRM and watch its overdue leads and bookings expire
	@$(BIN)/pyrunner demo $(ARGS)

.PHONY: up
up: ## start the whole system in containers, and wait until it works (PROFILES=runner,monitoring; see docs/compose.md)
	@docker/system up

.PHONY: down
down: ## stop the system in containers and keep its data (VOLUMES=1 removes data and secrets, too)
	@docker/system down

.PHONY: smoke
smoke: ## see a lead and a booking through the system in containers, step by step
	@docker/system smoke

.PHONY: test
test: setup ## run all tests but those of Kafka and of the containers (PG=16 takes another PostgreSQL; ARGS='-k lead -x' goes to pytest)
	@$(PYTEST) -m 'not kafka and not docker' $(ARGS)

.PHONY: test-quick
test-quick: setup ## run the tests that take seconds
	@$(PYTEST) -m 'not slow and not kafka and not docker' $(ARGS)

.PHONY: test-cdc
test-cdc: setup ## run the tests that start Kafka, Kafka Connect with Debezium and PostgreSQL
	@$(PYTEST) -m kafka $(ARGS)

.PHONY: test-docker
test-docker: setup ## run the tests that build the images and start the whole system; they need a Docker daemon
	@$(BIN)/python -m pytest -n 0 -m docker $(ARGS)

.PHONY: lint
lint: setup ## check style, format and types
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo 'lint: format these files by: make format' >&2; $(BIN)/ruff format --check .; exit 1; }
	@$(BIN)/mypy --no-error-summary $(CHECKED)
	@echo 'lint: clean'

.PHONY: format
format: setup ## format the Python code and mend what the linter can
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

.PHONY: bench
bench: setup ## measure speed and memory beside hand-written loops (minutes)
	@$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-cdc
bench-cdc: setup ## measure the way from the outbox to a Kafka consumer (minutes)
	@$(BIN)/python -m benchmarks.cdc $(ARGS)

.PHONY: docs
docs: setup ## write the reference pages anew from the comments in the database
	@$(BIN)/python docs/reference.py
	@$(BIN)/python docs/exit_codes.py

.PHONY: schema
schema: setup ## write the committed dump of a fresh installation anew (PostgreSQL 15)
	@PYRUNNER_WRITE_SCHEMA=1 $(BIN)/python -m pytest -q -k committed_dump tests/test_releases.py

.PHONY: wheel
wheel: setup ## build the wheel, SQL included, into dist/
	@$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w dist .
	@ls dist/pyrunner-*.whl

.PHONY: lock
lock: ## write requirements.lock anew from pyproject.toml (UPGRADE=1 takes newer versions)
	@.ci/lock $(if $(UPGRADE),--upgrade)

.PHONY: clean
clean: ## stop the demo's server and the stack, and remove what make has made
	@if [ -x $(BIN)/pyrunner ] && [ -d .pyrunner/stack ]; then $(BIN)/pyrunner stack down --remove >/dev/null || echo 'clean: the stack in .pyrunner/stack was left alone' >&2; fi
	@if [ -x $(BIN)/pyrunner ]; then $(BIN)/pyrunner demo --remove >/dev/null || echo 'clean: the demo in .pyrunner was left alone' >&2; fi
	@rm -rf .venv .cache .setup.lock dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find pyrunner consumers tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
