// The overview: is everything well, what waits where, and what happened.

import { entityLink } from "./address.js";
import { button, h, pill, section, svg, table, tiles } from "./dom.js";
import { ratesOf, state } from "./store.js";
import { outageButton } from "./switches.js";
import { bytes, duration, isBacklog, many, moment, number, rate, STATES } from "./words.js";

const FIRST_ROWS = 100;
const view = { filter: "", sort: "path", down: false, nonEmpty: false, all: false };

export function entityRows(look) {
  return Object.entries(look.namespaces).flatMap(([namespace, one]) =>
    Object.entries(one.entities ?? {}).map(([path, entity]) => ({ namespace, path, ...entity })));
}

export function headline(look) {
  const names = Object.entries(look.namespaces);
  const away = names.filter(([, one]) => !one.reachable).map(([name]) => name);
  const failed = Object.values(look.pair?.entities ?? {}).filter((one) => one.state.endsWith("OVER")).length;
  const suspect = Object.values(look.pair?.entities ?? {}).filter((one) => one.state === "SUSPECT").length;
  const backlog = look.pair?.backlog?.messages ?? 0;
  const parts = [];
  if (away.length) parts.push(`${away.join(" and ")} ${away.length === 1 ? "is" : "are"} away`);
  if (failed) parts.push(`${many(failed, "entity", "entities")} failed over`);
  if (suspect) parts.push(`${suspect} suspect`);
  if (backlog) parts.push(`${many(backlog, "message")} in the backlog`);
  if (parts.length) return [parts.join(", "), "bad"];
  const faults = names.reduce((sum, [, one]) => sum + (one.faults?.length ?? 0), 0);
  if (faults) return [`${many(faults, "fault")} switched on`, "bad"];
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
    backlogQueues(look),
    course(look),
    entities(look, rows, redraw),
    happened(8),
    cost(look),
  ].filter(Boolean);
}

function keyFigures(look, rows) {
  const sum = (name) => rows.reduce((all, row) => all + (row[name] ?? 0), 0);
  const pair = look.pair ?? {};
  const states = Object.values(pair.entities ?? {});
  const failed = states.filter((one) => one.state.endsWith("OVER")).length;
  const backlog = pair.backlog ?? {};
  const hasPair = states.length || backlog.queues || pair.primary;
  return h("section", { "aria-label": "Key figures" }, tiles([
    { title: "Messages waiting", value: number(sum("active")), note: `${many(sum("scheduled"), "scheduled message")}, ${sum("deferred")} deferred` },
    { title: "Dead letters", value: number(sum("dead")), tone: sum("dead") ? "bad" : "", note: many(rows.filter((row) => row.dead).length, "entity", "entities") },
    hasPair && { title: "Failed over", value: number(failed), tone: failed ? "bad" : "good", note: `of ${states.length} that clients of this machine send to` },
    hasPair && { title: "Backlog", value: number(backlog.messages), tone: backlog.messages ? "bad" : "good", note: backlog.oldest_s !== undefined ? `the oldest for ${duration(backlog.oldest_s)}` : `in ${many(backlog.queues ?? 0, "backlog queue")}` },
    hasPair && { title: "Syphon", value: rate(pair.syphon_per_second ?? 0), note: many((pair.syphons ?? []).length, "syphon") + " on this machine" },
    look.cost && { title: "Cost so far", value: `${look.cost.amount} ${look.cost.currency}`, note: `estimate: ${look.cost.is_partial ? "at least " : ""}${many(look.cost.billable_operations, "billable operation")}${look.cost.base_per_month ? `, and ${look.cost.base_per_month} ${look.cost.currency} a month` : ""}` },
  ]));
}

function namespaces(look) {
  return section("namespaces", "Namespaces", table("Namespaces", [
    { title: "Name", cell: ([name, one]) => [name, h("small", {}, one.role ?? "", one.role ? ", " : "", one.address)] },
    { title: "State", cell: ([, one]) => [pill(one.reachable ? "healthy" : "failed", one.reachable ? "answers" : "away"), one.error ? h("small", { class: "reason" }, one.error) : null] },
    { title: "Entities", class: "n minor", cell: ([, one]) => number(Object.keys(one.entities ?? {}).length) },
    { title: "Size", class: "n minor", cell: ([, one]) => bytes(Object.values(one.entities ?? {}).filter((e) => e.kind !== "subscription").reduce((s, e) => s + (e.size_bytes ?? 0), 0)) },
    { title: "Faults", class: "n minor", cell: ([, one]) => (one.can_switch ? h("a", { href: "#/faults" }, number((one.faults ?? []).length)) : "–") },
    { title: h("span", { class: "unseen" }, "Switch"), class: "n", cell: ([name, one]) => (one.can_switch ? outageButton(name, one) : "") },
  ], Object.entries(look.namespaces)));
}

