/**
 * Policies of the literature for what layers read of a context while it is generated, to be given as
 * `context.generate(sampler, { attend: attention.quest(64) })`.
 *
 * Each is a short program of the stage `attend`, whose text the server has
 * (`pie_py/device_programs/rules/attention.py`), to be read, changed, or put together with others in one
 * of `device.attend`. What is not kept is not read. Prompts are read in full, and tell those that ask for
 * it what they attend to.
 */

import { Attend, perToken } from "./device.ts";

/**
 * The first tokens and the newest ones (Xiao et al., StreamingLLM, 2024). Keys keep their positions.
 * With `first` 0 it is a sliding window.
 */
export function sinks(first = 4, window = 1020): Attend {
  return new Attend("sinks", { first, window });
}

/**
 * In each layer but the first, for each head the pages that its query can have the largest weights in
 * (Tang et al., Quest, 2024). Heads that share keys read what one of them chooses; or they choose
 * `together`, what is likely for one of them, and read as many pages as one.
 */
export function quest(pages: number, fullLayers = 2, { together = false } = {}): Attend {
  return new Attend("quest", { pages, full_layers: fullLayers, together });
}

/**
 * The tokens that the newest one gives the largest weights, as a mean over heads (Oren et al., TOVA,
 * 2024).
 */
export function tova(budget: number): Attend {
  return new Attend("tova", { budget });
}

/**
 * The newest tokens, and of the others for each head those with the largest sums of weights, those that
 * the prompt's tokens give among them (Zhang et al., Heavy-Hitter Oracle, 2023). Heads that share keys
 * read what one of them keeps; or all heads of a layer choose `together`, whose sums take a part of the
 * memory.
 */
export function h2o(heavy: number, recent: number, { together = false } = {}): Attend {
  return new Attend("h2o", { heavy, recent, together }, { sums: perToken(0, { byHead: !together }) });
}

/**
 * The prompt's last tokens, `window` of them, for each head the tokens before that these give the
 * largest weights, with those around them, `budget` of the prompt together, and all generated ones (Li
 * et al., SnapKV, 2024). Heads that share keys read what one of them keeps.
 */
export function snapkv(budget: number, window = 32, kernel = 7): Attend {
  return new Attend("snapkv", { budget, window, kernel });
}
