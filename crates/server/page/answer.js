// An answer: what is sent for it, and how its message grows.

import * as api from './api.js';
import { withFiles } from './files.js';
import { REASONING } from './store.js';

// The result of a call that was never made, for the model.
const NOT_CALLED = 'error: the call was not made';

// Returns the request for the next message of a conversation, without streaming. `isContinued` goes on with the last one.
export function request(conversation, model, { tools = [], isContinued = false } = {}) {
  const told = conversation.messages.filter((one) => one.role === 'user' || one.content || one.calls);
  const messages = told.flatMap(sent);
  if (conversation.system.trim()) messages.unshift({ role: 'system', content: conversation.system });
  return {
    model: model || undefined,
    messages,
    ...conversation.sampling,
    ...REASONING[conversation.reasoning],
    ...(tools.length ? { tools } : {}),
    ...(isContinued ? { continue_final_message: true, add_generation_prompt: false } : {}),
  };
}

// Returns a message as the server reads it; one with calls has their results after it.
function sent({ role, content, images, files, reasoning, calls }) {
  const text = withFiles(content, files);
  if (images?.length) {
    const shown = images.map((url) => ({ type: 'image_url', image_url: { url } }));
    return [{ role, content: text.trim() ? [...shown, { type: 'text', text }] : shown }];
  }
  const message = { role, content: text, ...(reasoning ? { reasoning_content: reasoning } : {}) };
  if (!calls?.length) return [message];
  const made = calls.map((one) => ({ id: one.id, type: 'function', function: { name: one.name, arguments: one.arguments } }));
  const results = calls.map((one) => ({ role: 'tool', tool_call_id: one.id, content: one.result ?? NOT_CALLED }));
  return [{ ...message, tool_calls: made }, ...results];
}

// Streams an answer into `message`, and calls `grown` at each part. Errors become a part of the message; returns the error's
// status, or undefined.
export async function receive(body, message, signal, grown) {
  const started = performance.now();
  try {
    for await (const part of api.chat(body, signal)) {
      take(part, message, started);
      grown();
    }
  } catch (error) {
    if (error.name !== 'AbortError') {
      message.error = error.message;
      return error.status;
    }
    message.finish = 'stopped';
  } finally {
    delete message.isWaiting;
    if (message.reasoning && message.seconds === undefined) message.seconds = (performance.now() - started) / 1000;
  }
  return undefined;
}

function take(part, message, started) {
  message.id ??= part.id;
  if (part.usage) message.usage = part.usage;
  if (part.timings) message.timings = part.timings;
  const choice = part.choices?.[0];
  if (choice?.finish_reason) message.finish = choice.finish_reason;
  const { content, reasoning_content: reasoning, tool_calls: calls = [] } = choice?.delta ?? {};
  if (reasoning) message.reasoning = (message.reasoning ?? '') + reasoning;
  if ((content || calls.length) && message.reasoning && message.seconds === undefined) {
    message.seconds = (performance.now() - started) / 1000;
  }
  if (content) message.content += content;
  for (const call of calls) grow(call, message);
}

function grow({ index, id, function: called }, message) {
  message.calls ??= [];
  message.calls[index] ??= { id, name: '', arguments: '' };
  message.calls[index].name ||= called?.name ?? '';
  message.calls[index].arguments += called?.arguments ?? '';
}
