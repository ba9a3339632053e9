// Is it well, how busy, what is in memory.

import { Chart } from "./chart.js";
import { count, make, number, seconds, share, table } from "./dom.js";
import { Instances } from "./instances.js";

const MOST_RUNNING = 8; // instances that are listed

function tile(title, value, note) {
  return make("div", { class: "card" },
    make("div", { class: "soft" }, title),
    make("div", { class: "big" }, value),
    make("div", { class: "soft" }, note));
}

// Nothing is known of them before a stream over HTTP: no tile then.
function latency(title, found) {
  return found ? [tile(title, seconds(found.p50), `over HTTP; p90 ${seconds(found.p90)}, p99 ${seconds(found.p99)}`)] : [];
}

function bar(title, parts, whole) {
  const drawn = make("div", { class: "bar", role: "img", "aria-label": parts.map(([name, , count]) => `${name}: ${count}`).join(", ") });
  for (const [, kind, count] of parts) {
    const part = make("span", { class: kind });
    part.style.width = `${share(count, whole)}%`;
    drawn.append(part);
  }
  const legend = parts.map(([name, kind, count]) => make("span", {}, make("i", { class: kind }), `${name} ${number(count)}`));
  return make("div", {}, make("div", { class: "legend" }, make("span", { class: "soft" }, title), legend), drawn);
}

// One model: its curves stay, and are drawn again; the rest is made again each second.
class Model {
  constructor(name) {
    const of = (key) => (sample) => sample.models.find((each) => each.name === name)?.[key] ?? 0;
    const used = (sample) => share(of("pages")(sample) - of("pages_free")(sample), of("pages")(sample));
    const rate = (value) => number(value, 1), percent = (value) => `${number(value, value < 10 ? 1 : 0)} %`;
    this.charts = [
      new Chart("Tokens per second", [
        { name: "generated", kind: "used", of: of("tokens_per_second"), show: rate },
        { name: "of prompts, computed", kind: "cached", of: of("prompt_tokens_per_second"), show: rate },
      ], 10),
      new Chart("Share in use, in %", [
        { name: "worker", kind: "shared", of: (sample) => 100 * Math.min(1, of("busy")(sample)), show: percent },
        { name: "KV pages", kind: "forked", of: used, show: percent },
      ], 100),
    ];
    this.rest = make("div");
    this.element = make("section", { class: "card" }, make("h2", {}, name),
      make("div", { class: "pair" }, this.charts.map((chart) => chart.element)), this.rest);
  }

  update(told) {
    const cached = Math.min(told.pages_cached, told.pages_free);
    const device = [["in use", "used", told.pages - told.pages_free], ["cached prefixes", "cached", cached], ["exported", "exported", told.pages_exported], ["free", "free", told.pages_free - cached]];
    const swapped = told.host_pages - told.host_pages_free;
    const facts = [`${number(told.batches_per_second, 1)} batches per second of ${number(told.commands_per_batch, 1)} sequences`, `${number(100 * told.found)} % of prompts' tokens found in the cache since the start`];
    this.rest.replaceChildren(
      make("p", { class: "soft" }, facts.join(" · ")),
      make("div", { class: "pair" },
        bar(count(told.pages, "KV page"), device.filter(([, kind, count]) => count || kind !== "exported"), told.pages),
        bar(`${count(told.host_pages, "page")} of host memory`, [["swapped", "used", swapped], ["free", "free", told.host_pages_free]], told.host_pages)));
    this.charts.forEach((chart) => chart.draw());
  }
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
  const columns = { node: "", state: "", version: "wide", instances: "number", pool: "number", load: "number", "last seen": "number" };
  return make("section", { class: "card" },
    make("h2", {}, "Nodes"),
    make("p", { class: "soft" }, `${ready} take launches; ${told.length - ready} do not`),
    table(columns, make("tbody", {}, told.map(node)), "nodes"));
}

export function overview(main) {
  const tiles = make("div", { class: "tiles" }), cluster = make("div"), list = make("div");
  const alive = new Chart("Instances alive", [{ name: "now", kind: "used", of: (sample) => sample.alive, show: number }], 2);
  const models = new Map(), running = new Instances(); // by name; the newest
  const runs = make("section", { class: "card", hidden: true }, make("h2", {}, "Running now"), running.element);
  main.append(make("h1", {}, "Overview"), make("div", { class: "pair" }, tiles, make("section", { class: "card" }, alive.element)), cluster, list, runs);
  return {
    update(live) {
      const rate = live.models.reduce((sum, told) => sum + told.tokens_per_second, 0);
      tiles.replaceChildren(
        tile("tokens per second", number(rate, 1), live.models.length > 1 ? `of ${live.models.length} models` : "generated"),
        tile("instances alive", number(live.alive), `of at most ${number(live.max_instances)}`),
        tile("launches per second", number(live.launches_per_second, 1), `${number(live.launched)} since the start`),
        tile("up for", seconds(live.uptime), `pie_py ${live.version}`),
        ...latency("time to first token", live.first),
        ...latency("time between tokens", live.between));
      alive.draw();
      const newest = live.instances.filter(({ state }) => state === "running").reverse();
      runs.hidden = !newest.length;
      running.show(newest.slice(0, MOST_RUNNING));
      cluster.replaceChildren(...(live.nodes.length ? [nodes(live.nodes)] : []));
      for (const told of live.models) {
        if (!models.has(told.name)) models.set(told.name, new Model(told.name));
        const { element } = models.get(told.name);
        if (!element.isConnected) list.append(element);
        models.get(told.name).update(told);
      }
      for (const [name, { element }] of models) {
        if (!live.models.some((told) => told.name === name)) (element.remove(), models.delete(name));
      }
    },
  };
}
