/** Messages between this instance and the client that launched it: text, and bytes beside it. */

import { isPieError } from "./errors.ts";
import { asJson } from "./json.ts";
import * as raw from "./raw.ts";

/**
 * Sends text to the client: a string as it is, anything else as a line of JSON.
 *
 * If the client does not read, the server keeps a bounded number of bytes for it; over that, this call
 * waits, and with it every branch of the inferlet. `await drain()` before it to let them run.
 *
 * @throws PieError `limit-exceeded` if the message is too large.
 */
export function send(message: unknown): void {
  const text = typeof message === "string" ? message : `${asJson(message) ?? "null"}\n`;
  sending(() => raw.send(text));
}

/** Sends bytes to the client. Waits and throws as `send` does. */
export function sendBlob(data: Uint8Array): void {
  sending(() => raw.sendBlob(data));
}

export { receive, receiveBlob, writable as drain } from "./awaited.ts";

function sending(send: () => void): void {
  for (;;) {
    try {
      return send();
    } catch (error) {
      if (!isPieError(error, "would-block")) throw error;
    }
    const future = raw.writable();
    raw.wait([future]);
    raw.take(future);
  }
}
