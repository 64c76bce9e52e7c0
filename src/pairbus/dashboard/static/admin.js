// Entities: created, changed and deleted. Every setting that is left empty has the default of the service.

import { entityLink, go } from "./address.js";
import { get, of, post } from "./api.js";
import { attempt, confirm, dialog, toast } from "./dialogs.js";
import { button, field, h } from "./dom.js";
import { state } from "./store.js";
import { many } from "./words.js";

// name → label, type, kinds, whether it is chosen at creation only, hint.
const BOXES = ["queue", "subscription"], ENTRIES = ["queue", "topic"];
const SETTINGS = {
  requires_session: ["Messages belong to sessions", "flag", BOXES, true],
  requires_duplicate_detection: ["Drop messages with an id that was there before", "flag", ENTRIES, true],
  duplicate_detection_history_time_window: ["Remember message ids for", "duration", ENTRIES, false, "such as 10m"],
  lock_duration: ["A receiver keeps a message locked for", "duration", BOXES, false, "such as 30s or 5m"],
  max_delivery_count: ["Deliveries before a message is dead-lettered", "number", BOXES],
  default_message_time_to_live: ["Messages live for", "duration", [...BOXES, "topic"], false, "such as 14d; empty: for ever"],
  dead_lettering_on_message_expiration: ["Dead-letter messages that have expired", "flag", BOXES],
  forward_to: ["Forward messages to", "text", BOXES],
  forward_dead_lettered_messages_to: ["Forward dead letters to", "text", BOXES],
  max_size_in_megabytes: ["Size at most, in MB", "number", ENTRIES],
  status: ["Status", "status", [...BOXES, "topic"]],
};
const STATUSES = ["Active", "Disabled", "SendDisabled", "ReceiveDisabled"];

function control(name, type, value, off) {
  if (type === "flag") return h("input", { type: "checkbox", name, checked: value === true, disabled: off });
  if (type === "status") return h("select", { name }, STATUSES.map((one) => h("option", { value: one, selected: one === (value ?? "Active") }, one)));
  return h("input", { name, value: value ?? "", inputmode: type === "number" ? "numeric" : null, autocomplete: "off", disabled: off });
}

function fields(kind, known) {
  return h("div", { class: "fields", "data-key": kind }, Object.entries(SETTINGS).filter(([, [, , kinds]]) => kinds.includes(kind)).map(([name, [label, type, , isFixed, hint]]) => {
    const off = Boolean(known && isFixed);
    const made = control(name, type, known?.[name], off);
    return type === "flag" ? h("label", { class: "check" }, made, off ? `${label} (cannot be changed)` : label) : field(label, made, hint);
  }));
}

// Only what differs from `known`, or is filled in.
function read(form, kind, known) {
  const data = new FormData(form), found = {};
  for (const [name, [, type, kinds, isFixed]] of Object.entries(SETTINGS)) {
    if (!kinds.includes(kind) || (known && isFixed)) continue;
    const text = data.get(name) ?? "";
    const value = type === "flag" ? text === "on" : type === "number" ? Number(text) : text;
    const before = known ? known[name] ?? (type === "flag" ? false : "") : type === "flag" ? false : type === "status" ? "Active" : "";
    if (text === "" && type !== "flag" && (type !== "text" || !known)) continue;
    if (value !== before && !(type === "number" && text === String(before))) found[name] = value;
  }
  return found;
}

function ask(title, label, content, act) {
  const problem = h("p", { class: "bad", role: "alert" });
  const box = dialog(title, h("form", { id: "entity-form", onsubmit: async (event) => {
    event.preventDefault();
    problem.textContent = "";
    try { await act(event.target); box.close(); } catch (error) { problem.textContent = error.message; }
  } }, content, problem, h("div", { class: "actions" }, h("button", { type: "submit", "data-action": "submit" }, label))), { class: "wide" });
  return box;
}

export function newEntity() {
  const names = Object.keys(state.look.namespaces);
  const chosen = h("div", {}, fields("queue", null));
  const kind = h("select", { name: "kind", onchange: (event) => chosen.replaceChildren(fields(event.target.value, null)) }, ["queue", "topic", "subscription"].map((one) => h("option", { value: one }, one)));
  ask("New queue, topic or subscription", "Create", [
    h("div", { class: "fields" },
      names.length > 1 ? field("Namespace", h("select", { name: "namespace" }, names.map((name) => h("option", { value: name }, name)))) : null,
      field("Kind", kind), field("Name", h("input", { name: "path", required: true, autocomplete: "off" }), "a subscription: TOPIC/Subscriptions/NAME")),
    chosen,
  ], async (form) => {
    const data = new FormData(form), namespace = data.get("namespace") ?? names[0];
    const made = await post(of(namespace, "create"), { kind: data.get("kind"), path: data.get("path"), settings: read(form, data.get("kind"), null) });
    go(entityLink(namespace, made.created));
  });
}

async function changeEntity(here) {
  const known = await attempt(() => get(of(here.namespace, "settings", { path: here.path })));
  if (!known) return;
  ask(`Settings of ${here.path}`, "Change", fields(here.entity.kind, known), async (form) => {
    await post(of(here.namespace, "change"), { path: here.path, settings: read(form, here.entity.kind, known) });
    toast("changed", "good");
  });
}

function deleteEntity(here) {
  const below = Object.entries(state.look.namespaces[here.namespace].entities).filter(([path]) => path.toLowerCase().startsWith(`${here.path.toLowerCase()}/subscriptions/`)).map(([, one]) => one);
  const sum = (name) => [here.entity, ...below].reduce((all, one) => all + (one[name] ?? 0), 0);
  const waiting = sum("active") + sum("deferred") + sum("scheduled");
  confirm(`Delete a ${here.entity.kind}`, `Delete the ${here.entity.kind} ${here.path} in ${here.namespace}${below.length ? `, its ${many(below.length, "subscription")}` : ""}, with ${many(waiting, "message")} and ${many(sum("dead"), "dead letter")}? Everything is gone for good, and programs that use it get errors.`, `Delete the ${here.entity.kind}`,
    async () => { await post(of(here.namespace, "delete"), { path: here.path }); go("#/"); });
}

export function entityButtons(here) {
  return h("div", { class: "actions wrap" },
    button("Settings…", () => changeEntity(here), { "data-action": "settings" }),
    button(`Delete this ${here.entity.kind}…`, () => deleteEntity(here), { class: "danger", "data-action": "delete-entity" }));
}
