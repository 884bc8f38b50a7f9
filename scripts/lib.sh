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
