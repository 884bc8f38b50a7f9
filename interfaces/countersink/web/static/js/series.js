// Asks for the series of a view, line by line, and its other period: when all days are shown by
// month (`MANY`, `FEW`), what an unfinished day is compared with, ratios, running totals.

import { ApiError, counterPath, get } from "./api.js";
import { MEMBERS, plus, timeIn } from "./format.js";
import { aligned } from "./comparison.js";
import { picked } from "./range.js";

const FEW = 3;
const MANY = 800;

/** The series of a view, { by, labels, lines: [{ values, sum, rolledUpTo, toldFrom, trouble }], before, values,
    sum }; the lines are in the order of `wanted` (range.js). `values` and `sum` are those of the first line, or
    the ratio of two. A line after the first that cannot be shown has its reason in `trouble`. */
export async function series(wanted, signal) {
  const found = await singles(wanted, signal);
  if (!wanted.cumulative) return found;
  const running = (line) => line && { ...line, values: runningTotals(line.values) };
  return { ...running(found), lines: found.lines.map(running), before: running(found.before) };
}

/** The sum of the values up to each of them; null where the value itself is not known. */
export function runningTotals(values) {
  let sum = 0;
  return values.map((value) => (value === null ? null : (sum += value)));
}

async function singles(wanted, signal) {
  const { before } = wanted;
  const [now, then] = await Promise.all([
    wanted.by === "auto" ? wholeSpan(wanted, signal) : all(wanted, wanted.by, wanted, signal),
    before ? comparedWith(wanted, signal) : null,
  ]);
  const of = (name) => now.lines.find((line) => line[name])?.[name] ?? null;
  const found = { ...now, ...shownSums(wanted, now.lines), rolledUpTo: of("rolledUpTo"), toldFrom: of("toldFrom") };
  if (!then) return { ...found, before: null };
  if (then.trouble) return { ...found, before: { trouble: then.trouble, labels: [], values: [] } };
  const other = { ...then, ...shownSums(wanted, then.lines) };
  const beside = aligned(now.by, now.labels, other, before);
  return { ...found, before: { ...beside, sum: other.sum, alike: await alikeDays(wanted, now, then, beside.places, signal).catch(unknown) } };
}

/** Sums of today and yesterday, in the form that `series` has for two periods; `ranges`: the hours compared. */
export async function lastTwoDays(wanted, signal) {
  const [line] = wanted.lines;
  const range = { from: plus(wanted.now, -1), to: wanted.now };
  const hour = ((wanted.allHours && timeIn(wanted.shownZone)) || "00").slice(0, 2);
  const hours = hour > "00" ? await one(wanted, line, "hour", range, signal).catch(unknown) : null;
  if (!hours || hours.toldFrom) {
    const { values } = await one(wanted, line, "day", range, signal);
    return { sum: values[1], before: { sum: values[0], alike: null } };
  }
  const sum = (day, end) => added(hours.values.filter((_, i) => hours.labels[i].slice(0, 10) === day && hours.labels[i].slice(11, 13) < end));
  const [now, then] = [range.to, range.from].map((day) => sum(day, hour));
  const at = (day, time) => hours.labels.find((label) => label.slice(0, 10) === day && label.slice(11, 13) >= time);
  const ranges = [range.to, range.from].map((day) => ({ from: at(day, "00"), to: at(day, hour) }));
  return { sum: sum(range.to, "24"), before: { sum: sum(range.from, "24"), alike: { now, then, until: `${hour}:00`, ranges } } };
}

/** The last day on which something was counted, or its month if that is rolled up; null: there is none. */
export async function lastCounted(line, signal) {
  try {
    const last = async (by, from) => (await one({}, line, by, { from, to: null }, signal)).labels.at(-1);
    const month = await last("month", null);
    return month ? ((await last("day", `${month}-01`)) ?? month) : null;
  } catch (error) {
    return unknown(error);
  }
}

/** Values and sum of the first line, or the ratio of two; null where its divisor is 0 or not known. */
function shownSums({ ratio }, lines) {
  if (!ratio) return { values: lines[0].values, sum: lines[0].sum };
  const [a, b] = ratio === "ab" ? lines : [lines[1], lines[0]];
  return { values: a.values.map((value, i) => quotient(value, b.values[i])), sum: quotient(a.sum, b.sum) };
}

const quotient = (a, b) => (a === null || b === null || !b ? null : a / b);

/** All that was ever counted: by month, or by day where that is little. */
async function wholeSpan(wanted, signal) {
  const months = await all(wanted, "month", {}, signal);
  const rolled = months.lines.some((line) => line.rolledUpTo);
  if (rolled || months.labels.length > MANY / 30) return months;
  if (months.labels.length <= FEW || months.labels.length * 31 <= MANY) return all(wanted, "day", {}, signal);
  return months;
}

/** All lines over one range: { by, labels, lines }. */
async function all(wanted, by, { from = null, to = null }, signal) {
  const [first, ...others] = wanted.lines;
  const found = await Promise.all([
    one(wanted, first, by, { from, to }, signal),
    ...others.map((line) => one(wanted, line, by, { from, to }, signal).catch(untold)),
  ]);
  const labels = union(by, found);
  const lines = found.map((line) => {
    if (line.labels.length === labels.length) return line;
    const places = new Map(line.labels.map((label, i) => [label, i]));
    // Before its first and after its last day nothing was counted, unless that is rolled up by now.
    const rolled = (label) => line.toldFrom && Date.parse(label) < Date.parse(line.toldFrom);
    const nothing = (label) => (line.trouble || rolled(label) ? null : 0);
    return { ...line, values: labels.map((label) => (places.has(label) ? line.values[places.get(label)] : nothing(label))) };
  });
  return { by, labels, lines };
}

