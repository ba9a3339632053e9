// What an instance has forked: its contexts as a tree, each with its own text, and a branch's tokens
// with what the model might have chosen instead.

import { json, post } from "./api.js";
import { age, ago, count, make, number } from "./dom.js";

const ALTERNATIVES = 4;

// The tokens of a branch behind what it shares, each shaded by how likely the model finds it.
function scored(logprobs, from) {
  const { tokens, token_logprobs: own, top_logprobs: top } = logprobs;
  const found = own.slice(from).filter((value) => value !== null), sum = found.reduce((a, b) => a + b, 0);
  const percent = (value) => `${number(100 * Math.exp(value), 1)} %`;
  const told = make("pre", { class: "soft", role: "status" }, "A token that is pointed at, or has the focus, shows its probability and the likeliest ones.");
  const shown = tokens.slice(from).map((token, at) => {
    const value = own[from + at], others = Object.entries(top[from + at] ?? {}).sort((a, b) => b[1] - a[1]);
    const tell = () => (told.textContent = `${JSON.stringify(token)} ${value === null ? "" : percent(value)}: ${others.map(([text, each]) => `${JSON.stringify(text)} ${percent(each)}`).join(", ")}`);
    return make("span", { class: `token ${value === null || value > -0.7 ? "" : value > -2.5 ? "doubted" : "rare"}`, tabindex: 0, onfocus: tell, onpointerenter: tell }, token);
  });
  const score = found.length ? `${count(found.length, "token")}, log-probability ${sum.toFixed(2)}, ${(sum / found.length).toFixed(3)} a token` : "no tokens of its own";
  return [make("p", { class: "soft" }, score), make("pre", {}, shown), told];
}

export class Forks {
  constructor(path) {
    this.path = path;
    this.tree = make("div");
    this.details = make("div", { class: "branch", role: "status" });
    this.drawn = "";
    this.element = make("section", { class: "card", hidden: true }, make("h2", {}, "Contexts and their forks"), this.tree, this.details);
  }

  // Takes the models of an instance, each with its contexts.
  take(models) {
    const all = models.flatMap(({ model, contexts, page_size }) => contexts.map((each) => ({ ...each, model, page_size })));
    this.element.hidden = !all.length;
    const state = JSON.stringify(all);
    if (state === this.drawn || this.tree.matches(":active")) return; // nothing changes under a pointer that is down
    this.drawn = state;
    const focused = document.activeElement?.closest?.("[data-queue]")?.dataset.queue;
    const below = (parent) => {
      const found = all.filter((each) => each.parent === parent || (parent === null && !all.some(({ queue }) => queue === each.parent)));
      return found.length ? make("ul", { class: parent === null ? "tree" : "" }, found.map((each) => make("li", {}, this.node(each), below(each.queue)))) : null;
    };
    this.tree.replaceChildren(below(null) ?? "");
    if (focused) this.tree.querySelector(`[data-queue="${focused}"] button`)?.focus();
  }

  node(each) {
    const { queue, parent, tokens, shared, text, cut, created_ns, released_ns, places, page_size } = each;
    const facts = [
      parent === null ? count(tokens, "token") : `${count(tokens - shared, "token")} of its own behind ${number(shared)} of context ${parent}, since ${ago(created_ns)}`,
      released_ns === null ? places.length && `${count(places.length, "page")} of ${page_size}` : `released after ${age({ created_ns, ended_ns: released_ns }).split(",")[0].slice(4)}`];
    return make("div", { class: released_ns === null ? "" : "ended", "data-queue": queue },
      make("div", { class: "row" }, make("b", {}, `context ${queue}`), make("span", { class: "soft" }, facts.filter(Boolean).join(" · ")),
        make("button", { type: "button", class: "plain small", "aria-label": `Tokens of context ${queue}`, onclick: () => this.score(each) }, "Tokens")),
      make("pre", { class: "own" }, cut ? "… " : "", text));
  }

  async score({ queue, shared, model }) {
    this.details.replaceChildren("reading …");
    try {
      const { context_tokens: prompt } = await json(`${this.path}/inspect?context=${queue}`);
      const asked = { model, prompt, echo: true, max_tokens: 0, logprobs: ALTERNATIVES, add_special_tokens: false };
      const { choices: [{ logprobs }] } = await (await post("v1/completions", asked)).json();
      this.details.replaceChildren(make("h2", {}, `Context ${queue}`), ...scored(logprobs, shared));
    } catch (error) {
      this.details.replaceChildren(error.message);
    }
  }
}
