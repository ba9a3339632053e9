// What programs have used, by program, user and tag.

import { json } from "./api.js";
import { make, number, saveButton, seconds, share, table } from "./dom.js";

const DAYS = { 1: "Today (UTC)", 7: "Seven days", 30: "Thirty days" };
const SECONDS = 10; // between two looks
const COLUMNS = { program: "", user: "wide", instances: "number wide", read: "number", "from the cache": "number wide", written: "number", "page-seconds": "number wide", CPU: "number", tools: "number wide" };

// The days' rows of one program, user and tag as one.
function sums(rows) {
  const found = new Map();
  for (const row of rows) {
    const key = JSON.stringify([row.program, row.user, row.tag]), sum = found.get(key);
    if (!sum) found.set(key, { ...row });
    else for (const [name, value] of Object.entries(row)) if (typeof value === "number") sum[name] += value;
  }
  return [...found.values()].sort((one, other) => other.generated_tokens - one.generated_tokens);
}

function line(each) {
  const read = each.prompt_tokens + each.cached_tokens, numbers = (value, kind = "") => make("td", { class: `number ${kind}` }, value);
  return make("tr", {},
    make("td", { class: "name" }, each.program, each.tag ? make("div", { class: "soft" }, each.tag) : null),
    make("td", { class: "wide" }, each.user),
    numbers(number(each.instances), "wide"),
    numbers(number(read)),
    numbers(`${number(share(each.cached_tokens, read))} %`, "wide"),
    numbers(number(each.generated_tokens)),
    numbers(number(each.page_seconds), "wide"),
    numbers(seconds(each.cpu_seconds)),
    numbers(seconds(each.tool_seconds), "wide"));
}

export function usage(main) {
  const days = make("select", { "aria-label": "Days" }, Object.entries(DAYS).map(([value, name]) => make("option", { value }, name)));
  const body = make("tbody"), note = make("span", { class: "soft" });
  let rows = [], looked = 0;
  async function look() {
    looked = Date.now();
    try {
      rows = (await json(`v1/usage?days=${days.value}`)).data;
      note.textContent = rows.length ? "" : "nothing was used";
      body.replaceChildren(...sums(rows).map(line));
    } catch (error) {
      note.textContent = error.message;
    }
  }
  days.addEventListener("change", look);
  main.append(make("h1", {}, "Usage"),
    make("div", { class: "row" }, days, saveButton("Save as JSON", "usage.json", () => rows), note),
    make("div", { class: "card" }, table(COLUMNS, body)));
  return { update: () => Date.now() - looked > 1e3 * SECONDS && look() };
}
