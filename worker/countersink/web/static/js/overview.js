// All counters: name, the last days, today, in all.

import { get } from "./api.js";
import { announce, h, put, settled, text } from "./dom.js";
import { emptyState } from "./empty.js";
import { whole } from "./format.js";
import { failure, tick } from "./parts.js";
import { draw, sparkline } from "./sparkline.js";

const PAGE = 100;
const DAYS = 30;
const ANEW_MS = 60_000;

export function overview(app) {
  let rows = new Map(); // counter → { day, today, values, base, … }
  let next = null;
  let number = null;
  let search = "";
  let sort = "counter";
  let asked = 0;

  const body = h("tbody");
  const count = h("span", { class: "soft number" });
  const more = h("button", { type: "button", hidden: true, onclick: () => load(next) }, "Show more");
  const find = h("input", {
    type: "search",
    placeholder: "Find a counter",
    "aria-label": "Find a counter",
    spellcheck: "false",
    maxlength: "64",
    oninput: settled(() => {
      search = find.value.trim();
      load();
    }, 150),
  });
  const heads = {
    counter: h("button", { type: "button", onclick: () => sorted("counter") }, "Counter"),
    today: h("button", { type: "button", onclick: () => sorted("today") }, "Today"),
    total: h("button", { type: "button", onclick: () => sorted("total") }, "In all"),
  };
  const table = h(
    "table",
    { class: "counters" },
    h("caption", { class: "unseen" }, "Counters"),
    h(
      "thead",
      null,
      h("tr", null, [
        h("th", { scope: "col", "data-sort": "counter" }, heads.counter),
        h("th", { scope: "col", class: "trend" }, `Last ${DAYS} days`),
        h("th", { scope: "col", class: "number", "data-sort": "today" }, heads.today),
        h("th", { scope: "col", class: "number all", "data-sort": "total" }, heads.total),
      ]),
    ),
    body,
  );
  const rest = h("div");
  const list = h("div", { hidden: true }, h("div", { class: "sheet" }, table), more, rest);
  const empty = h("div");
  const head = h("div", { class: "head" }, h("h1", null, "Counters ", count), find);
  const element = h("section", { class: "overview" }, head, list, empty);
  const self = { element, title: "Counters", counters: [], heard, gone: () => clearInterval(timer) };
  const timer = setInterval(() => !document.hidden && load(), ANEW_MS);

  async function load(after = "") {
    const turn = ++asked;
    const question = { search, after, limit: after ? PAGE : Math.min(1000, Math.max(PAGE, rows.size)) };
    try {
      const found = await get("/v1/counters", { ...question, days: DAYS, totals: "false" });
      if (turn !== asked) return;
      take(found, Boolean(after));
      // What was ever counted takes longer to add up: it comes after the rest.
      const all = await get("/v1/counters", { ...question, days: 1 });
      if (turn !== asked) return;
      for (const data of all.rows) if (rows.has(data.counter)) based(rows.get(data.counter), data);
      arrange();
    } catch (error) {
      if (turn === asked) put(rest, failure(error, () => load()));
    }
  }

  function take(found, added) {
    put(rest);
    number = found.counters;
    next = found.next;
    const kept = added ? new Map(rows) : new Map();
    for (const data of found.rows) kept.set(data.counter, renew(rows.get(data.counter), data));
    rows = kept;
    const nothing = number === 0 && !search;
    head.hidden = nothing;
    list.hidden = nothing;
    if (nothing && !empty.hasChildNodes()) put(empty, emptyState(app));
    if (!nothing) put(empty);
    text(count, number > 1 || search ? whole(number) : "");
    if (number === 0 && search) put(rest, h("p", { class: "soft" }, `No counter has “${search}” in its name.`));
    if (search) announce(number === 1 ? "1 counter found" : `${number} counters found`);
    more.hidden = !next;
    for (const button of Object.values(heads)) button.disabled = Boolean(next);
    if (next) sort = "counter";
    arrange();
    self.counters = [...rows.keys()].slice(0, PAGE);
    app.live.watch(self.counters);
  }

  function renew(row, data) {
    const values = (data.days ?? []).map((one) => one.total);
    if (!row) row = make(data, values);
    else if (values.join() !== row.values.join()) draw(row.spark, values);
    row.values = values;
    row.day = data.days?.at(-1)?.day;
    row.today = data.today;
    numbers(row);
    return row;
  }

  function make(data, values) {
    const now = h("span", { class: "now" }, whole(data.today));
    const all = h("span", null, "…");
    const small = h("small", { class: "phone" });
    const spark = sparkline(values);
    const link = h("a", { href: `#/counter/${encodeURIComponent(data.counter)}` }, breakable(data.counter));
    const element = h(
      "tr",
      null,
      h("th", { scope: "row" }, link),
      h("td", { class: "trend" }, spark),
      h("td", { class: "number" }, now, small),
      h("td", { class: "number all" }, all),
    );
    return { counter: data.counter, element, now, all, small, spark, values, base: null };
  }

  /** What was ever counted, and what of it is today's: both of one moment. */
  function based(row, { total, today }) {
    row.base = { total, today };
    numbers(row);
  }

  function numbers(row) {
    text(row.now, whole(row.today));
    if (row.base === null) return;
    row.total = row.base.total + (row.today ?? 0) - (row.base.today ?? 0);
    text(row.all, whole(row.total));
    text(row.small, `${whole(row.total)} in all`);
  }

  function sorted(by) {
    sort = by;
    arrange();
  }

  function arrange() {
    const order = [...rows.values()];
    if (sort !== "counter") order.sort((a, b) => (b[sort] ?? 0) - (a[sort] ?? 0) || (a.counter < b.counter ? -1 : 1));
    for (const th of table.querySelectorAll("th[data-sort]")) {
      if (th.dataset.sort === sort) th.setAttribute("aria-sort", sort === "counter" ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
    }
    const elements = order.map((row) => row.element);
    if (elements.some((one, i) => body.children[i] !== one) || body.children.length !== elements.length) {
      body.replaceChildren(...elements);
    }
  }

  function heard(news) {
    if (number !== null && !search && news.counters !== number) {
      if (number === 0) announce("The first event has arrived.");
      number = news.counters;
      load();
    }
    for (const [name, { day, total }] of Object.entries(news.today)) {
      const row = rows.get(name);
      if (!row || row.today === total) continue;
      if (row.day !== day) return load(); // midnight
      row.today = total;
      row.values[row.values.length - 1] = total;
      numbers(row);
      draw(row.spark, row.values);
      tick(row.now);
    }
  }

  load();
  return self;
}

/** A name that may be broken after its parts. */
function breakable(name) {
  return name.split(/(?<=[_.:-])/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));
}
