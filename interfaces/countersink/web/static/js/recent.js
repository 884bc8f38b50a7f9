// What was counted of late: the last hour of a counter as a chart that moves on, and its largest keys
// of the last 24 hours, sorted by their change against the 24 hours before; how often each is asked
// for again (`HOUR_ANEW_MS`, `TRENDS_ANEW_MS`), how many keys (`RANKED`, `MOST_KEYS`), its texts, and
// why it cannot be told.

import { address, counterPath, get } from "./api.js";
import { Chart } from "./chart.js";
import { amount, h, paced, put, text } from "./dom.js";
import { label, labelIn, whole } from "./format.js";
import { serverNow } from "./freshness.js";
import { name, visible } from "./names.js";
import { failure, told } from "./parts.js";
import { isKeyless, withKey } from "./range.js";
import { toldFrom, tooWide } from "./sentences.js";
import { table } from "./table.js";

const HOUR_ANEW_MS = 5_000;
const TRENDS_ANEW_MS = 10_000;
const RANKED = 50; // of smaller keys a change is chance
const MOST_KEYS = 10;
const MINUTE_MS = 60_000;
const QUARTER_MS = 900_000;
/** How late the known time of the server may be: its HTTP Date has whole seconds, and is made once a second. */
const DATE_MS = 2_000;
const LAST_HOUR = { last: "1h" };

/** The last hour, by minute or by quarter of an hour. */
export function lastHour(counter) {
  const chart = new Chart("Walk through the last hour with the arrow keys");
  const note = h("p", { class: "soft" });
  const rows = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The numbers of the last hour" });
  const csv = h("span", { class: "csv" });
  const body = h("div", null, chart.element, h("div", { class: "legend" }, chart.legend, note), h("div", { class: "as-table" }, h("details", null, h("summary", null, "The last hour as a table"), rows), csv));
  const fine = ({ resolution }) => ["minute", "quarter"].includes(resolution);
  const why = (settings) => !fine(settings) && tooWide(counter, settings, "minutes", "minute");

  async function show(wanted, { resolution: by }, signal) {
    const { labels, values, from = null } = await (by === "minute" ? minutes : quarters)(counter, wanted, signal);
    if (signal.aborted) return;
    chart.draw({ by, labels, values, before: null, name: `The last hour of ${visible(counter)}`, lines: null, written: whole, ratio: false, partial: labels.length ? labels.length - 1 : null, notes: null });
    const sum = values.reduce((all, one) => all + one, 0);
    text(note, `${whole(sum)} since ${labels[0]?.slice(11, 16) ?? "then"}, ${wanted.shownZone}. The last ${by} is not over. ${from ? toldFrom(by, from, wanted.shownZone) : ""}`);
    table(rows, by, labels, [["Total", values, whole]]);
    const all = { ...LAST_HOUR, time_zone: wanted.zone, ...wanted.filter, format: "csv", spreadsheet: true };
    put(csv, by === "minute" && h("a", { href: address(counterPath(counter, "minutely"), all), download: true }, "Minutes as CSV"));
  }

  const self = part("The last hour", body, why, show, HOUR_ANEW_MS);
  const { gone } = self;
  return { ...self, gone: () => (gone(), chart.destroy()) };
}

