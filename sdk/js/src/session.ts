/** Messages between this instance and the client that launched it: text, and bytes beside it. */

import { isPieError } from "./errors.ts";
import { blobOf, done, textOf } from "./loop.ts";
import * as raw from "./raw.ts";

/**
 * Sends text to the client: a string as it is, anything else as JSON.
 *
 * If the client does not read, the server keeps a bounded number of bytes for it; over that, this call
 * waits, and with it every branch of the inferlet. `await drain()` before it to let them run.
 *
 * @throws PieError `limit-exceeded` if the message is too large.
 */
export function send(message: unknown): void {
  const text = typeof message === "string" ? message : (JSON.stringify(message) ?? "null");
  sending(() => raw.send(text));
}

/** Sends bytes to the client. Waits and throws as `send` does. */
export function sendBlob(data: Uint8Array): void {
  sending(() => raw.sendBlob(data));
}

/** Waits until there is room for a message; other branches run meanwhile. */
export function drain(): Promise<void> {
  return done(raw.writable());
}

/** The client's next text. */
export function receive(): Promise<string> {
  return textOf(raw.receive());
}

/** The client's next bytes. */
export function receiveBlob(): Promise<Uint8Array> {
  return blobOf(raw.receiveBlob());
}

export { sendBlob as sendFile, receiveBlob as receiveFile };

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
