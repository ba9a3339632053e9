// One instance: what it does over time, which pages it shares, what it says.

import { events, json, request } from "./api.js";
import { make, number, svg } from "./dom.js";
import { nameOf, Timeline } from "./timeline.js";

const EVERY = 250; // milliseconds between two looks
const COLUMNS = 64;
const ROWS = 15; // of each kind

function doing(told) {
  if (told.state !== "running") return told.state;
  if (told.blocked) return "blocked";
  if (!told.waits.length) return "runs";
  return told.waits.map(nameOf).join(", ");
}

// Columns are the instance's pages. Rows are the instance, its contexts (forks begin in the same
// columns), and other instances: a page stands in each row that has it.
function pages(id, told) {
  const columns = Math.min(COLUMNS, told.pages);
  if (!columns) return make("p", { class: "soft" }, "no KV pages at present");
  const size = 12, left = 150;
  const contexts = told.contexts.slice(0, ROWS).map(({ queue, places }) => ({ instance: `context ${queue}`, places }));
  const rows = [{ instance: id, places: [...Array(told.pages).keys()] }, ...contexts, ...told.sharers.slice(0, ROWS)];
  const shared = new Set(told.sharers.flatMap((other) => other.places));
  const cached = new Set(told.cached);
  const seen = new Set(), forked = new Set(); // in one context, in several
  for (const place of told.contexts.flatMap((context) => context.places)) (seen.has(place) ? forked : seen).add(place);
  const drawn = svg("svg", { class: "map", viewBox: `0 0 ${left + COLUMNS * size} ${rows.length * (size + 4) + 4}`, role: "img", "aria-label": `${told.pages} pages, ${shared.size} of them shared` });
  rows.forEach((row, at) => {
    const y = 4 + at * (size + 4);
    drawn.append(svg("text", { x: 0, y: y + 10 }, row.instance.slice(-22)));
    for (const place of row.places) {
      if (place >= columns) continue;
      const kind = shared.has(place) ? "shared" : forked.has(place) ? "forked" : cached.has(place) ? "cached" : "used";
      drawn.append(svg("rect", { x: left + place * size, y, width: size - 2, height: size - 2, rx: 2, class: kind }, svg("title", {}, `page ${place}`)));
    }
  });
  const legend = [["its own", "used"], ["in the prefix cache, too", "cached"], ["shared by several of its contexts", "forked"], ["shared with another instance", "shared"]];
  return make("div", {}, make("div", { class: "scroll" }, drawn),
    make("div", { class: "legend" }, legend.map(([name, kind]) => make("span", {}, make("i", { class: kind }), name)),
      make("span", { class: "soft" }, `${number(told.pages)} pages of ${told.page_size} tokens${told.pages > columns ? `; the first ${columns} are shown` : ""}`)));
}

export function instance(main, id) {
  const now = make("p", { class: "big" }, "…");
  const map = make("div");
  const log = make("pre", {}, "nothing yet");
  const output = make("pre");
  const path = `v1/instances/${encodeURIComponent(id)}`;
  const stop = new AbortController();
  const timeline = new Timeline(path);
  let after = 0;

  async function look() {
    try {
      const told = await json(`${path}/inspect`);
      now.textContent = told.state === "running" ? (doing(told) === "runs" ? "runs" : `waits for ${doing(told)}`) + (told.queued_commands ? `; ${told.queued_commands} commands queued` : "") : told.state;
      await timeline.look();
      map.replaceChildren(...told.models.map((model) => pages(id, model)));
      const lines = await json(`${path}/log?after=${after}`);
      if (lines.lines.length && after === 0) log.textContent = "";
      after = lines.next;
      log.append(lines.lines.map((line) => `${line.level} ${line.text}\n`).join(""));
      if (told.state !== "running") return;
    } catch (error) {
      now.textContent = error.message;
      return;
    }
    if (!stop.signal.aborted) setTimeout(look, EVERY);
  }

  async function read() {
    output.textContent = "";
    try {
      for await (const told of events(await request(`${path}/events`, { signal: stop.signal }))) {
        if (told.type === "text") output.append(told.text);
        if (told.type === "bytes") output.append(`[${told.base64.length} characters of base64]`);
        if (told.type === "end") output.append(`\n— ${told.state}: ${told.text}`);
        if (told.error) output.append(`\n— ${told.error.message}`);
      }
    } catch (error) {
      if (!stop.signal.aborted) output.append(error.message);
    }
  }

  const kill = () => request(path, { method: "DELETE" }).catch((error) => (now.textContent = error.message));
  main.append(
    make("h1", {}, id),
    make("div", { class: "card" }, now,
      make("div", { class: "row" },
        make("button", { onclick: read, class: "plain", title: "in place of the client that reads it now" }, "Read its output"),
        make("button", { onclick: kill, class: "bad" }, "End it"))),
    timeline.element,
    make("section", { class: "card" }, make("h2", {}, "Pages"), map),
    make("section", { class: "card" }, make("h2", {}, "Output"), output),
    make("section", { class: "card" }, make("h2", {}, "Log"), log));
  look();
  return { close: () => stop.abort() };
}
