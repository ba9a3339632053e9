// The documentation: Markdown as far as it is used there, made of elements.

import { request } from "./api.js";
import { make } from "./dom.js";

// Code, strong words, and links to other documents or elsewhere.
function inline(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(/`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\(([^)\s]+)\)/g)) {
    const [whole, code, strong, label, target] = found;
    const [file] = target?.split("#") ?? [];
    parts.push(text.slice(at, found.index));
    if (code) parts.push(make("code", {}, code));
    else if (strong) parts.push(make("b", {}, inline(strong)));
    else if (/^[\w-]+\.md$/.test(file)) parts.push(make("a", { href: `#docs/${file.slice(0, -3)}` }, inline(label)));
    else if (/^https?:/.test(target)) parts.push(make("a", { href: target, rel: "noreferrer" }, inline(label)));
    else parts.push(...inline(label));
    at = found.index + whole.length;
  }
  return [...parts, text.slice(at)];
}

function cells(line, tag) {
  return make("tr", {}, line.replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => make(tag, {}, inline(cell.trim().replaceAll("\\|", "|")))));
}

// The element that a block of lines becomes.
function block(lines) {
  const [first] = lines, heading = first.match(/^(#+) (.*)/), joined = lines.join(" ");
  if (first.startsWith("```")) return make("pre", {}, lines.slice(1).filter((line) => !line.startsWith("```")).join("\n"));
  if (first.startsWith("    ")) return make("pre", {}, lines.map((line) => line.slice(4)).join("\n"));
  if (heading) return make("section", {}, make(heading[1].length < 2 ? "h1" : "h2", {}, inline(heading[2])), lines.length > 1 ? block(lines.slice(1)) : null);
  if (first.startsWith("|")) return make("div", { class: "scroll" }, make("table", {}, cells(first, "th"), lines.slice(2).map((line) => cells(line, "td"))));
  if (/^(-|\d+\.) /.test(first)) return make("ul", {}, lines.join("\n").split(/\n(?=- |\d+\. )/).map((item) => make("li", {}, inline(item.replace(/^(-|\d+\.) /, "").replace(/\s+/g, " ")))));
  if (/^!\[/.test(first)) return make("p", { class: "soft" }, first.match(/^!\[([^\]]*)/)[1]);
  return make("p", {}, inline(joined));
}

function blocks(text) {
  const found = [];
  let open = null, fenced = false;
  for (const line of text.split("\n")) {
    if (line.startsWith("```")) fenced = !fenced;
    if (!fenced && !line.trim()) open = null;
    else if (open) open.push(line);
    else found.push((open = [line]));
  }
  return found.map(block);
}

export function docs(main, name) {
  const shown = make("article", { class: "card docs" }, "…");
  main.append(shown);
  request(`docs/${encodeURIComponent(name || "index")}.md`).then((answer) => answer.text())
    .then((text) => shown.replaceChildren(...blocks(text)))
    .catch((error) => (shown.textContent = error.message));
  return {};
}
