// A conversation with a model, as OpenAI's clients have it.

import { events, json, post } from "./api.js";
import { make, number, seconds } from "./dom.js";

const said = []; // kept when another view is shown
const asked = { system: "", heat: 0.7, most: 400 };

// How fast an answer came, and how much of its prompt was in the cache.
function speed({ prompt_tokens: prompt, completion_tokens: count, prompt_tokens_details: details }, begun, first, ended) {
  const rate = count > 1 && ended > first ? `${number(((count - 1) * 1e3) / (ended - first), 1)} tokens per second, ` : "";
  return `${count} tokens, ${rate}first after ${seconds((first - begun) / 1e3)} · prompt of ${prompt} tokens, ${details?.cached_tokens ?? 0} from the cache`;
}

export function chat(main) {
  const keep = (name) => (event) => (asked[name] = event.target.value);
  const models = make("select", { name: "model" });
  const heat = make("input", { type: "number", min: 0, max: 5, step: 0.1, value: asked.heat, oninput: keep("heat") });
  const most = make("input", { type: "number", min: 1, max: 100000, value: asked.most, oninput: keep("most") });
  const system = make("textarea", { rows: 2, placeholder: "You are …", oninput: keep("system") });
  system.value = asked.system;
  const text = make("textarea", { rows: 3, placeholder: "Enter sends, Shift and Enter makes a new line", "aria-label": "Message", required: true });
  const list = make("div", { class: "talk", "aria-live": "polite" });
  const halt = make("button", { type: "button", class: "plain", disabled: true, onclick: () => stop?.abort() }, "Stop");
  const fresh = make("button", { type: "button", class: "plain", onclick: () => { stop?.abort(); said.length = 0; draw(); text.focus(); } }, "New conversation");
  let stop = null;

  function bubble({ role, content, note }) {
    return make("div", { class: `message ${role}` }, make("div", {}, content), note ? make("div", { class: "soft" }, note) : null);
  }
  const draw = () => list.replaceChildren(...said.map(bubble));

  async function ask() {
    const content = text.value.trim();
    if (!content || stop) return;
    text.value = "";
    said.push({ role: "user", content });
    const messages = [...(asked.system ? [{ role: "system", content: asked.system }] : []), ...said.map(({ role, content }) => ({ role, content }))];
    const answer = { role: "assistant", content: "" };
    let shown = bubble({ ...answer, content: "reads …" }), first = null;
    draw();
    list.append(shown);
    shown.scrollIntoView({ block: "nearest" });
    const { signal } = (stop = new AbortController()), begun = performance.now();
    const reading = setInterval(() => (shown.firstChild.textContent = `reads … ${seconds((performance.now() - begun) / 1e3)}`), 1000);
    halt.disabled = false;
    try {
      const body = { model: models.value, messages, stream: true, stream_options: { include_usage: true }, temperature: Number(asked.heat), max_tokens: Number(asked.most) };
      for await (const part of events(await post("v1/chat/completions", body, { signal }))) {
        if (part.error) throw new Error(part.error.message);
        const piece = part.choices[0]?.delta.content;
        if (!piece && !part.usage) continue;
        clearInterval(reading);
        first ??= performance.now();
        answer.content += piece ?? "";
        if (part.usage) answer.note = speed(part.usage, begun, first ?? performance.now(), performance.now());
        shown.replaceWith((shown = bubble(answer)));
        shown.scrollIntoView({ block: "nearest" });
      }
    } catch (error) {
      if (!signal.aborted) list.append(make("div", { class: "message bad", role: "alert" }, error.message));
    }
    clearInterval(reading);
    stop = null;
    halt.disabled = true;
    if (!answer.content) shown.remove();
    else if (said.length) said.push(answer); // or a new conversation has begun
    text.focus({ preventScroll: true });
  }

  const form = make("form", { class: "card" }, text,
    make("div", { class: "row" }, make("button", {}, "Send"), halt, fresh, make("label", {}, "Model", models)),
    make("details", { open: Boolean(asked.system) }, make("summary", {}, "Settings"),
      make("label", {}, "System prompt", system),
      make("div", { class: "row" }, make("label", {}, "Temperature", heat), make("label", {}, "Most tokens", most))));
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); ask(); }
  });
  main.append(make("h1", {}, "Chat"), list, form);
  draw();
  json("v1/models").then(({ data }) => models.append(...data.map(({ id }) => make("option", {}, id)))).catch(() => {});
  return { close: () => stop?.abort() };
}