async function one(wanted, line, by, range, signal) {
  const path = by === "month" ? "totals" : by === "hour" ? "hourly" : "daily";
  const asked = { ...picked(wanted, line, range), by: by === "month" ? by : null };
  const found = await get(counterPath(line.counter, path), asked, signal);
  const values = found.rows.map((row) => row.total);
  return { labels: found.rows.map((row) => row[by]), values, sum: added(values), rolledUpTo: found.rolled_up_to, toldFrom: found.told_from ?? null, trouble: null };
}

/** The lines of the other period; if they cannot be shown (422, or rolled up), the reason in `trouble`. */
async function comparedWith(wanted, signal) {
  try {
    const found = await all(wanted, wanted.by, wanted.before, signal);
    if (found.lines.some((line) => line.toldFrom)) return { trouble: `${MEMBERS[wanted.by]} of the other period are rolled up to ${wanted.by === "day" ? "months" : "wider buckets"}.` };
    return found;
  } catch (error) {
    if (error.status !== 422) throw error;
    return { trouble: error.message };
  }
}

/** An empty line, with the reason why it cannot be shown; errors other than 403, 404 and 422 are thrown. */
function untold(error) {
  if (![403, 404, 422].includes(error.status)) throw error;
  return { labels: [], values: [], sum: null, rolledUpTo: null, toldFrom: null, trouble: error.message };
}

/** Sums of both periods over the days that stand side by side, today only up to the last full hour:
    { now, then, until, lines }. `until`: that hour; "": today is left out; null: the view lacks today.
    `lines`: [now, then] of each line, or null. Null: nothing can be compared. */
async function alikeDays(wanted, now, then, places, signal) {
  const { before } = wanted;
  if (wanted.from > wanted.now) return null; // nothing of it has come yet
  const today = wanted.from <= wanted.now && wanted.now <= wanted.to;
  const other = today ? before.day(wanted.now) : null;
  const day = (label) => label.slice(0, 10);
  const counts = (label, i) => places[i] !== undefined && (!today || day(label) <= wanted.now);
  const months = now.by === "month";
  let sums = await Promise.all(
    now.lines.map(async (line, k) => {
      if (months) return [line.sum, today && other ? await total(wanted, wanted.lines[k], before.from, other, signal) : then.lines[k].sum];
      return [added(line.values.filter((_, i) => counts(now.labels[i], i))), added(now.labels.map((label, i) => (counts(label, i) ? then.lines[k].values[places[i]] : 0)))];
    }),
  );
  let until = today ? "" : null;
  if (today && (months || now.labels.some((label, i) => day(label) === wanted.now && counts(label, i)))) {
    const time = other && wanted.allHours && timeIn(wanted.shownZone);
    until = time ? `${time.slice(0, 2)}:00` : "";
    const at = now.labels.indexOf(wanted.now);
    const wholeDay = () => now.lines.map((line, k) => [line.values[at], then.lines[k].values[places[at]] ?? 0]);
    const rests = () => (!until && now.by === "day" ? wholeDay() : restsAsked());
    const restsAsked = () => Promise.all(wanted.lines.map((line) => Promise.all([wanted.now, other].map((one) => one && rest(wanted, line, one, until, signal)))));
    let left;
    try {
      left = await rests();
    } catch (error) {
      if (error.status !== 422 || !until) throw error;
      until = ""; // a day of before hours were counted
      left = await rests();
    }
    if (!until && wanted.from === wanted.now) return null; // without today there is none
    sums = sums.map(([a, b], k) => [a - left[k][0], b - left[k][1]]);
  }
  const [mine, theirs] = [0, 1].map((i) => shownSums(wanted, sums.map((pair) => ({ values: [], sum: pair[i] }))).sum);
  return { now: mine, then: theirs, until, lines: sums.map((pair, k) => (now.lines[k].trouble || then.lines[k].trouble ? null : pair)) };
}

/** Null for an error 422, such as of days rolled up to months: not known. Other errors are thrown. */
function unknown(error) {
  if (error.status !== 422) throw error;
  return null;
}

/** The total of a line over some days. */
async function total(wanted, line, from, to, signal) {
  const found = await get(counterPath(line.counter, "totals"), { ...picked(wanted, line, { from, to }), by: "total" }, signal);
  return found.rows[0].total;
}

/** The total of a line on a day, from a time of day (`until`) on; without one, of the whole day. */
async function rest(wanted, line, day, until, signal) {
  const found = await one(wanted, line, until ? "hour" : "day", { from: day, to: day }, signal);
  if (found.rolledUpTo && day < found.rolledUpTo) throw new ApiError(422, "That day is rolled up to its month.");
  if (found.toldFrom) throw new ApiError(422, "The hours of that day are rolled up to wider buckets.");
  return added(found.values.filter((_, i) => !until || found.labels[i].slice(11, 16) >= until));
}

/** The labels that any line has, in order. */
function union(by, lines) {
  const longest = lines.reduce((most, { labels }) => (labels.length > most.length ? labels : most), []);
  if (lines.every(({ labels }) => labels.every((label, i) => label === longest[i]))) return longest;
  const labels = [...new Set(lines.flatMap((line) => line.labels))];
  return by === "hour" ? labels.sort((a, b) => Date.parse(a) - Date.parse(b)) : labels.sort();
}

const added = (values) => values.reduce((sum, value) => sum + (value ?? 0), 0);
