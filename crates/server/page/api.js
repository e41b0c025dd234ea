// A client of the server's OpenAI API.

import { settings } from './store.js';

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
    throw new ApiError(0, 'The server can’t be reached. Is it still running?');
  });
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(response.status, body.error?.message ?? `The server refused with ${response.status}.`);
}

// Returns the names of the models.
export async function models() {
  const list = await (await request('v1/models')).json();
  return list.data.map((model) => model.id);
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

// Streams a response: yields the chunks as objects. Aborting `signal` also cancels it on the server.
export async function* chat(body, signal) {
  const response = await request('v1/chat/completions', {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    const events = buffer.split(/\r?\n\r?\n/);
    buffer = events.pop();
    for (const event of events) {
      const lines = event.split(/\r?\n/).filter((line) => line.startsWith('data:'));
      const data = lines.map((line) => line.slice(5).trimStart()).join('\n');
      if (!data) continue;
      if (data === '[DONE]') return;
      const part = JSON.parse(data);
      if (part.error) throw new ApiError(500, part.error.message);
      yield part;
    }
  }
}
