// One entity: its messages, dead letters, schedule, sessions and rules.

import { get, of, post, save } from "./api.js";
import { attempt, confirm } from "./dialogs.js";
import { button, field, h, pill, section, svg, table, tiles } from "./dom.js";
import { importFile } from "./imports.js";
import { openMessage, sendForm } from "./message.js";
import { entityLink } from "./overview.js";
import { ratesOf, state } from "./store.js";
import { bytes, duration, many, moment, number, rate, shortBody } from "./words.js";

const DEAD = "/$DeadLetterQueue";
const fresh = () => ({ key: "", tab: "", rows: null, next: null, scanned: 0, from: [], picked: new Set(), asked: { from: "", grep: "", where: "", session: "" }, extra: null, problem: "", busy: false });
let view = fresh();

export function leaveEntity() { view = fresh(); }

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

export function entityView(namespace, path, tab, redraw) {
  const entity = entityOf(namespace, path);
  const crumbs = h("p", { class: "crumbs" }, h("a", { href: "#/" }, state.look.title), " / ", Object.keys(state.look.namespaces).length > 1 ? [namespace, " / "] : "");
  if (!entity) return [crumbs, h("h1", {}, h("bdi", {}, path)), h("p", { class: "nothing" }, `${namespace} has no such entity, or does not answer.`)];
  const here = { namespace, path, entity, tab, source: tab === "dead-letters" ? path + DEAD : path, redraw };
  if (view.key !== JSON.stringify([namespace, path, tab])) {
    view = { ...fresh(), key: JSON.stringify([namespace, path, tab]) };
    load(here);
  }
  return [
    h("div", { class: "title" }, crumbs, h("h1", {}, h("bdi", {}, path)), h("p", { class: "period" }, [entity.kind, entity.status && entity.status !== "Active" ? entity.status : "", entity.sessions ? "with sessions" : "", entity.forward_to ? `forwards to ${entity.forward_to}` : "", entity.duplicate_window_s ? `duplicate detection ${duration(entity.duplicate_window_s)}` : ""].filter(Boolean).join(", "))),
    figures(namespace, path, entity),
    h("div", { class: "tabs", role: "navigation", "aria-label": "Parts of the entity" }, tabsOf(entity).map(([name, label]) => h("a", { href: entityLink(namespace, path, name), "aria-current": name === tab ? "page" : null }, label))),
    body(here),
  ];
}

