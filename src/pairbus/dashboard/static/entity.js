// One entity: its counts, and its messages, dead letters, schedule, sessions and rules, one behind each tab.

import { conditionsFrom, entityLink } from "./address.js";
import { get, of, post } from "./api.js";
import { confirm } from "./dialogs.js";
import { button, h, pathText, pill, section, svg, table, tiles } from "./dom.js";
import { sendForm, syncMessage } from "./message.js";
import { deadLetters, messages } from "./messages.js";
import { rules } from "./rules.js";
import { ratesOf, seenAt, state } from "./store.js";
import { aheadBy } from "./switches.js";
import { entityButtons } from "./admin.js";
import { bytes, duration, many, moment, number, rate, shortBody } from "./words.js";

const DEAD = "/$DeadLetterQueue";
const fresh = () => ({ key: "", list: "", rows: null, next: null, scanned: 0, back: [], picked: new Set(), extra: null, matched: null, problem: "", busy: false });
let view = fresh();

export function leaveEntity() {
  view = fresh();
  syncMessage(null);
}

function entityOf(namespace, path) {
  return state.look.namespaces[namespace]?.entities?.[path];
}

function tabsOf(entity) {
  if (entity.kind === "topic") return [["", "Subscriptions"]];
  return [["", "Messages"], ["dead-letters", `Dead letters (${number(entity.dead ?? 0)})`],
    entity.kind === "queue" ? ["scheduled", `Scheduled (${number(entity.scheduled ?? 0)})`] : null,
    entity.sessions ? ["sessions", "Sessions"] : null,
    entity.kind === "subscription" ? ["rules", "Rules"] : null].filter(Boolean);
}

export function entityView({ namespace, path, tab, query }, redraw) {
  const entity = entityOf(namespace, path);
  const crumbs = h("p", { class: "crumbs" }, h("a", { href: "#/" }, state.look.title), " / ", Object.keys(state.look.namespaces).length > 1 ? [namespace, " / "] : "");
  if (!entity) return [crumbs, h("h1", {}, pathText(path)), h("p", { class: "nothing" }, `${namespace} has no such entity, or does not answer.`)];
  const here = { namespace, path, entity, tab, query, source: tab === "dead-letters" ? path + DEAD : path, redraw, view: null, reload: null };
  enter(here);
  here.view = view;
  here.reload = () => load(here);
  syncMessage(here);
  return [
    h("div", { class: "title" }, crumbs, h("h1", {}, pathText(path)), h("p", { class: "period" }, facts(namespace, path, entity))),
    figures(namespace, path, entity),
    entityButtons(here),
    h("div", { class: "tabs", role: "navigation", "aria-label": "Parts of the entity" }, tabsOf(entity).map(([name, label]) => h("a", { href: entityLink(namespace, path, name), "aria-current": name === tab ? "page" : null }, label))),
    body(here),
  ];
}

function facts(namespace, path, entity) {
  const to = (name) => (entityOf(namespace, name) ? h("a", { href: entityLink(namespace, name) }, h("bdi", {}, name)) : h("bdi", {}, name));
  const topic = entity.kind === "subscription" ? path.replace(/\/subscriptions\/.*$/i, "") : "";
  return [topic ? ["subscription of topic ", to(topic)] : entity.kind,
    entity.status && entity.status !== "Active" ? entity.status : "",
    entity.sessions ? "with sessions" : "",
    entity.forward_to ? ["forwards to ", to(entity.forward_to)] : "",
    entity.duplicate_window_s ? `drops duplicates within ${duration(entity.duplicate_window_s)}` : "",
    aheadBy(state.look.namespaces[namespace]),
    seenAt(namespace) ? `${namespace} is away: its counts are those of ${moment(seenAt(namespace))}` : "",
  ].filter(Boolean).map((fact, at) => [at ? ", " : "", fact]);
}

// Another page of the same list keeps the chosen messages; another list begins anew.
function enter(here) {
  const list = JSON.stringify([here.namespace, here.path, here.tab, conditionsFrom(here.query)]);
  const key = JSON.stringify([list, here.query.from ?? ""]);
  if (view.key === key) return;
  const { picked, back } = view.list === list ? view : fresh();
  view = { ...fresh(), key, list, picked, back };
  load(here);
}

function figures(namespace, path, entity) {
  const rates = ratesOf(namespace, path);
  const old = seenAt(namespace) ? "old" : "";
  return h("section", { "aria-label": "Counts" }, tiles([
    entity.kind === "topic" ? { title: "Subscriptions", value: number(entity.subscriptions), note: `${number(entity.scheduled ?? 0)} scheduled` } : { title: "Waiting", value: number(entity.active), tone: old, note: `${number(entity.deferred ?? 0)} deferred besides` },
    entity.kind !== "topic" && { title: "Dead letters", value: number(entity.dead), tone: old || (entity.dead ? "bad" : ""), note: " " },
    { title: "Arriving", value: old ? "–" : rate(rates.in), note: "over the last ten seconds" },
    entity.kind !== "topic" && { title: "Leaving", value: old ? "–" : rate(rates.out), note: "received, moved or deleted" },
    { title: "Size", value: bytes(entity.size_bytes), tone: old, note: entity.max_bytes ? `of ${bytes(entity.max_bytes)}` : " " },
  ]));
}

function body(here) {
  const problem = view.problem ? h("p", { class: "bad", role: "alert" }, view.problem) : null;
  if (here.entity.kind === "topic") return subscriptions(here);
  return [problem, { "": messages, "dead-letters": deadLetters, scheduled, sessions, rules }[here.tab]?.(here) ?? h("p", { class: "nothing" }, "There is no such view.")];
}

