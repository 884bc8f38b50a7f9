#!/bin/sh
# Puts a real MySQL 9 into the cache directory, for the tests: a tree of files, not an installation.
#
# The packages come from Debian unstable, by apt with state of its own: resolved against an empty
# system, verified by Debian's keyring, unpacked without running anything of theirs. So it takes no
# root, changes nothing of the machine, and the tree's own loader runs the server.
#
# Exit status: 0 MySQL is there, 3 it cannot be had here (one line on stderr says why).
set -eu
. "$(dirname "$0")/lib.sh"

tree=${XDG_CACHE_HOME:-$HOME/.cache}/countersink/mysql
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

cannot() { echo "MySQL 9 could not be set up: $1 (or name one: COUNTERSINK_MYSQLD=/path/to/mysqld)" >&2; exit 3; }

[ -n "${COUNTERSINK_MYSQLD:-}" ] && exit 0
[ -x "$tree/usr/sbin/mysqld" ] && exit 0

for tool in apt-get dpkg-deb; do
    have "$tool" || cannot "$tool is missing, and the packages come from Debian"
done
have sqv || have gpgv || cannot "apt has neither sqv nor gpgv to verify the packages with"
[ -r "$keyring" ] || cannot "the package debian-archive-keyring is missing"
mirror=$(debian_mirror)
[ -n "$mirror" ] || cannot "the machine's apt sources name no Debian mirror"

mkdir -p "$(dirname "$tree")"
work=$(mktemp -d "$tree.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial" "$work/root"
: >"$work/apt/status"
echo "deb [signed-by=$keyring] $mirror sid main" >"$work/apt/sources.list"

# Everything apt would read or write of the machine's packages is replaced; how to reach the
# mirror (proxies, certificates) stays as the machine is set up.
own_apt() {
    apt-get -q \
        -o Dir::State="$work/apt" -o Dir::State::status="$work/apt/status" \
        -o Dir::State::lists="$work/apt/lists" \
        -o Dir::Cache="$work/apt" -o Dir::Cache::archives="$work/apt/archives" \
        -o Dir::Etc::sourcelist="$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o APT::Sandbox::User= -o APT::Keep-Downloaded-Packages=true -o Acquire::Retries=3 \
        -o APT::Update::Post-Invoke::= -o DPkg::Post-Invoke::= \
        "$@" >"$work/apt/log" 2>&1 </dev/null
}

echo "setting up MySQL 9 in $tree (about 60 MB to download) ..."
own_apt update || cannot "no package lists from the Debian mirror: $(tail -n 1 "$work/apt/log")"
own_apt --no-install-recommends --download-only -y install mysql-server-core ||
    cannot "no package mysql-server-core: $(tail -n 1 "$work/apt/log")"
for package in "$work"/apt/archives/*.deb; do
    dpkg-deb -x "$package" "$work/root" || cannot "could not unpack $(basename "$package")"
done
[ -x "$work/root/usr/sbin/mysqld" ] || cannot "the package holds no mysqld"
rm -rf "$tree" # an incomplete one: a complete one was found above
mv -T "$work/root" "$tree" 2>/dev/null || [ -x "$tree/usr/sbin/mysqld" ] # another run was first
