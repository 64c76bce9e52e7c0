// One message: read in full, edited and sent again, or written anew.

import { entityLink } from "./address.js";
import { get, of, post, save } from "./api.js";
import { attempt, confirm, dialog, toast } from "./dialogs.js";
import { button, field, h, pairs, table } from "./dom.js";
import { bytes, duration, indented, moment } from "./words.js";

const SHOWN = [
  ["message_id", "Message id"], ["subject", "Subject"], ["session_id", "Session"], ["correlation_id", "Correlation id"], ["content_type", "Content type"], ["to", "To"], ["reply_to", "Reply to"],
  ["reply_to_session_id", "Reply to session"], ["partition_key", "Partition key"], ["state", "State"], ["delivery_count", "Delivered so often"], ["dead_letter_reason", "Dead-letter reason"], ["dead_letter_error_description", "Description"], ["dead_letter_source", "Dead-letter source"], ["undecodable", "Cannot be read"],
];
const TIMES = [["enqueued_time", "Enqueued"], ["scheduled_enqueue_time", "Scheduled for"], ["locked_until", "Locked until"]];
const EDITED = ["message_id", "subject", "session_id", "correlation_id", "content_type", "to", "reply_to", "partition_key"];

const BODIES = { text: "text", base64: "bytes that are no text, shown in base64", string: "an AMQP string", value: "an AMQP value, encoded and shown in base64", sequence: "AMQP lists, encoded and shown in base64" };

// ── the message that the address names ──

let shown = { key: "", box: null };
let before = "";

export const noteAddress = (hash) => { before = hash; };

const linkTo = (here, query) => entityLink(here.namespace, here.path, here.tab, query);

// Open the message of the address, and close the one that it does not name any more; null: it names none.
export function syncMessage(here) {
  const key = here?.query.message ? JSON.stringify([here.namespace, here.source, here.query.message]) : "";
  if (key === shown.key) return;
  const { box } = shown;
  shown = { key, box: null };
  box?.close();
  if (key) open(here, here.query.message, key);
}

// A message that was opened from its list goes back there; one that was opened by its address has no list behind it.
function leave(here) {
  const list = linkTo(here, { ...here.query, message: "" });
  if (before === list) history.back();
  else { history.replaceState(null, "", list); here.redraw(); }
}

async function open(here, number, key) {
  const query = { path: here.source, number };
  const message = await attempt(() => get(of(here.namespace, "message", query)));
  if (shown.key !== key) return;
  if (!message) { leave(here); return; }
  const box = dialog(`Message ${number}`, [
    h("p", { class: "note" }, `in ${here.source}; with everything it has ${bytes(message.size)}`),
    h("div", { class: "actions wrap" },
      button("Edit and send again", () => { box.close(); sendForm(here, message, here.reload); }, { "data-action": "edit" }),
      button("Download body", () => attempt(() => save(of(here.namespace, "body", query), `message-${number}.bin`)), { "data-action": "download" }),
      button("Delete", () => confirm("Delete a message", `Delete message ${number} of ${here.source} in ${here.namespace}? It is gone for good.`, "Delete 1 message", async () => { await post(of(here.namespace, "purge"), { path: here.source, numbers: [number], expected: 1 }); box.close(); }), { class: "danger" })),
    h("h3", {}, `Body: ${BODIES[message.body_type] ?? message.body_type}`),
    bodyOf(message),
    typedTable("Application properties", message.application_properties),
    h("h3", {}, "Properties"),
    pairs([...SHOWN.map(([name, title]) => [title, message[name]]), ...TIMES.map(([name, title]) => [title, message[name] ? `${moment(message[name])} (${message[name]})` : null]), ["Time to live", message.time_to_live_ms ? duration(message.time_to_live_ms / 1000) : null], ["Sequence number", message.sequence_number]]),
    typedTable("Annotations", message.annotations),
  ], { class: "wide" });
  shown.box = box;
  box.addEventListener("close", () => {
    if (shown.box !== box) return; // the address has changed already
    shown = { key: "", box: null };
    leave(here);
  });
}

// JSON is indented for reading; what was sent is one click away.
function bodyOf(message) {
  const pretty = message.is_cut ? null : indented(message.body);
  const content = h("pre", { class: "content", tabindex: 0 }, pretty ?? message.body ?? "(no body)");
  const swap = h("input", { type: "checkbox", "data-action": "as-sent", onchange: (event) => { content.textContent = event.target.checked ? message.body : pretty; } });
  return [content,
    message.is_cut ? h("p", { class: "note" }, "Only the beginning is shown; the download has all of it.") : null,
    pretty !== null && pretty !== message.body ? h("label", { class: "check" }, swap, "show the JSON as it was sent, not indented") : null];
}

