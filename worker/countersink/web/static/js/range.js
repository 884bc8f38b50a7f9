// Which days a counter's series shows: from the address, and back into it.

import { plus, span, today } from "./format.js";

export const RANGES = [
  ["1", "Today"],
  ["7", "7 days"],
  ["30", "30 days"],
  ["90", "90 days"],
  ["365", "1 year"],
  ["all", "All"],
];
const MOST_HOUR_DAYS = 92;

/** What the address asks for. `settings`: time_zone and resolution of the counter. */
export function read(query, settings) {
  const now = today(settings.time_zone);
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
  const compare = query.get("compare") === "1" && from !== null;
  const before = compare ? { from: plus(from, -days), to: plus(from, -1) } : null;
  return { range, from, to, days, by, can, hours, compare, before, now, key: query.get("key") };
}

/** The address of a counter with some of these changed; null takes one away. */
export function address(counter, query, changes) {
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) next.delete(name);
    else next.set(name, value);
  }
  const text = next.toString();
  return `#/counter/${encodeURIComponent(counter)}${text ? `?${text}` : ""}`;
}

function date(text) {
  return /^\d{4}-\d\d-\d\d$/.test(text ?? "") && !Number.isNaN(Date.parse(text)) ? text : null;
}
