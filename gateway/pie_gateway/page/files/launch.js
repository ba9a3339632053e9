// A program typed here, or one that was uploaded, runs; what it sends is shown as it comes.

import { events, json, post, request } from "./api.js";
import { make } from "./dom.js";

const EXAMPLE = `from inferlet import Context, Model, Sampler, gather, session


async def write(fork: Context) -> None:
    text = await fork.generate(Sampler.top_p(1.0, 0.9), max_tokens=16).collect_text()
    session.send(text + "\\n")


async def main(args: list[str]) -> str:
    context = Context(Model.load()).fill(args[0])
    forks = [context.fork() for _ in range(3)]  # they share the prompt's pages
    await gather(*map(write, forks))  # their steps are batched
    return "done"
`;
let source = EXAMPLE; // kept when another view is shown

export function launch(main) {
  const programs = make("select", {}, make("option", { value: "" }, "the source below"));
  const code = make("textarea", { rows: 14, spellcheck: "false" });
  code.value = source;
  const args = make("input", { value: "Once upon a time", placeholder: "arguments; quotes keep words together" });
  const output = make("pre", { "aria-live": "polite" }, "nothing has run yet");
  const link = make("p");
  let stop = null;

  const words = (text) => [...text.matchAll(/"([^"]*)"|(\S+)/g)].map((found) => found[1] ?? found[2]);
  const given = () => (args.value.includes('"') ? words(args.value) : args.value ? [args.value] : []);

  async function run() {
    stop?.abort();
    stop = new AbortController();
    const { signal } = stop;
    output.textContent = "";
    link.replaceChildren();
    try {
      let program = programs.value;
      if (!program) {
        const made = await request("v1/programs?name=typed-here", { method: "POST", body: code.value, signal });
        program = (await made.json()).hash;
      }
      const answer = await post(`v1/inferlets/${encodeURIComponent(program)}`, { args: given(), stream: true }, { signal });
      for await (const told of events(answer)) {
        if (told.type === "instance") link.replaceChildren("instance ", make("a", { href: `#instance/${told.id}`, target: "_blank" }, told.id));
        if (told.type === "text") output.append(told.text);
        if (told.type === "bytes") output.append("[bytes]");
        if (told.type === "end") output.append(`\n— ${told.state}${told.text ? `: ${told.text}` : ""}`);
        if (told.error) throw new Error(told.error.message);
      }
    } catch (error) {
      if (!signal.aborted) output.append(error.message);
    }
  }

  code.addEventListener("input", () => (source = code.value));
  code.addEventListener("keydown", (event) => {
    if (event.key === "Tab" && !event.shiftKey && !event.altKey && !event.ctrlKey) {
      event.preventDefault(); // Escape and then Tab leaves the editor
      code.setRangeText("    ", code.selectionStart, code.selectionEnd, "end");
    }
    if (event.key === "Escape") code.blur();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  });
  programs.addEventListener("change", () => (code.disabled = Boolean(programs.value)));
  main.append(make("h1", {}, "Launch"),
    make("div", { class: "card" },
      make("label", {}, "Program", programs),
      make("label", {}, "Python source (Ctrl and Enter runs it, Escape leaves the editor)", code),
      make("label", {}, "Arguments", args),
      make("div", { class: "row" },
        make("button", { onclick: run }, "Run"),
        make("button", { class: "plain", onclick: () => stop?.abort() }, "Stop"))),
    make("section", { class: "card" }, make("h2", {}, "Output"), link, output));
  json("v1/programs").then(({ data }) => {
    const names = [...new Set(data.map(({ name }) => name))].filter((name) => name !== "typed-here");
    programs.append(...names.map((name) => make("option", { value: name }, name)));
  }).catch(() => {});
  return { close: () => stop?.abort() };
}