function states(look) {
  const rows = Object.entries(look.pair?.entities ?? {});
  if (!rows.length) return null;
  return section("states", "States of entities", table("States of entities", [
    { title: "Entity", cell: ([path]) => h("bdi", {}, path) },
    { title: "State", cell: ([, one]) => [pill(STATES[one.state]?.[0] ?? "", STATES[one.state]?.[1] ?? one.state), one.cause ? h("small", { class: "reason minor" }, one.cause) : null] },
    { title: "For", class: "n", cell: ([, one]) => duration(look.time_ms / 1000 - one.since_s) },
    { title: "Sent", class: "n minor", cell: ([, one]) => number(one.sent) },
    { title: "Diverted", class: "n", cell: ([, one]) => number(one.diverted) },
    { title: "Pings", class: "n minor", cell: ([, one]) => number(one.pings) },
    { title: "Failed", class: "n minor", cell: ([, one]) => number(one.failed) },
  ], rows), h("p", { class: "note" }, `As ${many((look.pair.clients ?? []).length, "client")} of this machine ${look.pair.clients?.length === 1 ? "tells" : "tell"}.`));
}

function backlogQueues(look) {
  const rows = Object.entries(look.pair?.backlog?.by_queue ?? {});
  if (!rows.length) return null;
  return section("backlog", "Backlog queues", table("Backlog queues", [
    { title: "Queue", cell: ([path]) => h("bdi", {}, path) },
    { title: "Messages", class: "n", cell: ([, one]) => number(one.messages) },
    { title: "Oldest for", class: "n", cell: ([, one]) => duration(one.oldest_s) },
    { title: "Dead", class: "n minor", cell: ([, one]) => number(one.dead) },
  ], rows));
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
      h("label", { class: "check" }, h("input", { type: "checkbox", checked: view.nonEmpty, onchange: (event) => { view.nonEmpty = event.target.checked; redraw(); } }), "only with messages")),
    rows.length ? table("Entities", [
      { title: sortHead("Name", "path", redraw), cell: (row) => [h("a", { href: entityLink(row.namespace, row.path) }, h("bdi", {}, row.path)), h("small", {}, [row.kind, several ? row.namespace : "", isBacklog(row.path) ? "backlog queue" : "", row.sessions ? "sessions" : "", row.status && row.status !== "Active" ? row.status : ""].filter(Boolean).join(", "))] },
      column("Active", "active", (row) => (row.active === undefined ? "–" : number(row.active))),
      column("Dead", "dead", (row) => (row.dead ? h("a", { class: "bad", href: entityLink(row.namespace, row.path, "dead-letters") }, number(row.dead)) : row.dead === undefined ? "–" : "0")),
      column("Scheduled", "scheduled", (row) => number(row.scheduled), true),
      column("In", "in", (row) => rate(ratesOf(row.namespace, row.path).in), true),
      column("Out", "out", (row) => rate(ratesOf(row.namespace, row.path).out), true),
      column("Size", "size_bytes", (row) => bytes(row.size_bytes), true),
    ], shown) : h("p", { class: "nothing" }, "There are no entities yet."),
    found.length > shown.length ? button(`Show all ${number(found.length)}`, () => { view.all = true; redraw(); }, { class: "quiet" }) : null,
    rows.length && !found.length ? h("p", { class: "nothing" }, "No entity has this in its name.") : null);
}

export function happened(count) {
  const rows = state.happened.slice(-count).reverse();
  return section("happened", "Events",
    rows.length ? h("ol", { class: "events" }, rows.map((one) => h("li", { class: one.tone }, h("time", { datetime: new Date(one.time_ms).toISOString() }, moment(one.time_ms)), h("span", {}, one.text)))) : h("p", { class: "nothing" }, "Nothing has happened while somebody watched."),
    count < 100 && state.happened.length > count ? h("p", {}, h("a", { href: "#/events" }, "All events")) : null);
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
