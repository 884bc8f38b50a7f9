#!/bin/sh
# Installs the programs redis-server and mariadbd when they are missing, through apt. The system's
# own services stay off: countersink starts private servers, on free ports, in its own directories.
#
# Exit status: 0 all is there, 1 it is not (one line on stderr says what to install).
set -eu
. "$(dirname "$0")/lib.sh"

packages=
have redis-server || packages="$packages redis-server"
{ have mariadbd && have mariadb-install-db; } || packages="$packages mariadb-server-core"
have my_print_defaults || packages="$packages mariadb-client-core" # mariadb-install-db uses it
[ -n "$packages" ] || exit 0

cannot() { echo "missing:$packages ($1); install: apt-get install --no-install-recommends$packages" >&2; exit 1; }

have apt-get || cannot "no apt-get here, so this is for you to do"
as_root true || cannot "this needs root or sudo without a password"

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
    # shellcheck disable=SC2086  # a list of words
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends \
        -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 install $packages >"$log" 2>&1 </dev/null
}

echo "installing$packages ..."
if ! install_packages; then
    # the package lists may be old or empty
    as_root apt-get -q -o Acquire::Retries=3 update >"$log" 2>&1 </dev/null || cannot "$(tail -n 1 "$log")"
    install_packages || cannot "$(tail -n 1 "$log")"
fi
case "$packages" in
*redis-server*)
    # nor at the next boot
    if [ -d /run/systemd/system ]; then
        as_root systemctl disable redis-server >/dev/null 2>&1 || :
    elif have update-rc.d; then
        as_root update-rc.d redis-server disable >/dev/null 2>&1 || :
    fi
    ;;
esac
