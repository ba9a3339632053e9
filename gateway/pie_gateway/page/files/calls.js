// The calls in the journal of a durable instance, each a place to branch from.

import { json, post } from "./api.js";
import { make, table } from "./dom.js";

export function calls(path) {
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
