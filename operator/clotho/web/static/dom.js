// Elements from plain values. Text only ever becomes a text node: nothing that was written elsewhere is interpreted.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter(isSomething).map(asNode));
  return element;
}

const isSomething = (child) => child !== undefined && child !== null && child !== false && child !== "";
const asNode = (child) => (child instanceof Node ? child : document.createTextNode(String(child)));

// Text that changes with time: written again every few seconds while it is on the page.
export function ticking(write, tag = "span", attributes = {}) {
  const element = h(tag, { ...attributes, "data-ticking": true }, write());
  element.write = write;
  return element;
}

setInterval(() => {
  for (const element of document.querySelectorAll("[data-ticking]")) element.textContent = element.write();
}, 5000);

// A width from a number: styles in attributes are forbidden by the page's policy, properties are not.
export function wide(element, share) {
  element.style.setProperty("--share", `${Math.round(Math.min(Math.max(share, 0), 1) * 1000) / 10}%`);
  return element;
}

export function copyButton(text, label = "Copy") {
  const button = h("button", { class: "quiet copy", type: "button" }, label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it and copy";
    }
    setTimeout(() => { button.textContent = label; }, 1500);
  });
  return button;
}
