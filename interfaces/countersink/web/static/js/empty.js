// The page while nothing was counted: its texts, and commands and code that send a first event.

import { post } from "./api.js";
import { h, put } from "./dom.js";
import { failure, snippet } from "./parts.js";

export function emptyState(app) {
  const url = location.origin;
  const key = app.who.key ? ` \\\n     -H "Authorization: Bearer $COUNTERSINK_KEY"` : "";
  const ways = {
    curl: `curl ${url}/v1/increments${key} \\\n     --json '{"counter": "page_views", "key": "/home"}'`,
    Python: `from countersink.producers import Producer\n\nproducer = Producer.from_env()\nproducer.increment("page_views", "/home")`,
    "A command": "countersink increment page_views /home",
    JavaScript: `await fetch("${url}/v1/increments", {\n  method: "POST",${app.who.key ? '\n  headers: { Authorization: "Bearer " + key },' : ""}\n  body: JSON.stringify({ counter: "page_views", key: "/home" }),\n});`,
  };
  const names = Object.keys(ways);
  const shown = h("div");
  const tabs = names.map((name, i) =>
    h("button", { type: "button", role: "tab", id: `way-${i}`, "aria-controls": "way", onclick: () => pick(i), onkeydown: keys }, name),
  );
  const panel = h("div", { role: "tabpanel", id: "way" }, shown);
  const said = h("div");
  const send = h("button", { type: "button", class: "primary", onclick: first }, "Send one from here");

  function pick(index, focus = false) {
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === index));
      tab.tabIndex = i === index ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", `way-${index}`);
    put(shown, snippet(ways[names[index]]));
    if (focus) tabs[index].focus();
  }

  function keys(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) pick((tabs.indexOf(event.target) + by + tabs.length) % tabs.length, true);
  }

  async function first() {
    send.disabled = true;
    try {
      await post("/v1/increments", { counter: "hello", key: "from-the-dashboard" });
      put(said, h("p", { class: "soft" }, "Sent. A worker counts it in a moment."));
    } catch (error) {
      put(said, failure(error, null));
      send.disabled = false;
    }
  }

  pick(0);
  return h(
    "div",
    { class: "empty" },
    h("h1", null, "Nothing has been counted yet"),
    h("p", { class: "lead" }, "Send the first event, and it shows up here within seconds."),
    h("div", { class: "tabs", role: "tablist", "aria-label": "Ways to send an event" }, tabs),
    panel,
    app.may("ingest") && h("p", null, send),
    said,
    h("p", { class: "soft waiting" }, h("span", { class: "pulse", "aria-hidden": "true" }), "Waiting for the first event…"),
  );
}
