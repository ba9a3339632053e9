// Which instances run, and which have ended lately.

import { request } from "./api.js";
import { age, make, number, table } from "./dom.js";
import { doing } from "./timeline.js";

export const ASKS_FOR_OPTIONS = "--pie-options"; // its only argument asks a program for a form's fields
export const pathOf = (id) => `v1/instances/${encodeURIComponent(id)}`;

export function stopButton(id) {
  const stop = make("button", { class: "bad", "aria-label": `Stop ${id}` }, "Stop");
  stop.addEventListener("click", async () => {
    stop.disabled = true;
    await request(pathOf(id), { method: "DELETE", repeats: true }).catch((error) => {
      stop.title = error.message;
      stop.disabled = false;
    });
  });
  return stop;
}

function row(each) {
  const runs = each.ended_ns === null, state = each.state === "running" ? doing(each) : each.state; // or it is asleep
  const link = make("a", { href: `#instance/${encodeURIComponent(each.id)}` }, each.id);
  return make("tr", { class: runs ? "" : "ended" },
    make("td", { class: "name" }, link, make("div", { class: "soft narrow" }, `${state} · ${age(each)}`)),
    make("td", { class: "wide" }, each.user),
    make("td", { class: `wide ${each.state === "failed" ? "ill" : ""}`, title: each.reason || null }, state),
    make("td", { class: "number" }, number(each.generated_tokens)),
    make("td", { class: "number wide" }, runs ? number(each.tokens_per_second, 1) : ""),
    make("td", { class: "number wide" }, number(runs ? each.pages : each.most_pages)),
    make("td", { class: "number wide" }, `${number(each.cpu_ms)} ms`),
    make("td", { class: "wide" }, age(each)),
    make("td", { class: "number" }, runs ? stopButton(each.id) : null));
}

// A table of instances, made again each second.
export class Instances {
  constructor() {
    const columns = { instance: "", user: "wide", state: "wide", tokens: "number", "per second": "number wide", pages: "number wide", CPU: "number wide", age: "wide", "": "number" };
    this.body = make("tbody");
    this.element = table(columns, this.body);
  }

  show(list) {
    const { body } = this;
    if (body.matches(":active")) return; // nothing changes under a pointer that is down
    // A row keeps the focus that it has.
    const name = (element) => element.getAttribute("aria-label") ?? element.textContent;
    const focused = body.contains(document.activeElement) ? name(document.activeElement) : null;
    body.replaceChildren(...list.map(row));
    if (focused) [...body.querySelectorAll("a, button")].find((each) => name(each) === focused)?.focus();
  }
}

export function instances(main) {
  const search = make("input", { type: "search", placeholder: "program, user or id", "aria-label": "Search" });
  const list = new Instances(), count = make("span", { class: "soft" });
  let last = null;
  search.addEventListener("input", () => last && update(last));
  main.append(make("h1", {}, "Instances"), make("div", { class: "row" }, search, count), make("div", { class: "card" }, list.element));

  function update(live) {
    last = live;
    const wanted = search.value.trim().toLowerCase();
    const found = live.instances.filter((each) => each.args[0] !== ASKS_FOR_OPTIONS && `${each.id} ${each.program} ${each.user}`.toLowerCase().includes(wanted));
    const newest = found.reverse();
    const [running, asleep] = ["running", "asleep"].map((state) => newest.filter((each) => each.state === state));
    const ended = newest.filter((each) => each.ended_ns !== null);
    const sleeping = asleep.length ? `${asleep.length} asleep; ` : "";
    count.textContent = newest.length ? `${running.length} ${running.length === 1 ? "runs" : "run"}; ${sleeping}${ended.length} ended lately` : "none runs, and none has ended lately";
    list.show([...running, ...asleep, ...ended]);
  }
  return { update };
}
