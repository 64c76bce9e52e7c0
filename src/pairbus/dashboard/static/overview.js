// The overview: is everything well, what waits where, and what happened.

import { entityLink } from "./address.js";
import { newEntity } from "./admin.js";
import { button, h, pathText, pill, section, svg, table, tiles } from "./dom.js";
import { ratesOf, seenAt, state } from "./store.js";
import { aheadBy, outageButton } from "./switches.js";
import { bytes, duration, isBacklog, many, moment, number, rate, STATES } from "./words.js";

const FIRST_ROWS = 100;
const view = { filter: "", sort: "path", down: false, nonEmpty: false, all: false };

export function entityRows(look) {
  return Object.entries(look.namespaces).flatMap(([namespace, one]) =>
    Object.entries(one.entities ?? {}).map(([path, entity]) => ({ namespace, path, ...entity })));
}

// Every sentence here is one that somebody must act on; “well” is said only when there is none.
export function headline(look) {
  if (state.link === "lost") return [state.onBroker ? `${look.title} does not answer` : "The dashboard does not answer", "bad"];
  const names = Object.entries(look.namespaces);
  const away = names.filter(([, one]) => !one.reachable).map(([name]) => name);
  const states = Object.values(look.pair?.entities ?? {});
  const failed = states.filter((one) => one.state.endsWith("OVER")).length;
  const suspect = states.filter((one) => one.state === "SUSPECT").length;
  const backlog = look.pair?.backlog?.messages ?? 0;
  const faults = names.reduce((sum, [, one]) => sum + (one.faults?.length ?? 0), 0);
  const dead = entityRows(look).reduce((sum, row) => sum + (row.dead ?? 0), 0);
  const bad = [
    away.length && `${away.join(" and ")} ${away.length === 1 ? "is" : "are"} away`,
    failed && `${many(failed, "entity", "entities")} failed over`,
    suspect && `${suspect} suspect`,
    backlog && `${many(backlog, "message")} in the backlog`,
    faults && `${many(faults, "fault")} switched on`,
  ].filter(Boolean);
  const noted = [
    dead && many(dead, "dead letter"),
    ...names.map(([name, one]) => aheadBy(one) && `${name}: ${aheadBy(one)}`),
  ].filter(Boolean);
  const found = [...bad, ...noted].join(", ");
  if (found) return [found, bad.length ? "bad" : "warn"];
  return [names.length === 1 ? `${names[0][0]} is well` : "Both namespaces are well", ""];
}

export function overview(redraw) {
  const look = state.look;
  const [text, tone] = headline(look);
  const rows = entityRows(look);
  return [
    h("div", { class: "title" }, h("h1", { class: tone }, text), h("p", { class: "period" }, `${look.title}, as of ${moment(look.time_ms)}`)),
    keyFigures(look, rows),
    namespaces(look),
    states(look),
    course(look),
    entities(look, rows.filter((row) => !isBacklog(row.path)), redraw),
    happened(8),
    cost(look),
    backlogQueues(look, rows.filter((row) => isBacklog(row.path))),
  ].filter(Boolean);
}

function keyFigures(look, rows) {
  const sum = (name) => rows.reduce((all, row) => all + (row[name] ?? 0), 0);
  const pair = look.pair ?? {};
  const states = Object.values(pair.entities ?? {});
  const failed = states.filter((one) => one.state.endsWith("OVER")).length;
  const backlog = pair.backlog ?? {};
  const stale = Object.keys(look.namespaces).filter((name) => seenAt(name));
  const old = stale.map((name) => `${name} as of ${moment(seenAt(name))}; `).join("");
  const oldBacklog = pair.secondary && seenAt(pair.secondary) ? `as of ${moment(seenAt(pair.secondary))}; ` : "";
  const hasPair = states.length || backlog.queues || pair.primary;
  return h("section", { "aria-label": "Key figures" }, tiles([
    { title: "Messages waiting", value: number(sum("active")), note: `${old}${number(sum("scheduled"))} scheduled, ${number(sum("deferred"))} deferred besides`, tone: old ? "old" : "" },
    { title: "Dead letters", value: number(sum("dead")), tone: old ? "old" : sum("dead") ? "bad" : "", note: old + "in " + many(rows.filter((row) => row.dead).length, "entity", "entities") },
    hasPair && { title: "Failed over", value: number(failed), tone: failed ? "bad" : "good", note: `of ${states.length} that clients of this machine send to` },
    hasPair && { title: "Backlog", value: number(backlog.messages), tone: oldBacklog ? "old" : backlog.messages ? "bad" : "good", note: oldBacklog + (backlog.oldest_s !== undefined ? `the oldest for ${duration(backlog.oldest_s)}` : `in ${many(backlog.queues ?? 0, "backlog queue")}`) },
    hasPair && { title: "Moved home", value: rate(pair.syphon_per_second ?? 0), note: `by ${many((pair.syphons ?? []).length, "syphon")} on this machine` },
    look.cost && { title: "Cost so far", value: `${look.cost.amount} ${look.cost.currency}`, note: `estimate: ${look.cost.is_partial ? "at least " : ""}${many(look.cost.billable_operations, "billable operation")}${look.cost.base_per_month ? `, and ${look.cost.base_per_month} ${look.cost.currency} a month` : ""}` },
  ]));
}

