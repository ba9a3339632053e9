// Programs: those that were uploaded and the library's, each with a form of its options.

import { json, post, request } from "./api.js";
import { ago, make, table } from "./dom.js";
import { ASKS_FOR_OPTIONS } from "./instances.js";

const HIDDEN = /^(gateway-|typed-here$)/; // they are of this server's own making
const SENT = /^function-/; // by clients, for one function each
const address = (name) => `#programs/${encodeURIComponent(name)}`;
const runLink = (name) => make("a", { class: "button", href: address(name), "aria-label": `Run ${name}` }, "Run");

async function both() {
  const [library, uploaded] = await Promise.all([json("v1/library"), json("v1/programs")]);
  const all = uploaded.data.filter(({ name }) => !HIDDEN.test(name)), mine = new Map(all.map((each) => [each.name, each])); // the newest of a name
  return { library: library.data, all, mine };
}

// An instance that lives on its own. The server keeps the newest of what it sends, whoever looks.
export async function launch(program, args) {
  const { id } = await (await post("v1/instances", { program, args, keep_newest: true })).json();
  location.hash = `#instance/${encodeURIComponent(id)}`;
}

function list(main) {
  const search = make("input", { type: "search", placeholder: "name, user, kind or what it does", "aria-label": "Search" });
  const uploaded = make("div"), functions = make("section", { class: "card" }), shipped = make("div", { class: "shelf" });
  main.append(make("h1", {}, "Programs"),
    make("div", { class: "row" }, search, make("a", { class: "button", href: "#write" }, "Write one")),
    make("section", { class: "card" }, make("h2", {}, "Uploaded"), uploaded),
    functions, make("h2", {}, "Library"), shipped);
  const show = ({ library, mine }) => {
    const has = (...texts) => texts.join(" ").toLowerCase().includes(search.value.trim().toLowerCase());
    const isShipped = (name) => library.some((each) => each.name === name); // uploaded as it was run
    const own = [...mine.values()].sort((a, b) => b.uploaded_ns - a.uploaded_ns).filter(({ name, kind, user }) => has(name, kind, user) && !isShipped(name));
    const rows = (some, runs) => table({ name: "", kind: "wide", user: "wide", uploaded: "number wide", "": "number" }, make("tbody", {}, some.map((each) => make("tr", {},
      make("td", { class: "name" }, make("a", { href: address(each.name) }, each.name)),
      make("td", { class: "wide" }, each.kind), make("td", { class: "wide" }, each.user),
      make("td", { class: "number wide" }, ago(each.uploaded_ns)), make("td", { class: "number" }, runs && each.kind !== "sampler" ? runLink(each.name) : "")))));
    const sent = own.filter(({ name }) => SENT.test(name)), programs = own.filter(({ name }) => !SENT.test(name));
    uploaded.replaceChildren(programs.length ? rows(programs, true) : make("p", { class: "soft" }, "none; pie-py upload FILE brings one here"));
    functions.hidden = !sent.length;
    functions.replaceChildren(make("h2", {}, "Functions that clients have sent"), sent.length ? rows(sent, false) : "");
    shipped.replaceChildren(...library.filter(({ name, description }) => has(name, description)).map(({ name, description }) =>
      make("article", { class: "card" }, make("div", { class: "row" }, make("b", {}, name), runLink(name)), make("div", { class: "soft" }, description))));
  };
  both().then((found) => {
    show(found);
    search.addEventListener("input", () => show(found));
  }).catch((error) => uploaded.replaceChildren(error.message));
  return {};
}

// All that a name has stood for, the newest first, and a way back to each.
function versions({ all }, program, again) {
  const found = all.filter(({ name }) => name === program).reverse();
  const once = found.filter((each, at) => found.findIndex(({ hash }) => hash === each.hash) === at);
  if (once.length < 2) return "";
  const back = ({ hash }) => make("button", { class: "plain small", "aria-label": `Make ${hash.slice(0, 8)} the current version`, onclick: () => request(`v1/programs/${hash}/current`, { method: "POST" }).then(again) }, "Make current");
  return make("section", { class: "card" }, make("h2", {}, "Versions"),
    table({ version: "", uploaded: "number", "": "number" }, make("tbody", {}, once.map((each, at) => make("tr", {},
      make("td", {}, make("code", {}, each.hash.slice(0, 8)), at ? "" : " (current)"), make("td", { class: "number" }, ago(each.uploaded_ns)),
      make("td", { class: "number" }, at ? back(each) : ""))))));
}

