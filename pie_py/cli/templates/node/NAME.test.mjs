// Run by `node --test`: each run has a model that says what the test tells it to.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import test from "node:test";

// What the program in this folder sends and returns, of a model that says these texts.
function run(says, ...args) {
  const options = says.flatMap((text) => ["--says", text]);
  const command = ["run", ...options, ".", "--", ...args];
  return execFileSync("pie-py", command, { cwd: import.meta.dirname, encoding: "utf8" });
}

test("it sends what the model says", () => {
  const sent = run(["there was a king."], "--prompt", "Once upon a time", "--max-tokens", "20");
  assert.equal(sent, "there was a king.\n");
});