function namespaces(look) {
  const counts = ([name, one], text) => (seenAt(name) ? h("span", { class: "old" }, text) : one.entities ? text : "–");
  return section("namespaces", "Namespaces", table("Namespaces", [
    { title: "Name", cell: ([name, one]) => [name, h("small", {}, one.role ? `${one.role}, ` : "", h("span", { class: "address" }, one.address))] },
    { title: "State", cell: ([name, one]) => [pill(one.reachable ? "healthy" : "failed", one.reachable ? "answers" : "away"), aheadBy(one) ? [" ", pill("suspect", aheadBy(one))] : null, one.error ? h("small", { class: "reason" }, one.error) : null, seenAt(name) ? h("small", { class: "reason" }, `its counts are those of ${moment(seenAt(name))}`) : null] },
    { title: "Entities", class: "n minor", cell: (row) => counts(row, number(Object.keys(row[1].entities ?? {}).length)) },
    { title: "Size", class: "n minor", cell: (row) => counts(row, bytes(Object.values(row[1].entities ?? {}).filter((e) => e.kind !== "subscription").reduce((s, e) => s + (e.size_bytes ?? 0), 0))) },
    { title: "Faults", class: "n minor", cell: ([, one]) => (one.can_switch ? h("a", { href: "#/faults" }, number((one.faults ?? []).length)) : "–") },
    { title: h("span", { class: "unseen" }, "Switch"), class: "n end", cell: ([name, one]) => (one.can_switch ? outageButton(name, one) : "") },
  ], Object.entries(look.namespaces), null, "cards"));
}

function states(look) {
  const rows = Object.entries(look.pair?.entities ?? {});
  if (!rows.length) return null;
  const primary = look.pair.primary ?? Object.keys(look.namespaces).find((name) => rows.some(([path]) => look.namespaces[name].entities?.[path]));
  const isHere = (path) => Boolean(look.namespaces[primary]?.entities?.[path]);
  return section("states", "Where clients send", table("Where clients send", [
    { title: "Entity", cell: ([path]) => (isHere(path) ? h("a", { href: entityLink(primary, path) }, pathText(path)) : pathText(path)) },
    { title: "State", cell: ([, one]) => [pill(STATES[one.state]?.[0] ?? "", STATES[one.state]?.[1] ?? one.state), one.cause ? h("small", { class: "reason" }, one.cause) : null] },
    { title: "Since", class: "n end", cell: ([, one]) => `${duration(look.time_ms / 1000 - one.since_s)} ago` },
    { title: "Sent to it", class: "n minor", cell: ([, one]) => number(one.sent) },
    { title: "To the backlog", class: "n minor", cell: ([, one]) => number(one.diverted) },
    { title: "Failed", class: "n minor", cell: ([, one]) => number(one.failed) },
    { title: "Pings", class: "n minor", cell: ([, one]) => number(one.pings) },
  ], rows, null, "cards"), h("p", { class: "note" }, `Reported by ${many((look.pair.clients ?? []).length, "client")} on this machine. Pings ask whether an entity accepts messages again.`));
}

