// Packages of npm that speak to servers.

import assert from "node:assert/strict";

const options = { temperature: 0, max_tokens: 64 };

export async function npmOpenai(t) {
  const { default: OpenAI } = await import("openai");
  const { zodResponseFormat } = await import("openai/helpers/zod");
  const { z } = await import("zod");
  const client = new OpenAI({ baseURL: t.base, apiKey: t.key, maxRetries: 0 });
  const ask = { model: t.model, messages: t.messages, ...options };
  await t.tries("chat", async () => t.said((await client.chat.completions.create(ask)).choices[0].message.content));
  await t.tries("stream", async () => {
    const pieces = [];
    for await (const part of await client.chat.completions.create({ ...ask, stream: true })) pieces.push(part.choices[0]?.delta.content);
    await t.streamed(pieces);
  });
  await t.tries("tools", async () => {
    const run = client.chat.completions.runTools({
      ...ask, model: t.scripted, messages: t.weatherMessages,
      tools: [{ type: "function", function: { ...t.function, parse: JSON.parse, function: ({ city }) => t.weather(city) } }],
    });
    await t.ran(await run.finalContent());
  });
  await t.tries("form", async () => {
    const form = zodResponseFormat(z.object({ city: z.enum(["Oslo", "Rome"]) }), "city");
    t.formed((await client.chat.completions.parse({ ...ask, response_format: form })).choices[0].message.parsed);
  });
  await t.tries("responses", async () => {
    const ask = { model: t.model, input: t.messages, temperature: 0, max_output_tokens: 24 };
    await t.said((await client.responses.create(ask)).output_text);
    const pieces = [];
    for await (const event of await client.responses.create({ ...ask, stream: true })) {
      if (event.type === "response.output_text.delta") pieces.push(event.delta);
    }
    await t.streamed(pieces);
  });
}

