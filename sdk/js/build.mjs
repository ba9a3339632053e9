// Bundles a program, or the runtime, and makes a component of it. Its one argument is a JSON object;
// `pie_py/build/javascript.py` calls it, from the folder where the packages are.

import { writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { componentize } from "@bytecodealliance/componentize-js";
import { build } from "esbuild";

const PACKAGES = join(dirname(fileURLToPath(import.meta.url)), "node_modules");
// A component that imports WASI is refused: clocks, randomness and the console are the SDK's.
const DISABLED = ["stdio", "random", "clocks", "http", "fetch-event"];

/** The text of an entry with all that it imports, but for the contract, and `outside`. */
async function bundle(entry, format, outside = []) {
  const done = await build({
    ...entry,
    bundle: true,
    write: false,
    format,
    platform: "neutral",
    mainFields: ["module", "main"],
    conditions: ["import"],
    nodePaths: [PACKAGES],
    external: ["pie:*", ...outside],
    target: "es2023",
    logLevel: "silent",
    charset: "utf8",
  });
  return done.outputFiles[0].text;
}

async function main(job) {
  let { entry } = job;
  let options = { entryPoints: [entry] };
  if (job.program) {
    const text = await bundle({ entryPoints: [job.program] }, "cjs", ["inferlet"]);
    const modules = JSON.stringify([[job.name, text]]);
    const contents = `import { built } from "./guest/built.ts";\nexport const run = built(${modules});\n`;
    options = { stdin: { contents, resolveDir: job.sdk, sourcefile: "entry.js" } };
  }
  const source = await bundle(options, "esm");
  const { component } = await componentize(source, {
    sourceName: "inferlet_sdk.js", // what traces leave out
    witPath: job.wit,
    worldName: job.world,
    disableFeatures: DISABLED,
  });
  await writeFile(job.output, component);
}

try {
  await main(JSON.parse(process.argv[2]));
} catch (error) {
  const told = (error.errors ?? []).map(({ text, location }) =>
    location ? `${location.file}:${location.line}:${location.column + 1}: ${text}` : text,
  );
  console.error(told.length ? told.join("\n") : error.message);
  process.exit(1);
}