// A field of an option, and the words that it adds to the arguments: none while it is left alone.
function field({ option, type, choices, many, required, default: standard, help }) {
  const note = help ? make("span", { class: "soft" }, help) : null, name = option.slice(2).replaceAll("-", " ");
  if (type === "bool") {
    const box = make("input", { type: "checkbox" });
    box.checked = standard === "True";
    const words = () => (box.checked === (standard === "True") && !required ? [] : [box.checked ? option : `--no-${option.slice(2)}`]);
    return { element: make("label", { class: "check" }, box, ` ${name} `, note), words };
  }
  const hint = { placeholder: many ? `one a line${standard ? `; ${standard} otherwise` : ""}` : standard, required };
  const numeric = { ...hint, type: "number", step: type === "int" ? 1 : "any" };
  const input = choices.length
    ? make("select", { required }, [standard ?? "", ...choices.filter((each) => each !== standard)].map((each) => make("option", {}, each)))
    : type === "str" || many ? make("textarea", { ...hint, rows: many ? 3 : 1 }) : make("input", numeric);
  const given = () => (input.value === (choices.length ? standard ?? "" : "") ? [] : many ? input.value.split("\n").filter(Boolean) : [input.value]);
  return { element: make("label", { class: input.rows ? "long" : "" }, make("b", {}, name), required ? " (required) " : " ", note, input), words: () => given().map((value) => `${option}=${value}`) };
}

const words = (text) => [...text.matchAll(/"([^"]*)"|(\S+)/g)].map((found) => found[1] ?? found[2]);

export function lineOfWords() {
  const line = make("input", { placeholder: "words; quotes keep some together" });
  return { element: make("label", { class: "long" }, make("b", {}, "Arguments"), line), words: () => words(line.value), line };
}

async function fieldsOf(program, { library, mine }) {
  const own = mine.get(program), shipped = library.find(({ name }) => name === program);
  if (own ? own.kind !== "python" : !shipped) return [shipped?.description ?? "", [lineOfWords()]];
  const { result } = await (await post(`v1/inferlets/${encodeURIComponent(program)}`, { args: [ASKS_FOR_OPTIONS] }, { repeats: true })).json();
  const { description, options } = result;
  return [description, options ? options.map(field) : [lineOfWords()]];
}

function one(main, program) {
  const about = make("p", { class: "about" }, "asking for its options …"), form = make("form", { class: "card" });
  const fault = make("p", { class: "ill", role: "alert" });
  const former = make("div"), showFormer = (found) => former.replaceChildren(versions(found, program, () => both().then(showFormer)));
  main.append(make("h1", {}, program), about, form, fault, former);
  both().then((found) => {
    showFormer(found);
    return fieldsOf(program, found);
  }).then(([description, fields]) => {
    about.textContent = description.replace(/(\S)\n(?=[^\s*-])/g, "$1 "); // lines of one paragraph
    const run = make("button", {}, "Run");
    form.append(make("div", { class: "fields" }, fields.map(({ element }) => element)), fields.length ? "" : make("p", { class: "soft" }, "It takes no options."), run);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      run.disabled = true;
      fault.textContent = "";
      launch(program, fields.flatMap((each) => each.words())).catch((error) => (fault.textContent = error.message)).finally(() => (run.disabled = false));
    });
    (form.querySelector("textarea, input, select") ?? run).focus({ preventScroll: true });
  }).catch((error) => {
    about.textContent = "";
    fault.textContent = error.message;
  });
  return {};
}

export const programs = (main, program) => (program ? one(main, program) : list(main));
