// Markdown as elements. HTML in it is shown as text, so nothing that a model has written can act.

import { copyButton, make } from "./dom.js";
import { lexer } from "./vendor/marked.js";

const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'", nbsp: "\u00a0" };
const TAGS = { strong: "b", em: "i", del: "s", paragraph: "p", blockquote: "blockquote", list_item: "li" };

const plain = (text) => text.replace(/&(amp|lt|gt|quot|#39|nbsp);/g, (_, name) => NAMED[name]);
export const anchor = (text) => text.toLowerCase().replace(/[^\w\s-]/g, "").trim().replace(/\s/g, "-");
const elsewhere = (href) => (/^(https?|mailto):/.test(href) ? href : null);

// The elements of a text. `addressOf` gives a link's address, and `pictureOf` a picture's, or null.
export function markdown(text, addressOf = elsewhere, pictureOf = () => null) {
  const all = (tokens) => (tokens ?? []).flatMap(element);
  const cells = (row, tag) => make("tr", {}, row.map((cell) => make(tag, { class: cell.align === "right" ? "number" : null }, all(cell.tokens))));

  function element(token) {
    const { type, tokens, text: inner, href } = token;
    if (TAGS[type]) return [make(TAGS[type], {}, all(tokens))];
    switch (type) {
      case "space": case "def": return [];
      case "heading": return [make(token.depth > 3 ? "h4" : `h${token.depth}`, { id: anchor(inner) }, all(tokens))];
      case "codespan": return [make("code", {}, plain(inner))];
      case "code": return [make("div", { class: "code" }, make("pre", { tabindex: 0 }, inner), copyButton(() => inner))];
      case "list": return [make(token.ordered ? "ol" : "ul", { start: token.ordered ? token.start : null }, all(token.items))];
      case "table": return [make("div", { class: "scroll" }, make("table", {}, make("thead", {}, cells(token.header, "th")), make("tbody", {}, token.rows.map((row) => cells(row, "td")))))];
      case "link": return addressOf(href) ? [make("a", { href: addressOf(href), rel: "noreferrer" }, all(tokens))] : all(tokens);
      case "image": return [pictureOf(href) ? make("img", { src: pictureOf(href), alt: inner }) : inner];
      case "checkbox": return [token.checked ? "☑ " : "☐ "];
      case "br": return [make("br")];
      case "hr": return [make("hr")];
      default: return tokens ? all(tokens) : [plain(inner ?? token.raw)];
    }
  }
  return all(lexer(text));
}