function figures(namespace, path, entity) {
  const rates = ratesOf(namespace, path);
  return h("section", { "aria-label": "Counts" }, tiles([
    entity.kind === "topic" ? { title: "Subscriptions", value: number(entity.subscriptions), note: `${number(entity.scheduled ?? 0)} scheduled` } : { title: "Active", value: number(entity.active), note: `${number(entity.deferred ?? 0)} deferred` },
    entity.kind !== "topic" && { title: "Dead letters", value: number(entity.dead), tone: entity.dead ? "bad" : "", note: " " },
    { title: "In", value: rate(rates.in), note: "over the last ten seconds" },
    entity.kind !== "topic" && { title: "Out", value: rate(rates.out), note: "received, moved or deleted" },
    { title: "Size", value: bytes(entity.size_bytes), note: entity.max_bytes ? `of ${bytes(entity.max_bytes)}` : " " },
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
  mine.busy = true;
  const ask = (route, query) => get(of(here.namespace, route, { path: here.path, ...query }));
  try {
    if (here.entity.kind === "topic") return;
    if (["", "dead-letters"].includes(here.tab)) {
      const found = await get(of(here.namespace, "messages", { path: here.source, ...mine.asked, count: 50 }));
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

export function refreshEntity(redraw) {
  if (!view.key) return;
  const running = [...state.jobs.values()].some((job) => job.state === "running");
  if (running) return;
  const [namespace, path, tab] = JSON.parse(view.key);
  const entity = entityOf(namespace, path);
  if (entity) { view.picked.clear(); load({ namespace, path, entity, tab, source: tab === "dead-letters" ? path + DEAD : path, redraw }); }
}

const isSearch = () => Boolean(view.asked.grep || view.asked.where);

// ── messages ──

function messages(here) {
  return [section("messages", "Messages", tools(here), list(here))];
}

function tools(here) {
  return [
    h("form", { id: "browse", class: "tools", onsubmit: (event) => { event.preventDefault(); const data = new FormData(event.target); view.asked = Object.fromEntries(["grep", "where", "session", "from"].map((name) => [name, data.get(name) ?? ""])); view.from = []; load(here); } },
      h("input", { type: "search", id: "search", name: "grep", placeholder: "Search in bodies and properties  ( / )", "aria-label": "Search in bodies and properties" }),
      h("input", { name: "where", placeholder: "SQL filter: amount > 10", "aria-label": "SQL filter", autocomplete: "off" }),
      here.entity.sessions ? h("input", { name: "session", placeholder: "Session", "aria-label": "Session", autocomplete: "off" }) : null,
      h("input", { name: "from", inputmode: "numeric", pattern: "[0-9]*", placeholder: "From number", "aria-label": "From sequence number", autocomplete: "off", class: "narrow" }),
      h("button", { type: "submit" }, view.busy ? "Looking…" : "Look")),
    h("div", { class: "actions wrap" },
      here.tab === "" ? button("Send", () => sendForm(here, null, () => load(here)), { "data-action": "send" }) : null,
      button(view.picked.size ? `Move ${many(view.picked.size, "message")}` : "Move", () => move(here), { "data-action": "move" }),
      button("Export", () => attempt(() => save(of(here.namespace, "export", { path: here.source, ...view.asked, from: "", first: view.asked.from }), `${here.path.replace(/[^A-Za-z0-9.-]+/g, "-")}.jsonl`), "exported"), { "data-action": "export" }),
      here.tab === "" ? h("label", { class: "file" }, "Import", h("input", { type: "file", accept: ".jsonl,.ndjson,.json", class: "unseen", onchange: (event) => chooseFile(here, event.target) })) : null,
      button(view.picked.size ? `Delete ${many(view.picked.size, "message")}` : "Purge", () => purge(here), { class: "danger", "data-action": "purge" })),
  ];
}

function choice() {
  if (view.picked.size) return { numbers: [...view.picked] };
  return Object.fromEntries([["grep", view.asked.grep], ["where", view.asked.where], ["session", view.asked.session], ["first", view.asked.from]].filter(([, value]) => value));
}

function inWords(here, chosen) {
  if (chosen.numbers) return many(chosen.numbers.length, "chosen message");
  return Object.keys(chosen).length ? "every message that your search finds" : `all messages that are in ${here.source} now`;
}

// The choice is taken before the dialog opens: behind it a job may end, or Back be pressed, and both clear the choice.
// A request without a choice means all messages.
function purge(here) {
  const chosen = choice();
  confirm("Delete messages", `Delete ${inWords(here, chosen)}? They are gone for good. Messages that arrive meanwhile stay.`, "Delete", () => post(of(here.namespace, "purge"), { path: here.source, ...chosen }));
}

function move(here) {
  const names = Object.keys(state.look.namespaces), chosen = choice();
  confirm("Move messages", `Move ${inWords(here, chosen)}. A message is completed after its copy was accepted: when the move is interrupted, some may be there twice and none is lost.`, "Move",
    (form) => { const data = new FormData(form); return post(of(here.namespace, "move"), { path: here.source, to: data.get("to"), to_namespace: data.get("namespace"), ...chosen }); },
    h("div", { class: "fields" }, field("To queue or topic", h("input", { name: "to", required: true, list: "entities-known", autocomplete: "off" })),
      h("datalist", { id: "entities-known" }, Object.entries(state.look.namespaces[here.namespace].entities ?? {}).filter(([, one]) => one.kind !== "subscription").slice(0, 200).map(([path]) => h("option", { value: path }))),
      names.length > 1 ? field("Of namespace", h("select", { name: "namespace" }, names.map((name) => h("option", { value: name, selected: name === here.namespace }, name)))) : null));
}

async function chooseFile(here, input) {
  const file = input.files[0];
  if (file) await importFile(here, file);
  input.value = "";
}

function list(here) {
  if (!view.rows) return h("p", { class: "nothing" }, view.problem ? "" : "Looking…");
  const found = view.rows;
  const isDead = here.tab === "dead-letters";
  const pick = (row) => h("input", { type: "checkbox", "aria-label": `Choose ${row.sequence_number}`, checked: view.picked.has(row.sequence_number), onchange: (event) => { view.picked[event.target.checked ? "add" : "delete"](row.sequence_number); here.redraw(); } });
  return [
    found.length ? table("Messages", [
      { title: h("span", { class: "unseen" }, "Choose"), plain: true, class: "pick", cell: pick },
      { title: "Number", plain: true, class: "n", cell: (row) => h("a", { href: `${entityLink(here.namespace, here.path, here.tab)}`, "data-number": row.sequence_number, onclick: (event) => { event.preventDefault(); openMessage(here, row.sequence_number, () => load(here)); } }, row.sequence_number ?? "?") },
      { title: "Body", cell: (row) => [h("span", { class: "body" }, row.body === undefined ? "(large: open it)" : shortBody(row.body), row.is_cut ? "…" : ""), h("small", {}, [row.message_id ? `id ${row.message_id}` : "", row.subject ?? "", row.session_id ? `session ${row.session_id}` : "", row.state !== "active" ? row.state : ""].filter(Boolean).join(" · "))] },
      isDead ? { title: "Reason", class: "minor", cell: (row) => h("span", { class: "reason" }, row.dead_letter_reason ?? "–") } : null,
      { title: "Enqueued", class: "minor", cell: (row) => moment(row.enqueued_time) },
      { title: "Deliveries", class: "n minor", cell: (row) => number(row.delivery_count) },
      { title: "Size", class: "n minor", cell: (row) => bytes(row.size) },
    ].filter(Boolean), found, (row) => ({ "data-key": row.sequence_number })) : h("p", { class: "nothing" }, isSearch() ? "Nothing found in this part." : "There are no messages here."),
    h("div", { class: "actions wrap" },
      view.from.length ? button(isSearch() ? "From the beginning" : "Previous page", () => { const back = isSearch() ? view.from[0] : view.from.pop(); if (isSearch()) view.from = []; view.asked.from = back; load(here); }, { class: "quiet" }) : null,
      view.next ? button(isSearch() ? "Search on" : "Next page", () => { view.from.push(view.asked.from); view.asked.from = view.next; load(here); }, { class: "quiet", "data-action": "next" }) : null,
      h("span", { class: "note" }, isSearch() ? `${number(view.scanned)} looked at, ${number(found.length)} found${view.next ? "; there are more to look at" : "; that is all"}${view.unevaluable ? `; the filter could not be evaluated for ${number(view.unevaluable)}` : ""}` : "")),
  ];
}

// ── dead letters ──

function deadLetters(here) {
  const destination = entityOf(here.namespace, here.path.replace(/\/subscriptions\/.*$/i, ""));
  const mayRemember = destination?.duplicate_window_s || !destination?.status; // without its status the settings were not read
  const redrive = (reasons, label) => confirm("Re-drive dead letters", `Send ${label} of ${here.path} back? Each is completed after its entity has accepted it.`, "Re-drive",
    (form) => post(of(here.namespace, "redrive"), { path: here.path, reasons, new_ids: new FormData(form).get("new_ids") === "on" }),
    mayRemember ? h("label", { class: "check" }, h("input", { type: "checkbox", name: "new_ids" }), `with new message ids: ${destination?.duplicate_window_s ? "the entity detects duplicates, and would drop ids that it remembers" : "the entity may detect duplicates, and drop ids that it remembers"}`) : null);
  const groups = view.extra;
  return [
    groups?.length ? section("reasons", "By reason", table("Dead letters by reason", [
      { title: "Reason", cell: (group) => [h("bdi", {}, group.reason || "(no reason)"), group.description ? h("small", { class: "reason" }, group.description) : null] },
      { title: "Messages", class: "n", cell: (group) => number(group.count) },
      { title: "Oldest", class: "minor", cell: (group) => moment(group.oldest) },
      { title: h("span", { class: "unseen" }, "Re-drive"), class: "n", cell: (group) => button("Re-drive", () => redrive([group.reason], many(group.count, "dead letter")), { "data-action": "redrive", "data-reason": group.reason }) },
    ], groups), groups.length > 1 ? button("Re-drive all", () => redrive(null, "all dead letters"), { "data-action": "redrive-all" }) : null) : null,
    section("letters", "Dead letters", tools(here), list(here)),
  ];
}

// ── scheduled, sessions, rules, subscriptions ──

function scheduled(here) {
  const found = view.extra?.messages;
  if (!found) return h("p", { class: "nothing" }, view.problem ? "" : "Looking…");
  if (!found.length) return section("scheduled", "Scheduled messages", h("p", { class: "nothing" }, "No message waits for its time."));
  const cancel = (row) => confirm("Cancel a scheduled message", `Message ${row.sequence_number} would become active at ${moment(row.scheduled_enqueue_time)}. Delete it?`, "Delete", async () => { await post(of(here.namespace, "cancel"), { path: here.path, numbers: [row.sequence_number] }); load(here); });
  return section("scheduled", "Scheduled messages", timeLine(found), table("Scheduled messages", [
    { title: "Due", cell: (row) => moment(row.scheduled_enqueue_time) },
    { title: "Body", cell: (row) => [h("span", { class: "body" }, shortBody(row.body)), h("small", {}, row.message_id ? `id ${row.message_id}` : "")] },
    { title: "Number", class: "n minor", cell: (row) => row.sequence_number },
    { title: h("span", { class: "unseen" }, "Cancel"), class: "n", cell: (row) => button("Cancel", () => cancel(row), { class: "danger" }) },
  ], found), view.extra.is_all ? null : h("p", { class: "note" }, "These are the first that were found; there may be more."));
}

function timeLine(found) {
  const times = found.map((row) => new Date(row.scheduled_enqueue_time).getTime()).filter((time) => !Number.isNaN(time));
  const now = new Date(state.look.namespaces[JSON.parse(view.key)[0]]?.clock?.now ?? state.look.time_ms).getTime();
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

function rules(here) {
  const found = view.matched?.rules ?? view.extra;
  if (!found) return h("p", { class: "nothing" }, view.problem ? "" : "Looking…");
  return [section("rules", "Rules", found.length ? table("Rules", [
    { title: "Rule", cell: (rule) => h("bdi", {}, rule.name) },
    { title: "Filter", cell: (rule) => h("code", {}, rule.expression ?? (rule.filter === "correlation" ? JSON.stringify({ ...rule.fields, ...Object.fromEntries(Object.entries(rule.properties ?? {}).map(([name, one]) => [name, one.value])) }) : rule.filter)) },
    { title: "Action", class: "minor", cell: (rule) => (rule.action ? h("code", {}, rule.action) : "–") },
    view.matched ? { title: "Matches", cell: (rule) => [pill(rule.matches ? "healthy" : "idle", rule.matches ? "yes" : "no"), rule.problem ? h("small", { class: "reason" }, rule.problem) : null] } : null,
  ].filter(Boolean), found) : h("p", { class: "nothing" }, "There are no rules: no message comes here.")),
  section("match", "Would this message match?", h("form", { id: "match-form", onsubmit: async (event) => { event.preventDefault(); const data = new FormData(event.target); view.matched = await attempt(async () => post(of(here.namespace, "match"), { path: here.path, message: { ...(data.get("subject") ? { subject: data.get("subject") } : {}), ...(data.get("body") ? { body: data.get("body") } : {}), application_properties: JSON.parse(data.get("properties") || "{}") } })); here.redraw(); } },
    h("div", { class: "fields" }, field("Subject", h("input", { name: "subject", autocomplete: "off" })), field("Application properties, as JSON", h("textarea", { name: "properties", rows: 3, placeholder: '{"region": "eu", "amount": 12}', spellcheck: "false" })), field("Body", h("textarea", { name: "body", rows: 3, spellcheck: "false" }))),
    view.matched ? h("p", { id: "matched", class: view.matched.matches ? "good" : "bad" }, view.matched.matches ? "Yes: the subscription would get this message." : "No rule selects this message.") : null,
    h("div", { class: "actions" }, h("button", { type: "submit" }, "Try"))))];
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
