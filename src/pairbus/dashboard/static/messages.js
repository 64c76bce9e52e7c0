// The messages and the dead letters of an entity: a list page by page, a search, and the verbs that act on many.
//
// A verb acts on the chosen messages, or on the messages that meet the conditions of the search, or on all. Which page
// of the list is shown is no condition. Before anything is taken away, the server counts, and the dialog names the
// entity, the conditions and the count; messages with higher numbers than those counted stay.

import { conditionsFrom, entityLink, go } from "./address.js";
import { get, of, post, save } from "./api.js";
import { attempt, confirm, toast } from "./dialogs.js";
import { button, field, h, section, table } from "./dom.js";
import { importFile } from "./imports.js";
import { sendForm } from "./message.js";
import { state } from "./store.js";
import { bytes, many, moment, number, shortBody } from "./words.js";

const isSearch = (here) => Boolean(here.query.grep || here.query.where);
const linkTo = (here, query) => entityLink(here.namespace, here.path, here.tab, { ...conditionsFrom(here.query), ...query });
const noun = (here) => (here.tab === "dead-letters" ? "dead letter" : "message");
const place = (here) => `${here.entity.kind} ${here.path} in ${here.namespace}`;

export function messages(here) {
  return [section("messages", "Messages", tools(here), list(here))];
}

function tools(here) {
  const { picked, busy } = here.view;
  const label = (verb) => (picked.size ? `${verb} ${many(picked.size, noun(here))}` : isSearch(here) || here.query.session ? `${verb} all found` : `${verb} all`);
  return [
    h("form", { id: "browse", class: "tools", "data-key": JSON.stringify(here.query), onsubmit: (event) => { event.preventDefault(); look(here, new FormData(event.target)); } },
      h("input", { type: "search", id: "search", name: "grep", value: here.query.grep ?? "", placeholder: "Search in bodies and properties  ( / )", "aria-label": "Search in bodies and properties" }),
      h("input", { name: "where", value: here.query.where ?? "", placeholder: "SQL filter: amount > 10", "aria-label": "SQL filter", autocomplete: "off" }),
      here.entity.sessions ? h("input", { name: "session", value: here.query.session ?? "", placeholder: "Session", "aria-label": "Session", autocomplete: "off" }) : null,
      h("input", { name: "from", inputmode: "numeric", pattern: "[0-9]*", placeholder: "List from number", "aria-label": "List from sequence number", autocomplete: "off", class: "narrow" }),
      h("button", { type: "submit" }, busy ? "Looking…" : "Look")),
    h("div", { class: "actions wrap" },
      here.tab === "" ? button("Send", () => sendForm(here, null, here.reload), { "data-action": "send" }) : null,
      button(label("Move"), () => move(here), { "data-action": "move" }),
      button(label("Export"), () => exportThem(here), { "data-action": "export" }),
      here.tab === "" ? h("label", { class: "file" }, "Import", h("input", { type: "file", accept: ".jsonl,.ndjson,.json", class: "unseen", onchange: (event) => chooseFile(here, event.target) })) : null,
      button(label("Delete"), () => purge(here), { class: "danger", "data-action": "purge" })),
  ];
}

function look(here, data) {
  const asked = Object.fromEntries(["grep", "where", "session", "from"].map((name) => [name, data.get(name) ?? ""]));
  const link = entityLink(here.namespace, here.path, here.tab, asked);
  if (link === location.hash) here.reload();
  else go(link);
}

// ── verbs ──

// Numbers of chosen messages, or the conditions of the search; neither means all messages.
function choice(here) {
  return here.view.picked.size ? { numbers: [...here.view.picked] } : conditionsFrom(here.query);
}

// The choice is taken before the dialog opens: behind it a job may end, or Back be pressed, and both clear the choice.
async function counted(here) {
  const chosen = choice(here);
  if (chosen.numbers) return { chosen, asked: chosen, count: chosen.numbers.length, is_all: true };
  const found = await attempt(() => get(of(here.namespace, "count", { path: here.source, ...chosen })));
  if (!found) return null;
  if (!found.count && found.is_all) {
    toast(Object.keys(chosen).length ? "no message is found by this search" : `there are no ${noun(here)}s`);
    return null;
  }
  return { ...found, chosen, asked: { ...(Object.keys(chosen).length ? chosen : { all: true }), last: found.last } };
}

