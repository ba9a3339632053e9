/** A model that the server serves, and its tokenizer. */

import { encode } from "./awaited.ts";
import * as raw from "./raw.ts";

/** A message of a conversation: `role`, `content`, and what else the chat template knows. */
export type Message = { role: string; content?: unknown; [field: string]: unknown };

/** Text to tokens and back. */
export class Tokenizer {
  constructor(readonly model: string) {}

  /** Token ids of a text. Special tokens written in it are recognised, none is added. */
  encode(text: string): number[] {
    return raw.tokenize(this.model, text);
  }

  /** Text of token ids, special tokens included. Incomplete UTF-8 becomes U+FFFD. */
  decode(tokens: Iterable<number>): string {
    return raw.detokenize(this.model, tokens);
  }

  /** The bytes of each token, by id. Large: ask once. */
  vocabs(): Uint8Array[] {
    return raw.getVocabs(this.model);
  }

  /** The special tokens: text and id of each. */
  specialTokens(): [string, number][] {
    return raw.specialTokens(this.model);
  }

  /**
   * Text of a conversation in the model's format.
   *
   * @param addGenerationPrompt whether to append what starts the assistant's turn.
   * @param more what else the template takes, by the template's names: `tools`, `documents`,
   *   `enable_thinking`, ...
   * @throws PieError `unsupported` if the model has no chat template, `invalid-argument` if the
   *   template refuses the messages.
   */
  applyChatTemplate(
    messages: Message[],
    addGenerationPrompt = false,
    more: Record<string, unknown> = {},
  ): string {
    const request = Object.keys(more).length ? { ...more, messages } : messages;
    return raw.applyChatTemplate(this.model, JSON.stringify(request), addGenerationPrompt);
  }
}

const loaded = new Map<string, Model>();

/** A model. `Model.load()` is the server's default one. */
export class Model {
  /** Everything that the server says of it, as `model-info` of the contract has it. */
  readonly info: Record<string, any>;
  readonly tokenizer: Tokenizer;
  /** Tokens that a KV page holds. */
  readonly pageSize: number;
  readonly vocabSize: number;
  /** Tokens of the longest context. */
  readonly maxPosition: number;
  /** Tokens of the largest forward. */
  readonly maxBatchTokens: number;
  readonly bosToken: number | null;
  readonly stopTokens: number[];
  readonly hasChatTemplate: boolean;
  /** @internal How many contexts hold a page, where it is more than one. */
  readonly sharedPages = new Map<number, number>();
  /** @internal Those of them that are exported or in the prefix cache, and can't change. */
  readonly frozenPages = new Set<number>();

  /** Throws PieError `unknown-model` if no model is called so; `Model.load` keeps one of each. */
  constructor(readonly name: string) {
    const info = JSON.parse(raw.modelInfo(name));
    this.info = info;
    this.tokenizer = new Tokenizer(name);
    this.pageSize = info.page_size;
    this.vocabSize = info.vocab_size;
    this.maxPosition = info.max_position;
    this.maxBatchTokens = info.max_batch_tokens;
    this.bosToken = info.bos_token;
    this.stopTokens = info.stop_tokens;
    this.hasChatTemplate = info.has_chat_template;
  }

  /**
   * What an encoder makes of texts, of pairs of them, or of token ids: a row of each.
   *
   * @param options of the contract's `encode`: `most`, `prompt`, `raw`.
   * @throws PieError `unsupported` if the model is no encoder.
   */
  async encode(
    inputs: (string | [string, string] | number[])[],
    options: Record<string, unknown> = {},
  ): Promise<number[][]> {
    const queue = raw.createQueue(this.name);
    try {
      const asked = JSON.stringify(inputs);
      const [, numbers] = await encode(queue, asked, JSON.stringify(options));
      const width = this.info.width;
      return inputs.map((_, at) => numbers.slice(at * width, (at + 1) * width));
    } finally {
      raw.destroyQueue(queue);
    }
  }

  /**
   * The model of this name, or the server's default model.
   *
   * @throws PieError `unknown-model`, naming the models there are.
   */
  static load(name: string = raw.availableModels()[0] ?? ""): Model {
    let model = loaded.get(name);
    if (model === undefined) {
      model = new Model(name);
      loaded.set(name, model);
    }
    return model;
  }

  /** Names of the traits that the model offers. */
  get traits(): string[] {
    return raw.availableTraits(this.name);
  }

  /** Names of the LoRA adapters that contexts of the model may go through. */
  get adapters(): string[] {
    return raw.availableAdapters(this.name);
  }
}
