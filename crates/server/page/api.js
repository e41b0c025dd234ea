// A client of the server's OpenAI API.

import { settings } from './store.js';
import { t } from './text.js';

// An error response of the server.
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (settings.key) headers.authorization = `Bearer ${settings.key}`;
  const response = await fetch(path, { ...options, headers }).catch((error) => {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, t('unreachable'));
  });
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(response.status, message(body) ?? t('refused', { status: response.status }));
}

// Returns the sentence of an error. Ollama's API has it without an object.
function message({ error }) {
  return typeof error === 'string' ? error : error?.message;
}

// Yields the parts of a response that a separator ends.
async function* parts(response, separator) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    const complete = buffer.split(separator);
    buffer = complete.pop();
    yield* complete;
  }
}

// Returns the names of the models.
export async function models() {
  const list = await (await request('v1/models')).json();
  return list.data.map((model) => model.id);
}

// Returns descriptions of the models in Ollama's form, with `isLoaded`.
export async function descriptions() {
  const [all, loaded] = await Promise.all(['api/tags', 'api/ps'].map(async (path) => (await (await request(path)).json()).models));
  return all.map((one) => ({ ...one, isLoaded: loaded.some(({ digest }) => digest === one.digest) }));
}

// Returns whether the server lets its clients fetch and delete models.
export async function allowsPull() {
  return (await (await request('props')).json()).allows_pull;
}

// Lets the server fetch a model. Yields its progress: a `status`, and the bytes of a file as `completed` and `total`.
// Aborting `signal` ends the fetch.
export async function* pull(model, signal) {
  const response = await post('api/pull', { model }, signal);
  for await (const line of parts(response, '\n')) {
    const progress = JSON.parse(line);
    if (progress.error) throw new ApiError(500, message(progress));
    yield progress;
    if (progress.status === 'success') return;
  }
  throw new ApiError(0, t('pullBroken'));
}

// Deletes a model from the server's machine.
export async function remove(model) {
  await post('api/delete', { model }, undefined, 'DELETE');
}

// Loads a model, or lets it leave the memory.
export async function setLoaded(model, isLoaded) {
  await post('api/generate', { model, stream: false, ...(isLoaded ? {} : { keep_alive: 0 }) });
}

// Returns the timeline of a response's prompt, or `null` if the server does not have it.
export async function timeline(id) {
  try {
    return await (await request(`v1/timelines/${encodeURIComponent(id)}`)).json();
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

// Returns the tools of MCP servers that the server offers to its pages, each with `server`, `name`, `description` and
// `parameters`; none if it has no such servers.
export async function tools() {
  try {
    return (await (await request('mcp/tools')).json()).tools;
  } catch (error) {
    if (error.status === 404) return [];
    throw error;
  }
}

// Calls a tool. Returns its `text`, and whether it `is_error`.
export async function callTool(name, values, signal) {
  return (await post('mcp/call', { name, arguments: values }, signal)).json();
}

function post(path, body, signal, method = 'POST') {
  return request(path, { method, headers: { 'content-type': 'application/json' }, body: JSON.stringify(body), signal });
}

// Streams a response: yields the chunks as objects. Aborting `signal` also cancels it on the server.
export async function* chat(body, signal) {
  const response = await post('v1/chat/completions', { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  for await (const event of parts(response, /\r?\n\r?\n/)) {
    const lines = event.split(/\r?\n/).filter((line) => line.startsWith('data:'));
    const data = lines.map((line) => line.slice(5).trimStart()).join('\n');
    if (!data) continue;
    if (data === '[DONE]') return;
    const part = JSON.parse(data);
    if (part.error) throw new ApiError(500, message(part));
    yield part;
  }
}
