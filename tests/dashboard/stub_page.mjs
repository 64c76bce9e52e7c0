// Just enough of a browser for the scripts of the page: elements without layout, and a server that notes requests.

export class Element {
  constructor(name) {
    Object.assign(this, { nodeName: name.toUpperCase(), nodeType: 1, childNodes: [], given: {}, written: "" });
  }
  append(...children) { this.childNodes.push(...children); }
  setAttribute(name, value) { this.given[name] = value; }
  getAttribute(name) { return this.given[name] ?? null; }
  addEventListener() {}
  showModal() {}
  click() {}
  close() {}
  remove() {}
  querySelector() { return { disabled: false }; }
  // A textarea has line feeds only, as HTML says; an input has no line breaks at all.
  get value() { return this.written; }
  set value(text) { this.written = this.nodeName === "TEXTAREA" ? text.replace(/\r\n?/g, "\n") : text.replace(/[\r\n]/g, ""); }
  get text() { return this.childNodes.map((child) => child.text ?? child).join(""); }
  * all() {
    yield this;
    for (const child of this.childNodes) if (child instanceof Element) yield* child.all();
  }
}

export const body = new Element("body");
export const posted = [];
export const answers = {}; // route → JSON

globalThis.Node = Element;
globalThis.document = { createElement: (name) => new Element(name), createElementNS: (_, name) => new Element(name), body, getElementById: () => null };
globalThis.history = { back() {}, replaceState() {} };
globalThis.URL.createObjectURL = () => "blob:";
globalThis.location = { hash: "", pathname: "/", search: "" };
globalThis.sessionStorage = { getItem: () => null, setItem() {} };
globalThis.FormData = class {
  constructor(form) {
    // A browser sends the lines of a form with CR LF, but FormData.get answers what the control has.
    this.controls = Object.fromEntries([...form.all()].filter((one) => one.given.name).map((one) => [one.given.name, one.value]));
  }
  get(name) { return this.controls[name] ?? null; }
};
globalThis.fetch = async (url, options) => {
  const route = url.replace(/\?.*/, "").split("/").pop();
  if (options?.method === "POST") posted.push([route, JSON.parse(options.body)]);
  return { ok: true, json: async () => answers[route] ?? {}, blob: async () => new Blob(["{}\n"]) };
};

export const settled = () => new Promise((resolve) => setTimeout(resolve, 20));
export const find = (nodes, is) => [nodes].flat(Infinity).filter((one) => one instanceof Element).flatMap((one) => [...one.all()]).find(is);
export const dialogBox = () => body.childNodes.at(-1);
export async function submit(box) {
  const form = find(box, (one) => one.onsubmit);
  await form.onsubmit({ preventDefault() {}, target: form });
}
