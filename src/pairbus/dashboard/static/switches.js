// Faults and the clock of a broker.

import { get, of, post, remove } from "./api.js";
import { attempt, confirm } from "./dialogs.js";
import { button, field, h, pill, section, table } from "./dom.js";
import { state } from "./store.js";
import { duration, many, moment, number } from "./words.js";

const OUTAGE = "refuse";
let kinds = null;
const form = { kind: OUTAGE };

// What is started here ends by itself, also when nobody looks at the page any more; only an emptied field has no end.
const lasting = (attributes) => field("It ends after", h("input", { name: "for_s", value: state.onBroker ? "30s" : "2m", placeholder: "30s, 2m, 1h", required: state.onBroker, autocomplete: "off", ...attributes }), state.onBroker ? "such as 30s, 2m or 1h" : "such as 30s, 2m or 1h; empty: when it is cleared");

export function outageButton(name, one) {
  const out = (one.faults ?? []).filter((fault) => fault.kind === OUTAGE);
  return out.length
    ? button("End outage", () => attempt(() => Promise.all(out.map((fault) => remove(of(name, `faults/${fault.id}`)))), `${name} answers again`), { class: "calm", "data-action": "end-outage", "data-namespace": name })
    : button("Start outage…", () => startOutage(name), { class: "danger", "data-action": "start-outage", "data-namespace": name });
}

function startOutage(name) {
  confirm("Start an outage", `${name} refuses new connections and cuts those that are open, of every client. Paired clients fail over; other clients get errors. No message is lost.${state.onBroker ? " This page is on the same port, and is away meanwhile." : ""}`, "Start outage",
    (form) => { const lasts = new FormData(form).get("for_s"); return switchOn(name, { kind: OUTAGE, ...(lasts ? { for_s: lasts } : {}) }); },
    lasting());
}

// On the port of the namespace itself an outage cuts the connection before the answer: that is what was wanted.
async function switchOn(name, fault) {
  try {
    return await post(of(name, "faults"), fault);
  } catch (error) {
    if (state.onBroker && error.status === 0) return fault;
    throw error;
  }
}

export async function loadKinds(redraw) {
  if (kinds) return;
  kinds = await get("fault-kinds");
  redraw();
}

export function faults(redraw) {
  const brokers = Object.entries(state.look.namespaces).filter(([, one]) => one.can_switch);
  if (!brokers.length) return [h("h1", {}, "Faults"), h("p", { class: "nothing" }, "Only namespaces of the broker have faults and a clock that can be moved.")];
  return [h("div", { class: "title" }, h("h1", {}, "Faults and clock"), h("p", { class: "period" }, state.onBroker ? `A fault that shuts the port shuts this page too, until it ends; ${clearing()} ends it before.` : "Faults are switched at once, and stay until they are cleared or end by themselves.")),
    ...brokers.flatMap(([name, one]) => [on(name, one)]), addForm(brokers, redraw), ...brokers.map(([name, one]) => clock(name, one))];
}

function on(name, one) {
  const rows = one.faults ?? [];
  return section(`faults-${name}`, `Faults of ${name}`, rows.length ? table(`Faults of ${name}`, [
    { title: "Fault", cell: (fault) => [fault.kind, h("small", {}, [fault.entity, fault.direction].filter(Boolean).join(", ") || "the whole namespace")] },
    { title: "Effect", class: "minor", cell: (fault) => h("span", { class: "reason" }, kinds?.find((kind) => kind.kind === fault.kind)?.meets ?? "") },
    { title: "Ends", class: "n", cell: (fault) => (fault.left_s === null || fault.left_s === undefined ? "when cleared" : `in ${duration(fault.left_s)}`) },
    { title: h("span", { class: "unseen" }, "Clear"), class: "n", cell: (fault) => button("Clear", () => attempt(() => remove(of(name, `faults/${fault.id}`)), "cleared"), { class: "calm" }) },
  ], rows) : h("p", { class: "nothing" }, "None."),
  rows.length > 1 ? button("Clear all", () => attempt(() => remove(of(name, "faults")), "all cleared"), { class: "calm" }) : null);
}

