/**
 * Branches of a program that run at once: all of them, or until the first good one.
 *
 * A branch is a promise, mostly of a generation on a fork. Branches that wait for the model at the
 * same time run in one batch.
 */

/** The results of all branches, in their order: `Promise.all` of those named. */
export function gather<T>(...branches: Promise<T>[]): Promise<T[]> {
  return Promise.all(branches);
}

/**
 * The first good result; null if none was good. The other branches go on, unless their contexts are
 * released.
 *
 * @param good whether a result will do.
 */
export function race<T>(branches: Promise<T>[], good: (result: T) => boolean = () => true): Promise<T | null> {
  return new Promise((resolve, reject) => {
    const all = branches.map((branch) =>
      branch.then((result) => {
        if (good(result)) resolve(result);
      }),
    );
    Promise.all(all).then(() => resolve(null), reject);
  });
}
