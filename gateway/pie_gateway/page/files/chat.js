// A conversation with a model, as OpenAI's clients have it.

import { events, json, post } from "./api.js";
import { make } from "./dom.js";

const said = []; // kept when another view is shown

export function chat(main) {
  const models = make("select", { name: "model" });
  const heat = make("input", { type: "number", min: 0, max: 5, step: 0.1, value: 0.7 });
  const most = make("input", { type: "number", min: 1, max: 100000, value: 200 });
  const text = make("textarea", { rows: 3, placeholder: "Enter sends, Shift and Enter makes a new line", required: true });
  const list = make("div", { "aria-live": "polite" });
  const send = make("button", {}, "Send");
  const halt = make("button", { type: "button", class: "plain", onclick: () => stop?.abort() }, "Stop");
  const fresh = make("button", { type: "button", class: "plain", onclick: () => { said.length = 0; draw(); } }, "New conversation");
  let stop = null;

  const bubble = (message) => make("div", { class: `message ${message.role}` }, message.content);
  const draw = () => list.replaceChildren(...said.map(bubble));

  async function ask() {
    const content = text.value.trim();
    if (!content || stop) return;
    text.value = "";
    said.push({ role: "user", content });
    const answer = { role: "assistant", content: "" };
    const shown = bubble(answer);
    draw();
    list.append(shown);
    stop = new AbortController();
    try {
      const body = { model: models.value, messages: said, stream: true, temperature: Number(heat.value), max_tokens: Number(most.value) };
      for await (const part of events(await post("v1/chat/completions", body, { signal: stop.signal }))) {
        if (part.error) throw new Error(part.error.message);
        answer.content += part.choices[0]?.delta.content ?? "";
        shown.textContent = answer.content;
        shown.scrollIntoView({ block: "nearest" });
      }
    } catch (error) {
      if (!stop.signal.aborted) list.append(make("div", { class: "message bad", role: "alert" }, error.message));
    }
    stop = null;
    if (answer.content) said.push(answer);
    text.focus();
  }

  const form = make("form", { class: "card" },
    make("label", {}, "Message", text),
    make("div", { class: "row" },
      make("label", {}, "Model", models), make("label", {}, "Temperature", heat),
      make("label", {}, "Most tokens", most), send, halt, fresh));
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); ask(); }
  });
  main.append(make("h1", {}, "Chat"), list, form);
  draw();
  json("v1/models").then(({ data }) => models.append(...data.map(({ id }) => make("option", {}, id)))).catch(() => {});
  return { close: () => stop?.abort() };
}
