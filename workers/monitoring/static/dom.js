// Small helpers: elements are made once and then updated in place. Data is only ever set as text.

const svgSpace = "http://www.w3.org/2000/svg";

/** A new element. `props`: `text`, or attributes; children may be elements or strings. */
export function make(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function makeSvg(tag, props = {}, ...children) {
  return fill(document.createElementNS(svgSpace, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name === "text") element.textContent = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const fields = new Map();

/** The element of the page with this `data-field`. */
export function field(name) {
  if (!fields.has(name)) fields.set(name, document.querySelector(`[data-field="${name}"]`));
  return fields.get(name);
}

export function setText(target, text) {
  const element = typeof target === "string" ? field(target) : target;
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

export function setShown(target, shown) {
  const element = typeof target === "string" ? field(target) : target;
  if (element.hidden === shown) element.hidden = !shown;
}

export function setWidth(element, share) {
  const width = `${(100 * Math.min(1, Math.max(0, share || 0))).toFixed(1)}%`;
  if (element.style.width !== width) element.style.width = width;
}

/** Children of `parent`, one for each item, that stay the same elements as long as their item is there. */
export class KeyedList {
  /** `create(item)` returns `{element, update(item)}`. */
  constructor(parent, create) {
    this.parent = parent;
    this.create = create;
    this.entries = new Map();
  }

  update(items, keyOf) {
    const wanted = new Map(items.map((item) => [keyOf(item), item]));
    for (const [key, entry] of this.entries) {
      if (wanted.has(key)) continue;
      entry.element.remove();
      this.entries.delete(key);
    }
    let next = this.parent.firstElementChild;
    for (const [key, item] of wanted) {
      let entry = this.entries.get(key);
      if (!entry) this.entries.set(key, (entry = this.create(item)));
      entry.update(item);
      if (entry.element === next) next = next.nextElementSibling;
      else this.parent.insertBefore(entry.element, next);
    }
  }
}