function addForm(brokers, redraw) {
  const kind = kinds?.find((one) => one.kind === form.kind);
  return section("add-fault", "Switch a fault on", h("form", { id: "fault-form", onsubmit: (event) => { event.preventDefault(); add(new FormData(event.target), kind); } },
    h("div", { class: "fields" },
      field("Namespace", h("select", { name: "namespace" }, brokers.map(([name]) => h("option", { value: name }, name)))),
      field("Fault", h("select", { name: "kind", "data-key": kinds ? "kinds" : "none", onchange: (event) => { form.kind = event.target.value; redraw(); } }, (kinds ?? []).map((one) => h("option", { value: one.kind, selected: one.kind === form.kind }, one.kind)))),
      kind?.takes_entity ? field("Entity", h("input", { name: "entity", placeholder: "all, or a pattern: orders*", autocomplete: "off" })) : null,
      kind && kind.directions.length > 1 ? field("Direction", h("select", { name: "direction" }, h("option", { value: "" }, "all"), kind.directions.map((one) => h("option", { value: one }, one)))) : null,
      lasting(),
      kind?.takes_chance ? field("Probability", h("input", { name: "probability", type: "number", min: 0, max: 1, step: "any", placeholder: "1" })) : null,
      kind?.takes_chance ? field("Count", h("input", { name: "count", type: "number", min: 1, placeholder: "no end" })) : null,
      ...(kind?.arguments ?? []).map((one) => field(one.name.replace(/_/g, " "), h("input", { name: one.name, placeholder: String(one.default), autocomplete: "off" }), one.meaning))),
    h("p", { class: "note" }, kind?.meets ?? ""),
    h("div", { class: "actions" }, h("button", { class: "danger", type: "submit" }, "Switch on"))));
}

function add(data, kind) {
  const body = {};
  for (const [name, text] of data.entries()) {
    if (name === "namespace" || text === "") continue;
    body[name] = ["probability", "count"].includes(name) || (kind.arguments.some((one) => one.name === name) && !Number.isNaN(Number(text))) ? Number(text) : text;
  }
  return attempt(() => switchOn(data.get("namespace"), body), `${body.kind} is on`);
}

export const clearing = () => `“pairbus fault clear --control DIR/control.sock --namespace ${state.look?.title ?? "NAME"}”`;

// Words for a clock that was moved; empty for one that is as on this machine.
export const aheadBy = (one) => (one.clock?.offset_seconds ? `clock ${duration(one.clock.offset_seconds)} ahead` : "");

function moveClock(name, one, seconds) {
  const entities = Object.values(one.entities ?? {});
  const sum = (field) => entities.reduce((all, entity) => all + (entity[field] ?? 0), 0);
  const until = moment(new Date(one.clock?.now ?? Date.now()).getTime() + seconds * 1000);
  confirm("Move the clock", `Move the clock of ${name} forward by ${duration(seconds)}, to ${until}? Everything that falls due until then happens at once: locks end, messages whose time to live is over expire (${many(sum("active"), "active message")} there), scheduled messages become active (${number(sum("scheduled"))} there), and entities that delete themselves when idle go. The clock cannot be moved back.`, `Move by ${duration(seconds)}`,
    () => post(of(name, "clock"), { advance_seconds: seconds }));
}

function clock(name, one) {
  const ahead = aheadBy(one);
  return section(`clock-${name}`, `Clock of ${name}`,
    h("p", {}, ahead ? pill("suspect", ahead) : null, ` ${moment(one.clock?.now)}${ahead ? ", not as on this machine" : ", as on this machine"}. Moving it makes locks, times to live and scheduled messages fall due. It only moves forward.`),
    h("div", { class: "actions wrap" }, [["1 minute", 60], ["1 hour", 3600], ["1 day", 86400], ["14 days", 1209600]].map(([label, seconds]) => button(`+ ${label}…`, () => moveClock(name, one, seconds), { "data-action": "clock", "data-seconds": seconds })),
      h("form", { class: "inline", onsubmit: (event) => { event.preventDefault(); const seconds = Number(new FormData(event.target).get("seconds")); if (seconds > 0) moveClock(name, one, seconds); } },
        h("input", { name: "seconds", type: "number", min: 1, "aria-label": "Seconds", placeholder: "seconds" }), h("button", { type: "submit" }, "Move…"))));
}
