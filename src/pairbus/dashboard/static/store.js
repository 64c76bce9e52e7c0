// The last look, kept fresh by server-sent events; rates and the course of the backlog are counted here.

import { firstOverview, listen, Problem } from "./api.js";

const RATE_MS = 10000;
const COURSE_MAX = 300;
const COURSE_MS = 900; // between two points of the course: looks may come more often

export const state = { look: null, happened: [], jobs: new Map(), course: [], link: "connecting", problem: null, sinceMs: Date.now() };
const samples = [];
let told = () => {};

export const onChange = (callback) => { told = callback; };

function patched(before, patch) {
  const after = { ...before };
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete after[key];
    else if (typeof value === "object" && !Array.isArray(value)) {
      const known = after[key];
      after[key] = patched(known && typeof known === "object" && !Array.isArray(known) ? known : {}, value);
    } else after[key] = value;
  }
  return after;
}

function noteLook(look) {
  state.look = look;
  const now = look.time_ms;
  while (samples.length > 1 && now - samples[1].time_ms > RATE_MS) samples.shift();
  samples.push(look);
  const last = state.course[state.course.length - 1];
  if (last && now - last[0] < COURSE_MS) last[1] = look.pair?.backlog?.messages ?? 0;
  else state.course.push([now, look.pair?.backlog?.messages ?? 0]);
  if (state.course.length > COURSE_MAX) state.course.shift();
}

const total = (e) => (e.active ?? 0) + (e.dead ?? 0) + (e.deferred ?? 0) + (e.scheduled ?? 0);

// Counts of a namespace that does not answer are the last that were seen: their time; null for counts of now.
export const seenAt = (namespace) => state.look.namespaces[namespace]?.counts_as_of_ms ?? null;

// Messages in and out a second, over the last ten seconds; undefined when the namespace does not tell.
export function ratesOf(namespace, path) {
  const [first, last] = [samples[0], samples[samples.length - 1]];
  const [before, after] = [first, last].map((look) => look?.namespaces?.[namespace]?.entities?.[path]);
  const seconds = last && first ? (last.time_ms - first.time_ms) / 1000 : 0;
  if (!before || !after || after.received === undefined || seconds <= 0) return {};
  const came = after.received - before.received;
  if (after.kind === "topic") return { in: came / seconds };
  return { in: came / seconds, out: Math.max(0, came - (total(after) - total(before))) / seconds };
}

function heard(kind, said) {
  if (kind === "look") noteLook(said);
  else if (kind === "patch") noteLook(patched(state.look, said));
  else if (kind === "happened") state.happened = [...state.happened, ...said.filter((one) => !state.happened.some((known) => known.number === one.number && known.time_ms === one.time_ms))].slice(-300);
  else if (kind === "job") state.jobs.set(said.number, said);
  setLink("live");
  told(kind);
}

function setLink(link, problem) {
  if (state.link !== link) state.sinceMs = Date.now();
  state.link = link;
  state.problem = problem ?? null;
}

export async function begin() {
  const look = await firstOverview();
  state.version = look.version;
  state.onBroker = look.on_broker;
  noteLook(look);
  setLink("live");
  told("look");
}

export async function keepListening() {
  for (;;) {
    const silence = new AbortController();
    let heardMs = Date.now();
    const watch = setInterval(() => {
      if (Date.now() - heardMs > 6000) silence.abort();
    }, 1000);
    try {
      await listen("watch", (kind, said) => { heardMs = Date.now(); heard(kind, said); }, silence.signal);
      setLink("lost", "the server ended the connection");
    } catch (error) {
      if (error instanceof Problem && error.status === 401) { clearInterval(watch); throw error; }
      setLink("lost", silence.signal.aborted ? "the server is silent" : error.message);
    }
    clearInterval(watch);
    told("link");
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
