// Requests for the first numbers, sent before the other scripts are loaded; `api.js` uses their
// answers, so their addresses have to be those of the views.
(() => {
  const [, view, argument] = /^#\/?([^/?]*)\/?([^?]*)/.exec(location.hash) ?? ["", "", ""];
  const paths = ["/v1/whoami"];
  const link = location.pathname === "/shared" && new URLSearchParams(location.hash.split("?")[1] ?? "").get("link");
  const credentials = link === false ? "same-origin" : "omit";
  const headers = link === false ? {} : { Authorization: `Bearer ${link ?? ""}` };
  if (view === "counter") {
    let name = argument;
    try {
      name = decodeURIComponent(argument);
    } catch {
      // mistyped: as it is
    }
    const path = `/v1/counters/${/^\.\.?$/.test(name) ? "~" : ""}${encodeURIComponent(name)}`;
    paths.push(path);
    if (!location.hash.includes("?")) paths.push(`${path}/totals?by=total`);
  } else if (view === "board" || view === "boards") {
    paths.push(`/v1/boards${view === "board" ? `/${argument}` : ""}`);
  } else if (view !== "system") {
    paths.push("/v1/counters?search=&after=&limit=100&days=30&totals=false");
  }
  window.early = new Map(
    paths.map((path) => {
      const answer = fetch(path, { credentials, cache: "no-cache", headers });
      answer.catch(() => {}); // whoever uses the answer gets the error
      return [path, answer];
    }),
  );
})();
