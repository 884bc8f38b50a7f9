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

# what can be run on MySQL, too: `make test-mysql`
MYSQL_TESTS := $(filter-out %/test_galera.py,$(wildcard $(foreach part,store store/sequences store/tracked backfill reads,tests/$(part)/test_*.py))) \
	tests/drivers tests/worker tests/end_to_end \
	$(filter-out %/test_frozen_redis.py %/test_galera.py %/test_schedulers.py,$(wildcard tests/faults/test_*.py)) \
	$(foreach part,compaction move planner pruning retention attempts,tests/schedules/test_$(part).py) \
	tests/cli/test_real_log.py tests/setup/test_rights.py

# what of it `make test` leaves out, to be done in ten minutes: it is about Redis, arithmetic of
# dates and processes rather than about how MySQL reads, locks and refuses
NOT_SHORT := tests/worker tests/drivers tests/end_to_end tests/reads/test_groups.py tests/setup/test_rights.py \
	$(foreach part,answers backfill server_deaths worker_deaths state_machine tracked cluster_producer cluster_worker sentinel bad_entries recovered_entries proxies,tests/faults/test_$(part).py) \
	$(foreach part,content coverage dates deleted_counters formats_access formats_alike formats_csv formats_json head identity files history jobs \
		overlap policies recipes reconcile_run rejects rejects_file set_days spans unfinished_lines,tests/backfill/test_$(part).py) \
	$(foreach part,buckets counters ends_of_time keys lease policy_totals ranges selection settings shapes store strict \
		tls zones,tests/store/test_$(part).py) \
	$(foreach part,boundaries midnight periods,tests/store/sequences/test_$(part).py) \
	$(foreach part,definitions encoding plan trigger_locks,tests/store/tracked/test_$(part).py) \
	$(foreach part,compaction planner pruning attempts,tests/schedules/test_$(part).py)

# `make soak`
SECONDS ?= 300
SERVER ?= mariadb
CLUSTER_ACTS := redis_cluster sentinel galera group_replication

# clusters are many servers each: few tests at a time
CLUSTER_JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install demo test check test-mariadb test-mysql test-long test-clusters mutations bench soak up clean lock

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | sed 's/|/                    /' | sed 's/^\(.\{23\}\) */\1/'

install: .venv/.complete ## make .venv, and install redis-server and mariadb when they are missing
	@scripts/servers.sh

.venv/.complete: pyproject.toml constraints.txt scripts/venv.sh
	@scripts/venv.sh

demo: install ## half a million increments, two workers, one of them killed; LOG=FILE counts a real access log
	@$(BIN)/python -m demo $(if $(LOG),--log '$(LOG)')

test: install ## all checks, the tests on MariaDB, then on MySQL 9 those of how the database is used
	@scripts/test.sh

check: .venv/.complete ## lint, format, types, import rules
	@scripts/checks.sh

test-mariadb: install ## all tests but those on clusters, on MariaDB; SHORT=1: those of `make test`
	@scripts/servers.sh --tests
	@COUNTERSINK_TEST_SERVER=mariadb $(PYTEST) -m 'not clusters$(if $(SHORT), and not long)' $(ARGS) </dev/null

test-long: install ## on SERVER, the tests that `make test` leaves out for their length; a part of make soak
	@scripts/servers.sh --tests
	@[ '$(SERVER)' != mysql ] || scripts/mysql-tree.sh
	@COUNTERSINK_TEST_SERVER=$(SERVER) COUNTERSINK_TEST_EXAMPLES=many $(PYTEST) -m '(long or random) and not clusters' </dev/null

test-mysql: install ## all tests that touch the database on a MySQL 9 of their own; SHORT=1: those of `make test`
	@scripts/servers.sh --tests
	@scripts/mysql-tree.sh
	@COUNTERSINK_TEST_SERVER=mysql $(PYTEST) -m 'not clusters$(if $(SHORT), and not long)' $(wildcard $(if $(SHORT),$(filter-out $(NOT_SHORT),$(MYSQL_TESTS)),$(MYSQL_TESTS))) $(ARGS) </dev/null

test-clusters: install ## the tests on clusters: Redis, Valkey, Sentinel, Galera, Group Replication; a quarter of an hour
	@scripts/servers.sh --tests
	@scripts/mysql-tree.sh || [ $$? -eq 3 ]
	@scripts/valkey-tree.sh || [ $$? -eq 3 ]
	@COUNTERSINK_TEST_SERVER=mariadb $(PYTEST) -n $(CLUSTER_JOBS) -m clusters $(ARGS) </dev/null

mutations: install ## makes mistakes in the core, one by one, and names those that no test notices; ARGS=NAME makes one
	@scripts/servers.sh --tests
	@$(BIN)/python -m tests.mutations $(ARGS)

bench: install ## the benchmarks; writes benchmarks/results.json
	@scripts/servers.sh --bench
	@$(BIN)/python -m benchmarks $(ARGS)

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

up: install ## private servers, a worker and scheduled jobs, with data kept in DATA=countersink-data
	@$(BIN)/countersink up $(if $(DATA),--data '$(DATA)')

clean: ## remove .venv, caches and build results; data and downloads stay
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

lock: ## pin the newest allowed versions in constraints.txt
	@scripts/lock.sh
