// Requests to the server of this page. The token is in a header, never in an address.

const BASE = "/$pairbus/page/api/";
const KEPT = "pairbus-token";

export class Problem extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export function takeToken() {
  const match = /[#&]token=([^&]+)/.exec(location.hash);
  if (!match) return;
  sessionStorage.setItem(KEPT, decodeURIComponent(match[1]));
  history.replaceState(null, "", location.pathname + location.search);
}

export const setToken = (token) => sessionStorage.setItem(KEPT, token);

function headers(extra) {
  const token = sessionStorage.getItem(KEPT);
  return { "X-Pairbus-Page": "1", ...(token ? { "X-Pairbus-Token": token } : {}), ...extra };
}

async function ask(path, options, early) {
  let answer;
  try {
    answer = await (early ?? fetch(BASE + path, { ...options, headers: headers(options?.headers), cache: "no-store" }));
  } catch {
    throw new Problem(0, "the server does not answer");
  }
  if (answer.ok) return answer;
  let text = `status ${answer.status}`;
  try { text = (await answer.json()).error ?? text; } catch { /* not ours: the status must do */ }
  throw new Problem(answer.status, text);
}

export const get = async (path) => (await ask(path)).json();

// The overview that early.js has asked for, or a new one.
export async function firstOverview() {
  const early = globalThis.pairbusEarly;
  globalThis.pairbusEarly = undefined;
  return (await ask("overview", undefined, early)).json();
}

export const remove = async (path) => (await ask(path, { method: "DELETE" })).json();

export async function post(path, body) {
  const given = body instanceof Blob ? body : JSON.stringify(body);
  const type = body instanceof Blob ? "application/x-ndjson" : "application/json";
  return (await ask(path, { method: "POST", body: given, headers: { "Content-Type": type } })).json();
}

export const of = (namespace, route, query) => {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return `namespaces/${encodeURIComponent(namespace)}/${route}${text ? `?${text}` : ""}`;
};

// Server-sent events by fetch, because an EventSource cannot carry a header. Calls back until the stream ends.
export async function listen(path, heard, signal) {
  const answer = await ask(path, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const kind = /^event: (.*)$/m.exec(event)?.[1];
      const data = /^data: (.*)$/m.exec(event)?.[1];
      if (kind && data) heard(kind, JSON.parse(data));
    }
  }
}

// Save an answer as a file, and return how many lines it has. With `body` the question is a POST.
export async function save(path, name, body) {
  const found = await (await ask(path, body && { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } })).blob();
  const url = URL.createObjectURL(found);
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
  return lines(found);
}

async function lines(found) {
  const reader = found.stream().getReader();
  for (let count = 0; ;) {
    const { done, value } = await reader.read();
    if (done) return count;
    for (const one of value) if (one === 10) count += 1;
  }
}
