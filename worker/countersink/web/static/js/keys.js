// A counter's keys with the largest totals, with a search.

import { address, counterPath, get } from "./api.js";
import { announce, h, put, settled } from "./dom.js";
import { percent, whole } from "./format.js";
import { failure } from "./parts.js";

const FIRST = 25;
const STEP = 4;
const MOST = 10_000;
const DRAWN = 500;

/** `picked(key)` is called when somebody chooses one. */
export function keys(counter, picked) {
  let wanted = null;
  let sum = 0;
  let n = FIRST;
  let drawn = 0;
  let asking = null;

  const list = h("ol", { class: "keys" });
  const note = h("p", { class: "soft" });
  const trouble = h("div");
  const more = h("button", { type: "button", hidden: true, onclick: () => ask(Math.min(MOST, n * STEP)) }, "Show more");
  const find = h("input", {
    type: "search",
    placeholder: "Find keys",
    "aria-label": "Find keys",
    spellcheck: "false",
    maxlength: "255",
    oninput: settled(() => ask(FIRST), 150),
  });
  const element = h(
    "section",
    { class: "top-keys", "aria-labelledby": "keys-title" },
    h("div", { class: "head" }, h("h2", { id: "keys-title" }, "Top keys"), find),
    trouble,
    list,
    more,
    note,
  );

  async function ask(number) {
    if (!wanted) return; // somebody is quicker than the first answer, which asks for it
    n = number;
    asking?.abort();
    const own = (asking = new AbortController());
    const question = { n, search: find.value, from: wanted.from, to: wanted.to };
    try {
      const found = await get(counterPath(counter, "top"), question, own.signal);
      put(trouble);
      show(found.rows);
    } catch (error) {
      if (error.name !== "AbortError") put(trouble, failure(error, () => ask(n)));
    }
  }

  function show(rows) {
    const most = Math.max(1, ...rows.map((row) => row.total));
    // Thousands of rows are added as they are scrolled to.
    drawn = 0;
    list.replaceChildren();
    const add = () => {
      const part = rows.slice(drawn, drawn + DRAWN);
      list.append(...part.map((row, i) => item(row, drawn + i + 1, most)));
      drawn += part.length;
    };
    add();
    watch(list, () => drawn < rows.length && add());
    more.hidden = rows.length < n || n >= MOST;
    const searched = find.value;
    if (!rows.length) put(note, searched ? `No key has “${searched}” in it.` : "Nothing was counted in these days.");
    else if (n >= MOST && rows.length >= MOST) put(note, `The ${whole(MOST)} largest. `, csv(), " has no more either; the command export has all.");
    else put(note, csv());
    if (searched) announce(rows.length === 1 ? "1 key found" : `${rows.length} keys found`);
  }

  function csv() {
    const query = { n: MOST, search: find.value, from: wanted.from, to: wanted.to, format: "csv" };
    return h("a", { href: address(counterPath(counter, "top"), query), download: true }, "Download as CSV");
  }

  function item({ key, total }, rank, most) {
    const bar = h("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--part", String(Math.max(0, total) / most));
    const share = sum > 0 && total >= 0 ? percent(total / sum) : "";
    return h(
      "li",
      null,
      bar,
      h("span", { class: "rank number", "aria-hidden": "true" }, String(rank)),
      h("button", { type: "button", class: "key", onclick: () => picked(key) }, key === "" ? h("em", null, "(no key)") : key),
      h("span", { class: "share number soft" }, share),
      h("span", { class: "number total" }, whole(total)),
    );
  }

  return {
    element,
    /** Show the keys of these days; `total` is the sum that shares are of. */
    show(range, total) {
      sum = total;
      const same = wanted && wanted.from === range.from && wanted.to === range.to;
      wanted = range;
      ask(same ? n : FIRST);
    },
  };
}

let observer = null;

function watch(list, near) {
  observer?.disconnect();
  if (!list.lastElementChild) return;
  observer = new IntersectionObserver(
    ([seen]) => {
      if (!seen.isIntersecting) return;
      near();
      observer.disconnect();
      if (list.lastElementChild !== seen.target) watch(list, near);
    },
    { rootMargin: "600px" },
  );
  observer.observe(list.lastElementChild);
}