const amount = (here, found) => `${found.is_all ? "" : "more than "}${many(found.count, noun(here))}`;

// Which messages they are, in sentences; the numbers of a few chosen ones.
function inWords(here, { chosen, ...found }) {
  if (chosen.numbers) return chosen.numbers.length > 20 ? "You have chosen them in the list." : `You have chosen them in the list: ${chosen.numbers.length === 1 ? "number" : "numbers"} ${chosen.numbers.join(", ")}.`;
  const conditions = [chosen.grep && `contain “${chosen.grep}”`, chosen.where && `meet the filter ${chosen.where}`, chosen.session && `belong to session “${chosen.session}”`].filter(Boolean);
  return [conditions.length ? `They are those that ${conditions.join(" and ")}, on all pages of the list.` : "They are all that are there, on all pages of the list.",
    found.is_all ? "" : " Counting was stopped after some seconds.",
    found.not_active ? ` ${many(found.not_active, "deferred or scheduled message")} that also ${found.not_active === 1 ? "meets" : "meet"} this will stay.` : "",
    found.unevaluable ? ` The filter cannot be evaluated for ${many(found.unevaluable, "message")}, which will stay.` : ""].join("");
}

async function purge(here) {
  const found = await counted(here);
  if (!found) return;
  confirm("Delete messages", `Delete ${amount(here, found)} of ${place(here)}? ${inWords(here, found)} They are gone for good. Messages that arrive from now on stay.`, `Delete ${amount(here, found)}`,
    () => post(of(here.namespace, "purge"), { path: here.source, expected: found.count, ...found.asked }));
}

async function move(here) {
  const names = Object.keys(state.look.namespaces);
  const found = await counted(here);
  if (!found) return;
  confirm("Move messages", `Move ${amount(here, found)} of ${place(here)}? ${inWords(here, found)} Messages that arrive from now on stay. A message is completed after its copy was accepted: when the move is interrupted, some may be there twice and none is lost.`, `Move ${amount(here, found)}`,
    (form) => { const data = new FormData(form); return post(of(here.namespace, "move"), { path: here.source, to: data.get("to"), to_namespace: data.get("namespace"), expected: found.count, ...found.asked }); },
    h("div", { class: "fields" }, field("To queue or topic", h("input", { name: "to", required: true, list: "entities-known", autocomplete: "off" })),
      h("datalist", { id: "entities-known" }, Object.entries(state.look.namespaces[here.namespace].entities ?? {}).filter(([, one]) => one.kind !== "subscription").slice(0, 200).map(([path]) => h("option", { value: path }))),
      names.length > 1 ? field("Of namespace", h("select", { name: "namespace" }, names.map((name) => h("option", { value: name, selected: name === here.namespace }, name)))) : null));
}

function exportThem(here) {
  const name = `${here.source.replace(/[^A-Za-z0-9.-]+/g, "-")}.jsonl`;
  return attempt(() => save(of(here.namespace, "export"), name, { path: here.source, ...choice(here) }), (lines) => `${many(lines, noun(here))} exported to ${name}`);
}

async function chooseFile(here, input) {
  const file = input.files[0];
  if (file) await importFile(here, file);
  input.value = "";
}

// ── the list ──

function list(here) {
  const view = here.view;
  if (!view.rows) return h("p", { class: "nothing" }, view.problem ? "" : "Looking…");
  const found = view.rows;
  const isDead = here.tab === "dead-letters";
  const choose = (rows, isChosen) => { rows.forEach((row) => view.picked[isChosen ? "add" : "delete"](row.sequence_number)); here.redraw(); };
  const pick = (row) => h("input", { type: "checkbox", "aria-label": `Choose ${row.sequence_number}`, checked: view.picked.has(row.sequence_number), onchange: (event) => choose([row], event.target.checked) });
  const pickAll = h("input", { type: "checkbox", "data-action": "choose-all", "aria-label": "Choose all messages of this page", title: "Choose all messages of this page", checked: found.length > 0 && found.every((row) => view.picked.has(row.sequence_number)), onchange: (event) => choose(found, event.target.checked) });
  return [
    found.length ? table("Messages", [
      { title: pickAll, plain: true, class: "pick", cell: pick },
      { title: "Number", plain: true, class: "n", cell: (row) => h("a", { href: linkTo(here, { from: here.query.from, message: row.sequence_number }), "data-number": row.sequence_number }, row.sequence_number ?? "?") },
      { title: "Body", cell: (row) => [h("span", { class: "body" }, row.body === undefined ? "(large: open it)" : shortBody(row.body), row.is_cut ? "…" : ""), h("small", {}, [row.message_id ? `id ${row.message_id}` : "", row.subject ?? "", row.session_id ? `session ${row.session_id}` : "", row.state !== "active" ? row.state : ""].filter(Boolean).join(" · "))] },
      isDead ? { title: "Reason", class: "minor", cell: (row) => h("span", { class: "reason" }, row.dead_letter_reason ?? "–") } : null,
      { title: "Enqueued", class: "minor", cell: (row) => moment(row.enqueued_time) },
      { title: "Delivered", class: "n minor", cell: (row) => (row.delivery_count ? many(row.delivery_count, "time") : "never") },
      { title: "Size", class: "n minor", cell: (row) => bytes(row.size) },
    ].filter(Boolean), found, (row) => ({ "data-key": row.sequence_number })) : h("p", { class: "nothing" }, isSearch(here) ? "Nothing found in this part." : here.query.from ? `There are no messages from number ${here.query.from} on.` : "There are no messages here."),
    pages(here),
  ];
}

