// The page: one view at a time, by the address; all are shown what the server tells each second.

import { events, request } from "./api.js";
import { remember } from "./chart.js";
import { chat } from "./chat.js";
import { docs } from "./docs.js";
import { make, seconds } from "./dom.js";
import { instance } from "./instance.js";
import { instances } from "./instances.js";
import { overview } from "./overview.js";
import { programs } from "./programs.js";
import { write } from "./write.js";

const VIEWS = { overview, programs, write, instances, instance, chat, docs };
const PARENTS = { instance: "instances", write: "programs" };
const main = document.getElementById("main");
const state = document.getElementById("state");
let view = null; // what is shown: it has `update(live)` and perhaps `close()`
let live = null;

function show() {
  const [name, ...rest] = location.hash.slice(1).split("/");
  const open = VIEWS[name] ?? overview;
  view?.close?.();
  main.replaceChildren();
  view = open(main, decodeURIComponent(rest.join("/")));
  for (const link of document.querySelectorAll("nav a")) {
    const shown = link.hash.slice(1);
    if (shown === (PARENTS[name] ?? (name || "overview"))) {
      link.setAttribute("aria-current", "page");
    } else link.removeAttribute("aria-current");
  }
  if (live) view.update?.(live);
}

function tell(text, kind) {
  state.textContent = text;
  state.className = kind;
}

async function watch() {
  for (;;) {
    try {
      for await (const told of events(await request("v1/live"))) {
        if (told.error) throw new Error(told.error.message);
        live = told;
        remember(told);
        tell(`${told.user} · up ${seconds(told.uptime)}`, "well");
        view?.update?.(told);
      }
    } catch (error) {
      tell(`the server does not answer: ${error.message}`, "ill");
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

addEventListener("hashchange", () => {
  show();
  main.focus();
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
watch();
