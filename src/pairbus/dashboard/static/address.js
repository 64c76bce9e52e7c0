// Addresses: each view, each page of a list and each open message has one, so that Back, bookmarks and links work.

const VIEWS = ["faults", "events", "entity"];
const CONDITIONS = ["grep", "where", "session"];

// `query`: grep, where and session (a search), from (the first number of a page), message (the open message).
export function entityLink(namespace, path, tab, query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = given.length ? `?${new URLSearchParams(given)}` : "";
  return `#/entity/${encodeURIComponent(namespace)}/${encodeURIComponent(path)}${tab ? `/${tab}` : ""}${search}`;
}

export function placeOf(hash) {
  const [route, search] = hash.replace(/^#\/?/, "").split("?", 2);
  let parts;
  try { parts = route.split("/").map(decodeURIComponent); } catch { parts = [""]; }
  const query = Object.fromEntries(new URLSearchParams(search ?? ""));
  const view = VIEWS.includes(parts[0]) ? parts[0] : "overview";
  return { view, namespace: parts[1] ?? "", path: parts[2] ?? "", tab: parts[3] ?? "", query };
}

// The conditions of a search. The place in a list (`from`) is no condition: verbs must not know it.
export const conditionsFrom = (query) => Object.fromEntries(CONDITIONS.filter((name) => query[name]).map((name) => [name, query[name]]));

export function go(link) {
  location.hash = link;
}
