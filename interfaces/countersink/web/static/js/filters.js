// Which keys a view shows and which counters are drawn beside its own: chips for what is chosen, a
// form for more, how many are offered (`OFFERED`), and the texts for what cannot be added.

import { counterPath, get } from "./api.js";
import { h, put, settled } from "./dom.js";
import { name, visible } from "./names.js";
import { FILTERS, MOST_LINES } from "./range.js";

const KINDS = [
  ["key", "Only the key"],
  ["prefix", "Only keys beginning with"],
  ["exclude_key", "Without the key"],
  ["exclude_prefix", "Without keys beginning with"],
  ["with", "Together with the counter"],
];
const WORDS = { where: "only", key: "only", prefix: "only beginning with", exclude_key: "without", exclude_prefix: "without those beginning with", with: "together with" };
const NO_KEY = "(no key)";
const OFFERED = 20;
const OFFERED_MS = 200;

/** `go(changes)` changes the address; `beside` is an element that stands in the same row. */
export function filters(counter, go, beside) {
  let wanted = null;
  let asking = null;
  const chips = h("ul", { class: "chips", "aria-label": "Filters" });
  const kind = h("select", { "aria-label": "Kind of filter", onchange: () => { options.replaceChildren(); offer(); } }, KINDS.map(([value, shown]) => h("option", { value }, shown)));
  const options = h("datalist", { id: "offered" });
  const field = h("input", { type: "text", list: "offered", required: true, maxlength: "255", spellcheck: "false", autocomplete: "off", "aria-label": "Key, prefix of keys, or counter", oninput: settled(offer, OFFERED_MS), onfocus: offer });
  const why = h("p", { class: "why soft", role: "status" });
  const form = h("form", { class: "filter", onsubmit: add }, kind, field, options, h("button", null, "Add"));
  const more = h("details", null, h("summary", null, "Choose keys, or add a counter"), form, why);
  const element = h("div", { class: "chosen-keys" }, chips, h("div", { class: "more" }, more, beside));

  function chosen(what) {
    return what === "with" ? wanted.beside : wanted.filter[what];
  }

  function add(event) {
    event.preventDefault();
    const what = kind.value;
    const value = field.value === NO_KEY && what.endsWith("key") ? "" : field.value;
    if (!wanted || chosen(what).includes(value)) return;
    if (what === "with" && (value === counter || wanted.lines.length >= MOST_LINES)) {
      why.textContent = value === counter ? "That is the counter itself." : `A chart has at most ${MOST_LINES} lines.`;
      return;
    }
    field.value = "";
    go({ [what]: [...chosen(what), value], ...(what === "with" ? {} : { where: null }) }); // an event has a key, or dimensions
  }

  /** Offer the largest keys, or the counters, that contain what has been typed. */
  async function offer() {
    asking?.abort();
    if (!wanted) return;
    const own = (asking = new AbortController());
    const what = kind.value;
    try {
      const found =
        what === "with"
          ? await get("/v1/counters", { search: field.value.replace(/[^A-Za-z0-9_.:-]/g, ""), limit: OFFERED, days: 0, totals: false }, own.signal)
          : await get(counterPath(counter, "top"), { n: OFFERED, search: field.value === NO_KEY ? "" : field.value, from: wanted.from, to: wanted.to, time_zone: wanted.zone }, own.signal);
      const values = found.rows.map((row) => (what === "with" ? row.counter : row.key)).filter((one) => one !== counter || what !== "with");
      put(options, values.map((value) => h("option", { value: value === "" ? NO_KEY : value })));
    } catch {
      // there is nothing to offer then: it can be typed all the same
    }
  }

  function chip(what, value) {
    const [, dimension = "", own] = /^([^=]*)=([^]*)$/.exec(what === "where" ? value : "") ?? ["", "", value];
    const none = dimension ? `(no ${dimension})` : NO_KEY;
    const before = `${WORDS[what]} ${dimension && `${dimension} `}`;
    const shown = own === "" ? h("em", null, none) : name(own);
    const said = `${before}${own === "" ? none : visible(own)}`;
    const without = () => go({ [what]: chosen(what).filter((one) => one !== value), ...(what === "with" || what === "key" ? { ratio: null } : {}) });
    return h("li", { class: "chip" }, h("span", { class: "soft" }, before), shown, h("button", { type: "button", "aria-label": `Remove: ${said}`, onclick: without }, "×"));
  }

  return {
    element,
    show(next) {
      wanted = next;
      why.textContent = "";
      const focused = chips.contains(document.activeElement);
      const all = [...KINDS, ["where"]].flatMap(([what]) => chosen(what).map((value) => chip(what, value)));
      const none = all.length > 1 && h("li", null, h("button", { type: "button", class: "small", onclick: () => go(Object.fromEntries([...FILTERS, "with", "each", "ratio"].map((one) => [one, null]))) }, "Remove all"));
      put(chips, all, none);
      if (focused) (chips.querySelector("button") ?? more.firstChild).focus();
    },
    gone: () => asking?.abort(),
  };
}
