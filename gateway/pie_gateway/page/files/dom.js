// Elements, and numbers as a person reads them.

const SVG = "http://www.w3.org/2000/svg";

export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null));
  return element;
}

// A button that copies a text; without HTTPS a browser has the older way alone.
export function copyButton(textOf, name = "Copy") {
  const button = make("button", { type: "button", class: "plain small" }, name);
  button.addEventListener("click", async () => {
    const area = make("textarea", { class: "hidden" });
    try {
      if (navigator.clipboard) await navigator.clipboard.writeText(textOf());
      else {
        area.value = textOf();
        document.body.append(area);
        area.select();
        document.execCommand("copy");
      }
      button.textContent = "Copied";
    } catch (error) {
      button.textContent = error.message;
    }
    area.remove();
    setTimeout(() => (button.textContent = name), 1500);
  });
  return button;
}

// A button that saves a value as a file of JSON.
export function saveButton(name, file, valueOf) {
  return make("button", { type: "button", class: "plain small", onclick: async () => {
    const address = URL.createObjectURL(new Blob([JSON.stringify(await valueOf(), null, 2)], { type: "application/json" }));
    make("a", { href: address, download: file }).click();
    URL.revokeObjectURL(address);
  } }, name);
}

// A table whose columns are titles and their classes.
export function table(columns, body, kind = null) {
  const head = Object.entries(columns).map(([name, kinds]) => make("th", { class: kinds }, name));
  return make("div", { class: "scroll" }, make("table", { class: kind }, make("thead", {}, make("tr", {}, head)), body));
}

export function number(value, digits = 0) {
  if (value >= 1e6) return (value / 1e6).toFixed(1) + " M";
  if (value >= 1e4) return (value / 1e3).toFixed(1) + " k";
  return value.toFixed(value < 100 ? digits : 0);
}

export const count = (value, thing) => `${number(value)} ${thing}${value === 1 ? "" : "s"}`;

export function seconds(value) {
  if (value < 0.1) return (value * 1e3).toFixed(1) + " ms";
  if (value < 1) return (value * 1e3).toFixed(0) + " ms";
  if (value < 120) return value.toFixed(value < 10 ? 1 : 0) + " s";
  if (value < 7200) return (value / 60).toFixed(0) + " min";
  return (value / 3600).toFixed(1) + " h";
}

export const ago = (ns) => `${seconds(Math.max(1, Date.now() / 1e3 - ns / 1e9))} ago`;

// How long an instance has run, and when it ended.
export function age({ created_ns, ended_ns }) {
  if (ended_ns === null) return seconds(Math.max(0, Date.now() / 1e3 - created_ns / 1e9));
  return `ran ${seconds((ended_ns - created_ns) / 1e9)}, ended ${ago(ended_ns)}`;
}

export function share(part, whole) {
  return whole ? (100 * part) / whole : 0;
}
