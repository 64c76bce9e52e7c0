// The rules of a subscription: listed, created, changed and deleted, and tried on a message.

import { get, of, post } from "./api.js";
import { ask, attempt, confirm } from "./dialogs.js";
import { button, field, h, pill, section, table } from "./dom.js";

const FILTERS = { sql: "an SQL expression", correlation: "equal fields and properties", true: "every message", false: "no message" };
const FIELDS = [["label", "Subject"], ["message_id", "Message id"], ["correlation_id", "Correlation id"], ["to", "To"], ["reply_to", "Reply to"], ["session_id", "Session"], ["reply_to_session_id", "Reply to session"], ["content_type", "Content type"]];

export function rules(here) {
  const view = here.view;
  const found = view.matched?.rules ?? view.extra;
  if (!found) return h("p", { class: "nothing" }, view.problem ? "" : "Looking…");
  return [section("rules", "Rules", found.length ? table("Rules", [
    { title: "Rule", cell: (rule) => h("bdi", {}, rule.name) },
    { title: "Filter", cell: (rule) => h("code", {}, inWords(rule)) },
    { title: "Action", class: "minor", cell: (rule) => (rule.action ? h("code", {}, rule.action) : "–") },
    view.matched ? { title: "Matches", cell: (rule) => [pill(rule.matches ? "healthy" : "idle", rule.matches ? "yes" : "no"), rule.problem ? h("small", { class: "reason" }, rule.problem) : null] } : null,
    { title: h("span", { class: "unseen" }, "Change"), class: "n end", cell: (rule) => [
      button("Change…", () => edit(here, rule), { "data-action": "change-rule", "data-rule": rule.name }), " ",
      button("Delete…", () => remove(here, rule, found.length), { class: "danger", "data-action": "delete-rule", "data-rule": rule.name })] },
  ].filter(Boolean), found, null, "cards") : h("p", { class: "nothing" }, "There are no rules: no message comes here."),
  h("div", { class: "actions" }, button("New rule…", () => edit(here, null), { "data-action": "new-rule" }))),
  section("match", "Would this message match?", h("form", { id: "match-form", onsubmit: async (event) => { event.preventDefault(); const data = new FormData(event.target); view.matched = await attempt(async () => post(of(here.namespace, "match"), { path: here.path, message: { ...(data.get("subject") ? { subject: data.get("subject") } : {}), ...(data.get("body") ? { body: data.get("body") } : {}), application_properties: JSON.parse(data.get("properties") || "{}") } })); here.redraw(); } },
    h("div", { class: "fields" }, field("Subject", h("input", { name: "subject", autocomplete: "off" })), field("Application properties, as JSON", h("textarea", { name: "properties", rows: 3, placeholder: '{"region": "eu", "amount": 12}', spellcheck: "false" })), field("Body", h("textarea", { name: "body", rows: 3, spellcheck: "false" }))),
    view.matched ? h("p", { id: "matched", class: view.matched.matches ? "good" : "bad" }, view.matched.matches ? "Yes: the subscription would get this message." : "No rule selects this message.") : null,
    h("div", { class: "actions" }, h("button", { type: "submit" }, "Try"))))];
}

function inWords(rule) {
  if (rule.filter !== "correlation") return rule.expression ?? FILTERS[rule.filter];
  const properties = Object.entries(rule.properties ?? {}).map(([name, one]) => [name, one.value]);
  return JSON.stringify({ ...rule.fields, ...Object.fromEntries(properties) });
}

// The part of the form for one kind of filter; `rule` fills it.
function parts(kind, rule) {
  if (kind === "sql") return field("SQL expression", h("textarea", { name: "expression", rows: 3, required: true, spellcheck: "false", value: rule?.expression ?? "", placeholder: "region = 'eu' AND amount > 10" }));
  if (kind !== "correlation") return "";
  const properties = Object.keys(rule?.properties ?? {}).length ? JSON.stringify(rule.properties, null, 1) : "";
  return [h("div", { class: "fields" }, FIELDS.map(([name, label]) => field(label, h("input", { name, value: rule?.fields?.[name] ?? "", autocomplete: "off" })))),
    field("Application properties, as JSON", h("textarea", { name: "properties", rows: 3, spellcheck: "false", value: properties, placeholder: '{"region": "eu"}' }), "Plain values, or type and value to choose the AMQP type.")];
}

function read(form) {
  const data = new FormData(form), kind = data.get("filter"), action = data.get("action");
  const given = { filter: kind, ...(action ? { action } : {}) };
  if (kind === "sql") given.expression = data.get("expression");
  if (kind === "correlation") {
    given.fields = Object.fromEntries(FIELDS.map(([name]) => [name, data.get(name)]).filter(([, value]) => value));
    given.properties = JSON.parse(data.get("properties") || "{}");
  }
  return given;
}

// `rule`: one of the list, to change; null: a new one.
function edit(here, rule) {
  const kind = rule?.filter ?? "sql";
  const chosen = h("div", {}, parts(kind, rule));
  const filter = h("select", { name: "filter", onchange: (event) => chosen.replaceChildren(...[parts(event.target.value, null)].flat()) },
    Object.entries(FILTERS).map(([value, label]) => h("option", { value, selected: value === kind }, label)));
  ask(rule ? `Change rule ${rule.name}` : `New rule of ${here.path}`, rule ? "Change" : "Create", [
    h("div", { class: "fields" }, rule ? null : field("Name", h("input", { name: "name", required: true, autocomplete: "off" })), field("It selects", filter)),
    chosen,
    field("SQL action on the copy", h("input", { name: "action", value: rule?.action ?? "", placeholder: "SET priority = 'high'", autocomplete: "off" }), "empty: none"),
  ], async (form) => {
    const name = rule?.name ?? new FormData(form).get("name");
    await post(of(here.namespace, rule ? "change-rule" : "create-rule"), { path: here.path, name, ...read(form) });
    reload(here);
  });
}

function remove(here, rule, count) {
  const rest = count === 1 ? "It is the last one: no message comes to this subscription any more." : `${count - 1} ${count === 2 ? "rule stays" : "rules stay"}.`;
  confirm("Delete a rule", `Delete the rule ${rule.name} of ${here.path} in ${here.namespace}? ${rest} Messages that are there stay.`, "Delete the rule",
    async () => { await post(of(here.namespace, "delete-rule"), { path: here.path, name: rule.name }); reload(here); });
}

function reload(here) {
  here.view.matched = null;
  here.reload();
}
