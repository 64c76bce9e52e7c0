// Elements without markup: every text becomes a text node, so that no name or body is ever read as HTML.

const HANDLERS = ["onclick", "onsubmit", "onchange", "oninput", "onkeydown"];
const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes, ...children) {
  return made(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return made(document.createElementNS(SVG, tag), attributes, children);
}

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (HANDLERS.includes(name)) element[name] = value;
    else if (name === "value" && element.nodeName !== "PROGRESS") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

// Make `before` look like `after` with as few changes as possible: focus, selection and scroll positions stay.
export function morph(before, after) {
  if (before.nodeType !== after.nodeType || before.nodeName !== after.nodeName || key(before) !== key(after)) {
    before.replaceWith(after);
    return;
  }
  if (before.nodeType === Node.TEXT_NODE) {
    if (before.data !== after.data) before.data = after.data;
    return;
  }
  for (const { name } of [...before.attributes]) {
    if (!after.hasAttribute(name) && !(name === "open" && before.nodeName === "DETAILS")) before.removeAttribute(name);
  }
  for (const { name, value } of after.attributes) if (before.getAttribute(name) !== value) before.setAttribute(name, value);
  for (const name of HANDLERS) before[name] = after[name];
  if (before.type === "checkbox") before.checked = after.hasAttribute("checked");
  morphChildren(before, after);
}

function key(node) {
  return node.getAttribute?.("data-key") ?? null;
}

export function morphChildren(before, after) {
  const [had, has] = [[...before.childNodes], [...after.childNodes]];
  has.forEach((child, index) => (had[index] ? morph(had[index], child) : before.append(child)));
  had.slice(has.length).forEach((child) => child.remove());
}

// The path of an entity, which a narrow column breaks behind a slash.
export function pathText(path) {
  return h("bdi", {}, path.split("/").flatMap((part, index) => (index ? ["/", h("wbr"), part] : [part])));
}

export function show(container, ...children) {
  const next = container.cloneNode(false);
  next.append(...children.flat(Infinity).filter((child) => child instanceof Node));
  morphChildren(container, next);
}

export function pairs(rows) {
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", { class: "pairs" }, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

// columns: [{title, class, cell: row => content}]; `minor` columns are hidden on a phone.
// `kind`: "cards" shows each row below the other cells of a column on a phone, where the columns have no room.
export function table(caption, columns, rows, rowAttributes, kind) {
  return h("div", { class: `scroll ${kind ?? ""}`.trim(), tabindex: 0, role: "region", "aria-label": caption },
    h("table", {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, columns.map((c) => h("th", { class: c.class, scope: "col", "aria-sort": c.sorted }, c.title)))),
      h("tbody", {}, rows.map((row) => h("tr", rowAttributes ? rowAttributes(row) : {},
        columns.map((c, index) => h(index === 0 && !c.plain ? "th" : "td", { class: c.class, scope: index === 0 && !c.plain ? "row" : null }, c.cell(row))))))));
}

export function tiles(all) {
  return h("dl", { class: "tiles" }, all.filter(Boolean).map((tile) => h("div", { "data-key": tile.title },
    h("dt", {}, tile.title), h("dd", { class: `value ${tile.tone ?? ""}` }, tile.value), h("dd", {}, tile.note ?? ""))));
}

export function section(id, title, ...content) {
  return h("section", { "aria-labelledby": id, "data-key": id }, h("h2", { id }, title), content);
}

export function button(label, onclick, attributes) {
  return h("button", { type: "button", onclick, ...attributes }, label);
}

export function field(label, control, hint) {
  return h("label", { class: "field" }, h("span", {}, label), control, hint ? h("small", {}, hint) : null);
}

export function pill(kind, text) {
  return h("span", { class: `pill ${kind}` }, text);
}
