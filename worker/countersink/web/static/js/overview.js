// All counters: name, the last days, today, in all.

import { get } from "./api.js";
import { announce, h, put, settled, text } from "./dom.js";
import { emptyState } from "./empty.js";
import { whole } from "./format.js";
import { failure, tick } from "./parts.js";
import { draw, sparkline } from "./sparkline.js";

const PAGE = 100;
const MOST_AT_ONCE = 1_000;
const DAYS = 30;
const ANEW_MS = 60_000;
const AFTER_TROUBLE_MS = 5_000;

export function overview(app) {
  let rows = new Map(); // counter → { day, today, values, base, heard, … }
  let size = PAGE;
  let number = null;
  let search = "";
  let sort = "counter";
  let asked = 0;
  let failed = 0; // when

  const body = h("tbody");
  const count = h("span", { class: "soft number" });
  const more = h("button", { type: "button", hidden: true, onclick: () => load(rows.size + PAGE) }, "Show more");
  const find = h("input", {
    type: "search",
    placeholder: "Find a counter",
    "aria-label": "Find a counter",
    spellcheck: "false",
    maxlength: "64",
    oninput: settled(() => {
      search = find.value.trim();
      load(PAGE);
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
  const list = h("div", { hidden: true }, h("div", { class: "sheet" }, table), more);
  const empty = h("div");
  const head = h("div", { class: "head" }, h("h1", null, "Counters ", count), find);
  const element = h("section", { class: "overview" }, head, list, rest, empty);
  const self = { element, title: "Counters", counters: [], heard, gone: () => clearInterval(timer) };
  const timer = setInterval(() => !document.hidden && load(), ANEW_MS);

  /** Ask for the first counters that the search finds, so many. */
  async function load(wanted = size) {
    const turn = ++asked;
    size = wanted;
    failed = 0;
    try {
      const found = await first({ days: DAYS, totals: "false" }, turn);
      if (turn !== asked) return;
      take(found, turn);
      // What was ever counted takes longer to add up: it comes after the rest.
      const all = await first({ days: 1 }, turn);
      if (turn !== asked) return;
      for (const data of all.rows) if (rows.has(data.counter)) based(rows.get(data.counter), data);
      arrange();
    } catch (error) {
      if (turn !== asked) return;
      failed = Date.now();
      put(rest, failure(error, () => load()));
    }
  }

  /** The first counters, in as many answers as it takes. */
  async function first(question, turn) {
    const lines = [];
    let found;
    do {
      const limit = Math.min(MOST_AT_ONCE, size - lines.length);
      found = await get("/v1/counters", { search, after: found?.next ?? "", limit, ...question });
      lines.push(...found.rows);
    } while (found.next && lines.length < size && turn === asked);
    return { ...found, rows: lines };
  }

  function take(found, turn) {
    put(rest);
    number = found.counters;
    const { next } = found;
    rows = new Map(found.rows.map((data) => [data.counter, renew(rows.get(data.counter), data, turn)]));
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

  function renew(row, data, turn) {
    const values = (data.days ?? []).map((one) => one.total);
    const day = lastDay(data);
    let { today } = data;
    // Heard since this was asked for: if the answer is newer, that is heard, too, in a moment.
    if (row?.heard === turn && row.day === day) values[values.length - 1] = today = row.today;
    if (!row) row = make(data, values);
    else if (values.join() !== row.values.join()) draw(row.spark, values);
    Object.assign(row, { values, day, today });
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
  function based(row, data) {
    row.base = { total: data.total, today: data.today, day: lastDay(data) };
    numbers(row);
  }

  function numbers(row) {
    text(row.now, whole(row.today));
    if (row.base === null) return;
    const counted = row.base.day === row.day ? (row.base.today ?? 0) : 0; // of today
    row.total = row.base.total + (row.today ?? 0) - counted;
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
    if (failed && Date.now() - failed > AFTER_TROUBLE_MS) load(); // somebody answers again
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
      row.heard = asked;
      row.values[row.values.length - 1] = total;
      numbers(row);
      draw(row.spark, row.values);
      tick(row.now);
    }
  }

  load();
  return self;
}

/** The day that an answer's `today` is of. */
const lastDay = (data) => data.days?.at(-1)?.day;

/** A name that may be broken after its parts. */
function breakable(name) {
  return name.split(/(?<=[_.:-])/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));
}
