// A conversation with a model, as OpenAI's clients have it. The browser keeps conversations.

import { events, json, post } from "./api.js";
import { copyButton, make, number, seconds } from "./dom.js";
import { markdown } from "./markdown.js";

const KEY = "pie-chats", MOST = 50; // conversations, the newest first
const FRESH = { system: "", heat: 0.7, most: 1024, model: "" };
// One that was kept before they had ids has its first message as one.
const read = () => JSON.parse(localStorage.getItem(KEY) ?? "[]").filter(({ said }) => said.length).map((each) => ({ id: each.said[0].content, ...each }));
let kept = read();
const begin = () => ({ id: `${Date.now()} ${Math.random()}`, said: [], ...FRESH, ...(kept[0] && { model: kept[0].model, heat: kept[0].heat, most: kept[0].most, system: kept[0].system }) });
let now = begin();

// Keeps a conversation, or forgets one without messages. Other tabs keep theirs meanwhile.
function keep(talk) {
  const others = read().filter(({ id }) => id !== talk.id).map((each) => (each.id === now.id ? now : each));
  kept = [...(talk.said.length ? [talk] : []), ...others].slice(0, MOST);
  for (;;) { // a browser keeps some megabytes
    try {
      return localStorage.setItem(KEY, JSON.stringify(kept));
    } catch (error) {
      if (kept.length < 2) return;
      kept.pop();
    }
  }
}

// How fast an answer came, and how much of its prompt was in the cache.
function speed({ prompt_tokens: prompt, completion_tokens: count, prompt_tokens_details: details }, begun, first, ended) {
  const rate = count > 1 && ended > first ? `${number(((count - 1) * 1e3) / (ended - first), 1)} tokens per second, ` : "";
  return `${count} token${count === 1 ? "" : "s"}, ${rate}first after ${seconds((first - begun) / 1e3)} · prompt of ${prompt} tokens, ${details?.cached_tokens ?? 0} from the cache`;
}

// A message as the server takes it.
function sent({ role, content, images }) {
  if (!images?.length) return { role, content };
  return { role, content: [{ type: "text", text: content }, ...images.map((url) => ({ type: "image_url", image_url: { url } }))] };
}

const addressOf = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

