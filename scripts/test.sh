#!/bin/sh
# `make test`: checks, all tests on MariaDB, those of how the database is used on MySQL 9. Each part
# runs, also when an earlier one failed. A MySQL that cannot be had is said in one line, and is no failure.
set -u
cd "$(dirname "$0")/.." || exit 1
status=0
scripts/checks.sh || status=1
echo "== tests on MariaDB"
make test-mariadb || status=1
echo "== tests on MySQL"
scripts/mysql-tree.sh
case $? in
0) make test-mysql SHORT=1 || status=1 ;;
3) ;; # it has said why
*) status=1 ;;
esac
[ $status -eq 0 ] && echo "== all passed" || echo "== something failed: see above" >&2
exit $status
