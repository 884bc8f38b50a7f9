// The line that says how fresh the page's numbers are: its texts, and after how many seconds it
// says behind or silent (`BEHIND_S`, `SILENT_S`).

import { announce, text } from "./dom.js";
import { clock, lasting } from "./format.js";

const BEHIND_S = 30;
const SILENT_S = 10;

let ahead = 0; // milliseconds by which the server's clock is ahead of this one
let state = { completeUpTo: undefined, trouble: null, heard: 0 };
let shownKind = "";

/** Show the time up to which a live event or an answer is complete; null where it is unknown. Answers
    come in any order: of an older time, only that the server answers is shown. */
export function fresh(said) {
  const known = state.completeUpTo;
  const completeUpTo = said && known && new Date(said) < new Date(known) ? known : said;
  state = { completeUpTo, trouble: null, heard: Date.now() };
  show();
}

/** Show why no new numbers come. */
export function stale(why) {
  state = { ...state, trouble: why };
  show();
}

export function show() {
  const line = document.getElementById("fresh");
  const [kind, sentence] = judge();
  line.className = `fresh ${kind}`;
  text(line.querySelector(".text"), sentence);
  if (kind !== shownKind && shownKind && kind !== "") announce(sentence);
  shownKind = kind;
}

/** Remember the server's clock, to a second or so, from an answer's header Date: the visitor's clock
    may be wrong, and may be changed. Without a valid Date, the difference known before holds. */
export function serverTime(date) {
  const said = Date.parse(date);
  if (!Number.isNaN(said)) ahead = said - Date.now();
}

/** Now on the server's clock. */
export const serverNow = () => new Date(Date.now() + ahead);

function judge() {
  const { completeUpTo, trouble, heard } = state;
  const last = completeUpTo ? ` The numbers are from ${clock(new Date(completeUpTo))}.` : "";
  if (trouble) return ["bad", `${trouble}${last}`];
  if (completeUpTo === undefined) return ["", "Loading…"];
  if (completeUpTo === null) return ["warn", "Freshness unknown: Redis does not answer."];
  if (Date.now() - heard > SILENT_S * 1000 && !document.hidden) return ["warn", `Waiting for new numbers.${last}`];
  const behind = (heard + ahead - new Date(completeUpTo).getTime()) / 1000;
  const at = clock(new Date(completeUpTo));
  if (behind > BEHIND_S) return ["warn", `Complete up to ${at}: ${lasting(behind)} behind; later counts wait in the queue.`];
  return ["good", `Live · complete up to ${at}`];
}

setInterval(show, 5_000);
