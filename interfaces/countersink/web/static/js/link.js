// The token of the link that a page was opened by, read from behind the # of its address, which
// browsers send to nobody; sent as a header in `api.js`, where the text for an ended link is.

/** The token; null on the dashboard itself. */
export const token = location.pathname === "/shared" ? new URLSearchParams(location.hash.split("?")[1] ?? "").get("link") ?? "" : null;
