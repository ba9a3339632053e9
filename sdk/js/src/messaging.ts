/**
 * Messages between the instances of one user: topics that are broadcast to, and work queues.
 *
 * Messages live in the server's memory. What must survive it belongs in `store`.
 */

import * as awaited from "./awaited.ts";
import { PieError } from "./errors.ts";
import { asJson } from "./json.ts";
import * as raw from "./raw.ts";

/** Appends a message to the work queue of a topic: text as it is, anything else as JSON. */
export function push(topic: string, message: unknown): Promise<void> {
  return awaited.push(topic, asText(message));
}

export { pull } from "./awaited.ts";

/**
 * Sends to every current subscriber of a topic and returns how many there are. Waits while a
 * subscriber has too much unread, so that none misses a message.
 */
export function broadcast(topic: string, message: unknown): Promise<number> {
  return awaited.broadcast(topic, asText(message));
}

/** Subscribes to what is broadcast from now on. */
export function subscribe(topic: string): Subscription {
  return new Subscription(topic);
}

/** Messages broadcast to a topic: `for await (const text of subscription)`, or `receive`. */
export class Subscription {
  #handle: number | null;

  constructor(readonly topic: string) {
    this.#handle = raw.subscribe(topic);
  }

  /** The next message. */
  async receive(): Promise<string> {
    if (this.#handle === null) {
      throw new PieError(`invalid-handle: the subscription to ${this.topic} is closed`);
    }
    return awaited.nextMessage(this.#handle);
  }

  /** Unsubscribes and drops what has not been read. A second call does nothing. */
  close(): void {
    if (this.#handle !== null) raw.unsubscribe(this.#handle);
    this.#handle = null;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<string, void, void> {
    while (this.#handle !== null) yield await this.receive();
  }
}

function asText(message: unknown): string {
  return typeof message === "string" ? message : (asJson(message) ?? "null");
}
