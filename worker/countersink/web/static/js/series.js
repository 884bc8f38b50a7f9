// Asking for a counter's series.

import { counterPath, get } from "./api.js";

const FEW = 3;
const MANY = 800;

/** { by, labels, values, sum, rolledUpTo, before } for what `wanted` (range.js) says. */
export async function series(counter, wanted, signal) {
  const { from, to, key, before } = wanted;
  const [now, then] = await Promise.all([
    wanted.by === "auto" ? whole(counter, key, signal) : one(counter, wanted.by, { from, to, key }, signal),
    before ? compared(counter, wanted.by, { ...before, key }, signal) : null,
  ]);
  return { ...now, before: then };
}

/** All that was ever counted: by month, or by day where that is little. */
async function whole(counter, key, signal) {
  const months = await one(counter, "month", { key }, signal);
  if (months.rolledUpTo || months.labels.length > MANY / 30) return months;
  if (months.labels.length <= FEW || months.labels.length * 31 <= MANY) return one(counter, "day", { key }, signal);
  return months;
}

async function one(counter, by, range, signal) {
  const path = by === "month" ? "totals" : by === "hour" ? "hourly" : "daily";
  const asked = by === "month" ? { ...range, by } : range;
  const found = await get(counterPath(counter, path), asked, signal);
  const values = found.rows.map((row) => row.total);
  return {
    by,
    labels: found.rows.map((row) => row[by]),
    values,
    sum: values.reduce((sum, value) => sum + value, 0),
    rolledUpTo: found.rolled_up_to,
  };
}

/** The period before; that it cannot be told is no reason not to show this one. */
async function compared(counter, by, range, signal) {
  try {
    return await one(counter, by, range, signal);
  } catch (error) {
    if (error.status !== 422) throw error;
    return { trouble: error.message, labels: [], values: [], sum: null };
  }
}
