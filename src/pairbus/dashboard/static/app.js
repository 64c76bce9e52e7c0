// The page: which view the address names, what the link to the server is, and jobs that run.

import { remove, setToken, takeToken } from "./api.js";
import { attempt } from "./dialogs.js";
import { button, field, h, show } from "./dom.js";
import { entityView, leaveEntity, refreshEntity } from "./entity.js";
import { noteImport } from "./imports.js";
import { happened, headline, overview } from "./overview.js";
import { begin, keepListening, onChange, state } from "./store.js";
import { faults, loadKinds } from "./switches.js";
import { duration, jobText } from "./words.js";

const main = document.getElementById("main");
let route = "";

function places() {
  const parts = location.hash.replace(/^#\/?/, "").split("/");
  try { return parts.map(decodeURIComponent); } catch { return [""]; }
}

function draw() {
  if (!state.look) return;
  const [view, ...rest] = places();
  const name = ["faults", "events", "entity"].includes(view) ? view : "overview";
  const now = JSON.stringify([name, ...rest.slice(0, 2)]);
  const isNew = now !== route;
  if (isNew) { route = now; leaveEntity(); main.replaceChildren(); scrollTo(0, 0); }
  for (const link of document.querySelectorAll("nav a")) link.toggleAttribute("aria-current", link.getAttribute("href") === (name === "overview" ? "#/" : `#/${name}`));
  const content = { overview: () => overview(draw), events: () => [h("h1", {}, "Events"), happened(300)], faults: () => faults(draw), entity: () => entityView(rest[0] ?? "", rest[1] ?? "", rest[2] ?? "", draw) }[name]();
  show(main, content);
  if (name === "faults") loadKinds(draw);
  document.title = `${headline(state.look)[0]} · Pairbus`;
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
      ? `This namespace does not answer: ${state.problem}. A fault may have shut its port, and this page is on it. “pairbus fault clear --control DIR/control.sock” ends it; “pairbus dashboard --control DIR” shows a namespace during an outage too.`
      : `The dashboard does not answer: ${state.problem}. Everything below is as it was last seen.`);
  show(banner, warning ? [warning] : []);
}

const VERBS = { purge: "Purge", move: "Move", redrive: "Re-drive", import: "Import" };

function drawJobs() {
  show(document.getElementById("jobs"), [...state.jobs.values()].slice(-3).map((job) => h("div", { class: `job ${job.state}`, "data-key": job.number },
    h("p", {}, h("strong", {}, VERBS[job.verb] ?? job.verb), " ", h("bdi", {}, job.entity), h("small", {}, jobText(job))),
    job.state === "running" ? button("Cancel", () => attempt(() => remove(`jobs/${job.number}`)), { class: "quiet" }) : button("Close", () => { state.jobs.delete(job.number); drawJobs(); }, { class: "quiet" }))));
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
  if (kind === "job") { [...state.jobs.values()].forEach(noteImport); drawJobs(); refreshEntity(draw); }
  draw();
});
addEventListener("hashchange", () => { takeToken(); draw(); });
addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest?.("input, textarea, select, dialog")) {
    const filter = document.querySelector("#filter, #search");
    if (filter) { event.preventDefault(); filter.focus(); }
  }
});
setInterval(drawLink, 1000);
takeToken();
start();
