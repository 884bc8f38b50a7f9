// Requests to the server: address and headers of each, and the texts for a server that does not
// answer and for a link that has ended; sends to the login page when the login is over; other
// errors have the server's own sentence. A page of a link sends no cookie: it may be in a frame.

import { h } from "./dom.js";
import { fresh, serverTime } from "./freshness.js";
import { token } from "./link.js";

const COMPLETE = "Countersink-Complete-Up-To";
const SHOWN = token === null ? {} : { Authorization: `Bearer ${token}` };
const COOKIES = token === null ? "same-origin" : "omit";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** GET a document; values of `parameters` that are null are left out (empty ones are not), lists
    are given one by one. */
export function get(path, parameters = {}, signal = undefined) {
  return ask(address(path, parameters), { signal });
}

/** POST a document. */
export const post = (path, body) => send("POST", path, body);

/** PUT a document. */
export const write = (path, body) => send("PUT", path, body);

/** DELETE a resource. */
export function remove(path) {
  return ask(path, { method: "DELETE" });
}

/** Save an answer as a file, on a page of a link: a plain download would lack the link's token. */
export async function save(path) {
  const response = await answer(path, {});
  const [, download] = /filename="(.*)"/.exec(response.headers.get("Content-Disposition"));
  const href = URL.createObjectURL(await response.blob());
  h("a", { href, download }).click();
  setTimeout(() => URL.revokeObjectURL(href)); // once the browser has taken it
}

/** A path with its query. */
export function address(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined) query.append(name, one);
    }
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** The path of a counter, or of a question about it. "." and ".." get a ~: browsers remove them from paths. */
export const counterPath = (counter, question = "") => `/v1/counters/${/^\.\.?$/.test(counter) ? "~" : ""}${encodeURIComponent(counter)}${question && `/${question}`}`;

function send(method, path, body) {
  return ask(path, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

async function ask(url, options) {
  const response = await answer(url, options);
  return response.status === 204 ? null : response.json();
}

async function answer(url, options) {
  let response;
  try {
    // No cached copy without asking: one of a second ago may lack a new counter.
    response = await (early(url, options) ?? fetch(url, { credentials: COOKIES, cache: "no-cache", ...options, headers: { ...options.headers, ...SHOWN } }));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.");
  }
  serverTime(response.headers.get("Date"));
  if (response.status === 401 && token !== null) throw new ApiError(401, "This link has ended. Ask its sender for a new one.");
  if (response.status === 401) return leave();
  if (!response.ok) throw new ApiError(response.status, await reason(response));
  // Only the header has the time of this answer: after a 304, the body is that of the cached copy.
  const complete = response.headers.get(COMPLETE);
  if (complete !== null) fresh(complete === "unknown" ? null : complete);
  return response;
}

/** The answer to a request that `early.js` has sent before; undefined if there is none, or it was used. */
function early(url, { method }) {
  const answer = method ? undefined : window.early?.get(url);
  window.early?.delete(url);
  return answer;
}

async function reason(response) {
  const problem = await response.json().catch(() => ({})); // not ours: a proxy's
  const more = (problem.errors ?? []).map((one) => one.detail).join("; ");
  return [problem.detail, more].filter(Boolean).join(": ") || `The server answered ${response.status}.`;
}

/** The session is over: log in, and come back to the same view. */
function leave() {
  location.assign(`/login${location.hash}`);
  return new Promise(() => {}); // never settled: the page is left
}
