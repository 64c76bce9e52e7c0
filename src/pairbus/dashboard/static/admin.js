// Entities: created, changed and deleted. Every setting that is left empty has the default of the service.

import { entityLink, go } from "./address.js";
import { get, of, post } from "./api.js";
import { ask, attempt, confirm, toast } from "./dialogs.js";
import { button, field, h } from "./dom.js";
import { state } from "./store.js";
import { many } from "./words.js";

// What the forms have, from the table of the server: name, label, type, kinds, is_fixed, hint; and the words of a status.
let table = null;

const load = async () => { table ??= await get("entity-settings"); return table; };

const settingsOf = (kind) => table.settings.filter((one) => one.kinds.includes(kind));

function control(name, type, value, off) {
  if (type === "flag") return h("input", { type: "checkbox", name, checked: value === true, disabled: off });
  if (type === "status") return h("select", { name }, table.statuses.map((one) => h("option", { value: one, selected: one === (value ?? "Active") }, one)));
  return h("input", { name, value: value ?? "", inputmode: type === "number" ? "numeric" : null, autocomplete: "off", disabled: off });
}

function fields(kind, known) {
  return h("div", { class: "fields", "data-key": kind }, settingsOf(kind).map(({ name, label, type, is_fixed: isFixed, hint }) => {
    const off = Boolean(known && isFixed);
    const made = control(name, type, known?.[name], off);
    return type === "flag" ? h("label", { class: "check" }, made, off ? `${label} (cannot be changed)` : label) : field(label, made, hint);
  }));
}

// Only what differs from `known`, or is filled in.
function read(form, kind, known) {
  const data = new FormData(form), found = {};
  for (const { name, type, is_fixed: isFixed } of settingsOf(kind)) {
    if (known && isFixed) continue;
    const text = data.get(name) ?? "";
    const value = type === "flag" ? text === "on" : type === "number" ? Number(text) : text;
    const before = known ? known[name] ?? (type === "flag" ? false : "") : type === "flag" ? false : type === "status" ? "Active" : "";
    if (text === "" && type !== "flag" && (type !== "text" || !known)) continue;
    if (value !== before && !(type === "number" && text === String(before))) found[name] = value;
  }
  return found;
}

export async function newEntity() {
  if (!await attempt(load)) return;
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
  const known = await attempt(async () => { await load(); return get(of(here.namespace, "settings", { path: here.path })); });
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
