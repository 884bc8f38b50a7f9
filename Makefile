# Everything works on a bare Debian with Python 3.11 (and its venv module), git and make:
# what is missing is installed into .venv, or by apt when root or sudo may.

SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
# compiled modules are kept: tests and demo start Python a thousand times
unexport PYTHONDONTWRITEBYTECODE
# more than cores: many tests wait for servers
JOBS ?= 6
PYTEST := $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

# what touches the database: `make test-mysql`
MYSQL_TESTS := $(filter-out %/test_galera.py,$(wildcard $(foreach part,database counting counting/visitors transactions sequences row_counts store backfill reads,tests/$(part)/test_*.py))) \
	tests/drivers tests/worker tests/end_to_end \
	$(filter-out %/test_galera.py,$(wildcard tests/faults/test_*.py)) \
	$(foreach part,compaction move planner pruning retention attempts,tests/schedules/test_$(part).py) \
	tests/setup/test_rights.py

# `make soak`
SECONDS ?= 300
SERVER ?= mariadb
CLUSTER_ACTS := redis_cluster sentinel galera group_replication

# clusters are many servers each: few tests at a time
CLUSTER_JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install demo test check test-short test-mariadb test-mysql test-long test-clusters coverage mutations bench growth soak campaign up docs clean lock release

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | sed 's/|/                    /' | sed 's/^\(.\{23\}\) */\1/'

install: .venv/.complete ## make .venv, and install redis-server and mariadb when they are missing
	@scripts/servers.sh

.venv/.complete: pyproject.toml constraints.txt scripts/venv.sh
	@scripts/venv.sh

demo: install ## half a million increments, two workers, one of them killed; LOG=FILE counts a real access log
	@$(BIN)/python -m demo $(if $(LOG),--log '$(LOG)')

test: install ## lint, types, import rules; the tests on MariaDB, those of the database on MySQL 9, too
	@scripts/test.sh

check: .venv/.complete ## lint, format, types, import rules
	@scripts/checks.sh

test-short: install ## the tests of `make test` alone; SERVER=mariadb or mysql: on one of the two
	@scripts/servers.sh --tests
	@COUNTERSINK_TEST_SERVER=$(if $(filter command line,$(origin SERVER)),$(SERVER),both) $(PYTEST) -m 'not clusters and not long' $(ARGS) </dev/null

test-mariadb: install ## all tests but those on clusters, on MariaDB
	@scripts/servers.sh --tests
	@COUNTERSINK_TEST_SERVER=mariadb $(PYTEST) -m 'not clusters' $(ARGS) </dev/null

test-mysql: install ## all tests that touch the database, on a MySQL 9 of their own
	@scripts/servers.sh --tests
	@scripts/mysql-tree.sh
	@COUNTERSINK_TEST_SERVER=mysql $(PYTEST) -m 'not clusters' $(wildcard $(MYSQL_TESTS)) $(ARGS) </dev/null

test-long: install ## on SERVER, the long tests and the random ones with many examples; a part of make soak
	@scripts/servers.sh --tests
	@[ '$(SERVER)' != mysql ] || scripts/mysql-tree.sh
	@COUNTERSINK_TEST_SERVER=$(SERVER) COUNTERSINK_TEST_EXAMPLES=many $(PYTEST) -m '(long or random) and not clusters' $(ARGS) </dev/null

test-clusters: install ## the tests on clusters: Redis, Valkey, Sentinel, Galera, Group Replication; a quarter of an hour
	@scripts/servers.sh --tests
	@scripts/mysql-tree.sh || [ $$? -eq 3 ]
	@scripts/valkey-tree.sh || [ $$? -eq 3 ]
	@COUNTERSINK_TEST_SERVER=both $(PYTEST) -n $(CLUSTER_JOBS) -m clusters $(ARGS) </dev/null

