// The page as a whole: which view an address shows, its title, the number of troubles beside System
// (dead letters, no worker, failing jobs) and how often it is asked for, who is logged in, dark or
// light.

import { ApiError, get, save } from "./api.js";
import { h, put, text } from "./dom.js";
import { fresh, show, stale } from "./freshness.js";
import { token } from "./link.js";
import { Live } from "./live.js";
import { counterView } from "./counter.js";
import { overview } from "./overview.js";
import { failure, totalsChoice } from "./parts.js";
import { daysQuery } from "./range.js";

const VIEWS = new Map([
  ["", overview],
  ["board", (...given) => boards.boardView(...given)],
  ["boards", (...given) => boards.boardsView(...given)],
  ["counter", counterView],
  ["system", (...given) => system.systemView(...given)],
]);
const ALERT_EVERY_MS = 15_000;

const main = document.getElementById("main");
const app = {
  live: token !== null ? { watch() {} } : new Live(
    (news) => {
      fresh(news.complete_up_to);
      view?.heard?.(news);
    },
    (why) => stale(why),
  ),
  who: { scopes: [] },
  /** A promise, settled when `who` is known. */
  known: null,
  /** Whether the person may do what this scope allows. */
  may: (scope) => app.who.scopes.includes(scope) || app.who.scopes.includes("admin"),
  /** Whether the person may see the whole installation; a key that is for some counters only may
      not. */
  seesAll: () => !app.who.counters?.length,
};
const totals = h("div");
let view = null;
let shownView = null;
/** Modules of rarely used views, loaded when needed: the first number does not wait for them. */
let boards = null;
let system = null;

/** The view in the address: "#/counter/page_views?range=7" → ["counter", "page_views", URLSearchParams]. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name = "", ...rest] = path.split("/");
  let argument = rest.join("/");
  try {
    argument = decodeURIComponent(argument);
  } catch {
    // an address that somebody has mistyped: shown as it is
  }
  return [name, argument, new URLSearchParams(query ?? "")];
}

async function go() {
  try {
    if (["board", "boards"].includes(place()[0])) boards ??= await import("./board.js");
    if (place()[0] === "system") system ??= await import("./system.js");
  } catch {
    view?.gone?.();
    view = shownView = null;
    put(main, failure(new Error("This page could not be loaded completely."), () => location.reload()));
    return;
  }
  const [shownHere, argument, query] = place();
  const asked = token === null || shownHere === "board" ? shownHere : "counter"; // a link shows one, and nothing else
  const name = asked === "system" && !app.seesAll() ? "" : asked;
  const make = VIEWS.get(name) ?? overview;
  if (token === null && name !== "system") for (const link of document.querySelectorAll(".brand, nav [data-view=overview]")) link.href = `#/${daysQuery(query)}`;
  const same = view && shownView === `${name}/${argument}`;
  put(totals, totalsChoice(query));
  if (same && view.changed) return view.changed(query);
  const first = view === null;
  view?.gone?.();
  shownView = `${name}/${argument}`;
  view = make(app, argument, query);
  put(main, view.element);
  if (name === "counter") view.element.querySelector(".head .share").prepend(totals);
  document.title = view.title ? `${view.title} · countersink` : "countersink";
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.dataset.view === ({ board: "boards", boards: "boards", system: "system" }[name] ?? "overview");
    link.toggleAttribute("aria-current", here);
    if (here) link.setAttribute("aria-current", "page");
  }
  const { loaded, counters } = view;
  // Numbers first: a live event that comes before them would cause the same requests again.
  if (loaded) loaded.then(() => view.loaded === loaded && app.live.watch(view.counters));
  else app.live.watch(counters ?? []);
  if (!first) main.focus({ preventScroll: true }); // what had the focus is gone
  scrollTo(0, 0);
}

/** Show the number of troubles (see above) beside the link to the system's view. */
async function alarm() {
  if (document.hidden || !app.seesAll()) return;
  try {
    const state = await get("/v1/system");
    const number = (state.dead ?? 0) + (state.workers.some((one) => one.state !== "silent") ? 0 : 1) + (state.schedules?.failing?.length ?? 0);
    const badge = document.getElementById("alert");
    badge.hidden = !number;
    put(badge, number ? [String(number > 99 ? "99+" : number), h("span", { class: "unseen" }, number === 1 ? " problem" : " problems")] : "");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
}

async function start() {
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the part after # is the view's
    main.focus();
  });
  const theme = document.getElementById("theme");
  const name = () => theme.setAttribute("aria-label", `Use ${document.documentElement.dataset.theme === "dark" ? "light" : "dark"} colours`);
  theme.addEventListener("click", () => toggleTheme());
  addEventListener("theme", name);
  name();
  if (token !== null) {
    document.documentElement.dataset.shared = "";
    document.querySelector(".brand").removeAttribute("href");
    document.addEventListener("click", (event) => {
      const link = event.target.closest("a[download]:not([href^='blob:'])");
      if (!link) return;
      event.preventDefault();
      save(link.href).catch((error) => stale(error.message));
    });
  }
  app.known = known();
  if (place()[0] === "system") await app.known; // whether they may see it
  addEventListener("hashchange", go);
  await go();
  show();
  await Promise.all([app.known, view?.ready]);
  window.early = undefined; // answers that nobody has used are old by now
  alarm();
  setInterval(alarm, ALERT_EVERY_MS);
}

/** Ask who is logged in: what they may do depends on it, but hardly any number does. */
async function known() {
  try {
    app.who = await get("/v1/whoami");
  } catch (error) {
    stale(error.message);
  }
  document.querySelector("nav [data-view=system]").hidden = !app.seesAll();
  const out = document.getElementById("logout");
  out.hidden = !app.who.login;
  if (app.who.name) text(out.querySelector("span"), `Log out ${app.who.name}`);
}

start();
