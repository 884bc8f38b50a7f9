// The view of all counters: columns, orders, search, how many are loaded at a time (`PAGE`), days
// of the small lines (`TRENDS`), how often it is asked for again, and its texts.

import { get } from "./api.js";
import { amount, announce, h, put, settled, text } from "./dom.js";
import { emptyState } from "./empty.js";
import { whole } from "./format.js";
import { visible } from "./names.js";
import { choice, failure, tick, told } from "./parts.js";
import { RANGES, daysQuery, viewAddress } from "./range.js";
import { emptyDays } from "./sentences.js";
import { lastCounted } from "./series.js";
import { draw, sparkline } from "./sparkline.js";

const PAGE = 100;
const MOST_AT_ONCE = 1_000;
const TRENDS = RANGES.filter(([value]) => ["7", "30", "90"].includes(value));
const ORDERS = [
  ["counter down", "Name"],
  ["counter up", "Name, last first"],
  ["total down", "In all, largest first"],
  ["total up", "In all, smallest first"],
  ["today down", "Today, largest first"],
  ["today up", "Today, smallest first"],
  ["change down", "Change, most growth first"],
  ["change up", "Change, most loss first"],
];
const OVERVIEW_ANEW_MS = 60_000;
const AFTER_TROUBLE_MS = 5_000;

