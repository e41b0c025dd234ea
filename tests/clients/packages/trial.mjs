// Tries one client of npm in its own environment: node trial.mjs MODULE NAME. The same as trial.py, for JavaScript.

import assert from "node:assert/strict";

const { RECORDER, SERVER, KEY, MODEL } = process.env;
const CITIES = ["Oslo", "Rome"];

// The objects of a stream: of server-sent events, or one on each line.
function events(text) {
  const lines = text.split("\n").map((line) => line.replace(/^data:/, "").trim());
  return lines.filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
}

function whole(answer) {
  if (answer.choices) return answer.choices[0].message?.content ?? answer.choices[0].text ?? "";
  const texts = (contents) => contents.map((content) => content.text ?? "").join("");
  if (answer.output) return texts(answer.output.flatMap((item) => (item.type === "message" ? item.content : [])));
  if (Array.isArray(answer.content)) return texts(answer.content);
  return answer.message?.content ?? answer.response ?? answer.content ?? "";
}

function part(event) {
  if (event.choices) return event.choices[0]?.delta?.content ?? event.choices[0]?.text ?? "";
  if (event.type === "response.output_text.delta") return event.delta;
  if (event.type === "content_block_delta") return event.delta.text ?? "";
  return event.type ? "" : whole(event);
}

const isStream = (exchange) => /event-stream|ndjson/.test(exchange.kind);

export class Trial {
  constructor() {
    Object.assign(this, { address: RECORDER, base: `${RECORDER}/v1`, key: KEY, model: MODEL, scripted: "scripted" });
    this.messages = [{ role: "user", content: "Name three colours." }];
    this.question = "What is the weather in Oslo?";
    this.weatherMessages = [{ role: "user", content: this.question }];
    this.schema = {
      type: "object", properties: { city: { type: "string", enum: CITIES } }, required: ["city"], additionalProperties: false,
    };
    this.function = { name: "weather", description: "The weather in a city", parameters: this.schema };
    this.cities = [];
  }

  async tries(name, attempt) {
    let error = null;
    try {
      await attempt();
    } catch (failure) {
      console.error(failure);
      error = `${failure?.name}: ${failure?.message ?? failure}`.slice(0, 300);
    }
    console.log(`\ntried: ${JSON.stringify({ name, error })}`);
  }

  leavesOut(name, reason) {
    console.log(`\ntried: ${JSON.stringify({ name, left_out: reason })}`);
  }

  async recorded() {
    const exchanges = await (await fetch(`${RECORDER}/recorded`)).json();
    return exchanges.filter((it) => it.method === "POST" && !/\/show$|count_tokens$/.test(it.path));
  }

  // The client shows the text that the server sent, and the server sends the same when asked again without a stream.
  async said(text, streams = false) {
    const exchange = (await this.recorded()).at(-1);
    assert.equal(exchange.status, 200, exchange.answer);
    assert.equal(isStream(exchange), streams, `the answer is ${exchange.kind}`);
    const sent = isStream(exchange) ? events(exchange.answer).map(part).join("") : whole(JSON.parse(exchange.answer));
    assert.ok(text, "the client has no text");
    assert.equal(text.trim(), sent.trim());
    const { stream, stream_options, ...asked } = exchange.asked;
    const headers = { "content-type": "application/json", authorization: `Bearer ${KEY}` };
    const again = await fetch(SERVER + exchange.path, { method: "POST", headers, body: JSON.stringify({ ...asked, stream: false }) });
    assert.equal(whole(await again.json()), sent, "asked alone");
  }

  async streamed(pieces) {
    const found = pieces.filter((piece) => piece);
    assert.ok(found.length > 2, JSON.stringify(found));
    await this.said(found.join(""), true);
  }

  weather(city) {
    this.cities.push(city);
    return `It is 21 degrees in ${city}.`;
  }

  called(name, given) {
    const found = typeof given === "string" ? JSON.parse(given) : given;
    assert.equal(name, "weather");
    assert.deepEqual(Object.keys(found), ["city"]);
    assert.ok(CITIES.includes(found.city), found.city);
  }

  // The client has called the tool as the script has it, has given the result back, and shows the answer to it.
  async ran(text, streams = false) {
    assert.deepEqual(this.cities, ["Oslo"]);
    this.cities = [];
    const asked = JSON.stringify((await this.recorded()).at(-1).asked);
    assert.ok(asked.includes("It is 21 degrees in Oslo."), asked);
    await this.said(text, streams);
    assert.equal(text.trim(), "It is sunny in Oslo.");
  }

  formed(value) {
    const found = typeof value === "string" ? JSON.parse(value) : value;
    assert.deepEqual(Object.keys(found), ["city"]);
    assert.ok(CITIES.includes(found.city), found.city);
  }
}

const [module, name] = process.argv.slice(2);
const clients = await import(`./${module}.mjs`);
await clients[name.replace(/-(\w)/g, (_, letter) => letter.toUpperCase())](new Trial());
process.exit(0);
