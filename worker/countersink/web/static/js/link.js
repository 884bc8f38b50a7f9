// The link that a page was opened by, if it was: its token stands behind the # of the address, which
// browsers send to nobody. Every question carries it.

/** The token; null on the dashboard itself. */
export const token = location.pathname === "/shared" ? new URLSearchParams(location.hash.split("?")[1] ?? "").get("link") ?? "" : null;
