// The page: which view the address names, what the link to the server is, and jobs that run.

import { entityLink, placeOf } from "./address.js";
import { remove, setToken, takeToken } from "./api.js";
import { attempt } from "./dialogs.js";
import { button, field, h, pathText, show } from "./dom.js";
import { entityView, leaveEntity, refreshEntity } from "./entity.js";
import { noteImport } from "./imports.js";
import { noteAddress } from "./message.js";
import { happened, headline, overview } from "./overview.js";
import { begin, keepListening, onChange, state } from "./store.js";
import { clearing, faults, loadKinds } from "./switches.js";
import { duration, jobText } from "./words.js";

const main = document.getElementById("main");
const TITLES = { faults: "Faults and clock", events: "Events" };
let route = "";

function draw() {
  if (!state.look) return;
  const place = placeOf(location.hash);
  const name = place.view;
  const now = JSON.stringify([name, place.namespace, place.path]);
  if (now !== route) { route = now; leaveEntity(); main.replaceChildren(); scrollTo(0, 0); }
  for (const link of document.querySelectorAll("nav a")) link.toggleAttribute("aria-current", link.getAttribute("href") === (name === "overview" ? "#/" : `#/${name}`));
  const content = { overview: () => overview(draw), events: () => [h("h1", {}, "Events"), happened(300, "The last 300, newest first")], faults: () => faults(draw), entity: () => entityView(place, draw) }[name]();
  show(main, content);
  if (name === "faults") loadKinds(draw);
  document.title = `${name === "overview" ? headline(state.look)[0] : TITLES[name] ?? place.path} · Pairbus`;
  drawLink();
}

function drawLink() {
  const link = document.getElementById("link");
  const text = state.link === "live" ? "live" : state.link === "lost" ? `no answer for ${duration((Date.now() - state.sinceMs) / 1000)}` : "connecting";
  if (link.textContent !== text) link.textContent = text;
  link.className = `link ${state.link}`;
  const banner = document.getElementById("banner");
  const warning = state.link !== "lost" ? null
    : h("p", {}, state.onBroker
      ? `This namespace does not answer: ${state.problem}. A fault may have shut its port, and this page is on it. ${clearing()} ends it; “pairbus dashboard --control DIR” shows a namespace during an outage too. Everything below is as it was last seen.`
      : `The dashboard does not answer: ${state.problem}. Everything below is as it was last seen.`);
  show(banner, warning ? [warning] : []);
  main.classList.toggle("stale", state.link === "lost");
}

const VERBS = { purge: "Delete", move: "Move", redrive: "Re-drive", import: "Import" };

function drawJobs() {
  show(document.getElementById("jobs"), [...state.jobs.values()].slice(-3).map((job) => h("div", { class: `job ${job.state}`, "data-key": job.number },
    h("div", { class: "grow" }, h("p", {}, h("strong", {}, VERBS[job.verb] ?? job.verb), " ", entityName(job)), bar(job), h("small", {}, jobText(job))),
    job.state === "running" ? button("Cancel", () => attempt(() => remove(`jobs/${job.number}`)), { class: "quiet" }) : button("Close", () => { state.jobs.delete(job.number); drawJobs(); }, { class: "quiet" }))));
}

// Towards the count that the dialog named; an import knows the bytes of its file only. Without a total it just moves.
function bar(job) {
  if (job.state !== "running") return null;
  const [value, max] = job.size ? [job.resume?.offset ?? 0, job.size] : [job.done ?? 0, job.total];
  return h("progress", { "aria-label": "Progress", ...(max ? { max, value: Math.min(value, max) } : {}) });
}

function entityName(job) {
  const [, path, dead] = /^(.*?)(\/\$DeadLetterQueue)?$/i.exec(job.entity);
  return h("a", { href: entityLink(job.namespace, path, dead ? "dead-letters" : "") }, pathText(path), dead ? " (dead letters)" : "");
}

function askForToken() {
  show(main, [h("section", {}, h("h2", {}, "This page needs a token"), h("form", { onsubmit: async (event) => { event.preventDefault(); setToken(new FormData(event.target).get("token")); start(); } },
    h("p", {}, "For the page of a broker: the key of a policy with Manage, or NAME:KEY for another policy than RootManageSharedAccessKey. For pairbus dashboard: the token behind # of the address that it printed."),
    field("Token", h("input", { name: "token", type: "password", autocomplete: "current-password", required: true })),
    h("div", { class: "actions" }, h("button", { type: "submit" }, "Open"))))]);
}

async function start() {
  try {
    await begin();
    draw();
    await keepListening();
  } catch (error) {
    if (error.status === 401) { askForToken(); return; }
    show(main, [h("p", { class: "bad" }, error.message)]);
    setTimeout(start, 2000);
  }
}

onChange((kind) => {
  if (kind === "job") { [...state.jobs.values()].forEach(noteImport); drawJobs(); refreshEntity(); }
  draw();
});
addEventListener("hashchange", (event) => { noteAddress(new URL(event.oldURL).hash); takeToken(); draw(); });
addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest?.("input, textarea, select, dialog")) {
    const filter = document.querySelector("#filter, #search");
    if (filter) { event.preventDefault(); filter.focus(); }
  }
});
setInterval(drawLink, 1000);
takeToken();
start();
