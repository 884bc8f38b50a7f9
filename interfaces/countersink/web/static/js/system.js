// The view of the installation: queue, workers, scheduled jobs, dead letters; its sentences, when
// workers count as behind (`LATE_S`), and how often it is asked for again.

import { get, post } from "./api.js";
import { deadLetters } from "./dead.js";
import { announce, h, put, text } from "./dom.js";
import { lasting, moment, whole } from "./format.js";
import { stale } from "./freshness.js";
import { name, visible } from "./names.js";
import { failure, figure, sure } from "./parts.js";

const SYSTEM_ANEW_MS = 3_000;
const LATE_S = 10;

export function systemView(app) {
  const headline = h("p", { class: "lead", id: "headline" }, "Loading…");
  const figures = h("dl", { class: "figures" });
  const workers = h("div");
  const jobs = h("div");
  const trouble = h("div");
  let last = "";
  const dead = deadLetters(app, () => load());
  const element = h(
    "section",
    { class: "system" },
    h("div", { class: "head" }, h("h1", null, "System")),
    trouble,
    headline,
    figures,
    dead.element,
    h("section", { "aria-labelledby": "workers-title" }, h("h2", { id: "workers-title" }, "Workers"), workers),
    h("section", { "aria-labelledby": "jobs-title" }, h("h2", { id: "jobs-title" }, "Scheduled jobs"), jobs),
  );
  const timer = setInterval(() => !document.hidden && load(), SYSTEM_ANEW_MS);

  async function load() {
    try {
      const state = await get("/v1/system");
      put(trouble);
      text(headline, sentence(state));
      if (JSON.stringify({ ...state, at: 0 }) !== last) show(state);
      last = JSON.stringify({ ...state, at: 0 });
    } catch (error) {
      put(trouble, failure(error, load));
      stale(error.message);
    }
  }

  async function act({ job, does }, what) {
    if (what === "run" && !(await sure(`Run ${job} now, besides its planned runs?${does ? ` It ${does}.` : ""}`, "Run"))) return;
    try {
      await post(`/v1/schedules/${encodeURIComponent(job)}/${what}`, {});
      announce({ run: `${job} is planned to run now.`, pause: `${job} is paused.`, resume: `${job} is planned again.` }[what]);
      await load();
    } catch (error) {
      put(trouble, failure(error, load));
    }
  }

  function show(state) {
    const { schedules } = state;
    const compacted = schedules.last_compaction;
    put(figures, [
      figure("Waiting", whole(state.backlog), state.backlog === 1 ? "entry in the queue" : "entries in the queue", late(state) ? "warn" : ""),
      figure("Oldest waits", state.oldest ? lasting(state.lag_ms / 1000) : "–", state.oldest ? `since ${moment(state.oldest)}` : state.away.length ? "not known" : "nothing waits", late(state) ? "warn" : ""),
      figure("Rate", whole(Math.round(state.rows_per_second)), "rows a second"),
      figure("Workers", unreported(state) ? "–" : whole(running(state).length), unreported(state) ? "not known" : slots(running(state)), running(state).length || unreported(state) ? "" : "bad"),
      figure("Last compaction", compacted ? `${lasting(secondsSince(state.at, compacted.ended))} ago` : "–", compacted ? compacted.detail || "done" : schedules.unknown ? "not known" : "none so far"),
    ]);
    put(workers, workerTable(state));
    put(jobs, jobList(schedules, app.may("admin") && act));
    dead.known(state.dead_by_reason, state.dead_not_kept);
  }

  load();
  return { element, title: "System", counters: [], gone: () => clearInterval(timer) };
}

const running = ({ workers }) => workers.filter((one) => one.state !== "silent");
const isFull = ({ memory }) => memory.limit > 0 && memory.used >= memory.limit;
const unreported = (state) => isFull(state) && !state.workers.length;
const late = (state) => state.lag_ms > LATE_S * 1000;
const secondsSince = (now, then) => (then ? Math.max(0, (new Date(now) - new Date(then)) / 1000) : 0);

function slots(workers) {
  const numbers = workers.map((one) => one.slot).filter((one) => one !== null && one !== undefined);
  if (!numbers.length) return workers.length ? null : "no worker runs";
  return `${numbers.length === 1 ? "slot" : "slots"} ${numbers.sort((a, b) => a - b).slice(0, 8).join(", ")}${numbers.length > 8 ? ", …" : ""}`;
}

