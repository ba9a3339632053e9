// The page: one view at a time, by the address; all are shown what the server tells each second.

import { remember } from "./chart.js";
import { chat } from "./chat.js";
import { docs } from "./docs.js";
import { make } from "./dom.js";
import { instance } from "./instance.js";
import { instances } from "./instances.js";
import { live } from "./live.js";
import { overview } from "./overview.js";
import { programs } from "./programs.js";
import { usage } from "./usage.js";
import { write } from "./write.js";

const VIEWS = { overview, programs, write, instances, instance, usage, chat, docs };
const PARENTS = { instance: "instances", write: "programs" };
const main = document.getElementById("main");
let view = null; // what is shown: it has `update(live)` and perhaps `close()`
let told = null;

function show() {
  const [name, ...rest] = location.hash.slice(1).split("/");
  const open = VIEWS[name] ?? overview, of = decodeURIComponent(rest.join("/"));
  view?.close?.();
  main.replaceChildren();
  document.title = `${of || open.name[0].toUpperCase() + open.name.slice(1)} · pie_py`;
  view = open(main, of);
  for (const link of document.querySelectorAll("nav a")) {
    const shown = link.hash.slice(1);
    if (shown === (PARENTS[name] ?? (name || "overview"))) {
      link.setAttribute("aria-current", "page");
    } else link.removeAttribute("aria-current");
  }
  if (told) view.update?.(told);
}

addEventListener("hashchange", () => {
  show();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
// Alt and a digit: the views in their order.
addEventListener("keydown", (event) => {
  const link = document.querySelectorAll("nav a")[Number(event.key) - 1];
  if (event.altKey && link) {
    location.hash = link.hash;
    event.preventDefault();
  }
});
if (!location.hash) main.append(make("p", { class: "soft" }, "waiting for the server"));
show();
live((server) => {
  told = server;
  remember(server);
  view.update?.(server);
});