function typedTable(title, values) {
  const rows = Object.entries(values ?? {});
  if (!rows.length) return null;
  return [h("h3", {}, title), table(title, [
    { title: "Name", cell: ([name]) => h("bdi", {}, name) }, { title: "Type", cell: ([, one]) => one.type }, { title: "Value", cell: ([, one]) => h("span", { class: "body" }, one.value ?? "null") },
  ], rows)];
}

// `original`: a message as `openMessage` reads it, to edit and send again; null: a new message.
export function sendForm(here, original, changed) {
  const problem = h("p", { class: "bad", role: "alert" });
  const isText = !original || ["text", "string"].includes(original.body_type);
  const canEditBody = isText && !original?.is_cut;
  const given = original ?? {};
  const byService = here.tab === "dead-letters" ? ["DeadLetterReason", "DeadLetterErrorDescription"] : []; // elsewhere they are the sender's
  const own = Object.fromEntries(Object.entries(given.application_properties ?? {}).filter(([name]) => !byService.includes(name)));
  const input = (name) => h("input", { name, value: given[name] ?? "", autocomplete: "off" });
  const form = h("form", {
    id: "send-form",
    onsubmit: async (event) => {
      event.preventDefault();
      problem.textContent = "";
      const data = new FormData(event.target);
      try {
        const message = read(data, filled, original, canEditBody);
        if (original) await post(of(here.namespace, "resend"), { path: here.source, number: original.sequence_number, changes: message, keep_original: data.get("keep") === "on", to: data.get("destination") || null });
        else await post(of(here.namespace, "send"), { path: here.path, messages: Array(Math.max(1, Number(data.get("count") || 1))).fill(message) });
        box.close();
        toast(original ? "the copy was accepted, and the original completed" : "accepted", "good");
        changed();
      } catch (error) {
        problem.textContent = error instanceof SyntaxError ? `The application properties are no JSON: ${error.message}` : error.message;
      }
    },
  },
  canEditBody ? field("Body", h("textarea", { name: "body", rows: 8, spellcheck: "false", value: given.body ?? "" })) : h("p", { class: "note" }, original.is_cut ? "The body is too large to be edited here; it is sent as it is." : `The body is ${original.body_type}; it is sent as it is.`),
  field("Application properties, as JSON", h("textarea", { name: "properties", rows: 4, spellcheck: "false", value: Object.keys(own).length ? JSON.stringify(own, null, 1) : "", placeholder: '{"region": "eu", "amount": {"type": "int", "value": "12"}}' }), "Plain values, or type and value to choose the AMQP type."),
  h("div", { class: "fields" }, EDITED.map((name) => field(name.replace(/_/g, " "), input(name))),
    field("scheduled for", h("input", { name: "scheduled_enqueue_time", value: given.scheduled_enqueue_time ?? "", placeholder: "2030-01-31T12:00:00Z", autocomplete: "off" })),
    original ? field("send to", h("input", { name: "destination", placeholder: "where it came from", autocomplete: "off" })) : field("count", h("input", { name: "count", type: "number", min: 1, max: 1000, placeholder: "1" }))),
  original ? h("label", { class: "check" }, h("input", { type: "checkbox", name: "keep" }), "keep the original too") : null,
  problem, h("div", { class: "actions" }, h("button", { type: "submit", "data-action": "submit" }, original ? "Send again" : "Send")));
  const filled = new FormData(form);
  const box = dialog(original ? `Edit message ${original.sequence_number} and send it again` : `Send to ${here.path}`, form, { class: "wide" });
}

// Only fields that differ from what the form had at first (`filled`). A form changes line ends: compared with the original
// message, a field that nobody touched could differ.
function read(data, filled, original, canEditBody) {
  const message = {};
  const isEdited = (name) => data.get(name) !== filled.get(name);
  if (canEditBody && (!original || isEdited("body"))) {
    const text = data.get("body");
    const isCrLf = /\r\n/.test(original?.body ?? "") && !/[^\r]\n|^\n|\r(?!\n)/.test(original.body);
    message.body = isCrLf ? text.replace(/\r?\n/g, "\r\n") : text;
    message.body_type = original?.body_type ?? "text";
  }
  for (const name of [...EDITED, "scheduled_enqueue_time"]) {
    if (isEdited(name)) message[name] = data.get(name) === "" ? null : data.get(name);
  }
  const properties = data.get("properties").trim();
  if (isEdited("properties")) message.application_properties = properties ? JSON.parse(properties) : {};
  return message;
}
