// The documentation.

import { request } from "./api.js";
import { make } from "./dom.js";
import { anchor, markdown } from "./markdown.js";

export function docs(main, place) {
  const [name, section] = (place || "index").split("/");
  const shown = make("article", { class: "card docs" }, "…");
  main.append(shown);
  const addressOf = (href) => {
    const [, page, part] = href.match(/^(?:([\w-]+)\.md)?(?:#(.*))?$/) ?? [];
    if (page || part) return `#docs/${page ?? name}${part ? `/${part}` : ""}`;
    return /^https?:/.test(href) ? href : null;
  };
  const pictureOf = (href) => (/^[\w/-]+\.(svg|png|webp)$/.test(href) ? `docs/${href}` : null);
  request(`docs/${encodeURIComponent(name)}.md`).then((answer) => answer.text()).then((text) => {
    shown.replaceChildren(...markdown(text, addressOf, pictureOf));
    document.title = `${shown.querySelector("h1")?.textContent ?? name} · pie_py`;
    if (section) document.getElementById(anchor(section))?.scrollIntoView();
  }).catch((error) => (shown.textContent = error.message));
  return {};
}
