# headgate: what one can do here. `make` alone lists it.
# PYTHON=/path/to/python3 picks the interpreter; otherwise scripts/python finds one.

.DEFAULT_GOAL := help
.PHONY: help demo demo-gateway test check test-quick test-all fresh bench conform chaos soak fuzz bootstrap clean demo-dashboard test-browser

VENV := .venv/bin
PYTEST := $(VENV)/python -m pytest -q

help:  ## list the targets
	@awk -F ':.*## *' '/^[a-z-]+:.*##/ { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo:  ## see it decide; needs nothing but Python
	@PYTHONPATH=src "$$(scripts/python)" -m headgate demo

demo-gateway: bootstrap  ## a flash sale at two real nginx, one Redis and a backend: make demo-gateway SECONDS=15
	@$(VENV)/python -m tests.nginx.demo $(SECONDS)

demo-dashboard: bootstrap  ## a service in memory, a simulated shop that calls it, and the page to watch and change it
	@$(VENV)/python scripts/demo_dashboard.py

test: check  ## everything: checks, then the whole suite on real servers; nothing is skipped
	@scripts/test

check: bootstrap  ## style, types, Lua, import contracts, generated files
	@scripts/check

test-browser: bootstrap  ## the dashboard in a real browser
	@$(PYTEST) tests/dashboard/browser

test-quick: bootstrap  ## the tests that need no server and are not slow
	@$(PYTEST) -m "not servers and not slow"

test-all:  ## the quick tests on every Python from 3.11 to 3.13 that is here
	@scripts/test-all

fresh:  ## make demo and make test in a new minimal Debian: make fresh COMMAND="make check" runs another command
	@scripts/fresh $(COMMAND)

bench:  ## measure headgate beside its peers
	@scripts/bootstrap bench
	@.venv-bench/bin/python -m benchmarks

conform: bootstrap  ## replay recorded decisions: make conform VECTORS=DIR
	@test -n "$(VECTORS)" || { echo "conform: say where the vectors are: make conform VECTORS=DIR" >&2; exit 2; }
	@$(VENV)/python -m tests.recorded "$(VECTORS)"

chaos: bootstrap  ## break real servers under load and print what callers saw: make chaos FAULT=kill
	@$(VENV)/python -m tests.chaos $(FAULT)

soak: bootstrap  ## a million short bursts of calls under a signal handler that raises: make soak BURSTS=50000
	@$(VENV)/python -m tests.engines.redis.signal_soak $(BURSTS)

fuzz: bootstrap  ## malformed HTTP, JSON and protobuf against a running service: make fuzz INPUTS=120000 SEED=7
	@$(VENV)/python -m tests.fuzz $(if $(INPUTS),--inputs $(INPUTS)) $(if $(SEED),--seed $(SEED))

bootstrap:  ## install what the tests need: Debian packages and .venv; instant when done before
	@scripts/bootstrap

clean:  ## remove what was built or cached, the virtual environments too
	@rm -rf .venv .venv-* .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
