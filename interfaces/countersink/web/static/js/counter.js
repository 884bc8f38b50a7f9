// The view of one counter: its figures, chart, table, keys and notes, how often each is asked for
// again (`COUNTER_ANEW_MS`), and the text for a counter without counts.

import { counterPath, get } from "./api.js";
import { Chart } from "./chart.js";
import { controls, title } from "./controls.js";
import { amount, announce, h, paced, put, text } from "./dom.js";
import { filters } from "./filters.js";
import { MEMBERS, ratios, timeIn, whole } from "./format.js";
import { hourMap } from "./hours.js";
import { isOf, keys } from "./keys.js";
import { lastHour, trending } from "./recent.js";
import { legend } from "./lines.js";
import { token } from "./link.js";
import { dayNotes } from "./notes.js";
import { share } from "./share.js";
import { name, visible } from "./names.js";
import { failure, tick } from "./parts.js";
import { FILTERS, RANGES, viewAddress, daysQuery, picked, read } from "./range.js";
import { compared, counting, differentVisitors, emptyDays, remarks, unknownVisitors } from "./sentences.js";
import { lastCounted, lastTwoDays, series } from "./series.js";
import { downloads, figuresOf, table } from "./table.js";

const NO_FILTER = Object.fromEntries(FILTERS.map((one) => [one, []]));
const HOURS_ANEW_MS = 5_000;
const KEYS_ANEW_MS = 10_000;
const COUNTER_ANEW_MS = 60_000;

