// An instance over time: its waits and its batches.

import { make, seconds, svg } from "./dom.js";

const KEPT = 20000; // spans
const WIDTH = 1000;
const LANES = { wait: [4, 26], batch: [40, 22] }; // top and height of each
const WINDOWS = [0.2, 1, 10, 60]; // seconds
const MODEL = ["take-sample", "take-dist", "take-run-text", "take-attention"];
const NAMES = { ...Object.fromEntries(MODEL.map((kind) => [kind, "the model"])), take: "its commands", reader: "its reader", "take-grammar": "a grammar", "take-text": "a message", "take-blob": "bytes" };

const nameOf = (kind) => (kind.startsWith("client of ") ? "a message" : NAMES[kind] ?? kind);

// What an instance that runs does, in a few words.
export function doing({ waits, blocked, tokens_per_second: rate }) {
  if (blocked) return "paused: its pages are moved";
  if (!waits.length) return "runs";
  const others = waits.filter((kind) => kind !== "take" && !MODEL.includes(kind));
  return others.length ? `waits for ${others.map(nameOf).join(", ")}` : rate > 0 ? "generates" : "computes";
}

function kindOf(span) {
  if (span.track === "batch") return span.name === "forward" ? "shared" : "exported";
  return [...MODEL, "take"].includes(span.name) ? "used" : "cached";
}

export class Timeline {
  constructor() {
    this.spans = [];
    this.told = null;
    this.drawing = make("div");
    this.window = make("select", { "aria-label": "time shown", onchange: () => this.draw() },
      WINDOWS.map((value) => make("option", { value, selected: value === 10 }, seconds(value))));
    const legend = [["waits for the model", "used"], ["waits for something else", "cached"], ["a forward batch", "shared"], ["another batch", "exported"]];
    this.element = make("section", { class: "card" },
      make("div", { class: "row" }, make("h2", {}, "Waits and batches of the last"), this.window),
      this.drawing,
      make("div", { class: "legend" }, legend.map(([name, kind]) => make("span", {}, make("i", { class: kind }), name))));
  }

  take(told) {
    this.told = told;
    this.spans.push(...told.spans);
    if (this.spans.length > KEPT) this.spans.splice(0, this.spans.length - KEPT);
    this.draw();
  }

  draw() {
    if (!this.told) return;
    const { ended_ns, begun_ns } = this.told;
    const end = ended_ns ?? this.told.open.end_ns;
    const begin = Math.max(begun_ns, end - this.window.value * 1e9);
    const scale = WIDTH / Math.max(1, end - begin);
    const drawn = svg("svg", { class: "map lane", viewBox: `0 0 ${WIDTH} 66`, preserveAspectRatio: "none", role: "img", "aria-label": "its waits above, the batches that its commands were in below" });
    const open = {}; // by lane: the rectangle that grows while the next span would not be seen apart
    for (const span of this.told.open ? [...this.spans, this.told.open] : this.spans) {
      if (span.end_ns < begin) continue;
      const from = Math.max(0, (span.begin_ns - begin) * scale), to = (span.end_ns - begin) * scale;
      const kind = kindOf(span), before = open[span.track];
      if (before && before.kind === kind && from - before.to < 0.5 && to - from < 1) {
        before.to = Math.max(before.to, to);
        before.element.setAttribute("width", before.to - before.from);
        continue;
      }
      const [y, height] = LANES[span.track];
      const size = span.track === "batch" ? `, ${span.size} in the batch, ${seconds(span.device_ns / 1e9)} of it at the worker` : "";
      const element = svg("rect", { x: from, y, width: Math.max(0.5, to - from), height, class: kind },
        svg("title", {}, `${nameOf(span.name)}: ${seconds((span.end_ns - span.begin_ns) / 1e9)}${size}`));
      open[span.track] = { element, kind, from, to };
      drawn.append(element);
    }
    this.drawing.replaceChildren(drawn);
  }
}
