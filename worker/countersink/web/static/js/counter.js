// One counter: its series, compared with the period before, and its keys.

import { address as url, counterPath, get } from "./api.js";
import { Chart, MOST_BARS } from "./chart.js";
import { announce, h, paced, put, settled, text } from "./dom.js";
import { between, change, label, plus, whole } from "./format.js";
import { keys } from "./keys.js";
import { choice, failure, figure, tick } from "./parts.js";
import { RANGES, address, read } from "./range.js";
import { series } from "./series.js";

const TABLE_MOST = 400;
const HOURS_ANEW_MS = 5_000;
const KEYS_ANEW_MS = 10_000;
const ANEW_MS = 60_000;
const TYPED_MS = 600;

export function counterView(app, counter, query) {
  let settings = null;
  let wanted = null;
  let found = null;
  let asking = null;
  let todayTotal = null;
  let allTotal = null;
  let loading = false;
  let moved = false; // an event came while the numbers were asked for
  let typing = null; // the date field
  let left = false; // nobody looks at this any more

  // Hours and keys are not in the events: look again, but not all the time.
  const again = paced(() => load(true), HOURS_ANEW_MS);
  const keysAgain = paced(() => top.again(found.sum), KEYS_ANEW_MS);
  const startAgain = paced(() => start(), HOURS_ANEW_MS);

  const chart = new Chart();
  const meta = h("p", { class: "soft" });
  const now = h("span", { class: "now" }, "…");
  const all = h("span", null, "…");
  const sum = h("span", null, "…");
  const sumName = h("span", null, "Sum");
  const sumNote = h("small");
  const yesterday = h("small");
  const first = day("from", "First day");
  const last = day("to", "Last day");
  const ranges = h("div");
  const controls = h("div", { class: "controls" }, ranges, h("span", { class: "dates" }, first, h("span", { "aria-hidden": "true" }, "–"), last));
  const drawing = h("div", { class: "controls" });
  const chip = h("p", { class: "chips" });
  const trouble = h("div");
  const missing = h("div");
  const note = h("p", { class: "soft note" });
  const tableBody = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The numbers of the chart" });
  const details = h("details", { ontoggle: () => details.open && found && numbers() }, h("summary", null, "The numbers as a table"), tableBody);
  const top = keys(counter, (key) => go({ key }));
  const panel = h("div", { class: "panel" }, drawing, chart.element, h("div", { class: "legend" }, chart.legend, note), details);
  const sumFigure = h("div", { class: "figure" }, h("dt", null, sumName), h("dd", null, sum, sumNote));
  const content = h(
    "div",
    null,
    h(
      "dl",
      { class: "figures" },
      h("div", { class: "figure" }, h("dt", null, "Today"), h("dd", null, now, yesterday)),
      sumFigure,
      h("div", { class: "figure" }, h("dt", null, "In all"), h("dd", null, all)),
    ),
    controls,
    chip,
    trouble,
    panel,
    top.element,
  );
  const element = h(
    "section",
    { class: "counter" },
    h("p", { class: "back" }, h("a", { href: "#/" }, "← All counters")),
    h("div", { class: "head" }, h("h1", null, counter), meta),
    missing,
    content,
  );
  const timer = setInterval(() => !document.hidden && (settings ? load(true) : start()), ANEW_MS);

  function go(changes) {
    location.hash = address(counter, query, changes);
  }

  async function start() {
    startAgain.done();
    let answer;
    try {
      answer = await get(counterPath(counter));
    } catch (error) {
      if (left) return;
      content.hidden = error.status === 404;
      if (content.hidden) put(missing, h("p", { class: "notice" }, `Nothing has been counted as ${counter}. When something is, it shows up here.`), h("p", null, h("a", { href: "#/" }, "All counters")));
      else put(trouble, failure(error, start));
      return;
    }
    if (left) return;
    startAgain.stop();
    settings = answer;
    put(missing);
    content.hidden = false;
    const unit = { day: "day", hour: "hour", quarter: "quarter of an hour" }[settings.resolution];
    text(meta, `Counted by ${unit} in ${settings.time_zone}${settings.rolled_up_to ? `, by month before ${settings.rolled_up_to}` : ""}`);
    load();
  }

  /** Ask for everything that the address names; `quietly`: only anew. */
  async function load(quietly = false) {
    wanted = read(query, settings);
    again.done();
    keysAgain.done();
    loading = true;
    moved = false;
    asking?.abort();
    const own = (asking = new AbortController());
    if (!quietly) show();
    panel.setAttribute("aria-busy", "true");
    try {
      found = await series(counter, wanted, own.signal);
      put(trouble);
      panel.removeAttribute("aria-busy");
      drawn(quietly);
      if (wanted.key === null) top.show(wanted, found.sum);
      else if (!quietly) top.show(wanted, 0);
      await Promise.all([figures(own.signal), inAll(own.signal)]);
      loading = false;
      // They may be of before and after the event: once more.
      if (moved) setTimeout(() => asking === own && !left && load(true), 1_000);
    } catch (error) {
      if (error.name === "AbortError") return;
      loading = false;
      panel.removeAttribute("aria-busy");
      put(trouble, failure(error, () => load()));
    }
  }

  /** A field for a day. Who types passes many a date on the way to the one that is meant. */
  function day(name, label) {
    const typed = settled(() => {
      typing = null;
      if (left || !field.value || !field.checkValidity()) return;
      go({ from: wanted.from, to: wanted.to ?? wanted.now, [name]: field.value, range: "custom" });
    }, TYPED_MS);
    const field = h("input", { type: "date", "aria-label": label, min: "1970-01-01", onchange: () => typed((typing = field)) });
    return field;
  }

  /** The controls, as the address has them. */
  function show() {
    const { range, by, can, hours, key } = wanted;
    const shownBy = by === "auto" ? null : by;
    const offered = RANGES.filter(([value]) => value !== "1" || hours);
    const focused = [ranges, drawing].some((one) => one.contains(document.activeElement)) ? document.activeElement : null;
    put(ranges, choice("Days", offered, range, (value) => go({ range: value, from: null, to: null, by: null })));
    dated(first, wanted.from);
    dated(last, wanted.to);
    put(
      drawing,
      choice(
        "Shown by",
        [
          ["hour", "Hours", can.hour ? null : hours ? "At most 92 days by the hour" : "This counter is counted by day"],
          ["day", "Days"],
          ["month", "Months", can.month ? null : "For more than 31 days"],
        ],
        shownBy ?? found?.by,
        (value) => go({ by: value }),
      ),
      h(
        "label",
        { class: "check" },
        h("input", {
          type: "checkbox",
          checked: wanted.compare,
          disabled: wanted.from === null,
          onchange: (event) => go({ compare: event.target.checked ? "1" : null }),
        }),
        "Compare with the period before",
      ),
    );
    if (focused) refocus(focused);
    put(
      chip,
      key !== null && [
        "Only the key ",
        h("span", { class: "chip" }, key === "" ? "(no key)" : key, h("button", { type: "button", "aria-label": "All keys", onclick: () => go({ key: null }) }, "×")),
      ],
    );
  }

  function dated(field, iso) {
    // The same value again would put the cursor back to the field's beginning.
    if (field !== typing && field.value !== (iso ?? "")) field.value = iso ?? "";
  }

  /** What had the focus was made anew: give it to what took its place. */
  function refocus(before) {
    const name = (one) => `${one.tagName} ${one.getAttribute("aria-label") ?? one.textContent} ${one.type}`;
    const all = [ranges, drawing].flatMap((part) => [...part.querySelectorAll("button, input")]);
    all.find((one) => name(one) === name(before))?.focus();
  }

  function drawn(quietly) {
    const { before, labels, values, by } = found;
    const useful = before && before.values.length ? before : null;
    chart.draw({ by, labels, values, before: useful, name: counter });
    const period = RANGES.find(([value]) => value === wanted.range)?.[1];
    sumFigure.hidden = wanted.range === "all";
    text(sumName, wanted.range === "custom" ? "These days" : wanted.range === "1" ? "Today, all hours" : `Last ${period}`);
    text(sum, whole(found.sum));
    const more = before && before.sum !== null ? change(found.sum, before.sum) : null;
    put(sumNote, before && before.sum !== null && `${more ? `${more}, ` : ""}before ${whole(before.sum)}`);
    put(
      note,
      useful && [h("span", { class: "of now" }, range(found)), " ", h("span", { class: `of then ${labels.length > MOST_BARS ? "dashed" : ""}` }, range(useful)), " "],
      before?.trouble && `${before.trouble} `,
      found.rolledUpTo && by !== "month" && "Older days are in months by now. ",
    );
    if (details.open) numbers();
    if (wanted.by === "auto" && !quietly) show();
    if (!quietly) announce(`${counter}: ${labels.length} ${by}s, ${whole(found.sum)} in all of them`);
  }

  async function figures(signal) {
    const from = plus(wanted.now, -1);
    const two = await get(counterPath(counter, "daily"), { from, to: wanted.now, key: wanted.key }, signal).catch((error) => {
      if (error.status !== 422) throw error;
      return null;
    });
    if (!two) return;
    todayTotal = two.rows.at(-1).total;
    text(now, whole(todayTotal));
    text(yesterday, `yesterday ${whole(two.rows[0].total)}`);
  }

  async function inAll(signal) {
    const one = await get(counterPath(counter, "totals"), { by: "total", key: wanted.key }, signal);
    allTotal = one.rows[0]?.total ?? 0;
    text(all, whole(allTotal));
  }

  function numbers() {
    const { by, labels, values, before } = found;
    const rows = labels.map((iso, i) => [iso, values[i], before?.values[i]]).reverse();
    const cells = rows.slice(0, TABLE_MOST).map(([iso, value, then]) =>
      h("tr", null, h("th", { scope: "row" }, label(by, iso)), h("td", { class: "number" }, whole(value)), before && h("td", { class: "number soft" }, whole(then))),
    );
    const path = by === "month" ? "totals" : by === "hour" ? "hourly" : "daily";
    const csv = url(counterPath(counter, path), { from: wanted.from, to: wanted.to, key: wanted.key, by: by === "month" ? by : null, format: "csv" });
    put(
      tableBody,
      h(
        "table",
        null,
        h("thead", null, h("tr", null, h("th", { scope: "col" }, { day: "Day", hour: "Hour", month: "Month" }[by]), h("th", { scope: "col", class: "number" }, "Total"), before && h("th", { scope: "col", class: "number" }, "Before"))),
        h("tbody", null, cells),
      ),
      h("p", { class: "soft" }, rows.length > TABLE_MOST && `The last ${TABLE_MOST} of ${whole(rows.length)}. `, h("a", { href: csv, download: true }, "Download as CSV")),
    );
  }

  function heard(news) {
    const mine = Object.hasOwn(news.today, counter) && news.today[counter];
    if (!settings && (mine || !content.hidden)) return startAgain(); // it is there now, or the server is
    if (!mine) return undefined;
    moved ||= loading;
    if (!found || todayTotal === null) return undefined;
    const { day, total } = mine;
    if (wanted.key !== null || day !== wanted.now) return again(); // of all keys, or of the day after
    if (total === todayTotal) return undefined;
    if (allTotal !== null) text(all, whole((allTotal += total - todayTotal)));
    todayTotal = total;
    text(now, whole(total));
    tick(now);
    if (wanted.to !== null && wanted.to < day) return undefined;
    if (found.by !== "day" || found.labels.at(-1) !== day) return again();
    found.sum += total - found.values.at(-1);
    chart.last(total);
    text(sum, whole(found.sum));
    return keysAgain();
  }

  start();
  return {
    element,
    title: counter,
    counters: [counter],
    heard,
    changed(next) {
      query = next;
      if (settings) load();
    },
    gone() {
      left = true;
      clearInterval(timer);
      for (const call of [again, keysAgain, startAgain]) call.stop();
      asking?.abort();
      top.gone();
      chart.destroy();
    },
  };
}

function range({ by, labels }) {
  return labels.length ? between(by, labels[0], labels.at(-1)) : "";
}
