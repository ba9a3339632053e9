// All that changes, over one WebSocket a tab: a browser has six connections for requests to a host,
// of all tabs, and WebSockets are not among them.

import { json, key, pause } from "./api.js";
import { seconds } from "./dom.js";

const BEHIND = 3500, DEAD = 15000; // milliseconds without a word
const state = document.getElementById("state");
const watched = new Map(); // by instance: how much of it is here, and who takes the rest
let socket = null, heard = 0, well = "";

function tell(kind, text) {
  if (state.textContent !== text) state.textContent = text; // a screen reader says what is set
  state.className = kind;
}

function ask() {
  const watch = Object.fromEntries([...watched].map(([id, { read }]) => [id, read]));
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ watch }));
}

// Has `take` called with what the server tells of an instance, until the function that this returns is.
export function watch(id, take) {
  watched.set(id, { take, read: { trace: 0, log: 0 } });
  ask();
  return () => {
    if (watched.get(id)?.take === take) watched.delete(id);
    ask();
  };
}

function got(told, onServer) {
  heard = Date.now();
  if (told.error && !told.instance) return tell("ill", `lost: ${told.error}`);
  if (told.server) {
    well = `${told.server.user} · up ${seconds(told.server.uptime)}`;
    return onServer(told.server);
  }
  const found = watched.get(told.instance);
  if (told.told && found) found.read = { trace: told.trace.next, log: told.log.next };
  found?.take(told);
}

const connected = (onServer) => new Promise((resolve, reject) => {
  const address = new URL("v1/live", location.href);
  address.protocol = address.protocol.replace("http", "ws");
  socket = new WebSocket(address, key() ? ["pie", `pie-key.${key()}`] : []);
  socket.onopen = ask;
  socket.onmessage = ({ data }) => {
    const told = JSON.parse(data);
    got(told, onServer);
    if (told.server) tell("well", well);
  };
  socket.onclose = ({ code, reason }) => (code === 1000 ? resolve() : reject(new Error(reason || "the connection is gone")));
});

export async function live(onServer) {
  setInterval(() => {
    const silence = Date.now() - heard;
    if (socket?.readyState !== WebSocket.OPEN || silence < BEHIND) return;
    tell("late", `behind: nothing new for ${seconds(silence / 1e3)}`);
    if (silence > DEAD) socket.close(4000);
  }, 1000);
  for (let tries = 0; ; tries++) {
    const begun = Date.now();
    try {
      await json("v1/server", { repeats: false }); // a WebSocket does not say that it wants a key
      heard = Date.now();
      await connected(onServer);
    } catch (error) {
      tell("ill", `lost: ${error.message}; trying again`);
    }
    if (Date.now() - begun > DEAD) tries = 0;
    await pause(tries);
  }
}
