// A program typed here is uploaded and runs; its own page shows what becomes of it.

import { request } from "./api.js";
import { make } from "./dom.js";
import { launch, lineOfWords } from "./programs.js";

const EXAMPLE = `from inferlet import Context, Model, Sampler, gather, session


async def write(fork: Context) -> None:
    text = await fork.generate(Sampler.top_p(1.0, 0.9), max_tokens=16).collect_text()
    session.send(text + "\\n")


async def main(args: list[str]) -> str:
    context = Context(Model.load()).fill(args[0])
    await context.flush()
    forks = [context.fork() for _ in range(3)]  # they share the prompt's pages
    await gather(*map(write, forks))  # their steps are batched
    return "done"
`;
let source = EXAMPLE, given = '"Once upon a time"'; // kept when another view is shown

export function write(main) {
  const code = make("textarea", { rows: 16, spellcheck: "false", required: true });
  const { element, words, line } = lineOfWords();
  const fault = make("p", { class: "ill", role: "alert" }), run = make("button", {}, "Run");
  const form = make("form", { class: "card" },
    make("label", {}, make("b", {}, "Python source"), " ", make("span", { class: "soft" }, "Ctrl and Enter runs it, Escape leaves the editor"), code),
    element, run);
  code.value = source;
  line.value = given;

  async function upload() {
    fault.textContent = "";
    run.disabled = true;
    try {
      const made = await request("v1/programs?name=typed-here", { method: "POST", body: code.value });
      await launch((await made.json()).hash, words());
    } catch (error) {
      fault.textContent = error.message;
    }
    run.disabled = false;
  }

  form.addEventListener("submit", (event) => (event.preventDefault(), upload()));
  line.addEventListener("input", () => (given = line.value));
  code.addEventListener("input", () => (source = code.value));
  code.addEventListener("keydown", (event) => {
    if (event.key === "Tab" && !event.shiftKey && !event.altKey && !event.ctrlKey) {
      event.preventDefault(); // Escape and then Tab leaves the editor
      code.setRangeText("    ", code.selectionStart, code.selectionEnd, "end");
    }
    if (event.key === "Escape") code.blur();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  main.append(make("h1", {}, "Write a program"), form, fault);
  return {};
}
