// Imports that may be interrupted: how far each came is kept in this browser, and the same file goes on there.

import { of, post } from "./api.js";
import { attempt, confirm } from "./dialogs.js";
import { h } from "./dom.js";
import { state } from "./store.js";
import { number } from "./words.js";

const KEPT = "pairbus-imports";
const running = new Map(); // number of a job → key of its notes

function kept() {
  try { return JSON.parse(localStorage.getItem(KEPT)) ?? {}; } catch { return {}; }
}

function keep(key, notes) {
  const all = kept();
  if (notes) all[key] = notes;
  else delete all[key];
  localStorage.setItem(KEPT, JSON.stringify(all));
}

export function noteImport(job) {
  const key = running.get(job.number);
  if (!key) return;
  if (job.state === "done") keep(key, null);
  else if (job.resume) keep(key, job.resume);
}

export async function importFile(here, file) {
  const key = JSON.stringify([here.namespace, here.path, file.name, file.size]);
  const begin = async (notes) => {
    const job = await post(of(here.namespace, "import", { path: here.path, ...notes }), file);
    running.set(job.number, key);
    noteImport(state.jobs.get(job.number) ?? job);
  };
  const notes = kept()[key];
  if (!notes) {
    await attempt(() => begin({}), `${file.name} is being sent`);
    return;
  }
  confirm("Go on with an import", `The import of ${file.name} into ${here.path} was interrupted. Messages up to line ${number(notes.lines)} were accepted for certain. Go on behind it? At most the messages whose answers were missing are sent twice.`, "Go on",
    (form) => begin(new FormData(form).get("anew") === "on" ? {} : notes),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "anew" }), "begin anew instead: every message of the file is sent again"));
}