// Folded and last: operators need them when one is named, and no stranger may take them for queues of an application.
function backlogQueues(look, rows) {
  if (!rows.length) return null;
  const waiting = rows.reduce((sum, row) => sum + (row.active ?? 0), 0);
  const ages = look.pair?.backlog?.by_queue ?? {};
  return h("section", { "aria-labelledby": "backlog", "data-key": "backlog" }, h("details", {},
    h("summary", {}, h("h2", { id: "backlog" }, "Backlog queues"), h("span", { class: "note" }, `${number(rows.length)}, with ${many(waiting, "message")}`)),
    table("Backlog queues", [
      { title: "Queue", cell: (row) => [h("a", { href: entityLink(row.namespace, row.path) }, pathText(row.path)), h("small", {}, `in ${row.namespace}`)] },
      { title: "Messages", class: "n", cell: (row) => shownCount(row, number(row.active)) },
      { title: "Oldest waits for", class: "n minor", cell: (row) => duration(ages[row.path]?.oldest_s) },
      { title: "Dead letters", class: "n", cell: (row) => deadLink(row) },
      { title: "Size", class: "n minor", cell: (row) => shownCount(row, bytes(row.size_bytes)) },
    ], [...rows].sort((a, b) => (b.active ?? 0) - (a.active ?? 0)).slice(0, FIRST_ROWS))));
}

function shownCount(row, text) {
  return seenAt(row.namespace) ? h("span", { class: "old", title: `as of ${moment(seenAt(row.namespace))}` }, text) : text;
}

function deadLink(row) {
  return row.dead ? h("a", { class: seenAt(row.namespace) ? "old" : "bad", href: entityLink(row.namespace, row.path, "dead-letters") }, number(row.dead)) : shownCount(row, row.dead === undefined ? "–" : "0");
}

function course(look) {
  const points = state.course;
  const most = Math.max(...points.map(([, value]) => value));
  if (!look.pair?.backlog?.queues || points.length < 2 || !most) return null;
  const [begin, end] = [points[0][0], points[points.length - 1][0]];
  const line = points.map(([time, value]) => `${((time - begin) / (end - begin || 1) * 1000).toFixed(1)},${(100 - value / most * 96).toFixed(1)}`).join(" ");
  return section("course", "Backlog while you watched",
    h("figure", { class: "course" },
      svg("svg", { viewBox: "0 0 1000 102", preserveAspectRatio: "none", role: "img", "aria-label": `Depth of the backlog: at most ${most}, now ${points[points.length - 1][1]}` },
        svg("polygon", { class: "area backlog", points: `0,100 ${line} 1000,100` }), svg("polyline", { class: "line backlog", points: line }), svg("line", { class: "base", x1: 0, x2: 1000, y1: 100, y2: 100 })),
      h("figcaption", {}, h("span", {}, moment(begin)), h("span", {}, `at most ${many(most, "message")}`), h("span", {}, moment(end)))));
}

function sortHead(title, by, redraw) {
  return h("button", { type: "button", class: "sort", onclick: () => { view.down = view.sort === by ? !view.down : by !== "path"; view.sort = by; redraw(); } },
    title, view.sort === by ? (view.down ? " ↓" : " ↑") : "");
}

function chosen(rows) {
  const wanted = view.filter.trim().toLowerCase();
  const found = rows.filter((row) => (!wanted || row.path.toLowerCase().includes(wanted)) && (!view.nonEmpty || row.active || row.dead || row.scheduled || row.deferred));
  const by = view.sort;
  const value = (row) => (by === "path" ? row.path.toLowerCase() : by === "in" || by === "out" ? ratesOf(row.namespace, row.path)[by] ?? -1 : row[by] ?? -1);
  const sorted = found.map((row) => [value(row), row]).sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)).map(([, row]) => row);
  return view.down ? sorted.reverse() : sorted;
}

