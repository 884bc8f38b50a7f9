// What a counter's view shows, read from the address: ranges of days (`RANGES`) and the one shown
// at first, most lines, when hours can be shown; and the address of another view.

import { COMPARISONS, comparison } from "./comparison.js";
import { plus, span, today } from "./format.js";

export const RANGES = [
  ["1", "Today"],
  ["7", "7 days"],
  ["30", "30 days"],
  ["90", "90 days"],
  ["365", "1 year"],
  ["all", "All"],
];
/** Parameters, in the address and in the read API, that choose keys or values of dimensions. */
export const FILTERS = ["key", "prefix", "exclude_key", "exclude_prefix", "where"];
/** Maximum number of lines of one chart. */
export const MOST_LINES = 6;
const MOST_HOUR_DAYS = 92;

/** What the address asks for, called `wanted` elsewhere. `known`: settings of the counter and of those
    beside it, by name; `refused`: a time zone that cannot be shown; the usual one is shown then. */
export function read(counter, query, known, refused = null) {
  const settings = known.get(counter);
  const beside = [...new Set(query.getAll("with"))].filter((name) => name && name !== counter).slice(0, MOST_LINES - 1);
  const usual = common([counter, ...beside].map((name) => known.get(name)).filter(Boolean));
  const asked = query.get("zone") || null;
  const shownZone = asked && asked !== refused ? asked : usual;
  const zoneOf = (name) => (known.get(name)?.time_zone === shownZone ? null : shownZone);
  const now = today(shownZone);
  const hours = settings.resolution !== "day";
  let range = query.get("range") ?? "30";
  let from = null;
  let to = null;
  if (range === "custom") {
    from = date(query.get("from")) ?? plus(now, -29);
    to = date(query.get("to")) ?? now;
    if (to < from) [from, to] = [to, from];
  } else if (range !== "all") {
    if (!RANGES.some(([known]) => known === range)) range = "30";
    from = plus(now, 1 - Number(range));
    to = now;
  }
  const days = from === null ? Infinity : span(from, to);
  const can = { hour: hours && days <= MOST_HOUR_DAYS, day: true, month: days > 31 };
  let by = query.get("by");
  if (!Object.hasOwn(can, by) || !can[by]) by = hours && days <= 2 ? "hour" : range === "all" ? "auto" : "day";
  const filter = Object.fromEntries(FILTERS.map((name) => [name, [...new Set(query.getAll(name))]]));
  const each = query.get("each") === "1" && !beside.length && filter.key.length > 1;
  const lines = linesOf(counter, beside, each, filter).map((line) => ({ ...line, zone: zoneOf(line.counter) }));
  const allHours = lines.every((line) => known.get(line.counter)?.resolution !== "day");
  const ratio = lines.length === 2 && ["ab", "ba"].includes(query.get("ratio")) ? query.get("ratio") : null;
  const drawable = from !== null && (lines.length === 1 || ratio);
  const compare = (drawable && COMPARISONS.find(([kind]) => kind === query.get("compare"))?.[0]) || "";
  const own = { from: date(query.get("other_from")), to: date(query.get("other_to")) };
  // Figures are compared with the period before, if the chart with nothing else.
  const before = from === null ? null : comparison(compare || "1", { from, to, days, by }, own);
  const cumulative = !ratio && query.get("cumulative") === "1";
  return { range, from, to, days, by, can, hours, compare, before, own, better: settings.better, dimensional: settings.dimensions.length > 0, now, zone: zoneOf(counter), asked, usual, shownZone, allHours, filter, beside, each, lines, ratio, cumulative };
}

/** The parameters of a request for the numbers of one line. */
export const picked = (wanted, line, { from, to } = wanted) => ({ from, to, time_zone: line.zone, ...line.filter });

/** The address of a counter's view with some parameters of `query` changed: null removes one, of a list
    each value is set. */
export function viewAddress(counter, query, changes) {
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name);
    for (const one of value === null ? [] : [value].flat()) next.append(name, one);
  }
  const text = next.toString();
  return `#/counter/${encodeURIComponent(counter)}${text ? `?${text}` : ""}`;
}

/** Whether a list of keys is useless: it is not filtered, and its only key is the empty one. */
export const isKeyless = (rows, filter) => rows.length > 0 && rows.every(({ key }) => key === "") && FILTERS.every((one) => !filter[one].length);

/** Rows of keys; with dimensions, without the empty key, which their events have. */
export const withKey = (rows, dimensional) => (dimensional ? rows.filter(({ key }) => key !== "") : rows);

/** The days in an address, which stay from view to view: "?range=7", or "" if it has none. */
export function daysQuery(query) {
  const kept = String(new URLSearchParams([...query].filter(([name]) => ["range", "from", "to"].includes(name))));
  return kept && `?${kept}`;
}

/** The usual time zone of a view: that of its counters counted by day, if they share one; else the first's. */
function common(all) {
  const own = all[0].time_zone;
  const days = new Set(all.filter((one) => one.resolution === "day").map((one) => one.time_zone));
  return all.some((one) => one.time_zone !== own) && days.size === 1 ? [...days][0] : own;
}

/** One line for each counter; or for each key, where that is wanted. */
function linesOf(counter, beside, each, filter) {
  if (!each) return [counter, ...beside].map((name) => ({ counter: name, key: null, filter }));
  const nothing = { prefix: [], exclude_key: [], exclude_prefix: [], where: [] };
  return filter.key.slice(0, MOST_LINES).map((key) => ({ counter, key, filter: { ...nothing, key: [key] } }));
}

function date(text) {
  return /^\d{4}-\d\d-\d\d$/.test(text ?? "") && !Number.isNaN(Date.parse(text)) ? text : null;
}
