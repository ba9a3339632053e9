// One instance: what it does and says, what it is told, and which pages it shares.

import { json, post } from "./api.js";
import { age, count, make, number, saveButton, svg, table } from "./dom.js";
import { Forks } from "./forks.js";
import { pathOf, stopButton } from "./instances.js";
import { watch } from "./live.js";
import { launch } from "./programs.js";
import { doing, Timeline } from "./timeline.js";

const RATE_SECONDS = 2; // over which tokens per second are counted
const COLUMNS = 256;
const ROWS = 15; // of each kind
const LETTERS = 32; // of a row's name

// Columns are the instance's pages. Rows are the instance, its contexts (forks begin in the same
// columns), and other instances: a page stands in each row that has it.
function pages(id, told) {
  const columns = Math.min(COLUMNS, told.pages);
  const size = Math.min(12, 768 / columns), gap = Math.min(2, size / 4);
  const contexts = told.contexts.filter((each) => each.places.length).slice(0, ROWS).map(({ queue, places }) => ({ instance: `context ${queue}`, places }));
  const rows = [{ instance: id, places: [...Array(told.pages).keys()] }, ...contexts, ...told.sharers.slice(0, ROWS)];
  const shared = new Set(told.sharers.flatMap((other) => other.places));
  const cached = new Set(told.cached);
  const seen = new Set(), forked = new Set(); // in one context, in several
  for (const place of told.contexts.flatMap((context) => context.places)) (seen.has(place) ? forked : seen).add(place);
  const short = (name) => (name.length > LETTERS ? `${name.slice(0, LETTERS - 10)}…${name.slice(-9)}` : name); // an id ends in 9 of its own
  const left = 8 + 7 * Math.max(...rows.map((row) => short(row.instance).length));
  const width = Math.ceil(left + size * columns), height = rows.length * 16 + 4;
  const drawn = svg("svg", { class: "map", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${count(told.pages, "page")}, ${shared.size} of them shared` });
  rows.forEach((row, at) => {
    const y = 4 + at * 16;
    drawn.append(svg("text", { x: 0, y: y + 10 }, short(row.instance), svg("title", {}, row.instance)));
    for (const place of row.places) {
      if (place >= columns) continue;
      const kind = shared.has(place) ? "shared" : forked.has(place) ? "forked" : cached.has(place) ? "cached" : "used";
      drawn.append(svg("rect", { x: left + place * size, y, width: size - gap, height: 10, rx: gap, class: kind }, svg("title", {}, `page ${place}`)));
    }
  });
  const legend = [["its own", "used"], ["in the prefix cache, too", "cached"], ["shared by several of its contexts", "forked"], ["shared with another instance", "shared"]];
  return make("div", {}, make("div", { class: "scroll" }, drawn),
    make("div", { class: "legend" }, legend.map(([name, kind]) => make("span", {}, make("i", { class: kind }), name)),
      make("span", { class: "soft" }, `${count(told.pages, "page")} of ${told.page_size} tokens${told.pages > columns ? `; the first ${columns} are shown` : ""}`)));
}

function facts(told, rate) {
  const program = make("a", { href: `#programs/${encodeURIComponent(told.program)}` }, told.program);
  const rows = {
    program, arguments: told.args.length ? make("code", {}, told.args.map((each) => (/^[\w./=-]+$/.test(each) ? each : JSON.stringify(each))).join(" ")) : null,
    model: told.uses.join(", ") || null, user: told.user,
    parent: told.parent && make("a", { href: `#instance/${encodeURIComponent(told.parent)}` }, told.parent),
    generated: `${count(told.generated_tokens, "token")}${rate > 0 ? `, ${number(rate, 1)} per second` : ""}`,
    prompts: `${count(told.prompt_tokens, "token")} computed`,
    "KV cache": told.ended_ns ? `${count(told.most_pages, "page")} at most` : `${count(told.tokens, "token")} in ${count(told.pages, "page")}`,
    "CPU time": `${number(told.cpu_ms)} ms`, [told.ended_ns ? "time" : "running for"]: age(told),
  };
  return Object.entries(rows).filter(([, value]) => value !== null).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
}

// What it has sent, and between that what was sent to it from here.
function talk(told, mine) {
  const sent = [...told.sent], parts = []; // characters as the server counts them
  let at = told.sent_total - sent.length;
  if (at > 0) parts.push(make("span", { class: "soft" }, "… "));
  for (const { after, text } of mine.filter((each) => each.after >= at)) {
    parts.push(sent.splice(0, after - at).join(""), make("span", { class: "mine" }, text));
    at = after;
  }
  return [...parts, sent.join("")];
}

// The calls in the journal of a durable instance, each a place to branch from.
function calls(path) {
  const body = make("tbody"), fault = make("p", { class: "ill", role: "alert" });
  const more = make("button", { type: "button", class: "plain", onclick: () => load().catch((error) => (fault.textContent = error.message)) }, "Show calls");
  let next = 0;

  async function branch(call) {
    try {
      const { id } = await (await post(`${path}/branch`, { call })).json();
      location.hash = `#instance/${encodeURIComponent(id)}`;
    } catch (error) {
      fault.textContent = error.message;
    }
  }

  async function load() {
    const found = await json(`${path}/calls?after=${next}`);
    next = found.next;
    more.textContent = found.data.length ? "Show more" : "No more calls so far";
    body.append(...found.data.map(({ number, call, answer }) => make("tr", {},
      make("td", { class: "number" }, String(number)), make("td", {}, call), make("td", { class: "name" }, answer),
      make("td", { class: "number" }, make("button", { type: "button", class: "plain small", "aria-label": `Branch after call ${number}`, onclick: () => branch(number) }, "Branch")))));
  }
  return make("section", { class: "card", hidden: true }, make("h2", {}, "Calls in its journal"),
    table({ number: "number", call: "", answer: "", "": "number" }, body), make("div", { class: "row" }, more), fault);
}

export function instance(main, id) {
  const now = make("p", { class: "big", role: "status" }, "…"), list = make("dl"), map = make("div"), log = make("pre");
  const output = make("pre", { class: "output", "aria-live": "polite" }), end = make("p", { class: "end" });
  const text = make("input", { placeholder: "a message to the program; Enter sends it", "aria-label": "Message", required: true });
  const form = make("form", { class: "row" }, text, make("button", {}, "Send")), fault = make("p", { class: "ill", role: "alert" });
  const logs = make("section", { class: "card", hidden: true }, make("h2", {}, "Log"), log);
  const kv = make("section", { class: "card", hidden: true }, make("h2", {}, "Pages"), map);
  const path = pathOf(id), timeline = new Timeline(), forks = new Forks(path), journal = calls(path), stop = stopButton(id);
  const again = make("button", { class: "plain", hidden: true, onclick: () => launch(told.program_hash, told.args).catch((error) => (fault.textContent = error.message)) }, "Run again");
  const mine = [], seen = []; // messages; times and tokens
  let drawn = "", told = null;

  function take(news) {
    if (news.error) return (now.textContent = news.error);
    told = news.told;
    seen.push({ at: Date.now() / 1e3, tokens: told.generated_tokens });
    show();
    forks.take(told.models);
    timeline.take(news.trace);
    log.append(news.log.lines.map((line) => `${line.level} ${line.text}\n`).join(""));
    logs.hidden = !log.textContent;
  }

  function show() {
    while (seen.length > 2 && seen.at(-1).at - seen[1].at > RATE_SECONDS) seen.shift();
    const runs = told.state === "running", [first, last] = [seen[0], seen.at(-1)];
    const rate = runs && last.at > first.at ? (last.tokens - first.tokens) / (last.at - first.at) : 0;
    now.textContent = runs ? doing({ ...told, tokens_per_second: rate }) : told.state;
    now.className = `big ${told.state}`;
    list.replaceChildren(...facts(told, rate));
    const state = `${told.sent_total} ${mine.length}`; // or a selection would be lost
    if (state !== drawn) output.replaceChildren(...talk(told, mine));
    if (state !== drawn) output.scrollTop = output.scrollHeight;
    drawn = state;
    if (!runs) end.textContent = told.end || (told.sent_total ? "" : "It has sent nothing and returned nothing.");
    end.className = `end ${told.state}`;
    form.hidden = stop.hidden = !runs && told.state !== "asleep";
    journal.hidden = !told.durable;
    again.hidden = told.args_cut;
    const filled = told.models.filter((model) => model.pages);
    kv.hidden = !filled.length;
    map.replaceChildren(...filled.map((model) => pages(id, model)));
  }

  // All that is known of it, its whole result, too.
  async function whole() {
    const { models, ...facts } = told, lines = (await json(`${path}/log`)).lines;
    const result = facts.ended_ns === null ? null : (await json(`${path}/result`)).text;
    return { ...facts, result, log: lines, contexts: models.flatMap(({ contexts }) => contexts) };
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const said = text.value, after = told?.sent_total ?? 0;
    text.value = fault.textContent = "";
    try {
      await post(`${path}/messages`, { text: said });
      mine.push({ after, text: `${said}\n` });
    } catch (error) {
      text.value ||= said; // to be sent again
      fault.textContent = `not sent: ${error.message}`;
    }
  });
  main.append(
    make("h1", { class: "id" }, id),
    make("div", { class: "sides" },
      make("section", { class: "card" }, now, list, make("div", { class: "row" }, stop, again, saveButton("Save as JSON", `${id}.json`, whole), saveButton("Save trace", `${id}.trace.json`, () => json(`${path}/trace`)))),
      make("section", { class: "card grow" }, make("h2", {}, "Output"), output, end, form, fault)),
    forks.element, journal, timeline.element, kv, logs);
  const stopWatching = watch(id, take), aging = setInterval(() => told?.ended_ns && show(), 1000);
  return { close: () => (stopWatching(), clearInterval(aging)) };
}