export function overview(app, _, query) {
  const days = () => Number(TRENDS.find(([value]) => value === query.get("range"))?.[0] ?? 30);
  let rows = new Map(); // counter → { day, today, values, base, change, heard, … }
  let size = PAGE;
  let number = null;
  let search = "";
  let sort = { by: "counter", reverse: false };
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
  const head = (by, shown, kind = "") =>
    h("th", { scope: "col", class: kind || null, "data-sort": by }, h("button", { type: "button", onclick: () => sorted(by) }, shown));
  const trendName = h("span");
  const changeName = h("span");
  const trendDays = h("div");
  const table = h(
    "table",
    { class: "counters" },
    h("caption", { class: "unseen" }, "Counters"),
    h(
      "thead",
      null,
      h("tr", null, [
        head("counter", "Counter"),
        h("th", { scope: "col", class: "trend" }, trendName),
        head("change", changeName, "number change"),
        head("today", "Today", "number"),
        head("total", "In all", "number all"),
      ]),
    ),
    body,
  );
  const rest = h("div");
  const choose = h(
    "label",
    { class: "sorting" },
    "Sort by ",
    h("select", { onchange: ({ target }) => sorted(...target.value.split(" ")) }, ORDERS.map(([value, shown]) => h("option", { value }, shown))),
  );
  const explained = h("p", { class: "soft explained" });
  const list = h("div", { hidden: true }, h("div", { class: "sheet" }, table), more, explained);
  const empty = h("div");
  const old = h("div");
  const top = h("div", { class: "head" }, h("h1", null, "Counters ", count), h("div", { class: "controls" }, trendDays, choose, find));
  const element = h("section", { class: "overview" }, top, old, list, rest, empty);
  let shown;
  const ready = new Promise((done) => (shown = done));
  const self = { element, ready, loaded: ready, title: "Counters", counters: [], heard, changed, gone };
  const timer = setInterval(() => !document.hidden && load(), OVERVIEW_ANEW_MS);

  function shownDays() {
    text(trendName, `Last ${days()} days`);
    text(changeName, `${days()}-day change`);
    text(explained, `${days()}-day change: the last ${days()} complete days, without today, against the ${days()} days before. Dashed: today, which is not over.`);
    put(trendDays, choice("Days of the lines", TRENDS, String(days()), (value) => (location.hash = `#/${daysQuery(new URLSearchParams({ range: value }))}`)));
  }

  function changed(next) {
    query = next;
    shownDays();
    load();
  }

  function gone() {
    asked++; // answers that come from now on are ignored
    clearInterval(timer);
  }

  /** Request the first `wanted` counters that the search finds. */
  async function load(wanted = size) {
    const turn = ++asked;
    size = wanted;
    failed = 0;
    try {
      const found = await first({ days: days(), totals: "false" }, turn);
      if (turn !== asked) return;
      take(found, turn);
      shown();
      // What was ever counted, and the change, take longer to add up: they come after the rest.
      const all = await first({ change: days(), days: 1 }, turn);
      if (turn !== asked) return;
      for (const data of all.rows) if (rows.has(data.counter)) based(rows.get(data.counter), data);
      arrange();
      await earlier(turn);
    } catch (error) {
      if (turn !== asked) return;
      failed = Date.now();
      shown();
      put(rest, failure(error, () => load()));
    }
  }

  /** If nothing was counted in the days of the lines, say when the largest counter was last counted. */
  async function earlier(turn) {
    const all = [...rows.values()].sort((one, other) => other.total - one.total);
    const empty = all.length && more.hidden && !search && all.every(({ values }) => values.length && !values.some(Boolean));
    const last = empty ? await lastCounted({ counter: all[0].counter, zone: null, filter: {} }) : null;
    const when = (name) => `in the last ${days()} days; the last event of ${visible(name)}`;
    if (turn === asked) put(old, last && emptyDays(when(all[0].counter), days(), last, (range) => viewAddress(all[0].counter, "", range)));
  }

  /** The first counters, in as many answers as it takes. */
  async function first(question, turn) {
    const lines = [];
    let found;
    do {
      const limit = Math.min(MOST_AT_ONCE, size - lines.length);
      const { by, reverse } = sort;
      const order = by === "counter" && !reverse ? {} : { sort: by, reverse, change: days() }; // as early.js asks
      found = await get("/v1/counters", { search, after: found?.next ?? "", limit, ...question, ...order });
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
    top.hidden = nothing;
    list.hidden = nothing;
    if (nothing && !empty.hasChildNodes()) app.known.then(() => number === 0 && put(empty, emptyState(app)));
    if (!nothing) put(empty);
    text(count, number === null ? "many" : number > 1 || search ? whole(number) : "");
    if (number === 0 && search) put(rest, h("p", { class: "soft" }, `No counter has “${visible(search)}” in its name.`));
    if (search) announce(number === 1 ? "1 counter found" : `${number ?? "Many"} counters found`);
    more.hidden = !next;
    arrange();
    self.counters = [...rows.keys()].slice(0, PAGE);
    app.live.watch(self.counters);
  }

  function renew(row, data, turn) {
    const values = (data.days ?? []).map((one) => one.total);
    const day = lastDay(data);
    let { today } = data;
    // A live event since the request: its total is kept. If the answer is newer, another event follows.
    if (row?.heard === turn && row.day === day) values[values.length - 1] = today = row.today;
    if (!row) row = make(data, values);
    else if (values.join() !== row.values.join()) draw(row.spark, values);
    if (row.days !== days()) row.change = null;
    Object.assign(row, { values, day, today, days: days() });
    row.link.href = `#/counter/${encodeURIComponent(data.counter)}${daysQuery(query)}`;
    numbers(row);
    return row;
  }

  function make(data, values) {
    const now = h("span", { class: "now" });
    const all = h("span", null, "…");
    const cell = h("td", { class: "number change" });
    const small = h("small", { class: "phone" });
    const spark = sparkline(values);
    const link = h("a", null, breakable(data.counter));
    const element = h(
      "tr",
      null,
      h("th", { scope: "row" }, link),
      h("td", { class: "trend" }, spark),
      cell,
      h("td", { class: "number" }, now, small),
      h("td", { class: "number all" }, all),
    );
    return { counter: data.counter, better: data.better, link, element, now, all, changed: cell, small, spark, values, base: null, change: null };
  }

  /** Show a counter's total of all time, with today's part of it from the same answer, and its change. */
  function based(row, data) {
    row.change = data.change;
    row.base = { total: data.total, today: data.today, day: lastDay(data) };
    numbers(row);
  }

  function numbers(row) {
    amount(row.now, whole(row.today));
    const more = told(row.changed, ...(row.change ?? [null, null]), row.better);
    if (row.base === null) return;
    const counted = row.base.day === row.day ? (row.base.today ?? 0) : 0; // of today
    row.total = row.base.total + (row.today ?? 0) - counted;
    amount(row.all, whole(row.total));
    amount(row.small, `${whole(row.total)} in all${more === "–" ? "" : `, ${more}`}`);
  }

  /** Sort by a column; if the list is sorted by it already, the other way round. */
  function sorted(by, way = null) {
    const reverse = way === null ? sort.by === by && !sort.reverse : way === "up";
    sort = { by, reverse };
    load(PAGE);
  }

  /** Show the rows in the order of the answer: the server has sorted all counters, not only these. */
  function arrange() {
    const order = [...rows.values()];
    for (const th of table.querySelectorAll("th[data-sort]")) {
      if (th.dataset.sort === sort.by) th.setAttribute("aria-sort", (sort.by === "counter") !== sort.reverse ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
    }
    choose.querySelector("select").value = `${sort.by} ${sort.reverse ? "up" : "down"}`;
    const elements = order.map((row) => row.element);
    if (elements.some((one, i) => body.children[i] !== one) || body.children.length !== elements.length) {
      body.replaceChildren(...elements);
    }
  }

  function heard(news) {
    if (failed && Date.now() - failed > AFTER_TROUBLE_MS) load(); // somebody answers again
    if (number !== null && news.counters !== null && !search && news.counters !== number) {
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
      put(old);
      draw(row.spark, row.values);
      tick(row.now);
    }
  }

  shownDays();
  load();
  return self;
}

/** The day whose total an answer has as `today`. */
const lastDay = (data) => data.days?.at(-1)?.day;

/** A name that may be broken after its parts. */
function breakable(name) {
  return name.split(/(?<=[_.:-])/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));
}
