// Programs of npm, as people start them.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const LONGEST = 240_000;
const ANSWER = "Red, green and blue.";

// What a program prints on its standard output.
function run(name, words, variables = {}) {
  const program = join(process.env.ENVIRONMENT, "node_modules/.bin", name);
  const done = spawnSync(program, words, { encoding: "utf8", env: { ...process.env, ...variables }, timeout: LONGEST, stdio: ["ignore", "pipe", "pipe"] });
  assert.equal(done.status, 0, `${name} ended with ${done.status}: ${(done.stdout + done.stderr).slice(-800)}`);
  return done.stdout;
}

export async function promptfoo(t) {
  const providers = {
    "chat": { id: "openai:chat:scripted", config: { apiBaseUrl: t.base, apiKey: t.key, temperature: 0 } },
    "chat by responses": { id: "openai:responses:scripted", config: { apiBaseUrl: t.base, apiKey: t.key } },
    "chat by anthropic": { id: "anthropic:messages:scripted", config: { apiBaseUrl: t.address, apiKey: t.key } },
    "chat by ollama": { id: "ollama:chat:scripted" },
  };
  const variables = { OLLAMA_BASE_URL: t.address, OLLAMA_API_KEY: t.key, PROMPTFOO_DISABLE_TELEMETRY: "1", PROMPTFOO_DISABLE_UPDATE: "1" };
  for (const [name, provider] of Object.entries(providers)) {
    await t.tries(name, async () => {
      const tests = [{ assert: [{ type: "contains", value: ANSWER }] }];
      writeFileSync("config.json", JSON.stringify({ prompts: ["Name three colours."], providers: [provider], tests }));
      run("promptfoo", ["eval", "-c", "config.json", "--no-cache", "--no-progress-bar", "-o", "out.json"], variables);
      const { results } = JSON.parse(readFileSync("out.json", "utf8"));
      assert.deepEqual([results.stats.successes, results.stats.failures, results.stats.errors], [1, 0, 0]);
      await t.said(results.results[0].response.output, name === "chat by ollama");
    });
  }
  await t.tries("form", async () => {
    const response_format = { type: "json_schema", json_schema: { name: "city", strict: true, schema: t.schema } };
    const config = { ...providers.chat.config, response_format };
    const tests = [{ assert: [{ type: "is-json", value: t.schema }] }];
    writeFileSync("config.json", JSON.stringify({ prompts: ["Which city?"], providers: [{ id: `openai:chat:${t.model}`, config }], tests }));
    run("promptfoo", ["eval", "-c", "config.json", "--no-cache", "--no-progress-bar", "-o", "out.json"], variables);
    t.formed(JSON.parse(readFileSync("out.json", "utf8")).results.results[0].response.output);
  });
}

export async function opencode(t) {
  const models = { scripted: { name: "scripted" } };
  const provider = { triad: { npm: "@ai-sdk/openai-compatible", name: "triad", options: { baseURL: t.base, apiKey: t.key }, models } };
  writeFileSync("opencode.json", JSON.stringify({ provider, model: "triad/scripted", small_model: "triad/scripted", autoupdate: false, share: "disabled" }));
  const variables = { OPENCODE_DISABLE_MODELS_FETCH: "1", OPENCODE_DISABLE_AUTOUPDATE: "1", OPENCODE_DISABLE_LSP_DOWNLOAD: "1" };
  await t.tries("stream", async () => {
    const printed = run("opencode", ["run", "-m", "triad/scripted", "Name three colours."], variables);
    assert.ok(printed.includes(ANSWER), printed);
    await t.said(ANSWER, true);
  });
}

export async function cline(t) {
  await t.tries("stream", async () => {
    run("cline", ["auth", "-p", "openai", "-k", t.key, "-b", t.base, "-m", "scripted"]);
    const printed = run("cline", ["-t", "120", "--json", "Name three colours."]);
    const results = printed.split("\n").filter((line) => line.includes('"run_result"')).map((line) => JSON.parse(line));
    assert.equal(results[0].finishReason, "completed");
    await t.said(results[0].text, true);
  });
}

export async function codex(t) {
  await t.tries("stream", async () => {
    const provider = `{name="triad",base_url="${t.base}",env_key="KEY",wire_api="responses"}`;
    const words = ["exec", "--skip-git-repo-check", "-m", "scripted", "-c", "model_provider=triad", "-c", `model_providers.triad=${provider}`];
    await t.said(run("codex", [...words, "Name three colours."]), true);
  });
}

export async function claudeCode(t) {
  await t.tries("stream", async () => {
    const variables = { ANTHROPIC_BASE_URL: t.address, ANTHROPIC_AUTH_TOKEN: t.key, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1" };
    await t.said(run("claude", ["-p", "Name three colours.", "--model", "scripted"], variables), true);
  });
}
