// Curves over minutes, with axes; a pointer reads their values.

import { make, seconds, svg } from "./dom.js";

const KEPT = 600; // samples, one a second
const LEAST = 60; // seconds shown
const GAP = 5; // seconds without a sample: the curve is cut
const HEIGHT = 150, LEFT = 40, TOP = 8, BOTTOM = 20;
export const history = []; // what the server has told each second, over changes of the view

const KEY = "pie-history";
history.push(...JSON.parse(sessionStorage.getItem(KEY) ?? "[]").filter(({ at }) => at > Date.now() / 1e3 - KEPT));
addEventListener("pagehide", () => sessionStorage.setItem(KEY, JSON.stringify(history)));

export function remember(live) {
  if (history.length && live.uptime < history.at(-1).uptime) history.length = 0; // it has restarted
  history.push({ ...live, instances: null, at: Date.now() / 1e3 });
  if (history.length > KEPT) history.shift();
}

// The least of 1, 2, 5, 10, 20, … that is not below a value.
function round(value) {
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((each) => each * ten).find((each) => each >= value * 0.999);
}

export class Chart {
  // Of curves `{ name, kind, of(sample), show(value) }`, whose axis goes at least to `least`.
  constructor(title, curves, least = 1) {
    this.curves = curves;
    this.least = least;
    this.read = null; // where the pointer is
    this.values = curves.map(() => make("b"));
    this.when = make("span", { class: "soft" });
    this.drawing = svg("svg", { class: "chart", role: "img", "aria-label": `${title} over time`, height: HEIGHT });
    this.drawing.addEventListener("pointermove", (event) => this.draw((this.read = event.offsetX)));
    this.drawing.addEventListener("pointerleave", () => this.draw((this.read = null)));
    const legend = curves.map(({ name, kind }, at) => make("span", {}, make("i", { class: kind }), `${name} `, this.values[at]));
    this.element = make("figure", {}, make("figcaption", {}, make("span", {}, title), this.when), make("div", { class: "legend" }, legend), this.drawing);
  }

  draw() {
    const width = this.drawing.clientWidth, now = history.at(-1)?.at;
    if (!width || !now) return;
    const span = Math.max(LEAST, now - history[0].at), samples = history;
    const x = (at) => LEFT + (width - LEFT - 8) * (1 - (now - at) / span);
    const most = round(Math.max(this.least, ...this.curves.flatMap(({ of }) => samples.map(of))));
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
    const parts = [];
    for (const value of [0, most / 2, most]) {
      parts.push(svg("line", { x1: LEFT, x2: width - 8, y1: y(value), y2: y(value) }),
        svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, String(Number(value.toPrecision(3)))));
    }
    const step = span <= 60 ? 15 : span <= 150 ? 30 : span <= 300 ? 60 : 120;
    for (let back = 0; back <= span; back += step) {
      const anchor = back === 0 ? "end" : x(now - back) < LEFT + 16 ? "start" : "middle";
      parts.push(svg("text", { x: x(now - back), y: HEIGHT - 5, "text-anchor": anchor }, back ? `−${back < 120 ? `${back} s` : seconds(back)}` : "now"));
    }
    for (const { of, kind } of this.curves) {
      const points = samples.map((each, at) => `${at && each.at - samples[at - 1].at < GAP ? "L" : "M"}${x(each.at).toFixed(1)},${y(of(each)).toFixed(1)}`);
      parts.push(svg("path", { class: `line ${kind}`, d: points.join("") }));
    }
    const closer = (best, each) => (Math.abs(x(each.at) - this.read) < Math.abs(x(best.at) - this.read) ? each : best);
    const shown = this.read === null ? samples.at(-1) : samples.reduce(closer);
    if (this.read !== null) parts.push(svg("line", { class: "pointer", x1: x(shown.at), x2: x(shown.at), y1: TOP, y2: HEIGHT - BOTTOM }));
    this.when.textContent = shown === samples.at(-1) ? "" : `${seconds(now - shown.at)} ago`;
    this.curves.forEach(({ of, show }, at) => (this.values[at].textContent = show(of(shown))));
    this.drawing.replaceChildren(...parts);
  }
}
