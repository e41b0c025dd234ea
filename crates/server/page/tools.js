// Tools of MCP servers, which the server of this page calls when the user allows it.

import * as api from './api.js';
import { settings } from './store.js';
import { t } from './text.js';

// Rounds of calls for one answer.
export const ROUNDS = 8;

// The tools, or an empty list if the server offers none.
let offered = [];
// Tools that the user allows in a conversation until the page is closed, or the tools or the key change.
const allowed = new Set();
let origin = '';
let decide = null;

// Asks the server for its tools.
export async function list() {
  offered = await api.tools();
  const now = JSON.stringify([settings.key, offered]);
  if (now !== origin) allowed.clear();
  origin = now;
  return offered;
}

// Asks again for each tool.
export function forget() {
  allowed.clear();
}

// Returns the tools for a request of a conversation.
export function used({ hasTools }) {
  if (!hasTools) return [];
  return offered.map(({ name, description, parameters }) => ({ type: 'function', function: { name, description, parameters } }));
}

// Answers the question about a call: `yes`, `always` or `no`.
export function consent(call, answer) {
  if (call.state === 'asks') decide?.(answer);
}

// Makes the calls of a message one by one, each after consent. Returns whether the model may go on with their results.
export async function run(conversation, message, signal, changed) {
  for (const call of message.calls) {
    const tool = offered.find((one) => one.name === call.name);
    call.server = tool?.server ?? '';
    const key = JSON.stringify([conversation.id, call.server, call.name]);
    const may = tool && (allowed.has(key) || (await ask(call, key, signal, changed)));
    if (signal.aborted) return false;
    if (may) {
      call.state = 'runs';
      changed();
      await make(call, signal);
    } else {
      call.state = tool ? 'declined' : 'failed';
      call.result = tool ? 'error: the user declined this call' : `error: there is no tool ${call.name}`;
    }
    changed();
    if (signal.aborted) return false;
  }
  return true;
}

async function ask(call, key, signal, changed) {
  call.state = 'asks';
  const answer = await new Promise((resolve) => {
    decide = resolve;
    signal.addEventListener('abort', () => resolve('no'), { once: true });
    changed();
  });
  delete call.state;
  decide = null;
  if (answer === 'always') allowed.add(key);
  return answer !== 'no';
}

async function make(call, signal) {
  try {
    const values = JSON.parse(call.arguments || '{}');
    const { text, is_error: isError } = await api.callTool(call.name, values, signal);
    call.result = text;
    call.state = isError ? 'failed' : undefined;
  } catch (error) {
    call.state = 'failed';
    const reason = error instanceof SyntaxError ? t('callNoJson') : error.message;
    // It may have done its work all the same: the model must not take it for undone.
    call.result = signal.aborted ? 'error: the user stopped waiting; the tool may have run' : `error: ${reason}`;
  }
}
