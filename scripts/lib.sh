# Shared by the set-up scripts; sourced, never run.

# have PROGRAM: whether it is there, also where systems keep their servers
have() { PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }

# as_root COMMAND...: run it as root, if we are or if sudo needs no password; else status 126
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif have sudo && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        return 126
    fi
}

# debian_mirror: the first Debian mirror of the machine's own apt sources, or nothing
debian_mirror() {
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources \
        2>/dev/null | grep -v '^[[:space:]]*#' |
        grep -oE 'https?://[^[:space:]]+/debian/?([[:space:]]|$)' | head -n 1 | tr -d '[:space:]'
}

# unpack_tree TREE PACKAGE...: these packages of Debian unstable, and all that they need, as a tree of
# files: no installation. apt works with state of its own, resolves against an empty system, verifies
# by Debian's keyring, and nothing of the packages is run. So it takes no root and changes nothing of
# the machine. On failure it calls `cannot` with the reason, which the script defines.
unpack_tree() {
    tree=$1
    shift
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
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
    own_apt update || cannot "no package lists from the Debian mirror: $(tail -n 1 "$work/apt/log")"
    own_apt --no-install-recommends --download-only -y install "$@" ||
        cannot "no package $*: $(tail -n 1 "$work/apt/log")"
    for package in "$work"/apt/archives/*.deb; do
        dpkg-deb -x "$package" "$work/root" || cannot "could not unpack $(basename "$package")"
    done
    # An incomplete or older one makes room: by a rename, for servers that run from it.
    [ ! -e "$tree" ] || mv -T "$tree" "$work/older"
    mv -T "$work/root" "$tree" 2>/dev/null || [ -d "$tree" ] # another run was first
}

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