function sentence(state) {
  if (state.away.length) {
    const nodes = state.away.map(({ node }) => node).join(", ");
    return `Redis at ${nodes} does not answer: its entries wait, and are not in these numbers.`;
  }
  if (isFull(state)) return "Redis is full, and takes no increments: start more workers if entries wait, or raise its maxmemory.";
  if (!running(state).length) {
    return state.backlog
      ? `No worker runs, and ${state.backlog === 1 ? "1 entry waits" : `${whole(state.backlog)} entries wait`}: start one with countersink worker.`
      : "No worker runs: start one with countersink worker.";
  }
  const verified = (state.schedules.next ?? []).find(({ job }) => job === "verify");
  if (verified?.last === "failed") return "The last verification failed, so totals may be wrong: see the job verify.";
  if (late(state)) return `The workers are ${lasting(state.lag_ms / 1000)} behind; nothing is lost.`;
  if (state.dead) return `The workers keep up; ${whole(state.dead)} ${state.dead === 1 ? "row" : "rows"} could not be counted.`;
  return state.backlog ? "The workers keep up." : "Everything is counted; nothing waits.";
}

function workerTable(state) {
  if (unreported(state)) return h("p", { class: "notice warn" }, "Not known: Redis is full, and takes no reports of workers.");
  if (!state.workers.length) return h("p", { class: "notice warn" }, "No worker runs. Increments wait in Redis until one is started: ", h("code", null, "countersink worker"));
  const row = (one) =>
    h("tr", null, [
      h("th", { scope: "row" }, name(one.worker)),
      h("td", { class: one.state === "silent" ? "wrong" : null }, one.state ?? "–"),
      h("td", { class: "number" }, one.slot ?? "–"),
      h("td", { class: "number" }, whole(one.rows_per_second)),
      h("td", { class: "number" }, whole(one.rows)),
      h("td", { class: "number" }, one.last_batch ? `${lasting(secondsSince(state.at, one.last_batch))} ago` : "–"),
      h("td", { class: one.state === "waiting" || one.away ? "wrong" : "soft" }, one.last_error ? `${visible(one.last_error)} (${lasting(secondsSince(state.at, one.last_error_at))} ago)` : "–"),
    ]);
  const names = ["Worker", "State", "Slot", "Rows/s", "Rows", "Last batch", "Last error"];
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "The workers as a table" },
    h(
      "table",
      null,
      h("thead", null, h("tr", null, names.map((name, i) => h("th", { scope: "col", class: i > 1 && i < 6 ? "number" : null }, name)))),
      h("tbody", null, state.workers.map(row)),
    ),
  );
}

function jobTable(jobs, act) {
  const button = (one, what, text) => h("button", { type: "button", class: "small", "aria-label": `${text} ${one.job}`, onclick: () => act(one, what) }, text);
  const row = (one) =>
    h("tr", null, [
      h("th", { scope: "row", title: one.does }, one.job),
      h("td", null, one.paused ? "paused" : one.at ? moment(one.at) : "off"),
      h("td", { class: one.last === "failed" ? "wrong" : null }, one.last ? `${one.last} ${moment(one.ended)}` : "–"),
      h("td", { class: "number" }, one.started && one.ended ? lasting(secondsSince(one.ended, one.started)) : "–"),
      h("td", { class: "soft" }, one.detail ? visible(one.detail) : "–"),
      act && h("td", null, h("span", { class: "buttons" }, button(one, "run", "Run now…"), button(one, one.paused ? "resume" : "pause", one.paused ? "Resume" : "Pause"))),
    ]);
  const names = ["Job", "Next run", "Last run", "Took", "What it did"];
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "The scheduled jobs as a table" },
    h("table", { class: "jobs" }, h("thead", null, h("tr", null, names.map((name) => h("th", { scope: "col", class: name === "Took" ? "number" : null }, name)), act && h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions")))), h("tbody", null, jobs.map(row))),
  );
}

function jobList(schedules, act) {
  if (schedules.unknown) return h("p", { class: "notice warn" }, `Not known: ${schedules.unknown}`);
  const overdue = schedules.overdue ?? [];
  return [
    (schedules.failing ?? []).map((one) =>
      h("p", { class: "notice bad" }, `${one.job} has failed ${one.times} times in a row, since ${moment(one.since)}: ${visible(one.detail ?? "")}`),
    ),
    overdue.length > 0 &&
      h("p", { class: "notice warn" }, `${whole(overdue.length)} planned ${overdue.length === 1 ? "run has" : "runs have"} not begun, the first ${overdue[0].job} of ${moment(overdue[0].planned)}: is `, h("code", null, "countersink jobs"), " running?"),
    !schedules.planning && h("p", { class: "notice warn" }, "No scheduler plans the jobs: start ", h("code", null, "countersink scheduler")),
    (schedules.next ?? []).length > 0 && jobTable(schedules.next, act),
  ];
}