export async function npmAnthropic(t) {
  const { default: Anthropic } = await import("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: t.address, apiKey: t.key, maxRetries: 0 });
  const ask = { model: t.model, messages: t.messages, ...options };
  const tools = [{ name: "weather", description: "The weather in a city", input_schema: t.schema }];
  await t.tries("chat", async () => t.said((await client.messages.create(ask)).content[0].text));
  await t.tries("stream", async () => {
    const pieces = [];
    await client.messages.stream(ask).on("text", (piece) => pieces.push(piece)).finalMessage();
    await t.streamed(pieces);
  });
  await t.tries("tools", async () => {
    const messages = [...t.weatherMessages];
    const called = await client.messages.create({ ...ask, model: t.scripted, messages, tools });
    assert.equal(called.stop_reason, "tool_use");
    const use = called.content.find((block) => block.type === "tool_use");
    t.called(use.name, use.input);
    const result = { type: "tool_result", tool_use_id: use.id, content: t.weather(use.input.city) };
    messages.push({ role: "assistant", content: called.content }, { role: "user", content: [result] });
    await t.ran((await client.messages.create({ ...ask, model: t.scripted, messages, tools })).content[0].text);
  });
  await t.tries("form", async () => {
    const output_config = { format: { type: "json_schema", schema: t.schema } };
    t.formed((await client.messages.create({ ...ask, output_config })).content[0].text);
  });
}

export async function npmOllama(t) {
  const { Ollama } = await import("ollama");
  const client = new Ollama({ host: t.address, headers: { Authorization: `Bearer ${t.key}` } });
  const ask = { model: t.model, messages: t.messages, options: { temperature: 0, num_predict: 24 } };
  const tools = [{ type: "function", function: t.function }];
  await t.tries("chat", async () => t.said((await client.chat(ask)).message.content));
  await t.tries("stream", async () => {
    const pieces = [];
    for await (const part of await client.chat({ ...ask, stream: true })) pieces.push(part.message.content);
    await t.streamed(pieces);
  });
  await t.tries("tools", async () => {
    const messages = [...t.weatherMessages];
    const { message } = await client.chat({ model: t.scripted, messages, tools });
    const [call] = message.tool_calls;
    t.called(call.function.name, call.function.arguments);
    messages.push(message, { role: "tool", content: t.weather(call.function.arguments.city), tool_name: "weather" });
    await t.ran((await client.chat({ model: t.scripted, messages, tools })).message.content);
  });
  await t.tries("form", async () => t.formed((await client.chat({ ...ask, format: t.schema })).message.content));
  await t.tries("fill in the middle", async () => {
    const reply = await client.generate({ model: "middle", prompt: "def add(a, b):\n    return ", suffix: "\n", options: { temperature: 0 } });
    assert.equal(reply.response, "a + b");
  });
}

export async function npmAi(t) {
  const { generateText, generateObject, jsonSchema, stepCountIs, streamText, tool } = await import("ai");
  const { createOpenAI } = await import("@ai-sdk/openai");
  const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
  const { createAnthropic } = await import("@ai-sdk/anthropic");
  const settings = { baseURL: t.base, apiKey: t.key };
  const makers = {
    compatible: createOpenAICompatible({ name: "triad", supportsStructuredOutputs: true, ...settings }),
    responses: (name) => createOpenAI(settings).responses(name),
    chat: (name) => createOpenAI(settings).chat(name),
    anthropic: createAnthropic(settings),
  };
  const ask = { prompt: "Name three colours.", temperature: 0, maxOutputTokens: 64, maxRetries: 0 };
  for (const [kind, make] of Object.entries(makers)) {
    const by = kind === "compatible" ? "" : ` by ${kind}`;
    await t.tries(`chat${by}`, async () => t.said((await generateText({ ...ask, model: make(t.model) })).text));
    await t.tries(`stream${by}`, async () => {
      const pieces = [];
      for await (const piece of streamText({ ...ask, model: make(t.model) }).textStream) pieces.push(piece);
      await t.streamed(pieces);
    });
    await t.tries(`tools${by}`, async () => {
      const weather = tool({ description: "The weather", inputSchema: jsonSchema(t.schema), execute: async ({ city }) => t.weather(city) });
      const answer = await generateText({ ...ask, prompt: t.question, model: make(t.scripted), tools: { weather }, stopWhen: stepCountIs(3) });
      await t.ran(answer.text);
    });
    await t.tries(`form${by}`, async () => t.formed((await generateObject({ ...ask, model: make(t.model), schema: jsonSchema(t.schema) })).object));
  }
}

export async function npmLangchain(t) {
  const { ChatOpenAI } = await import("@langchain/openai");
  const { tool } = await import("@langchain/core/tools");
  const { HumanMessage } = await import("@langchain/core/messages");
  const { z } = await import("zod");
  const model = (name) => new ChatOpenAI({ model: name, apiKey: t.key, configuration: { baseURL: t.base }, temperature: 0, maxTokens: 64, maxRetries: 0 });
  await t.tries("chat", async () => t.said((await model(t.model).invoke("Name three colours.")).text));
  await t.tries("stream", async () => {
    const pieces = [];
    for await (const part of await model(t.model).stream("Name three colours.")) pieces.push(part.text);
    await t.streamed(pieces);
  });
  await t.tries("tools", async () => {
    const weather = tool(({ city }) => t.weather(city), { name: "weather", description: "The weather", schema: z.object({ city: z.enum(["Oslo", "Rome"]) }) });
    const bound = model(t.scripted).bindTools([weather]);
    const messages = [new HumanMessage(t.question)];
    const called = await bound.invoke(messages);
    messages.push(called, await weather.invoke(called.tool_calls[0]));
    await t.ran((await bound.invoke(messages)).text);
  });
  await t.tries("form", async () => {
    const form = model(t.model).withStructuredOutput(z.object({ city: z.enum(["Oslo", "Rome"]) }), { name: "city", method: "jsonSchema" });
    t.formed(await form.invoke("Which city?"));
  });
}

export async function npmAgents(t) {
  const agents = await import("@openai/agents");
  const { default: OpenAI } = await import("openai");
  const { z } = await import("zod");
  agents.setTracingDisabled(true);
  const client = new OpenAI({ baseURL: t.base, apiKey: t.key, maxRetries: 0 });
  const worker = (name, more = {}, Kind = agents.OpenAIChatCompletionsModel) =>
    new agents.Agent({ name: "Helper", model: new Kind(client, name), modelSettings: { temperature: 0, maxTokens: 64 }, ...more });
  const weather = agents.tool({
    name: "weather", description: "The weather", parameters: z.object({ city: z.enum(["Oslo", "Rome"]) }), execute: async ({ city }) => t.weather(city),
  });
  await t.tries("chat", async () => t.said((await agents.run(worker(t.model), "Name three colours.")).finalOutput));
  await t.tries("stream", async () => {
    const pieces = [];
    const answer = await agents.run(worker(t.model), "Name three colours.", { stream: true });
    for await (const piece of answer.toTextStream()) pieces.push(piece);
    await t.streamed(pieces);
  });
  await t.tries("tools", async () => t.ran((await agents.run(worker(t.scripted, { tools: [weather] }), t.question)).finalOutput));
  await t.tries("form", async () => {
    const outputType = z.object({ city: z.enum(["Oslo", "Rome"]) });
    t.formed((await agents.run(worker(t.model, { outputType }), "Which city?")).finalOutput);
  });
  await t.tries("responses", async () =>
    t.ran((await agents.run(worker(t.scripted, { tools: [weather] }, agents.OpenAIResponsesModel), t.question)).finalOutput));
}

export async function npmLlamaindex(t) {
  const { openai } = await import("@llamaindex/openai");
  const { Ollama } = await import("@llamaindex/ollama");
  const { agent, tool } = await import("@llamaindex/workflow").catch(() => import("llamaindex"));
  const { z } = await import("zod");
  const makers = {
    openai: (name) => openai({ model: name, apiKey: t.key, baseURL: t.base, temperature: 0, maxTokens: 64, maxRetries: 0, supportToolCall: true }),
    ollama: (name) => new Ollama({ model: name, config: { host: t.address, headers: { Authorization: `Bearer ${t.key}` } }, options: { temperature: 0, num_predict: 64 } }),
  };
  for (const [kind, make] of Object.entries(makers)) {
    const by = kind === "openai" ? "" : ` by ${kind}`;
    await t.tries(`chat${by}`, async () => t.said((await make(t.model).chat({ messages: t.messages })).message.content));
    await t.tries(`stream${by}`, async () => {
      const pieces = [];
      for await (const part of await make(t.model).chat({ messages: t.messages, stream: true })) pieces.push(part.delta);
      await t.streamed(pieces);
    });
  }
  await t.tries("form", async () => {
    const reply = await makers.openai(t.model).chat({ messages: t.messages, responseFormat: z.object({ city: z.enum(["Oslo", "Rome"]) }) });
    t.formed(reply.message.content);
  });
  t.leavesOut("tools", "its agents are of another package");
}