export function chat(main) {
  let stop = null, images = [];
  const field = (name, attributes) => make("input", { ...attributes, value: now[name], oninput: (event) => (now[name] = Number(event.target.value)) });
  const models = make("select", { name: "model", onchange: () => (now.model = models.value) });
  const heat = field("heat", { type: "number", min: 0, max: 5, step: 0.1 }), most = field("most", { type: "number", min: 1, max: 100000 });
  const system = make("textarea", { rows: 2, placeholder: "You are …", oninput: () => (now.system = system.value) });
  const text = make("textarea", { rows: 3, placeholder: "Enter sends, Shift and Enter makes a new line, Escape stops an answer", "aria-label": "Message", oninput: () => (now.draft = text.value) });
  const list = make("div", { class: "talk", "aria-live": "polite" });
  const send = make("button", {}, "Send"), halt = make("button", { type: "button", class: "plain", hidden: true, onclick: () => stop?.abort() }, "Stop");
  const files = make("input", { type: "file", accept: "image/*", multiple: true, hidden: true, onchange: () => attach([...files.files]) });
  const attached = make("span", { class: "row" }), fault = make("p", { class: "ill", role: "alert" });
  const past = make("select", { "aria-label": "Conversation", onchange: () => open(kept[past.value] ?? begin()) });
  const forget = make("button", { type: "button", class: "plain", onclick: () => { now.said = []; keep(now); open(begin()); } }, "Delete");

  async function attach(chosen) {
    const read = await Promise.all(chosen.filter(({ type }) => type.startsWith("image/")).map(addressOf));
    images.push(...read); // only now: those before may have been sent meanwhile
    files.value = "";
    attached.replaceChildren(...images.map((src) => make("img", { src, alt: "to be sent", class: "thumb" })),
      ...(images.length ? [make("button", { type: "button", class: "plain small", onclick: () => { images = []; attach([]); } }, "Remove images")] : []));
  }

  // Takes a conversation back to what was before a message, which can be changed and sent again. What
  // is written already stays behind it.
  function takeBack(at) {
    const [message] = now.said.splice(at);
    text.value = now.draft = [message.content, now.draft].filter(Boolean).join("\n");
    images = [...(message.images ?? []), ...images];
    attach([]);
    keep(now);
    draw();
    text.focus();
  }

  function bubble(message, at) {
    const { role, content, thoughts, pictures = message.images, note } = message;
    const last = at === now.said.length - 1;
    const body = role === "user" ? [make("div", { class: "plain" }, content)] : markdown(content);
    return make("div", { class: `message ${role}` },
      thoughts ? make("details", {}, make("summary", {}, "Thoughts"), make("div", { class: "plain soft" }, thoughts)) : null,
      body, (pictures ?? []).map((src) => make("img", { src, alt: "sent with it" })),
      make("div", { class: "row acts" }, note ? make("span", { class: "soft" }, note) : null,
        at === undefined ? null : copyButton(() => content),
        role === "user" && at !== undefined ? make("button", { type: "button", class: "plain small", onclick: () => !stop && takeBack(at) }, "Edit") : null,
        role === "assistant" && last ? make("button", { type: "button", class: "plain small", onclick: () => { if (stop) return; now.said.pop(); answer(); } }, "Regenerate") : null));
  }

  function draw() {
    list.replaceChildren(...now.said.map(bubble));
    const nameOf = ({ said }) => said[0].content.slice(0, 60) || "an image";
    past.replaceChildren(make("option", { value: -1 }, "New conversation"), ...kept.map((each, at) => make("option", { value: at, selected: each.id === now.id }, nameOf(each))));
    forget.hidden = !kept.some(({ id }) => id === now.id);
  }

  function open(conversation) {
    stop?.abort();
    now = conversation;
    [heat.value, most.value, system.value, text.value] = [now.heat, now.most, now.system, now.draft ?? ""];
    if ([...models.options].some(({ value }) => value === now.model)) models.value = now.model;
    draw();
    text.focus({ preventScroll: true });
  }

  async function answer() {
    const talk = now, { said } = talk, made = { role: "assistant", content: "", thoughts: "" };
    const messages = [...(talk.system ? [{ role: "system", content: talk.system }] : []), ...said.map(sent)];
    let shown = bubble({ ...made, content: "reads …" }), first = null, drawing = 0;
    keep(talk);
    draw();
    list.append(shown);
    shown.scrollIntoView({ block: "nearest" });
    const { signal } = (stop = new AbortController()), begun = performance.now();
    const reading = setInterval(() => (shown.firstChild.textContent = `reads … ${seconds((performance.now() - begun) / 1e3)}`), 1000);
    const redraw = () => {
      drawing = 0;
      const unfolded = shown.querySelector("details")?.open;
      shown.replaceWith((shown = bubble(made)));
      if (unfolded) shown.querySelector("details").open = true;
      shown.scrollIntoView({ block: "nearest" });
    };
    halt.hidden = false;
    send.disabled = true;
    fault.textContent = "";
    try {
      const body = { model: models.value, messages, stream: true, stream_options: { include_usage: true }, temperature: talk.heat, max_tokens: talk.most };
      for await (const part of events(await post("v1/chat/completions", body, { signal }))) {
        if (part.error) throw new Error(part.error.message);
        const { content = "", reasoning_content: thought = "" } = part.choices[0]?.delta ?? {};
        if (!content && !thought && !part.usage) continue;
        clearInterval(reading);
        first ??= performance.now();
        made.content += content ?? "";
        made.thoughts += thought ?? "";
        if (part.usage) made.note = speed(part.usage, begun, first, performance.now());
        drawing ||= requestAnimationFrame(redraw);
      }
    } catch (error) {
      if (!signal.aborted) fault.textContent = error.message;
      else if (made.content || made.thoughts) made.note = "stopped";
    }
    clearInterval(reading);
    cancelAnimationFrame(drawing);
    stop = null;
    halt.hidden = true;
    send.disabled = false;
    if (made.content || made.thoughts) said.push(made);
    keep(talk);
    if (now !== talk) return; // another one is open
    if (said.at(-1) === made) draw();
    else takeBack(said.length - 1); // a question without an answer is no part of the conversation
    text.focus({ preventScroll: true });
  }

  function ask() {
    const content = text.value.trim();
    if ((!content && !images.length) || stop) return;
    now.said.push({ role: "user", content, ...(images.length && { images }) });
    now.model = models.value;
    text.value = now.draft = "";
    images = [];
    attach([]);
    answer();
  }

  const form = make("form", { class: "card" }, fault, text, attached,
    make("div", { class: "row" }, send, halt, make("button", { type: "button", class: "plain", onclick: () => files.click() }, "Image"), files,
      make("label", {}, "Model", models), make("label", {}, "Temperature", heat), make("label", {}, "Most tokens", most)),
    make("details", { open: Boolean(now.system) }, make("summary", {}, "System prompt"), make("label", {}, "System prompt", system)));
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask(); }
  });
  text.addEventListener("paste", ({ clipboardData }) => attach([...clipboardData.files]));
  const escape = (event) => event.key === "Escape" && stop?.abort();
  addEventListener("keydown", escape);
  main.append(make("div", { class: "row" }, make("h1", {}, "Chat"), past, forget), list, form);
  json("v1/models").then(({ data }) => {
    models.append(...data.map(({ id }) => make("option", {}, id)));
    open(now);
  }).catch((error) => (fault.textContent = error.message));
  return { close: () => { stop?.abort(); removeEventListener("keydown", escape); } };
}
