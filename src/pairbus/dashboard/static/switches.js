// Faults and the clock of a broker.

import { get, of, post, remove } from "./api.js";
import { attempt } from "./dialogs.js";
import { button, field, h, section, table } from "./dom.js";
import { state } from "./store.js";
import { duration, moment } from "./words.js";

const OUTAGE = "refuse";
let kinds = null;
const form = { kind: OUTAGE };

export function outageButton(name, one) {
  const isOut = (one.faults ?? []).some((fault) => fault.kind === OUTAGE);
  const isGone = state.onBroker;
  return isOut
    ? button("End outage", () => attempt(() => Promise.all(one.faults.filter((f) => f.kind === OUTAGE).map((f) => remove(of(name, `faults/${f.id}`)))), `${name} answers again`), { class: "calm", "data-action": "end-outage", "data-namespace": name })
    : button("Start outage", () => attempt(() => switchOn(name, { kind: OUTAGE, ...(isGone ? { for_s: 30 } : {}) }), isGone ? `${name} refuses connections for 30 s, this page included` : `${name} refuses connections`), { class: "danger", "data-action": "start-outage", "data-namespace": name, title: isGone ? "Refuses connections for 30 seconds. This page is on the same port and is away meanwhile." : "Refuses connections until the outage is ended." });
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
  return [h("div", { class: "title" }, h("h1", {}, "Faults and clock"), h("p", { class: "period" }, state.onBroker ? "A fault that shuts the port shuts this page too, until it ends. Give it an end, or clear it with pairbus fault clear --control DIR/control.sock." : "Faults are switched at once, and stay until they are cleared or end by themselves.")),
    ...brokers.flatMap(([name, one]) => [on(name, one)]), addForm(brokers, redraw), ...brokers.map(([name, one]) => clock(name, one))];
}

function on(name, one) {
  const rows = one.faults ?? [];
  return section(`faults-${name}`, `Faults of ${name}`, rows.length ? table(`Faults of ${name}`, [
    { title: "Fault", cell: (fault) => [fault.kind, h("small", {}, [fault.entity, fault.direction].filter(Boolean).join(", ") || "the whole namespace")] },
    { title: "Meets", class: "minor", cell: (fault) => h("span", { class: "reason" }, kinds?.find((kind) => kind.kind === fault.kind)?.meets ?? "") },
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
      field("Ends after", h("input", { name: "for_s", placeholder: "30s, 5m; empty: when cleared", value: state.onBroker ? "30s" : "", autocomplete: "off" })),
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

function clock(name, one) {
  const move = (seconds) => attempt(() => post(of(name, "clock"), { advance_seconds: seconds }), (said) => `the clock of ${name} is at ${moment(said.now)}`);
  const offset = one.clock?.offset_seconds ?? 0;
  return section(`clock-${name}`, `Clock of ${name}`,
    h("p", {}, `${moment(one.clock?.now)}${offset ? `, ${duration(offset)} ahead of this machine` : ", as on this machine"}. Moving it makes locks, times to live and scheduled messages fall due. It only moves forward.`),
    h("div", { class: "actions wrap" }, [["1 minute", 60], ["1 hour", 3600], ["1 day", 86400], ["14 days", 1209600]].map(([label, seconds]) => button(`+ ${label}`, () => move(seconds), { "data-action": "clock", "data-seconds": seconds })),
      h("form", { class: "inline", onsubmit: (event) => { event.preventDefault(); const seconds = Number(new FormData(event.target).get("seconds")); if (seconds > 0) move(seconds); } },
        h("input", { name: "seconds", type: "number", min: 1, "aria-label": "Seconds", placeholder: "seconds" }), h("button", { type: "submit" }, "Move"))));
}
