// The form that makes links to a view: after how many days they can end (`LINK_DAYS`), the list of valid
// links, and its texts.

import { get, post, remove } from "./api.js";
import { announce, h, put } from "./dom.js";
import { token } from "./link.js";
import { failure, snippet } from "./parts.js";

const LINK_DAYS = [1, 7, 30, 90, 366];

/** A button and its dialog. `view()` returns the parameters of the address; `kind` is counter or board. */
export function share(app, shown, view, kind = "counter") {
  const made = h("div");
  const list = h("div");
  const days = h("select", { id: "link-days" }, LINK_DAYS.map((n) => h("option", { value: n, selected: n === 7 }, n === 1 ? "1 day" : `${n} days`)));
  const dialog = h(
    "dialog",
    { "aria-labelledby": "share-title", class: "sharing" },
    h("h2", { id: "share-title" }, "Share this view"),
    h("p", null, `Anybody with the link sees all numbers of ${kind === "board" ? "the counters on this board, also after a change of it" : "this counter"}, and nothing else, until it ends.`),
    h("form", { onsubmit: make }, h("label", { for: "link-days" }, "It ends after "), days, " ", h("button", null, "Make a link")),
    made,
    list,
    h("form", { method: "dialog" }, h("div", { class: "buttons" }, h("button", null, "Close"))),
  );
  const button = h("button", { type: "button", class: "quiet share", hidden: true, onclick: open }, "Share…");
  app.known?.then(() => (button.hidden = token !== null || !app.may("read") || (kind === "board" && !app.seesAll())));

  function open() {
    put(made);
    dialog.showModal();
    load();
  }

  async function make(event) {
    event.preventDefault();
    try {
      const { path } = await post("/v1/links", { [kind]: shown, days: Number(days.value) });
      const [start, own] = path.split("?");
      const query = new URLSearchParams(view());
      query.set("link", new URLSearchParams(own).get("link"));
      put(made, h("p", null, "The link, shown only now:"), snippet(`${location.origin}${start}?${query}`));
      announce("The link is made");
      load();
    } catch (error) {
      put(made, failure(error));
    }
  }

  async function load() {
    try {
      const { rows } = await get("/v1/links");
      const mine = rows.filter((one) => one[kind] === shown);
      put(
        list,
        mine.length > 0 && h("h3", null, "Valid links"),
        mine.length > 0 &&
          h(
            "ul",
            { class: "links" },
            mine.map(({ id, expires }) => {
              const until = new Date(expires).toLocaleString();
              return h("li", null, h("code", null, id), ` until ${until} `, h("button", { type: "button", "aria-label": `End the link ${id}`, onclick: () => end(id) }, "End it"));
            }),
          ),
      );
    } catch (error) {
      put(list, failure(error, load));
    }
  }

  async function end(id) {
    try {
      await remove(`/v1/links/${encodeURIComponent(id)}`);
      announce("The link has ended");
      load();
    } catch (error) {
      put(list, failure(error, load));
    }
  }

  return { element: h("span", { class: "share" }, button, dialog) };
}
