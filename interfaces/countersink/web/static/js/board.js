// The views of boards: the list of all, and one board with its counters; the form in which a board is
// made and changed, how often the numbers are asked for again (`BOARD_ANEW_MS`), and the choice of
// running totals.

import { counterPath, get, post, remove, write } from "./api.js";
import { Chart } from "./chart.js";
import { amount, announce, h, paced, put } from "./dom.js";
import { whole } from "./format.js";
import { token } from "./link.js";
import { name, visible } from "./names.js";
import { failure, sure, totalsChoice } from "./parts.js";
import { RANGES, isKeyless, picked, read, viewAddress } from "./range.js";
import { toldFrom } from "./sentences.js";
import { series } from "./series.js";
import { share } from "./share.js";
import { downloads } from "./table.js";

const BOARD_ANEW_MS = 60_000;
const ITEMS_ANEW_MS = 5_000;
const MOST_TOP = 25;
const BOARDS = "/v1/boards";
const NEW_ITEM = { counter: "", days: 30, width: "half", top: 0, cumulative: false };

const boardPath = (board) => `${BOARDS}/${encodeURIComponent(board)}`;
const boardAddress = (board) => `#/board/${encodeURIComponent(board)}`;
const rangeOf = ({ days }) => String(days ?? "all");

/** The list of all boards. */
export function boardsView(app) {
  const trouble = h("div");
  const list = h("ul", { class: "boards" });
  const form = boardForm(null, (board) => (location.hash = boardAddress(board)));
  const make = h("button", { type: "button", hidden: true, onclick: () => form.open([NEW_ITEM]) }, "New board…");
  app.known?.then(() => (make.hidden = !mayChange(app)));

  async function load() {
    try {
      const { rows } = await get(BOARDS);
      put(trouble, !rows.length && [h("p", { class: "lead" }, "A board shows several counters on one page. There is none yet."), h("p", { class: "soft" }, "The command makes one, too: ", h("code", null, "countersink board create NAME COUNTER…"))]);
      put(
        list,
        rows.map(({ board, items }) => h("li", null, h("a", { href: boardAddress(board) }, board), h("span", { class: "soft" }, [...new Set(items.map(({ counter }) => counter))].map((counter, i) => [i > 0 && ", ", name(counter)])))),
      );
    } catch (error) {
      put(trouble, failure(error, load));
    }
  }

  load();
  return { element: h("section", null, h("div", { class: "head" }, h("h1", null, "Boards"), make), trouble, list, form.element), title: "Boards" };
}

/** One board. */
export function boardView(app, board, query) {
  let items = [];
  let parts = [];
  let shown;
  const loaded = new Promise((done) => (shown = done));
  const moved = new Set(); // counters that live events named
  const known = new Map(); // settings of the counters, asked for once a minute
  const settingsOf = (counter) => {
    if (!known.has(counter)) known.set(counter, get(counterPath(counter)).catch((error) => (known.delete(counter), Promise.reject(error))));
    return known.get(counter);
  };
  const again = paced(() => {
    again.done();
    for (const part of parts) if (moved.has(part.counter)) part.load();
    moved.clear();
  }, ITEMS_ANEW_MS);
  const trouble = h("div");
  const totals = h("div");
  const grid = h("div", { class: "board" });
  const form = boardForm(board, load);
  const changes = h(
    "span",
    { class: "buttons", hidden: true },
    h("button", { type: "button", class: "quiet", onclick: () => form.open(items) }, "Change…"),
    h("button", { type: "button", class: "quiet", onclick: drop }, "Delete…"),
  );
  app.known?.then(() => (changes.hidden = !mayChange(app)));
  const sharing = share(app, board, () => query, "board");
  const buttons = h("span", { class: "buttons", hidden: true }, changes, sharing.element);
  const element = h(
    "section",
    null,
    h("p", { class: "back" }, h("a", { href: "#/boards" }, "← All boards")),
    h("div", { class: "head" }, h("h1", null, visible(board)), totals, buttons),
    trouble,
    grid,
    form.element,
  );
  const timer = setInterval(() => !document.hidden && load(), BOARD_ANEW_MS);
  let left = false;

  async function load() {
    try {
      const found = await get(boardPath(board));
      if (left) return;
      put(trouble);
      buttons.hidden = false;
      known.clear();
      if (JSON.stringify(found.items) !== JSON.stringify(items)) {
        items = found.items;
        self.counters = items.map(({ counter }) => counter);
        app.live.watch(self.counters);
        for (const part of parts) part.gone();
        parts = items.map((item) => boardPart(item, settingsOf));
        put(grid, parts.map((part) => part.element));
      }
      show();
    } catch (error) {
      if (left) return;
      const gone = error.status === 404;
      buttons.hidden ||= gone;
      put(trouble, failure(error, gone ? null : load));
    }
    shown();
  }

  function show() {
    put(totals, totalsChoice(query));
    for (const part of parts) part.load(query.get("cumulative") === "1");
  }

  async function drop() {
    if (!(await sure(`Delete the board ${board}? Links to it end; its counters stay.`, "Delete", "danger"))) return;
    try {
      await remove(boardPath(board));
      location.hash = "#/boards";
    } catch (error) {
      put(trouble, failure(error));
    }
  }

  const self = {
    element,
    loaded,
    title: visible(board),
    counters: [],
    heard({ today }) {
      for (const counter of Object.keys(today)) moved.add(counter);
      if (parts.some(({ counter }) => moved.has(counter))) again();
    },
    changed(next) {
      query = next;
      show();
    },
    gone() {
      left = true;
      clearInterval(timer);
      again.stop();
      for (const part of parts) part.gone();
    },
  };
  load();
  return self;
}