// ── loading ──

async function load(here) {
  const mine = view;
  mine.here = here;
  mine.busy = true;
  const ask = (route) => get(of(here.namespace, route, { path: here.path }));
  try {
    if (here.entity.kind === "topic") return;
    if (["", "dead-letters"].includes(here.tab)) {
      const found = await get(of(here.namespace, "messages", { path: here.source, ...conditionsFrom(here.query), from: here.query.from, count: 50 }));
      Object.assign(mine, { rows: found.messages, next: found.next, scanned: found.scanned, unevaluable: found.unevaluable });
      if (here.tab === "dead-letters") mine.extra = await ask("dead-letters");
    } else mine.extra = await ask(here.tab);
    mine.problem = "";
  } catch (error) {
    mine.problem = error.message;
  } finally {
    mine.busy = false;
    if (mine === view) here.redraw();
  }
}

export function refreshEntity() {
  const running = [...state.jobs.values()].some((job) => job.state === "running");
  if (running || !view.here || !entityOf(view.here.namespace, view.here.path)) return;
  view.picked.clear();
  load(view.here);
}

// ── scheduled, sessions, subscriptions ──

function scheduled(here) {
  const found = view.extra?.messages;
  if (!found) return h("p", { class: "nothing" }, view.problem ? "" : "Looking…");
  if (!found.length) return section("scheduled", "Scheduled messages", h("p", { class: "nothing" }, "No message waits for its time."));
  const cancel = (row) => confirm("Cancel a scheduled message", `Message ${row.sequence_number} would become active at ${moment(row.scheduled_enqueue_time)}. Delete it?`, "Delete", async () => { await post(of(here.namespace, "cancel"), { path: here.path, numbers: [row.sequence_number] }); here.reload(); });
  return section("scheduled", "Scheduled messages", timeLine(found), table("Scheduled messages", [
    { title: "Due", cell: (row) => moment(row.scheduled_enqueue_time) },
    { title: "Body", cell: (row) => [h("span", { class: "body" }, shortBody(row.body)), h("small", {}, row.message_id ? `id ${row.message_id}` : "")] },
    { title: "Number", class: "n minor", cell: (row) => row.sequence_number },
    { title: h("span", { class: "unseen" }, "Cancel"), class: "n", cell: (row) => button("Cancel", () => cancel(row), { class: "danger" }) },
  ], found), view.extra.is_all ? null : h("p", { class: "note" }, "These are the first that were found; there may be more."));
}

function timeLine(found) {
  const times = found.map((row) => new Date(row.scheduled_enqueue_time).getTime()).filter((time) => !Number.isNaN(time));
  const now = new Date(state.look.namespaces[view.here.namespace]?.clock?.now ?? state.look.time_ms).getTime();
  const [begin, end] = [Math.min(now, ...times), Math.max(now + 1000, ...times)];
  const at = (time) => ((time - begin) / (end - begin) * 1000).toFixed(1);
  return h("figure", { class: "course" },
    svg("svg", { viewBox: "0 0 1000 60", preserveAspectRatio: "none", role: "img", "aria-label": `${times.length} scheduled messages between now and ${moment(end)}` },
      svg("line", { class: "base", x1: 0, x2: 1000, y1: 40, y2: 40 }), svg("line", { class: "mark", x1: at(now), x2: at(now), y1: 0, y2: 60 }),
      times.map((time) => svg("line", { class: "stroke", x1: at(time), x2: at(time), y1: 14, y2: 40 }))),
    h("figcaption", {}, h("span", {}, "now"), h("span", {}, many(times.length, "message")), h("span", {}, moment(end))));
}

function sessions(here) {
  const found = view.extra?.sessions;
  if (!found) return h("p", { class: "nothing" }, view.problem ? "" : "Looking…");
  return section("sessions", "Sessions", found.length ? table("Sessions", [
    { title: "Session", cell: (one) => h("bdi", {}, one.session_id) },
    { title: "Lock", cell: (one) => (one.is_locked ? pill("suspect", "locked") : pill("healthy", "free")) },
    { title: "State", cell: (one) => h("span", { class: "body" }, one.is_locked ? "(its receiver has it)" : one.state ?? "(none)") },
  ], found) : h("p", { class: "nothing" }, "No session has messages or a state."),
  view.extra.total > found.length ? h("p", { class: "note" }, `The first ${found.length} of ${number(view.extra.total)}.`) : null);
}

function subscriptions(here) {
  const found = Object.entries(state.look.namespaces[here.namespace].entities).filter(([path]) => path.toLowerCase().startsWith(`${here.path.toLowerCase()}/subscriptions/`));
  return section("subscriptions", "Subscriptions", h("div", { class: "actions" }, button("Send", () => sendForm(here, null, () => {}), { "data-action": "send" })),
    found.length ? table("Subscriptions", [
      { title: "Name", cell: ([path]) => h("a", { href: entityLink(here.namespace, path) }, h("bdi", {}, path.split("/").pop())) },
      { title: "Active", class: "n", cell: ([, one]) => number(one.active) },
      { title: "Dead", class: "n", cell: ([path, one]) => (one.dead ? h("a", { class: "bad", href: entityLink(here.namespace, path, "dead-letters") }, number(one.dead)) : "0") },
      { title: "Rules", class: "n", cell: ([path]) => h("a", { href: entityLink(here.namespace, path, "rules") }, "show") },
    ], found) : h("p", { class: "nothing" }, "The topic has no subscriptions: messages that are sent to it are lost."));
}
