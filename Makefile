# Every target works from a fresh clone: `setup` runs first and costs nothing the second time.
# No variable holds a path of this folder, so that a space in one breaks nothing.

PY := .venv/bin/python
OLDEST_PY := .venv-oldest/bin/python
SECONDS ?= 60
KEEP ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup setup-oldest test test-oldest test-wheel cov check lint types sql fix demo \
	bench bench-quick bench-plots bench-lock lock build clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## make .venv from requirements.lock
	@.ci/setup .venv requirements.lock

setup-oldest:
	@.ci/setup .venv-oldest requirements-oldest.lock 3.12

test: setup ## run the whole suite on servers of its own (ARGS="-k name -x")
	@$(PY) -m fixtures.servers run -- $(PY) -m pytest $(if $(ARGS),,--require-rules) $(ARGS)

test-oldest: setup-oldest ## the suite on the oldest Python, Django, psycopg and PostgreSQL
	@$(OLDEST_PY) -m fixtures.servers run --oldest-postgres -- \
		$(OLDEST_PY) -m pytest -p no:cacheprovider --ignore=tests/acceptance -m "not acceptance" $(ARGS)

test-wheel: setup ## build the wheel, and run a part of the suite on it, away from the checkout
	@$(PY) .ci/wheel.py $(ARGS)

# Coverage by sys.monitoring has branches from Python 3.14 on, and is the default there.
cov: setup ## the suite with branch coverage; fails below 95 %, where ARGS leave nothing out
	@$(PY) -m coverage erase
	@$(PY) -m fixtures.servers run -- $(PY) -m coverage run -m pytest $(ARGS)
	@$(PY) -m coverage combine --quiet
	@$(if $(ARGS),$(PY) -m coverage report --skip-covered,.ci/coverage-limits $(PY))

check: lint types ## all but tests: lint, format, types, import contracts, migrations
	@$(PY) -m fixtures.servers run -- $(PY) -m django makemigrations --check --dry-run \
		--settings fixtures.settings.test

lint: setup ## ruff and the import contracts
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@.venv/bin/lint-imports --no-cache

types: setup ## mypy, strict
	@$(PY) -m mypy
	@if [ -e tests/typing/api.py ]; then $(PY) -m mypy tests/typing/api.py; fi

sql: setup ## print a statement of the engine, ready for EXPLAIN in psql (ARGS=claim_due)
	@$(PY) -m fixtures.servers run -- $(PY) -m tests.hybridcloud.outbox.show_sql $(ARGS)

fix: setup ## let ruff repair and format
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

demo: setup ## three silos, real traffic, a SIGKILL and a verdict (SECONDS=60 KEEP=1)
	@$(PY) -m fixtures.demo --seconds $(SECONDS) $(if $(KEEP),--keep)

BENCH = $(PY) -m fixtures.servers run --durable -- $(PY) -W ignore -m tests.benchmarks $(ARGS)

bench: setup ## benchmarks, under 35 minutes; fails if a target is missed (ARGS="drain write due wake bloat rpc backfill")
	@$(BENCH)

bench-quick: setup ## benchmarks with fewer messages and runs, under 8 minutes
	@$(BENCH) --quick

bench-plots: setup ## draw docs/explanation/performance/*.svg from the last results
	@$(PY) -m tests.benchmarks.plots

bench-lock: setup ## renew the locks of the peers and of the plots
	@for name in peers/requirements plots; do \
		$(PY) -m uv pip compile --quiet --universal --python-version 3.12 --generate-hashes --upgrade \
			--no-emit-index-url --no-emit-find-links --custom-compile-command "make bench-lock" \
			tests/benchmarks/$$name.in --output-file tests/benchmarks/$$name.lock; \
	done

LOCK := $(PY) -m uv pip compile --quiet --universal --python-version 3.12 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
	--extra binary --extra embedded

lock: setup ## renew both lock files
	@$(LOCK) --upgrade --group dev pyproject.toml --output-file requirements.lock
	@$(LOCK) --upgrade --group test --resolution lowest-direct pyproject.toml \
		--output-file requirements-oldest.lock
	@! grep -nE '://' requirements.lock requirements-oldest.lock

build: setup ## build the wheel and the source archive
	@$(PY) -m hatchling build

clean: ## remove what tools leave; the environments and .run stay
	@rm -rf build dist htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
