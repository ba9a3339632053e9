// What a script in JavaScript judges itself with: `cases.py` says how, and what a case is.

const [base, model] = process.argv.slice(2);
const CASES = [];
export const BASE = base;
export const V1 = `${base}/v1`;
export const MODEL = model;

/** Makes a function a case of its own name. */
export function add(tryIt, { refused = null } = {}) {
  CASES.push({ tryIt, refused });
}

/** Throws unless a value is true. */
export function check(value, ...words) {
  if (!value) throw new Error(`check: ${words.map((word) => JSON.stringify(word)).join(" ")}`);
}

/** Tries all cases in turn, and prints a line for each. */
export async function run() {
  process.on("unhandledRejection", () => {}); // clients reject promises that no user awaits
  for (const { tryIt, refused } of CASES) {
    const [outcome, detail] = await judge(tryIt, refused);
    console.log(JSON.stringify({ case: tryIt.name, outcome, detail: detail.slice(0, 600) }));
  }
  process.exit(); // whatever a client keeps open
}

async function judge(tryIt, refused) {
  try {
    await tryIt();
  } catch (error) {
    const told = [...causes(error)].map((each) => `${each.stack ?? each}`.slice(0, 400)).join(" <- ");
    if (refused === null) return ["wrong", told];
    const [status, words] = refused;
    const found = [...causes(error)].map((each) => each.status ?? each.statusCode ?? each.status_code);
    const good = told.includes(words) && (found.includes(status) || told.includes(`${status}`));
    return good ? ["refused", `${status}: ${words}`] : ["wrong", `not ${refused}: ${told}`];
  }
  return refused === null ? ["right", ""] : ["wrong", `not refused: ${refused[1]}`];
}

function* causes(error) {
  for (; error; error = error.cause ?? error.lastError) yield error;
}
