// Counting from Node.js over HTTP: batches that count once, however often they are sent again.
//
//     node docs/examples/count.mjs http://127.0.0.1:8321 1000
//
// sends so many increments of `downloads`, and says how many were counted. COUNTERSINK_KEY is the
// API key, where one is needed.

import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";

const ITEMS = 100; // in one request; it may hold 1,000
const ATTEMPTS = 10;

/** Sends items once, whatever it takes: the same key for each attempt makes them count once. */
async function send(url, items) {
  const headers = { "content-type": "application/json", "idempotency-key": randomUUID() };
  if (process.env.COUNTERSINK_KEY) {
    headers.authorization = `Bearer ${process.env.COUNTERSINK_KEY}`;
  }
  const body = JSON.stringify(items);
  for (let attempt = 1; ; attempt += 1) {
    let wait = 0.1 * 2 ** attempt; // seconds
    let reason;
    try {
      const signal = AbortSignal.timeout(30_000);
      const response = await fetch(`${url}/v1/increments`, { method: "POST", headers, body, signal });
      const text = await response.text();
      if (response.ok) return JSON.parse(text).accepted;
      reason = `${response.status} ${text}`;
      if (response.status !== 429 && response.status < 500) attempt = ATTEMPTS; // it will not get better
      wait = Number(response.headers.get("retry-after")) || wait;
    } catch (error) {
      reason = error; // nobody knows whether it arrived: the next attempt has the same key
    }
    if (attempt >= ATTEMPTS) throw new Error(`not counted: ${reason}`);
    await pause(wait * 1000);
  }
}

const [url, count] = [process.argv[2] ?? "http://127.0.0.1:8321", Number(process.argv[3] ?? 1000)];
const items = Array.from({ length: count }, (_, number) => ({
  counter: "downloads",
  key: number % 2 ? "manual.pdf" : "setup.zip",
}));
let accepted = 0;
for (let first = 0; first < items.length; first += ITEMS) {
  accepted += await send(url, items.slice(first, first + ITEMS));
}
console.log(`${accepted} counted`);
