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
    const likely = together ? shared(scores.logSoftmax()) : scores;
    return largest(likely, PAGES, pages).or(layer().lt(fullLayers));
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
 * The newest tokens, and of the others for each head those with the largest sums of weights, those that
 * the prompt's tokens give among them (Zhang et al., Heavy-Hitter Oracle, 2023). Heads that share keys
 * read what one of them keeps; or all heads of a layer choose `together`, whose sums take a part of the
 * memory.
 */
export function h2o(heavy: number, recent: number, { together = false } = {}): Attend {
  const program = attend(
    ({ weights, state }) => {
      state.sums = state.sums.add(together ? weights.transpose().sum() : weights);
      const place = iota(TOKENS);
      const newest = place.ge(tokens().sub(recent));
      const others = where(newest, -1, state.sums);
      if (together) return newest.or(at(place, others.top(heavy)));
      return newest.or(largest(others, TOKENS, heavy));
    },
    { window: 0 },
  );
  return program({ sums: perToken(0, { byHead: !together }) });
}

/**
 * The prompt's last tokens, `window` of them, for each head the tokens before that these give the
 * largest weights, with those around them, `budget` of the prompt together, and all generated ones (Li
 * et al., SnapKV, 2024). Heads that share keys read what one of them keeps.
 */
export function snapkv(budget: number, window = 32, kernel = 7): Attend {
  const program = attend(
    ({ weights }) => {
      const place = iota(TOKENS);
      const newest = place.ge(tokens().sub(window));
      let pooled = where(newest, 0, weights).transpose();
      const reach = Math.floor(kernel / 2);
      for (let behind = 0; behind < reach; ) {
        // The largest of as many tokens behind each.
        const more = Math.min(behind + 1, reach - behind);
        pooled = maximum(pooled, pooled.at(place.add(more)));
        behind += more;
      }
      pooled = maximum(pooled, pooled.at(maximum(place.sub(reach), 0))).transpose();
      const best = largest(where(newest, -1, pooled), TOKENS, Math.max(1, budget - window));
      // Once the prompt is over, what it has dropped stays away, and nothing else goes.
      return newest.or(best).or(step().gt(0));
    },
    { window },
  );
  return program();
}

/** Where the largest of each head are, and any that are as large as the last of them. */
function largest(values: Tensor, size: number, count: number): Tensor {
  const behind = maximum(iota(size).max().add(1).sub(count), 0);
  return values.ge(values.sort().transpose().at(behind).reshape(HEADS, 1));
}

/** True at some places. */
function at(place: Tensor, kept: Tensor): Tensor {
  return place.lt(0).scatterMax(kept, true);
}