function pages(here) {
  const { next, back, scanned, rows, unevaluable, picked } = here.view;
  const searching = isSearch(here);
  const onward = () => { back.push(here.query.from ?? ""); go(linkTo(here, { from: next })); };
  const backward = () => go(linkTo(here, { from: back.pop() }));
  return h("div", { class: "actions wrap" },
    here.query.from ? button(searching || !back.length ? "From the beginning" : "Previous page", searching || !back.length ? () => { back.length = 0; go(linkTo(here, {})); } : backward, { class: "quiet", "data-action": "previous" }) : null,
    next ? button(searching ? "Search on" : "Next page", onward, { class: "quiet", "data-action": "next" }) : null,
    picked.size ? button("Choose none", () => { picked.clear(); here.redraw(); }, { class: "quiet", "data-action": "choose-none" }) : null,
    h("span", { class: "note" }, searching ? `${number(scanned)} looked at, ${number(rows.length)} found${next ? "; there are more to look at" : "; that is all"}${unevaluable ? `; the filter could not be evaluated for ${number(unevaluable)}` : ""}` : ""));
}

// ── dead letters ──

export function deadLetters(here) {
  const destination = state.look.namespaces[here.namespace].entities?.[here.path.replace(/\/subscriptions\/.*$/i, "")];
  const mayRemember = destination?.duplicate_window_s || !destination?.status; // without its status the settings were not read
  const redrive = (reasons, count, which) => confirm("Re-drive dead letters", `Send ${many(count, "dead letter")} of ${place(here)}${which} back to ${here.path.replace(/\/subscriptions\/.*$/i, "")}? Each is completed after its entity has accepted it.`, `Re-drive ${many(count, "dead letter")}`,
    (form) => post(of(here.namespace, "redrive"), { path: here.path, reasons, expected: count, new_ids: new FormData(form).get("new_ids") === "on" }),
    mayRemember ? h("label", { class: "check" }, h("input", { type: "checkbox", name: "new_ids" }), `with new message ids: ${destination?.duplicate_window_s ? "the entity detects duplicates, and would drop ids that it remembers" : "the entity may detect duplicates, and drop ids that it remembers"}`) : null);
  const groups = here.view.extra;
  return [
    groups?.length ? section("reasons", "By reason", table("Dead letters by reason", [
      { title: "Reason", cell: (group) => [h("bdi", {}, group.reason || "(no reason)"), group.description ? h("small", { class: "reason" }, group.description) : null] },
      { title: "Messages", class: "n", cell: (group) => number(group.count) },
      { title: "Oldest", class: "minor", cell: (group) => moment(group.oldest) },
      { title: h("span", { class: "unseen" }, "Re-drive"), class: "n", cell: (group) => button("Re-drive", () => redrive([group.reason], group.count, group.reason ? ` with the reason “${group.reason}”` : " that have no reason"), { "data-action": "redrive", "data-reason": group.reason }) },
    ], groups), groups.length > 1 ? button("Re-drive all", () => redrive(null, groups.reduce((sum, group) => sum + group.count, 0), ", whatever their reason,"), { "data-action": "redrive-all" }) : null) : null,
    section("letters", "Dead letters", tools(here), list(here)),
  ];
}
