#!/bin/sh
# Installs the programs redis-server and mariadbd when they are missing, through apt. The system's
# own services stay off: countersink starts private servers, on free ports, in its own directories.
# With --tests also the driver mysqlclient, which has no wheels, Chromium, curl, faketime, nginx, promtool
# (of the package prometheus), and what nodes of Galera need (the package mariadb-server brings galera-4,
# rsync and the scripts by which a node gets its data): the tests with them are skipped where they cannot
# be had. With --bench also wrk, which puts load on the HTTP interface, and Galera.
#
# Exit status: 0 all is there (but maybe those eight), 1 it is not (one line on stderr says what to
# install).
set -eu
. "$(dirname "$0")/lib.sh"

packages=
[ -n "${COUNTERSINK_REDIS_SERVER:-}" ] || have redis-server || packages="$packages redis-server"
{ have mariadbd && have mariadb-install-db; } || packages="$packages mariadb-server-core"
have my_print_defaults || packages="$packages mariadb-client-core" # mariadb-install-db uses it
extras=
if [ "${1:-}" = --tests ] && [ ! -e /usr/lib/python3/dist-packages/MySQLdb ]; then
    # made for the system's Python: of no use where .venv is of another
    version='import sys; print(*sys.version_info[:2])'
    system=$(/usr/bin/python3 -c "$version" 2>/dev/null) || system=none
    ours=$(.venv/bin/python -c "$version" 2>/dev/null) || ours=unknown
    if [ "$system" = "$ours" ] && have apt-get && as_root true; then extras=python3-mysqldb; fi
fi
# Chromium's shell without windows takes two thirds of the CPU, so it is installed beside another Chromium, too
for extra in chromium-headless-shell curl faketime; do
    if [ "${1:-}" = --tests ] && ! have $extra && have apt-get && as_root true; then extras="$extras $extra"; fi
done
if [ "${1:-}" = --tests ] && ! have nginx && have apt-get && as_root true; then
    extras="$extras nginx-light"
fi
if [ "${1:-}" = --tests ] && ! have promtool && have apt-get && as_root true; then
    extras="$extras prometheus"
fi
if [ "${1:-}" = --bench ] && ! have wrk && have apt-get && as_root true; then extras=wrk; fi
if [ -n "${1:-}" ] && ! { have wsrep_sst_rsync && have rsync && [ -e /usr/lib/galera/libgalera_smm.so ]; } &&
    have apt-get && as_root true; then
    extras="$extras mariadb-server"
fi
[ -n "$packages$extras" ] || exit 0

cannot() { echo "missing:$packages ($1); install: apt-get install --no-install-recommends$packages" >&2; exit 1; }

if [ -n "$packages" ]; then
    have apt-get || cannot "no apt-get here, so this is for you to do"
    as_root true || cannot "this needs root or sudo without a password"
fi

log=$(mktemp)
policy=/usr/sbin/policy-rc.d
own_policy=
tidy() {
    [ -z "$own_policy" ] || as_root rm -f "$policy"
    rm -f "$log"
}
trap tidy EXIT
trap 'exit 130' INT TERM
if [ ! -e "$policy" ]; then
    # 101: "not allowed": the packages' scripts start no service
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    own_policy=yes
    as_root chmod 755 "$policy"
fi

install_packages() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends \
        -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 install "$@" >"$log" 2>&1 </dev/null
}
update_lists() { as_root apt-get -q -o Acquire::Retries=3 update >"$log" 2>&1 </dev/null; }

if [ -n "$packages" ]; then
    echo "installing$packages ..."
    # shellcheck disable=SC2086  # a list of words
    if ! install_packages $packages; then
        # the package lists may be old or empty
        update_lists || cannot "$(tail -n 1 "$log")"
        # shellcheck disable=SC2086
        install_packages $packages || cannot "$(tail -n 1 "$log")"
    fi
fi
for extra in $extras; do
    echo "installing $extra ..."
    install_packages "$extra" || { update_lists && install_packages "$extra"; } ||
        echo "$extra could not be installed, so tests are skipped: $(tail -n 1 "$log")"
done
# disable SERVICE: nor at the next boot
disable() {
    if [ -d /run/systemd/system ]; then
        as_root systemctl disable "$1" >/dev/null 2>&1 || :
    elif have update-rc.d; then
        as_root update-rc.d "$1" disable >/dev/null 2>&1 || :
    fi
}
for package in $packages $extras; do
    case $package in
    redis-server) disable redis-server ;;
    nginx-light) disable nginx ;;
    prometheus) disable prometheus ;;
    mariadb-server) disable mariadb ;;
    esac
done
