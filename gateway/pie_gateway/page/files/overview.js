// Is it well, how busy, what is in memory.

import { make, number, seconds, share, svg } from "./dom.js";

const KEPT = 90; // seconds of history
const history = new Map(); // by name, over changes of the view

function remember(name, value) {
  const values = history.get(name) ?? [];
  values.push(value);
  if (values.length > KEPT) values.shift();
  history.set(name, values);
  return values;
}

function spark(values) {
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, at) => `${at},${30 - (28 * value) / most}`);
  const attributes = { class: "spark", viewBox: `0 0 ${KEPT} 32`, preserveAspectRatio: "none", "aria-hidden": "true" };
  return svg("svg", attributes, svg("path", { d: `M${points.join("L")}` }));
}

function tile(title, value, note, values = null) {
  return make("div", { class: "card" },
    make("div", { class: "soft" }, title),
    make("div", { class: "big" }, value),
    make("div", { class: "soft" }, note),
    values && spark(values));
}

function percentiles(found) {
  if (!found) return ["–", "of no stream over HTTP yet"];
  return [seconds(found.p50), `p90 ${seconds(found.p90)} · p99 ${seconds(found.p99)}`];
}

function bar(parts, whole) {
  const drawn = make("div", { class: "bar", role: "img", "aria-label": parts.map(([name, , count]) => `${name}: ${count}`).join(", ") });
  for (const [, kind, count] of parts) {
    const part = make("span", { class: kind });
    part.style.width = `${share(count, whole)}%`;
    drawn.append(part);
  }
  const legend = parts.map(([name, kind, count]) => make("span", {}, make("i", { class: kind }), `${name} ${number(count)}`));
  return [drawn, make("div", { class: "legend" }, legend)];
}

function model(told) {
  const cached = Math.min(told.pages_cached, told.pages_free);
  const used = told.pages - told.pages_free;
  const device = [["in use", "used", used], ["cached prefixes", "cached", cached], ["exported", "exported", told.pages_exported], ["free", "free", told.pages_free - cached]];
  const swapped = told.host_pages - told.host_pages_free;
  return make("section", { class: "card" },
    make("h2", {}, told.name),
    make("div", { class: "tiles" },
      tile("tokens per second", number(told.tokens_per_second, 1), `${number(told.batches_per_second, 1)} batches, ${number(told.commands_per_batch, 1)} sequences each`, remember(`${told.name} tokens`, told.tokens_per_second)),
      tile("worker", `${number(100 * Math.min(1, told.busy))} %`, `busy; ${told.queued} commands queued, ${told.in_flight} plans sent`, remember(`${told.name} busy`, told.busy)),
      tile("prompts found in cache", `${number(100 * told.found)} %`, "of tokens, since the start")),
    make("p", { class: "soft" }, `KV pages: ${number(told.pages)}`),
    ...bar(device, told.pages),
    make("p", { class: "soft" }, `Host memory: ${number(told.host_pages)} pages`),
    ...bar([["swapped", "used", swapped], ["free", "free", told.host_pages_free]], told.host_pages));
}

function node(told) {
  const kind = told.state === "ready" ? "well" : "ill";
  return make("tr", {},
    make("td", {}, told.node, make("span", { class: "soft" }, `.${told.incarnation}`)),
    make("td", { class: kind, title: told.reason || null }, told.state),
    make("td", { class: "wide" }, told.version),
    make("td", { class: "number" }, number(told.instances)),
    make("td", { class: "number" }, `${number(100 * told.pool)} %`),
    make("td", { class: "number", title: "of prompts that wait" }, seconds(told.waiting_seconds)),
    make("td", { class: "number" }, seconds(told.silent_seconds)));
}

function nodes(told) {
  const ready = told.filter((each) => each.state === "ready").length;
  const head = Object.entries({ node: "", state: "", version: "wide", instances: "number", pool: "number",
    load: "number", "last seen": "number" });
  return make("section", { class: "card" },
    make("h2", {}, "Nodes"),
    make("p", { class: "soft" }, `${ready} take launches; ${told.length - ready} do not`),
    make("div", { class: "scroll" }, make("table", { class: "nodes" },
      make("thead", {}, make("tr", {}, head.map(([name, kind]) => make("th", { class: kind }, name)))),
      make("tbody", {}, told.map(node)))));
}

export function overview(main) {
  main.replaceChildren(make("p", { class: "soft" }, "waiting for the server"));
  return {
    update(live) {
      const first = percentiles(live.first);
      const between = percentiles(live.between);
      main.replaceChildren(
        make("h1", {}, "Overview"),
        make("div", { class: "tiles" },
          tile("instances alive", number(live.alive), `of ${number(live.max_instances)}; ${number(live.launched)} launched`, remember("alive", live.alive)),
          tile("launches per second", number(live.launches_per_second, 1), "of all programs", remember("launches", live.launches_per_second)),
          tile("time to first token", ...first),
          tile("time between tokens", ...between)),
        ...(live.nodes.length ? [nodes(live.nodes)] : []),
        ...live.models.map(model));
    },
  };
}