/** A counter on a board: its sum, chart and largest keys. `settingsOf(counter)` asks for settings. */
function boardPart(item, settingsOf) {
  let running = false;
  let asking = null; // while an answer is awaited
  let again = false; // an event came meanwhile
  const { counter, top } = item;
  const chart = new Chart(`Walk through ${visible(counter)} with the arrow keys`);
  const sum = h("span", { class: "sum number" }, "…");
  const range = RANGES.find(([value]) => value === rangeOf(item))[1];
  const kind = h("small", { class: "soft" });
  const trouble = h("div");
  const list = h("ol", { class: "keys" });
  const csv = h("p", { class: "csv" });
  const title = token === null ? h("a", { href: viewAddress(counter, "", { range: rangeOf(item) }) }, name(counter)) : name(counter);
  const element = h(
    "section",
    { class: `panel ${item.width}`, "aria-label": visible(counter) },
    h("div", { class: "head" }, h("h2", null, title, " ", kind), sum),
    trouble,
    chart.element,
    chart.legend,
    list,
    csv,
  );

  async function load(all = running) {
    if (asking && all === running) return void (again = true); // a slow answer is waited for
    running = all;
    again = false;
    asking?.abort();
    const own = (asking = new AbortController());
    const { signal } = own;
    try {
      const settings = await settingsOf(counter);
      const wanted = { ...read(counter, new URLSearchParams({ range: rangeOf(item) }), new Map([[counter, settings]])), before: null, cumulative: running || item.cumulative };
      const keys = top && (await get(counterPath(counter, "top"), { ...picked(wanted, wanted.lines[0]), n: top }, signal)).rows;
      const found = await series(wanted, signal);
      if (!signal.aborted) draw(wanted, found, keys && !isKeyless(keys, wanted.filter) ? keys : []);
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      const gone = error.status === 404;
      chart.element.hidden = gone;
      if (gone) put(sum, "–");
      put(trouble, gone ? h("p", { class: "soft" }, `Nothing is counted as ${visible(counter)} any more: it was deleted.`) : failure(error, () => load()));
    }
    if (asking !== own) return;
    asking = null;
    if (again) load();
  }

  function draw(wanted, found, keys) {
    const { by, labels, values } = found;
    const unfinished = by === "hour" ? -1 : labels.findIndex((iso) => wanted.now.startsWith(iso));
    put(trouble);
    chart.element.hidden = false;
    put(kind, wanted.cumulative ? `${range}, running totals` : range);
    amount(sum, whole(found.sum));
    chart.draw({ by, labels, values, before: null, name: visible(counter), lines: null, written: whole, ratio: false, partial: unfinished === -1 ? null : unfinished, notes: null });
    const most = Math.max(1, ...keys.map(({ total }) => total));
    put(
      list,
      keys.map(({ key, total }, i) => {
        const bar = h("span", { class: "bar", "aria-hidden": "true" });
        bar.style.setProperty("--part", String(Math.max(0, total) / most));
        return h("li", null, bar, h("span", { class: "rank number", "aria-hidden": "true" }, i + 1), h("span", { class: "key" }, key === "" ? h("em", null, "(no key)") : name(key)), h("span", { class: "number total" }, whole(total)));
      }),
    );
    put(csv, h("span", { class: "soft" }, found.toldFrom && toldFrom(by, found.toldFrom, wanted.shownZone)), downloads(wanted, by));
  }

  return {
    counter,
    element,
    load,
    gone() {
      asking?.abort();
      chart.destroy();
    },
  };
}