export function counterView(app, counter, query) {
  let settings = null;
  const known = new Map(); // settings of this counter and of those beside it
  let refused = null; // a time zone that cannot be told, and why
  let wanted = null;
  let found = null;
  let asking = null;
  let todayTotal = null;
  let allTotal = null;
  let loading = false;
  let moved = false; // an event came while the numbers were asked for
  let left = false; // nobody looks at this any more
  let shown;
  const ready = new Promise((done) => (shown = done)); // settled when the first number, or an error, is shown
  let ended;
  const loaded = new Promise((done) => (ended = done)); // settled when the others are, too

  // Live events have neither hours nor keys: request them again, but not all the time.
  const again = paced(() => load(true), HOURS_ANEW_MS);
  const keysAgain = paced(() => {
    keysAgain.done();
    for (const list of lists()) list.again(found.sum);
    different(asking.signal).catch(() => {}); // asked for something else
  }, KEYS_ANEW_MS);
  const startAgain = paced(() => start(), HOURS_ANEW_MS);

  const chart = new Chart();
  const meta = h("p", { class: "soft" });
  const now = h("span", { class: "now" }, "…");
  const all = h("span", null, "…");
  const sum = h("span", null, "…");
  const sumName = h("span", null, "Sum");
  const sumNote = h("small");
  const visitors = h("small", { class: "visitors", hidden: true });
  const yesterday = h("small");
  const chosen = controls(go);
  const filter = filters(counter, go, chosen.zone);
  const trouble = h("div");
  const zoneTrouble = h("div");
  const missing = h("div");
  const old = h("div");
  const note = h("p", { class: "soft note" });
  const lines = h("ul", { class: "lines", "aria-label": "Lines of the chart" });
  const tableBody = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The numbers of the chart" });
  const details = h("details", { ontoggle: () => details.open && found && numbers() }, h("summary", null, "The numbers as a table"), tableBody);
  const csv = h("span", { class: "csv" });
  const alone = (key) => ({ ...Object.fromEntries(FILTERS.map((one) => [one, null])), key, each: null, ratio: null });
  const top = keys(counter, (key) => go(alone(key)));
  const valuePanels = h("div", { class: "values-of" });
  let values = []; // a list for each dimension
  const lists = () => (wanted.filter.where.length ? values : [top, ...values]); // events have dimensions or a key
  const hour = lastHour(counter);
  const map = hourMap(counter);
  const trends = trending(counter, (key) => viewAddress(counter, query, alone(key)));
  const notes = dayNotes(app, counter, () => found && drawn(true));
  const sharing = share(app, counter, () => query);
  const panel = h("div", { class: "panel" }, chosen.drawing, lines, chart.element, h("div", { class: "legend" }, chart.legend, note), h("div", { class: "as-table" }, details, csv));
  const sumFigure = h("div", { class: "figure" }, h("dt", null, sumName), h("dd", null, sum, sumNote));
  const totals = h(
    "dl",
    { class: "figures" },
    h("div", { class: "figure" }, h("dt", null, "Today"), h("dd", null, now, yesterday)),
    sumFigure,
    h("div", { class: "figure" }, h("dt", null, "In all"), h("dd", null, all)),
  );
  const columns = h("div", { class: "columns" }, top.element, h("div", null, trends.element, hour.element, map.element, notes.element));
  const content = h("div", null, totals, chosen.days, filter.element, zoneTrouble, trouble, old, panel, valuePanels, columns);
  const back = h("a", null, "← All counters");
  const element = h(
    "section",
    { class: "counter" },
    h("p", { class: "back" }, back),
    h("div", { class: "head" }, h("h1", null, counter ? name(counter) : "No counter"), meta, sharing.element),
    missing,
    content,
  );
  const timer = setInterval(() => !document.hidden && (settings ? load(true) : start()), COUNTER_ANEW_MS);

  function go(changes) {
    location.hash = viewAddress(counter, query, changes);
  }

  /** The list of a dimension's values. To choose one filters the view by it; to choose it again removes
      the filter. */
  function dimensionList(dimension) {
    const pick = (value) => {
      const mine = `${dimension}=${value}`;
      const now = query.getAll("where");
      go({ ...alone(null), where: [...now.filter((one) => !isOf(dimension, one)), ...(now.includes(mine) ? [] : [mine])] });
    };
    return keys(counter, pick, dimension);
  }

  async function start() {
    startAgain.done();
    let answer;
    try {
      answer = await get(counterPath(counter));
    } catch (error) {
      if (left) return;
      shown();
      ended();
      sharing.element.hidden = content.hidden = error.status === 404;
      if (content.hidden) put(missing, h("p", { class: "notice" }, counter ? `Nothing has been counted as ${visible(counter)}. When something is, it shows up here.` : "This address names no counter: open the whole link."), token === null && h("p", null, h("a", { href: "#/" }, "All counters")));
      else put(trouble, failure(error, start));
      return;
    }
    if (left) return;
    startAgain.stop();
    settings = answer;
    known.set(counter, answer);
    put(missing);
    sharing.element.hidden = content.hidden = false;
    text(meta, counting(settings));
    values = settings.dimensions.filter((one) => settings.breakdowns.some(({ dimensions }) => dimensions.includes(one))).map(dimensionList);
    put(valuePanels, values.map((list) => list.element));
    load();
  }

  /** Request everything that the address names; `quietly`: the same as before, without announcements. */
  async function load(quietly = false) {
    if (refused && refused.zone !== query.get("zone")) refused = null;
    again.done();
    keysAgain.done();
    loading = true;
    moved = false;
    asking?.abort();
    const own = (asking = new AbortController());
    panel.setAttribute("aria-busy", "true");
    try {
      await neighbours(own.signal);
      if (own.signal.aborted) return;
      wanted = read(counter, query, known, refused?.zone);
      if (!quietly) {
        show();
        put(visitors);
      }
      const twoDays = figures(own.signal);
      const drawing = points(own.signal, quietly, twoDays).then(() => Promise.all([different(own.signal), earlier(own.signal)]));
      await Promise.all([inAll(own.signal), twoDays, drawing, noted(own.signal)]);
      loading = false;
      ended();
      // Some may be from before the event, some from after it: once more.
      if (moved) setTimeout(() => asking === own && !left && load(true), 1_000);
    } catch (error) {
      if (error.name === "AbortError" || asking !== own) return;
      if (error.status === 422 && wanted?.asked && wanted.asked === wanted.shownZone && wanted.zone) {
        // Days in the usual time zone can always be shown.
        refused = { zone: wanted.asked, why: error.message };
        load(quietly);
        return;
      }
      loading = false;
      shown();
      ended();
      panel.removeAttribute("aria-busy");
      put(trouble, failure(error, () => load()));
    }
  }

  /** The notes on these days, which the numbers do not wait for. */
  async function noted(signal) {
    if ((await notes.load(wanted, signal)) && found && !signal.aborted) drawn(true);
  }

  /** The chart, and the keys of its days. */
  async function points(signal, quietly, twoDays) {
    const answer = await series(wanted, signal);
    if (signal.aborted) return;
    found = answer;
    put(trouble);
    panel.removeAttribute("aria-busy");
    drawn(quietly);
    shown();
    const { key, prefix, exclude_key, exclude_prefix } = wanted.filter;
    const alone = key.length === 1 && !prefix.length && !exclude_key.length && !exclude_prefix.length;
    // For a single key, the list has the other keys, to change to.
    const total = alone || wanted.beside.length ? 0 : wanted.each ? found.lines.reduce((all, line) => all + line.sum, 0) : found.sum;
    for (const part of [hour, map, trends]) part.show(wanted, settings);
    top.element.hidden = wanted.filter.where.length > 0;
    if (wanted.days === 1 && wanted.from === wanted.now) wanted.alike = await twoDays;
    if (signal.aborted) return;
    for (const list of lists()) {
      if (list !== top) list.show(wanted, total);
      else if (!alone || !quietly) top.show(alone ? { ...wanted, filter: NO_FILTER } : wanted, total);
    }
  }

  /** If nothing was counted in these days, say when something last was. */
  async function earlier(signal) {
    const empty = wanted.from !== null && wanted.lines.length === 1 && !found.toldFrom && !found.values.some(Boolean);
    const last = empty ? await lastCounted(wanted.lines[0], signal) : null;
    const when = wanted.to !== wanted.now ? "in these days" : wanted.days > 1 ? `in the last ${wanted.days} days` : "today";
    if (!signal.aborted) put(old, last && emptyDays(`${when}; the last event`, wanted.days, last, (days) => viewAddress(counter, query, days)));
  }

  /** Request the settings of the counters beside this one: the time zone of the view depends on them. */
  async function neighbours(signal) {
    const unknown = query.getAll("with").filter((one) => !known.has(one));
    const answers = unknown.map((one) =>
      get(counterPath(one), {}, signal).then(
        (answer) => known.set(one, answer),
        (error) => {
          if (![403, 404].includes(error.status)) throw error; // its line says so
        },
      ),
    );
    await Promise.all(answers);
  }

  /** The controls, as the address has them. */
  function show() {
    back.href = `#/${daysQuery(query)}`;
    chosen.show(wanted, settings, found?.by);
    filter.show(wanted);
    put(
      zoneTrouble,
      refused && h("p", { class: "notice warn", role: "status" }, `Days in ${visible(refused.zone)} are not available. ${refused.why}. The chart has days in ${wanted.shownZone}.`),
    );
  }

  function drawn(quietly) {
    const { before, labels, values, by } = found;
    const useful = wanted.compare && before && !before.trouble && before.labels.some(Boolean) ? before : null;
    const many = wanted.lines.length > 1;
    const written = wanted.ratio ? ratios(found.sum ?? Math.max(0, ...values)) : whole;
    const running = { month: wanted.now.slice(0, 7), hour: `${wanted.now}T${timeIn(wanted.shownZone)?.slice(0, 2)}` }[by] ?? wanted.now;
    const unfinished = labels.findIndex((iso) => iso.slice(0, running.length) === running);
    const partial = unfinished === -1 || (by === "month" && wanted.to !== null && wanted.to < wanted.now) ? null : unfinished;
    const drawnLines = many && !wanted.ratio ? found.lines.map((line, i) => ({ name: title(wanted.lines[i]), values: line.values })) : null;
    chart.draw({ by, labels, values, before: useful, name: visible(counter), lines: drawnLines, written, ratio: Boolean(wanted.ratio), partial, notes: notes.at(by, labels) });
    const chosenRange = RANGES.find(([value]) => value === wanted.range)?.[1];
    totals.hidden = many;
    lines.hidden = !many;
    if (many) legend(lines, wanted, found, written, (name) => known.get(name)?.better);
    sumFigure.hidden = wanted.range === "all";
    text(sumName, found.toldFrom ? `${MEMBERS[by]} shown` : wanted.range === "custom" ? "These days" : wanted.range === "1" ? "Today, all hours" : `Last ${chosenRange}`);
    amount(sum, whole(found.sum));
    put(sumNote, many ? "" : compared(found, written, wanted.better));
    put(note, remarks(wanted, found, useful, partial, written));
    put(csv, downloads(wanted, by));
    if (details.open) numbers();
    if (wanted.by === "auto" && !quietly) show();
    if (!quietly) announce(`${visible(counter)}: ${labels.length} ${by}s, ${drawnLines ? found.lines.map((line, i) => `${title(wanted.lines[i])} ${whole(line.sum)}`).join(", ") : written(found.sum)} in all of them`);
  }

  /** Today beside yesterday, up to the same time of day. */
  async function figures(signal) {
    if (wanted.lines.length > 1) return null;
    const two = await lastTwoDays(wanted, signal).catch((error) => {
      if (error.status !== 422 || wanted.zone) throw error;
      return null;
    });
    if (!two) return null;
    todayTotal = two.sum;
    amount(now, whole(todayTotal));
    put(yesterday, two.before.alike ? compared(two, whole, wanted.better) : `all of yesterday ${whole(two.before.sum)}`);
    return two.before.alike;
  }

  async function inAll(signal) {
    if (wanted.lines.length > 1) return;
    const one = await get(counterPath(counter, "totals"), { by: "total", ...wanted.filter }, signal);
    allTotal = one.rows[0]?.total ?? 0;
    amount(all, whole(allTotal));
    shown();
  }

  /** The different visitors beside the total of the days shown; no other number waits for them. */
  async function different(signal) {
    visitors.hidden = settings.salt_days === null || wanted.lines.length > 1;
    if (visitors.hidden) return;
    const total = wanted.range === "all" ? all : sum;
    if (!total.parentElement.contains(visitors)) total.parentElement.append(visitors);
    let line;
    try {
      const { rows } = await get(counterPath(counter, "totals"), { ...picked(wanted, wanted.lines[0]), by: "total", unique: true }, signal);
      line = differentVisitors(rows[0], found.toldFrom ? " on all of these days" : "");
    } catch (error) {
      if (error.name === "AbortError") throw error;
      line = unknownVisitors(error.message, wanted.zone && settings.time_zone);
    }
    if (!visitors.firstChild?.isEqualNode(line)) put(visitors, line);
  }

  function numbers() {
    table(tableBody, found.by, found.labels, figuresOf(wanted, found, notes.at(found.by, found.labels)));
  }

  function heard(news) {
    const mine = Object.hasOwn(news.today, counter) && news.today[counter];
    if (!settings && (mine || !content.hidden)) return startAgain(); // the counter exists now, or the server answers again
    const beside = wanted?.lines.some((line) => Object.hasOwn(news.today, line.counter));
    if (!mine && !beside) return undefined;
    moved ||= loading;
    if (!found) return undefined;
    if (mine && mine.total !== todayTotal) for (const part of [hour, trends]) part.again();
    if (wanted.lines.length > 1 || wanted.zone) return again();
    if (!mine || todayTotal === null) return undefined;
    const { day, total } = mine;
    if (FILTERS.some((one) => wanted.filter[one].length) || day !== wanted.now) return again(); // of all keys, or of the day after
    if (total === todayTotal) return undefined;
    if (allTotal !== null) amount(all, whole((allTotal += total - todayTotal)));
    todayTotal = total;
    amount(now, whole(total));
    tick(now);
    if (wanted.to !== null && wanted.to < day) return undefined;
    if (wanted.cumulative || old.hasChildNodes() || found.by !== "day" || found.labels.at(-1) !== day) return again();
    found.sum += total - found.values.at(-1);
    chart.last(total);
    amount(sum, whole(found.sum));
    return keysAgain();
  }

  const self = {
    element,
    ready,
    loaded,
    title: visible(counter),
    counters: [counter, ...query.getAll("with")],
    heard,
    changed(next) {
      query = next;
      self.counters = [counter, ...query.getAll("with")];
      app.live.watch(self.counters);
      if (settings) load();
    },
    gone() {
      left = true;
      clearInterval(timer);
      for (const call of [again, keysAgain, startAgain]) call.stop();
      asking?.abort();
      for (const part of [chosen, filter, hour, map, trends, top, ...values]) part.gone();
      chart.destroy();
    },
  };
  start();
  return self;
}
