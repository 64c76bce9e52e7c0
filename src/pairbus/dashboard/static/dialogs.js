// Questions and notes on top of the page.

import { button, h } from "./dom.js";

export function dialog(title, content, attributes) {
  const box = h("dialog", { "aria-label": title, ...attributes },
    h("div", { class: "head" }, h("h2", {}, title), button("Close", () => box.close(), { class: "quiet", "data-action": "close" })),
    content);
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  return box;
}

// Ask before something is changed for good: runs `act`, and shows why it failed.
export function confirm(title, text, label, act, more) {
  const problem = h("p", { class: "bad", role: "alert" });
  const box = dialog(title, h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      const submit = event.target.querySelector("button.danger");
      submit.disabled = true;
      try {
        await act(event.target);
        box.close();
      } catch (error) {
        problem.textContent = error.message;
        submit.disabled = false;
      }
    },
  }, h("p", {}, text), more ?? null, problem,
  h("div", { class: "actions" }, h("button", { class: "danger", type: "submit" }, label), button("Keep", () => box.close(), { class: "quiet" }))), { class: "small" });
}

// A form in a dialog: closes when `act` has ended, and shows why it failed.
export function ask(title, label, content, act) {
  const problem = h("p", { class: "bad", role: "alert" });
  const box = dialog(title, h("form", { id: "entity-form", onsubmit: async (event) => {
    event.preventDefault();
    problem.textContent = "";
    try { await act(event.target); box.close(); } catch (error) { problem.textContent = error.message; }
  } }, content, problem, h("div", { class: "actions" }, h("button", { type: "submit", "data-action": "submit" }, label))), { class: "wide" });
  return box;
}

let timer;
export function toast(text, tone) {
  document.getElementById("toast")?.remove();
  document.body.append(h("p", { id: "toast", role: "status", class: tone ?? "" }, text));
  clearTimeout(timer);
  timer = setTimeout(() => document.getElementById("toast")?.remove(), 5000);
}

export async function attempt(work, done) {
  try {
    const result = await work();
    if (done) toast(typeof done === "function" ? done(result) : done, "good");
    return result;
  } catch (error) {
    toast(error.message, "bad");
    return undefined;
  }
}
