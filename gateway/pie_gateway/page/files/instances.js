// Which programs run, for which users.

import { make, number, seconds } from "./dom.js";
import { nameOf } from "./timeline.js";

function line(each) {
  const age = ((each.ended_ns ?? Date.now() * 1e6) - each.created_ns) / 1e9;
  const name = make("a", { href: `#instance/${encodeURIComponent(each.id)}` }, each.id);
  return make("tr", { class: each.state === "running" ? "" : "ended" },
    make("td", {}, name),
    make("td", { class: "wide" }, each.program),
    make("td", { class: "wide" }, each.user),
    make("td", { title: each.reason }, each.state),
    make("td", {}, each.waits.map(nameOf).join(", ")),
    make("td", { class: "number" }, number(each.tokens)),
    make("td", { class: "number wide" }, number(each.pages)),
    make("td", { class: "number wide" }, `${each.cpu_ms.toFixed(1)} ms`),
    make("td", { class: "number" }, seconds(Math.max(0, age))));
}

export function instances(main) {
  const search = make("input", { type: "search", placeholder: "program, user or id", "aria-label": "Search" });
  const body = make("tbody");
  const head = Object.entries({ instance: "", program: "wide", user: "wide", state: "", "waits for": "",
    tokens: "number", pages: "number wide", CPU: "number wide", age: "number" });
  const count = make("p", { class: "soft" });
  let last = null;
  search.addEventListener("input", () => last && update(last));
  main.append(make("h1", {}, "Instances"), search, count,
    make("div", { class: "card scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, head.map(([name, kind]) => make("th", { class: kind }, name)))), body)));

  function update(live) {
    last = live;
    const wanted = search.value.trim().toLowerCase();
    const found = live.instances.filter((each) => `${each.id} ${each.program} ${each.user}`.toLowerCase().includes(wanted));
    const newest = found.reverse();
    const alive = newest.filter((each) => each.state === "running");
    const ended = newest.filter((each) => each.state !== "running");
    count.textContent = `${alive.length} run; ${ended.length} that ended lately`;
    // A row keeps the focus that it has.
    const focused = document.activeElement?.closest?.("tbody") === body ? document.activeElement.textContent : null;
    body.replaceChildren(...[...alive, ...ended].map(line));
    if (focused) [...body.querySelectorAll("a")].find((link) => link.textContent === focused)?.focus();
  }
  return { update };
}
