/**
 * What layers read of a context while it is generated: policies of the literature, to be given as
 * `context.generate(sampler, { attend: attention.quest(64) })`.
 *
 * Each is a short program of `device.attend`, to be read, changed, or put together with others. What
 * is not kept is not read. Prompts are read in full, and tell those that ask for it what they attend
 * to.
 */

import {
  type Attend,
  attend,
  HEADS,
  iota,
  layer,
  maximum,
  PAGES,
  perToken,
  shared,
  step,
  type Tensor,
  TOKENS,
  tokens,
  where,
} from "./device_program.ts";

/**
 * The first tokens and the newest ones (Xiao et al., StreamingLLM, 2024). Keys keep their positions.
 * With `first` 0 it is a sliding window.
 */
export function sinks(first = 4, window = 1020): Attend {
  return attend(() => {
    const place = iota(TOKENS);
    return place.lt(first).or(place.ge(tokens().sub(window)));
  })();
}

/**
 * In each layer but the first, for each head the pages that its query can have the largest weights in
 * (Tang et al., Quest, 2024). Heads that share keys read what one of them chooses; or they choose
 * `together`, what is likely for one of them, and read as many pages as one.
 */
export function quest(pages: number, fullLayers = 2, { together = false } = {}): Attend {
  return attend(({ scores }) => {
    const behind = maximum(iota(PAGES).max().add(1).sub(pages), 0);
    const likely = together ? shared(scores.logSoftmax()) : scores;
    const least = likely.sort().transpose().at(behind);
    return likely.ge(least.reshape(HEADS, 1)).or(layer().lt(fullLayers));
  })();
}

/**
 * The tokens that the newest one gives the largest weights, as a mean over heads (Oren et al., TOVA,
 * 2024).
 */
export function tova(budget: number): Attend {
  return attend(({ weights }) => at(iota(TOKENS), weights.transpose().sum().top(budget)))();
}

/**
 * The newest tokens, and of the others those with the largest sums of weights, those that the prompt's
 * tokens give among them (Zhang et al., Heavy-Hitter Oracle, 2023).
 */
export function h2o(heavy: number, recent: number): Attend {
  const program = attend(
    ({ weights, state }) => {
      state.sums = state.sums.add(weights.transpose().sum());
      const place = iota(TOKENS);
      const newest = place.ge(tokens().sub(recent));
      return newest.or(at(place, where(newest, -1, state.sums).top(heavy)));
    },
    { window: 0 },
  );
  return program({ sums: perToken(0) });
}

/**
 * The prompt's last tokens, `window` of them, the tokens before that these give the largest weights,
 * with those around them, `budget` of the prompt together, and all generated ones (Li et al., SnapKV,
 * 2024; for all heads of a layer the same).
 */
export function snapkv(budget: number, window = 32, kernel = 7): Attend {
  const program = attend(
    ({ weights }) => {
      const place = iota(TOKENS);
      const newest = place.ge(tokens().sub(window));
      const given = where(newest, 0, weights.transpose().sum());
      let pooled = given;
      for (let distance = 1; distance <= Math.floor(kernel / 2); distance++) {
        for (const other of [place.sub(distance), place.add(distance)]) {
          pooled = maximum(pooled, given.at(other));
        }
      }
      const best = where(newest, -1, pooled).top(Math.max(1, budget - window));
      // Once the prompt is over, what it has dropped stays away, and nothing else goes.
      return newest.or(at(place, best)).or(step().gt(0));
    },
    { window },
  );
  return program();
}

/** True at some places. */
function at(place: Tensor, kept: Tensor): Tensor {
  return place.lt(0).scatterMax(kept, true);
}