/** The form of a board in a dialog; `board` null: a new one. `saved(board)` is called afterwards. */
function boardForm(board, saved) {
  const called = h("input", { id: "board-name", required: true, maxlength: 64, pattern: "[A-Za-z0-9][A-Za-z0-9_.:\\-]*", title: "Letters, digits and _ . : -, a letter or digit first", spellcheck: "false" });
  const known = h("datalist", { id: "board-counters" });
  const trouble = h("div");
  const list = h("ol", { class: "items" });
  const element = h(
    "dialog",
    { "aria-labelledby": "board-title", class: "sharing" },
    h("h2", { id: "board-title" }, board === null ? "New board" : `Change ${board}`),
    h(
      "form",
      { onsubmit: save },
      board === null && h("p", null, h("label", { class: "field" }, "Name ", called)),
      known,
      list,
      h("button", { type: "button", onclick: () => add(NEW_ITEM).focus() }, "Add a counter"),
      trouble,
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => element.close() }, "Cancel"), h("button", null, "Save")),
    ),
  );

  function add(item) {
    const counter = h("input", { list: "board-counters", value: item.counter, required: true, placeholder: "Counter", "aria-label": "Counter", spellcheck: "false" });
    const days = selectOf("Days", RANGES, rangeOf(item));
    const width = selectOf("Width", [["half", "Half width"], ["full", "Full width"]], item.width);
    const top = h("input", { type: "number", min: 0, max: MOST_TOP, required: true, value: item.top });
    const cumulative = h("input", { type: "checkbox", checked: item.cumulative });
    const row = h(
      "li",
      null,
      counter,
      days,
      width,
      h("label", { class: "check" }, "Top keys ", top),
      h("label", { class: "check" }, cumulative, " Running totals"),
      h("span", { class: "buttons" }, h("button", { type: "button", class: "small", onclick: () => row.previousElementSibling?.before(row) }, "Move up"), h("button", { type: "button", class: "small", onclick: () => row.remove() }, "Remove")),
    );
    row.item = () => ({ counter: counter.value, days: days.value === "all" ? null : Number(days.value), width: width.value, top: Number(top.value), cumulative: cumulative.checked });
    list.append(row);
    return counter;
  }

  async function open(items) {
    put(trouble);
    put(list);
    for (const item of items) add(item);
    element.showModal();
    const { rows } = await get("/v1/counters", { days: 0, totals: false, limit: 1000 }).catch(() => ({ rows: [] })); // they can be typed
    put(known, rows.map(({ counter }) => h("option", { value: counter })));
  }

  async function save(event) {
    event.preventDefault();
    const items = [...list.children].map((row) => row.item());
    try {
      if (board === null) await post(BOARDS, { board: called.value, items });
      else await write(boardPath(board), { items });
      element.close();
      announce("The board is saved");
      saved(board ?? called.value);
    } catch (error) {
      put(trouble, failure(error));
    }
  }

  return { element, open };
}

const selectOf = (label, choices, now) => h("select", { "aria-label": label }, choices.map(([value, shown]) => h("option", { value, selected: value === now }, shown)));

/** Whether boards may be changed: as links show what is on a board, only with a key for all counters. */
const mayChange = (app) => app.may("admin") && app.seesAll();
