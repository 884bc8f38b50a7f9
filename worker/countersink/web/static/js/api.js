// Asking the server. Errors carry its own sentence.

import { fresh, serverTime } from "./freshness.js";

const COMPLETE = "Countersink-Complete-Up-To";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** GET a document; values of `parameters` that are null are left out (empty ones are not). */
export function get(path, parameters = {}, signal = undefined) {
  return ask(address(path, parameters), { signal });
}

/** POST a document. */
export function post(path, body) {
  return ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

/** A path with its query. */
export function address(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined) query.append(name, value);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** The path of a counter's question. */
export const counterPath = (counter, question = "") => `/v1/counters/${encodeURIComponent(counter)}${question && `/${question}`}`;

async function ask(url, options) {
  let response;
  try {
    // Whoever asks wants what is so now: a copy of a second ago, before a counter came, may lack it.
    response = await fetch(url, { credentials: "same-origin", cache: "no-cache", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.");
  }
  serverTime(response.headers.get("Date"));
  if (response.status === 401) return leave();
  if (!response.ok) throw new ApiError(response.status, await reason(response));
  // In the header alone it is of this moment: the body may be an old one that a 304 was told of.
  const complete = response.headers.get(COMPLETE);
  if (complete !== null) fresh(complete === "unknown" ? null : complete);
  return response.json();
}

async function reason(response) {
  const problem = await response.json().catch(() => ({})); // not ours: a proxy's
  const more = (problem.errors ?? []).map((one) => one.detail).join("; ");
  return [problem.detail, more].filter(Boolean).join(": ") || `The server answered ${response.status}.`;
}

/** The session is over: log in, and come back to the same view. */
function leave() {
  location.assign(`/login${location.hash}`);
  return new Promise(() => {}); // nothing goes on here
}
