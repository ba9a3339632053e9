// Requests to the gateway, with the user's key if one is needed.

const KEY = "pie-key";
const AGAIN = [502, 503, 504]; // statuses of a server that may answer soon

export const key = () => localStorage.getItem(KEY);
export const pause = (tries) => new Promise((resolve) => setTimeout(resolve, Math.min(5000, 500 * 2 ** tries)));

async function askForKey() {
  const dialog = document.getElementById("key");
  if (!dialog.open) dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  localStorage.setItem(KEY, dialog.querySelector("input").value.trim());
}

// An answer. What only reads is asked again until the server answers; the header says that it is lost.
export async function request(path, { repeats, ...options } = {}) {
  repeats ??= !options.method;
  for (let tries = 0; ; tries++) {
    const headers = { ...options.headers };
    if (key()) headers.authorization = `Bearer ${key()}`;
    const answer = await fetch(path, { ...options, headers }).catch((error) => {
      if (!repeats || error.name === "AbortError") throw error;
    });
    if (answer?.ok) return answer;
    if (answer?.status === 401) await askForKey();
    else if (!answer || (repeats && AGAIN.includes(answer.status))) await pause(tries);
    else {
      const body = await answer.json().catch(() => null);
      throw new Error(body?.error?.message ?? `${answer.status} ${answer.statusText}`);
    }
  }
}

export async function json(path, options) {
  return (await request(path, options)).json();
}

export function post(path, value, options = {}) {
  const headers = { "content-type": "application/json" };
  return request(path, { method: "POST", body: JSON.stringify(value), headers, ...options });
}

// The values of a stream of server-sent events.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const parts = rest.split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split("\n").find((line) => line.startsWith("data: "));
        if (data && data !== "data: [DONE]") yield JSON.parse(data.slice(6));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