function entities(look, rows, redraw) {
  const found = chosen(rows);
  const shown = view.all ? found : found.slice(0, FIRST_ROWS);
  const several = Object.keys(look.namespaces).length > 1;
  const column = (title, by, cell, minor) => ({ title: sortHead(title, by, redraw), class: `n${minor ? " minor" : ""}`, cell, sorted: view.sort === by ? (view.down ? "descending" : "ascending") : null });
  return section("entities", "Entities",
    h("div", { class: "tools" },
      h("input", { type: "search", id: "filter", placeholder: "Filter by name  ( / )", "aria-label": "Filter by name", value: view.filter, oninput: (event) => { view.filter = event.target.value; redraw(); } }),
      h("label", { class: "check" }, h("input", { type: "checkbox", checked: view.nonEmpty, onchange: (event) => { view.nonEmpty = event.target.checked; redraw(); } }), "only with messages"),
      button("New…", newEntity, { "data-action": "new-entity" })),
    rows.length ? table("Entities", [
      { title: sortHead("Name", "path", redraw), cell: (row) => [h("a", { href: entityLink(row.namespace, row.path) }, pathText(row.path)), h("small", {}, [row.kind, several ? row.namespace : "", seenAt(row.namespace) ? `as of ${moment(seenAt(row.namespace))}` : "", row.sessions ? "sessions" : "", row.status && row.status !== "Active" ? row.status : ""].filter(Boolean).join(", "))] },
      column("Waiting", "active", (row) => shownCount(row, number(row.active))),
      column("Dead letters", "dead", (row) => deadLink(row)),
      column("Scheduled", "scheduled", (row) => shownCount(row, number(row.scheduled)), true),
      column("Arriving", "in", (row) => speed(row, "in"), true),
      column("Leaving", "out", (row) => speed(row, "out"), true),
      column("Size", "size_bytes", (row) => shownCount(row, bytes(row.size_bytes)), true),
    ], shown) : h("p", { class: "nothing" }, "There are no entities yet."),
    found.length > shown.length ? button(`Show all ${number(found.length)}`, () => { view.all = true; redraw(); }, { class: "quiet" }) : null,
    rows.length && !found.length ? h("p", { class: "nothing" }, "No entity has this in its name.") : null);
}

const speed = (row, way) => (seenAt(row.namespace) ? "–" : rate(ratesOf(row.namespace, row.path)[way]));

export function happened(count, title = "Events") {
  const rows = state.happened.slice(-count).reverse();
  return section("happened", title,
    rows.length ? h("ol", { class: "events" }, rows.map((one) => h("li", { class: one.tone }, h("time", { datetime: new Date(one.time_ms).toISOString() }, moment(one.time_ms)), eventText(one)))) : h("p", { class: "nothing" }, "Nothing has happened since the server of this page began."),
    count < 100 && state.happened.length > count ? h("p", {}, h("a", { href: "#/events" }, "All events")) : null);
}

// The entity in the text is a link while it exists.
function eventText(one) {
  const at = one.entity ? one.text.indexOf(one.entity) : -1;
  const namespace = one.namespace ?? Object.keys(state.look.namespaces).find((name) => state.look.namespaces[name].entities?.[one.entity]);
  if (at < 0 || !state.look.namespaces[namespace]?.entities?.[one.entity]) return h("span", {}, one.text);
  const tab = one.kind === "dead-letter" ? "dead-letters" : "";
  return h("span", {}, one.text.slice(0, at), h("a", { href: entityLink(namespace, one.entity, tab) }, h("bdi", {}, one.entity)), one.text.slice(at + one.entity.length));
}

function cost(look) {
  if (!look.cost) {
    return Object.values(look.namespaces).some((one) => one.can_switch) ? h("p", { class: "note outside" }, "What the operations would cost on Azure is shown here after the first one.") : null;
  }
  const sum = `${look.cost.amount} ${look.cost.currency} for ${many(look.cost.billable_operations, "billable operation")}`;
  const sheet = `by the price sheet “${look.cost.sheet}”: an estimate, beyond the operations that are free`;
  return section("cost", "Running cost",
    look.cost.is_partial
      ? h("p", {}, `At least ${sum}, ${sheet}. Azure does not tell how many operations there were: counted are those of paired clients and syphons of this machine since they started, each message as one of 64 KB at most, and calls of this page.${look.cost.base_per_month ? ` The base charge is ${look.cost.base_per_month} ${look.cost.currency} a month besides.` : ""}`)
      : h("p", {}, `${sum} since the start, ${sheet}, and without the base charge.`),
    table("Billable operations by kind", [{ title: "Kind", cell: ([kind]) => kind }, { title: "Operations", class: "n", cell: ([, count]) => number(count) }], Object.entries(look.cost.by_kind)));
}