coverage: install ## branch coverage of the product by the tests of `make test`, beside the figures kept in tests/coverage.json; KEEP=1 keeps the new ones
	@scripts/servers.sh --tests
	@rm -rf build/coverage
	@COUNTERSINK_TEST_SERVER=both $(BIN)/python -m coverage run -m pytest -q -n $(JOBS) --dist worksteal -m 'not clusters and not long' $(ARGS) </dev/null || [ -n '$(ARGS)' ]
	@$(BIN)/python -m coverage combine -q && $(BIN)/python -m coverage json -q
	@$(BIN)/python scripts/coverage_table.py $(if $(KEEP),--keep)

mutations: install ## makes mistakes in the core, one by one, and names those that no test notices; ARGS=NAME makes one
	@scripts/servers.sh --tests
	@$(BIN)/python -m tests.mutations $(ARGS)

bench: install .venv/.complete-peers ## the benchmarks, in some 40 minutes; writes benchmarks/results.json and the figures of the documents
	@scripts/servers.sh --bench
	@$(BIN)/python -m benchmarks $(ARGS) && $(BIN)/python -m benchmarks.figures

growth: install ## many keys, counters and rows on SERVER=mariadb|mysql, in some 35 minutes; 40 GB of disk; writes benchmarks/growth.json and docs/scale.md
	@$(BIN)/python -m benchmarks.growth --server $(SERVER) $(ARGS) && $(BIN)/python -m benchmarks.growth --report

.venv/.complete-peers: .venv/.complete
	@scripts/venv.sh peers

soak: install ## the long tests, every benchmark once, then faults at random for SECONDS=300 on SERVER=mariadb|mysql; SEED=N replays a run; ACT=NAME plays one
ifneq ($(filter $(ACT),$(CLUSTER_ACTS)),)
	@scripts/servers.sh --tests
	@scripts/mysql-tree.sh || [ $$? -eq 3 ]
	@$(BIN)/python -m tests.soak.clusters $(ACT) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))
else ifneq ($(ACT),)
	@scripts/servers.sh --tests
	@$(BIN)/python -m tests.soak --act $(ACT) --seconds $(SECONDS) --server $(SERVER) $(if $(SEED),--seed $(SEED))
else
	@make test-long SERVER=$(SERVER)
	@scripts/servers.sh --bench
	@$(BIN)/python -m benchmarks --quick --server $(SERVER)
	@$(BIN)/python -m tests.soak --seconds $(SECONDS) --server $(SERVER) $(if $(SEED),--seed $(SEED))
endif

campaign: install ## rounds of faults for SECONDS=300, published in docs/reliability.md; ACT=NAME, SERVER=mariadb|mysql, REDIS=redis|valkey limit them; with SEED=N one is played again
	@scripts/servers.sh --tests
	@scripts/mysql-tree.sh || [ $$? -eq 3 ]
	@scripts/valkey-tree.sh || [ $$? -eq 3 ]
	@$(BIN)/python -m tests.campaign --seconds $(SECONDS) $(if $(ACT),--act $(ACT)) $(if $(filter command line,$(origin SERVER)),--server $(SERVER)) $(if $(REDIS),--redis $(REDIS)) $(if $(SEED),--seed $(SEED))

up: install ## private servers, a worker and scheduled jobs, with data kept in DATA=countersink-data
	@$(BIN)/countersink up $(if $(DATA),--data '$(DATA)')

docs: .venv/.complete-docs ## the documents as a site and as manual pages, in build/docs; SERVE=1 shows the site on a free port
	@rm -rf build/docs build/commands
	@for builder in html man; do $(BIN)/python -m sphinx -M $$builder . build/docs -c docs -q -W --keep-going </dev/null || exit 1; done
	@echo "the site: build/docs/html/index.html; the manual pages: build/docs/man"
	@$(if $(SERVE),exec $(BIN)/python -u -m http.server --bind 127.0.0.1 --directory build/docs/html 0)

.venv/.complete-docs: .venv/.complete
	@scripts/venv.sh docs

clean: ## remove .venv, caches and build results; data and downloads stay
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

lock: ## pin the newest allowed versions in constraints.txt
	@scripts/lock.sh

release: ## sdist and wheel of VERSION=1.2.3: built, checked, tried, committed and tagged; nothing is pushed or uploaded
	@scripts/release.sh '$(VERSION)'