/** The keys that grew most in the last 24 hours, of those with the largest totals; `to(key)` is the address of a key alone. */
export function trending(counter, to) {
  const list = h("tbody");
  const head = ["Key", "Total", "Previous", "Change"].map((one, i) => h("th", { scope: "col", class: i ? "number" : null }, one));
  const caption = h("caption", { class: "unseen" }, "Keys of the last 24 hours, and of the 24 hours before");
  const keys = h("table", null, caption, h("thead", null, h("tr", null, head)), list);
  const note = h("p", { class: "soft explained" });
  const file = h("p");
  const why = (settings) => settings.resolution === "day" && tooWide(counter, settings, "last 24 hours", "hour");

  async function show({ filter, shownZone, better, dimensional }, _settings, signal) {
    const question = { n: RANKED, last: "24h", against: "previous", ...filter };
    const { rows, window } = await get(counterPath(counter, "top"), question, signal);
    if (signal.aborted) return;
    const focused = list.querySelector("a:focus")?.getAttribute("href");
    if (isKeyless(rows, filter)) return false;
    const ranked = [...withKey(rows, dimensional)].sort((a, b) => growth(b) - growth(a) || b.total - a.total).slice(0, MOST_KEYS);
    put(list, ranked.map((row) => trend(row, to(row.key), better)));
    if (focused) [...list.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus({ preventScroll: true });
    keys.hidden = !rows.length;
    const [since, until] = [window.from, window.to].map((each) => label("minute", labelIn(shownZone, new Date(each))));
    const before = rows.some(({ previous }) => previous === null) ? "The 24 hours before are not known: the counter had wider buckets then, or they are rolled up. " : "";
    const csv = address(counterPath(counter, "top"), { ...question, format: "csv", spreadsheet: true });
    put(file, rows.length > 0 && h("a", { href: csv, download: true }, "Trending keys as CSV"));
    text(note, rows.length ? `From ${since} to ${until}, ${shownZone}, the open bucket included, against the 24 hours before; of the ${RANKED} largest keys, those that grew most. New: no counts before. ${before}` : "Nothing was counted in the last 24 hours.");
    return true;
  }

  return part("Trending in the last 24 hours", h("div", { class: "trends" }, keys, note, file), why, show, TRENDS_ANEW_MS, ({ filter }) => filter.where.length > 0);
}

/** The place in the order of changes: keys that are new come first, those without a known change last. */
const growth = ({ total, previous }) => (previous > 0 ? total / previous : previous === 0 ? Number.MAX_VALUE : -Number.MAX_VALUE);

function trend({ key, total, previous }, href, better) {
  const numbers = [total, previous].map((one, i) => {
    const cell = h("td", { class: i ? "number soft" : "number" });
    amount(cell, whole(one));
    return cell;
  });
  const change = h("td", { class: "number change" });
  told(change, total, previous, better);
  return h("tr", null, h("th", { scope: "row" }, h("a", { href }, key === "" ? h("em", null, "(no key)") : name(key))), numbers, change);
}

/** { labels, values, from } of the last hour; `from`: what is before it is rolled up by now. */
async function minutes(counter, { zone, filter }, signal) {
  const ask = (range) => get(counterPath(counter, "minutely"), { ...range, time_zone: zone, ...filter }, signal);
  const all = await ask(LAST_HOUR);
  const { told_from: from = null, window } = all;
  const told = from && from < window.to ? await ask({ from, to: window.to }) : all;
  // The window may consist of quarters, and end behind the minute that is not over.
  const now = serverNow().getTime();
  const quarters = Date.parse(window.to) > now + MINUTE_MS + DATE_MS;
  const rows = quarters ? told.rows.filter(({ minute }) => Date.parse(minute) <= now) : told.rows;
  return { labels: rows.map((row) => row.minute), values: rows.map((row) => row.total), from };
}

/** The same, of quarters: there is no series of them, but each is a range. */
async function quarters(counter, { shownZone, filter }, signal) {
  const sum = (range) => get(counterPath(counter, "totals"), { by: "total", ...range, ...filter }, signal);
  const { window } = await sum(LAST_HOUR);
  const begins = [0, 1, 2, 3].map((nth) => Date.parse(window.from) + nth * QUARTER_MS);
  const iso = (moment) => new Date(moment).toISOString();
  const answers = await Promise.all(begins.map((begin) => sum({ from: iso(begin), to: iso(begin + QUARTER_MS) })));
  return { labels: begins.map((begin) => labelIn(shownZone, new Date(begin))), values: answers.map(({ rows }) => rows[0]?.total ?? 0) };
}

/** A part that can be opened. `show(wanted, settings, signal)` fills `body`; if `why(settings)` returns a
    reason against it, this is shown instead. The part is hidden for several lines, if `hides(wanted)` is
    true, or if `show` returns false. */
function part(title, body, why, show, every, hides = () => false) {
  let wanted = null;
  let settings = null;
  let asking = null;
  const content = h("div");
  const element = h("details", { class: "recent panel", hidden: true, ontoggle: load }, h("summary", null, title), content);
  const again = paced(load, every);
  const none = () => wanted.lines.length > 1 || hides(wanted);

  async function load() {
    again.done();
    if (!wanted || !element.open || none()) return;
    asking?.abort();
    const own = (asking = new AbortController());
    const reason = why(settings);
    let found = true;
    try {
      if (reason) put(content, reason);
      else found = await show(wanted, settings, own.signal);
      if (!reason && !own.signal.aborted && !content.contains(body)) put(content, body);
    } catch (error) {
      if (error.name === "AbortError" || own.signal.aborted) return;
      put(content, error.status === 422 ? h("p", { class: "soft" }, error.message) : failure(error, load));
    }
    if (!own.signal.aborted) element.hidden = none() || found === false;
  }

  return {
    element,
    again: () => again(),
    show(next, own) {
      const opening = !settings && !element.open && !why(own);
      [wanted, settings] = [next, own];
      if (opening) element.open = true; // which asks
      else load();
      if (none() || !element.open) element.hidden = none();
    },
    gone() {
      again.stop();
      asking?.abort();
    },
  };
}
